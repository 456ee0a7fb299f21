"""A stand-in for libcairnfs_client in host memory, where that is not built: the functions of the ABI, one thread each.

It shows that the package calls the ABI as the header says; it says nothing about the library."""

import ctypes
import hashlib
import itertools
import os
import threading

from cairnfs import _abi


def _text(error, code, text, number=0):
    if error is not None:
        error = getattr(error, "_obj", error)
        error.code, error.system_errno, error.text = code, number, text.encode()[:1000]
    return code


def _file_error(error, failure):
    code = 3 if isinstance(failure, FileNotFoundError) else 4 if isinstance(failure, PermissionError) else 9
    return _text(error, code, str(failure), failure.errno or 0)


class _Save:
    def __init__(self):
        self.code, self.failure, self.result = 0, None, {}
        self.ended = threading.Event()


class FakeLibrary:
    """Set cairnfs._abi._library to one of these. `hold` can be cleared to keep saves from ending."""

    def __init__(self):
        self._numbers = itertools.count(1)
        self._handles = {}
        self.hold = threading.Event()
        self.hold.set()

    def _new(self, handle, value):
        number = next(self._numbers)
        self._handles[number] = value
        handle._obj.value = number

    def cairnfs_client_abi(self):
        return 1

    def cairnfs_client_build(self):
        return b"fake"

    def cairnfs_device_count(self, count, _error):
        count._obj.value = 0
        return 0

    def cairnfs_saver_open(self, options, saver, _error):
        assert options._obj.struct_bytes == ctypes.sizeof(_abi.SaverOptions)
        self._new(saver, {"prints": None, "save": None})
        return 0

    def cairnfs_saver_close(self, saver):
        save = self._handles.pop(saver.value)["save"]
        if save is not None:
            save.ended.wait()

    def cairnfs_save_start(self, saver, request, handle, error):
        saver, request = self._handles[saver.value], request._obj
        if saver["save"] is not None:
            saver["save"].ended.wait()
        segments, end = [], 0
        for segment in sorted(request.segments[: request.segment_count], key=lambda each: each.offset):
            if segment.device != -1:
                return _text(error, 11, "no device")
            if segment.bytes and segment.offset < end:
                return _text(error, 1, "segments overlap")
            end = max(end, segment.offset + segment.bytes)
            data = ctypes.string_at(segment.data, segment.bytes) if segment.bytes else b""
            segments.append((segment.offset, data, segment.name))
        if end > request.file_bytes:
            return _text(error, 1, "a segment ends after the file")
        save = saver["save"] = _Save()
        self._new(handle, save)
        base = request.base
        threading.Thread(target=self._run, args=(saver, save, segments, request.file_bytes, request.path, base)).start()
        return 0

    def _run(self, saver, save, segments, file_bytes, path, base):
        self.hold.wait()
        old, prints, blocks, changed, reused = saver["prints"], {}, 0, 0, 0
        uses = old is not None and base is not None and os.path.exists(base)
        temporary = path + b".tmp-fake"
        try:
            with open(temporary, "wb") as file:
                file.truncate(file_bytes)
                for offset, data, name in segments:
                    os.pwrite(file.fileno(), data, offset)
                    for i in range(0, len(data) if name else 0, _abi.BLOCK_BYTES):
                        block = data[i : i + _abi.BLOCK_BYTES]
                        blocks, key = blocks + 1, (name, i)
                        prints[key] = hashlib.blake2b(block).digest()
                        if uses and old.get(key) == prints[key]:
                            reused += len(block)
                        else:
                            changed += 1
            os.rename(temporary, path)
            saver["prints"] = prints
            save.result = {
                "base_use": 0 if base is None else 1 if uses else 2 if old is None else 3,
                "file_bytes": file_bytes, "bytes_reused": reused, "blocks": blocks, "blocks_changed": changed,
                "bytes_written": sum(len(data) for _, data, _ in segments) - reused,
            }  # fmt: skip
        except OSError as failure:
            save.failure = failure
        save.ended.set()

    def cairnfs_save_wait_source(self, save, _timeout, error):
        save = self._handles[save.value]
        save.ended.wait()
        return 0 if save.failure is None else _file_error(error, save.failure)

    def cairnfs_save_wait(self, save, _timeout, result, error):
        save = self._handles[save.value]
        save.ended.wait()
        if save.failure is not None:
            return _file_error(error, save.failure)
        for name, value in save.result.items():
            setattr(result._obj, name, value)
        return 0

    def cairnfs_save_release(self, save):
        del self._handles[save.value]

    def cairnfs_loader_open(self, options, loader, _error):
        assert options._obj.struct_bytes == ctypes.sizeof(_abi.LoaderOptions)
        self._new(loader, "loader")
        return 0

    def cairnfs_loader_close(self, loader):
        del self._handles[loader.value]

    def cairnfs_load(self, loader, request, error):
        assert self._handles[loader.value] == "loader"
        request = request._obj
        try:
            with open(request.path, "rb") as file:
                for read in request.reads[: request.read_count]:
                    data = os.pread(file.fileno(), read.bytes, read.offset)
                    if len(data) < read.bytes:
                        return _text(error, 8, f"{request.path.decode()}: ends before {read.name.decode()}")
                    ctypes.memmove(read.destination, data, read.bytes)
        except OSError as failure:
            return _file_error(error, failure)
        return 0

    def cairnfs_fingerprint(self, data, size, _device, _stream, digests, digests_bytes, _error):
        data = ctypes.string_at(data, size) if size else b""
        blocks = [data[i : i + _abi.BLOCK_BYTES] for i in range(0, size, _abi.BLOCK_BYTES)]
        joined = b"".join(hashlib.blake2b(block, digest_size=32).digest() for block in blocks)
        assert len(joined) == digests_bytes
        ctypes.memmove(digests, joined, len(joined))
        return 0
