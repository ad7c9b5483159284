"""Gradient norms alongside training: `feddual run ... --probe gradient-norms@every=5`."""

from diagnostics.gradients.probe import GradientNormProbe

PROBE = GradientNormProbe
