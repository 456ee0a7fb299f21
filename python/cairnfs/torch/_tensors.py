"""Torch tensors and storages as what the C ABI takes."""

import contextlib

import torch

from .. import _abi, errors
from .._arrays import Array

TORCH_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
for _name, _attribute in (("U16", "uint16"), ("U32", "uint32"), ("U64", "uint64"), ("F8_E8M0", "float8_e8m0fnu")):
    if hasattr(torch, _attribute):
        TORCH_DTYPES[_name] = getattr(torch, _attribute)
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@contextlib.contextmanager
def memory_for(what):
    """Around what asks torch for memory: its exceptions become those of this package, and name `what`."""
    try:
        yield
    except errors.Error:
        raise
    except torch.cuda.OutOfMemoryError as error:
        raise errors.NoDeviceMemoryError(f"{what}: {error}") from None
    except MemoryError as error:
        raise errors.NoMemoryError(f"{what}: {error}") from None
    except (AssertionError, RuntimeError) as error:  # the first one is of a torch without CUDA
        if "alloc" in str(error).lower():
            raise errors.NoMemoryError(f"{what}: {error}") from None
        raise errors.NoDeviceError(f"{what}: {error}") from None
    except (OverflowError, TypeError, ValueError) as error:
        raise errors.FormatError(f"{what}: torch has no such tensor: {error}") from None


def with_room(call):
    """What `call` returns; once more, where the device has no memory, after torch gave back what it keeps unused."""
    try:
        return call()
    except errors.NoDeviceMemoryError:
        torch.cuda.empty_cache()
    return call()


def number_of(device):
    """The C ABI's number of a torch.device that is the host or a CUDA device; None for others."""
    if device.type == "cpu":
        return _abi.HOST
    if device.type != "cuda":
        return None
    if device.index is not None:
        return device.index
    with memory_for(f"device '{device}'"):
        return torch.cuda.current_device()


def streams_of(devices):
    """{number: the current stream} of the CUDA devices among these numbers."""
    with memory_for("the current stream"):
        return {number: torch.cuda.current_stream(number).cuda_stream for number in set(devices) if number != _abi.HOST}


def of_storage(storage):
    """The bytes of an UntypedStorage as an Array. One of a device that is not the host's or CUDA's is copied to the
    host first."""
    if number_of(storage.device) is None:
        storage = storage.cpu()
    size = storage.nbytes()
    data = storage.data_ptr() if size > 0 else 0
    return Array(data, size, (size,), "U8", number_of(storage.device), True, storage)


def of_tensor(name, tensor):
    """A contiguous tensor as an Array; an exception names it and what is wrong."""
    if not isinstance(tensor, torch.Tensor):
        raise errors.InvalidError(f"tensor '{name}' is a {type(tensor).__name__}, not a torch.Tensor")
    if tensor.layout != torch.strided:
        raise errors.InvalidError(f"tensor '{name}' has the layout {tensor.layout}; dense ones can be saved")
    if tensor.is_quantized:
        raise errors.InvalidError(f"tensor '{name}' is quantized; use .int_repr() and its parameters")
    if tensor.dtype not in NAMES:
        raise errors.DtypeError(f"tensor '{name}': dtype {tensor.dtype} has no name in the safetensors format")
    number = number_of(tensor.device)
    if number is None:
        raise errors.InvalidError(f"tensor '{name}' lies on the device {tensor.device}; 'cpu' and 'cuda' are known")
    if not tensor.is_contiguous():
        raise errors.InvalidError(
            f"tensor '{name}' is not contiguous: shape {tuple(tensor.shape)}, strides {tensor.stride()}; "
            "use .contiguous()"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise errors.InvalidError(
            f"tensor '{name}' is a view that conjugates or negates; use .resolve_conj().resolve_neg()"
        )
    size = tensor.numel() * tensor.element_size()
    begin, room = tensor.storage_offset() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if size > 0 and begin + size > room:  # after a resize of the storage, as FSDP does to free it
        raise errors.InvalidError(
            f"tensor '{name}' ends at byte {begin + size} of its storage, which has {room}; was it freed by a resize?"
        )
    data = tensor.data_ptr() if size > 0 else 0
    return Array(data, size, tuple(tensor.shape), NAMES[tensor.dtype], number, True, tensor)


def viewed(tensor, is_conj, is_neg):
    """The values of a view with these bits, of memory that nobody else has and that may be changed."""
    if is_conj:
        torch.view_as_real(tensor)[..., 1].neg_()
    return tensor.neg_() if is_neg else tensor
