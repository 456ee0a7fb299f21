"""The safetensors format: 8 bytes with the header's length (little-endian), the header in JSON, the tensors' bytes.

https://huggingface.co/docs/safetensors. Tensors lie side by side; the header is padded with spaces, so that the first
one begins at a multiple of 4096, where file systems can share extents."""

import dataclasses
import json
import math
import os
import struct

from . import _dtypes, errors
from ._arrays import check_apart, check_mapping, check_name, describe
from ._layout import Layout, align

HEADER_BYTES_MAX = 100_000_000  # what the format's own library reads
ALIGNMENT = 4096
METADATA = "__metadata__"
INT64_END = 1 << 63
# torch.serialization.MAGIC_NUMBER in a pickle: the beginning of what torch.save wrote before 1.6.
_LEGACY_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")


@dataclasses.dataclass(frozen=True)
class Entry:
    """Where a tensor lies in a file: bytes [offset, offset + bytes), row-major."""

    name: str
    dtype: str
    shape: tuple
    offset: int
    bytes: int


def _order(item):
    """Large elements first, so that each tensor is aligned for its dtype; whole pages before what is not one."""
    name, array = item
    return (-_dtypes.ITEM_BYTES[array.dtype], array.bytes % ALIGNMENT != 0, name)


def _check_metadata(metadata):
    metadata = {} if metadata is None else metadata
    check_mapping("metadata", metadata)
    for key, value in metadata.items():
        try:
            (key + value).encode("utf-8")
        except (AttributeError, TypeError, UnicodeEncodeError):
            raise errors.InvalidError(f"metadata {key!r}: {value!r}: the format has strings of UTF-8 alone") from None


def layout(arrays, metadata=None):
    """The Layout of {name: Array}, with {string: string} as metadata."""
    _check_metadata(metadata)
    for name in arrays:
        check_name(name)
        if name == METADATA:
            raise errors.InvalidError(f"'{METADATA}' is no name of a tensor: the format keeps it for itself")
    check_apart(arrays)
    header, placed, end = {}, [], 0
    if metadata:
        header[METADATA] = dict(metadata)
    for name, array in sorted(arrays.items(), key=_order):
        header[name] = {"dtype": array.dtype, "shape": list(array.shape), "data_offsets": [end, end + array.bytes]}
        placed.append((end, array, name))
        end += array.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    begin = align(8 + len(text), ALIGNMENT)
    if begin - 8 > HEADER_BYTES_MAX:
        raise errors.InvalidError(f"the header would have {begin - 8} bytes; the format allows {HEADER_BYTES_MAX}")
    head = struct.pack("<Q", begin - 8) + text.ljust(begin - 8)
    return Layout(begin + end, [(0, head)], [(begin + offset, array, name) for offset, array, name in placed])


def layout_of(tensors, metadata=None):
    """The Layout of {name: numpy array or DLPack object}."""
    check_mapping("tensors", tensors)
    for name in tensors:
        check_name(name)
    return layout({name: describe(name, value) for name, value in tensors.items()}, metadata)


def _entry(path, name, value, begin, file_bytes):
    try:
        dtype, shape, (first, last) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
        numbers = (*shape, first, last)
        is_sound = isinstance(dtype, str) and all(type(n) is int and 0 <= n < INT64_END for n in numbers)
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound or first > last:
        raise errors.FormatError(f"{path} is no safetensors file: tensor '{name}' has no dtype, shape and data_offsets")
    if dtype not in _dtypes.ITEM_BYTES:
        raise errors.DtypeError(f"{path}: tensor '{name}' has dtype {dtype}, which this version does not know")
    # A tensor without elements has a shape too, and strides by the other dimensions.
    if math.prod(length for length in shape if length > 0) * _dtypes.ITEM_BYTES[dtype] >= INT64_END:
        raise errors.FormatError(f"{path}: tensor '{name}' has the shape {shape}, which is too large for any file")
    size = math.prod(shape) * _dtypes.ITEM_BYTES[dtype]
    if last - first != size:
        raise errors.FormatError(
            f"{path}: tensor '{name}' of shape {shape} and {dtype} has {last - first} bytes, not {size}"
        )
    if begin + last > file_bytes:
        raise errors.TruncatedError(f"{path} is cut short: tensor '{name}' ends at byte {begin + last} of {file_bytes}")
    return Entry(name, dtype, shape, begin + first, size)


def read_header(path, file):
    """({name: Entry}, metadata) of an open file; `path` is for errors."""
    file_bytes = os.fstat(file.fileno()).st_size
    prefix = os.pread(file.fileno(), 9, 0)
    length = struct.unpack("<Q", prefix[:8])[0] if len(prefix) == 9 else 0
    if prefix[:4] == b"PK\x03\x04":
        raise errors.FormatError(f"{path} is no safetensors file; cairnfs.torch.load reads those of torch.save")
    if prefix[:1] == b"\x80" and _LEGACY_MAGIC in os.pread(file.fileno(), 32, 0):
        raise errors.FormatError(f"{path} is a file of torch.save in its old format, which is no zip; use torch.load")
    if length < 2 or length > HEADER_BYTES_MAX or prefix[8:] != b"{":
        raise errors.FormatError(f"{path} is no safetensors file")
    text = bytearray()
    while len(text) < length:
        piece = os.pread(file.fileno(), length - len(text), 8 + len(text))
        if not piece:
            raise errors.TruncatedError(f"{path} is cut short: a header of {length} bytes in a file of {file_bytes}")
        text += piece
    try:
        header = json.loads(text.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise errors.FormatError(f"{path} is no safetensors file: its header is no JSON: {error}") from None
    metadata = header.pop(METADATA, None) or {}
    entries = {name: _entry(path, name, value, 8 + length, file_bytes) for name, value in header.items()}
    return entries, metadata
