#!/usr/bin/env python3
"""Three hosts with one trash: what one removed another restores, a host that dies while it empties it leaves the rest to
the others, and on full nodes it goes before anybody is told that there is no room. Options:
tests/support/cluster_world.py.
"""

import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program, run_cases, seed_from_arguments
from cluster import Cluster, wait_until
from cluster_world import MIB, OPTIONS, World, read, stores_of, write

DISK_BYTES = 320 * MIB
CLEARED_AT_ONCE = 24  # names by one transaction


def trash(host, word="ls", *words):
    where = ["--mount", host.mount_point] if word == "restore" else [host.mount_point]
    return json.loads(host.cairnfs("trash", word, *where, *words, "--json"))


def entries_of(host):
    return {entry["path"]: entry for entry in trash(host)["entries"]}


def what_one_host_removed_another_restores(world):
    one, two, three = world.hosts
    content = world.random.randbytes(3 * MIB)
    os.mkdir(one.path("dir"))
    write(one.path("dir", "file"), content)
    number = os.stat(one.path("dir", "file")).st_ino
    # One that has it open there goes on reading it.
    with open(one.path("dir", "file"), "rb") as opened:
        os.unlink(two.path("dir", "file"))
        assert opened.read() == content
    for host in world.hosts:
        assert not os.path.exists(host.path("dir", "file"))
        assert list(entries_of(host)) == ["dir/file"], host.name
    assert trash(three, "restore", str(number))["path"] == three.path("dir", "file")
    for host in world.hosts:
        assert read(host.path("dir", "file")) == content, host.name
        assert os.stat(host.path("dir", "file")).st_ino == number
        assert entries_of(host) == {}, host.name
    # It is a file like others: written on one, seen on all; and removed again.
    write(two.path("dir", "file"), b"new")
    assert all(read(host.path("dir", "file")) == b"new" for host in world.hosts)
    os.rename(two.path("dir", "file"), two.path("other"))
    os.unlink(one.path("other"))
    taken = subprocess.run(one.inside(program("cairnfs"), "trash", "restore", str(number), one.path("dir")),
                           capture_output=True, text=True, timeout=60, check=False)
    assert taken.returncode == 1 and "the place that it was to get is taken" in taken.stderr, taken
    assert trash(two, "empty")["entries"] == 1


def a_tree_comes_back_on_another_host(world):
    one, two, three = world.hosts
    os.makedirs(one.path("tree", "below", "deep"))
    paths = [("tree", "a"), ("tree", "below", "b"), ("tree", "below", "deep", "c")]
    for host, path in zip(world.hosts, paths):
        write(host.path(*path), host.name.encode())
    number = os.stat(one.path("tree")).st_ino
    shutil.rmtree(two.path("tree", "below"))
    shutil.rmtree(one.path("tree"))
    done = trash(three, "restore", str(number), "--tree")
    assert done["restored"] and done["restored_count"] == 6 and done["failed"] == [], done
    for reader in world.hosts:
        for host, path in zip(world.hosts, paths):
            assert read(reader.path(*path)) == host.name.encode(), (reader.name, path)
    shutil.rmtree(one.path("tree"))
    assert trash(two, "empty")["entries"] == 6


def commit(host, name, files):
    os.makedirs(host.path(name + ".tmp", "below", "more"))
    for number in range(files):
        write(host.path(name + ".tmp", "below", "more", str(number)), b"%d" % number * 1000)
    os.rename(host.path(name + ".tmp"), host.path(name))


def a_host_that_dies_while_it_empties_leaves_the_rest(world):
    one, two, three = world.hosts
    os.mkdir(one.path("run"))
    for step in (1, 2):
        commit(one, f"run/step-{step}", 120)
    two.cairnfs("retain", two.path("run"), "--now", "--keep-last", "1", "--match", r"step-(\d+)")
    assert sorted(os.listdir(one.path("run"))) == ["step-2"]
    entry = entries_of(three)["run/step-1"]
    assert entry["by_retention"] and entry["files"] == 120, entry
    trash(three, "restore", str(entry["id"]))
    assert read(one.path("run", "step-1", "below", "more", "119")) == b"119" * 1000
    three.cairnfs("hold", three.path("run", "step-1"), "--release")
    two.cairnfs("retain", two.path("run"), "--now", "--keep-last", "1", "--match", r"step-(\d+)")
    three.umount()
    three.mount(CAIRNFS_FAILPOINTS="meta.trash_cleared=kill")
    subprocess.run(three.inside(program("cairnfs"), "trash", "empty", three.mount_point), capture_output=True, timeout=60,
                   check=False)
    wait_until(lambda: not three.is_alive(), 60, "the host dies while it empties the trash")
    three.kill()
    assert entries_of(one) == {}, "what was half removed is out of reach"

    def inodes():
        report = json.loads(one.cairnfs("check", one.mount_point, "--json"))
        return report["files"] + report["directories"]

    left = inodes_of_tree(one.mount_point)
    # The records of what the dead host took out by its last transaction are swept within a minute, which is not awaited.
    wait_until(lambda: inodes() <= left + CLEARED_AT_ONCE, 120, "the others remove the rest")
    three.mount()


def inodes_of_tree(top):
    return 1 + sum(len(folders) + len(files) for _, folders, files in os.walk(top))


def it_goes_before_a_close_lacks_room(world):
    """Many times what the nodes hold: each write, close and sync succeeds."""
    one, two, _ = world.hosts
    for number in range(14):
        host = (one, two)[number % 2]
        content = world.random.randbytes(48 * MIB)
        with open(host.path("big.tmp"), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(host.path("big.tmp"), host.path("big"))
    assert read(two.path("big")) == content
    assert len(entries_of(one)) < 13, entries_of(one)
    trash(one, "empty")
    os.unlink(one.path("big"))


CASES = (what_one_host_removed_another_restores, a_tree_comes_back_on_another_host,
         a_host_that_dies_while_it_empties_leaves_the_rest, it_goes_before_a_close_lacks_room)


def main():
    seed = seed_from_arguments()
    worst = 0
    for store in stores_of(seed):
        print(f"-- metadata: {store}", flush=True)
        with Scratch() as scratch:
            with Cluster(scratch, hosts=3, metadata=store, options={**OPTIONS, "trash": "1h"}) as cluster:
                for host in cluster.hosts:
                    host.data = scratch.ext4("disk-" + host.name, DISK_BYTES) + "/data"
                cluster.start()
                code = run_cases(CASES, World(cluster, seed))
                if code != 0:
                    print(cluster.logs(), flush=True)
                worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
