#!/usr/bin/env python3
"""Several hosts give space back: what nothing names any more goes on each of them, and nothing else, while all of them
save, while one dies in the midst of it, and when all disks are full. On a node's store and on etcd. Run as root.

Options: --seed N; node, etcd: only on that store; names of cases run these alone. --all: each step, where else the seed
chooses, and each safeguard that is left out, which is noticed after some minutes and by chance.
"""

import concurrent.futures
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, Skip, program
from cluster import Cluster, wait_until
from cluster_world import MIB, OPTIONS, check_checkpoint, error_of, main, read, save_checkpoint, write

PLANTED = ["cluster.skip_epoch", "fs.forget_recorded"]
PLANTED_TRIES = 10
IS_ALL = "--all" in sys.argv
FAILPOINTS = ["fs.shared_collect_recording", "fs.shared_collect_begun", "fs.shared_collect_marked",
              "fs.shared_collect_swept"]


def collect(host, *words):
    return json.loads(host.cairnfs("gc", "--data", host.data, "--json", *words, timeout=300))


def stored(host):
    return host.status()["unique_bytes"]


def save(world, folder):
    files = save_checkpoint(world, folder)
    host = world.random.choice(world.hosts)
    os.rename(host.path(folder + ".tmp"), host.path(folder))
    return files


def assert_clean(host):
    report = json.loads(host.cairnfs("check", "--data", host.data, "--json", timeout=300))
    assert report["clean"], report


def what_is_deleted_goes_everywhere(world):
    kept = save(world, "kept")
    before = [stored(host) for host in world.hosts]
    save(world, "gone")
    shutil.rmtree(world.hosts[1].path("gone"))
    report = collect(world.hosts[2])
    assert report["phase"] == "done" and report["bytes_freed"] > 8 * MIB, report
    for host, bytes_before in zip(world.hosts, before):
        assert stored(host) < bytes_before + MIB, (host.name, stored(host), bytes_before)
        check_checkpoint(host, "kept", kept)
        assert_clean(host)
    parts = [node["collection"] for node in world.hosts[0].cluster_status()["nodes"]]
    assert all(part["phase"] == "done" and part["error"] == "" for part in parts), parts
    assert sum(part["bytes_freed"] for part in parts) == report["bytes_freed"], (parts, report)
    assert "freed on all nodes" in world.hosts[0].cairnfs("cluster", "status", "--data", world.hosts[0].data)
    shutil.rmtree(world.hosts[0].path("kept"))


class Churn:
    """On every host files come and go whose contents were saved, deleted and perhaps freed before; and copies of them by
    copy_file_range. Every few of them are read on all hosts before they go."""

    CONTENTS, KEPT, STEPS = 24, 3, 6000

    def __init__(self, cluster, rng):
        self.hosts, self.rng = cluster.hosts, rng
        self.contents = [rng.randbytes(rng.randrange(100_000, 3 * MIB)) for _ in range(self.CONTENTS)]
        self.choices = [rng.randrange(self.CONTENTS) for _ in range(self.STEPS)]
        self.stop, self.problems, self.saved = threading.Event(), [], 0

    def save(self, host, step):
        names = [f"step-{step}"]
        write(host.path(names[0]), self.contents[self.choices[step]])
        if step % 2 == 0:
            names.append(names[0] + "-copy")
            with open(host.path(names[0]), "rb") as source, open(host.path(names[1]), "wb") as target:
                left = os.fstat(source.fileno()).st_size
                while left > 0:
                    left -= os.copy_file_range(source.fileno(), target.fileno(), left)
        self.saved += len(names)
        return names

    def look(self, step, names):
        for host in self.hosts:
            for name in names:
                if read(host.path(name)) != self.contents[self.choices[step]]:
                    self.problems.append(f"{name} differs on {host.name}")

    def work(self, number):
        host, mine = self.hosts[number], []
        try:
            for step in range(number, self.STEPS, len(self.hosts)):
                if self.stop.is_set():
                    break
                mine.append((step, self.save(host, step)))
                if len(mine) <= self.KEPT:
                    continue
                old, names = mine.pop(0)
                self.look(old, names)
                for name in names:
                    os.unlink(self.hosts[old % len(self.hosts)].path(name))
        except OSError as error:
            self.problems.append(f"on {host.name}: {error}")

    def run(self, collections):
        """Meanwhile chunks are collected so many times."""
        with concurrent.futures.ThreadPoolExecutor() as threads:
            workers = [threads.submit(self.work, number) for number in range(len(self.hosts))]
            try:
                for _ in range(collections):
                    if self.problems or all(worker.done() for worker in workers):
                        break
                    collect(self.rng.choice(self.hosts))
            finally:
                self.stop.set()
            for worker in workers:
                worker.result()
        for host in self.hosts:
            self.problems += check_of(host)["problems"]


def check_of(host):
    done = subprocess.run(host.inside(program("cairnfs"), "check", "--data", host.data, "--json"), check=False, text=True,
                          stdout=subprocess.PIPE, timeout=300)
    return json.loads(done.stdout)


def all_save_while_chunks_are_collected(world):
    churn = Churn(world.cluster, world.random)
    churn.run(collections=100 if IS_ALL else 8)
    assert not churn.problems, churn.problems[:10]
    for name in os.listdir(world.hosts[0].mount_point):
        os.unlink(world.hosts[0].path(name))
    wait_until(lambda: collect(world.hosts[0]) and not any(stored(host) for host in world.hosts), 60, "all is freed")
    for host in world.hosts:
        assert_clean(host)
    return f"{churn.saved} files"


def a_host_dies_in_the_midst_of_it(world):
    for failpoint in FAILPOINTS if IS_ALL else world.random.sample(FAILPOINTS, 2):
        kept, gone = save(world, "kept"), save(world, "gone")
        victim = world.hosts[2]
        victim.umount()
        try:
            victim.mount(CAIRNFS_FAILPOINTS=failpoint + "=kill")
        except AssertionError as error:  # a collection that began by itself has met it already
            print(f"   {failpoint}: at the mount: {str(error).splitlines()[0]}", flush=True)
        shutil.rmtree(world.hosts[0].path("gone"))
        asked = subprocess.Popen(world.hosts[0].inside(program("cairnfs"), "gc", world.hosts[0].mount_point),
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_until(lambda: victim.pid is None or not victim.is_alive(), 120, f"{victim.name} dies at {failpoint}")
        victim.kill()
        said, _ = asked.communicate(timeout=300)
        print(f"   {failpoint}: {asked.returncode} {said.strip().splitlines()[-1]}", flush=True)
        for host in world.hosts[:2]:
            check_checkpoint(host, "kept", kept)
        victim.mount()
        world.cluster.wait_for_states({host.name: "up" for host in world.hosts})
        world.cluster.wait_for_copies()
        collect(world.hosts[1])
        for host in world.hosts:
            check_checkpoint(host, "kept", kept)
            assert_clean(host)
            assert stored(host) < sum(os.path.getsize(host.path("kept", name)) for name in kept) + MIB, host.name
        assert gone
        shutil.rmtree(world.hosts[1].path("kept"))


def deleting_makes_room_when_all_disks_are_full(world):
    """Each disk is of 300 MiB; what was deleted on one host is written again on another, again and again."""
    store = "etcd" if world.cluster.etcd else "node"
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=OPTIONS) as cluster:
        for host in cluster.hosts:
            os.makedirs(host.data)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m,mode=0711", "tmpfs", host.data], check=True)
        cluster.start()
        hosts = cluster.hosts
        written, number = [], 0
        for times in range(3):
            first, end = len(written), time.monotonic() + 60
            while True:
                name, number = f"file-{number}", number + 1
                host = hosts[number % 3]
                try:
                    write(host.path(name), os.urandom(8 * MIB))
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error
                    if len(written) > first + 10 or time.monotonic() > end:
                        break
                    time.sleep(1)  # what another host has deleted makes room a moment later
                    continue
                written.append(name)
            assert len(written) > first + 10, (times, first, len(written))
            error_of(os.unlink, hosts[0].path(name))
            for gone in written[:len(written) // 2]:
                os.unlink(hosts[times].path(gone))
            written = written[len(written) // 2:]
            print(f"   full with {2 * len(written)} files of 8 MiB", flush=True)


def a_restored_backup_is_not_collected(world):
    """What was saved after the backup is there until an operator has seen to it."""
    if not world.cluster.etcd:
        raise Skip("it restores a backup of etcd")
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata="etcd", options=OPTIONS) as cluster:
        cluster.start()
        one, other = cluster.hosts
        etcd, = cluster.etcd
        for name in ("kept", "gone"):
            write(one.path(name), world.content(4 * MIB))
        kept = read(one.path("kept"))
        collect(one)

        def restart_etcd(change):
            etcd.kill()
            change()
            etcd.serve()
            wait_until(etcd.is_healthy, 60, "etcd is there again")

        restart_etcd(lambda: shutil.copytree(etcd.data, etcd.data + ".backup"))
        cluster.wait_for_states({host.name: "up" for host in cluster.hosts})
        wait_until(lambda: error_of(os.unlink, other.path("gone")) == 0, 60, "the name is removed", every=1)
        wait_until(lambda: collect(one) and stored(one) + stored(other) < 10 * MIB, 60,
                   "its bytes are gone, once nobody has it open", every=1)
        write(one.path("later"), world.content(4 * MIB))
        restart_etcd(lambda: (shutil.rmtree(etcd.data), shutil.move(etcd.data + ".backup", etcd.data)))
        wait_until(lambda: error_of(os.listdir, other.mount_point) == 0 and "gone" in os.listdir(other.mount_point), 60,
                   "the names are those of before", every=1)
        wait_until(lambda: "held up" in one.cairnfs("cluster", "status", "--data", one.data), 60, "they are held up")
        before = stored(one)
        refused = subprocess.run(one.inside(program("cairnfs"), "gc", one.mount_point), check=False, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert refused.returncode == 5 and "--after-restore" in refused.stdout, refused
        assert stored(one) == before and before > 7 * MIB, before
        assert read(other.path("kept")) == kept
        os.unlink(other.path("gone"))
        collect(other, "--after-restore")
        assert stored(one) < 5 * MIB, stored(one)
        assert read(other.path("kept")) == kept
        assert "held up" not in one.cairnfs("cluster", "status", "--data", one.data)


def safeguards_left_out_are_noticed(world):
    """Each is left out on all hosts, and a chunk that a file needs is gone in time."""
    store = "etcd" if world.cluster.etcd else "node"
    told = []
    for planted in PLANTED:
        with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=OPTIONS) as cluster:
            os.environ["CAIRNFS_FAILPOINTS"] = planted + "=skip"
            try:
                cluster.start()
            finally:
                del os.environ["CAIRNFS_FAILPOINTS"]
            for times in range(1, PLANTED_TRIES + 1):
                churn = Churn(cluster, world.random)
                churn.run(collections=12)
                if churn.problems:
                    break
                for name in os.listdir(cluster.hosts[0].mount_point):
                    os.unlink(cluster.hosts[0].path(name))
            assert churn.problems, f"nothing is wrong without {planted}"
            told.append(f"{planted}: {churn.problems[0][:60]} (try {times})")
    return "; ".join(told)


CASES = [what_is_deleted_goes_everywhere, all_save_while_chunks_are_collected, a_host_dies_in_the_midst_of_it,
         deleting_makes_room_when_all_disks_are_full, a_restored_backup_is_not_collected]
if IS_ALL:
    CASES.append(safeguards_left_out_are_noticed)


if __name__ == "__main__":
    sys.exit(main(CASES, one_store=True))
