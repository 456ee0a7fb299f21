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
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, Skip, await_end, program, run, run_cases, seed_from_arguments
from refusals import expect_errno

MIB = 1 << 20
STRANGER = 65534
SECONDS = 60  # what happens at all has happened by then


class World:
    """A mount whose pool lends 32 MiB."""

    def __init__(self, scratch, seed, options=SMALL):
        self.mount = Mount(scratch, options)
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
        assert world.status()["files"] == 1, world.status()


def what_was_committed_is_passed_at_its_first_open(seed):
    with Scratch() as scratch:
        world = World(scratch, seed)
        os.makedirs(world.path("step.tmp/shards"))
        data = {name: world.write("step.tmp/" + name, 3 * MIB) for name in ("model", "shards/0", "shards/1")}
        world.write("step.tmp/small", 1000)
        assert world.status()["files"] == 0
        os.rename(world.path("step.tmp"), world.path("step"))
        world.await_status("files", lambda count: count == 3)
        with world.past_the_daemon(opens=3):
            for name, bytes_of_it in data.items():
                assert world.read("step/" + name) == bytes_of_it
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


def a_file_is_emptied_where_others_appear_whole(seed):
    """Such an open is sent back to look the path up, which the kernel does once only."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        world.backed("log", 2 * MIB)
        reader = os.open(world.path("log"), os.O_RDONLY)
        os.setxattr(world.mount.path, "user.cairnfs.atomic_files", b"*.pt")
        for text in (b"one", b"and two"):
            with open(world.path("log"), "wb") as file:
                file.write(text)
            assert os.pread(reader, MIB, 0) == text == world.read("log")
        os.close(reader)
        world.mount.check()


def use_at_random(path, size, seed, number, updates):
    """Opens the file again and again, as reader, mapper and writer of 16 bytes that nobody else writes."""
    rng = random.Random(seed * 100 + number)
    for _ in range(200):
        kind = rng.random()
        if kind < 0.15:
            mark = rng.randbytes(16)
            flags = os.O_RDWR if updates and kind < 0.1 else os.O_WRONLY | os.O_CREAT
            with open(os.open(path, flags), "wb", buffering=0) as file:
                os.pwrite(file.fileno(), mark, number * 16)
            with open(path, "rb", buffering=0) as file:
                assert os.pread(file.fileno(), 16, number * 16) == mark
            continue
        with open(path, "rb", buffering=0) as file:
            if kind < 0.2:
                assert len(file.read()) == size
            elif kind < 0.3:
                with mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                    assert len(mapped[size // 2:]) == size // 2
            else:
                assert len(os.pread(file.fileno(), 4096, 4096 * rng.randrange(size // 4096))) == 4096


def each_open_gets_its_bytes_whoever_else_has_the_file(seed):
    """Readers, writers and mappers come and go, so the file changes its node id many times."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        for is_held in (True, False):
            data = world.backed(f"file-{is_held}", 2 * MIB)
            reader = os.open(world.path(f"file-{is_held}"), os.O_RDONLY) if is_held else None
            workers = []
            for number in range(4):
                if (pid := os.fork()) == 0:
                    status = 1
                    try:
                        use_at_random(world.path(f"file-{is_held}"), len(data), seed, number, updates=is_held)
                        status = 0
                    finally:
                        if status:
                            traceback.print_exc()
                        os._exit(status)
                workers.append(pid)
            assert not any([os.waitpid(pid, 0)[1] for pid in workers])
            if is_held:
                assert os.pread(reader, len(data), 0) == world.read("file-True")
                os.close(reader)
        world.mount.check()


def locks_hold_over_both_node_ids(seed):
    with Scratch() as scratch:
        world = World(scratch, seed)
        world.backed("file", 2 * MIB)
        reader = os.open(world.path("file"), os.O_RDONLY)
        fcntl.flock(reader, fcntl.LOCK_SH)
        fcntl.lockf(reader, fcntl.LOCK_SH, 100, 0)
        script = ("import fcntl, os, sys\n"
                  f"fd = os.open({world.path('file')!r}, os.O_RDWR)\n"
                  "def tries(lock, *arguments):\n"
                  "    try:\n"
                  "        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, *arguments)\n"
                  "        return 1\n"
                  "    except BlockingIOError:\n"
                  "        return 0\n"
                  "print(tries(fcntl.flock), tries(fcntl.lockf, 100, 0), tries(fcntl.lockf, 100, 100))\n")
        assert run(sys.executable, "-c", script).split() == ["0", "0", "1"]
        fcntl.flock(reader, fcntl.LOCK_UN)
        fcntl.lockf(reader, fcntl.LOCK_UN, 100, 0)
        assert run(sys.executable, "-c", script).split() == ["1", "1", "1"]
        # Who waits gets it, and a signal ends a wait.
        fcntl.flock(reader, fcntl.LOCK_SH)
        waits = (f"import fcntl, os\nfd = os.open({world.path('file')!r}, os.O_RDWR)\n"
                 "print('asks', flush=True)\nfcntl.flock(fd, fcntl.LOCK_EX)\nprint('has it', flush=True)\n")
        with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, text=True) as killed, \
             subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, text=True) as waiter:
            assert killed.stdout.readline() == waiter.stdout.readline() == "asks\n"
            killed.kill()
            killed.wait(SECONDS)
            fcntl.flock(reader, fcntl.LOCK_UN)
            assert waiter.stdout.readline() == "has it\n"
        os.close(reader)


def a_try_for_a_lock_ends_while_its_holder_runs_commands(seed):
    """Each process that ends with a copy of the descriptor closes it, so the holder seems to be about to let go."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        world.write("lock", 10)
        holder = ("import fcntl, os, subprocess, sys\n"
                  f"fd = os.open({world.path('lock')!r}, os.O_RDWR)\n"
                  "fcntl.flock(fd, fcntl.LOCK_EX)\n"
                  "print('has it', flush=True)\n"
                  "while True:\n"
                  "    subprocess.run(['true'], pass_fds=[fd], check=True)\n")
        tries = ("import fcntl, os, sys\n"
                 f"fd = os.open({world.path('lock')!r}, os.O_RDWR)\n"
                 "try:\n"
                 "    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
                 "except BlockingIOError:\n"
                 "    sys.exit(7)\n")
        with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline() == "has it\n"
                others = [subprocess.Popen([sys.executable, "-c", tries]) for _ in range(8)]
                assert {other.wait(SECONDS) for other in others} == {7}
                assert process.poll() is None, "it ran commands until the last was refused"
            finally:
                process.kill()
        run(sys.executable, "-c", tries)  # its close has let go
        world.mount.check()


def a_mount_of_the_file_alone_reads_on(seed):
    """It leads to the file's own node id without a look-up, so who would have to go by the other one is told ESTALE."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        data = world.backed("file", 2 * MIB)
        bound = scratch.path + "/bound"
        with open(bound, "wb"):
            pass
        run("mount", "--bind", world.path("file"), bound)
        reader = os.open(bound, os.O_RDONLY)
        expect_errno(errno.ESTALE, os.open, bound, os.O_WRONLY)
        with open(world.path("file"), "r+b", buffering=0) as file:
            file.write(b"by the name")
        data = b"by the name" + data[11:]
        assert os.pread(reader, len(data), 0) == data
        with open(bound, "rb") as file:
            assert file.read() == data
        os.close(reader)
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                writer = os.open(bound, os.O_WRONLY)
                break
            except OSError as error:
                assert error.errno == errno.ESTALE and time.monotonic() < deadline, error
                time.sleep(0.02)
        os.pwrite(writer, b"by the mount", 0)
        os.close(writer)
        assert world.read("file")[:12] == b"by the mount"
        run("umount", bound)


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
        for _ in range(3):
            world.read("script")
        assert world.status()["opens_total"] == 1, world.status()


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
        # What nobody uses makes room for others, and for who writes.
        for index in range(2):
            other = world.write(f"file-{index}", 20 * MIB)
            for _ in range(2):
                assert world.read(f"file-{index}") == other
            fills = index + 2
            world.await_status("fills_total", lambda count, fills=fills: count == fills)
            assert world.status()["files"] == 1, world.status()
        for index in range(2):
            world.write(f"large-{index}", 40 * MIB)
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


def without_it_all_is_as_ever(seed):
    """Where it is turned off, or the daemon lacks CAP_SYS_ADMIN: the status says why."""
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",passthrough=false")
        data = random.Random(seed).randbytes(2 * MIB)
        with open(mount.path + "/file", "wb") as file:
            file.write(data)
        for _ in range(3):
            with open(mount.path + "/file", "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                assert file.read() == data
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
        steps = [f"{cairnfs} mount {point} --data {scratch.path}/theirs -o {SMALL}",
                 f"head -c 3M /dev/zero > {point}/file", *[f"cmp -n 3145728 {point}/file /dev/zero"] * 3,
                 f"{cairnfs} status {point}", f"{cairnfs} umount {point}"]
        script = (f"mount --bind {device} /dev/fuse && exec setpriv --reuid {STRANGER} --regid {STRANGER} "
                  f"--clear-groups sh -ec '{' && '.join(steps)}'")
        assert "lacks CAP_SYS_ADMIN" in run("unshare", "-m", "sh", "-ec", script)


def main():
    cases = [
        what_was_read_is_read_past_the_daemon, what_was_committed_is_passed_at_its_first_open, changes_are_seen_at_once,
        a_file_is_emptied_where_others_appear_whole,
        each_open_gets_its_bytes_whoever_else_has_the_file, locks_hold_over_both_node_ids,
        a_try_for_a_lock_ends_while_its_holder_runs_commands, a_mount_of_the_file_alone_reads_on,
        programs_run_and_are_not_written_to, readers_outlive_the_daemon, memory_is_bounded,
        damaged_bytes_are_never_passed, strangers_are_passed_only_where_nobody_can_write, without_it_all_is_as_ever,
    ]
    return run_cases(cases, seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
