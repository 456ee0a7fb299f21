"""The rows about small fsyncs: a log, a file of its own, a page of a file, a transaction of SQLite, of one writer; and
SQLite in four processes at once."""

import multiprocessing
import os
import sqlite3
import statistics
import time

from machine import KIB, settle
from measuring import Row
from subjects import Cairn

AT_MOST = 1.5  # times what the directory's own file system takes


def random_bytes(size):
    return os.urandom(size)  # no two are alike, or they would be stored already


class Log:
    name = "fsync of a log, 100 bytes appended"

    def __init__(self, directory):
        self.file = os.open(directory + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def step(self, _):
        os.write(self.file, random_bytes(100))
        os.fsync(self.file)

    def close(self):
        os.close(self.file)


class Page:
    name = "fdatasync of a file of 64 KiB, one page overwritten"
    pages = 16

    def __init__(self, directory):
        self.file = os.open(directory + "/pages", os.O_RDWR | os.O_CREAT)
        os.write(self.file, random_bytes(self.pages * 4 * KIB))
        os.fsync(self.file)

    def step(self, number):
        os.pwrite(self.file, random_bytes(4 * KIB), number % self.pages * 4 * KIB)
        os.fdatasync(self.file)

    def close(self):
        os.close(self.file)


class NewFile:
    name = "fsync of a new file of 4 KiB"

    def __init__(self, directory):
        self.directory = directory

    def step(self, number):
        file = os.open(f"{self.directory}/new-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, random_bytes(4 * KIB))
        os.fsync(file)
        os.close(file)

    def close(self):
        pass


class Sqlite:
    journal = ""

    def __init__(self, directory):
        self.base = sqlite3.connect(f"{directory}/{self.journal}.db", isolation_level=None)
        self.base.execute(f"pragma journal_mode={self.journal}")
        self.base.execute("create table t(id integer primary key, text blob)")

    def step(self, _):
        self.base.execute("insert into t(text) values(?)", (random_bytes(100),))

    def close(self):
        self.base.close()


class SqliteWal(Sqlite):
    name, journal = "SQLite, a row inserted, write-ahead log", "wal"


class SqliteDelete(Sqlite):
    name, journal = "SQLite, a row inserted, delete journal", "delete"


def round_of(loads, first, count):
    """The median of each over `count` steps, taken by turns step by step: so a busy moment is everybody's."""
    seconds = {who: [] for who in loads}
    for number in range(first, first + count):
        for who, load in loads.items():
            begin = time.monotonic()
            load.step(number)
            seconds[who].append(time.monotonic() - begin)
    return {who: statistics.median(of_who) for who, of_who in seconds.items()}


PROCESSES = 4


def work(kind, directory, count, ready):
    os.mkdir(directory)
    load = kind(directory)
    ready.wait()
    for number in range(count):
        load.step(number)
    load.close()


def seconds_at_once(kind, directory, count):
    """What the processes take for `count` steps each, every one with a base of its own."""
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(PROCESSES + 1)
    workers = [context.Process(target=work, args=(kind, f"{directory}-{number}", count, ready))
               for number in range(PROCESSES)]
    for worker in workers:
        worker.start()
    ready.wait(timeout=60)
    begin = time.monotonic()
    for worker in workers:
        worker.join()
    assert not any(worker.exitcode for worker in workers), [worker.exitcode for worker in workers]
    return time.monotonic() - begin


def at_once_row(bench, places, kind, count):
    settle()
    row = Row(f"{kind.name}, {PROCESSES} processes")
    rounds = [{who: seconds_at_once(kind, f"{directory}/{kind.journal}-{number}", count)
               for who, directory in places.items()} for number in range(1 + bench.rounds)][1:]
    for who in places:
        row.figure(who, [each[who] for each in rounds], "s")
    row.check(f"times {bench.file_system}'s", [each["CairnFS"] / each[bench.file_system] for each in rounds])
    return row


def small_sync_rows(bench):
    rows, count = [], 50 if bench.quick else 200
    with Cairn(bench, "small-syncs") as cairn:
        places = {"CairnFS": cairn.path, bench.file_system: bench.plain_directory("small-syncs")}
        for kind in (Log, NewFile, Page, SqliteWal, SqliteDelete):
            settle()
            loads = {who: kind(directory) for who, directory in places.items()}
            round_of(loads, 0, count)
            rounds = [round_of(loads, (1 + number) * count, count) for number in range(bench.rounds)]
            for load in loads.values():
                load.close()
            row = Row(kind.name)
            for who in places:
                row.figure(who, [each[who] for each in rounds], "s")
            row.check(f"times {bench.file_system}'s", [each["CairnFS"] / each[bench.file_system] for each in rounds],
                      at_most=AT_MOST)
            rows.append(row)
        rows += [at_once_row(bench, places, kind, count) for kind in (SqliteWal, SqliteDelete)]
    return rows
