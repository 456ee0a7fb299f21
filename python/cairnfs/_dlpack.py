"""Reads the struct behind a DLPack capsule: https://dmlc.github.io/dlpack/latest/c_api.html"""

import contextlib
import ctypes
import sys

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_MAJOR = 1
_READ_ONLY = 1
# "Any earlier work of the producer is done before what is put on the legacy default stream."
_LEGACY_DEFAULT_STREAM = 1


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _on_its_device(value):
    """Torch takes the number of a stream for one of its current device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.is_cuda:
        return torch.cuda.device(value.device)
    return contextlib.nullcontext()


def open_capsule(value):
    """(capsule, DLTensor, whether it is read-only) of an object with __dlpack__. The capsule keeps the memory.

    Work that the producer has begun on a CUDA device is ordered before the legacy default stream."""
    arguments = {"stream": _LEGACY_DEFAULT_STREAM} if value.__dlpack_device__()[0] in (CUDA, CUDA_MANAGED) else {}
    with _on_its_device(value):
        try:
            capsule = value.__dlpack__(max_version=(1, 0), **arguments)
        except TypeError:  # a producer from before DLPack 1.0
            capsule = value.__dlpack__(**arguments)
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if versioned.major > _MAJOR:  # what follows may lie elsewhere
            raise BufferError(f"its DLPack version is {versioned.major}.{versioned.minor}; up to {_MAJOR} is known")
        return capsule, versioned.tensor, bool(versioned.flags & _READ_ONLY)
    return capsule, _Tensor.from_address(_get_pointer(capsule, b"dltensor")), False
