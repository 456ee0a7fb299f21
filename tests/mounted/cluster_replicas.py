#!/usr/bin/env python3
"""min_replicas is lowered and set back while a cluster runs: what waits for copies goes on, what is told of the copies is
true, and they are made once the node is back. On a node's store or on etcd. Run as root.

Options: --seed N, which chooses the store; --all: both; node, etcd: that one; names of cases run these alone.
"""

import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, run_cases, seed_from_arguments
from cluster import Cluster, on, wait_until
from cluster_world import stores_of

SAVED_BYTES = 3 << 20
OPTIONS = {"lease": "5s"}
# Writes argv[3] random bytes into the directory argv[1], and gives that its name.
SAVES = """
import os, random, sys
with open(sys.argv[1] + "/shard", "wb") as file:
    file.write(random.Random(sys.argv[2]).randbytes(int(sys.argv[3])))
os.rename(sys.argv[1], sys.argv[2])
"""


def set_min_replicas(host, number):
    return json.loads(host.cairnfs("cluster", "set", "min-replicas", number, "--data", host.data, "--json"))


def refusal(host, number):
    """What is said when the number is refused."""
    try:
        set_min_replicas(host, number)
    except AssertionError as error:
        return str(error)
    raise AssertionError(f"min-replicas {number} was accepted")


def begin_save(host, name):
    """A process that writes a checkpoint and commits it, and what will be in it."""
    os.mkdir(host.path(name + ".tmp"))
    words = [host.path(name + ".tmp"), host.path(name), str(SAVED_BYTES)]
    return subprocess.Popen([sys.executable, "-c", SAVES, *words]), random.Random(words[1]).randbytes(SAVED_BYTES)


def assert_waits(save):
    try:
        save.wait(3)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(f"the save did not wait, and ended with {save.returncode}")


def assert_done(save, seconds=60):
    assert save.wait(seconds) == 0, save.returncode


def read(host, name):
    with open(host.path(name, "shard"), "rb") as file:
        return file.read()


def durability(host, name):
    return os.getxattr(host.path(name, "shard"), "user.cairnfs.durability").decode()


def replicas(host):
    status = host.cluster_status()
    return status["min_replicas"], status["min_replicas_lowered"]


def name_in_file(host, number):
    with open(host.config, "a", encoding="utf-8") as config:
        config.write(f"min_replicas = {number}\n")


def a_commit_that_waits_goes_on(store):
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata=store, options=OPTIONS) as cluster:
        cluster.start()
        host, other = cluster.hosts
        assert replicas(host) == (2, False)
        assert "min_replicas = 3 is more than copies = 2" in refusal(host, 3)
        for number in ("all", 0):
            assert "is no number of copies" in refusal(host, number)
        other.kill()
        saves, saved = [], {}

        def begin(name):
            save, saved[name] = begin_save(host, name)
            saves.append(save)
            return save
        try:
            first = begin("first")
            assert_waits(first)
            assert set_min_replicas(host, 1) == {"copies": 2, "min_replicas": 1, "min_replicas_lowered": True}
            assert_done(first)
            assert durability(host, "first") == "local"
            assert replicas(host) == (1, True)
            assert host.cluster_status()["missing_copies"] > 0
            assert "min_replicas is lowered" in host.cairnfs("cluster", "status", "--data", host.data)
            assert "min_replicas is lowered: a commit needs 1 of 2 copies" in host.log(), host.log()

            # Set back, it counts for what comes; nothing is forgotten of what went before.
            assert set_min_replicas(host, "default") == {"copies": 2, "min_replicas": 2, "min_replicas_lowered": False}
            assert durability(host, "first") == "local"
            assert host.cluster_status()["missing_copies"] > 0
            second = begin("second")
            assert_waits(second)
            name_in_file(other, 1)
            other.mount()
            assert "min_replicas = 1 in the configuration does not count" in other.log(), other.log()
            assert_done(second)
        finally:
            for save in saves:
                save.kill()
        cluster.wait_for_copies()
        for name, content in saved.items():
            wait_until(lambda of=name: durability(host, of) == "replicated", 60, f"{name} has its copies")
            assert read(other, name) == content, name
        assert replicas(other) == (2, False)


def every_host_follows(store):
    with Scratch() as scratch, Cluster(scratch, hosts=3, copies=3, metadata=store, options=OPTIONS) as cluster:
        cluster.start()
        host, other, victim = cluster.hosts
        victim.kill()
        save, content = begin_save(host, "step")
        try:
            assert_waits(save)
            set_min_replicas(other, 2)
            assert_done(save)
        finally:
            save.kill()
        assert replicas(host) == replicas(other) == (2, True)
        assert "min_replicas is lowered: a commit needs 2 of 3 copies" in host.log(), host.log()
        assert durability(host, "step") == "local"

        # The number lasts longer than a daemon, and a host whose file says another one mounts.
        name_in_file(other, 3)
        other.umount()
        other.mount()
        assert replicas(other) == (2, True)
        victim.mount()
        assert replicas(victim) == (2, True)
        set_min_replicas(victim, "default")
        for one in cluster.hosts:
            wait_until(lambda at=one: replicas(at) == (3, False), 30, f"{one.name} follows")
        cluster.wait_for_copies()
        for one in cluster.hosts:
            wait_until(lambda at=one: durability(at, "step") == "replicated", 60, f"{one.name} knows of the copies")
            assert read(one, "step") == content, one.name


def main():
    return run_cases([on(store, case) for store in stores_of(seed_from_arguments())
                      for case in (a_commit_that_waits_goes_on, every_host_follows)])


if __name__ == "__main__":
    sys.exit(main())
