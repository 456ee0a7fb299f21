#!/usr/bin/env python3
"""Files in memory that the kernel reads itself (FUSE passthrough): that it does, and that nobody can tell by what he
reads. Run as root, on Linux 6.9 or newer; elsewhere the cases are skipped, but for those of mounts without it."""

import contextlib
import errno
import fcntl
import glob
import mmap
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, Skip, await_end, program, run, run_cases, seed_from_arguments
from file_handles import handle_of, open_handle
from refusals import expect_errno

MIB = 1 << 20
STRANGER = 65534
SECONDS = 60  # what happens at all has happened by then


class World:
    """A mount whose pool lends 32 MiB."""

    def __init__(self, scratch, seed):
        self.mount = Mount(scratch, SMALL + ",passthrough=true")
        self.random = random.Random(seed)
        if why := self.status()["why_not"]:
            raise Skip(why)

    def status(self):
        return self.mount.status()["passthrough"]

    def path(self, name):
        return f"{self.mount.path}/{name}"

    def write(self, name, size):
        data = self.random.randbytes(size)
        with open(self.path(name), "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        return data

    def read(self, name):
        with open(self.path(name), "rb", buffering=0) as file:
            return file.read()

    def await_status(self, what, test):
        deadline = time.monotonic() + SECONDS
        while not test(self.status()[what]):
            assert time.monotonic() < deadline, (what, self.status(), self.mount.log())
            time.sleep(0.01)

    def backed(self, name, size):
        """A file that the kernel reads itself from now on."""
        data = self.write(name, size)
        files = self.status()["files"]
        assert self.read(name) == data
        assert self.read(name) == data  # this open has it filled
        self.await_status("files", lambda count: count > files)
        return data

    def bytes_through_the_daemon(self):
        return self.mount.status()["read_bytes_total"]

    @contextlib.contextmanager
    def past_the_daemon(self, opens=1):
        before, opened = self.bytes_through_the_daemon(), self.status()["opens_total"]
        yield
        assert self.bytes_through_the_daemon() == before, "bytes were read through the daemon"
        assert self.status()["opens_total"] == opened + opens, self.status()


def as_stranger(*command):
    return subprocess.run(["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", *command],
                          check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def what_was_read_is_read_past_the_daemon(seed):
    with Scratch() as scratch:
        world = World(scratch, seed)
        data = world.backed("file", 12 * MIB + 345)
        with world.past_the_daemon(opens=2):
            assert world.read("file") == data
            with open(world.path("file"), "rb") as file:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    assert mapped[:] == data
        # A part of a file, and one that is opened for writing too, are not worth it.
        world.write("part", 2 * MIB)
        for _ in range(3):
            with open(world.path("part"), "rb", buffering=0) as file:
                file.read(MIB // 4)
        update = world.write("update", 2 * MIB)
        with open(world.path("update"), "r+b", buffering=0):
            pass
        for _ in range(3):
            assert world.read("update") == update
        world.backed("last", 2 * MIB)  # which was filled after all that
        status = world.status()
        assert status["files"] == status["fills_total"] == 2, status


def what_is_committed_is_passed_where_the_one_before_was_read(seed):
    with Scratch() as scratch:
        world = World(scratch, seed)

        def commit(name):
            os.makedirs(world.path("step.tmp/shards"))
            data = {name: world.write("step.tmp/" + name, 3 * MIB) for name in ("model", "shards/0", "shards/1")}
            world.write("step.tmp/small", 1000)
            os.rename(world.path("step.tmp"), world.path(name))
            return data

        commit("step-1")
        commit("step-2")
        with open(world.path("step-2/model"), "rb", buffering=0) as file:
            file.read(1)
        data = commit("step-3")
        world.await_status("files", lambda count: count == 3)
        with world.past_the_daemon(opens=3):
            for name, bytes_of_it in data.items():
                assert world.read("step-3/" + name) == bytes_of_it
        status = world.status()
        assert status["files"] == status["fills_total"] == 3, status
        world.mount.check()


def changes_are_seen_at_once(seed):
    """By an old descriptor, an old mapping and new opens."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        data = bytearray(world.backed("file", 6 * MIB))
        reader = os.open(world.path("file"), os.O_RDONLY)
        mapped = mmap.mmap(reader, len(data), mmap.MAP_SHARED, mmap.PROT_READ)

        def check():
            size = os.fstat(reader).st_size
            assert size == len(data) == os.stat(world.path("file")).st_size, (size, len(data))
            assert os.pread(reader, 64 * MIB, 0) == data
            assert mapped[:min(size, len(mapped))] == data[:len(mapped)]
            assert world.read("file") == data

        check()
        writer = os.open(world.path("file"), os.O_RDWR)
        assert os.fstat(writer).st_ino == os.fstat(reader).st_ino
        for offset, piece in ((5, b"hello"), (MIB - 3, b"across"), (len(data), b"appended" * 1000)):
            os.pwrite(writer, piece, offset)
            data[offset:offset + len(piece)] = piece
            check()
        os.ftruncate(writer, 4 * MIB + 7)
        del data[4 * MIB + 7:]
        assert os.pread(reader, 64 * MIB, 0) == data and os.fstat(reader).st_size == len(data)
        os.ftruncate(writer, 6 * MIB)
        data.extend(bytes(6 * MIB - len(data)))
        check()
        run("fallocate", "--punch-hole", "--offset", 4096, "--length", MIB, world.path("file"))
        data[4096:4096 + MIB] = bytes(MIB)
        check()
        # cp shares chunks; here the bytes are copied.
        os.close(writer)
        other = world.write("other", 2 * MIB)
        with open(world.path("other"), "rb") as source, open(world.path("file"), "r+b") as to:
            copied = 0
            while copied < len(other):
                copied += os.copy_file_range(source.fileno(), to.fileno(), len(other) - copied, copied, copied)
        data[:len(other)] = other
        check()
        os.unlink(world.path("file"))
        assert os.pread(reader, 64 * MIB, 0) == data and os.fstat(reader).st_nlink == 0
        mapped.close()
        os.close(reader)
        world.await_status("files", lambda count: count == 0)
        world.mount.check()


def programs_run_and_are_not_written_to(seed):
    with Scratch() as scratch:
        world = World(scratch, seed)
        text = b"#!/bin/sh\necho it runs\nexec sleep 60\n" + b"#" * (2 * MIB)
        with open("/bin/sleep", "rb") as file:
            sleep = file.read()
        for name, content in (("script", text), ("sleep", sleep + bytes(2 * MIB))):
            with open(world.path(name), "wb") as file:
                file.write(content)
                os.fsync(file.fileno())
            for _ in range(2):
                assert world.read(name) == content
        world.await_status("files", lambda count: count == 2)
        reader = os.open(world.path("sleep"), os.O_RDONLY)
        for name in ("script", "sleep"):
            os.chmod(world.path(name), 0o755)
        with subprocess.Popen([world.path("sleep"), "60"]) as process:
            expect_errno(errno.ETXTBSY, os.open, world.path("sleep"), os.O_WRONLY)
            assert os.pread(reader, 100, 0) == sleep[:100]
            assert world.read("sleep") == sleep + bytes(2 * MIB)
            process.kill()
        os.close(reader)
        with subprocess.Popen([world.path("script")], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "it runs\n"
            process.kill()
        # One that is a program before it is read is not filled.
        world.write("fresh", 2 * MIB)
        os.chmod(world.path("fresh"), 0o755)
        for _ in range(3):
            world.read("fresh")
            world.read("script")
        world.backed("last", 2 * MIB)  # which was filled after all that
        status = world.status()
        assert status["opens_total"] == 1 and status["fills_total"] == 3, status


def readers_outlive_the_daemon(seed):
    with Scratch() as scratch:
        world = World(scratch, seed)
        data = world.backed("file", 4 * MIB)
        fd = os.open(world.path("file"), os.O_RDONLY)
        mapped = mmap.mmap(fd, len(data), mmap.MAP_SHARED, mmap.PROT_READ)
        os.kill(world.mount.pid, signal.SIGKILL)
        assert await_end(world.mount.pid)
        assert mapped[:] == data and os.pread(fd, len(data), 0) == data
        mapped.close()
        with contextlib.suppress(OSError):
            os.close(fd)
        world.mount.kill()
        world.mount.mount()
        assert world.read("file") == data
        world.mount.check()


def memory_is_bounded(seed):
    """What does not fit is read through the daemon; what grows beyond it too, while old readers keep what they had."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        large = world.write("large", 40 * MIB)
        for _ in range(3):
            assert world.read("large") == large
        world.await_status("fills_failed_total", lambda count: count > 0)
        assert world.status()["files"] == 0 and world.status()["bytes"] == 0, world.status()
        data = world.backed("file", 24 * MIB)
        reader = os.open(world.path("file"), os.O_RDONLY)
        with open(world.path("file"), "ab", buffering=0) as file:
            for _ in range(16):
                piece = world.random.randbytes(MIB)
                file.write(piece)
                data += piece
        assert world.read("file") == data  # through the daemon
        assert os.pread(reader, 24 * MIB, 0) == data[:24 * MIB]
        assert world.status()["bytes"] <= 32 * MIB, world.status()
        os.close(reader)
        assert world.read("file") == data
        # What nobody uses makes room for others (and for who writes: unit/fs/backing_files_test.cc).
        for index in range(2):
            other = world.write(f"file-{index}", 20 * MIB)
            for _ in range(2):
                assert world.read(f"file-{index}") == other
            fills = index + 2
            world.await_status("fills_total", lambda count, fills=fills: count == fills)
            assert world.status()["files"] == 1, world.status()
        world.mount.check()


def damaged_bytes_are_never_passed(seed):
    with Scratch() as scratch:
        world = World(scratch, seed)
        data = world.write("file", 8 * MIB)
        world.mount.umount()
        for path in glob.glob(world.mount.data + "/segments/*"):
            with open(path, "r+b") as segment:
                at = segment.read().find(data[4 * MIB:4 * MIB + 64])
                if at >= 0:
                    segment.seek(at)
                    segment.write(bytes(64))
        world.mount.mount()
        fd = os.open(world.path("file"), os.O_RDONLY)
        for _ in range(9):
            assert os.pread(fd, MIB, 0) == data[:MIB]
        os.close(fd)
        for _ in range(2):  # of which the first has it filled
            expect_errno(errno.EIO, world.read, "file")
        world.await_status("fills_failed_total", lambda count: count > 0)
        assert world.status()["files"] == 0
        expect_errno(errno.EIO, world.read, "file")
        with open(world.path("file"), "rb", buffering=0) as file:
            assert file.read(MIB) == data[:MIB]


def strangers_are_passed_only_where_nobody_can_write(seed):
    with Scratch() as scratch:
        world = World(scratch, seed)
        data = world.backed("file", 2 * MIB)
        os.chmod(world.path("file"), 0o644)
        opens = world.status()["opens_total"]
        for _ in range(3):
            assert as_stranger("cat", world.path("file")).stdout == data
        assert world.status()["opens_total"] == opens, "a stranger could keep the owner's file in memory"
        with open(world.path("file"), "r+b", buffering=0) as file:
            file.write(b"x")
        data = world.backed("read only", 2 * MIB)
        os.chmod(world.path("read only"), 0o444)
        opens = world.status()["opens_total"]
        assert as_stranger("cat", world.path("read only")).stdout == data
        assert world.status()["opens_total"] == opens + 1, world.status()
        os.chmod(world.path("read only"), 0o600)
        assert as_stranger("cat", world.path("read only")).returncode != 0


def threads_of(pid):
    names = set()
    for path in glob.glob(f"/proc/{pid}/task/*/comm"):
        with open(path, encoding="ascii") as file:
            names.add(file.read().strip())
    return names


def without_it_all_is_as_ever(seed):
    """Where it is not turned on, or the daemon lacks CAP_SYS_ADMIN: the status says why. The kernel keeps the locks."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        data = random.Random(seed).randbytes(2 * MIB)
        with open(mount.path + "/file", "wb") as file:
            file.write(data)
        for _ in range(3):
            with open(mount.path + "/file", "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                assert file.read() == data
                inode = os.fstat(file.fileno()).st_ino
                with open("/proc/locks", encoding="ascii") as locks:
                    assert any("FLOCK" in line and f":{inode} " in line for line in locks)
        assert not threads_of(mount.pid) & {"fill", "locks"}
        # A handle that an NFS client got while the file had two node ids.
        beside = bytearray(handle_of(mount.path + "/file"))
        beside[11] |= 0x80
        expect_errno(errno.ESTALE, open_handle, mount.path, bytes(beside))
        status = mount.status()["passthrough"]
        assert status["why_not"] == "the option passthrough is false" and status["files"] == 0, status
        assert "no: the option passthrough is false" in run(program("cairnfs"), "status", mount.path)
        # As mount_options.py has it: through fusermount3, with a /dev/fuse for everybody.
        for name in ("theirs", "point"):
            os.chown(scratch.directory(name), STRANGER, STRANGER)
        device, point = scratch.path + "/fuse", scratch.path + "/point"
        os.mknod(device, 0o666 | 0o020000, os.makedev(10, 229))
        os.chmod(device, 0o666)
        cairnfs = program("cairnfs")
        steps = [f"{cairnfs} mount {point} --data {scratch.path}/theirs -o {SMALL},passthrough=true",
                 f"head -c 3M /dev/zero > {point}/file", *[f"cmp -n 3145728 {point}/file /dev/zero"] * 3,
                 f"{cairnfs} status {point}", f"{cairnfs} umount {point}"]
        script = (f"mount --bind {device} /dev/fuse && exec setpriv --reuid {STRANGER} --regid {STRANGER} "
                  f"--clear-groups sh -ec '{' && '.join(steps)}'")
        assert "lacks CAP_SYS_ADMIN" in run("unshare", "-m", "sh", "-ec", script)


def main():
    cases = [
        what_was_read_is_read_past_the_daemon, what_is_committed_is_passed_where_the_one_before_was_read,
        changes_are_seen_at_once, programs_run_and_are_not_written_to, readers_outlive_the_daemon, memory_is_bounded,
        damaged_bytes_are_never_passed, strangers_are_passed_only_where_nobody_can_write, without_it_all_is_as_ever,
    ]
    return run_cases(cases, seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
