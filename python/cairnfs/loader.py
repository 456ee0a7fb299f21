"""Loading: several threads read a file into memory of the host or of devices."""

import ctypes
import dataclasses
import math
import operator
import os
import threading
from collections.abc import Iterable

import numpy

from . import _abi, _dtypes, errors, safetensors
from ._arrays import check_apart, check_mapping, describe
from ._paths import open_file

# A part of a tensor is read in runs of at least so many bytes; with shorter ones the rows around it are read whole.
RUN_BYTES_MIN = 4096


@dataclasses.dataclass
class Range:
    """Bytes [offset, offset + bytes) of the file, for an address of the host's memory or a device's."""

    offset: int
    bytes: int
    destination: int
    device: int
    name: str


@dataclasses.dataclass
class Part:
    """A slice of a tensor. `rows` of its first dimension hold it; `inner` cuts it out of them, or is None where the
    runs (offset in the file, bytes) are the slice itself, in order."""

    shape: tuple
    runs: list
    rows_shape: tuple
    inner: tuple


def part_of(entry, wanted):
    """The Part for a slice, or a tuple of slices, of a tensor: step 1, as many as dimensions or fewer."""
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    if len(wanted) > len(entry.shape):
        raise errors.InvalidError(
            f"tensor '{entry.name}' has {len(entry.shape)} dimensions; {len(wanted)} slices were given"
        )
    bounds = []
    for i, length in enumerate(entry.shape):
        cut = wanted[i] if i < len(wanted) else slice(None)
        try:
            begin = 0 if cut.start is None else operator.index(cut.start)
            end = length if cut.stop is None else operator.index(cut.stop)
            is_slice = isinstance(cut, slice) and (cut.step is None or operator.index(cut.step) == 1)
        except (AttributeError, TypeError):
            is_slice = False
        if not is_slice:
            raise errors.InvalidError(f"tensor '{entry.name}', dimension {i}: {cut!r} is no slice of step 1")
        if not 0 <= begin <= end <= length:
            raise errors.InvalidError(f"tensor '{entry.name}', dimension {i}: {begin}:{end} is not within 0:{length}")
        bounds.append((begin, end))
    return _cut(entry, bounds)


def _cut(entry, bounds):
    shape = tuple(end - begin for begin, end in bounds)
    if math.prod(shape) == 0:
        return Part(shape, [], shape, None)
    item = entry.bytes // math.prod(entry.shape)
    # Dimensions from `whole` on are taken as they are; one run spans these and the cut of the dimension before.
    whole = len(shape)
    while whole > 0 and shape[whole - 1] == entry.shape[whole - 1]:
        whole -= 1
    strides = [math.prod(entry.shape[i + 1 :]) * item for i in range(len(shape))]
    if whole == 0:
        return Part(shape, [(entry.offset, entry.bytes)], shape, None)
    last = whole - 1
    run = shape[last] * strides[last]
    if last == 0 or run >= RUN_BYTES_MIN:
        starts = [entry.offset + bounds[last][0] * strides[last]]
        for i in reversed(range(last)):
            starts = [start + row * strides[i] for row in range(*bounds[i]) for start in starts]
        return Part(shape, [(start, run) for start in starts], shape, None)
    begin, end = bounds[0]
    rows = (entry.offset + begin * strides[0], (end - begin) * strides[0])
    inner = (slice(None), *(slice(*bound) for bound in bounds[1:]))
    return Part(shape, [rows], (end - begin, *entry.shape[1:]), inner)


def ranges_of(part, destination, device, name):
    """The Ranges of a part, side by side from an address on."""
    ranges = []
    for offset, size in part.runs:
        ranges.append(Range(offset, size, destination, device, name))
        destination += size
    return ranges


class Loader:
    """Reads files; keeps its ring, of pinned memory, between loads. Any thread may call it.

    readers     threads, with a stream each on each device; 0: 4, or the number of processors if that is less
    ring_bytes  for destinations on devices; 0: 64 MiB
    """

    def __init__(self, *, readers=0, ring_bytes=0):
        self._handle = None
        _abi.check_numbers(readers=readers, ring_bytes=ring_bytes)
        options = _abi.sized(_abi.LoaderOptions, readers=readers, ring_bytes=ring_bytes)
        handle = ctypes.c_void_p()
        _abi.call("cairnfs_loader_open", ctypes.byref(options), ctypes.byref(handle))
        self._handle, self._pid = handle, os.getpid()
        self._lock = threading.Lock()  # loads run one after the other, and none when it is closed

    def close(self):
        """Frees the memory, after a load that runs. None can follow."""
        if self._pid != os.getpid():
            return
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                _abi.library().cairnfs_loader_close(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()

    def read(self, path, file, ranges, streams=None):
        """Fills the Ranges from an open file, so that a file renamed to `path` meanwhile is not mixed with it."""
        ranges = [each for each in ranges if each.bytes > 0]
        if not ranges:
            return
        reads = (_abi.Read * len(ranges))()
        for read, each in zip(reads, ranges):
            read.offset, read.bytes, read.destination, read.device = (
                each.offset,
                each.bytes,
                each.destination,
                each.device,
            )
            read.name = each.name.encode("utf-8", "replace")
        by_number = f"/proc/self/fd/{file.fileno()}"
        c_streams = _abi.streams_of(streams or {})
        request = _abi.sized(
            _abi.LoadRequest,
            path=by_number.encode(),
            reads=reads,
            read_count=len(reads),
            streams=c_streams,
            stream_count=len(c_streams),
        )
        try:
            self._load(request)
        except errors.Error as error:
            if error.code is None:
                raise
            text = str(error).replace(by_number, os.fsdecode(path))
            raise errors.from_code(error.code, text, error.system_errno) from None

    def _load(self, request):
        if self._pid != os.getpid():
            raise errors.InvalidError("this Loader was opened by the parent of this process; open another one")
        with self._lock:
            if self._handle is None:
                raise errors.InvalidError("this Loader is closed")
            _abi.call("cairnfs_load", self._handle, ctypes.byref(request))


def choose(path, entries, names, slices):
    """{name: Part or None for a whole tensor} of what was asked for, in the order of `names`."""
    slices = {} if slices is None else slices
    check_mapping("slices", slices)
    if isinstance(names, str) or not isinstance(names, Iterable | None):
        raise errors.InvalidError(f"names is {names!r}; it is a list of names")
    wanted = list(entries) if names is None and not slices else list(names or slices)
    for name in (*wanted, *slices):
        if not isinstance(name, str) or name not in entries:
            raise errors.MissingTensorError(f"{path} has no tensor '{name}'")
    for name in slices:
        if name not in wanted:
            raise errors.InvalidError(f"a slice of tensor '{name}' is given, which is not among the names")
    return {name: part_of(entries[name], slices.get(name, ())) for name in wanted}


def _check_fits(entry, part, array):
    if array.dtype != entry.dtype:
        raise errors.DtypeError(
            f"tensor '{entry.name}' is {entry.dtype} in the file, and {array.dtype} where it is to go"
        )
    if array.shape != part.shape:
        raise errors.InvalidError(
            f"tensor '{entry.name}' has shape {part.shape} in the file, and {array.shape} where it is to go"
        )
    if not array.is_writable:
        raise errors.InvalidError(f"tensor '{entry.name}' cannot be loaded into an array that is read-only")


def _memory_for(path, name, part, dtype):
    dtype = _dtypes.to_numpy(name, dtype)
    try:
        return numpy.empty(part.rows_shape, dtype)
    except MemoryError as error:
        raise errors.NoMemoryError(f"{path}, tensor '{name}': {error}") from None
    except (OverflowError, TypeError, ValueError) as error:
        raise errors.FormatError(f"{path}, tensor '{name}': numpy has no array of its shape: {error}") from None


def load(path, device="cpu", names=None, slices=None, *, out=None, loader=None):
    """Tensors of a safetensors file, as {name: numpy array}.

    device  "cpu". For memory of a device give `out`, or use cairnfs.torch.load
    names   which tensors; None: all, or those of `slices`
    slices  {name: slice or tuple of slices}: that part of a tensor alone
    out     {name: numpy array or DLPack object} to load into, on any device; its names are the default of `names`
    loader  a Loader whose memory is used again; None: one for this call
    Raises errors.Error: FormatError, TruncatedError, MissingTensorError, DtypeError, ...
    """
    if out is None and device != "cpu":
        raise errors.InvalidError(f"device is {device!r}: numpy has 'cpu' alone; use out= or cairnfs.torch.load")
    if out is not None:
        check_mapping("out", out)
        names = list(out) if names is None else names
    with open_file(path) as file:
        entries, _ = safetensors.read_header(path, file)
        parts = choose(path, entries, names, slices)
        if out is not None:
            for name in parts:
                if name not in out:
                    raise errors.InvalidError(f"tensor '{name}' is asked for, and `out` has no place for it")
            return _load_into(path, file, entries, parts, out, loader)
        rows = {name: _memory_for(path, name, part, entries[name].dtype) for name, part in parts.items()}
        ranges = []
        for name, part in parts.items():
            ranges += ranges_of(part, rows[name].ctypes.data, _abi.HOST, name)
        _read(path, file, ranges, loader)
    return {n: rows[n] if part.inner is None else rows[n][part.inner].copy() for n, part in parts.items()}


def _load_into(path, file, entries, parts, out, loader):
    arrays = {name: describe(name, out[name]) for name in parts}
    check_apart(arrays)
    ranges = []
    for name, part in parts.items():
        _check_fits(entries[name], part, arrays[name])
        if part.inner is not None:
            raise errors.InvalidError(
                f"tensor '{name}': `out` takes no slice that cuts rows into runs below {RUN_BYTES_MIN} bytes"
            )
        ranges += ranges_of(part, arrays[name].data, arrays[name].device, name)
    _read(path, file, ranges, loader)
    return {name: out[name] for name in parts}


def _read(path, file, ranges, loader):
    if loader is not None:
        loader.read(path, file, ranges)
        return
    with Loader() as own:
        own.read(path, file, ranges)
