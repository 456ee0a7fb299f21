#!/usr/bin/env python3
"""Nodes come and go: a new one gets its share, a full cluster has room again once there is one more, and what a node
has moves away when it is drained. On a node's store and on etcd. Run as root.

Options: --seed N; node, etcd: only on that store; names of cases run these alone. --all: larger, and more rounds.
"""

import contextlib
import errno
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch
from cluster import Cluster, wait_until
from cluster_world import MIB, OPTIONS, error_of, main, read, write


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


CASES = [a_full_cluster_and_one_more_node]


if __name__ == "__main__":
    sys.exit(main(CASES))
