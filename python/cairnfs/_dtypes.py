"""Names of dtypes, as safetensors writes them, and what numpy and DLPack call the same.

Formats: https://huggingface.co/docs/safetensors and dlpack.h of https://github.com/dmlc/dlpack (DLDataTypeCode)."""

import numpy

from . import errors

# By name: how many bytes an element has.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

# By numpy's name of the dtype; the lower ones are those of the package ml_dtypes.
NUMPY_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")

# By DLPack's code and bits.
DLPACK = {
    (0, 8): "I8", (0, 16): "I16", (0, 32): "I32", (0, 64): "I64",
    (1, 8): "U8", (1, 16): "U16", (1, 32): "U32", (1, 64): "U64",
    (2, 16): "F16", (2, 32): "F32", (2, 64): "F64",
    (4, 16): "BF16", (5, 64): "C64", (6, 8): "BOOL",
    (10, 8): "F8_E4M3", (12, 8): "F8_E5M2", (14, 8): "F8_E8M0",
}  # fmt: skip


def of_numpy(name, dtype):
    """The name of a numpy dtype; `name` is the tensor's, for the error."""
    if dtype.hasobject or dtype.name not in NUMPY_NAMES:
        raise errors.DtypeError(f"tensor '{name}': dtype {dtype} cannot be saved; one of {', '.join(NUMPY_NAMES)} can")
    if not dtype.isnative:
        raise errors.DtypeError(
            f"tensor '{name}': dtype {dtype} has the other byte order; use .astype(dtype.newbyteorder('='))"
        )
    return NUMPY_NAMES[dtype.name]


def to_numpy(name, dtype):
    """The numpy dtype of that name."""
    numpy_name = next(key for key, value in NUMPY_NAMES.items() if value == dtype)
    if numpy_name not in _ML_DTYPES:
        return numpy.dtype(numpy_name)
    try:
        import ml_dtypes  # pylint: disable=import-outside-toplevel
    except ImportError:
        raise errors.DtypeError(
            f"tensor '{name}': numpy has no {dtype}; install ml_dtypes, or use cairnfs.torch.load"
        ) from None
    return numpy.dtype(getattr(ml_dtypes, numpy_name))
