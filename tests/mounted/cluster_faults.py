#!/usr/bin/env python3
"""Several hosts under faults (tests/cluster), on several clusters at the same time: one with metadata in etcd and one with
metadata on a node, whose numbers of hosts and copies come from the seed; and with a safeguard left out, which has to be
noticed.

What each prints has its name in front. Options: --seed N. Half of the kinds of faults are tried, each on one of the two
clusters, as the seed says, and one safeguard is left out; --all: clusters of every shape, all kinds on each, and both
safeguards. With
other options they are those of tests/cluster/faults.py, which is then run alone with them; by hand, a long run: --hosts 5
--rounds 300.
"""

import concurrent.futures
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time

CLUSTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster")
sys.path[:0] = [os.path.join(CLUSTER, "..", "support"), CLUSTER]
import nemesis  # noqa: E402
from cairnfs_mount import run_cpp  # noqa: E402

# Hosts and copies. With a host away each chunk still finds nodes for all its copies. The last is for --all alone.
SHAPES = {"etcd": [(3, 2), (4, 3), (5, 3)], "node": [(3, 2), (4, 2), (5, 2)]}
AT_ONCE = 5
SILENT_S = 400  # a round says something when it ends: a job that says nothing for so long hangs
LIMIT_S = 2700
TOLD_AGAIN = 60  # lines of a failure, at the end


class Job:
    """One program with a cluster of its own. `lines` is what it said."""

    def __init__(self, name, script, *words):
        self.name, self.words = name, [os.path.join(CLUSTER, script), *map(str, words)]
        self.lines, self.status, self.process = [], 1, None
        self.said_at = 0.0

    def run(self):
        self.say(" ".join(self.words))
        try:
            self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                            errors="replace", preexec_fn=end_with_parent)
            watch = threading.Thread(target=self.watch, daemon=True)
            watch.start()
            for line in self.process.stdout:
                self.say(line.rstrip())
            self.status = self.process.wait()
        finally:
            self.say(f"ended with {self.status}")

    def say(self, line):
        self.lines.append(line)
        self.said_at = time.monotonic()
        print(f"{self.name:8} {line}", flush=True)

    def watch(self):
        """Ends it when it hangs."""
        began = time.monotonic()
        while self.process.poll() is None:
            now = time.monotonic()
            if now - self.said_at > SILENT_S or now - began > LIMIT_S:
                self.say(f"FAILED: silent for {now - self.said_at:.0f} s, not done after {now - began:.0f} s")
                self.end()
                return
            time.sleep(1)

    def end(self):
        """Told to end it takes its cluster down."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def jobs_of(seed, all_shapes):
    choice = random.Random(seed)
    jobs = []
    kinds = [kind.__name__ for kind in nemesis.FAULTS]
    choice.shuffle(kinds)
    for i, (store, shapes) in enumerate(SHAPES.items()):
        tried = kinds if all_shapes else kinds[i::2 * len(SHAPES)]
        for hosts, copies in shapes if all_shapes else [choice.choice(shapes[:-1])]:
            jobs.append(Job(f"{store}-{hosts}", "faults.py", "--seed", seed + len(jobs), "--store", store, "--hosts", hosts,
                            "--copies", copies, "--faults", ",".join(tried), "--rounds", len(tried)))
    # A safeguard that is left out has to be noticed.
    # The second shows in one round of ten or so.
    safeguards = [("recall", "meta.skip_delegation_recall"), ("close", "fs.skip_close_wait")]
    for name, planted in safeguards if all_shapes else safeguards[:1]:
        jobs.append(Job(name, "faults.py", "--seed", seed, "--store", "etcd", "--planted", planted, "--rounds", 20))
    jobs.append(Job("fence", "late_transactions.py", "--tries", 1))
    jobs.append(Job("unfenced", "late_transactions.py", "--tries", 3, "--planted"))
    return jobs


def run_all(jobs):
    def interrupted(number, _):
        raise SystemExit(128 + number)
    signal.signal(signal.SIGTERM, interrupted)
    # The threads stay until all is done: their children end with them.
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for done in [pool.submit(job.run) for job in jobs]:
                done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for job in jobs:
                job.end()
    return [job for job in jobs if job.status != 0]


def main():
    words = [word for word in sys.argv[1:] if word != "--all"]
    if words and (len(words) != 2 or words[0] != "--seed"):
        return run_cpp([os.path.join(CLUSTER, "faults.py"), *words], timeout=6 * 3600)
    seed = int(words[1]) if words else random.randrange(10**6)
    print(f"cluster_faults.py --seed {seed}", flush=True)
    began = time.monotonic()
    jobs = jobs_of(seed, "--all" in sys.argv)
    failed = run_all(jobs)
    for job in failed:
        print(f"\n-- {job.name} again: the end of what it said", *job.lines[-TOLD_AGAIN:], sep="\n", flush=True)
    print(f"{len(jobs) - len(failed)} of {len(jobs)} clusters passed, {time.monotonic() - began:.0f} s", flush=True)
    print(f"FAILED: {' '.join(job.name for job in failed)}" if failed else "PASSED", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
