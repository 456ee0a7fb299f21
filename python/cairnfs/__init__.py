"""Saves tensors in memory of the host or of CUDA devices as plain files, takes what did not change from the file of the
save before, and loads them. See docs/gpu.md of CairnFS. torch is needed by cairnfs.torch alone."""

from . import errors
from ._abi import BASE_USES, build, device_count
from .errors import Error
from .fingerprints import fingerprint
from .loader import Loader, load
from .saver import SaveFuture, Saver, SaveResult

__all__ = [
    "BASE_USES",
    "Error",
    "Loader",
    "SaveFuture",
    "SaveResult",
    "Saver",
    "build",
    "device_count",
    "errors",
    "fingerprint",
    "load",
]
