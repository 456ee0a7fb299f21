"""The C ABI of libcairnfs_client, as include/cairnfs/client.h declares it: its structs, and the library once loaded."""

import ctypes
import os
import threading

from . import errors

ABI = 1
HOST = -1
BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 32
LITERAL, TENSOR = 0, 1
SNAPSHOTS = {"none": 0, "device": 1}
# cairnfs_base_use, in its order.
BASE_USES = ("not asked", "used", "no fingerprints", "gone", "unreadable", "changed", "other file system", "refused")
LIBRARY = "libcairnfs_client.so"


class CError(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("system_errno", ctypes.c_int32), ("text", ctypes.c_char * 1024)]


class SaverOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("writers", ctypes.c_uint32),
        ("ring_bytes", ctypes.c_uint64),
        ("copies_in_flight", ctypes.c_uint32),
        ("snapshot", ctypes.c_uint32),
    ]


class Segment(ctypes.Structure):
    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    ]


class Stream(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int32), ("reserved", ctypes.c_int32), ("stream", ctypes.c_void_p)]


class SaveRequest(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_char_p),
        ("file_bytes", ctypes.c_uint64),
        ("segments", ctypes.POINTER(Segment)),
        ("segment_count", ctypes.c_size_t),
        ("streams", ctypes.POINTER(Stream)),
        ("stream_count", ctypes.c_size_t),
        ("needs_snapshot", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class SaveResult(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("base_use", ctypes.c_uint32),
        ("file_bytes", ctypes.c_uint64),
        ("bytes_written", ctypes.c_uint64),
        ("bytes_reused", ctypes.c_uint64),
        ("bytes_over_bus", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("blocks_changed", ctypes.c_uint64),
        ("source_ns", ctypes.c_uint64),
        ("durable_ns", ctypes.c_uint64),
        ("ring_bytes", ctypes.c_uint64),
        ("snapshot", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("base_text", ctypes.c_char * 256),
    ]


class LoaderOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("readers", ctypes.c_uint32),
        ("ring_bytes", ctypes.c_uint64),
    ]


class Read(ctypes.Structure):
    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("destination", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    ]


class LoadRequest(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("path", ctypes.c_char_p),
        ("reads", ctypes.POINTER(Read)),
        ("read_count", ctypes.c_size_t),
        ("streams", ctypes.POINTER(Stream)),
        ("stream_count", ctypes.c_size_t),
    ]


_HANDLE = ctypes.c_void_p
_ERROR = ctypes.POINTER(CError)
# Of each function: what it returns, and its arguments.
FUNCTIONS = {
    "cairnfs_client_abi": (ctypes.c_int32, []),
    "cairnfs_client_build": (ctypes.c_char_p, []),
    "cairnfs_device_count": (ctypes.c_int32, [ctypes.POINTER(ctypes.c_int32), _ERROR]),
    "cairnfs_saver_open": (ctypes.c_int32, [ctypes.POINTER(SaverOptions), ctypes.POINTER(_HANDLE), _ERROR]),
    "cairnfs_saver_close": (None, [_HANDLE]),
    "cairnfs_save_start": (ctypes.c_int32, [_HANDLE, ctypes.POINTER(SaveRequest), ctypes.POINTER(_HANDLE), _ERROR]),
    "cairnfs_save_wait_source": (ctypes.c_int32, [_HANDLE, ctypes.c_int64, _ERROR]),
    "cairnfs_save_wait": (ctypes.c_int32, [_HANDLE, ctypes.c_int64, ctypes.POINTER(SaveResult), _ERROR]),
    "cairnfs_save_release": (None, [_HANDLE]),
    "cairnfs_loader_open": (ctypes.c_int32, [ctypes.POINTER(LoaderOptions), ctypes.POINTER(_HANDLE), _ERROR]),
    "cairnfs_loader_close": (None, [_HANDLE]),
    "cairnfs_load": (ctypes.c_int32, [_HANDLE, ctypes.POINTER(LoadRequest), _ERROR]),
    "cairnfs_fingerprint": (
        ctypes.c_int32,
        [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, _ERROR],
    ),
}

_lock = threading.Lock()
_library = None


def _load():
    """The library that CAIRNFS_CLIENT_LIBRARY names, else that of this package, else one that the loader finds."""
    named = os.environ.get("CAIRNFS_CLIENT_LIBRARY")
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY)
    path = named or (packaged if os.path.exists(packaged) else LIBRARY)
    try:
        loaded = ctypes.CDLL(path)
        abi = loaded.cairnfs_client_abi()
    except (AttributeError, OSError) as error:
        raise ImportError(f"cairnfs: the client library cannot be loaded: {error}") from error
    if abi != ABI:
        raise ImportError(f"cairnfs: {path} has ABI {abi}, this package needs {ABI}")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def library():
    """The library, loaded at the first call."""
    global _library  # pylint: disable=global-statement
    with _lock:
        if _library is None:
            _library = _load()
        return _library


def error_of(error):
    """The exception of a C error that was filled."""
    return errors.from_code(error.code, error.text.decode("utf-8", "replace"), error.system_errno)


def call(name, *arguments):
    """Calls a function whose last argument is a cairnfs_error; raises what it returns."""
    error = CError()
    code = getattr(library(), name)(*arguments, ctypes.byref(error))
    if code != 0:
        raise error_of(error) if error.code == code else errors.from_code(code, f"{name} returned {code}")


def sized(struct, **fields):
    """A struct of the ABI that begins with its size."""
    return struct(struct_bytes=ctypes.sizeof(struct), **fields)


def check_numbers(**numbers):
    """Raises InvalidError for an option that is no number, or one that no struct holds; the library judges the rest."""
    for name, value in numbers.items():
        limit = 1 << 64 if name.endswith("_bytes") else 1 << 32
        if not isinstance(value, int) or not 0 <= value < limit:
            raise errors.InvalidError(f"{name} is {value!r}; it is a number from 0 on")


def streams_of(streams):
    """A C array of {device: stream}."""
    return (Stream * len(streams))(*(Stream(device=device, stream=stream) for device, stream in streams.items()))


def build():
    """How the library was built: "host" without CUDA, else "cuda MAJOR.MINOR"."""
    return library().cairnfs_client_build().decode()


def device_count():
    """How many CUDA devices the library can use; 0 without CUDA and without a driver."""
    count = ctypes.c_int32()
    call("cairnfs_device_count", ctypes.byref(count))
    return count.value
