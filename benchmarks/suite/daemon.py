"""The rows about the daemon itself: start, memory, where its CPU time goes, and the inner parts."""

import json
import os
import random
import shutil
import subprocess

from machine import GIB, KIB, MIB, CannotRun, drop_caches, process_memory, run, settle
from measuring import Row, take_turns
from profiling import record
from saving import BLOCK, save_cairn
from subjects import Cairn


def start_rows(bench):
    """A data directory with a terabyte's index is made; what is timed is `cairnfs mount` until it returns, cold."""
    chunks = bench.index_chunks
    cairn = Cairn(bench, "start")
    run(bench.program("benchmarks/index/bench_make_index"), cairn.data, "--chunks", chunks, "--chunk-bytes", 512 * KIB)

    def turn():
        drop_caches()
        seconds = cairn.mount()
        names = len(os.listdir(cairn.path))
        cairn.umount()
        return {"total_s": seconds, "names": names}

    drop_caches()
    first = cairn.mount()
    cairn.warm()  # so that its memory is counted
    cairn.umount()
    series = take_turns(bench.rounds, {"CairnFS": turn}, warm_up=False)
    shutil.rmtree(cairn.data)
    row = Row(f"start: mount ready, index of {chunks} chunks, {chunks * 512 * KIB / GIB:.0f} GiB, caches dropped")
    row.figure("CairnFS", series.get("CairnFS", "total_s"), "s")
    row.figure("CairnFS, first start after the index was made", [first], "s")
    row.check("mount ready", series.get("CairnFS", "total_s"), "s", at_most=2.0)
    return [row]


def write_scattered(path, size, count, seed):
    """Small pieces at random places of one sparse file: each has an extent of its own, until pieces are merged."""
    choice = random.Random(seed)
    piece = choice.randbytes(30)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)
        for _ in range(count):
            os.pwrite(descriptor, piece, choice.randrange(size - len(piece)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def memory_rows(bench):
    """The most that a daemon had in memory while it did the heaviest things that there are, one after the other."""
    size = bench.size
    row = Row("memory of the daemon at its peak")
    with Cairn(bench, "memory") as cairn:
        for files in (8, 1):
            bench.load("fill", bench.next_seed(), 0, size)
            save_cairn(bench, cairn, f"step-{files}", size // files, files, size // files)
        os.mkdir(cairn.path + "/small")
        bench.load("create", cairn.path + "/small", bench.small_files, 4 * KIB, bench.next_seed())
        write_scattered(cairn.path + "/scattered", size, 30 * bench.small_files, bench.next_seed())
        for path in (cairn.path + "/step-1/part-0", cairn.path + "/scattered"):
            bench.load("read_processes", path, BLOCK, 4)
        bench.load("map_processes", cairn.path + "/step-1/part-0", 8)
        shutil.rmtree(cairn.path + "/step-8")
        cairn.collect()
        bench.note_memory(cairn)
        peak = process_memory(cairn.pid)
        chunks = cairn.status()["chunk_count"]
    allowed = bench.pool_bytes + 256 * MIB + 64 * chunks
    row.figure("peak of this row", [peak], "B")
    row.check("this row, beside the pool", [(peak - bench.pool_bytes) / MIB], "MiB",
              at_most=(allowed - bench.pool_bytes) / MIB)
    worst = max(bench.memory_seen, key=lambda seen: seen["beside_pool"] - seen["allowed"])
    row.check(f"any row so far ({worst['name']}), beside the pool", [worst["beside_pool"] / MIB], "MiB",
              at_most=worst["allowed"] / MIB)
    return [row]


def cpu_rows(bench):
    """CPU time of the daemon, whole and by the steps of the data path."""
    return [cpu_row(bench, known) for known in (False, True)]


def cpu_row(bench, known):
    size, rounds = bench.size, bench.rounds
    row = Row(f"CPU of the daemon per GiB saved, {'known' if known else 'new'} data")
    samples, profiles = [], []
    with Cairn(bench, "cpu", free_segments_max=2 * size + GIB) as cairn:

        def save():
            sample = save_cairn(bench, cairn, "step", size)
            samples.append(sample)
            return sample

        bench.load("fill", bench.next_seed(), 0, size)
        save_cairn(bench, cairn, "base", size)
        for number in range(rounds + 1):
            if not known:
                bench.load("fill", bench.next_seed(), 0, size)
            if number < rounds:
                save()
            else:  # sampling costs a little: this one is not counted
                try:
                    profiles.append(record(bench, cairn.pid, lambda: save_cairn(bench, cairn, "step", size)))
                except CannotRun as reason:
                    row.notes.append(f"no profile: {reason}")
            if os.path.exists(cairn.path + "/step"):
                cairn.remove("step")
    row.figure("CPU of CairnFS: daemon", [s["daemon_s"] * GIB / size for s in samples], "s/GiB")
    row.figure("CPU of CairnFS: system", [s["system_s"] * GIB / size for s in samples], "s/GiB")
    for profile in profiles:
        per_kib = row.figures["CPU of CairnFS: daemon"].median * 1e9 / (GIB / KIB)
        for step, percent in profile.steps().items():
            row.figure("step: " + step, [per_kib * percent / 100], "ns/KiB")
        row.notes += profile.top()
    return row


def micro(bench, pattern):
    program = bench.program("benchmarks/micro/micro_benchmarks")
    seconds = 0.05 if bench.quick else 0.5
    text = subprocess.run([program, f"--benchmark_filter={pattern}", f"--benchmark_min_time={seconds}",
                           "--benchmark_format=json", f"--benchmark_repetitions={3 if bench.quick else 5}"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, text=True,
                          start_new_session=True, timeout=900, env={**os.environ, "TMPDIR": bench.scratch.path}).stdout
    try:
        found = json.loads(text)["benchmarks"]
    except (ValueError, KeyError) as error:
        raise CannotRun(f"the micro-benchmarks answer nothing for {pattern}") from error
    series = {}
    for one in found:
        if one["run_type"] == "iteration":
            series.setdefault(one["run_name"], []).append(one)
    return series


def cut_points_rows(bench):
    series = micro(bench, "CutPoints|Memcpy")
    row = Row("cut points, per core")
    for name, runs in series.items():
        if "error_occurred" in runs[0]:
            row.notes.append(f"{name}: cannot run: {runs[0]['error_message']}")
        else:
            row.figure(name, [one["bytes_per_second"] for one in runs], "B/s")
    fast = [name for name in row.figures if "AVX" in name]
    taken = max(fast, key=lambda name: row.figures[name].median, default=None)  # as the daemon, which times them
    for name in fast:
        row.ratio(f"{name} vs memcpy", name, "Memcpy", at_least=1.0 if name == taken else None)
    if not fast:
        row.notes.append("no AVX2 and no AVX-512 on this machine: the scalar search is what it has")
    row.check("scalar", [rate / 1e9 for rate in row.figures["CutPoints/scalar"].samples], "GB/s", at_least=1.0)
    return [row]


def parts_rows(bench):
    """The other inner parts; reported, without goals."""
    row = Row("inner parts, alone")
    for name, runs in micro(bench, "Digest|Segment|Index|Kv").items():
        if "error_occurred" in runs[0]:
            row.notes.append(f"{name}: cannot run: {runs[0]['error_message']}")
        elif "bytes_per_second" in runs[0]:
            row.figure(name, [one["bytes_per_second"] for one in runs], "B/s")
        else:
            unit = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}[runs[0]["time_unit"]]
            row.figure(name, [one["real_time"] / unit for one in runs], "s")
    settle()
    return [row]
