"""The rows: what is done on each system, by turns, and how CairnFS is held against the better peer."""

import os
import subprocess
import threading
import time

from machine import MIB, CannotRun, drop_caches, settle, wait_until
from measuring import Row, Series
from subjects import Load, fio
from systems import FIRST, HOSTS, READER, WRITER

BLOCK = 8 * MIB
FILES = 4  # of a checkpoint, written at the same time
THREADS = 16
ANSWER_SECONDS_MAX = 300
DISK = "disk (fio)"
PROBLEMS = (CannotRun, AssertionError, OSError, LookupError, ValueError, subprocess.SubprocessError)
# The project's goals, as times the better peer.
DATA_GOALS = {"save": 2.6, "restore": 3, "resave": 10, "clients": 2.5}
NAME_GOALS = {"etcd": {"create": 0.6, "stat": 1, "unlink": 0.5}, "node": {"create": 2, "stat": 1, "unlink": 1}}
THREADS_GOAL = 8  # of so many threads over one, with etcd


class TimedLoad(Load):
    """A load generator that is ended when it does not answer, since a filesystem may hang, and made anew when it has
    ended. `size`: of the buffer that saves are made from."""

    def __init__(self, comparison, size):
        self.comparison, self.size = comparison, size
        self._start()

    def _start(self):
        super().__init__(self.comparison)
        super().__call__("buffer", self.size)

    def __call__(self, *words):
        if self.process.poll() is not None:
            self._start()
        timer = threading.Timer(ANSWER_SECONDS_MAX, self.process.kill)
        timer.start()
        begin = time.monotonic()
        try:
            return super().__call__(*words)
        except CannotRun:
            if time.monotonic() - begin >= ANSWER_SECONDS_MAX:
                raise CannotRun(f"{words[0]}: not done after {ANSWER_SECONDS_MAX} s") from None
            raise
        finally:
            timer.cancel()

    def written_bytes(self):
        """What it has given to write(2) so far."""
        with open(f"/proc/{self.process.pid}/io", encoding="ascii") as file:
            return int(dict(line.strip().split(": ") for line in file)["wchar"])


class Turns:
    """The samples of a row. Each round runs every participant once, and begins with another one. Who fails once is left
    out of the rest of the row."""

    def __init__(self, rounds, participants, before_round=lambda: None):
        self.series, self.failures = Series(), {}
        names = list(participants)
        for number in range(rounds):
            before_round()
            first = number % max(1, len(names))
            for who in names[first:] + names[:first]:
                if who in self.failures:
                    continue
                try:
                    self.series.add(who, participants[who]())
                except PROBLEMS as error:
                    self.failures[who] = f"{type(error).__name__}: {error}"

    def row(self, comparison, measure, key, unit, value, higher_is_better=True, goals=None):
        """`value` makes the figure of a sample's `key`. `goals` by the place of CairnFS' names."""
        row = Row(measure)
        for (who, name), samples in self.series.values.items():
            if name == key:
                row.figure(who, [value(sample) for sample in samples], unit)
        row.notes += [f"{who}: FAILED: {why}" for who, why in self.failures.items()]
        row.failed = set(self.failures)
        peers = [system.name for system in comparison.peers if system.name in row.figures]
        if not peers:
            return row
        best = (max if higher_is_better else min)(peers, key=lambda who: row.figures[who].median)
        for system in comparison.ours:
            if system.name in row.figures:
                row.ratio(f"{system.name}, times {best}", system.name, best, higher_is_better,
                          at_least=(goals or {}).get(system.metadata))
        return row


def participants(comparison, act):
    return {system.name: lambda system=system: act(system) for system in comparison.ours + comparison.peers}


def fill(comparison):
    comparison.load("fill", comparison.next_seed(), 0, comparison.size)


def save(comparison, system, name, host=WRITER, load=None):
    """Written by FILES threads, fsync of each file, rename of the directory, fsync of its parent."""
    load = load or comparison.load
    comparison.warm_free_memory(2 * comparison.size)
    settle()
    part = load.size // FILES
    return load("save", "syncs", system.path(host, name), FILES, part, part, BLOCK)


def warm_up(comparison, system):
    """A first save, in which files, segments and caches come into being; it is not counted."""
    fill(comparison)
    save(comparison, system, "first")
    system.remove("first")


def must_equal(comparison, system, host, name):
    part = comparison.size // FILES
    for index in range(FILES):
        path = system.path(host, name, f"part-{index}")
        if comparison.load("compare", path, index * part, part)["equal"] != 1:
            raise CannotRun(f"{path} is not what was saved")


def both(goal):
    return {"etcd": goal, "node": goal}


def rate_row(comparison, turns, measure, goal):
    return turns.row(comparison, measure, "total_s", "B/s", lambda seconds: comparison.size / seconds,
                     goals=both(DATA_GOALS[goal]))


def save_rows(comparison):
    size = comparison.size

    def turn(system):
        sample = save(comparison, system, "step")
        system.remove("step")
        return sample

    def disk_turn():
        path = comparison.scratch.path + "/disk"
        comparison.warm_free_memory(size)
        rate = fio(path, size, "fallocated")
        os.unlink(path)
        return {"total_s": size / rate}

    turns = Turns(comparison.rounds, {**participants(comparison, turn), DISK: disk_turn}, lambda: fill(comparison))
    row = rate_row(comparison, turns, f"durable save of {size // MIB} MiB", "save")
    if DISK in row.figures:
        for system in comparison.ours + comparison.peers:
            if system.name in row.figures:
                row.check(f"{system.name}: share of the disk's rate, which takes two copies",
                          [200 * rate / row.figures[DISK].median for rate in row.figures[system.name].samples], "%")
    return [row]


def resave_rows(comparison):
    def turn(system):
        save(comparison, system, "step")
        sample = save(comparison, system, "again")
        system.remove("step", "again")
        return sample

    turns = Turns(comparison.rounds, participants(comparison, turn), lambda: fill(comparison))
    return [rate_row(comparison, turns, "save of the same content again", "resave")]


def restore_rows(comparison):
    def turn(system):
        save(comparison, system, "step")
        system.make_cold()
        comparison.warm_free_memory(2 * comparison.size)
        seconds = sum(comparison.load("read", system.path(READER, "step", f"part-{index}"), BLOCK)["total_s"]
                      for index in range(FILES))
        must_equal(comparison, system, READER, "step")
        system.remove("step")
        return {"total_s": seconds}

    turns = Turns(comparison.rounds, participants(comparison, turn), lambda: fill(comparison))
    return [rate_row(comparison, turns, "restore on another host, cold", "restore")]


def clients_rows(comparison):
    """Each host saves a third of the size, of data that no other has."""
    part = comparison.size // HOSTS // (FILES * MIB) * (FILES * MIB)
    loads = [TimedLoad(comparison, part) for _ in range(HOSTS)]

    def before_round():
        for load in loads:
            load("fill", comparison.next_seed(), 0, part)

    def turn(system):
        samples, problems = [], []

        def one(index):
            try:
                samples.append(save(comparison, system, f"rank-{index}", index, loads[index]))
            except PROBLEMS as error:
                problems.append(error)
        comparison.warm_free_memory(2 * comparison.size)
        settle()
        threads = [threading.Thread(target=one, args=(index,)) for index in range(HOSTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        system.remove(*(f"rank-{index}" for index in range(HOSTS)))
        return {"total_s": max(sample["total_s"] for sample in samples)}

    try:
        turns = Turns(comparison.rounds, participants(comparison, turn), before_round)
    finally:
        for load in loads:
            load.process.kill()
    return [turns.row(comparison, f"three hosts save {part // MIB} MiB each at once", "total_s", "B/s",
                      lambda seconds: HOSTS * part / seconds, goals=both(DATA_GOALS["clients"]))]


def names_rows(comparison):
    """Empty files in a directory that another host has made. The kernel's names and inodes are dropped before each
    step, or it would answer alone."""
    count = comparison.files
    number = iter(range(1_000_000))

    def turn(system, threads):
        name = f"names-{next(number)}"
        os.mkdir(system.path(FIRST, name))
        directory = system.path(WRITER, name)
        steps = {"create": ["create", directory, count, 0, 0, threads], "stat": ["stat", directory, count, threads],
                 "unlink": ["unlink", directory, count, threads]}
        sample = {}
        for step, words in steps.items():
            drop_caches(2)
            before = system.round_trips()
            sample[step] = comparison.load(*words)["total_s"]
            if before is not None:
                sample[step + " trips"] = (system.round_trips() - before) / count
        os.rmdir(directory)
        return sample

    rows, ones = [], None
    for threads in (1, THREADS):
        turns = Turns(comparison.rounds,
                      participants(comparison, lambda system, threads=threads: turn(system, threads)))
        for step in ("create", "stat", "unlink"):
            text = f"{step}, {count} files, {threads} thread{'s' if threads > 1 else ''}"
            row = turns.row(comparison, text, step, "/s", lambda seconds: count / seconds,
                            goals={place: goals[step] for place, goals in NAME_GOALS.items()} if threads == 1 else None)
            for system in comparison.ours:
                if (system.name, step + " trips") in turns.series.values:
                    row.check(f"{system.name}: round trips each", turns.series.get(system.name, step + " trips"))
                if ones is not None and system.name in row.figures and (system.name, step) in ones.series.values:
                    row.check(f"{system.name}, times one thread",
                              [a / b for a, b in zip(ones.series.get(system.name, step),
                                                     turns.series.get(system.name, step))],
                              at_least=THREADS_GOAL if system.metadata == "etcd" else None)
            rows.append(row)
        ones = turns
    return rows


class Loss:
    """Takes a host away, on another thread, once so many bytes have been written."""

    def __init__(self, load, system, after_bytes):
        self.load, self.system = load, system
        self.target = load.written_bytes() + after_bytes
        self.at, self.problem = None, None
        self.thread = threading.Thread(target=self._lose, daemon=True)
        self.thread.start()

    def _lose(self):
        try:
            wait_until(lambda: self.load.written_bytes() >= self.target, "the save is on its way")
            self.at = time.monotonic()
            self.system.lose(READER)
        except PROBLEMS as error:
            self.problem = error

    def join(self):
        self.thread.join()
        if self.problem is not None:
            raise self.problem


def lost_rows(comparison):
    """Each turn has hosts of its own."""
    def turn(make):
        with make() as system:
            save(comparison, system, "before")
            fill(comparison)
            comparison.warm_free_memory(2 * comparison.size)
            settle()
            loss = Loss(comparison.load, system, comparison.size // 4)
            sample, problem = {}, None
            try:
                part = comparison.size // FILES
                sample = comparison.load("save", "syncs", system.path(WRITER, "step"), FILES, part, part, BLOCK)
            except CannotRun as error:
                problem = error
            end = time.monotonic()
            loss.join()
            if loss.at > end:
                raise CannotRun("the save was over before the host was gone")
            if problem is not None:
                return {"succeeded": 0, "why": str(problem)}
            must_equal(comparison, system, FIRST, "step")
            longest = max(sample[call] for call in ("slowest_write_s", "sync_s", "close_s", "commit_s"))
            return {"succeeded": 1, "total_s": sample["total_s"], "longest_s": longest}

    turns = Turns(min(comparison.rounds, 3), {name: lambda make=make: turn(make)
                                              for name, make in comparison.makers().items()})
    what = "a host is lost in the middle of a save"
    rows = [turns.row(comparison, f"{what}: seconds of the save", "total_s", "s", float, higher_is_better=False),
            turns.row(comparison, f"{what}: longest call", "longest_s", "s", float, higher_is_better=False)]
    for (who, key), values in turns.series.values.items():
        if key == "succeeded":
            rows[0].notes.append(f"{who}: {sum(values)} of {len(values)} saves succeeded")
        elif key == "why":
            rows[0].notes += [f"{who}: {why}" for why in values]
    return rows


# Name: what measures its rows. The last one starts systems of its own; the others share theirs.
EXPERIMENTS = {"save": save_rows, "resave": resave_rows, "restore": restore_rows, "clients": clients_rows,
               "names": names_rows}
LOST = "lost"
