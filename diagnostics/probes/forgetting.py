"""What averaging breaks, alongside training: `feddual run ... --probe forgetting@every=5`."""

from diagnostics.forgetting.probe import ForgettingProbe

PROBE = ForgettingProbe
