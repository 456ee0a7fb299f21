#!/usr/bin/env python3
"""An etcd of a small quota runs full of the names of a cluster: users are refused, then root, everything can be removed,
and names can be made again, while nobody looks after the etcd, and without it ever coming over its quota. Option:
--seed N.
"""

import errno
import itertools
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, run_cases, seed_from_arguments
from cluster import Cluster, wait_until
from cluster_full_metadata import free_inodes, make_names
from cluster_world import MIB, error_of, read, write
from full_metadata import as_user, fill, names, remove_below, xattrs

QUOTA_BYTES = 64 * MIB  # of so small a one a quarter is for names, and a sixteenth for those of users
ENOUGH_INODES = 2_000
HOG, STRANGER = 65531, 65532


def check_no_alarm(cluster):
    """etcd takes no alarm back by itself."""
    member = cluster.etcd[0]
    alarms = member.run("etcdctl", "--endpoints", member.endpoint, "alarm", "list", env={**os.environ, "ETCDCTL_API": "3"})
    assert not alarms.strip(), alarms


def fill_up(host, directory, kind, rng):
    """Until a name is refused: what other hosts let in is known after the next look, and what the history gives back is
    taken before."""
    numbers = itertools.count()
    wait_until(lambda: error_of(kind, host.path(directory), f"more-{next(numbers)}", rng) == errno.ENOSPC, 30,
               "names are refused", every=0)


def alter(host):
    """What is there can be altered yet: some is kept for that too."""
    os.chmod(host.path("root0"), 0o711)
    os.truncate(host.path("kept"), MIB // 2)


def check_both_say_so(hosts):
    for host in hosts:
        wait_until(lambda host=host: free_inodes(host) == 0, 30, f"{host.name} says that no name fits")
        assert host.status()["metadata_room_bytes"] == 0
        assert "names         full: " in host.cairnfs("status", "--data", host.data)
        assert host.log().count("gets short of room") <= 1, host.log()
    assert any("the metadata is what is full" in host.log() for host in hosts), hosts[0].log()
    assert any("of its quota are in use" in host._whole_log() for host in hosts), hosts[0].log()


def an_etcd_that_is_full_of_names_takes_removals(seed):
    rng = random.Random(seed)
    flags = ["--quota-backend-bytes", str(QUOTA_BYTES)]
    with Scratch() as scratch, Cluster(scratch, hosts=2, options={"allow_other": True}, etcd_flags=flags) as cluster:
        cluster.start()
        one, other = cluster.hosts
        write(other.path("kept"), rng.randbytes(MIB))
        for directory, uid in (("hog", HOG), ("stranger", STRANGER), ("root0", 0), ("root1", 0)):
            os.mkdir(other.path(directory))
            os.chown(other.path(directory), uid, uid)
        wait_until(lambda: min(map(free_inodes, cluster.hosts)) > ENOUGH_INODES, 30, "both hosts know the room")

        began = time.monotonic()
        as_user(STRANGER, lambda: fill(other.path("stranger"), names, rng, limit=300))
        as_user(HOG, lambda: fill(other.path("hog"), xattrs, rng, patience=1))
        as_user(STRANGER, lambda: fill_up(one, "stranger", xattrs, rng))  # who has little is refused too
        make_names(one, "root0", count=20)
        fill(other.path("root0"), xattrs, rng, patience=1.5)
        fill_up(one, "root1", xattrs, rng)
        alter(one)
        check_both_say_so(cluster.hosts)
        check_no_alarm(cluster)
        full = time.monotonic()

        other.kill()
        other.mount()
        back = time.monotonic()
        for directory in ("stranger", "root0", "root1", "hog"):
            remove_below(other.path(directory), rng)
        removed = time.monotonic()
        wait_until(lambda: min(map(free_inodes, cluster.hosts)) > ENOUGH_INODES, 60, "both hosts know that there is room")
        has_room = time.monotonic()
        os.mkdir(one.path("stranger"))
        os.chown(one.path("stranger"), STRANGER, STRANGER)
        as_user(STRANGER, lambda: make_names(one, "stranger"))
        fill(one.path("stranger"), xattrs, rng, limit=50)
        assert sorted(os.listdir(other.mount_point)) == ["kept", "stranger"], os.listdir(other.mount_point)
        assert len(read(one.path("kept"))) == MIB // 2
        check_no_alarm(cluster)
        cluster.stop()
    return (f"filled in {full - began:.0f} s, started again in {back - full:.1f} s, removed in {removed - back:.1f} s, "
            f"room back {has_room - removed:.1f} s later")


def main():
    return run_cases([an_etcd_that_is_full_of_names_takes_removals], seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
