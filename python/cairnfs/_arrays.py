"""What may be saved, and loaded into: contiguous arrays of numpy, and of everything else that speaks DLPack."""

import dataclasses
import math
from collections.abc import Mapping

import numpy

from . import _abi, _dlpack, _dtypes, errors

ADDRESS_END = 1 << 64  # memory ends there at the latest


@dataclasses.dataclass
class Array:
    """One contiguous array in row-major order: [data, data + bytes) of the host's memory or a device's."""

    data: int
    bytes: int
    shape: tuple
    dtype: str  # its name in _dtypes
    device: int  # _abi.HOST, or the CUDA runtime's number
    is_writable: bool
    owner: object  # keeps the memory


def _not_contiguous(name, shape, strides):
    return errors.InvalidError(
        f"tensor '{name}' is not contiguous: shape {tuple(shape)}, strides {tuple(strides)}; pass a contiguous copy"
    )


def _of_numpy(name, array):
    dtype = _dtypes.of_numpy(name, array.dtype)
    if not array.flags.c_contiguous:
        raise _not_contiguous(name, array.shape, array.strides)
    return Array(array.ctypes.data, array.nbytes, array.shape, dtype, _abi.HOST, bool(array.flags.writeable), array)


def _is_contiguous(shape, strides):
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _of_dlpack(name, value):
    try:
        capsule, tensor, is_read_only = _dlpack.open_capsule(value)
    except Exception as error:  # whatever its producer raises
        raise errors.InvalidError(
            f"tensor '{name}' ({type(value).__name__}) gives no DLPack capsule: {error}"
        ) from error
    if tensor.device_type in (_dlpack.CPU, _dlpack.CUDA_HOST):
        device = _abi.HOST
    elif tensor.device_type in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
        device = tensor.device_id
        if device < 0:
            raise errors.InvalidError(f"tensor '{name}' lies on CUDA device {device}; the first one is 0")
    else:
        raise errors.InvalidError(
            f"tensor '{name}' lies on a device of DLPack's type {tensor.device_type}; the host and CUDA are known"
        )
    dtype = _dtypes.DLPACK.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise errors.DtypeError(
            f"tensor '{name}': DLPack's dtype {tensor.code} of {tensor.bits} bits, {tensor.lanes} lanes is unknown"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    size = math.prod(shape) * _dtypes.ITEM_BYTES[dtype]
    data = (tensor.data or 0) + tensor.byte_offset
    if any(length < 0 for length in shape) or data + size > ADDRESS_END:
        raise errors.InvalidError(
            f"tensor '{name}': no memory has its shape {shape} of {dtype} at the address {data:#x}"
        )
    if tensor.strides and size > 0:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
        if not _is_contiguous(shape, strides):
            raise _not_contiguous(name, shape, strides)
    return Array(data, size, shape, dtype, device, not is_read_only, (value, capsule))


def describe(name, value):
    """The Array of a numpy array or a DLPack object; an exception names the tensor and what is wrong with it."""
    if isinstance(value, numpy.ma.MaskedArray):
        raise errors.InvalidError(f"tensor '{name}' is a masked array; files have no masks. Pass .filled() or .data")
    if isinstance(value, numpy.ndarray):
        return _of_numpy(name, value)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__") and not isinstance(value, numpy.generic):
        return _of_dlpack(name, value)
    raise errors.InvalidError(
        f"tensor '{name}' is a {type(value).__name__}; numpy arrays and DLPack objects can be saved"
    )


def check_apart(arrays):
    """Raises InvalidError where two of {name: Array} share memory."""
    spans = sorted((array.device, array.data, array.bytes, name) for name, array in arrays.items() if array.bytes > 0)
    # In order of their beginnings, a span can overlap the one before that ends last.
    last = None
    for span in spans:
        device, data, size, name = span
        if last is not None and last[0] == device and data < last[1] + last[2]:
            raise errors.InvalidError(
                f"tensors '{last[3]}' and '{name}' overlap in memory; pass one of them, or a copy"
            )
        if last is None or last[0] != device or data + size > last[1] + last[2]:
            last = span


def check_mapping(what, value):
    """Raises InvalidError for what is not like a dict."""
    if not isinstance(value, Mapping):
        raise errors.InvalidError(f"{what} is a {type(value).__name__}; it is a dict")


def check_name(name):
    """Raises InvalidError for a name that no tensor can have."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise errors.InvalidError(f"{name!r} is no name of a tensor: a string that is not empty and has no NUL is")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise errors.InvalidError(f"{name!r} is no name of a tensor: it has no UTF-8") from None
