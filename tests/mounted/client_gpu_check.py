#!/usr/bin/env python3
"""tools/gpu-check without a GPU: all that it measures with memory of the host on CairnFS, the goals, and what it says
where nothing can be checked. What it finds in time is not judged here; what it counts in bytes is.

The library is that of CAIRNFS_BUILD_DIR, else of the build that CAIRNFS_BIN_DIR lies in. Options: --seed N (nothing is
random); names of cases run these alone.
"""

import glob
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "..", ".."))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(ROOT, "tools")]
sys.dont_write_bytecode = True
from cairnfs_mount import BIN_DIR, Mount, Scratch, Skip, run, run_cases, seed_from_arguments
from gpu_check import goals, report, sanitizer

BUILD = os.environ.get("CAIRNFS_BUILD_DIR", os.path.join(BIN_DIR, ".."))
LIBRARY = os.path.realpath(os.path.join(BUILD, "src", "client", "libcairnfs_client.so"))
PROGRAM = os.path.join(ROOT, "tools", "gpu-check")
MIB = 1 << 20


def rows_of(report):
    return {row["row"]: row for row in report["rows"]}


def measured_on_cairnfs():
    """The report of a small run."""
    with Scratch() as scratch:
        mount = Mount(scratch, options="pool_size=256MiB,reserve=8MiB")
        out = os.path.join(scratch.path, "is made", "out")
        run("/usr/bin/python3", PROGRAM, "--cpu", "--bytes", "32MiB", "--rounds", "2", "--saves", "12", "--dir",
            mount.path, "--out", out, "--library", LIBRARY, cwd=scratch.path)
        assert sorted(os.listdir(out)) == ["gpu-check.json", "gpu-check.txt"]
        assert not os.listdir(mount.path)
        with open(os.path.join(out, "gpu-check.txt"), encoding="utf-8") as file:
            assert len(file.read().splitlines()) <= 40, "the text is longer than a page"
        with open(os.path.join(out, "gpu-check.json"), encoding="utf-8") as file:
            return json.load(file)


def on_cairnfs():
    found = measured_on_cairnfs()
    ran = {name: how for name, how in found["tests"].items() if not how.startswith("not run: needs")}
    assert set(ran.values()) == {"passed"} and not found["errors"], found
    assert {"check_fingerprints", "check_saves", "check_bad_pointers", "check_no_memory"} <= set(ran), ran
    figures, rows = found["figures"], rows_of(found)
    assert figures["host.unchanged_reused_bytes"] == [32 * MIB] * 2, figures
    space = rows["saves with 10 % changed: space / what changed"]
    assert space["verdict"] == "passed" and space["figure"] > 0.9, space  # what changed is stored nowhere else
    for name, row in rows.items():
        needs_more = row["note"] == "needs a GPU" or row["note"].startswith("no torch")
        assert (row["verdict"] == "not measured") == needs_more, (name, row)
    as_if_of_a_device(figures)
    return f"space {space['figure']:.3f} of what changed"


def as_if_of_a_device(figures):
    """What was measured has every name that the rows of devices look for."""
    figures = {**figures, **{name.replace("host.", "device."): value for name, value in figures.items()}}
    figures.setdefault("device.torch_s", figures["host.changed_held_s"])
    figures.setdefault("host.torch_s", figures["host.changed_held_s"])
    figures["device.pinned_to_host_bytes_per_s"] = figures["device.pinned_to_device_bytes_per_s"] = [50e9] * 2
    figures["device.snapshot_snapshot"] = [1, 1]
    for row in goals.table("device", figures, {}, 10**10):
        assert row.verdict != "not measured", row


def goals_are_judged():
    figures = {"device.fingerprint_bytes_per_s": [400e9, 600e9, 900e9], "device.unchanged_held_s": [0.04, 0.06, 0.06],
               "device.unchanged_bus_bytes": [1000, 2000000], "device.changed_held_s": [1.0, 1.0, 8.0],
               "device.torch_s": [10.0, 10.0, 10.0], "device.snapshot_held_s": [0.01], "device.snapshot_snapshot": [0]}
    rows = {row.row: row for row in goals.table("device", figures, {"CairnFS": "no mount"}, 10**10)}
    assert (rows["fingerprints"].figure, rows["fingerprints"].verdict) == (600, "passed")
    assert (rows["unchanged: caller held"].figure, rows["unchanged: caller held"].verdict) == (60, "missed")
    assert rows["unchanged: over the bus"].verdict == "missed"
    assert rows["changed: caller held / torch.save of device tensors"].figure == 0.1
    assert "no memory for a snapshot" in rows["changed, snapshot=\"device\": caller held"].note
    assert rows["saves with 10 % changed: space / what changed"].note == "no mount"
    assert rows["load: rate / min(as many readers, pinned copies)"].verdict == "not measured"
    (small,) = [row for row in goals.table("device", figures, {}, 10**9) if row.row == "unchanged: caller held"]
    assert small.note == "the goal is for 10 GB"


def sanitizers_are_run():
    """By a stand-in for compute-sanitizer that finds a race and no wrong access."""
    with Scratch() as scratch:
        stand_in = os.path.join(scratch.path, "compute-sanitizer")
        with open(stand_in, "w", encoding="ascii") as file:
            file.write('#!/bin/sh\necho "$@"\n[ "$2" = memcheck ] || exit 9\n')
        os.chmod(stand_in, 0o755)
        path = os.environ["PATH"]
        os.environ["PATH"] = scratch.path + ":" + path
        try:
            tests, errors = sanitizer.run(PROGRAM, LIBRARY, scratch.path)
        finally:
            os.environ["PATH"] = path
        assert tests == {"racecheck": "failed", "memcheck": "passed"}, tests
        assert list(errors) == ["racecheck"] and f"--checks-only {LIBRARY}" in errors["racecheck"], errors


def what_was_not_run_is_said_first():
    tests = {"check_saves": "passed", "racecheck": "not run: no sanitizer", "memcheck": "not run: no sanitizer"}
    text = report.page({"device": "d", "build": "b", "torch": "t", "bytes": 1, "directory": "/", "file_system": "f",
                        "rounds": 1, "chain_saves": 1, "rows": [], "tests": tests, "errors": {}})
    assert text.splitlines()[2] == "NOT RUN: racecheck, memcheck: no sanitizer", text


def one_measurement_alone():
    with Scratch() as scratch:
        # By a path of the library that is good in this directory alone, and that dlopen(3) takes for a name.
        run("/usr/bin/python3", PROGRAM, "--cpu", "--bytes", "8MiB", "--rounds", "1", "--only", "loads", "--dir",
            scratch.path, "--out", scratch.path, "--library", os.path.basename(LIBRARY), cwd=os.path.dirname(LIBRARY))
        with open(os.path.join(scratch.path, "gpu-check.json"), encoding="utf-8") as file:
            found = json.load(file)
        assert found["tests"] == {"checks": "not run: --only leaves them out"}, found["tests"]
        assert not [name for name in found["figures"] if "chain" in name], found["figures"]
        assert rows_of(found)["load: rate / min(as many readers, pinned copies)"]["figure"] is not None


def the_chain_where_files_share_nothing():
    """A hundred copies would fill the disk, and no row is about them: it is left out, and that is no error."""
    with Scratch() as scratch:
        folder = scratch.ext4("plain", 64 << 20)
        done = subprocess.run(["/usr/bin/python3", PROGRAM, "--cpu", "--bytes", "8MiB", "--only", "chain", "--dir",
                               folder, "--out", scratch.path, "--library", LIBRARY], cwd=scratch.path, text=True,
                              stdout=subprocess.PIPE, check=False)
        assert done.returncode == 0 and "chain: not measured: it needs CairnFS" in done.stdout, done
        with open(os.path.join(scratch.path, "gpu-check.json"), encoding="utf-8") as file:
            found = json.load(file)
        assert not found["errors"] and not found["figures"], found


def options_that_are_wrong():
    with Scratch() as scratch:
        def gpu_check(*options):
            command = ["/usr/bin/python3", PROGRAM, "--cpu", "--out", scratch.path, "--bytes", "8MiB", *options]
            return subprocess.run(command, cwd=scratch.path, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, check=False)

        for option, value in (("--dir", scratch.path + "/missing"), ("--library", scratch.path + "/missing.so")):
            done = gpu_check(option, value)
            assert done.returncode == 2 and f"{option}: {value}" in done.stdout, done
            assert "Traceback" not in done.stdout, done
        done = gpu_check("--dir", scratch.path, "--library", LIBRARY, "--only", "loads", "--seconds", "0")
        assert done.returncode == 0 and "not measured, after 0 seconds: loads" in done.stdout, done


def without_a_gpu():
    if glob.glob("/dev/nvidia*") or shutil.which("nvidia-smi"):
        raise Skip("there is a GPU")
    with Scratch() as scratch:
        done = subprocess.run(["/usr/bin/python3", PROGRAM, "--library", LIBRARY], cwd=scratch.path, text=True,
                              stdout=subprocess.PIPE, check=False)
        assert done.returncode == 77 and done.stdout.count("\n") == 1 and "no GPU" in done.stdout, done
        assert not os.listdir(scratch.path)


def a_gpu_that_cannot_be_used():
    """An nvidia-smi says that there is one. Torch is absent, has no CUDA, or finds no driver: no test ran, and it is
    an error."""
    with Scratch() as scratch:
        smi = os.path.join(scratch.path, "nvidia-smi")
        os.symlink("/bin/true", smi)
        folder = scratch.directory("torch")
        for version, words in (("None", "without CUDA"), ("'99.0'", "driver is too old")):
            with open(os.path.join(folder, "__init__.py"), "w", encoding="ascii") as file:
                file.write("import types\n__version__ = '2.9'\nfrombuffer = None\n"
                           f"version = types.SimpleNamespace(cuda={version})\n"
                           "def zeros(*_, **__):\n    raise RuntimeError('the driver is too old')\n")
            done = subprocess.run(["/usr/bin/python3", PROGRAM, "--library", LIBRARY], cwd=scratch.path, text=True,
                                  stdout=subprocess.PIPE, check=False,
                                  env={**os.environ, "PATH": scratch.path + ":" + os.environ["PATH"],
                                       "PYTHONPATH": scratch.path})
            assert done.returncode == 1 and words in done.stdout and "there is a GPU" in done.stdout, done


if __name__ == "__main__":
    seed_from_arguments()
    sys.exit(run_cases((goals_are_judged, sanitizers_are_run, what_was_not_run_is_said_first, without_a_gpu,
                        a_gpu_that_cannot_be_used, one_measurement_alone, the_chain_where_files_share_nothing,
                        options_that_are_wrong, on_cairnfs)))
