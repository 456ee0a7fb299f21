"""The rows about reading back: cold and hot restores, mappings, several readers."""

import filecmp
import functools
import os
import shutil
import time

from frameworks import Framework
from machine import GIB, MIB, Usage, drop_caches, settle
from measuring import Row, take_turns
from saving import BLOCK, add_cpu, save_cairn
from subjects import Cairn, Floor, fio


def save_to_both(bench, cairn, size):
    """One checkpoint on each side, durable; the paths of its file. The files are compared with what was saved."""
    bench.load("fill", bench.next_seed(), 0, size)
    save_cairn(bench, cairn, "step", size)
    plain = bench.plain("step")
    bench.load("save", "syncs", plain, 1, size, 0, BLOCK)
    return f"{cairn.path}/step/part-0", f"{plain}/part-0"


def must_equal(bench, path, size):
    if bench.load("compare", path, 0, size)["equal"] != 1:
        raise AssertionError(f"{path} does not hold what was saved")


def cold(cairn):
    """The daemon is restarted between dropped caches: nothing of the checkpoint is in memory."""
    cairn.remount(between=drop_caches)
    drop_caches(1)


def plain_cold(bench, size, *words):
    """The same of the directory's own file system: what is read comes from the disk, into page cache that is warm."""
    drop_caches()
    bench.warm_free_memory(size)
    with Usage() as usage:
        sample = bench.load(*words)
    return {**sample, "system_s": usage.system_s}


def cold_rows(bench):
    size = bench.size
    with Cairn(bench, "cold") as cairn:
        ours, theirs = save_to_both(bench, cairn, size)

        def cairn_turn():
            cold(cairn)
            with Usage(cairn.pid) as usage:
                sample = bench.load("read", ours, BLOCK)
            return {**sample, "daemon_s": usage.daemon_s, "system_s": usage.system_s}

        def fio_turn():
            drop_caches()
            return {"rate": fio(theirs, size, "read")}

        series = take_turns(bench.rounds, {
            bench.file_system: lambda: plain_cold(bench, size, "read", theirs, BLOCK),
            "CairnFS": cairn_turn,
            "fio": fio_turn,
        }, warm_up=False)
        must_equal(bench, ours, size)
    shutil.rmtree(os.path.dirname(theirs))
    row = Row("restore, cold: read(2)")
    row.figure("CairnFS", series.rates("CairnFS", size), "B/s")
    row.figure(bench.file_system, series.rates(bench.file_system, size), "B/s")
    row.figure("fio, read", series.get("fio", "rate"), "B/s")
    row.ratio(f"vs {bench.file_system} cold", "CairnFS", bench.file_system, at_least=1.5)
    row.ratio("vs fio read", "CairnFS", "fio, read", at_least=0.9)
    for who in ("CairnFS", bench.file_system):
        add_cpu(row, series, who, size)
    return [row]


def hot_row(bench, name, cairn, floor, wide_floor, size):
    def cairn_turn():
        bench.load("fill", bench.next_seed(), 0, size)
        save_cairn(bench, cairn, "step", size)
        with Usage(cairn.pid) as usage:
            sample = bench.load("read", f"{cairn.path}/step/part-0", BLOCK)
        must_equal(bench, f"{cairn.path}/step/part-0", size)
        cairn.remove("step")
        return {**sample, "daemon_s": usage.daemon_s, "system_s": usage.system_s}

    def other_turn(path, pid=None):
        with Usage(pid) as usage:
            sample = bench.load("read", path, BLOCK)
        return {**sample, "system_s": usage.system_s, **({"daemon_s": usage.daemon_s} if pid else {})}

    plain = bench.plain("step")
    bench.load("save", "none", bench.plain_directory("step"), 1, size, 0, BLOCK)
    for each in (floor, wide_floor):
        bench.load("save", "file-syncs", each.path, 1, size, 0, BLOCK)
    series = take_turns(bench.rounds, {
        bench.file_system: lambda: other_turn(plain + "/part-0"),
        "CairnFS": cairn_turn,
        "null": lambda: other_turn(floor.path + "/part-0", floor.pid),
        "wide": lambda: other_turn(wide_floor.path + "/part-0", wide_floor.pid),
    })
    shutil.rmtree(plain)
    row = Row(f"restore, hot: just saved, {name}")
    row.figure("CairnFS", series.rates("CairnFS", size), "B/s")
    row.figure("FUSE from memory, no work", series.rates("null", size), "B/s")
    row.figure("FUSE from as much memory", series.rates("wide", size), "B/s")
    row.figure(f"{bench.file_system}, page cache", series.rates(bench.file_system, size), "B/s")
    row.ratio("vs FUSE from memory", "CairnFS", "FUSE from memory, no work", at_least=0.9)
    row.ratio("vs FUSE from as much memory", "CairnFS", "FUSE from as much memory")
    row.ratio(f"vs {bench.file_system}'s page cache", "CairnFS", f"{bench.file_system}, page cache")
    for who, name in (("CairnFS", None), ("null", "FUSE from memory, no work"), ("wide", "FUSE from as much memory"),
                      (bench.file_system, None)):
        add_cpu(row, series, who, size, name)
    return row


def hot_rows(bench):
    with Cairn(bench, "hot", free_segments_max=2 * bench.size + GIB) as cairn, \
            Floor(bench, "floor-null", buffers=512) as floor, \
            Floor(bench, "floor-wide", 0, "--answer-from-all", buffers=bench.size // MIB) as wide_floor:
        return [hot_row(bench, f"{bench.size // MIB} MiB", cairn, floor, wide_floor, bench.size)]


def save_safetensors(bench, cairn, size):
    """One state dict, written to each side by the safetensors library; the paths of the two files."""
    plain = bench.plain("step")
    with Framework(bench, size) as framework:
        framework.save("safetensors", cairn.path + "/step", "rename")
        framework.save("safetensors", plain, "syncs")
    return cairn.path + "/step/model", plain + "/model"


def mmap_rows(bench):
    """A safetensors file is read through a private mapping; every word of it."""
    processes = 8
    with Cairn(bench, "mmap") as cairn:
        ours, theirs = save_safetensors(bench, cairn, min(bench.size, 2 * GIB))
        size = os.path.getsize(theirs)

        def cairn_turn(count):
            cold(cairn)
            bench.warm_free_memory(size)
            with Usage(cairn.pid) as usage:
                sample = bench.load("map_processes", ours, count)
            return {**sample, "disk_read": usage.read_bytes, "daemon_s": usage.daemon_s, "system_s": usage.system_s}

        series = take_turns(bench.rounds, {
            "plain 1": lambda: plain_cold(bench, size, "map_processes", theirs, 1),
            "CairnFS 1": lambda: cairn_turn(1),
            "plain 8": lambda: plain_cold(bench, size, "map_processes", theirs, processes),
            "CairnFS 8": lambda: cairn_turn(processes),
        }, warm_up=False)
        if not filecmp.cmp(ours, theirs, shallow=False):
            raise AssertionError(f"{ours} and {theirs} were saved from the same tensors and differ")
    shutil.rmtree(os.path.dirname(theirs))
    one = Row(f"mmap load of a safetensors file of {size // MIB} MiB, cold")
    one.figure("CairnFS", series.rates("CairnFS 1", size), "B/s")
    one.figure(bench.file_system, series.rates("plain 1", size), "B/s")
    one.ratio(f"vs {bench.file_system}", "CairnFS", bench.file_system, at_least=1.5)
    many = Row(f"mmap load by {processes} processes at once, cold, total")
    many.figure("CairnFS", series.rates("CairnFS 8", size * processes), "B/s")
    many.figure("CairnFS, one process", series.rates("CairnFS 1", size), "B/s")
    many.figure(bench.file_system, series.rates("plain 8", size * processes), "B/s")
    many.ratio("vs one process", "CairnFS", "CairnFS, one process", at_least=4.0)
    many.check("disk reads over size", [b / size for b in series.get("CairnFS 8", "disk_read")], at_most=1.1)
    for row, count in ((one, 1), (many, processes)):
        add_cpu(row, series, f"CairnFS {count}", size * count, "CairnFS")
        add_cpu(row, series, f"plain {count}", size * count, bench.file_system)
    return [one, many]


def await_passed(cairn):
    """Until the kernel reads the one file of the mount itself."""
    deadline = time.monotonic() + 60
    while cairn.status()["passthrough"]["files"] != 1:
        if time.monotonic() > deadline:
            raise AssertionError(f"what was committed is not read past the daemon: {cairn.status()['passthrough']}")
        time.sleep(0.05)


def commit_and_read_a_byte(cairn):
    """What is committed to the same place after that is passed from its first open on."""
    os.mkdir(f"{cairn.path}/before.tmp")
    with open(f"{cairn.path}/before.tmp/part-0", "wb") as file:
        file.write(b"x")
    os.rename(f"{cairn.path}/before.tmp", f"{cairn.path}/before")
    with open(f"{cairn.path}/before/part-0", "rb") as file:
        file.read()


def passed_rows(bench):
    """What was committed a moment ago, which the kernel reads itself by now, beside the page cache."""
    processes = 8
    with Cairn(bench, "passed", passthrough="true") as cairn:
        status = cairn.status()
        if status["passthrough"]["why_not"]:
            return []
        size = min(bench.size, status["pool_buffers"] // 3 * MIB)
        bench.load("fill", bench.next_seed(), 0, size)
        commit_and_read_a_byte(cairn)
        save_cairn(bench, cairn, "step", size)
        plain = bench.plain_directory("step") + "/part-0"
        bench.load("save", "none", os.path.dirname(plain), 1, size, 0, BLOCK)
        ours = f"{cairn.path}/step/part-0"
        await_passed(cairn)

        def turn(path, *command):
            with Usage(cairn.pid) as usage:
                sample = bench.load(command[0], path, *command[1:])
            return {**sample, "daemon_s": usage.daemon_s, "system_s": usage.system_s}

        ways = {"read(2)": ("read", BLOCK), "mmap 1": ("map_processes", 1), "mmap 8": ("map_processes", processes)}
        series = take_turns(bench.rounds, {
            f"{who} {way}": functools.partial(turn, path, *command)
            for way, command in ways.items() for who, path in ((bench.file_system, plain), ("CairnFS", ours))
        })
        must_equal(bench, ours, size)
    shutil.rmtree(os.path.dirname(plain))
    rows = []
    for way, name, count, at_least in (("read(2)", "read of {} MiB, just committed and passed", 1, 0.9),
                                       ("mmap 1", "mmap load of {} MiB, just committed and passed", 1, 0.9),
                                       ("mmap 8", "the same by 8 processes at once, total", processes, 0.9)):
        row = Row(name.format(size // MIB))
        for who in ("CairnFS", bench.file_system):
            row.figure(f"{who}{'' if who == 'CairnFS' else ', page cache'}",
                       series.rates(f"{who} {way}", size * count), "B/s")
        row.ratio(f"vs {bench.file_system}'s page cache", "CairnFS", f"{bench.file_system}, page cache",
                  at_least=at_least)
        for who in ("CairnFS", bench.file_system):
            add_cpu(row, series, f"{who} {way}", size * count, who)
        rows.append(row)
    return rows


def readers_rows(bench):
    size, processes = bench.size, 4
    with Cairn(bench, "readers") as cairn:
        ours, theirs = save_to_both(bench, cairn, size)

        def cairn_turn():
            cold(cairn)
            with Usage(cairn.pid) as usage:
                sample = bench.load("read_processes", ours, BLOCK, processes)
            return {**sample, "disk_read": usage.read_bytes, "daemon_s": usage.daemon_s, "system_s": usage.system_s}

        series = take_turns(bench.rounds, {
            bench.file_system: lambda: plain_cold(bench, size, "read_processes", theirs, BLOCK, processes),
            "CairnFS": cairn_turn,
        }, warm_up=False)
        must_equal(bench, ours, size)
    shutil.rmtree(os.path.dirname(theirs))
    settle()
    row = Row(f"{processes} processes reading one checkpoint at once, cold, total")
    for who in ("CairnFS", bench.file_system):
        row.figure(who, series.rates(who, size * processes), "B/s")
    row.check("disk reads over size", [b / size for b in series.get("CairnFS", "disk_read")], at_most=1.1)
    row.ratio(f"vs {bench.file_system}", "CairnFS", bench.file_system)
    for who in ("CairnFS", bench.file_system):
        add_cpu(row, series, who, size * processes)
    return [row]
