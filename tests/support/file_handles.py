"""name_to_handle_at(2) and open_by_handle_at(2), as a server of NFS uses them."""

import ctypes
import os
import struct

_HANDLE_BYTES_MAX = 128
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def handle_of(path):
    handle = ctypes.create_string_buffer(struct.pack("Ii", _HANDLE_BYTES_MAX, 0) + bytes(_HANDLE_BYTES_MAX))
    mount_id = ctypes.c_int()
    _checked(_libc.name_to_handle_at(_AT_FDCWD, os.fsencode(path), handle, ctypes.byref(mount_id), 0))
    return handle.raw[:8 + struct.unpack_from("I", handle.raw)[0]]


def open_handle(mount_point, handle, flags=os.O_RDONLY):
    """A descriptor of the file; `mount_point`: any directory of its filesystem."""
    mount = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return _checked(_libc.open_by_handle_at(mount, ctypes.create_string_buffer(handle, len(handle)), flags))
    finally:
        os.close(mount)
