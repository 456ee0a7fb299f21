#!/usr/bin/env python3
"""Transactions that a host has sent while its session lived, and that arrive once it has ended.

    late_transactions.py [--store node|etcd|both] [--tries N] [--planted]

Many processes on one host set attributes. Then what the host sends to the store waits on its way (holding_proxy.py), and
a moment later the host is stopped. Its lease ends, another host looks at what is there and takes the directory over, and
what was on its way arrives while the host is still stopped. Nothing of it may take effect (docs/contract.md, item 18).
Then the host goes on, is told, and works under a new session.

Each file has a history of its own, which check_history judges: a call that was under way when the session ended took
effect by then, or never did.

--planted: the daemons leave the compare of the session out (cluster.skip_session_compare), and a history has to be
refused for it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import recorder  # first: it says where the support is found

from cairnfs_mount import Scratch
from cluster import CLIENT_PORT, METADATA_PORT, Cluster, Namespace

# A node that serves the store drops a client that answers no ping for 3 s, so the lease has to end before.
LEASES = {"node": "2s", "etcd": "3s"}
WRITERS = 12
MISSED_MAX = 16
ON_THEIR_WAY_S = 0.3  # every writer has sent a call by then
SETTLED_S = 3  # what arrived has run by then
SHOWN = 8  # lines of a history that is refused
PROXY_IP = "10.77.0.200"


class DidNotComeAbout(Exception):
    """Nothing was on its way when the lease ended, or another host lost its session too: the machine is busy. Tried
    again."""


class Way:
    """From the victim to the store, where what it sends can be held."""

    def __init__(self, cluster, victim):
        target = f"{cluster.etcd[0].ip}:{CLIENT_PORT}" if cluster.etcd else f"{cluster.hosts[0].ip}:{METADATA_PORT}"
        listen = PROXY_IP + target[target.index(":"):]
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "holding_proxy.py")
        self.process = Namespace(cluster, "proxy", PROXY_IP).start(
            sys.executable, program, f"{listen}={target}", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        victim.umount()
        with open(victim.config, "r+", encoding="utf-8") as config:
            text = config.read()
            assert target in text, text
            config.seek(0)
            config.write(text.replace(target, listen))
            config.truncate()

    def tell(self, word):
        """How many bytes wait."""
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


class Mark:
    """An attribute of an open file, set over and over by a process of its own: one transaction for each call, and no
    look-up before it. `lines` is the history."""

    def __init__(self, client, directory):
        # A directory for each: who looks at several files of one takes a delegation, which is in a late change's way.
        self.client, self.directory = client, directory
        self.is_stopped = False
        client.must("mkdir", path=directory, mode=0o755)
        self.lines = [client.must("create", root=directory, path="mark", mode=0o644)]
        client.must("open", path=directory + "/mark", handle="mark")
        self._set(1)
        self.thread = threading.Thread(target=self._go_on, daemon=True)
        self.thread.start()

    def _set(self, token):
        line = self.client.call("fsetxattr", handle="mark", token=token)
        self.lines.append({**line, "op": "setxattr", "path": "mark"})
        return line.get("error", -1) == 0

    def _go_on(self):
        for token in range(2, 10**9):
            if not self._set(token) or self.is_stopped:
                return

    def value(self, client):
        line = client.must("getxattr", root=self.directory, path="mark")
        self.lines.append(line)
        return line["token_is"]

    def stop(self):
        self.is_stopped = True
        self.thread.join()

    def history(self, ended_ns, resumed_ns):
        """The lines, once it is known when the session had ended and when the host went on. A call that was under way
        then is two: under the lost session it took effect by the end, or never; and when it succeeded, it was tried
        anew by a host that went on."""
        lines = []
        for line in self.lines:
            is_answered = line.get("error", -1) in recorder.DEFINITE
            if line["begin"] > ended_ns or is_answered and line["end"] < ended_ns:
                lines.append(line)
                continue
            lines.append({key: value for key, value in line.items() if key != "error"} | {"end": ended_ns})
            if is_answered:
                lines.append({**line, "begin": resumed_ns})
        return lines


class Heir(recorder.Client):
    """Looks on and takes over, on a host whose session is meant to last."""

    def __init__(self, host):
        super().__init__(f"{host.name}.heir", host.mount_point, limit_s=90, mounted=True)
        self.host, self.lost_before = host, host.sessions_lost()

    def must(self, op, **arguments):
        try:
            return super().must(op, **arguments)
        except AssertionError as failure:
            if self.host.sessions_lost() == self.lost_before:
                raise
            raise DidNotComeAbout(f"{self.host.name} lost its session: {failure}") from failure


class Attempt:
    def __init__(self, cluster, way, number):
        self.cluster, self.way, self.name = cluster, way, f"late-{number}"
        self.victim = cluster.hosts[1]
        self.others = [host for host in cluster.hosts if host is not self.victim]
        self.heir = Heir(cluster.hosts[2])
        try:
            self.heir.must("mkdir", path=self.name, mode=0o755)
            self.marks = [Mark(self.client(self.victim, f"writer{index}"), f"{self.name}/{index}")
                          for index in range(WRITERS)]
        except AssertionError as failure:
            raise DidNotComeAbout(str(failure)) from failure
        self.set_before = self.held_bytes = 0
        self.ended_ns = self.resumed_ns = 0

    def client(self, host, what):
        return recorder.Client(f"{host.name}.{what}", host.mount_point, limit_s=90, mounted=True)

    def run(self):
        try:
            self.lose_and_deliver()
            self.go_on()
        finally:
            self.way.tell("release")
            self.victim.resume()
            for mark in self.marks:
                mark.is_stopped = True
            for client in [self.heir, *(mark.client for mark in self.marks)]:
                client.close()
        return self.judge()

    def lose_and_deliver(self):
        # A file that was made and closed with nothing in it counts as unpublished until a round has passed.
        self.victim.cairnfs("wait", self.victim.mount_point)
        time.sleep(1)
        self.way.tell("hold")
        time.sleep(ON_THEIR_WAY_S)
        self.victim.pause()
        self.cluster.wait_for_states({self.victim.name: "down"}, at=self.others)
        self.ended_ns = time.monotonic_ns()
        self.heir.must("rename", path=self.name, target=self.name + ".taken")
        for index, mark in enumerate(self.marks):
            mark.directory = f"{self.name}.taken/{index}"
        self.set_before = sum(mark.value(self.heir) for mark in self.marks)
        self.held_bytes = self.way.tell("release")
        if self.held_bytes == 0:
            raise DidNotComeAbout("nothing was on its way")
        time.sleep(SETTLED_S)
        for mark in self.marks:
            mark.value(self.heir)

    def go_on(self):
        self.resumed_ns = time.monotonic_ns()
        self.victim.resume()
        self.cluster.wait_for_states({host.name: "up" for host in self.cluster.hosts}, seconds=120)
        for mark in self.marks:
            mark.stop()
        last = self.client(self.victim, "after")
        last.must("setxattr", root=self.marks[0].directory, path="mark", token=-5)
        assert self.heir.must("getxattr", root=self.marks[0].directory, path="mark")["token_is"] == -5
        last.close()

    def judge(self):
        """What check_history refuses: a text for each history."""
        problems = []
        with tempfile.TemporaryDirectory(prefix="cairnfs-late-") as directory:
            path = os.path.join(directory, self.name + ".jsonl")
            for index, mark in enumerate(self.marks):
                with open(path, "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(line) + "\n" for line in mark.history(self.ended_ns, self.resumed_ns))
                refused, given_up = recorder.judge([path])
                assert given_up == 0, "one writer and one reader are no work for the search"
                if refused:
                    assert "NOT LINEARIZABLE" in refused, refused
                    problems.append("\n".join([f"file {index}: NOT LINEARIZABLE, ends:", *refused.splitlines()[-SHOWN:]]))
        return problems


def run_on(store, tries, is_planted):
    """What was found, as lines of text, within so many tries. Raises DidNotComeAbout when none of these came about."""
    environment = {"CAIRNFS_FAILPOINTS": "cluster.skip_session_compare=skip"} if is_planted else {}
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options={"lease": LEASES[store]},
                                       certificates=False) as cluster:
        cluster.start()
        way = Way(cluster, cluster.hosts[1])
        cluster.hosts[1].mount(**environment)
        done = 0
        for number in range(tries + MISSED_MAX):
            if done == tries:
                break
            began = time.monotonic()
            try:
                attempt = Attempt(cluster, way, number)
                problems = attempt.run()
            except DidNotComeAbout as why:
                print(f"{number:4} metadata in {store}: did not come about: {why}", flush=True)
                cluster.wait_for_states({host.name: "up" for host in cluster.hosts}, seconds=120)
                continue
            done += 1
            print(f"{number:4} metadata in {store}: {attempt.set_before} attributes set before, {attempt.held_bytes} "
                  f"bytes on their way, {len(problems)} of {WRITERS} histories refused, {time.monotonic() - began:.1f} s", flush=True)
            if problems:
                return problems + ([] if is_planted else [cluster.logs()])
        if done == 0:
            raise DidNotComeAbout(f"in none of {tries + MISSED_MAX} tries")
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["node", "etcd", "both"], default="both")
    parser.add_argument("--tries", type=int, default=2)
    parser.add_argument("--planted", action="store_true")
    options = parser.parse_args()
    for store in ["node", "etcd"] if options.store == "both" else [options.store]:
        try:
            problems = run_on(store, options.tries, options.planted)
        except DidNotComeAbout as why:
            print(f"FAILED: metadata in {store}: did not come about {why}", flush=True)
            return 1
        if bool(problems) != options.planted:
            print("\n".join(["FAILED", *problems] if problems else
                            ["FAILED: the session's compare was left out and every history was accepted"]), flush=True)
            return 1
        if problems:
            print(f"found: {problems[0]}", flush=True)
    print("PASSED")
    return 0


if __name__ == "__main__":
    sys.exit(main())
