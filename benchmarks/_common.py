"""What the benchmarks share: the machine, and one JSON line."""

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def report(name: str, result: dict[str, Any]) -> None:
    """Print a result as one line, and keep it with the machine it was measured on."""
    from feddual import devices

    result = {"benchmark": name, **result, "environment": devices.environment()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)
