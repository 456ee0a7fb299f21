"""The rows about saving: stall, durable into new and recycled segments, unchanged, partly changed, more writers."""

import shutil
import time

from machine import GIB, MIB, CannotRun, Usage, process_memory, settle
from measuring import Row, take_turns
from profiling import record
from subjects import Cairn, Floor, fio

BLOCK = 8 * MIB


def save_cairn(bench, cairn, name, size, files=1, stride=0):
    settle()
    with Usage(cairn.pid) as usage:
        sample = bench.load("save", "rename", f"{cairn.path}/{name}", files, size, stride, BLOCK)
    return {**sample, "daemon_s": usage.daemon_s, "system_s": usage.system_s, "written": usage.written_bytes}


def save_plain(bench, name, size, files=1, stride=0):
    """Saves into the directory's own file system, durable in the same sense, and removes it again."""
    path = bench.plain(name)
    settle()
    bench.warm_free_memory(size * files)
    with Usage() as usage:
        sample = bench.load("save", "syncs", path, files, size, stride, BLOCK)
    shutil.rmtree(path)
    settle()
    return {**sample, "system_s": usage.system_s}


def save_floor(bench, floor, size):
    floor.restart()
    with Usage(floor.pid) as usage:
        sample = bench.load("save", "file-syncs", floor.path, 1, size, 0, BLOCK)
    return {**sample, "daemon_s": usage.daemon_s, "system_s": usage.system_s}


def add_cpu(row, series, who, size, name=None):
    """CPU time per GiB of what a participant did, under its name in the row."""
    for key, whose in (("daemon_s", "daemon"), ("system_s", "system")):
        if (who, key) in series.values:
            row.figure(f"CPU of {name or who}: {whose}", [s * GIB / size for s in series.get(who, key)], "s/GiB")


def durable_row(bench, series, measure, size, mode, goal):
    row = Row(measure)
    for who in ("CairnFS", bench.file_system, "prototype"):
        row.figure(who, series.rates(who, size), "B/s")
    row.figure(f"fio, {mode}", series.get("fio", "rate"), "B/s")
    row.ratio(f"vs {bench.file_system}", "CairnFS", bench.file_system, at_least=goal)
    row.ratio("vs prototype", "CairnFS", "prototype", at_least=0.9)
    row.ratio(f"vs fio, {mode}", "CairnFS", f"fio, {mode}", at_least=0.9)
    row.figure("CairnFS, rename alone", series.get("CairnFS", "commit_s"), "s")
    for who in ("CairnFS", bench.file_system, "prototype"):
        add_cpu(row, series, who, size)
    return row


def stall_row(bench, series, measure, size):
    row = Row(measure)
    for who in ("CairnFS", bench.file_system, "prototype"):
        row.figure(who, series.rates(who, size, "write_s"), "B/s")
    row.ratio(f"vs {bench.file_system} buffered", "CairnFS", bench.file_system, at_least=1.5)
    row.ratio("vs prototype", "CairnFS", "prototype", at_least=0.95)
    row.figure("CairnFS, slowest write", series.get("CairnFS", "slowest_write_s"), "s")
    row.figure(f"{bench.file_system}, slowest write", series.get(bench.file_system, "slowest_write_s"), "s")
    return row


def save_rows(bench, kind):
    """New data every round; `kind` says into which segments."""
    size = bench.size
    recycled = kind == "recycled"
    mode = "written before" if recycled else "fallocated"
    kept = 2 * size + GIB if recycled else MIB
    flags = ["--hash"] + ([] if recycled else ["--fresh"])
    fio_file = bench.plain("fio")
    with Cairn(bench, kind, free_segments_max=kept) as cairn, Floor(bench, "floor-" + kind, size, *flags) as floor:
        free_before = []

        def cairn_turn():
            free_before.append(cairn.status()["free_segment_bytes"])
            sample = save_cairn(bench, cairn, "step", size)
            cairn.remove("step")
            return sample

        series = take_turns(bench.rounds, {
            bench.file_system: lambda: save_plain(bench, "step", size),
            "CairnFS": cairn_turn,
            "prototype": lambda: save_floor(bench, floor, size),
            "fio": lambda: {"rate": fio(fio_file, size, mode)},
        }, before_round=lambda number: bench.load("fill", bench.next_seed(), 0, size))
        bench.forget(fio_file)
    rows = []
    if not recycled:
        rows.append(stall_row(bench, series, "stall: time in write(2)", size))
    text = "recycled" if recycled else "new"
    row = durable_row(bench, series, f"durable: save and rename, into {text} segments", size, mode,
                      2.0 if recycled else 1.75)
    row.notes.append(f"free segments kept before each counted save: {min(free_before[1:]) / MIB:.0f} MiB or more"
                     if recycled else f"free segments before each save: {max(free_before) / MIB:.0f} MiB at most")
    return rows + [row]


def new_rows(bench):
    return save_rows(bench, "new")


def recycled_rows(bench):
    return save_rows(bench, "recycled")


def first_save_rows(bench):
    """The first save after a mount: into a pool that takes memory as it is used, and into one that has it."""
    size = bench.size // 2
    ways = {"as it is used": "false", "before": "true"}

    def first_save(way):
        cairn = Cairn(bench, "first-save", touch_pool=ways[way], free_segments_max=MIB)
        time.sleep(3)  # hosts of virtual machines take back what is free within two seconds
        with cairn:
            idle = process_memory(cairn.pid, "VmRSS")
            sample = save_cairn(bench, cairn, "step", size)
            return {**sample, "idle": idle, "after": process_memory(cairn.pid, "VmRSS")}

    series = take_turns(bench.rounds, {way: lambda way=way: first_save(way) for way in ways},
                        before_round=lambda number: bench.load("fill", bench.next_seed(), 0, size))
    rows = []
    for measure, key in (("time in write(2)", "write_s"), ("save and rename", "total_s")):
        row = Row(f"first save after a mount, {size // MIB} MiB: {measure}")
        for way in ways:
            row.figure(f"memory taken {way}", series.rates(way, size, key), "B/s")
        row.ratio("as used vs before", "memory taken as it is used", "memory taken before")
        rows.append(row)
    row = Row("memory of a daemon that was not used yet")
    for way in ways:
        row.figure(f"memory taken {way}", [one / MIB for one in series.get(way, "idle")], "MiB")
        row.figure(f"memory taken {way}, after its first save", [one / MIB for one in series.get(way, "after")], "MiB")
    return rows + [row]


def unchanged_rows(bench):
    """All known; a tenth of the tensors changed; and all new, from which the two predict the cost of the tenth."""
    size = bench.size
    tensor = max(4 * MIB, size // 256)
    base = bench.next_seed()
    changed_bytes = []

    def fill(*changes):
        return bench.load("tensors", base, 0, size, tensor, *changes)["changed_bytes"]

    with Cairn(bench, "known", free_segments_max=2 * size + GIB) as cairn, \
            Floor(bench, "floor-known", size, "--hash", "--drop-known") as floor:
        fill()
        save_cairn(bench, cairn, "base", size)

        def counted_save():
            before = cairn.status()["new_bytes_total"]
            sample = save_cairn(bench, cairn, "step", size)
            sample["new_bytes"] = cairn.status()["new_bytes_total"] - before
            cairn.remove("step")
            return sample

        def changed():
            changed_bytes.append(fill(10, bench.next_seed()))
            sample = counted_save()
            fill()
            return sample

        def anew():
            bench.load("fill", bench.next_seed(), 0, size)
            sample = counted_save()
            fill()
            return sample

        series = take_turns(bench.rounds, {
            bench.file_system: lambda: save_plain(bench, "step", size),
            "known": counted_save,
            "prototype": lambda: save_floor(bench, floor, size),
            "changed": changed,
            "new": anew,
        })
    row = Row("unchanged save, durable")
    row.figure("CairnFS", series.rates("known", size), "B/s")
    for who in (bench.file_system, "prototype"):
        row.figure(who, series.rates(who, size), "B/s")
    row.ratio(f"vs {bench.file_system} durable", "CairnFS", bench.file_system, at_least=2.5)
    row.ratio("vs prototype", "CairnFS", "prototype", at_least=0.9)
    row.check("bytes on disk, share of the checkpoint", [100 * b / size for b in series.get("known", "written")], "%",
              at_most=1.0)
    add_cpu(row, series, "known", size, "CairnFS")
    for who in (bench.file_system, "prototype"):
        add_cpu(row, series, who, size)

    share = changed_bytes[0] / size
    mixed = Row(f"save with {100 * share:.0f} % of the tensors changed")
    predicted = [share * new + (1 - share) * known
                 for new, known in zip(series.get("new", "total_s"), series.get("known", "total_s"))]
    mixed.figure("CairnFS", series.get("changed", "total_s"), "s")
    mixed.figure("predicted from all new and all known", predicted, "s")
    cost = [a / b for a, b in zip(mixed.figures["CairnFS"].samples, predicted)]
    mixed.check("cost over prediction", cost, at_most=1.15)
    mixed.check("new bytes over changed bytes", [b / changed_bytes[0] for b in series.get("changed", "new_bytes")])
    add_cpu(mixed, series, "changed", size, "CairnFS")
    return [row, mixed]


def writers_rows(bench):
    """The same bytes in 1, 2, 4 and 8 files at once."""
    size = bench.size
    row = Row("more writers: files at once, durable")
    counts = (1, 2, 4, 8)

    with Cairn(bench, "writers", free_segments_max=2 * size + GIB) as cairn:

        def turn(count):
            bench.load("fill", bench.next_seed(), 0, size)
            sample = save_cairn(bench, cairn, "step", size // count, count, size // count)
            cairn.remove("step")
            return sample

        series = take_turns(bench.rounds, {str(count): lambda count=count: turn(count) for count in counts})
        try:
            profile = record(bench, cairn.pid, lambda: turn(counts[-1]))
            row.check(f"daemon's CPU time in locks, waking and switching, {counts[-1]} at once", [profile.locks()], "%")
        except CannotRun as reason:
            row.notes.append(f"no profile of locks: {reason}")
    for count in counts:
        row.figure(f"{count} at once", series.rates(str(count), size), "B/s")
    for count in counts[1:]:
        row.ratio(f"{count} vs 1", f"{count} at once", "1 at once", at_least=0.95)
    for count in counts:
        add_cpu(row, series, str(count), size, f"CairnFS, {count} at once")
    row.notes.append("a bound of 0.95 allows for the spread of rounds")
    return [row]
