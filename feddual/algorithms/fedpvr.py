"""On the Effectiveness of Partial Variance Reduction in Federated Learning with Heterogeneous Data (FedPVR).

Li, Schmidt, Alstrøm, Stich, CVPR 2023, https://arxiv.org/abs/2212.02191 (Algorithm 1).

    as SCAFFOLD, but correction and controls exist on a mask M (the classifier) only:
    client k:  off M: y <- y - eta g;  on M: y <- y - eta (g + c - c_k)
    server:    x <- mean_k y_k,   c <- c + 1/N sum_k (c_k+ - c_k) on M

Differences from the paper: the default mask is the last two layers, the same as FedDUAL's, so that the two compare.
The authors' code has momentum 0.9 off the mask and none on it; `momentum_uncorrected` does that, with SGD.
"""

from typing import Any

import numpy as np
from pydantic import Field

from feddual.algorithms.scaffold import SCAFFOLD
from feddual.errors import UserError
from feddual.functional import masks
from feddual.functional.layout import Layout


class FedPVR(SCAFFOLD):
    """SCAFFOLD on the classifier."""

    class Params(SCAFFOLD.Params):
        """Keys of the `algorithm` section."""

        mask: str = Field("last_tensors:2", description="corrected tensors; see docs/algorithms.md; none gives FedAvg")
        momentum_uncorrected: float = Field(0.0, ge=0, lt=1, description="momentum off the mask, with sgd")

    communication_text = "model + mask / model + mask"
    memory_text = "control on the mask at each client and the server"

    def masked(self, layout: Layout) -> np.ndarray:
        return masks.indices(masks.select(layout, self.params.mask))

    def check(self, experiment: Any) -> None:
        super().check(experiment)
        value = self.params.momentum_uncorrected
        if value and self.training.optimizer != "sgd":
            raise UserError(f"algorithm.momentum_uncorrected: {value} needs training.optimizer 'sgd'")

    def momentum(self, layout: Layout) -> Any:
        if not self.params.momentum_uncorrected:
            return None
        values = np.full(layout.num_trainable, self.params.momentum_uncorrected, np.float32)
        values[self.masked(layout)] = 0.0
        return values

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        return {"algorithm.mask": "none"}
