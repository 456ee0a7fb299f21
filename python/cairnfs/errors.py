"""The exceptions of this package. Each has `code`, a cairnfs_error_code of the C ABI or None, and a text that names
what is wrong and which. Each is also the built-in exception that a program would expect: `except OSError` works."""

import errno


class Error(Exception):
    """Any error of this package. `code` is the C ABI's, or None for what Python found; `system_errno` is errno or 0."""

    code = None
    system_errno = 0

    def __str__(self):  # KeyError would show the text in quotes
        return str(self.args[0]) if self.args else ""


class InvalidError(Error, ValueError):
    """An argument that is wrong: a tensor that is not contiguous, a name that is used twice, a slice past the end."""


class PointerError(Error, ValueError):
    """Memory that is not mapped, was freed, or lies on another device than the tensor says."""


class NotFoundError(Error, FileNotFoundError):
    """The file, or the directory of a file to be written, is not there."""


class PermissionDeniedError(Error, PermissionError):
    """Of a file or a directory; or a file system that is read-only."""


class NoSpaceError(Error, OSError):
    """The disk, a quota, or the limit on a file's size."""


class NoMemoryError(Error, MemoryError):
    """Memory of the host, or memory that can be pinned (RLIMIT_MEMLOCK)."""


class NoDeviceMemoryError(Error, MemoryError):
    """Memory of the device."""


class TruncatedError(Error, EOFError):
    """A file that ends before the bytes that it should have."""


class FileError(Error, OSError):
    """Another error of a file."""


class IsDirectoryError(FileError, IsADirectoryError):
    """A directory where a file is to be read or written."""


class DeviceError(Error, RuntimeError):
    """Another error of CUDA."""


class NoDeviceError(Error, RuntimeError):
    """The library was built without CUDA, there is no driver, or no device of that number."""


class WaitTimeoutError(Error, TimeoutError):
    """The time given to a wait is up."""


class FormatError(Error, ValueError):
    """A file that is no checkpoint, or not of a format that this package reads."""


class MissingTensorError(Error, KeyError):
    """A tensor that was asked for and that the file lacks."""


class DtypeError(Error, TypeError):
    """A dtype that the format, or the array that was given, cannot hold."""


# By cairnfs_error_code of cairnfs/client.h.
BY_CODE = {
    1: InvalidError,
    2: PointerError,
    3: NotFoundError,
    4: PermissionDeniedError,
    5: NoSpaceError,
    6: NoMemoryError,
    7: NoDeviceMemoryError,
    8: TruncatedError,
    9: FileError,
    10: DeviceError,
    11: NoDeviceError,
    12: WaitTimeoutError,
}


def from_code(code, text, system_errno=0):
    """The exception for an error code of the C ABI."""
    kind = IsDirectoryError if system_errno == errno.EISDIR else BY_CODE.get(code, Error)
    error = kind(text)
    error.code = code
    error.system_errno = system_errno
    if isinstance(error, OSError) and system_errno:
        error.errno = system_errno
    return error
