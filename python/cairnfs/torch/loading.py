"""Loading into torch tensors, on any device."""

import contextlib
import dataclasses
import functools
import io
import math
from collections.abc import Iterable, Mapping

import torch

from .. import errors, fingerprints, loader as _loader, safetensors
from . import _tensors, _zip

# Whether torch.load can leave the bytes out (torch.serialization.skip_data): from 2.7 on. Before that it reads them.
_CAN_SKIP_DATA = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)


def fingerprint(tensor):
    """As cairnfs.fingerprint, of a contiguous torch tensor, on its device's current stream."""
    array = _tensors.of_tensor("tensor", tensor)
    stream = _tensors.streams_of([array.device]).get(array.device)
    return _tensors.with_room(lambda: fingerprints.digests_of(array, stream))


def load(path, device="cpu", names=None, slices=None, *, weights_only=True, loader=None):
    """Reads a file of torch.save or of safetensors, of this package or not, with several threads.

    Without `names` and `slices`: of torch.save the object that was saved, of safetensors {name: tensor}. With them:
    {name: tensor} alone. Of torch.save the names are keys and indexes joined by dots, as in "model.layers.0.weight";
    only dense, contiguous tensors have one, and a file with sparse ones can be loaded as a whole alone. Of views that
    conjugate or negate, as of x.conj(), the values are given, and no view.

    device        where the tensors go, of the host or CUDA; wherever they lay when they were saved
    names         which tensors; None: all, or those of `slices`
    slices        {name: slice or tuple of slices}: that part of a tensor alone
    weights_only  as of torch.load
    loader        a cairnfs.Loader whose memory is used again; None: one for this call
    Raises cairnfs.Error: FormatError, TruncatedError, MissingTensorError, DtypeError, ...
    """
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise errors.InvalidError(f"device is {device!r}: {error}") from None
    if _tensors.number_of(device) is None:
        raise errors.InvalidError(f"device is '{device}'; 'cpu' and 'cuda' are known")
    with _loader.open_file(path) as file:
        if file.read(4) != b"PK\x03\x04":
            return _load_entries(path, file, safetensors.read_header(path, file)[0], device, names, slices, loader)
        if isinstance(names, Iterable) and not isinstance(names, str):
            names = list(names)  # it may be one that is gone through once
        file.seek(0)
        if not _CAN_SKIP_DATA:
            return _load_by_torch(path, file, device, names, slices, weights_only)
        if names is None and not slices:
            return _load_object(path, file, device, weights_only, loader)
        entries = _entries(path, file, weights_only, names, slices)
        return _load_entries(path, file, entries, device, names, slices, loader)


def _read(path, file, ranges, loader):
    streams = _tensors.streams_of(each.device for each in ranges)
    with contextlib.nullcontext(loader) if loader is not None else _loader.Loader() as used:
        _tensors.with_room(lambda: used.read(path, file, ranges, streams))


@dataclasses.dataclass(frozen=True)
class _Entry(safetensors.Entry):
    """Of a file of torch.save: `dtype` is torch's own, and the bytes are of what the view conjugates or negates."""

    is_conj: bool
    is_neg: bool


def _dtype_of(entry):
    if isinstance(entry, _Entry):
        return entry.dtype
    if entry.dtype not in _tensors.TORCH_DTYPES:
        raise errors.DtypeError(f"tensor '{entry.name}' is {entry.dtype}, which torch {torch.__version__} has not")
    return _tensors.TORCH_DTYPES[entry.dtype]


def _load_entries(path, file, entries, device, names, slices, loader):
    parts = _loader.choose(path, entries, names, slices)
    dtypes = {name: _dtype_of(entries[name]) for name in parts}
    rows, ranges, number = {}, [], _tensors.number_of(device)
    for name, part in parts.items():
        with _tensors.memory_for(f"{path}, tensor '{name}'"):
            rows[name] = torch.empty(part.rows_shape, dtype=dtypes[name], device=device)
        ranges += _loader.ranges_of(part, rows[name].data_ptr(), number, name)
    _read(path, file, ranges, loader)
    for name, part in parts.items():
        with _tensors.memory_for(f"{path}, tensor '{name}'"):
            if part.inner is not None:
                rows[name] = rows[name][part.inner].clone()
            if isinstance(entries[name], _Entry):
                rows[name] = _tensors.viewed(rows[name], entries[name].is_conj, entries[name].is_neg)
    return rows


def _filled_in_order(path, file, has_repeats=False):
    """The Records of the storages that are not empty, in the order in which torch.load asks for a place for them."""
    found, small = _zip.records(path, file)
    if small.get("byteorder", b"little") != b"little":
        raise errors.FormatError(f"{path} was saved with the other byte order; use torch.load")
    try:
        keys = _zip.keys_in_order(small["data.pkl"])
        set(keys)
    except Exception as error:  # whatever a pickle that is damaged leads to
        raise errors.FormatError(f"{path}: its data.pkl cannot be read: {error!r}") from None
    for key in set(keys):
        if f"data/{key}" not in found:
            raise errors.FormatError(f"{path} has no record data/{key}, which its data.pkl names")
    keys = keys if has_repeats else dict.fromkeys(keys)
    return [(f"data/{key}", found[f"data/{key}"]) for key in keys if found[f"data/{key}"].bytes > 0]


def is_size_of_record(size, record_bytes):
    """Whether a storage that torch.load made without reading it is of a record. Torch up to 2.8 makes it larger, by the
    bytes of an element, where it skips the data."""
    return size in tuple(record_bytes * factor for factor in (1, 2, 4, 8, 16))


@functools.cache
def _asks_again():
    """Whether torch.load asks for a place each time that it meets a storage without memory. Torch 2.8 does, and asks
    once alone for one with memory."""
    stream, asked, shared = io.BytesIO(), [], torch.zeros(2)
    torch.save([shared, shared[1:]], stream)
    stream.seek(0)
    with torch.serialization.skip_data():
        torch.load(
            stream,
            map_location=lambda storage, _: asked.append(1) or torch.UntypedStorage(storage.nbytes(), device="meta"),
            weights_only=True,
        )
    return len(asked) > 1


class _Places:
    """Gives torch.load one of these storages after another, where it asks for a place by `map_location`."""

    def __init__(self, path, storages, device):
        self._path, self._pending, self._device = path, iter(storages), device

    def __call__(self, storage, _location):
        if storage.nbytes() == 0:
            return torch.UntypedStorage(0, device=self._device)
        ours = next(self._pending, None)
        if ours is None or not is_size_of_record(storage.nbytes(), ours.nbytes()):
            raise errors.FormatError(f"{self._path}: its data.pkl and its records say other sizes; use torch.load")
        return ours


def _unpickle(path, file, places, weights_only):
    """The object, with the storages of _Places for its own."""
    file.seek(0)
    try:
        with torch.serialization.skip_data():
            return torch.load(file, map_location=places, weights_only=weights_only, mmap=False)
    except Exception as error:  # whatever a damaged pickle, or the classes that it names, lead to
        raise _error_of_load(path, error) from error


def _error_of_load(path, error):
    if isinstance(error, errors.Error):
        return error
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return errors.NoDeviceMemoryError(f"{path}: torch.load: {error}")
    if isinstance(error, MemoryError):
        return errors.NoMemoryError(f"{path}: torch.load: {error!r}")
    return errors.FormatError(f"{path} cannot be read: torch.load: {error!r}")


def _load_object(path, file, device, weights_only, loader):
    records, number = _filled_in_order(path, file), _tensors.number_of(device)
    storages = []
    for key, record in records:
        with _tensors.memory_for(f"{path}, record {key} of {record.bytes} bytes"):
            storages.append(torch.UntypedStorage(record.bytes, device=device))
    ranges = [
        _loader.Range(record.offset, record.bytes, storage.data_ptr(), number, key)
        for (key, record), storage in zip(records, storages)
    ]
    _read(path, file, ranges, loader)
    return _unpickle(path, file, _Places(path, storages, device), weights_only)


def _load_by_torch(path, file, device, names, slices, weights_only):
    _zip.records(path, file)  # says what is wrong with a file that is damaged
    options = {"map_location": device} if names is None and not slices else {"map_location": "cpu", "mmap": True}
    try:
        obj = torch.load(path, weights_only=weights_only, **options)
    except Exception as error:
        raise _error_of_load(path, error) from error
    if "mmap" not in options:
        return obj
    tensors = _by_name(path, obj, names, slices)
    entries = {
        name: safetensors.Entry(name, t.dtype, tuple(t.shape), 0, math.prod(t.shape) * t.element_size())
        for name, t in tensors.items()
    }
    found = {}
    for name in _loader.choose(path, entries, names, slices):
        cut = (slices or {}).get(name, ())
        with _tensors.memory_for(f"{path}, tensor '{name}'"):
            found[name] = tensors[name][cut].to(device, copy=True).resolve_conj().resolve_neg()
    return found


def load_outline(file):
    """What torch.load of a stream gives, with tensors that have no memory; the stream's bytes of them are not read."""
    file.seek(0)
    if not _CAN_SKIP_DATA:
        return torch.load(file, map_location="meta", weights_only=True)
    with torch.serialization.skip_data():
        return torch.load(file, map_location=_without_memory, weights_only=True)


def _without_memory(storage, _location):
    return torch.UntypedStorage(storage.nbytes(), device="meta")


def _is_plain(tensor):
    return tensor.layout == torch.strided and not tensor.is_quantized and tensor.is_contiguous()


def _by_name(path, obj, names, slices):
    """{name: tensor} of the dense, contiguous tensors in an object. Raises for a name that was asked for and that is
    another one's too, as "a.b" is that of both in {"a.b": one, "a": {"b": other}}."""
    tensors, wanted = {}, set()
    if isinstance(names, Iterable) and not isinstance(names, str):
        wanted = {name for name in names if isinstance(name, str)}
    elif isinstance(slices, Mapping):
        wanted = {name for name in slices if isinstance(name, str)}
    for name, tensor in _zip.paths(obj):
        if name in tensors and name in wanted:
            raise errors.InvalidError(f"{path} has more than one tensor of the name '{name}'; load it whole")
        tensors[name] = tensor
    for name in wanted:
        if name in tensors and not _is_plain(tensors[name]):
            raise errors.InvalidError(
                f"{path}: tensor '{name}' is not a dense, contiguous one, as can be loaded alone; load it whole"
            )
    return {name: tensor for name, tensor in tensors.items() if _is_plain(tensor)}


def _entries(path, file, weights_only, names, slices):
    """{name: _Entry} of the dense, contiguous tensors in a file of torch.save."""
    records = _filled_in_order(path, file, _asks_again())
    # Tensors without memory show where they would lie in their storages.
    by_key = {key: torch.UntypedStorage(record.bytes, device="meta") for key, record in records}
    storages = [by_key[key] for key, _ in records]
    try:
        obj = _unpickle(path, file, _Places(path, storages, "meta"), weights_only)
    except errors.FormatError as error:  # torch looks into sparse tensors while it loads them
        raise errors.FormatError(f"{path}: tensors cannot be loaded one by one, load it whole: {error}") from error
    places = {storage._cdata: record for storage, (_, record) in zip(storages, records)}  # pylint: disable=protected-access
    entries = {}
    for name, tensor in _by_name(path, obj, names, slices).items():
        size, offset = math.prod(tensor.shape) * tensor.element_size(), 0
        if size > 0:
            record = places.get(tensor.untyped_storage()._cdata)  # pylint: disable=protected-access
            begin = tensor.storage_offset() * tensor.element_size()
            if record is None or begin + size > record.bytes:
                raise errors.FormatError(f"{path}: tensor '{name}' does not lie in a record of the file")
            offset = record.offset + begin
        entries[name] = _Entry(
            name, tensor.dtype, tuple(tensor.shape), offset, size, tensor.is_conj(), tensor.is_neg()
        )
    return entries
