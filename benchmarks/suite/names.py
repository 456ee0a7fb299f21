"""The rows about names: small files, the commit, copies, removal, and a small overwrite with fsync."""

import os
import shutil
import time

from machine import GIB, KIB, MIB, Usage, drop_caches, run, settle
from measuring import Row, take_turns
from saving import BLOCK, add_cpu, save_cairn
from subjects import Cairn, PassthroughLl

FORGETTING_S = 50e-6  # of a file: daemons are told of every inode that the kernel forgot, no part of the next step


def small_files_rows(bench):
    count = bench.small_files
    steps = ("create", "stat", "list", "unlink")

    def turn(root):
        directory = root + "/files"
        os.mkdir(directory)
        settle()
        sample = {"create": bench.load("create", directory, count, 4 * KIB, bench.next_seed())["total_s"]}
        for step in steps[1:]:
            drop_caches(2)  # names and inodes: or the kernel would answer alone what the step before asked
            time.sleep(FORGETTING_S * count)
            sample[step] = bench.load(step, directory, count)["total_s"]
        os.rmdir(directory)
        return sample

    with Cairn(bench, "small") as cairn, PassthroughLl(bench, "passthrough") as peer:
        plain = bench.plain_directory("small")
        series = take_turns(bench.rounds, {
            "passthrough_ll": lambda: turn(peer.path),
            "CairnFS": lambda: turn(cairn.path),
            bench.file_system: lambda: turn(plain),
        })
        os.rmdir(plain)
    rows = []
    words = {"create": "create, write 4 KiB, close", "stat": "stat", "list": "readdir", "unlink": "unlink"}
    for step in steps:
        row = Row(f"{count} small files: {words[step]}")
        for who in ("CairnFS", "passthrough_ll", bench.file_system):
            row.figure(who, [count / seconds for seconds in series.get(who, step)], "/s")
        row.ratio("vs passthrough_ll", "CairnFS", "passthrough_ll", at_least=1.0)
        rows.append(row)
    return rows


def commit_rows(bench):
    """The rename of a directory whose data is durable, with one file and with many."""
    many = bench.commit_files
    with Cairn(bench, "commit") as cairn:
        for name, count in (("one", 1), ("many", many)):
            os.mkdir(f"{cairn.path}/{name}")
            bench.load("create", f"{cairn.path}/{name}", count, 16, bench.next_seed())
        cairn.wait()

        def turn(name):
            sample = bench.load("rename", f"{cairn.path}/{name}", f"{cairn.path}/{name}-moved")
            bench.load("rename", f"{cairn.path}/{name}-moved", f"{cairn.path}/{name}")
            return sample

        series = take_turns(max(bench.rounds, 10), {name: lambda name=name: turn(name) for name in ("one", "many")})
    row = Row(f"commit: rename of a directory with 1 and with {many} files, data durable")
    row.figure("1 file", series.get("one", "total_s"), "s")
    row.figure(f"{many} files", series.get("many", "total_s"), "s")
    one, other = (row.figures[name].median for name in ("1 file", f"{many} files"))
    row.check("one median against the other", [max(one / other, other / one)], at_most=2.0)
    row.check("1 file", [1000 * s for s in series.get("one", "total_s")], "ms", at_most=20)
    row.check(f"{many} files", [1000 * s for s in series.get("many", "total_s")], "ms", at_most=20)
    return [row]


def timed(*command):
    begin = time.monotonic()
    run(*command)
    return time.monotonic() - begin


def copy_rows(bench):
    size, files = bench.size, 4
    with Cairn(bench, "copy") as cairn:
        bench.load("fill", bench.next_seed(), 0, size)
        save_cairn(bench, cairn, "step", size // files, files, size // files)
        plain = bench.plain("step")
        bench.load("save", "syncs", plain, files, size // files, size // files, BLOCK)

        def turn(source, pid=None, sync=lambda: None):
            settle()
            if pid is None:
                bench.warm_free_memory()
            with Usage(pid) as usage:
                seconds = timed("cp", "-r", source, source + "-copy")
                sync()
            shutil.rmtree(source + "-copy")
            settle()
            return {"total_s": seconds, "written": usage.written_bytes, "system_s": usage.system_s,
                    **({"daemon_s": usage.daemon_s} if pid else {})}

        series = take_turns(bench.rounds, {
            bench.file_system: lambda: turn(plain),
            "CairnFS": lambda: turn(cairn.path + "/step", cairn.pid, cairn.wait),
        })
    shutil.rmtree(plain)
    row = Row("cp -r of a checkpoint inside the mount")
    for who in ("CairnFS", bench.file_system):
        row.figure(who, series.get(who, "total_s"), "s")
    row.check("bytes written, share of the checkpoint", [100 * b / size for b in series.get("CairnFS", "written")],
              "%", at_most=1.0)
    row.check(f"time, share of {bench.file_system}'s",
              [100 * a / b for a, b in zip(series.get("CairnFS", "total_s"), series.get(bench.file_system, "total_s"))],
              "%", at_most=2.0)
    for who in ("CairnFS", bench.file_system):
        add_cpu(row, series, who, size)
    return [row]


def remove_rows(bench):
    count = bench.small_files

    def turn(root):
        directory = root + "/step"
        os.mkdir(directory)
        bench.load("create", directory, count, 4 * KIB, bench.next_seed())
        settle()
        return {"total_s": timed("rm", "-rf", directory)}

    with Cairn(bench, "remove") as cairn, PassthroughLl(bench, "passthrough-rm") as peer:
        series = take_turns(bench.rounds, {
            "passthrough_ll": lambda: turn(peer.path),
            "CairnFS": lambda: (turn(cairn.path), cairn.wait())[0],
        })
    row = Row(f"rm -rf of a checkpoint of {count} files")
    for who in ("CairnFS", "passthrough_ll"):
        row.figure(who, [count / seconds for seconds in series.get(who, "total_s")], "/s")
    row.ratio("vs passthrough_ll", "CairnFS", "passthrough_ll", at_least=1.0)
    return [row, remove_big_row(bench)]


def write_big(bench, directory, size, commit):
    """One file of `size`, from the buffer again and again with other contents."""
    os.makedirs(directory, exist_ok=True)
    part = min(size, bench.size)
    bench.load("fill", bench.next_seed(), 0, part)
    path = directory + "/part-0"
    if size == part:
        bench.load("save", commit, directory, 1, size, 0, BLOCK)
        return path
    bench.load("append", path, size, part, BLOCK)
    return path


def remove_big_row(bench):
    """Three rounds: what is removed has to be written first, and that takes long."""
    size = bench.big_size
    with Cairn(bench, "remove-big", free_segments_max=2 * size) as cairn:
        def cairn_turn():
            path = write_big(bench, cairn.path + "/step", size, "file-syncs")
            settle()
            sample = {"total_s": timed("rm", "-rf", os.path.dirname(path))}
            cairn.collect()
            return sample

        def plain_turn():
            path = write_big(bench, bench.plain("step"), size, "file-syncs")
            settle()
            return {"total_s": timed("rm", "-rf", os.path.dirname(path))}

        series = take_turns(min(3, bench.rounds), {bench.file_system: plain_turn, "CairnFS": cairn_turn},
                            warm_up=False)
    row = Row(f"rm -rf of one file of {size / GIB:.1f} GiB")
    for who in ("CairnFS", bench.file_system):
        row.figure(who, series.get(who, "total_s"), "s")
    row.ratio(f"vs {bench.file_system}", "CairnFS", bench.file_system, higher_is_better=False, at_least=1.0)
    return row


def overwrite_rows(bench):
    big, small = bench.big_size, 10 * MIB
    with Cairn(bench, "overwrite") as cairn:
        paths = {"big": write_big(bench, cairn.path + "/big", big, "file-syncs"),
                 "small": write_big(bench, cairn.path + "/small", small, "file-syncs")}
        sizes = {"big": big, "small": small}
        cairn.wait()

        def turn(which):
            before = cairn.status()
            with Usage(cairn.pid) as usage:
                sample = bench.load("overwrite", paths[which], sizes[which] // 2 + 12345, 4 * KIB, bench.next_seed())
            new = cairn.status()["new_bytes_total"] - before["new_bytes_total"]
            return {**sample, "beside": (usage.written_bytes - new) / KIB, "chunk": new / KIB}

        series = take_turns(max(bench.rounds, 10), {which: lambda which=which: turn(which) for which in paths})
    row = Row(f"fsync after a 4 KiB overwrite in the middle of {big / GIB:.1f} GiB, vs in 10 MiB")
    row.figure(f"{big / GIB:.1f} GiB", series.get("big", "total_s"), "s")
    row.figure("10 MiB", series.get("small", "total_s"), "s")
    cost = [a / b for a, b in zip(series.get("big", "total_s"), series.get("small", "total_s"))]
    row.check("big over small", cost, at_most=2.0)
    row.check("written beside new chunks", series.get("big", "beside"), "KiB", at_most=256)
    row.check("new chunks", series.get("big", "chunk"), "KiB")
    return [row]
