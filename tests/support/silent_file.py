"""A file of a FUSE filesystem that answers everything but poll: whoever polls the file waits until it is gone."""

import ctypes
import os
import struct
import subprocess
import sys

MNT_FORCE, MNT_DETACH = 1, 2
ROOT = 1  # the inode's number
FILE_MODE = 0o100644
FORGET, GETATTR, OPEN, INIT, INTERRUPT, POLL, BATCH_FORGET = 2, 3, 14, 26, 36, 40, 42  # linux/fuse.h
LIBC = ctypes.CDLL(None, use_errno=True)


class SilentFile:
    """Mounted at `path`. Leaving it ends all waits."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.server = subprocess.Popen([sys.executable, os.path.abspath(__file__), self.path], stdout=subprocess.PIPE,
                                       text=True)
        self.await_line("mounted")
        return self

    def await_poll(self):
        self.await_line("polled")

    def await_line(self, wanted):
        line = self.server.stdout.readline().strip()
        assert line == wanted, line

    def __exit__(self, *_):
        LIBC.umount2(self.path.encode(), MNT_FORCE | MNT_DETACH)
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()


def answer_of(opcode):
    if opcode == INIT:  # version 7.31, no flags
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0, 0)
    if opcode == GETATTR:  # valid for a second
        return struct.pack("<QII6Q10I", 1, 0, 0, ROOT, *[0] * 5, *[0] * 3, FILE_MODE, 1, *[0] * 3, 4096, 0)
    if opcode == OPEN:
        return struct.pack("<QII", ROOT, 0, 0)
    return b""


def serve(path):
    with open(path, "w", encoding="ascii"):
        pass
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode={FILE_MODE:o},user_id=0,group_id=0,allow_other"
    if LIBC.mount(b"silent", path.encode(), b"fuse.silent", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:
            return
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        if opcode == POLL:
            print("polled", flush=True)
        elif opcode not in (FORGET, INTERRUPT, BATCH_FORGET):
            body = answer_of(opcode)
            os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


if __name__ == "__main__":
    serve(sys.argv[1])
