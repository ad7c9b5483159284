"""The base of every config section, and number types that several sections share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Part of an experiment; unknown keys, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


NumClients = Annotated[int, Field(ge=1, description="clients in the federation")]
Alpha = Annotated[float, Field(gt=0, description="Dirichlet concentration; smaller is more skewed")]
Seed = Annotated[int, Field(ge=0, lt=2**32, description="of this part alone; the run's seed does not touch it")]
