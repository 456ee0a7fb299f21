#!/usr/bin/env python3
"""Transactions that a host has sent while its session lived, and that arrive once it has ended.

    late_transactions.py [--store node|etcd|both] [--tries N] [--planted]

Many processes on one host set attributes and make names. Then what the host sends to the store waits on its way (holding_proxy.py), and a
moment later the host is stopped. Its lease ends, another host looks at what is there and takes the directory over, and
what was on its way arrives while the host is still stopped. Nothing of it may take effect (docs/contract.md,
item 18). Then the host goes on, is told, and works under a new session.

--planted: the daemons leave the compare of the session out (cluster.skip_session_compare), and it has to be noticed.
"""

import argparse
import os
import subprocess
import sys
import threading
import time

import recorder  # first: it says where the support is found

from cairnfs_mount import Scratch
from cluster import CLIENT_PORT, METADATA_PORT, Cluster, Namespace

# A node that serves the store drops a client that answers no ping for 3 s, so the lease has to end before.
LEASES = {"node": "1s", "etcd": "3s"}
WRITERS = 12
MISSED_MAX = 8
ON_THEIR_WAY_S = 0.3  # every writer has sent a call by then
SETTLED_S = 3  # what arrived has run by then
PROXY_IP = "10.77.0.200"


class DidNotComeAbout(Exception):
    """Nothing was on its way when the lease ended: a busy machine had lost the session before. Tried again."""


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


class Marks:
    """Attributes of open files, each set over and over by a process of its own: one transaction for each call, and no
    look-up before it."""

    def __init__(self, clients, directory):
        self.clients, self.directory = clients, directory
        self.is_stopped = False
        for index, client in enumerate(clients):
            # A directory for each: who looks at several files of one takes a delegation, which is in a late change's way.
            client.must("mkdir", path=f"{directory}/{index}", mode=0o755)
            client.must("open", path=f"{directory}/{index}/mark", handle="mark")
            client.must("fsetxattr", handle="mark", token=1)
        self.threads = [threading.Thread(target=self._set, args=(client,), daemon=True) for client in clients]
        for thread in self.threads:
            thread.start()

    def _set(self, client):
        for token in range(2, 10**9):
            if client.call("fsetxattr", handle="mark", token=token).get("error", -1) != 0 or self.is_stopped:
                return

    def values(self, client):
        return [client.must("getxattr", root=self.directory, path=f"{index}/mark")["token_is"]
                for index in range(len(self.clients))]

    def stop(self):
        self.is_stopped = True
        for thread in self.threads:
            thread.join()


class Attempt:
    def __init__(self, cluster, way, number):
        self.cluster, self.way, self.name = cluster, way, f"late-{number}"
        self.victim, self.heir_host = cluster.hosts[1], cluster.hosts[2]
        self.others = [host for host in cluster.hosts if host is not self.victim]
        self.heir = self.client(self.heir_host, "heir")
        try:
            self.heir.must("mkdir", path=self.name, mode=0o755)
            self.marks = Marks([self.client(self.victim, f"writer{i}") for i in range(WRITERS)], self.name)
        except AssertionError as failure:
            raise DidNotComeAbout(str(failure)) from failure
        self.set_before = self.held_bytes = 0
        self.problems = []

    def client(self, host, what):
        return recorder.Client(f"{host.name}.{what}", host.mount_point, limit_s=90, mounted=True)

    def run(self):
        try:
            self.lose_and_deliver()
            self.go_on()
        finally:
            self.way.tell("release")
            self.victim.resume()
            self.marks.is_stopped = True
            for client in [self.heir, *self.marks.clients]:
                client.close()
        return self.problems

    def lose_and_deliver(self):
        time.sleep(1)
        self.way.tell("hold")
        time.sleep(ON_THEIR_WAY_S)
        self.victim.pause()
        self.cluster.wait_for_states({self.victim.name: "down"}, at=self.others)
        self.heir.must("rename", path=self.name, target=self.name + ".taken")
        self.marks.directory = self.name + ".taken"
        before = self.marks.values(self.heir)
        self.set_before = sum(before)
        self.held_bytes = self.way.tell("release")
        if self.held_bytes == 0:
            raise DidNotComeAbout("nothing was on its way")
        time.sleep(SETTLED_S)
        for index, (was, value) in enumerate(zip(before, self.marks.values(self.heir))):
            if value != was:
                self.problems.append(f"{self.marks.directory}/{index}: set from {was} to {value} by a host that is stopped, "
                                     "after its session ended")

    def go_on(self):
        self.victim.resume()
        self.cluster.wait_for_states({host.name: "up" for host in self.cluster.hosts}, seconds=120)
        self.marks.stop()
        last = self.client(self.victim, "after")
        last.must("setxattr", root=self.marks.directory, path="0/mark", token=-5)
        assert self.marks.values(self.heir)[0] == -5
        last.close()


def run_on(store, tries, is_planted):
    """What was found, as lines of text, within so many tries."""
    environment = {"CAIRNFS_FAILPOINTS": "cluster.skip_session_compare=skip"} if is_planted else {}
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options={"lease": LEASES[store]}) as cluster:
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
                  f"bytes on their way, {len(problems)} set late, {time.monotonic() - began:.1f} s", flush=True)
            if problems:
                return problems + ([] if is_planted else [cluster.logs()])
        if done == 0 and not is_planted:
            return [f"it did not come about in {MISSED_MAX} tries"]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["node", "etcd", "both"], default="both")
    parser.add_argument("--tries", type=int, default=2)
    parser.add_argument("--planted", action="store_true")
    options = parser.parse_args()
    for store in ["node", "etcd"] if options.store == "both" else [options.store]:
        problems = run_on(store, options.tries, options.planted)
        if bool(problems) != options.planted:
            print("\n".join(["FAILED", *problems] if problems else
                            ["FAILED: the session's compare was left out and nothing was noticed"]), flush=True)
            return 1
        if problems:
            print(f"found: {problems[0]}", flush=True)
    print("PASSED")
    return 0


if __name__ == "__main__":
    sys.exit(main())
