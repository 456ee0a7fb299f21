"""The file of torch.save: a zip with one record for each storage, 64 bytes aligned and not compressed.

torch writes it itself, without the bytes of the storages (torch.serialization.skip_data), which are put later where it
seeks over them. What is left out is their CRC-32: the records say 0, as they do after
torch.serialization.set_crc32_options(False). torch.load does not read it."""

import dataclasses
import io
import pickle
import struct
import types
import zipfile

import torch

from .. import errors
from .._layout import Layout
from . import _tensors


# APPNOTE.TXT of PKWARE, 4.3.7: the length of a record's name stands at byte 26 of its local header, the name after it.
_LOCAL_HEADER = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30


class _Sink:
    """A stream that keeps what torch writes, and where it leaves out what."""

    def __init__(self):
        self.offset = 0
        self.written = []  # (offset, bytearray): no two of them touch
        self.gaps = []  # (offset, bytes, name of the record)
        self._header = None  # where the last local header of a record is

    def write(self, data):
        if len(data) == _LOCAL_HEADER_BYTES and data[:4] == _LOCAL_HEADER:
            self._header = self.offset
        if self.written and self.written[-1][0] + len(self.written[-1][1]) == self.offset:
            self.written[-1][1].extend(data)
        else:
            self.written.append((self.offset, bytearray(data)))
        self.offset += len(data)
        return len(data)

    def seek(self, offset, whence=0):
        if whence != 1 or offset < 0 or self._header is None:
            raise errors.FormatError(f"torch {torch.__version__} writes its files in a way that is not known here")
        begin, data = self.written[-1]
        header = self._header - begin
        (name_bytes,) = struct.unpack_from("<H", data, header + 26)
        name = data[header + _LOCAL_HEADER_BYTES :][:name_bytes].decode()
        self.gaps.append((self.offset, offset, name.rpartition("/")[2]))
        self.offset += offset
        self._header = None
        return self.offset

    def flush(self):
        pass


def _recording_pickle(storages):
    """A pickle module for torch.save that puts each storage into {key of its record: UntypedStorage}."""

    class Pickler(pickle.Pickler):
        """torch.save derives from this one, and names storages in `persistent_id`."""

        def __init__(self, *arguments, **options):
            name_storage = self.persistent_id

            def persistent_id(value):
                named = name_storage(value)
                if isinstance(named, tuple) and named and named[0] == "storage":
                    storages.setdefault(named[2], getattr(value, "_untyped_storage", value))
                return named

            self.persistent_id = persistent_id
            super().__init__(*arguments, **options)

    module = types.ModuleType("cairnfs.torch.recording_pickle")
    module.Pickler = Pickler
    return module


@dataclasses.dataclass
class Outline:
    """The file of torch.save without the bytes of its storages, which are (offset, UntypedStorage)."""

    bytes: int
    literals: list
    storages: list


def outline(obj, what, pickle_protocol=2):
    """The Outline of torch.save(obj); `what` is for errors."""
    sink, storages = _Sink(), {}
    try:
        with torch.serialization.skip_data():
            torch.save(obj, sink, pickle_module=_recording_pickle(storages), pickle_protocol=pickle_protocol)
    except errors.Error:
        raise
    except Exception as error:  # also of the classes of what is saved
        raise errors.InvalidError(f"{what}: this object cannot be saved: torch.save: {error!r}") from error
    filled = {key: storage.nbytes() for key, storage in storages.items() if storage.nbytes() > 0}
    if filled != {key: size for _, size, key in sink.gaps}:
        raise errors.FormatError(f"torch {torch.__version__} lays out its files in a way that is not known here")
    placed = [(offset, storages[key]) for offset, _, key in sink.gaps]
    return Outline(sink.offset, [(offset, bytes(data)) for offset, data in sink.written], placed)


def paths(obj):
    """(path, tensor) of the tensors in nested mappings and sequences; the path is of keys and indexes, with dots."""
    seen, pending = set(), [("", obj)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, torch.Tensor):
            yield path or "tensor", value
            continue
        if not isinstance(value, (dict, list, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        pending += [(f"{path}.{key}" if path else f"{key}", each) for key, each in items]


def _names(obj, storages):
    """A name for each storage: the path of a tensor in it, which stays when others come or go. Unique."""
    by_storage = {}
    for path, tensor in paths(obj):
        try:
            key = tensor.untyped_storage()._cdata  # pylint: disable=protected-access
        except (NotImplementedError, RuntimeError):  # sparse tensors, and the like
            continue
        by_storage[key] = min(path, by_storage.get(key, path))
    used, names = set(), []
    for i, storage in enumerate(storages):
        name = by_storage.get(storage._cdata, f"data/{i}").replace("\0", "?")  # pylint: disable=protected-access
        name = name.encode("utf-8", "replace").decode()
        while name in used:
            name += f"#{i}"
        used.add(name)
        names.append(name)
    return names


def layout(obj, path, pickle_protocol=2):
    """The Layout of the file that torch.save(obj) writes; `path` is for errors."""
    for name, tensor in paths(obj):
        if tensor.is_quantized:  # torch lays out their storages by another way
            raise errors.InvalidError(f"{path}: tensor '{name}' is quantized; save .int_repr() and its parameters")
    plan = outline(obj, path, pickle_protocol)
    names = _names(obj, [storage for _, storage in plan.storages])
    tensors = [(offset, _tensors.of_storage(storage), name) for (offset, storage), name in zip(plan.storages, names)]
    return Layout(plan.bytes, plan.literals, tensors)


def alignment():
    """To what torch aligns storages in its files: 64, or what it was told."""
    try:
        from torch.utils.serialization import config  # pylint: disable=import-outside-toplevel
    except ImportError:  # torch 2.6
        return 64
    return config.save.storage_alignment


# ---- Reading ----


@dataclasses.dataclass(frozen=True)
class Record:
    """Where a record's bytes lie in the stream."""

    offset: int
    bytes: int


def _record(file, info, file_bytes):
    """Of one entry; its local header says how much precedes the bytes."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER_BYTES)
    if len(header) < _LOCAL_HEADER_BYTES or header[:4] != _LOCAL_HEADER:
        raise zipfile.BadZipFile("no local header")
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    record = Record(info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes, info.file_size)
    # Memory of that size is asked for before anything is read.
    if record.offset + record.bytes > file_bytes:
        raise EOFError(f"record {info.filename} ends at byte {record.offset + record.bytes} of {file_bytes}")
    return record


def records(path, file):
    """({name: Record} of the storages, {name: bytes} of data.pkl and byteorder) of a file of torch.save that is open at
    its beginning.

    Names are without the folder that they all lie in. `path` is for errors. Records that are compressed are refused."""
    try:
        file_bytes = file.seek(0, io.SEEK_END)
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
        pickles = [
            info.filename for info in infos if info.filename.count("/") == 1 and info.filename.endswith("/data.pkl")
        ]
        if len(pickles) != 1:
            raise errors.FormatError(f"{path} is a zip file, but not of torch.save: it has no data.pkl")
        top = pickles[0][: -len("data.pkl")]
        found, small = {}, {}
        for info in infos:
            name = info.filename.removeprefix(top)
            if info.compress_type != zipfile.ZIP_STORED:
                raise errors.FormatError(f"{path}: record {info.filename} is compressed; use torch.load")
            if name.startswith("data/"):
                found[name] = _record(file, info, file_bytes)
            elif name in ("data.pkl", "byteorder"):
                record = _record(file, info, file_bytes)
                file.seek(record.offset)
                small[name] = file.read(record.bytes)
        return found, small
    except errors.Error:
        raise
    except Exception as error:  # zipfile has many for archives that are damaged
        raise errors.TruncatedError(
            f"{path} begins as a file of torch.save, and is cut short or damaged: {error}"
        ) from None


class _Inert:
    """Stands for every class and function of a pickle: takes all that is done to it, and does nothing."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *_, **__):
        return _Inert()

    def __setstate__(self, _):
        pass

    def __setitem__(self, _, __):
        pass

    def append(self, _):
        pass

    def extend(self, _):
        pass

    def add(self, _):
        pass

    def update(self, _):
        pass


def keys_in_order(data_pkl):
    """The keys of storages in the order in which an unpickler meets them, each time. No code of the pickle runs."""
    keys = []

    # The one in C takes as much memory as the largest index in its memo says: a damaged byte may make that 32 GiB.
    class Scanner(pickle._Unpickler):  # pylint: disable=protected-access
        def find_class(self, _module, _name):
            return _Inert

        def persistent_load(self, named):
            if isinstance(named, tuple) and len(named) > 2:
                keys.append(named[2])
            return _Inert()

    Scanner(io.BytesIO(data_pkl), encoding="utf-8").load()
    return keys
