"""Pictures that can be turned where a notebook is alive, and still show where it is only read."""

import base64
import io
import json
from collections.abc import Mapping
from typing import Any

from figures.charts import surfaces


class Interactive:
    """A plotly figure, and a matplotlib picture of the same for pages that do not run plotly: GitHub, print."""

    def __init__(self, figure: Any, still: Any):
        self.figure, self.still = figure, still

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        buffer = io.BytesIO()
        self.still.savefig(buffer, format="png", dpi=90)
        return {
            "application/vnd.plotly.v1+json": json.loads(self.figure.to_json()),
            "image/png": base64.b64encode(buffer.getvalue()).decode(),
        }


def explore(shown: Any | Mapping[str, Any], cap: float | None = None) -> Interactive:
    """One surface, or several by name side by side, in three dimensions: one scale, one height, one camera."""
    named = shown if isinstance(shown, Mapping) else {"": shown}
    return Interactive(surfaces.panels3d(named, cap=cap), surfaces.panels3d(named, backend="matplotlib", cap=cap))
