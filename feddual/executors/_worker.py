"""A worker process: takes (function, task) from its connection, sends (error, result) back, until it closes."""

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    """Serve the connection whose descriptor is the first argument; the rest is the parent's module path."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sys.path[:] = [*dict.fromkeys([*sys.argv[2:], *sys.path])]
    from feddual.experiment.plugins import load_attribute

    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        while True:
            function_path, task = connection.recv()
            answer: tuple[str | None, Any]
            try:
                answer = (None, load_attribute(function_path, "function")(task))
            except Exception as error:
                answer = (traceback.format_exc(), _portable(error))
            connection.send(answer)


def _end_with(parent: int) -> None:
    """Do not go on with a long task for a parent that was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error itself, if it survives the journey."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
