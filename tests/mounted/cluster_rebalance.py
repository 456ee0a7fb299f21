#!/usr/bin/env python3
"""Nodes come and go: a new one gets its share, a full cluster has room again once there is one more, and what a node
has moves away when it is drained. On the store that the seed chooses. Run as root.

Options: --seed N, which says what two of the cases are run; node, etcd: only on that store; names of cases run these
alone. --all: all cases on both stores, larger, and more rounds.
"""

import contextlib
import errno
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program
from cluster import Cluster, wait_until
from cluster_world import MIB, OPTIONS, digest, error_of, main, read, write

IS_ALL = "--all" in sys.argv


def small_disk(host, mib):
    os.makedirs(host.data)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0711", "tmpfs", host.data], check=True)


@contextlib.contextmanager
def a_cluster(world, hosts, **options):
    """Of its own; its logs are printed where the case fails."""
    store = "etcd" if world.cluster.etcd else "node"
    with Scratch() as scratch, Cluster(scratch, hosts=hosts, metadata=store, options={**OPTIONS, **options}) as cluster:
        try:
            yield cluster
        except BaseException:
            print(cluster.logs(), flush=True)
            raise


def start(cluster, hosts):
    """Only these; the others join later."""
    cluster.start_etcd()
    hosts[0].init()
    for host in hosts:
        if host is not hosts[0]:
            host.join()
        host.mount()
    cluster.wait_for_states({host.name: "up" for host in hosts}, at=hosts)


def a_full_cluster_and_one_more_node(world):
    """Three nodes of 300 MiB are full; the fourth has room for all of it, and saves go on a moment later."""
    with a_cluster(world, hosts=4) as cluster:
        *old, new = cluster.hosts
        for key in ("reserve", "segment_size"):  # those that fit the disk
            del cluster.options[key]
        for host in old:
            small_disk(host, 300)
            host.options["weight"] = 0.3
        new.options["weight"] = 20
        start(cluster, old)
        saved, number = {}, 0
        while True:
            content = world.content(8 * MIB)
            failed = error_of(write, old[number % 3].path(f"file-{number}"), content)
            if failed:
                assert failed == errno.ENOSPC, failed
                break
            saved[f"file-{number}"] = content
            number += 1
        error_of(os.unlink, old[0].path(f"file-{number}"))
        assert len(saved) > 20, len(saved)
        new.join()
        began = time.monotonic()
        new.mount()
        times = []
        for at, host in enumerate(cluster.hosts):
            content = world.content(8 * MIB)

            def can_save(host=host, content=content, name=f"after-{at}"):
                failed = error_of(write, host.path(name), content)
                assert failed in (0, errno.ENOSPC), failed
                return failed == 0
            wait_until(can_save, 60, f"{host.name} can save", every=0.5)
            times.append(f"{time.monotonic() - began:.0f} s")
            saved[f"after-{at}"] = content
        cluster.wait_for_copies(300)
        for host in cluster.hosts:
            for name, content in saved.items():
                assert read(host.path(name)) == content, (host.name, name)
            report = json.loads(host.cairnfs("check", "--data", host.data, "--json", timeout=300))
            assert report["clean"], report
        return f"full with {number} files of 8 MiB; saves after {', '.join(times)}"


class Savers:
    """On every host that has one, files are saved, read on another host, and deleted after a while, until it is left.
    What a host that dies was doing fails, and its files are those that it had saved."""

    KEPT = 12

    def __init__(self, cluster, rng):
        self.cluster, self.rng, self.problems, self.stop = cluster, rng, [], threading.Event()
        self.away, self.files, self.threads = set(), {}, []

    def add(self, host):
        thread = threading.Thread(target=self.work, args=(host, random.Random(self.rng.random())))
        self.threads.append(thread)
        thread.start()

    def work(self, host, rng):
        mine, number = [], 0
        while not self.stop.is_set():
            if host in self.away:
                time.sleep(0.1)
                continue
            name, content = f"{host.name}-{number}", rng.randbytes(rng.randrange(100_000, 3 * MIB))
            number += 1
            try:
                write(host.path(name), content)
                self.files[name] = hashlib.sha256(content).hexdigest()
                mine.append(name)
                reader = rng.choice([other for other in self.cluster.hosts if other.pid and other not in self.away])
                if digest(reader.path(rng.choice(mine))) not in self.files.values():
                    self.problems.append(f"{name} differs on {reader.name}")
                if len(mine) > self.KEPT:
                    old = mine.pop(0)
                    os.unlink(host.path(old))
                    del self.files[old]
            except OSError as error:
                if not self.away:
                    self.problems.append(f"on {host.name}: {error}")
            except KeyError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    @contextlib.contextmanager
    def without(self, host):
        """While it is away nobody is astonished by an error."""
        self.away.add(host)
        yield
        self.away.discard(host)


def kill_and_mount(savers, host):
    with savers.without(host):
        host.kill()
        time.sleep(1)
        host.mount()
        savers.cluster.wait_for_states({host.name: "up"})


def stored(host):
    return host.status()["unique_bytes"]


def moved(host):
    return host.status()["cluster"]["repair_bytes_total"]


def drain_of(at, host):
    return at.nodes()[host.name]["drain"]


def nodes_come_and_go(world):
    """Under saves and reads a node joins, and another is drained and removed; in the middle of both one is killed."""
    rounds, megabytes = (5, 10_000) if IS_ALL else (1, 100)
    with a_cluster(world, hosts=4, repair_rate="512MiB" if IS_ALL else "32MiB") as cluster:
        *_, leaves, joins = cluster.hosts
        start(cluster, cluster.hosts[:3])
        first = cluster.hosts[0]
        kept = {}
        for number in range(megabytes // 4):
            content = world.content(4 * MIB)
            write(cluster.hosts[number % 3].path(f"kept-{number}"), content)
            kept[f"kept-{number}"] = hashlib.sha256(content).hexdigest()
        times = []
        for _ in range(rounds):
            with Savers(cluster, world.random) as savers:
                for host in cluster.hosts:
                    if host is not leaves and host is not joins:
                        savers.add(host)
                joins.join()
                joins.mount()
                first.cairnfs("cluster", "wait", "--nodes", 4, "--data", first.data)
                wait_until(lambda: stored(joins) > 8 * MIB, 60, "the new node gets chunks")
                kill_and_mount(savers, cluster.hosts[1])
                wait_until(lambda: stored(joins) > megabytes / 4 * MIB, 1200, "the new node has its share", every=0.5)
                began, moved_before = time.monotonic(), moved(leaves)
                drained = json.loads(first.cairnfs("node", "drain", leaves.name, "--no-wait", "--json", "--data",
                                                   first.data))
                assert drained["draining"] and drained["name"] == leaves.name, drained
                # It frees nothing before it has looked at all of them, or thousands.
                wait_until(lambda: moved(leaves) > moved_before, 60, "it gives chunks away", every=0.05)
                with savers.without(leaves):
                    leaves.kill()
                    cluster.wait_for_states({leaves.name: "down"})
                    refused = subprocess.run(first.inside(program("cairnfs"), "node", "remove", leaves.name, "--data",
                                                          first.data), check=False, stdout=subprocess.PIPE,
                                             stderr=subprocess.STDOUT, text=True)
                    assert refused.returncode == 2 and "has not given away what it has" in refused.stdout, refused
                    leaves.mount()
                assert drain_of(first, leaves) in ("draining", "drained"), first.nodes()
                said = first.cairnfs("node", "drain", leaves.name, "--data", first.data, timeout=1200)
                assert "has nothing any more" in said, said
                times.append(f"{time.monotonic() - began:.0f} s")
                assert drain_of(first, leaves) == "drained" and stored(leaves) == 0, first.nodes()
                with savers.without(leaves):
                    leaves.umount()
                first.cairnfs("node", "remove", leaves.name, "--data", first.data)
                assert leaves.name not in first.nodes()
                leaves.wipe()
            assert not savers.problems, savers.problems[:5]
            kept.update(savers.files)
            cluster.wait_for_copies(600)
            hosts = [host for host in cluster.hosts if host.pid]
            wait_until(lambda: "nothing to do" in first.cairnfs("cluster", "status", "--data", first.data), 60,
                       "nothing is left to do")
            for host in hosts:
                for name, expected in kept.items():
                    assert digest(host.path(name)) == expected, (host.name, name)
                report = json.loads(host.cairnfs("check", "--data", host.data, "--json", timeout=1200))
                assert report["clean"], report
            leaves, joins = joins, leaves
        shares = [stored(host) for host in hosts]
        spread = max(abs(share * len(shares) / sum(shares) - 1) for share in shares)
        if IS_ALL:
            assert spread < 0.1, shares
        return f"drained in {', '.join(times)}; {100 * spread:.0f} % from equal shares"


def drains_are_refused_and_taken_back(world):
    with a_cluster(world, hosts=3) as cluster:
        cluster.start()
        one, other, third = cluster.hosts
        write(one.path("file"), world.content(8 * MIB))

        def drain(host, *words):
            command = one.inside(program("cairnfs"), "node", "drain", host.name, "--data", one.data, *words)
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=120)
            return done.returncode, done.stdout

        assert drain(third)[0] == 0
        assert drain_of(one, third) == "drained" and one.nodes()[third.name]["weight"] == 0, one.nodes()
        code, text = drain(other)
        assert code == 2 and "there are 1 nodes that take chunks, and 2 copies need as many" in text, (code, text)
        # Over a restart.
        third.umount()
        third.mount()
        assert drain_of(one, third) == "drained", one.nodes()
        write(third.path("mine"), world.content(4 * MIB))
        assert stored(third) == 0, third.status()
        assert drain(third, "--cancel") == (0, "")
        assert drain_of(one, third) == "" and one.nodes()[third.name]["weight"] > 0, one.nodes()
        assert drain(other)[0] == 0
        assert read(other.path("mine")) == read(one.path("mine"))


def call(host, *words):
    """The exit code of a command, and what it says."""
    done = subprocess.run(host.inside(program("cairnfs"), *words, "--data", host.data), check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.returncode, done.stdout


def a_new_disk_takes_the_place_of_a_lost_one(world):
    """Its failure domain and its weight, in one step: kills before and after it, and the same call again."""
    with a_cluster(world, hosts=3) as cluster:
        one, two, three = cluster.hosts
        three.options.update(failure_domain="rack7", weight=2.5)
        cluster.start()
        lost = one.nodes()[three.name]
        kept = {f"file-{number}": world.content(2 * MIB) for number in range(12)}
        for number, (name, content) in enumerate(kept.items()):
            write(cluster.hosts[number % 3].path(name), content)
        cluster.wait_for_copies()
        three.kill()
        three.wipe()
        cluster.wait_for_states({three.name: "down"}, at=[one])
        three.options.clear()
        three.join()
        three.mount(CAIRNFS_FAILPOINTS="node.replacing=kill")

        def ids():
            return {node["id"]: node for node in one.node_list()}

        def replace(node, *words):
            return call(three, "node", "replace", node, "--json", *words)
        new = next(node["id"] for node in three.node_list() if node["is_self"])
        for node, code, words in [(one.name, 5, "is up: stop it first"), (new, 2, "this host's own node"),
                                  ("nobody", 1, "there is no node 'nobody'")]:
            got, text = replace(node)
            assert got == code and words in text, (node, got, text)
        two.kill()
        cluster.wait_for_states({two.name: "down"}, at=[three])
        code, text = replace(three.name)
        assert code == 2 and f"may have the only copies of something: {two.name} is not up either" in text, (code, text)
        two.mount()
        cluster.wait_for_states({two.name: "up"}, at=[three])
        # Killed before it, nothing has changed; after it, all has.
        code, text = replace(three.name)
        assert code == 3, (code, text)
        three.kill()
        assert lost["id"] in ids(), ids()
        three.mount(CAIRNFS_FAILPOINTS="node.replaced=kill")
        assert replace(three.name)[0] == 3
        three.kill()
        assert lost["id"] not in ids(), ids()
        three.mount()
        code, text = replace(three.name)
        assert code == 0 and json.loads(text) == {"replaced": True, "id": lost["id"], "name": three.name}, (code, text)
        cluster.wait_for_states({host.name: "up" for host in cluster.hosts})
        node = ids()[new]
        assert (node["domain"], node["weight"]) == ("rack7", 2.5) and len(ids()) == 3, ids()
        cluster.wait_for_copies()
        # Each chunk lies on two nodes again: another one may go.
        two.kill()
        for name, content in kept.items():
            assert read(three.path(name)) == content, name
        code, text = call(three, "check", "--json")
        assert code == 0, text


CASES = [a_full_cluster_and_one_more_node, nodes_come_and_go, drains_are_refused_and_taken_back,
         a_new_disk_takes_the_place_of_a_lost_one]


if __name__ == "__main__":
    sys.exit(main(CASES, one_store=True, sample_of=2))
