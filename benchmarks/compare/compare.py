"""tools/compare: measures CairnFS on three hosts beside GlusterFS and MooseFS on three hosts, by turns in one run."""

import argparse
import contextlib
import json
import os
import sys
import time

SOURCE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path[:0] = [os.path.join(SOURCE, "benchmarks", "suite"), os.path.join(SOURCE, "tests", "support")]
# pylint: disable=wrong-import-position
import bench
import cairnfs_mount
import report
import rows
from machine import GIB, MIB, CannotRun, Programs, Scratch, describe, hold_dirty_limits, load_average, memory, run
from peers import GlusterFS, MooseFS
from systems import CairnFS

SYSTEMS = {  # name: what makes one, given the comparison and the name of a folder for it
    "etcd": lambda comparison, folder: CairnFS(comparison, folder, "etcd"),
    "host": lambda comparison, folder: CairnFS(comparison, folder, "node"),
    "glusterfs": GlusterFS,
    "moosefs": MooseFS,
}
ROWS = [*rows.EXPERIMENTS, rows.LOST]


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/compare", description=__doc__)
    parser.add_argument("--rounds", type=int, metavar="N", help="default 4, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="256 MiB, 500 files and two rounds: some minutes")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, help=f"only these: {' '.join(ROWS)}")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", choices=SYSTEMS, default=list(SYSTEMS),
                        help=f"only these: {' '.join(SYSTEMS)}; etcd and host are CairnFS, by where its names are")
    parser.add_argument("--size", metavar="SIZE", help="of a checkpoint, such as 512M; default 1G")
    parser.add_argument("--data", metavar="DIR", default="/var/tmp", help="where to work; default /var/tmp")
    parser.add_argument("--json", metavar="FILE", help="where the figures go; default build-bench/compare.json")
    parser.add_argument("--build", metavar="DIR", default=os.path.join(SOURCE, "build-bench"),
                        help="the build to measure; made when absent")
    parser.add_argument("--no-install", action="store_true", help="install no packages")
    parser.add_argument("--no-build", action="store_true", help="nor build anything: measure the build as it is")
    options = parser.parse_args(arguments)
    options.build = os.path.abspath(options.build)
    options.only = options.only or list(ROWS)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    try:
        bench.size_of(options.size or "1G")
    except ValueError as error:
        parser.error(str(error))
    return options


class Comparison(Programs):
    """What every row needs: sizes, places, programs, the load generator, and the systems."""

    def __init__(self, options, scratch):
        super().__init__(options.build)
        self.options, self.scratch = options, scratch
        self.rounds = options.rounds or (2 if options.quick else 4)
        self.files = 500 if options.quick else 2000
        self.machine = describe(scratch.path)
        self.revision = bench.revision()
        self._choose_sizes()
        self.machine["dirty_limit_bytes"] = hold_dirty_limits(scratch)
        self.load = rows.TimedLoad(self, self.size)
        self.has_failed = False
        self.made = 0
        self.systems = [self.make(key) for key in options.systems]

    def _choose_sizes(self):
        """A round of the heaviest row has four copies of a checkpoint on the disk, and one in memory."""
        wanted = bench.size_of(self.options.size or ("256M" if self.options.quick else "1G"))
        room = min(memory("MemTotal") // 8, self.machine["disk_free_bytes"] // 10)
        self.size = max(48 * MIB, min(wanted, room) // (16 * MIB) * (16 * MIB))
        if self.size < wanted:
            say(f"note: {self.size // MIB} MiB instead of {wanted // MIB} MiB: this machine has no room for more")
        self.pool_bytes = max(64 * MIB, min(self.size, memory("MemTotal") // 20) // MIB * MIB)  # of each of six daemons

    def make(self, key):
        self.made += 1
        return SYSTEMS[key](self, f"{key}-{self.made}")

    def makers(self):
        """What makes each system anew, by its name."""
        return {system.name: lambda key=key: self.make(key) for key, system in zip(self.options.systems, self.systems)}

    @property
    def ours(self):
        return [system for system in self.systems if not system.is_peer]

    @property
    def peers(self):
        return [system for system in self.systems if system.is_peer]

    def warm_free_memory(self, size):
        """Touches free memory for a page cache of that size, right before who needs it (docs/benchmark.md)."""
        wanted = min(size + 512 * MIB, memory("MemFree") - GIB)
        if wanted > 0:
            self.load("warm", wanted)

    @contextlib.contextmanager
    def started(self):
        """All systems are up. One that does not start is left out."""
        everyone = self.systems
        with contextlib.ExitStack() as stack:
            up = []
            for system in everyone:
                try:
                    up.append(stack.enter_context(system))
                    rows.warm_up(self, system)
                except rows.PROBLEMS as error:
                    self.has_failed = True
                    up = [other for other in up if other is not system]
                    say(f"{system.name}: DOES NOT START: {error}")
            self.systems = up
            yield
        self.systems = everyone

    def measure(self, name, act):
        before, begin = load_average(), time.monotonic()
        found = act(self)
        for row in found:
            row.load, row.seconds = (before, load_average()), time.monotonic() - begin
            self.has_failed |= any("FAILED" in note for note in row.notes)
            report.show(row, say)
        return found


def say(text=""):
    print(text, flush=True)


def cell(row, who):
    if who not in row.figures:
        return "failed" if any(note.startswith(who + ": FAILED") for note in row.notes) else ""
    figure = row.figures[who]
    texts = [report.amount(value, figure.unit) for value in (figure.median, figure.low, figure.high)]
    return f"{texts[0]} ({texts[1].removesuffix(' GB/s')} to {texts[2]})" if figure.low != figure.high else texts[0]


def table(comparison, found):
    """One line for each row: what each system had, and what CairnFS is as times the better peer."""
    systems = comparison.ours + comparison.peers
    say("| | " + " | ".join([*(system.name for system in systems),
                              *(f"{system.name}: times the better peer" for system in comparison.ours)]) + " |")
    say("| --- |" + " ---: |" * (len(systems) + len(comparison.ours)))
    for row in found:
        cells = [row.measure, *(cell(row, system.name) for system in systems)]
        for system in comparison.ours:
            check = next((one for one in row.checks if one.name.startswith(f"{system.name}, times ")
                          and "one thread" not in one.name), None)
            goal = f", goal {check.at_least:g}" if check and check.at_least is not None else ""
            cells.append(f"{check.value:.2f} ({check.low:.2f} to {check.high:.2f}){goal}" if check else "")
        say(f"| {' | '.join(cells)} |")


def install_and_build(options):
    """The peers from Debian's packages, and what tools/bench needs."""
    if not options.no_install:
        say("installing Debian's packages of GlusterFS and MooseFS, where they are missing; none of their services is "
            "started")
        say(run(os.path.join(SOURCE, "tools", "install-deps"), "--compare", timeout=1800).strip())
    bench.build(options)


def measure_all(comparison):
    found = []
    shared = {name: act for name, act in rows.EXPERIMENTS.items() if name in comparison.options.only}
    try:
        if shared:
            with comparison.started():
                for name, act in shared.items():
                    found += comparison.measure(name, act)
        if rows.LOST in comparison.options.only:
            found += comparison.measure(rows.LOST, rows.lost_rows)
    except KeyboardInterrupt:
        say("\ninterrupted: what was measured so far follows")
    return found


def write_json(comparison, path, found):
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"machine": comparison.machine, "revision": comparison.revision, "rounds": comparison.rounds,
                   "size_bytes": comparison.size, "pool_bytes": comparison.pool_bytes, "files": comparison.files,
                   "quick": comparison.options.quick, "rows": [row.as_json() for row in found]}, file, indent=1)
    say(f"\nfigures: {path}")


def main(arguments):
    options = parse(arguments)
    if os.geteuid() != 0:
        sys.exit("tools/compare: run this as root: sudo tools/compare")
    begin = time.monotonic()
    try:
        install_and_build(options)
        cairnfs_mount.BIN_DIR = os.path.join(options.build, "tools")
        with Scratch(options.data) as scratch:
            comparison = Comparison(options, scratch)
            machine = comparison.machine
            say(f"{machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / GIB:.0f} GiB, "
                f"Linux {machine['kernel']}, {machine['file_system']}; {comparison.size // MIB} MiB, "
                f"{comparison.rounds} rounds, load average {load_average():.1f}, revision {comparison.revision}")
            found = measure_all(comparison)
            if found:
                say()
                table(comparison, found)
                write_json(comparison, options.json or os.path.join(options.build, "compare.json"), found)
    except CannotRun as reason:
        sys.exit(f"tools/compare: {reason}")
    say(f"{time.monotonic() - begin:.0f} s")
    return 1 if comparison.has_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
