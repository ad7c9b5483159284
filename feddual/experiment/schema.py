"""The base of every config section, and number types that several sections share."""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from feddual.experiment import plugins


class Section(BaseModel):
    """Part of an experiment; unknown keys, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


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
