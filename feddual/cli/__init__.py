"""The command line: parses, calls, prints. No logic of its own."""

from typing import Any


def main() -> None:
    """Entry point."""
    __getattr__("app")()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    from feddual.cli import know, look, train  # noqa: F401 - each adds its commands
    from feddual.cli.shell import app

    return app
