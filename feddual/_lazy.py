"""TensorFlow and Keras, imported on first use.

Configs, help texts and figures must work in a fraction of a second, so no module of the package imports TensorFlow at
its top: each takes `tf` or `keras` from here and pays for the import only when it computes.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for a module and imports it at the first attribute access."""

    def __getattr__(self, attribute: str) -> Any:
        module = sys.modules.get(self.__name__)
        if module is None:
            # Keras reads its backend, TensorFlow its log level, when they are imported.
            os.environ["KERAS_BACKEND"] = "tensorflow"
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            with without_chatter():
                module = importlib.import_module(self.__name__)
        return getattr(module, attribute)


@contextmanager
def without_chatter() -> Iterator[None]:
    """Hold back what C++ libraries print to standard error (absent CUDA drivers, mostly) unless something fails."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


tf: Any = LazyModule("tensorflow")
keras: Any = LazyModule("keras")
