"""Clients on the mounts of several hosts, random rounds of calls by all of them at once, and the histories of these.

Each round has a fresh directory, few names and few calls, so that judging it is a small search. What the clients were
asked and answered is written as history.h says and judged by check_history.
"""

import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import program  # noqa: E402

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
SLOTS = 4
# Names that meet often: files and directories under the same few names, some below one that is often a directory.
PATHS = ["a", "b", "d", "d/a", "d/b"]


DEFINITE = {0, 1, 2, 11, 13, 17, 20, 21, 22, 31, 35, 36, 39, 61, 116}  # errnos that say what happened; ESTALE too


class Stop(Exception):
    """Ends the work of one client in a round."""


class Client:
    """A process that carries out calls on one host's mount, or with `plain` on a directory of an ordinary file system.
    Made and used by one thread at a time.

    It dies with the thread that made it (PR_SET_PDEATHSIG), so make it on one that stays."""

    def __init__(self, name, directory, limit_s=60, session="", planted="", seed=1, mounted=None,
                 plain=False):
        self.name = name
        self.session = session or name
        self.limit_s = limit_s
        self.hangs = []
        self.failed = []  # calls whose answer does not say what happened: EIO and the like
        self.end_began_ns = None  # from then on what it holds may be let go of
        command = [program("cluster_client"), directory, "--limit-ms", str(int(limit_s * 1000)), "--seed", str(seed)]
        if os.path.ismount(directory) if mounted is None else mounted:
            command.append("--mounted")
        if plain:
            command.append("--plain")
        if planted:
            command += ["--planted", planted]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.answers = queue.Queue()
        self.next_id = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(json.loads(line))
        self.answers.put(None)

    @property
    def alive(self):
        return self.process.poll() is None

    def call(self, op, **arguments):
        """The line of the history: what was asked and what was answered. Without "error" nothing was: the client died,
        or the call took longer than the limit, which is noted in `hangs` and ends the client."""
        self.next_id += 1
        line = {"client": self.name, "session": self.session, "op": op, **arguments, "begin": time.monotonic_ns()}
        try:
            self.process.stdin.write(json.dumps({"id": self.next_id, **line}) + "\n")
            self.process.stdin.flush()
        except OSError:
            return line
        try:
            answer = self.answers.get(timeout=self.limit_s + 20)
        except queue.Empty:
            answer = {"hang_ms": (self.limit_s + 20) * 1000}
        if answer is None:
            return line
        if "hang_ms" in answer:
            self.hangs.append({**line, **answer})
            self.kill()
            return line
        assert answer.pop("id") == self.next_id, answer
        line = {**line, **answer}
        if line.get("error", -1) not in DEFINITE:
            self.failed.append(line)
        return line

    def must(self, op, **arguments):
        """The answer to a call that has to succeed."""
        line = self.call(op, **arguments)
        if line.get("error", -1) != 0:
            raise AssertionError(f"{describe(line)}")
        return line

    def kill(self):
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGKILL)

    def close(self):
        """Ends the process. One whose call hangs in the kernel may stay until the mount is gone."""
        self.end_began_ns = self.end_began_ns or time.monotonic_ns()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()


def describe(line):
    arguments = {key: value for key, value in line.items() if key not in ("client", "session", "op", "begin", "end")}
    took = f", {(line['end'] - line['begin']) / 1e6:.0f} ms" if "end" in line else ""
    name = os.strerror(line["error"]) if line.get("error") else "ok" if "error" in line else "no answer"
    return f"{line['client']}: {line['op']} {arguments}: {name}{took}"


# What a round is about: the share of each call, and the paths. The narrower, the more often calls meet.
PROFILES = [
    ({"mkdir": 6, "create": 14, "link": 5, "unlink": 8, "rmdir": 3, "rename": 14, "stat": 10, "readdir": 6, "write": 10,
      "read": 10, "truncate": 3, "chmod": 3, "setxattr": 4, "getxattr": 4}, PATHS),
    ({"create": 10, "unlink": 2, "rename": 3, "write": 30, "read": 30, "truncate": 8, "stat": 12}, ["a", "b"]),
    ({"mkdir": 4, "create": 16, "unlink": 10, "rename": 20, "stat": 20, "readdir": 16}, ["a", "b", "d", "d/a"]),
    ({"create": 10, "link": 10, "unlink": 10, "rename": 10, "stat": 25, "chmod": 10, "setxattr": 10, "getxattr": 10,
      "readdir": 5}, ["a", "b", "c"]),
]


def tree_arguments(rng, token, profile):
    """One random call on names: (op, arguments)."""
    shares, paths = profile
    op = rng.choices(list(shares), shares.values())[0]
    arguments = {"path": rng.choice(paths)}
    if op == "readdir":
        arguments["path"] = rng.choice(["", "d"] if "d" in paths else [""])
    if op in ("link", "rename"):
        arguments["target"] = rng.choice(paths)
    if op == "rename":
        arguments["flags"] = rng.choice([0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE])
    if op in ("mkdir", "create", "chmod"):
        arguments["mode"] = rng.choice([0o755, 0o700]) if op == "mkdir" else rng.choice([0o644, 0o600, 0o755])
    if op == "write":
        arguments["first_slot"] = rng.randrange(SLOTS)
        arguments["slots"] = rng.randint(1, SLOTS - arguments["first_slot"])
        arguments["sync"] = rng.random() < 0.3  # close(2) promises as much
    if op == "truncate":
        arguments["slots"] = rng.randint(0, SLOTS)
    if op in ("write", "setxattr"):
        arguments["token"] = token
    return op, arguments


class Round:
    """Calls of several clients at once, each on a thread of its own. `lines` is the history.

    first: the number of the first client, of which its random numbers and its tokens depend. stop_at_unknown: a client
    that was not told whether a call took effect is killed, and does nothing more: it knows no more what it holds."""

    def __init__(self, name, seed, clients, first=0, stop_at_unknown=False):
        self.name = name
        self.seed = seed
        self.clients = clients
        self.first = first
        self.stop_at_unknown = stop_at_unknown
        self.lines = []
        self.threads = []
        self.failure = None

    def start(self, work):
        for index, client in enumerate(self.clients, self.first):
            rng = random.Random(f"{self.seed} {self.name} {index}")
            self.threads.append(threading.Thread(target=self._run, args=(work, client, index, rng), daemon=True))
        for thread in self.threads:
            thread.start()

    def _run(self, work, client, index, rng):
        try:
            work(self, client, index, rng)
        except Stop:
            client.kill()
        except Exception as failure:  # pylint: disable=broad-except
            self.failure = failure

    def note(self, client, line):
        self.lines.append(line)
        if self.stop_at_unknown and line.get("error", -1) not in DEFINITE:
            client.end_began_ns = client.end_began_ns or time.monotonic_ns()
            raise Stop
        return line

    def finish(self):
        for thread in self.threads:
            thread.join()
        if self.failure:
            raise self.failure
        return self.lines

    def write(self, directory, extra=()):
        path = os.path.join(directory, self.name.replace("/", "-") + ".jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for line in [*self.lines, *extra]:
                file.write(json.dumps(line) + "\n")
        return path


def tree_work(calls, pause_s=0.0):
    """Work of a round on names: `calls` random calls by each client, below the directory of the round."""

    def work(round_, client, index, rng):
        profile = random.Random(f"{round_.seed} {round_.name}").choice(PROFILES)
        for number in range(calls):
            if not client.alive:
                return
            op, arguments = tree_arguments(rng, index * 1000 + number + 1, profile)
            if pause_s:
                time.sleep(rng.random() * 2 * pause_s)
            round_.note(client, client.call(op, root=round_.name, **arguments))

    return work


def lock_work(calls, pause_s=0.0, waits=True):
    """Work of a round on locks. A client waits only while it holds nothing, so they cannot wait for each other."""

    def work(round_, client, index, rng):
        held = set()  # (kind, path) of which it may hold something

        def lock(act, kind, path, **arguments):
            line = round_.note(client, client.call("lock", root=round_.name, act=act, kind=kind, path=path, **arguments))
            if act != "unlock" and line.get("error") != 11:
                held.add((kind, path))

        for _ in range(calls):
            if not client.alive:
                return
            if pause_s:
                time.sleep(rng.random() * 2 * pause_s)
            kind, path = rng.choice(["flock", "process", "process", "file"]), rng.choice(["l0", "l1"])
            span = {} if kind == "flock" else {"start": rng.randrange(3) * 10, "length": rng.choice([10, 20, 0])}
            if (kind, path) in held and (kind == "flock" or rng.random() < 0.6):
                # A flock is never turned into another kind of lock: Linux lets go of the first one in between.
                lock("unlock", kind, path, **span)
                if kind == "flock":
                    held.discard((kind, path))
                continue
            act = "wait" if waits and not held and rng.random() < 0.4 else "try"
            lock(act, kind, path, shared=rng.random() < 0.35, **span)
        for kind, path in sorted(held):
            if client.alive:
                lock("unlock", kind, path)

    return work


def free_locks(round_, client):
    """Recorded when nobody should hold anything: each file is lockable, in every way."""
    for path in ("l0", "l1"):
        for kind in ("flock", "process", "file"):
            round_.note(client, client.call("lock", root=round_.name, act="try", kind=kind, path=path, shared=False))
            round_.note(client, client.call("lock", root=round_.name, act="unlock", kind=kind, path=path))


def reading_work(calls):
    """Work of a round: all but the first client look at a directory over and over, so that their hosts take it into
    their caches; the first one changes it now and then, which they must see."""
    names = ["a", "b", "c"]

    def work(round_, client, index, rng):
        if index == round_.first:
            for number in range(max(4, calls // 10)):
                time.sleep(rng.uniform(0.05, 0.4))
                op = rng.choice(["create", "create", "unlink", "rename", "chmod", "write"])
                arguments = {"path": rng.choice(names)}
                if op == "rename":
                    arguments.update(target=rng.choice(names), flags=0)
                if op in ("create", "chmod"):
                    arguments["mode"] = rng.choice([0o644, 0o600])
                if op == "write":
                    arguments.update(first_slot=0, slots=rng.randint(1, SLOTS), token=index * 1000 + number + 1,
                                     sync=rng.random() < 0.3)
                round_.note(client, client.call(op, root=round_.name, **arguments))
            return
        for _ in range(calls):
            op = rng.choice(["stat", "stat", "stat", "readdir", "read"])
            arguments = {"path": "" if op == "readdir" else rng.choice(names)}
            round_.note(client, client.call(op, root=round_.name, **arguments))
            time.sleep(rng.uniform(0, 0.02))

    return work


def unknown_outcomes(lines):
    """The calls that did not say whether they took effect: none while nothing is wrong with the cluster."""
    return [line for line in lines if line.get("error", -1) not in DEFINITE]


def judge(paths):
    """check_history on the files: (what it refused, as text; how many it had to give up)."""
    if not paths:
        return "", 0
    done = subprocess.run([program("check_history"), *paths], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=1800, check=False)
    if done.returncode not in (0, 1, 3):
        raise AssertionError(f"check_history ended with {done.returncode}: {done.stdout[-2000:]}")
    given_up = sum(": " in line and "given up" in line for line in done.stdout.splitlines())
    return (done.stdout if done.returncode == 1 else ""), given_up


def too_many_given_up(given_up, histories):
    """Two in a hundred may be too much for the search: a test that judges hardly anything must not pass."""
    return given_up * 50 > histories
