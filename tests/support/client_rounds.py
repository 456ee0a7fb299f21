"""Rounds of saves with the client library, against plain bytes: random states, random changes, and a base that others
overwrite, cut, replace, move or delete, before the save and while it runs. The file is always right, nothing else is
left, and what was spoiled before is not used.

A Series is one saver with its files in one directory; `elsewhere` is a directory of another file system."""

import collections
import concurrent.futures
import contextlib
import os
import pathlib
import random
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
sys.dont_write_bytecode = True
from gpu_check.library import BLOCK, abi, aligned
from gpu_check.memory import HostMemory

SIZES = (1, 7, 4095, 4096, 100_000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 4096, 3 * BLOCK + 5, 5 * BLOCK)
NAMES = 8  # so many tensors may have been in a state


def overwrite(file, _path, rng):
    size = os.fstat(file).st_size
    os.pwrite(file, rng.randbytes(rng.randrange(1, 5000)), rng.randrange(size) if size else 0)


def cut(file, _path, rng):
    os.ftruncate(file, rng.randrange(max(os.fstat(file).st_size, 1)))


def lengthen(file, _path, rng):
    os.ftruncate(file, os.fstat(file).st_size + rng.randrange(1, 3 * BLOCK))


def overwrite_and_set_the_time_back(file, path, rng):
    found = os.fstat(file)
    overwrite(file, path, rng)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def overwrite_with_the_same(file, _path, rng):
    at = rng.randrange(max(os.fstat(file).st_size, 1))
    os.pwrite(file, os.pread(file, 5000, at), at)


def replace_by_a_copy(_file, path, _rng):
    shutil.copyfile(path, f"{path}.copy")
    shutil.copystat(path, f"{path}.copy")
    os.rename(f"{path}.copy", path)


def replace_by_another(_file, path, rng):
    pathlib.Path(f"{path}.copy").write_bytes(rng.randbytes(rng.randrange(1, 2 * BLOCK)))
    os.rename(f"{path}.copy", path)


def delete(_file, path, _rng):
    os.unlink(path)


def replace_by_a_folder(_file, path, _rng):
    os.unlink(path)
    os.mkdir(path)


def replace_by_a_pipe(_file, path, _rng):
    os.unlink(path)
    os.mkfifo(path)


# The first ones work on the file itself, whatever has its name by then.
ON_THE_FILE = (overwrite, cut, lengthen, overwrite_and_set_the_time_back, overwrite_with_the_same)
ON_THE_NAME = (replace_by_a_copy, replace_by_another, delete, replace_by_a_folder, replace_by_a_pipe)


def clear(path):
    """Makes a name free, whatever has it."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path):
            os.rmdir(path)
        elif not os.path.isfile(path):
            os.unlink(path)


class Series:
    def __init__(self, client, seed, folder, elsewhere):
        self.client, self.seed, self.rng = client, seed, random.Random(seed)
        self.folder, self.elsewhere = pathlib.Path(folder), pathlib.Path(elsewhere)
        self.state = {}
        self.base = None  # the last save that succeeded
        self.alignment = self.rng.choice((1, 64, 4096))
        self.counts = collections.Counter()
        self.options = {"writers": self.rng.choice((0, 1, 5)), "ring_bytes": self.rng.choice((0, 2, 4, 64)) * BLOCK}

    def run(self, rounds):
        """Returns what happened, counted."""
        with self.client.saver(**self.options) as saver:
            for number in range(rounds):
                try:
                    self._round(saver, number)
                except BaseException as error:
                    error.add_note(f"series {self.seed}, round {number}, {self.options}, base {self.base}")
                    raise
        self.counts["rounds"] += rounds
        return self.counts

    def _change(self):
        """Of some tensors some bytes; now and then one of another size, one more, one less, another order."""
        rng = self.rng
        for memory in self.state.values():
            if rng.random() < 0.3:
                at = rng.randrange(memory.bytes)
                memory.fill(at, rng.randbytes(min(memory.bytes - at, rng.choice((1, 1000, BLOCK)))))
        while len(self.state) < 3 or rng.random() < 0.2:
            name = f"t{rng.randrange(NAMES)}"
            self.state[name] = HostMemory(rng.choice(SIZES))
            self.state[name].randomize(rng.randrange(1 << 63))
        if len(self.state) > 3 and rng.random() < 0.15:
            del self.state[rng.choice(list(self.state))]
        if rng.random() < 0.2:
            names = rng.sample(list(self.state), len(self.state))
            self.state = {name: self.state[name] for name in names}
        if rng.random() < 0.1:  # the content of one under the name of another
            one, other = rng.sample(list(self.state), 2)
            self.state[one], self.state[other] = self.state[other], self.state[one]

    def _expected(self):
        content, end = bytearray(), 0
        for memory in self.state.values():
            content += bytes(end - len(content)) + memory.read()
            end = aligned(len(content), self.alignment)
        return bytes(content) + bytes(end - len(content))

    def _choose(self, number):
        """(path to write, base to name, whether that base is what the saver saved last and can be used there: None
        where both answers are right)."""
        rng = self.rng
        folder = self.elsewhere if rng.random() < 0.1 else self.folder
        path, base = folder / f"file-{number % 3}", self.base
        if base is not None and rng.random() < 0.1:
            path = base
        if base is not None and rng.random() < 0.1:
            moved = base.with_name("moved" if base.name != "moved" else "moved again")
            clear(moved)
            os.rename(base, moved)
            self.counts["moved"] += 1
            return path, moved, None  # most file systems set its ctime
        if base is not None and rng.random() < 0.1:
            others = [name for each in (self.folder, self.elsewhere) for name in each.iterdir() if name != base]
            if others:
                return path, rng.choice(others), False
        return path, base, base is not None and base.parent == path.parent

    def _spoil(self, path, base, is_usable):
        """Before the save; whether the base is still good."""
        if not is_usable or self.rng.random() > 0.3:
            return is_usable
        how = self.rng.choice(ON_THE_FILE + (ON_THE_NAME if path != base else ()))
        self.counts[f"before: {how.__name__}"] += 1
        with open(base, "r+b") as file:
            how(file.fileno(), base, self.rng)
        return False

    @contextlib.contextmanager
    def _spoiler(self, path, base, is_usable):
        """A thread that spoils the base at some time of the save, through the file that was the base when it began."""
        if not is_usable or self.rng.random() > 0.3:
            yield
            return
        how = self.rng.choice(ON_THE_FILE + (ON_THE_NAME if path != base else ()))
        self.counts[f"meanwhile: {how.__name__}"] += 1
        rng, delay = random.Random(self.rng.random()), self.rng.random() ** 2 * 0.03
        with open(base, "r+b") as file:
            def spoil():
                time.sleep(delay)
                for _ in range(1 if how in ON_THE_NAME else rng.choice((1, 20))):
                    how(file.fileno(), base, rng)

            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                spoiled = pool.submit(spoil)
                yield
                spoiled.result()

    def _round(self, saver, number):
        self._change()
        path, base, is_usable = self._choose(number)
        clear(path)
        is_good = self._spoil(path, base, is_usable)
        expected = self._expected()
        with self._spoiler(path, base, is_good):
            save = self.client.start(saver, self.state, path, base, self.alignment)
            self.client.wait_source(save)
            self._change()  # the source is free
            result = self.client.wait(save)
        # Where the base is the path, the thread wrote to what had the name before.
        assert path.read_bytes() == expected, f"{path} has wrong bytes: {difference(path, expected)}"
        use = abi.BASE_USES[result.base_use]
        self.counts[f"base {use}"] += 1
        self.counts["MiB reused"] += result.bytes_reused // BLOCK
        if is_good is False:
            assert use != "used" and result.bytes_reused == 0, (use, result.bytes_reused)
            assert (result.base_text != b"") == (base is not None), result.base_text
        elif use != "used":
            assert result.base_text != b"" and result.bytes_reused == 0, use
        left = [name for folder in (self.folder, self.elsewhere) for name in os.listdir(folder) if ".tmp-" in name]
        assert not left, left
        self.base = path


def difference(path, expected):
    found = path.read_bytes()
    if len(found) != len(expected):
        return f"{len(found)} bytes instead of {len(expected)}"
    at = next(i for i in range(len(found)) if found[i] != expected[i])
    return f"the first wrong byte is {at}"


def run_series(client, seed, folder, elsewhere, rounds, rounds_of_series=50):
    """So many rounds, each series in folders of its own; what happened, counted."""
    counts = collections.Counter()
    for number in range(-(-rounds // rounds_of_series)):
        folders = [os.path.join(parent, f"series-{number}") for parent in (folder, elsewhere)]
        for each in folders:
            os.mkdir(each)
        series = Series(client, f"{seed} {number}", *folders)
        counts += series.run(min(rounds_of_series, rounds - number * rounds_of_series))
        for each in folders:
            shutil.rmtree(each)
    return counts


def text_of(counts):
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
