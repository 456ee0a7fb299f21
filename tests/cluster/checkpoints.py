"""Checkpoints that hosts save while faults happen, and what was answered to them; judged on every host afterwards.

What must hold:
  - of a checkpoint whose commit (the rename of its directory) returned success, every host sees every file with exactly
    its bytes, from the moment on at which the rename returned;
  - of one whose commit did not return success, every host sees nothing under the final name, or all of it;
  - a file whose close returned success has its bytes, whether or not its directory was renamed.
"""

import random
import threading
import time

import recorder

RECENT = 9  # the last ones, which are inspected on every host


class Checkpoint:
    """One that a host saved or tried to. `files`, all calls on which succeeded: path below the directory -> (bytes, seed)."""

    def __init__(self, name, host):
        self.name = name
        self.host = host
        self.files = {}
        self.directories = set()
        self.rename_began = False
        self.began_ns = time.monotonic_ns()
        self.committed_ns = None
        self.answers = []  # of the calls that did not succeed

    @property
    def committed(self):
        return self.committed_ns is not None


class Ledger:
    """All checkpoints, outside the mounts. Self-synchronised."""

    def __init__(self):
        self.lock = threading.Lock()
        self.checkpoints = []

    def add(self, checkpoint):
        with self.lock:
            self.checkpoints.append(checkpoint)

    def committed(self):
        with self.lock:
            return [checkpoint for checkpoint in self.checkpoints if checkpoint.committed]

    def split(self, count):
        """All: the older ones, and the last `count`."""
        with self.lock:
            middle = max(0, len(self.checkpoints) - count)
            return self.checkpoints[:middle], self.checkpoints[middle:]

    def take(self, keep):
        """The oldest ones, which the caller deletes, so that `keep` stay."""
        with self.lock:
            count = max(0, len(self.checkpoints) - keep)
            old, self.checkpoints = self.checkpoints[:count], self.checkpoints[count:]
        return old


def save(client, host, name, rng, ledger):
    """One checkpoint: files written into a directory of its own, which is then renamed to its name."""
    checkpoint = Checkpoint(name, host)
    ledger.add(checkpoint)
    temporary = name + ".tmp"

    def did(line):
        if line.get("error", -1) != 0:
            checkpoint.answers.append(recorder.describe(line))
        return line.get("error", -1) == 0

    if not did(client.call("mkdir", path=temporary, mode=0o755)):
        return checkpoint
    if rng.random() < 0.3:
        if not did(client.call("mkdir", path=temporary + "/shard", mode=0o755)):
            return checkpoint
        checkpoint.directories.add("shard")
    for number in range(rng.randint(2, 5)):
        path = rng.choice(["", *(folder + "/" for folder in sorted(checkpoint.directories))]) + f"file{number}"
        size = rng.choice([0, 1, 4096, rng.randrange(1, 60_000), rng.randrange(1, 2_000_000)])
        seed, sync = rng.randrange(1 << 40), rng.random() < 0.3
        if not did(client.call("put", path=f"{temporary}/{path}", bytes=size, seed=seed, sync=sync)):
            return checkpoint
        checkpoint.files[path] = (size, seed)
    checkpoint.rename_began = True
    line = client.call("rename", path=temporary, target=name)
    if did(line):
        checkpoint.committed_ns = line["end"]
    return checkpoint


def saver_work(ledger, stop, pause_s):
    """Work of a round: saves until `stop` is set, or until a call did not succeed."""

    def work(round_, client, index, rng):
        number = 0
        while not stop.is_set() and client.alive:
            checkpoint = save(client, client.host.name, f"{round_.name}/{client.name}-{number}", rng, ledger)
            if checkpoint.answers:
                # What it was told is not what a healthy cluster tells. Its host may be gone: do not spin.
                time.sleep(1)
            number += 1
            time.sleep(rng.random() * 2 * pause_s)

    return work


def inspect(client, checkpoint, after_healing):
    """What is wrong with the checkpoint as one host sees it: lines of text. While faults are on, a call may fail; where
    it may not, the client's `failed` tells."""
    problems = []

    def wrong(what):
        problems.append(f"{checkpoint.name} of {checkpoint.host}, seen from {client.name}: {what}")

    def ask(op, **arguments):
        line = client.call(op, **arguments)
        if line.get("error", -1) not in (0, 2) and after_healing:
            wrong(f"a call fails after healing: {recorder.describe(line)}")
        return line

    name = checkpoint.name
    listing = ask("readdir", path=name)
    if "error" not in listing or listing["error"] not in (0, 2):
        return problems
    if listing["error"] == 2:
        if checkpoint.committed:
            wrong("committed, and not there")
        elif after_healing:
            problems += inspect_kept_files(ask, wrong, checkpoint, name + ".tmp")
        return problems
    expected = {path.split("/")[0] for path in checkpoint.files} | checkpoint.directories
    if not checkpoint.rename_began:
        wrong("there, although nobody renamed it")
    if set(listing["names"]) != expected:
        wrong(f"has {listing['names']} instead of {sorted(expected)}")
    for path, (size, seed) in checkpoint.files.items():
        line = ask("verify", path=f"{name}/{path}", bytes=size, seed=seed)
        if line.get("error") == 0 and line["is"] != "same":
            wrong(f"{path} is {line['is']} (of {size} bytes, at {line.get('first_difference', '-')})")
    return problems


def inspect_kept_files(ask, wrong, checkpoint, directory):
    """Never renamed: what was closed must be there all the same."""
    for path, (size, seed) in checkpoint.files.items():
        line = ask("verify", path=f"{directory}/{path}", bytes=size, seed=seed)
        if line.get("error") == 0 and line["is"] != "same":
            wrong(f"{path} was closed and is {line['is']} (of {size} bytes)")
    return []


def watcher_work(ledger, stop, problems):
    """Work of a round: what was committed before a look began is there, on every host, at any time."""

    def work(round_, client, index, rng):
        while not stop.is_set() and client.alive:
            committed = ledger.committed()[-4:]
            if committed:
                problems.extend(inspect(client, random.choice(committed), after_healing=False))
            time.sleep(0.2 + rng.random() * 0.3)

    return work
