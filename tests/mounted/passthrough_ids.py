#!/usr/bin/env python3
"""Files that the kernel reads itself have two node ids (FUSE passthrough): who opens, cuts and locks them by which, and
that nobody can tell. Run as root, on Linux 6.9 or newer; elsewhere the cases are skipped."""

import errno
import fcntl
import mmap
import os
import random
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from passthrough import MIB, SECONDS, STRANGER, World, as_stranger
from cairnfs_mount import Scratch, run, run_cases, seed_from_arguments
from refusals import expect_errno


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


def in_parallel(calls):
    """Each in a process of its own."""
    workers = []
    for function, *arguments in calls:
        if (pid := os.fork()) == 0:
            status = 1
            try:
                function(*arguments)
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                os._exit(status)
        workers.append(pid)
    assert not any([os.waitpid(pid, 0)[1] for pid in workers])


def each_open_gets_its_bytes_whoever_else_has_the_file(seed):
    """Readers, writers and mappers come and go, so the file changes its node id many times."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        for is_held in (True, False):
            data = world.backed(f"file-{is_held}", 2 * MIB)
            reader = os.open(world.path(f"file-{is_held}"), os.O_RDONLY) if is_held else None
            in_parallel([(use_at_random, world.path(f"file-{is_held}"), len(data), seed, number, is_held)
                         for number in range(4)])
            if is_held:
                assert os.pread(reader, len(data), 0) == world.read("file-True")
                os.close(reader)
        world.mount.check()


def a_file_is_cut_where_it_is_written(seed):
    """By another name of it, which leads to the node id of those who read: the one who appends goes on at the end."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        world.backed("file", 2 * MIB)
        os.link(world.path("file"), world.path("second"))
        reader = os.open(world.path("second"), os.O_RDONLY)
        writer = os.open(world.path("file"), os.O_WRONLY | os.O_APPEND)
        os.write(writer, b"appended")
        os.truncate(world.path("second"), 10)
        os.write(writer, b"more")
        assert os.fstat(writer).st_size == os.fstat(reader).st_size == 14
        assert os.pread(reader, MIB, 0)[10:] == b"more"
        os.truncate(world.path("file"), 3 * MIB)
        os.write(writer, b"end")
        assert os.pread(reader, 4 * MIB, 0)[10:] == b"more" + bytes(3 * MIB - 14) + b"end"
        os.close(reader)
        os.truncate(world.path("second"), 1)
        os.write(writer, b"!")
        os.close(writer)
        assert world.read("file")[1:] == b"!"
        world.mount.check()


def append_at_random(paths, seed, number):
    rng = random.Random(seed * 100 + number)
    for index in range(100):
        with open(os.open(rng.choice(paths), os.O_WRONLY | os.O_APPEND), "wb", buffering=0) as file:
            assert file.write(b"%3d %8d\n" % (number, index)) == 13


def read_at_random(paths, seed, number):
    if number % 2:
        os.setgroups([])
        os.setresgid(STRANGER, STRANGER, STRANGER)
        os.setresuid(STRANGER, STRANGER, STRANGER)
    rng = random.Random(seed * 100 + number)
    for _ in range(100):
        with open(rng.choice(paths), "rb", buffering=0) as file:
            assert len(file.read()) >= 2 * MIB
            with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                assert len(mapped[-MIB:]) == MIB


def appends_by_two_names_are_all_there(seed):
    """Among readers who come and go, strangers too."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        data = world.backed("file", 2 * MIB)
        os.chmod(world.path("file"), 0o644)
        os.link(world.path("file"), world.path("second"))
        paths = [world.path("file"), world.path("second")]
        in_parallel([(append_at_random, paths, seed, number) for number in range(2)] +
                    [(read_at_random, paths, seed, number) for number in range(2, 5)])
        text = world.read("file")
        assert text[:len(data)] == data
        marks = [b"%3d %8d" % (number, index) for number in range(2) for index in range(100)]
        assert sorted(text[len(data):].splitlines()) == sorted(marks)
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
    """It leads to the file's own node id without a look-up, so who writes is told ESTALE while readers are passed."""
    with Scratch() as scratch:
        world = World(scratch, seed)
        data = world.backed("file", 2 * MIB)
        bound = scratch.path + "/bound"
        with open(bound, "wb"):
            pass
        run("mount", "--bind", world.path("file"), bound)
        reader = os.open(bound, os.O_RDONLY)
        os.chmod(world.path("file"), 0o644)
        assert as_stranger("cat", bound).stdout == data
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


def main():
    cases = [
        each_open_gets_its_bytes_whoever_else_has_the_file, a_file_is_cut_where_it_is_written,
        appends_by_two_names_are_all_there, a_file_is_emptied_where_others_appear_whole, locks_hold_over_both_node_ids,
        a_try_for_a_lock_ends_while_its_holder_runs_commands, a_mount_of_the_file_alone_reads_on,
    ]
    return run_cases(cases, seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
