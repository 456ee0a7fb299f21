"""Saves and loads what torch does: files that plain torch.load, safetensors and torch.distributed.checkpoint read.

Needs torch 2.6 or newer. See cairnfs.torch.dcp for distributed checkpoints."""

import os
import threading

import torch

# Before the imports that such a torch fails.
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
    raise ImportError(f"cairnfs.torch needs torch 2.6 or newer; this is {torch.__version__}")

# pylint: disable=wrong-import-position
from .. import errors, safetensors
from .._arrays import check_mapping
from ..saver import Saver as _Saver
from . import _tensors, _zip
from .loading import fingerprint, load

__all__ = ["Saver", "fingerprint", "load", "save", "save_async", "save_safetensors"]


class Saver(_Saver):
    """As cairnfs.Saver, for what torch.save takes. Work on the current CUDA streams is waited for on the device."""

    # Until torch gave back what it keeps unused. A device that has no room even then is not asked again at each save.
    _needs_snapshot = True

    def save(self, obj, path, base=None, *, pickle_protocol=2, mode=0):  # pylint: disable=arguments-differ
        """Writes the file that torch.save(obj, path) would, durable when this returns; a SaveResult.

        The records of storages lack their CRC-32, as with torch.serialization.set_crc32_options(False): torch.load does
        not read it, `unzip -t` complains. For the other arguments see cairnfs.Saver.save."""
        return self._finish(self._submit_layout(_zip.layout(obj, path, pickle_protocol), path, base, mode, False))

    def save_async(self, obj, path, base=None, *, pickle_protocol=2, mode=0):  # pylint: disable=arguments-differ
        """As save, but returns as soon as the tensors may change again; see cairnfs.Saver.save_async."""
        return self._release(self._submit_layout(_zip.layout(obj, path, pickle_protocol), path, base, mode, True))

    def save_safetensors(self, tensors, path, base=None, *, metadata=None, mode=0):
        """Writes {name: contiguous tensor} as a safetensors file, durable when this returns; a SaveResult."""
        return self._finish(self._submit_layout(_safetensors_layout(tensors, metadata), path, base, mode, False))

    def save_safetensors_async(self, tensors, path, base=None, *, metadata=None, mode=0):
        """As save_safetensors, but returns a SaveFuture as soon as the tensors may change again."""
        return self._release(self._submit_layout(_safetensors_layout(tensors, metadata), path, base, mode, True))

    def _submit_layout(self, layout, path, base, mode, keeps_error):
        streams = _tensors.streams_of(array.device for _, array, _ in layout.tensors)

        def submit():
            try:
                return self._submit(layout, path, base, mode, streams, keeps_error, self._needs_snapshot)
            except errors.NoDeviceMemoryError:
                self._needs_snapshot = False
                raise

        return _tensors.with_room(submit)


def _safetensors_layout(tensors, metadata):
    check_mapping("tensors", tensors)
    arrays = {}
    for name, tensor in tensors.items():
        safetensors.check_name(name)
        arrays[name] = _tensors.of_tensor(name, tensor)
    return safetensors.layout(arrays, metadata)


_lock = threading.Lock()
_default, _default_pid = None, None


def _default_saver():
    global _default, _default_pid  # pylint: disable=global-statement
    with _lock:
        if _default_pid != os.getpid():  # also after a fork: the parent's is of no use here
            _default, _default_pid = Saver(), os.getpid()
        return _default


def save(obj, path, base=None, **options):
    """Saver.save of a Saver that the process has for these functions: one series of files. More series, as one for each
    rank or model of a process, want a Saver each."""
    return _default_saver().save(obj, path, base, **options)


def save_async(obj, path, base=None, **options):
    """Saver.save_async, see save."""
    return _default_saver().save_async(obj, path, base, **options)


def save_safetensors(tensors, path, base=None, **options):
    """Saver.save_safetensors, see save."""
    return _default_saver().save_safetensors(tensors, path, base, **options)
