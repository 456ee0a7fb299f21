#!/usr/bin/env python3
"""A disk that runs full under load of small files, and the way out of it: deleting makes room, nothing wedges.

Options: --seed N.
"""

import errno
import mmap
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, program, run_cases, seed_from_arguments


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


def fill(path, rng):
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(rng.randbytes(1 << 20))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error


def await_in_log(mount, text):
    """The names of files with errors are looked up for many at a time, and so stand in the log some time later."""
    deadline = time.monotonic() + 60
    while True:
        with open(mount.data + "/cairnfs.log", encoding="utf-8") as log:
            if text in log.read():
                return
        assert time.monotonic() < deadline, f"the log never says {text}:\n{mount.log()}"
        time.sleep(0.1)


def stores_through_a_mapping_are_not_lost_in_silence(seed):
    """The kernel accepts them, and drops the pages when there is no room: the checkpoint must not be published."""
    rng = random.Random(seed)
    size = 24 << 20
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=64MiB", data=scratch.ext4("disk", 200 << 20) + "/data")
        step = mount.path + "/step.tmp"
        os.mkdir(step)
        with open(step + "/weights", "w+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
            fill(mount.path + "/fill", rng)
            content = rng.randbytes(size)
            with mmap.mmap(file.fileno(), size) as mapped:
                mapped[:] = content  # and nobody asks whether it went well
            try:
                file.close()
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
        assert os.getxattr(step + "/weights", "user.cairnfs.durability") == b"lost"
        os.unlink(mount.path + "/fill")
        try:
            os.rename(step, mount.path + "/step")
            raise AssertionError("published a checkpoint whose bytes are lost")
        except OSError as error:
            assert error.errno in (errno.EIO, errno.ENOSPC), error
        await_in_log(mount, "weights")
        # The way out: the bytes are written again.
        with open(step + "/weights", "r+b") as file:
            file.write(content)
        os.rename(step, mount.path + "/step")
        durability = os.getxattr(mount.path + "/step/weights", "user.cairnfs.durability")
        assert durability == b"local", durability
        with open(mount.path + "/step/weights", "rb") as file:
            assert file.read() == content
        mount.umount()


def the_oldest_goes_and_the_save_is_tried_again(seed):
    """What a trainer does that runs out of room, without a pause."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=64MiB", data=scratch.ext4("disk", 300 << 20) + "/data")
        size, kept = 60 << 20, []
        for step in range(8):
            name, content = f"{mount.path}/step-{step}", rng.randbytes(size)
            while (code := save(name, content)) != 0:
                assert code == errno.ENOSPC, os.strerror(code)
                os.unlink(name)
                assert kept, "nothing is left to delete"
                os.unlink(kept.pop(0))
            kept.append(name)
        assert len(kept) >= 2, kept
        with open(kept[-1], "rb") as file:
            assert file.read() == content
        mount.check()
        mount.umount()


def take_all(path):
    """Another program's file that takes the disk to the last block."""
    piece, size = 64 << 20, 0
    with open(path, "wb") as file:
        while piece >= 4096:
            try:
                os.posix_fallocate(file.fileno(), size, piece)
                size += piece
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                piece //= 2


def ends_with(code, *command):
    """What a command that ends with `code` says; one that died of a signal has another."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          timeout=120)
    assert done.returncode == code, (command, done.returncode, done.stdout)
    return done.stdout


def a_start_on_a_full_disk_says_so_and_reading_works(seed):
    rng = random.Random(seed)
    content = rng.randbytes(3 << 20)
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 200 << 20)
        mount = Mount(scratch, "pool_size=64MiB", data=disk + "/data")
        assert save(mount.path + "/kept", content) == 0
        for end in (mount.umount, mount.kill):
            end()
            take_all(disk + "/ballast")
            assert "make room on that disk first" in ends_with(1, *mount.mount_command())
            assert "make room on that disk first" in ends_with(1, *mount.mount_command(), "--foreground")
            ends_with(0, program("cairnfs"), "check", "--data", mount.data)
            mount.options += ",read_only=true"
            mount.mount()
            with open(mount.path + "/kept", "rb") as file:
                assert file.read() == content
            assert save(mount.path + "/new", b"x") == errno.EROFS
            mount.umount()
            mount.options = mount.options.removesuffix(",read_only=true")
            os.unlink(disk + "/ballast")
            mount.mount()
            with open(mount.path + "/kept", "rb") as file:
                assert file.read() == content
        mount.check()
        mount.umount()


def a_stop_on_a_full_disk_says_what_is_not_durable(seed):
    del seed
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 200 << 20)
        mount = Mount(scratch, "pool_size=64MiB", data=disk + "/data")
        names = [f"{mount.path}/{number}" for number in range(800)]
        for name in names:
            assert save(name + "a" * 150, b"") == 0
        mount.umount()
        with subprocess.Popen([*mount.mount_command(), "--foreground"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as daemon:
            while not os.path.ismount(mount.path):
                assert daemon.poll() is None, daemon.stdout.read()
                time.sleep(0.05)
            take_all(disk + "/ballast")
            refused, letters = False, "ab"
            while not refused:
                for name in names:
                    os.rename(name + letters[0] * 150, name + letters[1] * 150)
                letters = letters[::-1]
                directory = os.open(mount.path, os.O_RDONLY)
                try:
                    os.fsync(directory)
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error
                    refused = True
                finally:
                    os.close(directory)
            daemon.send_signal(signal.SIGTERM)
            said = daemon.communicate(timeout=120)[0]
            assert daemon.returncode == 1, (daemon.returncode, said)
            assert "not everything became durable" in said, said
        with open(mount.data + "/LOCK", encoding="utf-8") as lock:
            assert lock.read().startswith("failed: ")
        os.unlink(disk + "/ballast")
        mount.mount()
        assert len(os.listdir(mount.path)) == len(names)
        mount.check()
        mount.umount()


def main():
    return run_cases([deleting_makes_room, stores_through_a_mapping_are_not_lost_in_silence,
                      the_oldest_goes_and_the_save_is_tried_again, a_start_on_a_full_disk_says_so_and_reading_works,
                      a_stop_on_a_full_disk_says_what_is_not_durable], seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
