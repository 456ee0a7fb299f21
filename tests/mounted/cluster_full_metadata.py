#!/usr/bin/env python3
"""The disk of the host that serves the names of a cluster runs full of them, by what another host makes: that is told
on both, the host can always be started again, everything can be removed, and the room comes back. Option: --seed N.
"""

import contextlib
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, run_cases, seed_from_arguments
from cluster import Cluster, wait_until
from cluster_world import MIB, read, write
from full_metadata import SECONDS_TO_COME_BACK, as_user, fill, names, remove_below, symlinks, xattrs

DISK_BYTES = 96 * MIB
HOG, STRANGER = 65531, 65532


def free_inodes(host):
    return os.statvfs(host.mount_point).f_favail


def make_names(host, directory, count=100):
    """For whoever calls; each may be refused for a moment, while tables are merged."""
    for number in range(count):
        def is_made(number=number):
            with contextlib.suppress(OSError):
                names(host.path(directory), f"{host.name}-{os.geteuid()}-{number}", random.Random(number))
                return True
            return False
        wait_until(is_made, 60, f"{host.name} makes a name for user {os.geteuid()}", every=0.05)


def fill_up(host, others, rng):
    """As root, until all of them say that it is full; tables that are merged make room meanwhile."""
    def all_say_so():
        with contextlib.suppress(OSError):
            for _ in range(1000):
                symlinks(host.path("root"), f"more-{rng.random()}", rng)
        return all(free_inodes(each) == 0 and each.status()["metadata_room_bytes"] == 0 for each in (host, *others))
    fill(host.path("root"), xattrs, rng, patience=0.5)
    wait_until(all_say_so, 60, "each host says that no name fits", every=0.05)


def says_what_is_full(host):
    assert "names         full: " in host.cairnfs("status", "--data", host.data), host.status()
    assert "the metadata is what is full" in host.log(), host.log()
    owners = json.loads(host.cairnfs("status", "--data", host.data, "--metadata", "--json"))["metadata_owners"]
    assert {owner["uid"] for owner in owners} == {0, HOG, STRANGER} and owners[0]["bytes"] > 10 * MIB, owners


def names_of_another_host_fill_the_disk_that_serves_them(seed):
    rng = random.Random(seed)
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata="node", options={"allow_other": True}) as cluster:
        serving, other = cluster.hosts
        disk = scratch.ext4("disk", DISK_BYTES)
        serving.data = disk + "/data"
        cluster.start()
        kept = rng.randbytes(MIB)
        write(other.path("kept"), kept)
        for directory, uid in (("hog", HOG), ("stranger", STRANGER), ("root", 0)):
            os.mkdir(other.path(directory))
            os.chown(other.path(directory), uid, uid)
        free_at_first = os.statvfs(disk).f_bavail
        wait_until(lambda: min(map(free_inodes, cluster.hosts)) > 10_000, 30, "both hosts know the room")

        began = time.monotonic()
        as_user(HOG, lambda: fill(other.path("hog"), xattrs, rng))
        for host in (serving, other):
            as_user(STRANGER, lambda host=host: make_names(host, "stranger"))
        fill_up(other, [serving], rng)
        for host in (serving, other):
            says_what_is_full(host)
        full = time.monotonic()

        serving.kill()
        serving.mount()
        back = time.monotonic()
        for directory in ("hog", "stranger", "root"):
            remove_below(other.path(directory), rng)
        removed = time.monotonic()
        wait_until(lambda: os.statvfs(disk).f_bavail > free_at_first * 9 // 10, SECONDS_TO_COME_BACK, "room is back")
        wait_until(lambda: min(map(free_inodes, cluster.hosts)) > 10_000, 30, "both hosts know it")
        has_room = time.monotonic()
        os.mkdir(other.path("hog"))
        make_names(other, "hog")
        assert sorted(os.listdir(serving.mount_point)) == ["hog", "kept"], os.listdir(serving.mount_point)
        assert len(os.listdir(serving.path("hog"))) == 100
        assert read(serving.path("kept")) == kept
        cluster.stop()
    return (f"filled in {full - began:.0f} s, started again in {back - full:.1f} s, removed in {removed - back:.0f} s, "
            f"room back {has_room - removed:.1f} s later")


def main():
    return run_cases([names_of_another_host_fill_the_disk_that_serves_them], seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
