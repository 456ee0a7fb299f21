"""Where the daemon's CPU time goes: samples by perf, gathered into the steps of the data path."""

import os
import re
import shutil
import signal
import subprocess
import time

from machine import CannotRun, run

STEPS = (  # name, what a sample's function matches; the first that fits counts
    ("BLAKE3", r"blake3|\[\.\] 0x"),  # LLVM's is assembly whose functions have no names
    ("cut points", r"FindAvx|FindScalar|CutFinder|MixPasses"),
    ("copy into the segment window", r"\[\.\] .*(memmove|memcpy|StreamCopy)"),
    ("copy out of the trainer's memory", r"\[k\] .*(memcpy|copy_user|copy_to|fuse_copy|rep_movs)"),
    ("pinning of pages", r"gup|pin_user|get_pages|unpin|bio_iov|folio_mark_dirty|set_page_dirty|folio_mark"),
    ("locks, waking and switching", r"futex|mutex|spin|rwsem|schedule|finish_task|pthread_cond|try_to_wake|lll_lock"),
    ("RocksDB", r"rocksdb"),
    ("disk requests", r"blk|bio|virtio|iowrite|nvme|uring|io_submit|ext4|xfs|iomap|dio"),
    ("memory management", r"malloc|free|calloc|operator new|_int_|clear_page|fault"),
)
LOCKS = STEPS[5][1]
LINE = re.compile(r"^\s*([0-9.]+)%\s+(\S.*?)\s{2,}(\[[.k]\] .*?)\s*$")


class Profile:
    """Shares of the daemon's samples: (share in percent, thread, function)."""

    def __init__(self, entries):
        self.entries = entries

    def steps(self):
        """step -> percent; what fits nowhere is "other"."""
        shares = {}
        for percent, _, function in self.entries:
            step = next((name for name, pattern in STEPS if re.search(pattern, function)), "other")
            shares[step] = shares.get(step, 0.0) + percent
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def top(self, count=12):
        return [f"profile: {percent:5.1f} %  {thread}: {function}" for percent, thread, function in self.entries[:count]]

    def locks(self):
        return sum(percent for percent, _, function in self.entries if re.search(LOCKS, function))


def record(bench, pid, act):
    """Runs `act` while the process is sampled. Raises CannotRun where perf is missing or sees nothing."""
    if shutil.which("perf") is None:
        raise CannotRun("perf is not installed (linux-perf)")
    data = os.path.join(bench.scratch.path, "perf.data")
    # The clock of the CPU: virtual machines often have no counters.
    with subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "-p", str(pid), "-o", data],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            time.sleep(0.5)  # until it has attached to every thread
            act()
        finally:
            process.send_signal(signal.SIGINT)
    text = run("perf", "report", "-i", data, "--stdio", "--no-children", "--sort", "comm,symbol", "-g", "none")
    matches = [LINE.match(line[:200]) for line in text.splitlines() if not line.startswith("#")]
    entries = [(float(m[1]), m[2], re.sub(r"\s+-(\s+-)?\s*$", "", m[3])) for m in matches if m]
    if not entries:
        raise CannotRun("perf took no samples")
    return Profile(entries)
