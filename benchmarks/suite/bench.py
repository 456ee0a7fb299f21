"""tools/bench: measures CairnFS beside the file system of its data directory, the disk, and a floor of its own."""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time

import daemon
import dedup
import frameworks
import names
import reading
import report
import saving
import several_hosts
import small_syncs
from machine import (GIB, MIB, CannotRun, Programs, Scratch, describe, hold_dirty_limits, load_average, memory,
                     process_memory, run, size_of)
from measuring import Row
from plots import write_plots
from subjects import Cairn, Load

SOURCE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
EXPERIMENTS = {  # name: what measures its rows
    "new": saving.new_rows,
    "first-save": saving.first_save_rows,
    "recycled": saving.recycled_rows,
    "unchanged": saving.unchanged_rows,
    "frameworks": frameworks.framework_rows,
    "cold": reading.cold_rows,
    "hot": reading.hot_rows,
    "passed": reading.passed_rows,
    "mmap": reading.mmap_rows,
    "readers": reading.readers_rows,
    "cut-points": daemon.cut_points_rows,
    "small-files": names.small_files_rows,
    "commit": names.commit_rows,
    "copy": names.copy_rows,
    "remove": names.remove_rows,
    "overwrite": names.overwrite_rows,
    "small-syncs": small_syncs.small_sync_rows,
    "start": daemon.start_rows,
    "dedup": dedup.dedup_rows,
    "writers": saving.writers_rows,
    "cpu": daemon.cpu_rows,
    "memory": daemon.memory_rows,
    "parts": daemon.parts_rows,
}
CLUSTER_EXPERIMENTS = {  # with --cluster
    "cluster-save": several_hosts.save_rows,
    "cluster-restore": several_hosts.restore_rows,
    "cluster-names": several_hosts.names_rows,
    "cluster-commit": several_hosts.commit_rows,
    "cluster-cpu": several_hosts.cpu_row,
    "cluster-tls": several_hosts.tls_rows,
}
PYTHON = "/usr/bin/python3"  # Debian's: it is the one that has python3-torch


def revision():
    """Of the sources: what is measured, unless another build is named."""
    with contextlib.suppress(CannotRun):
        return run("git", "-C", SOURCE, "-c", "safe.directory=*", "describe", "--always", "--dirty").strip()
    return "unknown"


def say(text=""):
    print(text, flush=True)


class Bench(Programs):
    """What every experiment needs: sizes, places, programs, the load generator."""

    CannotRun = CannotRun

    def __init__(self, options, scratch):
        super().__init__(options.build)
        self.scratch, self.quick, self.source = scratch, options.quick, SOURCE
        self.machine = describe(scratch.path)
        self.file_system = self.machine["file_system"]
        self.began = time.strftime("%Y-%m-%d %H:%M:%S")
        self.revision = revision()
        self.has_failed = False
        self.rounds = options.rounds or (3 if self.quick else 10)
        self._choose_sizes(options)
        # A small pool is warm sooner. Without --quick the daemon chooses as it does for a user.
        self.mount_options = {"pool_size": "512MiB"} if self.quick and memory("MemTotal") > 8 * GIB else {}
        self.memory_seen = []
        self.load = Load(self)
        self.pool_bytes = self._pool_bytes()

    def _choose_sizes(self, options):
        """Four GiB where the machine has room: several copies on the disk, and one in memory beside the page cache."""
        room = min(memory("MemTotal") // 5, self.machine["disk_free_bytes"] // 6)
        wanted = size_of(options.size) if options.size else (256 * MIB if self.quick else 4 * GIB)
        self.size = max(64 * MIB, min(wanted, room) // (16 * MIB) * (16 * MIB))
        if self.size < wanted:
            say(f"note: {self.size // MIB} MiB instead of {wanted // MIB} MiB: this machine has no room for more")
        self.big_size = self.size if self.quick else self.size * 5 // 2
        self.small_files = 1000 if self.quick else 10_000
        self.commit_files = 5000 if self.quick else 100_000
        self.index_chunks = 100_000 if self.quick else 2_000_000

    def _pool_bytes(self):
        """What the daemon takes by itself; the floor gets as many buffers."""
        with Cairn(self, "probe") as cairn:
            return cairn.status()["pool_buffers"] * MIB

    def plain(self, name):
        """A path on the directory's own file system."""
        return os.path.join(self.scratch.directory("plain"), name)

    def plain_directory(self, name):
        path = self.plain(name)
        os.makedirs(path, exist_ok=True)
        return path

    def forget(self, path):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)

    def note_memory(self, cairn):
        """Keeps what the daemon had in memory at most."""
        if not cairn.is_warm:
            return  # what it has not touched of its pool would count for it
        try:
            status = cairn.status()
            peak = process_memory(cairn.pid)
        except (CannotRun, OSError):
            return
        pool = status["pool_buffers_touched"] * MIB
        self.memory_seen.append({"name": os.path.basename(cairn.data), "beside_pool": peak - pool,
                                 "allowed": 256 * MIB + 64 * status["chunk_count"]})

    def framework_python(self):
        """A Python with torch and safetensors: Debian's torch, and a venv of our own beside the build."""
        if subprocess.run([PYTHON, "-c", "import torch"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
            raise CannotRun("python3-torch is not installed")
        folder = os.path.join(self.build, "bench-venv")
        python = os.path.join(folder, "bin", "python3")
        probe = "import torch, safetensors.torch"
        if subprocess.run([python, "-c", probe], check=False, stderr=subprocess.DEVNULL).returncode != 0 \
                if os.path.exists(python) else True:
            run(PYTHON, "-m", "venv", "--clear", "--system-site-packages", folder)
            run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy<2", "safetensors")
            run(python, "-c", probe)
        return python

    def warm_memory(self):
        """Touches the memory that is free: the first touch of a page may cost ten times the second on a virtual
        machine, and would flatter whoever comes second."""
        self.load("buffer", self.size + 64 * MIB)
        free = memory("MemAvailable") - 2 * GIB
        if free > 0 and not self.quick:
            self.load("warm", free)
        elif free > 0:
            self.load("warm", min(free, 4 * self.size))
        # Afterwards: what the load generator keeps, a trainer's tensors, counts; the pools of what is measured do not.
        self.machine["dirty_limit_bytes"] = hold_dirty_limits(self.scratch)

    def warm_free_memory(self, size=None):
        """Touches free memory for a page cache of that size, right before who needs it: hosts of virtual machines take
        back within seconds what is freed (free page reporting)."""
        wanted = min((size or self.size) + 512 * MIB, memory("MemFree") - GIB)
        if wanted > 0:
            self.load("warm", wanted)


def measure(bench, name):
    """The rows of one experiment. What cannot run, or fails, says so in its row, and leaves nothing to the next."""
    before, begin = load_average(), time.monotonic()
    try:
        rows = {**EXPERIMENTS, **CLUSTER_EXPERIMENTS}[name](bench)
    except CannotRun as reason:
        rows = [Row(name, cannot_run=str(reason))]
    except (AssertionError, OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        bench.has_failed = True
        rows = [Row(name, cannot_run=f"FAILED: {type(error).__name__}: {error}")]
    finally:
        shutil.rmtree(bench.scratch.directory("plain"), ignore_errors=True)
    for row in rows:
        row.load = (before, load_average())
        row.seconds = time.monotonic() - begin
        report.show(row, say)
    return rows


def build(options):
    """A release build of its own, unless one is named."""
    if options.no_build:
        return
    if not options.no_install:
        run(os.path.join(SOURCE, "tools", "install-deps"), "--bench", timeout=1800)
    if not os.path.exists(os.path.join(options.build, "build.ninja")):
        compiler = "ccache g++" if shutil.which("ccache") else "g++"
        run("meson", "setup", options.build, SOURCE, "-Dbuildtype=release", "-Dtests=false", "-Dbenchmarks=true",
            env={**os.environ, "CXX": os.environ.get("CXX", compiler)})
    run("ninja", "-C", options.build, timeout=3600)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and three rounds: two minutes")
    parser.add_argument("--cluster", action="store_true", help="the rows about three hosts on this machine")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=[*EXPERIMENTS, *CLUSTER_EXPERIMENTS],
                        help=f"only these: {' '.join(EXPERIMENTS)}; of several hosts: {' '.join(CLUSTER_EXPERIMENTS)}")
    parser.add_argument("--size", metavar="SIZE", help="of a checkpoint, such as 512M; default 4G where there is room")
    parser.add_argument("--rounds", type=int, metavar="N", help="default 10, with --quick 3")
    parser.add_argument("--data", metavar="DIR", default="/var/tmp", help="where to work; default /var/tmp")
    parser.add_argument("--json", metavar="FILE", help="where the figures go; default build-bench/bench.json")
    parser.add_argument("--plots", metavar="DIR", help="where the plots go; default build-bench/plots")
    parser.add_argument("--markdown", metavar="FILE", help="the table of goals, for docs/performance.md")
    parser.add_argument("--build", metavar="DIR", default=os.path.join(SOURCE, "build-bench"),
                        help="the build to measure; made when absent")
    parser.add_argument("--no-install", action="store_true", help="install no packages")
    parser.add_argument("--no-build", action="store_true", help="nor build anything: measure the build as it is")
    options = parser.parse_args(arguments)
    options.build = os.path.abspath(options.build)
    options.only = options.only or list(CLUSTER_EXPERIMENTS if options.cluster else EXPERIMENTS)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    try:
        size_of(options.size or "1G")
    except ValueError as error:
        parser.error(str(error))
    return options


def write_results(options, bench, rows):
    path = options.json or os.path.join(options.build, "bench.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(report.as_json(bench, rows))
    plots = write_plots(rows, options.plots or os.path.join(options.build, "plots"))
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as file:
            report.as_markdown(rows, lambda line: file.write(line + "\n"))
    say(f"\nfigures: {path}; plots: {len(plots)} in {os.path.dirname(plots[0]) if plots else 'no directory'}")


def main(arguments):
    options = parse(arguments)
    if os.geteuid() != 0:
        sys.exit("tools/bench: run this as root: sudo tools/bench")
    try:
        build(options)
    except CannotRun as reason:
        sys.exit(f"tools/bench: {reason}")
    rows = []
    begin = time.monotonic()
    with Scratch(options.data) as scratch:
        try:
            bench = Bench(options, scratch)
            say(f"{bench.machine['processor']}, {bench.machine['cores']} cores, "
                f"{bench.machine['memory_bytes'] / GIB:.0f} GiB, Linux {bench.machine['kernel']}, {bench.file_system}; "
                f"{bench.size // MIB} MiB, {bench.rounds} rounds, pool {bench.pool_bytes // MIB} MiB, "
                f"load average {load_average():.1f}, revision {bench.revision}")
            bench.warm_memory()
            for name in options.only:
                rows += measure(bench, name)
        except CannotRun as reason:
            sys.exit(f"tools/bench: {reason}")
        except KeyboardInterrupt:
            say("\ninterrupted: what was measured so far follows")
        if rows:
            report.summary(rows, say, bench.quick)
            write_results(options, bench, rows)
    say(f"{time.monotonic() - begin:.0f} s")
    return 1 if bench.has_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
