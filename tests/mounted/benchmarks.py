#!/usr/bin/env python3
"""tools/bench still measures what it says: its smallest run has each row with its figures, and those goals are met that no
clock is needed for. Run as root; CAIRNFS_BUILD_DIR is a build with -Dbenchmarks=true.

Of the rows whose goals all need a clock the seed chooses three. Options: --seed N; --all, every row; names of cases run
these alone.
"""

import json
import os
import random
import sys
import types

SOURCE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SUITE = os.path.join(SOURCE, "benchmarks", "suite")
sys.path[:0] = [os.path.join(SOURCE, "tests", "support"), SUITE]
import bench
import report
from cairnfs_mount import Scratch, run, run_cases, seed_from_arguments
from measuring import Row, take_turns

# Without those that install Python packages or compile what is measured beside CairnFS. What each row's name begins with.
EXPERIMENTS = {
    "new": ("stall: ", "durable: "),
    "unchanged": ("unchanged save", "save with "),
    "readers": ("4 processes reading",),
    "cut-points": ("cut points",),
    "commit": ("commit: ",),
    "copy": ("cp -r ",),
    "overwrite": ("fsync after a 4 KiB overwrite",),
    "small-syncs": ("fsync of a log", "fsync of a new file", "fdatasync of a file", *["SQLite, a row"] * 4),
    "start": ("start: ",),
    "memory": ("memory of the daemon",),
}
ALWAYS = ("unchanged", "readers", "copy", "overwrite")
WITHOUT_CLOCK = ("bytes on disk, share of the checkpoint", "bytes written, share of the checkpoint",
                 "disk reads over size", "written beside new chunks")


def experiments(seed):
    others = [name for name in EXPERIMENTS if name not in ALWAYS]
    return [*ALWAYS, *(others if "--all" in sys.argv else random.Random(seed).sample(others, 3))]


def goals_are_weighed(*_):
    row = Row("a row")
    row.figure("ours", [2.0, 4.0, 3.0], "s")
    row.figure("theirs", [6.0, 6.0, 6.0], "s")
    row.ratio("slower is worse", "ours", "theirs", higher_is_better=False, at_least=2.0)
    row.ratio("faster is better", "ours", "theirs", at_least=0.6)
    row.check("a bound", [5, 1, 3], at_most=2.9)
    row.check("reported", [1])
    ratio, other, bound, reported = row.checks
    assert (ratio.value, ratio.low, ratio.high, ratio.met) == (2.0, 1.5, 3.0, True), ratio
    assert (other.value, other.met) == (0.5, False), other
    assert (bound.value, bound.low, bound.high, bound.met) == (3, 1, 5, False), bound
    assert reported.met is None, reported
    absent = Row("another", cannot_run="no such program")
    lines = []
    report.summary([row, absent], lines.append, False)
    assert lines[0] == "\n1 of 3 goals met" and any("no such program" in line for line in lines), lines
    lines = []
    report.as_markdown([row, absent], lines.append)
    assert sum("NOT MET" in line for line in lines) == 2 and "no such program" in lines[-1], lines


def turns_are_taken_in_order(*_):
    """And the first round does not count."""
    calls = []

    def act(who):
        calls.append(who)
        return {"total_s": float(len(calls))}

    series = take_turns(2, {"a": lambda: act("a"), "b": lambda: act("b")})
    assert calls == ["a", "b", "a", "b", "b", "a"], calls
    assert series.get("a", "total_s") == [3, 6] and series.rates("b", 20) == [5, 4], series.values


def a_failure_ends_one_row(scratch, _):
    def fail(_):
        with open(os.path.join(scratch.path, "plain", "left"), "w", encoding="ascii"):
            raise AssertionError("it does not hold what was saved")

    fake = types.SimpleNamespace(scratch=scratch, has_failed=False)
    scratch.directory("plain")
    bench.EXPERIMENTS["fails"] = fail
    rows = bench.measure(fake, "fails")
    assert fake.has_failed and "does not hold" in rows[0].cannot_run, rows
    assert not os.listdir(scratch.directory("plain"))


def every_row_is_measured(scratch, seed):
    chosen = experiments(seed)
    build = os.environ.get("CAIRNFS_BUILD_DIR", os.path.join(SOURCE, "build-bench"))
    figures, plots, table = (os.path.join(scratch.path, name) for name in ("bench.json", "plots", "table.md"))
    run(os.path.join(SOURCE, "tools", "bench"), "--build", build, "--no-build", "--quick", "--size", "64M", "--rounds", 1,
        "--data", scratch.path, "--json", figures, "--plots", plots, "--markdown", table, "--only", *chosen,
        timeout=2400)
    with open(figures, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    measures = [row["measure"] for row in rows]
    for name in chosen:
        for beginning in EXPERIMENTS[name]:
            assert any(measure.startswith(beginning) for measure in measures), (name, beginning, measures)
    for row in rows:
        assert not row["cannot_run"] and not any("cannot run" in note and "this machine does not have it" not in note for note in row["notes"]), row
        assert row["figures"] and row["checks"], row
        for who, figure in row["figures"].items():
            assert figure["samples"] and all(sample >= 0 for sample in figure["samples"]), (row["measure"], who, figure)
    held = [(row["measure"], check) for row in rows for check in row["checks"] if check["name"] in WITHOUT_CLOCK]
    assert {check["name"] for _, check in held} == set(WITHOUT_CLOCK), held
    assert all(check["met"] for _, check in held), held
    assert os.listdir(plots) and os.path.getsize(table) > 0
    return f"{', '.join(chosen)}: {len(rows)} rows, {len(held)} goals without a clock"


def main():
    with Scratch() as scratch:
        return run_cases((goals_are_weighed, turns_are_taken_in_order, a_failure_ends_one_row, every_row_is_measured),
                         scratch, seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
