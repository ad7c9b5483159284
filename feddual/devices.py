"""What TensorFlow may use of the machine: threads, device, GPU memory. Set once a process, before anything runs."""

import ctypes
import os
import platform
import warnings
from contextlib import suppress
from typing import Any

from feddual._lazy import tf, without_chatter
from feddual.errors import UserError


def configure(threads: int = 1, device: str = "auto") -> str:
    """Set threads and GPU memory growth, and return the device name to place work on.

    Args:
        threads: Intra-op and inter-op threads. One thread gives the same bits everywhere, and is the fastest choice
            for small networks; parallelism comes from worker processes.
        device: `auto` (the first GPU if there is one), `cpu`, `gpu` or a TensorFlow name such as `GPU:1`.
    """
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:  # TensorFlow has already run something, in a notebook for instance
        found = threading.get_intra_op_parallelism_threads()
        if found != threads:
            warnings.warn(
                f"TensorFlow already runs with {found or 'its default number of'} threads, so runtime.threads = "
                f"{threads} has no effect and the last bits may differ from other runs. Start the run before other "
                "TensorFlow work.",
                stacklevel=2,
            )
    with without_chatter():
        gpus = [] if device == "cpu" else tf.config.list_physical_devices("GPU")
        for gpu in gpus:
            with suppress(RuntimeError):  # already initialised; the environment variable above has done it
                tf.config.experimental.set_memory_growth(gpu, True)
        tf.zeros([])  # the first operation opens the devices
    if device == "auto":
        return "/GPU:0" if gpus else "/CPU:0"
    if device == "gpu" and not gpus:
        raise UserError(
            "runtime.device: 'gpu' was asked for, but TensorFlow sees no GPU; use 'auto' or 'cpu', or "
            "install the extra: pip install 'feddual[gpu]'"
        )
    return {"cpu": "/CPU:0", "gpu": "/GPU:0"}.get(device, f"/{device}")


def keep_memory() -> None:
    """Let glibc keep freed memory for the next use instead of returning it to the system at once.

    A step of training allocates and frees the same few megabytes hundreds of times a second. Taken from the system anew
    they must be cleared page by page each time, which is a tenth of a round's time and more of FedDUAL's passes.
    """
    trim_threshold, mmap_max = -1, -4  # names in <malloc.h>
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if platform.libc_ver()[0] == "glibc" else None
    if mallopt is not None:
        mallopt(trim_threshold, 2**30)
        mallopt(mmap_max, 0)


def environment() -> dict[str, Any]:
    """Versions and hardware, for a run's environment.json."""
    import keras
    import numpy

    from feddual import __version__

    return {
        "feddual": __version__,
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in (tf, keras, numpy)},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpuinfo("model name") or platform.processor() or "unknown",
        "cpu_features": cpu_features(),
        "cores": os.cpu_count(),
        "gpus": [device.name for device in tf.config.list_physical_devices("GPU")],
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
    }


def peak_memory() -> int | None:
    """The largest resident size of this process so far, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def cpu_features() -> list[str]:
    """The vector extensions that decide which kernels run, and so the last bits of a result."""
    wanted = {"sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve"}
    return sorted(wanted & set((_cpuinfo("flags") or _cpuinfo("Features")).split()))


def _cpuinfo(field: str) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "")
    except OSError:
        return ""
