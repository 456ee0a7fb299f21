"""Saving: a Saver keeps what the next save of a series needs, and each save has a future."""

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import os
import threading

from . import _abi, errors, safetensors
from ._paths import absolute


@dataclasses.dataclass(frozen=True)
class SaveResult:
    """What a save did; sizes in bytes, times in seconds from the beginning of the save."""

    path: str
    base_use: str  # one of cairnfs.BASE_USES; "used" and "not asked" are as wanted, else every byte was written
    base_text: str  # why the base was not used, and which
    file_bytes: int
    bytes_written: int
    bytes_reused: int  # taken from the base
    bytes_over_bus: int  # between devices and host
    blocks: int
    blocks_changed: int
    source_seconds: float  # until the tensors could be changed again
    durable_seconds: float
    ring_bytes: int
    snapshot: str


class SaveFuture(concurrent.futures.Future):
    """Done when the file is durable under its name: then result() is a SaveResult. It cannot be cancelled."""

    was_asked = False  # whether somebody has seen how the save ended

    def result(self, timeout=None):
        """As of every Future."""
        try:
            result = super().result(timeout)
        except BaseException as error:
            # The time was up, or Ctrl-C came: then it says nothing about the save.
            self.was_asked = self.was_asked or (self.done() and error is super().exception())
            raise
        self.was_asked = True
        return result

    def exception(self, timeout=None):
        """As of every Future."""
        error = super().exception(timeout)
        self.was_asked = True
        return error


class _Series:
    """What the threads of a Saver's saves share with it: they may outlive it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.error = None  # of a save_async, to be raised at the next save
        self.last_path = None


class _Running:
    """A save, from just before it is started. It keeps the memory of the tensors until the source is free.

    `handle` is filled by cairnfs_save_start. Ctrl-C may come at any time in the main thread, also right after that call:
    whoever holds this object can then still wait for the save. The thread that follows it is not interrupted, and is no
    daemon: the interpreter ends after the file is durable."""

    def __init__(self, path, sources, series, keeps_error):
        self.handle = ctypes.c_void_p()
        self._path, self._sources = path, sources
        self._series, self._keeps_error = series, keeps_error
        self._is_followed = threading.Lock()  # taken once, by the thread that follows the save
        self.future = SaveFuture()
        self.future.set_running_or_notify_cancel()
        self.source_is_free = threading.Event()

    def follow(self):
        """Has a thread wait for the save, if it was started. More calls do no harm."""
        if not self.handle:
            self._sources.clear()
        elif not self._is_followed.locked():
            try:
                threading.Thread(target=self._follow, name="cairnfs-save").start()
            except RuntimeError:  # no more threads: the caller is held until the end
                self._follow()

    def _follow(self):
        if not self._is_followed.acquire(blocking=False):
            return
        result, failure = None, None
        try:
            result = self._wait_for_library()
        except BaseException as error:  # pylint: disable=broad-exception-caught # whoever waits has it
            failure = error
        with self._series.lock:
            if failure is None:
                self._series.last_path = self._path
            elif self._keeps_error:
                self._series.error = failure
        if failure is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(failure)

    def _wait_for_library(self):
        library = _abi.library()
        try:
            library.cairnfs_save_wait_source(self.handle, -1, None)
            self._sources.clear()
            self.source_is_free.set()
            result = _abi.sized(_abi.SaveResult)
            _abi.call("cairnfs_save_wait", self.handle, -1, ctypes.byref(result))
            return _result_of(self._path, result)
        finally:
            library.cairnfs_save_release(self.handle)  # waits too
            self._sources.clear()
            self.source_is_free.set()

    def wait(self):
        """Until the save has ended. A callback of the future may call it: it is done before those are called."""
        self.follow()  # an interrupt may have come before the thread was there
        if self.handle:
            concurrent.futures.wait((self.future,))


def _result_of(path, result):
    return SaveResult(
        path=path,
        base_use=_abi.BASE_USES[result.base_use],
        base_text=result.base_text.decode("utf-8", "replace"),
        file_bytes=result.file_bytes,
        bytes_written=result.bytes_written,
        bytes_reused=result.bytes_reused,
        bytes_over_bus=result.bytes_over_bus,
        blocks=result.blocks,
        blocks_changed=result.blocks_changed,
        source_seconds=result.source_ns / 1e9,
        durable_seconds=result.durable_ns / 1e9,
        ring_bytes=result.ring_bytes,
        snapshot=next(name for name, value in _abi.SNAPSHOTS.items() if value == result.snapshot),
    )


class Saver:
    """Saves a series of files, each of which can take what did not change from the one before.

    It keeps memory between saves: the ring through which bytes pass, 2 MiB for each writer, and for each MiB of tensors
    64 bytes of their device's memory, or 32 bytes of the host's. With snapshot="device" it also keeps as much memory of
    the device as the tensors have. One Saver is for one series (one model on one rank). Saves of one Saver run one after
    the other; any thread may call it.

    writers           threads that hash and write; 0: 4, or the number of processors if that is less
    ring_bytes        memory between tensors and file; 0: see cairnfs/client.h
    copies_in_flight  streams per device; 0: 4
    snapshot          "none", or "device": copy on the device first, and hold the caller only for that
    """

    def __init__(self, *, writers=0, ring_bytes=0, copies_in_flight=0, snapshot="none"):
        self._handle = None
        if snapshot not in _abi.SNAPSHOTS:
            raise errors.InvalidError(f"snapshot is {snapshot!r}; it can be 'none' or 'device'")
        _abi.check_numbers(writers=writers, ring_bytes=ring_bytes, copies_in_flight=copies_in_flight)
        options = _abi.sized(
            _abi.SaverOptions,
            writers=writers,
            ring_bytes=ring_bytes,
            copies_in_flight=copies_in_flight,
            snapshot=_abi.SNAPSHOTS[snapshot],
        )
        handle = ctypes.c_void_p()
        _abi.call("cairnfs_saver_open", ctypes.byref(options), ctypes.byref(handle))
        self._handle, self._pid = handle, os.getpid()
        self._series = _Series()
        self._start_lock = threading.Lock()
        self._running = None

    @property
    def last_path(self):
        """The path of the last save that succeeded, as an absolute one; None before the first."""
        with self._series.lock:
            return self._series.last_path

    def save(self, tensors, path, base=None, *, metadata=None, mode=0):
        """Writes {name: numpy array or DLPack object} as a safetensors file, and returns when it is durable.

        path      replaced if it is there; a failure leaves it as it was
        base      the file of this Saver's last save, by whatever path it has now: what did not change comes from it;
                  None: every byte is written
        metadata  {string: string} for the file's header
        mode      permission bits before the umask; 0: those of the file that is replaced, else 0o666
        Returns a SaveResult. Raises errors.Error.
        """
        return self._finish(self._submit(safetensors.layout_of(tensors, metadata), path, base, mode, {}, False))

    def save_async(self, tensors, path, base=None, *, metadata=None, mode=0):
        """As save, but returns as soon as the tensors may change again, with a SaveFuture.

        An error is raised by the future, and once more by the next save of this Saver, before that begins: a loop that
        never looks at its futures does not go on unsaved. close raises that of the last one, if nobody has seen it."""
        return self._release(self._submit(safetensors.layout_of(tensors, metadata), path, base, mode, {}, True))

    def close(self):
        """Waits for a save that runs, and frees the memory. No save can follow.

        Raises the error of the last save_async, if neither its future nor a later save has told anybody of it."""
        with self._start_lock:
            handle, self._handle = self._handle, None
            if handle is None or self._pid != os.getpid():
                return
            if self._running is not None:
                self._running.wait()
            _abi.library().cairnfs_saver_close(handle)
            if self._running is not None and not self._running.future.was_asked:
                self._raise_earlier("")

    def __enter__(self):
        return self

    def __exit__(self, _kind, error, _traceback):
        if error is None:
            self.close()
            return
        with contextlib.suppress(errors.Error):  # the one that is on its way says more
            self.close()

    def __del__(self):
        # A child of fork(2) has none of the library's threads: it must not wait for them.
        if getattr(self, "_handle", None) is not None and self._pid == os.getpid():
            _abi.library().cairnfs_saver_close(self._handle)

    def _raise_earlier(self, consequence="; nothing was begun now"):
        with self._series.lock:
            error, self._series.error = self._series.error, None
        if error is not None:
            text = f"a save that was begun before failed: {error}{consequence}"
            if not isinstance(error, errors.Error):
                raise errors.Error(text) from error
            if error.code is None:
                raise type(error)(text) from error
            raise errors.from_code(error.code, text, error.system_errno) from error

    def _submit(self, layout, path, base, mode, streams, keeps_error, needs_snapshot=False):
        """Starts a save of a layout; a _Running. `needs_snapshot`: no room for a snapshot is an error."""
        path_bytes = absolute("path", path)
        base_bytes = None if base is None else absolute("base", base)
        _abi.check_numbers(mode=mode)
        with self._start_lock:
            if self._handle is None:
                raise errors.InvalidError("this Saver is closed")
            if self._pid != os.getpid():
                raise errors.InvalidError("this Saver was opened by the parent of this process; open another one")
            if self._running is not None:
                self._running.wait()
            self._raise_earlier()
            segments, c_streams = layout.segments(), _abi.streams_of(streams)
            request = _abi.sized(
                _abi.SaveRequest,
                mode=mode,
                path=path_bytes,
                base=base_bytes,
                file_bytes=layout.file_bytes,
                segments=segments,
                segment_count=len(segments),
                streams=c_streams,
                stream_count=len(c_streams),
                needs_snapshot=needs_snapshot,
            )
            sources = [array.owner for _, array, _ in layout.tensors]
            running = self._running = _Running(os.fsdecode(path_bytes), sources, self._series, keeps_error)
            try:
                _abi.call("cairnfs_save_start", self._handle, ctypes.byref(request), ctypes.byref(running.handle))
            finally:
                running.follow()
            return running

    @staticmethod
    def _finish(running):
        return running.future.result()

    @staticmethod
    def _release(running):
        running.source_is_free.wait()
        return running.future
