"""Paths of files, and opening them, with the errors of this package."""

import errno
import os
import stat

from . import errors


def encode(what, path):
    """The path in bytes."""
    try:
        encoded = os.fsencode(path)
    except TypeError:
        raise errors.InvalidError(f"{what} is a {type(path).__name__}, not a path") from None
    except UnicodeEncodeError:
        raise errors.InvalidError(f"{what} {path!r} is no path: it has no encoding") from None
    if not encoded or b"\0" in encoded:
        raise errors.InvalidError(f"{what} {path!r} is no path")
    return encoded


def absolute(what, path):
    """The path in bytes, whatever the current directory will be."""
    encoded = encode(what, path)
    if os.path.isabs(encoded):  # a current directory that is gone does not matter then
        return encoded
    try:
        return os.path.join(os.getcwdb(), encoded)
    except OSError as error:
        raise _error_of(error, f"{what} {path!r}: the current directory") from None


def _error_of(error, what):
    if isinstance(error, FileNotFoundError):
        return errors.from_code(3, f"{what}: no such file", error.errno)
    if isinstance(error, PermissionError):
        return errors.from_code(4, f"{what}: permission denied", error.errno)
    return errors.from_code(9, f"{what}: {error.strerror or error}", error.errno or 0)


def open_file(path):
    """The regular file, opened for reading. Opening anything else does not wait: a pipe may never have a writer."""
    encoded = encode("path", path)
    try:
        number = os.open(encoded, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise _error_of(error, path) from None
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISREG(mode):
            return os.fdopen(number, "rb")
        what = "is a directory" if stat.S_ISDIR(mode) else "is no regular file"
        raise errors.from_code(9, f"{path} {what}", errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL)
    except BaseException:
        os.close(number)
        raise
