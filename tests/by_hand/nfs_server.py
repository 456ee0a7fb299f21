#!/usr/bin/env python3
"""A mount is exported by a real NFS server, and used by a real client.

    tests/by_hand/nfs_server.py [--seed N] [CASE...]

Needs Debian's nfs-ganesha, nfs-ganesha-vfs and libnfs13. The server reaches files by their handles (open_by_handle_at)
as the kernel's does, and listens on loopback alone. The client is libnfs, by NFS 4.
"""

import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, Skip, free_port, run, run_cases, seed_from_arguments

CONFIG = """
NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false;
                  Enable_UDP = false; }}
NFSv4 {{ RecoveryBackend = fs; RecoveryRoot = "{recovery}"; Graceless = true; }}
EXPORT {{ Export_Id = 77; Filesystem_Id = 77.0; Path = "{path}"; Pseudo = "/m"; Access_Type = RW; SecType = sys;
          Squash = No_Root_Squash; FSAL {{ Name = VFS; }} }}
"""


class Server:
    def __init__(self, scratch, path):
        self.port = free_port()
        self.directory = scratch.directory("ganesha")
        self.config = os.path.join(self.directory, "ganesha.conf")
        with open(self.config, "w", encoding="ascii") as file:
            file.write(CONFIG.format(port=self.port, path=path, recovery=self.directory))
        self.log = os.path.join(self.directory, "log")
        self.process = None

    def __enter__(self):
        self.process = subprocess.Popen(["ganesha.nfsd", "-F", "-f", self.config, "-L", self.log,
                                         "-p", os.path.join(self.directory, "pid")])
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def connect(self):
        """A client, once the server answers."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return Client(self.port)
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.log_end()
                time.sleep(0.1)

    def log_end(self):
        with contextlib.suppress(OSError), open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]
        return "it has no log"


class Client:
    """libnfs: https://github.com/sahlberg/libnfs, include/nfsc/libnfs.h of version 4."""

    READ, WRITE = 32 << 10, 512  # bytes of one call: Debian 12's version cannot send longer writes by NFS 4

    def __init__(self, port):
        self.lib = ctypes.CDLL("libnfs.so.13")
        self.lib.nfs_init_context.restype = ctypes.c_void_p
        self.lib.nfs_get_error.restype = ctypes.c_char_p
        self.nfs = ctypes.c_void_p(self.lib.nfs_init_context())
        self.lib.nfs_parse_url_dir.restype = ctypes.c_void_p
        self.lib.nfs_parse_url_dir(self.nfs, f"nfs://127.0.0.1/m?nfsport={port}&version=4".encode())
        self.call("nfs_mount", b"127.0.0.1", b"/m")

    def call(self, function, *arguments):
        result = getattr(self.lib, function)(self.nfs, *arguments)
        if result < 0:
            raise OSError(-result, f"{function}: {self.lib.nfs_get_error(self.nfs).decode(errors='replace')}")
        return result

    def open(self, name, flags):
        file = ctypes.c_void_p()
        self.call("nfs_open", name.encode(), flags, ctypes.byref(file))
        return file

    def read_open(self, file):
        content = b""
        buffer = ctypes.create_string_buffer(self.READ)
        while True:
            got = self.call("nfs_pread", file, ctypes.c_uint64(len(content)), ctypes.c_uint64(self.READ), buffer)
            if got == 0:
                return content
            content += buffer.raw[:got]

    def read(self, name):
        file = self.open(name, os.O_RDONLY)
        content = self.read_open(file)
        self.call("nfs_close", file)
        return content

    def write(self, name, content):
        file = self.open(name, os.O_RDWR | os.O_CREAT)
        done = 0
        while done < len(content):
            piece = content[done:done + self.WRITE]
            done += self.call("nfs_pwrite", file, ctypes.c_uint64(done), ctypes.c_uint64(len(piece)), piece)
        self.call("nfs_fsync", file)
        self.call("nfs_close", file)


def served_by_a_real_server(seed):
    if shutil.which("ganesha.nfsd") is None or subprocess.run(["ldconfig", "-p"], check=True, capture_output=True,
                                                              text=True).stdout.find("libnfs.so.13") < 0:
        raise Skip("nfs-ganesha or libnfs13 is not installed")
    randomness = random.Random(seed)
    contents = {f"/step-1/{i}": randomness.randbytes(randomness.randrange(1, 60_000)) for i in range(30)}
    contents["/step-1/large"] = randomness.randbytes(4 << 20)
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=256MiB,reserve=8MiB")
        os.mkdir(os.path.join(mount.path, "step-1"))
        with Server(scratch, mount.path) as server:
            client = server.connect()
            for i, (name, content) in enumerate(contents.items()):
                if i % 2 == 0:
                    client.write(name, content)
                else:
                    with open(mount.path + name, "wb") as file:
                        file.write(content)
            for name, content in contents.items():
                with open(mount.path + name, "rb") as file:
                    assert file.read() == content, name
                assert client.read(name) == content, name
            # A handle leads to the file under its new name.
            file = client.open("/step-1/large", os.O_RDONLY)
            os.rename(os.path.join(mount.path, "step-1"), os.path.join(mount.path, "kept"))
            assert client.read_open(file) == contents["/step-1/large"]
            client.call("nfs_close", file)
        mount.remount()
        with Server(scratch, mount.path) as server:
            client = server.connect()
            for name, content in contents.items():
                assert client.read(name.replace("step-1", "kept")) == content, name
        mount.check()
        mount.umount()
        return f"{len(contents)} files"


if __name__ == "__main__":
    sys.exit(run_cases((served_by_a_real_server,), seed_from_arguments()))
