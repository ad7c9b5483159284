"""The base of every config section, the sections of server optimizers, and types that several sections share."""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from feddual.experiment import plugins


class Section(BaseModel):
    """Part of an experiment; unknown keys, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# --- what the server does with an aggregated model, one section for each name; feddual/training/server.py does it


class ServerNone(Section):
    """The aggregated model is the next one."""

    name: Literal["none"] = "none"


class ServerMomentum(Section):
    """FedAvgM (Hsu et al. 2019): v <- momentum v + change, x <- x + learning_rate v."""

    name: Literal["momentum"]
    learning_rate: float = Field(0.1, gt=0, description="of the server's step; 1 - momentum: as long as without")
    momentum: float = Field(0.9, ge=0, lt=1, description="share of the last step's velocity that is kept")


class ServerEma(Section):
    """The aggregated model is the next one; tested is an exponential moving average of what would be tested."""

    name: Literal["ema"]
    decay: float = Field(0.8, ge=0, lt=1, description="share of the average that stays each round; 0: as none")


class ServerAdaptive(Section):
    """FedAdam and FedYogi (Reddi et al. 2021): Adam or Yogi on the change, without bias correction."""

    name: Literal["fedadam", "fedyogi"]
    learning_rate: float = Field(0.003, gt=0, description="of the server's step")
    beta1: float = Field(0.9, ge=0, lt=1, description="share of the mean change that is kept")
    beta2: float = Field(0.99, ge=0, lt=1, description="share of the mean squared change that is kept")
    tau: float = Field(1e-3, gt=0, description="added to its root; larger is less adaptive")


ServerOptimizer = ServerNone | ServerMomentum | ServerEma | ServerAdaptive

# --- types that several sections share

NumClients = Annotated[int, Field(ge=1, description="clients in the federation")]
Alpha = Annotated[float, Field(gt=0, description="Dirichlet concentration; smaller is more skewed")]
Seed = Annotated[int, Field(ge=0, lt=2**32, description="of this part alone; the run's seed does not touch it")]
Preprocess = Annotated[
    Literal["auto", "unit", "raw", "vgg16"],
    Field(description="unit: 0..1; raw: 0..255 as floats; vgg16: BGR minus ImageNet means; auto: what the model wants"),
]
# Names that `plugins` looks up.
ExecutorName = Annotated[str, AfterValidator(partial(plugins.known, "executors"))]
SinkName = Annotated[str, AfterValidator(partial(plugins.known, "sinks"))]
BarycenterName = Annotated[str, AfterValidator(partial(plugins.known, "barycenters"))]
