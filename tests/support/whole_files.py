"""Readers that never see a short or mixed file, while writers rewrite it in place and are killed. As a program:

    whole_files.py write PATH SEED   rewrites the file until it is killed; a line for each close that returned
    whole_files.py read PATH         reads it until its input ends; exits with 1 when it saw what nobody has closed

A file has its number and length, bytes that follow from the number, and their digest.
"""

import errno
import hashlib
import os
import random
import select
import struct
import subprocess
import sys

HEAD = struct.Struct("<8sQQ")
MAGIC = b"whole!!\n"
PIECE = 16 * 1024
# What a call gives on a host whose daemon has just been killed, or when the file was replaced between two steps of it.
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ESTALE, errno.ENOENT, errno.ETIMEDOUT)


def content(number):
    """Its bytes: a few to some hundred KiB."""
    size = random.Random(number).randrange(10, 300 * 1024)
    block = hashlib.sha256(str(number).encode()).digest()
    body = (block * (size // len(block) + 1))[:size]
    head = HEAD.pack(MAGIC, number, size)
    return head + body + hashlib.sha256(head + body).digest()


def number_of(data):
    """The number of the file; None: it is not whole."""
    if len(data) < HEAD.size:
        return None
    _, number, _ = HEAD.unpack(data[:HEAD.size])
    return number if data == content(number) else None


def write(path, seed):
    rng = random.Random(seed)
    while True:
        number = rng.randrange(1 << 40)
        data = content(number)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for start in range(0, len(data), PIECE):
                os.write(descriptor, data[start:start + PIECE])
            os.close(descriptor)
        except OSError as error:
            if error.errno not in GONE:
                raise
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                sys.exit(0)
            continue
        print(number, flush=True)


def read(path):
    seen, numbers = 0, set()
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            if error.errno not in GONE:
                raise
            continue
        number = number_of(data)
        if number is None:
            sys.exit(f"{path}: {len(data)} bytes that nobody has closed: {data[:64]!r}")
        seen += 1
        numbers.add(number)
    print(seen, len(numbers))


class Process:
    def __init__(self, *words):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), *map(str, words)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Writer(Process):
    def __init__(self, path, seed):
        super().__init__("write", path, seed)
        self.closed = 0

    def await_closes(self, count):
        """Until so many closes have returned, or it has ended; whether it goes on."""
        for _ in range(count):
            if not self.process.stdout.readline():
                return False
            self.closed += 1
        return True

    def check(self):
        """After its end: that it did not end by an error."""
        _, said = self.process.communicate()
        assert self.process.returncode == 0, said


class Reader(Process):
    def __init__(self, path):
        super().__init__("read", path)

    def finish(self):
        """How often it has seen the file whole, and how many different ones."""
        output, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        seen, distinct = output.split()
        return int(seen), int(distinct)


def rewrites_with_kills(paths, rng, rewrites, kill_host=None):
    """A writer and a reader on each of the paths of one file, until there were so many rewrites in all. Writers are
    killed at random moments, and hosts by kill_host(index), which also mounts them again. A sentence about it."""
    done = kills = host_kills = seen = distinct = 0
    writers, readers = {}, []
    next_host_kill = rewrites // 3 if kill_host else None
    try:
        readers = [Reader(path) for path in paths]
        while done < rewrites:
            index = rng.randrange(len(paths))
            if index not in writers:
                writers[index] = Writer(paths[index], rng.randrange(1 << 30))
            writer = writers[index]
            goes_on = writer.await_closes(rng.randrange(1, 8))
            done, writer.closed = done + writer.closed, 0
            if not goes_on:
                writer.check()
                del writers[index]
            elif rng.random() < 0.3:
                # In whatever it does by now; which is not the same each time.
                select.select([], [], [], rng.random() * 0.01)
                writers.pop(index).kill()
                kills += 1
            if next_host_kill is not None and done >= next_host_kill:
                next_host_kill += rewrites // 3
                kill_host(rng.randrange(len(paths)))
                host_kills += 1
        for reader in readers:
            one = reader.finish()
            seen, distinct = seen + one[0], distinct + one[1]
    finally:
        for process in [*writers.values(), *readers]:
            if process.process.poll() is None:
                process.kill()
    assert kills > 0 and distinct > 1, (kills, distinct)
    return f"{done} rewrites, {kills} writers and {host_kills} daemons killed, read {seen} times, {distinct} different"


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]))
    else:
        read(sys.argv[2])
