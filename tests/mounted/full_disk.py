#!/usr/bin/env python3
"""A disk that runs full under load of small files, and the way out of it: deleting makes room, nothing wedges.

Options: --seed N.
"""

import errno
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, run_cases, seed_from_arguments


def save(path, content):
    """Writes and closes a file; the errno where that failed."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    except OSError as error:
        return error.errno
    try:
        while content:
            content = content[os.write(fd, content):]
    except OSError as error:
        os.close(fd)
        return error.errno
    try:
        os.close(fd)
    except OSError as error:
        return error.errno
    return 0


def deleting_makes_room(seed):
    rng = random.Random(seed)
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 200 << 20)
        mount = Mount(scratch, "pool_size=64MiB", data=disk + "/data")
        kept = rng.randbytes(20 << 20)
        os.mkdir(mount.path + "/step.tmp")
        assert save(mount.path + "/step.tmp/weights", kept) == 0
        os.rename(mount.path + "/step.tmp", mount.path + "/step")
        with open(mount.path + "/fill", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(rng.randbytes(1 << 20))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
        small = {}
        end = time.monotonic() + 6
        while time.monotonic() < end:
            name = f"{mount.path}/small-{len(small)}"
            content = rng.randbytes(3000)
            code = save(name, content)
            assert code in (0, errno.ENOSPC), os.strerror(code)
            small[name] = content if code == 0 else None
        os.unlink(mount.path + "/fill")
        mount.collect()
        again = rng.randbytes(40 << 20)
        fd = os.open(mount.path + "/again", os.O_CREAT | os.O_WRONLY, 0o644)
        view = memoryview(again)
        while view:
            view = view[os.write(fd, view):]
        os.fsync(fd)
        os.close(fd)
        assert os.path.getsize(mount.data + "/cairnfs.log") < 1 << 20, "the log grows without bound"
        mount.remount()
        for path, content in {**small, mount.path + "/step/weights": kept, mount.path + "/again": again}.items():
            if content is None:
                continue
            with open(path, "rb") as file:
                assert file.read() == content, path
        mount.check()
        mount.umount()
        print(f"{sum(content is not None for content in small.values())} of {len(small)} small files fitted")


def main():
    return run_cases([deleting_makes_room], seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
