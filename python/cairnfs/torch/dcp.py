"""A StorageWriter and a StorageReader for torch.distributed.checkpoint (dcp.save, dcp.async_save, dcp.load).

The files on disk are those of torch's own FileSystemWriter: its FileSystemReader reads what Writer wrote, and Reader
what FileSystemWriter wrote. What does not change from checkpoint to checkpoint is taken from the one before.

    writer = cairnfs.torch.dcp.Writer()                                     # once
    dcp.save(state, checkpoint_id="run/step-100", storage_writer=writer)    # at each step
    dcp.load(state, checkpoint_id="run/step-100", storage_reader=cairnfs.torch.dcp.Reader())
"""

import contextlib
import dataclasses
import io
import os

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.futures import Future

from .. import errors, loader as _loader
from .._arrays import Array
from .._layout import Layout, align
from . import Saver, _tensors, _zip
from .loading import is_size_of_record, load_outline


def _done(value):
    future = Future()
    future.set_result(value)
    return future


def _plain(tensor):
    """A dense tensor with no more memory than its elements, without copying where it is one already; None where it is
    of a kind that only torch.save understands."""
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.is_quantized:
        return None
    if _tensors.number_of(tensor.device) is None:
        tensor = tensor.cpu()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    strides = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1)
    expected = 1
    for stride, size in strides:
        if stride != expected:
            with _tensors.memory_for("a contiguous copy"):
                return tensor.contiguous()
        expected *= size
    return tensor


def _tensor_name(index):
    """What a part of a tensor is known by from save to save."""
    offset = "" if index.offset is None else "[" + ",".join(str(number) for number in index.offset) + "]"
    number = "" if index.index is None else f"#{index.index}"
    return f"{index.fqn}{offset}{number}".replace("\0", "?")


class _File:
    """The Layout of one file, as items are put into it one after another."""

    def __init__(self):
        self.layout = Layout()
        self._names = set()

    def begin_item(self):
        # Each tensor is a file of torch.save in the file: its storage is aligned in both.
        self.layout.file_bytes = align(self.layout.file_bytes, _zip.alignment())
        return self.layout.file_bytes

    def put_bytes(self, data):
        begin = self.begin_item()
        self.layout.literals.append((begin, data))
        self.layout.file_bytes += len(data)

    def put_tensor(self, name, tensor):
        plain = _plain(tensor)
        if plain is None:
            stream = io.BytesIO()
            torch.save(tensor.detach().cpu(), stream)
            self.put_bytes(stream.getvalue())
            return
        begin = self.begin_item()
        # FileSystemWriter saves the tensor as it is on the host; this one has its shape there, and no bytes yet.
        stand_in = torch.empty_strided(plain.size(), plain.stride(), dtype=plain.dtype, device="cpu")
        outline = _zip.outline(stand_in, f"tensor '{name}'")
        self.layout.literals += [(begin + offset, data) for offset, data in outline.literals]
        for offset, storage in outline.storages:
            number = _tensors.number_of(plain.device)
            array = Array(plain.data_ptr(), storage.nbytes(), (storage.nbytes(),), "U8", number, True, plain)
            self.layout.tensors.append((begin + offset, array, self._unique(name)))
        self.layout.file_bytes = begin + outline.bytes

    def _unique(self, name):
        name = name.encode("utf-8", "replace").decode() or "tensor"
        while name in self._names:
            name += "'"
        self._names.add(name)
        return name


class Writer(FileSystemWriter):
    """Writes one file for each rank. Use one Writer for all checkpoints of a run: it keeps the fingerprints.

    path   the directory; dcp.save's checkpoint_id takes its place
    base   the directory of the last checkpoint that this Writer wrote. None, after each save: where it was written. Set
           it after the directory was renamed
    saver  options of cairnfs.Saver, as {"ring_bytes": ...}
    The other arguments are FileSystemWriter's.

    dcp.async_save copies the state to the host first, as with FileSystemWriter; the caller is held for that."""

    def __init__(self, path="", *, base=None, saver=None, cache_staged_state_dict=False, overwrite=True):
        super().__init__(path, cache_staged_state_dict=cache_staged_state_dict, overwrite=overwrite)
        self.base = base
        self.results = {}  # of the last save, by the file's name: what this rank wrote
        self._saver_options = dict(saver or {})
        self._savers = {}

    def __getstate__(self):
        """For processes that dcp.async_save starts: they open Savers of their own."""
        return {**self.__dict__, "_savers": {}, "results": {}}

    def write_data(self, plan, planner):
        prefix = plan.storage_data.prefix
        name = f"{prefix}0{filesystem.DEFAULT_SUFFIX}"
        file, results = _File(), []
        # As in FileSystemWriter's files, bytes come first.
        for item in sorted(plan.items, key=lambda item: item.type != WriteItemType.BYTE_IO):
            data, begin = planner.resolve_data(item), file.begin_item()
            if item.type == WriteItemType.BYTE_IO:
                file.put_bytes(bytes(data.getbuffer()))
            else:
                file.put_tensor(_tensor_name(item.index), data)
            length = file.layout.file_bytes - begin
            results.append(WriteResult(item.index, length, filesystem._StorageInfo(name, begin, length)))
        base = None if self.base is None else os.path.join(self.base, name)
        saver = self._savers.get(name)
        if saver is None:
            saver = self._savers[name] = Saver(**self._saver_options)
        path = os.path.join(self.path, name)
        self.results = {name: saver._finish(saver._submit_layout(file.layout, path, base, 0, False))}
        self.base = os.path.abspath(self.path)
        return _done(results)


@dataclasses.dataclass
class _Wanted:
    """A tensor of the checkpoint that was read, and for what."""

    request: object
    target: torch.Tensor
    read: torch.Tensor  # what the read filled: the target itself, or all of the tensor in the file
    is_direct: bool


class Reader(FileSystemReader):
    """Reads checkpoints of Writer and of FileSystemWriter, with several threads, into the tensors of the state where
    they lie.

    loader  a cairnfs.Loader whose memory is used again; None: one for each load"""

    def __init__(self, path="", *, loader=None):
        super().__init__(path)
        self._loader = loader

    def read_metadata(self, *arguments, **options):
        """Refuses a .metadata that is no regular file, and one that cannot be read."""
        path = os.path.join(self.path, ".metadata")
        if not arguments and not options:
            _loader.open_file(path).close()
        try:
            return super().read_metadata(*arguments, **options)
        except errors.Error:
            raise
        except Exception as error:  # whatever a damaged pickle leads to
            raise errors.FormatError(f"{path} cannot be read: {error!r}") from error

    def read_data(self, plan, planner):
        if any(getattr(self.storage_data[item.storage_index], "transform_descriptors", None) for item in plan.items):
            return super().read_data(plan, planner)
        by_file = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for relative_path, items in by_file.items():
            path = os.path.join(self.path, relative_path)
            with _loader.open_file(path) as file:
                self._read_file(path, file, items, planner)
        return _done(None)

    def _read_file(self, path, file, items, planner):
        ranges, wanted, file_bytes = [], [], os.fstat(file.fileno()).st_size
        for item in items:
            info = self.storage_data[item.storage_index]
            if info.offset < 0 or info.length < 0 or info.offset + info.length > file_bytes:
                raise errors.TruncatedError(f"{path} is cut short: '{item.storage_index.fqn}' ends after the file")
            view = io.BufferedReader(_View(file, info.offset, info.length))
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(view.read()))
                continue
            target = planner.resolve_tensor(item).detach()
            each, its_ranges = _plan_tensor(path, view, info, item, target)
            wanted.append(each)
            ranges += its_ranges
        streams = _tensors.streams_of(each.device for each in ranges)
        if ranges:
            with contextlib.nullcontext(self._loader) if self._loader is not None else _loader.Loader() as used:
                _tensors.with_room(lambda: used.read(path, file, ranges, streams))
        for each in wanted:
            if not each.is_direct:
                each.target.copy_(_narrow(each.read, each.request))
            planner.commit_tensor(each.request, each.target)


class _View(io.RawIOBase):
    """Bytes [offset, offset + length) of a file, as a stream of their own."""

    def __init__(self, file, offset, length):
        super().__init__()
        self._number, self._offset, self._length, self._at = file.fileno(), offset, length, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence])
        return self._at

    def readinto(self, buffer):
        size = max(0, min(len(buffer), self._length - self._at))
        data = os.pread(self._number, size, self._offset + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _narrow(tensor, request):
    """The part of a saved tensor that a request asks for."""
    for dimension, (offset, length) in enumerate(zip(request.storage_offsets, request.lengths)):
        tensor = tensor.narrow(dimension, offset, length)
    return tensor


def _plan_tensor(path, view, info, request, target):
    """(_Wanted, Ranges to read) for one tensor, whose torch.save lies in `view`."""
    name = str(request.storage_index.fqn)
    found, small = _zip.records(f"{path}, tensor '{name}'", view)
    if set(found) != {"data/0"} or small.get("byteorder", b"little") != b"little":
        return _Wanted(request, target, _whole(view), False), []
    record = found["data/0"]
    saved = load_outline(view)
    if type(saved) is not torch.Tensor or not is_size_of_record(saved.untyped_storage().nbytes(), record.bytes):
        return _Wanted(request, target, _whole(view), False), []
    part = _narrow(saved, request)
    if part.size() != target.size():
        raise errors.InvalidError(
            f"tensor '{name}' has shape {tuple(part.shape)} in {path}, and {tuple(target.shape)} in the state"
        )
    number, begin = _tensors.number_of(target.device), info.offset + record.offset
    is_direct = number is not None and part.dtype == target.dtype and part.is_contiguous() and target.is_contiguous()
    # The bytes in the file, and those of the target, may be of what a view conjugates or negates: copy_ knows.
    is_direct = is_direct and not any(each.is_conj() or each.is_neg() for each in (saved, target))
    if is_direct and type(target) is torch.Tensor:
        size = part.numel() * part.element_size()
        offset = begin + part.storage_offset() * part.element_size()
        return _Wanted(request, target, target, True), [_loader.Range(offset, size, target.data_ptr(), number, name)]
    memory = torch.UntypedStorage(record.bytes)
    read = torch.empty(0, dtype=saved.dtype).set_(memory, saved.storage_offset(), saved.size(), saved.stride())
    read = read.conj() if saved.is_conj() else read
    read = torch._neg_view(read) if saved.is_neg() else read  # pylint: disable=protected-access
    return _Wanted(request, target, read, False), [_loader.Range(begin, record.bytes, memory.data_ptr(), -1, name)]


def _whole(view):
    view.seek(0)
    return torch.load(view, map_location="cpu", weights_only=True)
