#!/usr/bin/env python3
"""The names outlive a disk: they are dumped while files are saved, and loaded elsewhere; and a host that was alone grows
into a cluster with its files, whenever it is killed in that. Run as root.

Options: --seed N, which chooses the store of some cases; --all: both; node, etcd: that one; names of cases run these
alone.
"""

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program, run_cases, seed_from_arguments
from cluster import METADATA_PORT, NETWORK, Cluster, on, wait_until
from cluster_world import MIB, OPTIONS, error_of, read, stores_of, write
from manifest import assert_same, make_tree, manifest

GROW_STEPS = ("grow.loaded", "grow.noted", "grow.decided", "grow.joined")


def call(host, *words, **environment):
    """The exit code of cairnfs, and what it said."""
    done = subprocess.run(host.inside(program("cairnfs"), *words), check=False, text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300, env={**os.environ, **environment})
    return done.returncode, done.stdout


def dump(host, file, *words):
    return json.loads(host.cairnfs("metadata", "dump", file, "--json", *(words or ("--data", host.data))))


def assert_clean(host):
    report = json.loads(host.cairnfs("check", "--data", host.data, "--json", timeout=300))
    assert report["clean"], report


def mount_alone(host):
    host.cairnfs("mount", host.mount_point, "--data", host.data, "-o", "pool_size=64MiB,reserve=8MiB,segment_size=32MiB")
    host.pid = host.status()["pid"]


def init_words(host):
    """Those of host.init, so that it can be killed."""
    cluster = host.cluster
    where = ["--metadata", cluster.etcd_url] if cluster.etcd else ["--serve-metadata", f"{host.ip}:{METADATA_PORT}"]
    agreed = ["--lease", OPTIONS["lease"], "--out-after", OPTIONS["out_after"]]
    trust = [] if cluster.certificates else ["--trusted-network", NETWORK]
    return ["cluster", "init", *trust, "--copies", "2", *where, *agreed, "--listen",
            host.listen, "--data", host.data, "--mount-point", host.mount_point, "--config", host.config, "--name",
            host.name]


def save_whole(folder, number, content):
    """A commit of some files, all of which are there once it has its name."""
    os.mkdir(f"{folder}/{number}.tmp")
    for name in range(5):
        write(f"{folder}/{number}.tmp/{name}", content + bytes([name]))
    os.rename(f"{folder}/{number}.tmp", f"{folder}/{number}")


def a_host_alone_grows(store):
    """Killed at each step it is alone as before, or a cluster; and the same call ends what was begun."""
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=OPTIONS) as cluster:
        cluster.start_etcd()
        one, two, three = cluster.hosts
        mount_alone(one)
        make_tree(one.mount_point, SEED)
        expected = manifest(one.mount_point)
        one.umount()
        seen = []
        for step in GROW_STEPS:
            code, said = call(one, *init_words(one), CAIRNFS_FAILPOINTS=step + "=kill")
            assert code == -9, (step, code, said)
            assert not os.path.exists(one.config)
            code, said = call(one, "mount", one.mount_point, "--data", one.data, "-o",
                              "pool_size=64MiB,reserve=8MiB,segment_size=32MiB")
            seen.append("alone" if code == 0 else "cluster")
            if code != 0:
                assert code == 2 and "of a cluster" in said, (step, said)
                break
            one.pid = one.status()["pid"]
            assert_same(expected, one.mount_point)
            write(one.path("after " + step), b"alone, it goes on")
            one.umount()
            mount_alone(one)
            expected = manifest(one.mount_point)
            one.umount()
        assert "cluster" in seen and len(seen) >= 3, seen
        one.init()
        if store == "node":
            assert stat.S_IMODE(os.stat(os.path.join(one.data, "shared")).st_mode) == 0o700
        one.mount()
        assert_same(expected, one.mount_point)
        for host in (two, three):
            host.join()
            host.mount()
        cluster.wait_for_states({host.name: "up" for host in cluster.hosts})
        cluster.wait_for_copies()
        for host in cluster.hosts:
            assert_same(expected, host.mount_point)
            assert_clean(host)
        os.rename(two.path("run"), two.path("moved"))
        write(three.path("moved", "new"), b"new")
        assert read(one.path("moved", "new")) == b"new"
        os.rename(two.path("moved"), two.path("run"))
        os.unlink(two.path("run", "new"))
        assert_clean(one)
        if store == "etcd":
            expected = manifest(two.mount_point)
            one.kill()
            one.wipe()
            cluster.wait_for_states({one.name: "down"}, at=[two, three])
            for host in (two, three):
                assert_same(expected, host.mount_point)
        return ", ".join(seen)


def kill_inits(one, two, words, steps):
    """One is killed at each of the steps; once it is decided whose the etcd is, two cannot have it."""
    for step in steps:
        code, said = call(one, *words, CAIRNFS_FAILPOINTS=step + "=kill")
        assert code == -9 and not os.path.exists(one.config), (step, code, said)
        if step in ("grow.made", "grow.loaded", "grow.noted"):
            continue
        code, said = call(two, *init_words(two))
        assert code == 1 and "there is a filesystem at" in said, (step, code, said)
        assert not os.path.exists(two.data) and not os.path.exists(two.config), step


def an_init_is_ended_by_its_own_directory():
    """Killed at each step, with the names in an etcd; a stranger's init there takes nothing over."""
    for steps in (["grow.joined"], ["grow.made", "grow.loaded", "grow.noted", "grow.decided", "grow.founded"]):
        with Scratch() as scratch, Cluster(scratch, hosts=2, metadata="etcd", options=OPTIONS) as cluster:
            cluster.start_etcd()
            one, two = cluster.hosts
            authority = os.path.join(scratch.path, "authority.pem")
            words = [*init_words(one), "--ca-out", authority]
            kill_inits(one, two, words, steps)
            other_words = init_words(one)
            other_words[other_words.index("--copies") + 1] = "1"
            code, said = call(one, *other_words)
            assert code == 1 and "the same call finishes it" in said, (code, said)
            assert os.path.exists(authority) == ("grow.founded" in steps)
            code, said = call(one, *words)
            assert code == 0 and os.path.exists(authority), (code, said)
            one._add_options()
            one.mount()
            two.join()
            two.mount()
            cluster.wait_for_states({host.name: "up" for host in cluster.hosts})
            content = os.urandom(MIB)
            write(two.path("file"), content)
            assert read(one.path("file")) == content
            cluster.stop()


def an_init_that_another_one_overtook_is_no_cluster():
    """It was cut short before it was decided, and another host made its own cluster there."""
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata="etcd", options=OPTIONS) as cluster:
        cluster.start_etcd()
        one, two = cluster.hosts
        assert call(one, *init_words(one), CAIRNFS_FAILPOINTS="grow.noted=kill")[0] == -9
        two.init()
        two.mount()
        os.mkdir(two.path("of the other one"))
        code, said = call(one, *init_words(one))
        assert code == 1 and "is not empty" in said, (code, said)
        assert not os.path.exists(one.config) and not os.path.exists(os.path.join(one.data, "tls", "issuer.pem"))
        mount_alone(one)
        assert os.listdir(one.mount_point) == []
        one.umount()
        assert os.listdir(two.mount_point) == ["of the other one"]
        assert len(two.node_list()) == 1
        two.umount()


class Moving(Cluster):
    """A cluster whose names move: between the first host and prefixes of one etcd."""

    def __init__(self, scratch, hosts, place, copies=2):
        super().__init__(scratch, hosts=hosts, metadata="etcd", copies=copies, options=OPTIONS, certificates=False)
        self.members = self.etcd
        self.start_etcd()
        self.be_at(place)

    def be_at(self, place):
        """place: "node", or a prefix of the etcd."""
        self.place, self.etcd = place, [] if place == "node" else self.members

    @property
    def etcd_url(self):
        return f"etcd://{self.members[0].endpoint}/{self.place}" if self.place != "node" else ""

    def load(self, file, place):
        """REQUIRES: no host is mounted. All are afterwards."""
        self.be_at(place)
        one = self.hosts[0]
        if place == "node":
            one.cairnfs("metadata", "load", file, "--data", one.data)
            os.unlink(one.config)
            one.init()  # finds the names, and writes the configuration
        else:
            one.cairnfs("metadata", "load", file, "--metadata", self.etcd_url)
            one.join()
        for host in self.hosts:
            if host is not one:
                host.join()
            host.mount()
        self.wait_for_states({host.name: "up" for host in self.hosts})


class Savers:
    """Commits on all hosts while it lives, each of some files."""

    def __init__(self, hosts, rng):
        self.hosts, self.content, self.stop = hosts, rng.randbytes(200_000), threading.Event()
        for host in hosts:
            os.mkdir(host.path(self.folder(host)))
        self.threads = [threading.Thread(target=self.save, args=(host,)) for host in hosts]

    @staticmethod
    def folder(host):
        return "of " + host.name

    def save(self, host):
        number = 0
        while not self.stop.is_set():
            save_whole(host.path(self.folder(host)), number, self.content)
            number += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def check(self, at):
        """Each commit that is there is whole; how many there are."""
        commits = 0
        for host in self.hosts:
            names = os.listdir(at.path(self.folder(host)))
            whole = sorted(int(name) for name in names if not name.endswith(".tmp"))
            assert whole == list(range(len(whole))), whole
            for name in whole:
                for number in range(5):
                    path = at.path(self.folder(host), str(name), str(number))
                    assert read(path) == self.content + bytes([number]), path
            commits += len(whole)
        return commits


def a_dump_while_all_save_is_of_one_moment(store):
    """Each commit that it has is whole. It is loaded into a store of the other kind, and so is the last one, of hosts
    that are unmounted: nothing is lost on the way."""
    here, there = ("node", "last") if store == "node" else ("cairnfs", "node")
    with Scratch() as scratch, Moving(scratch, 2, here) as cluster:
        cluster.start()
        one, two = cluster.hosts
        make_tree(one.mount_point, SEED)
        online, last = (os.path.join(scratch.path, name) for name in ("online.dump", "last.dump"))
        with Savers(cluster.hosts, random.Random(SEED)) as savers:
            wait_until(lambda: os.path.exists(one.path("of host1", "3")), 60, "some are saved")
            told = dump(two, online)
            assert told["of"] == "cluster" and told["entries"] > 200, told
        expected = manifest(one.mount_point)
        saved = savers.check(one)
        cluster.stop()
        dump(one, last, *([] if store == "node" else ["--metadata", cluster.etcd_url]))
        cluster.load(online, "online")
        commits = savers.check(two)
        assert 3 <= commits <= saved, (commits, saved)
        cluster.stop()
        cluster.load(last, there)
        for host in cluster.hosts:
            assert_same(expected, host.mount_point)
            assert_clean(host)
            assert "held up" in host.cairnfs("cluster", "status", "--data", host.data)
        code, said = call(one, "gc", one.mount_point)
        assert code == 5 and "nothing is collected" in said, said
        one.cairnfs("gc", "--after-restore", one.mount_point)
        for host in cluster.hosts:
            assert_same(expected, host.mount_point)
        write(two.path("after"), b"it goes on")
        assert read(one.path("after")) == b"it goes on"
        return f"{commits} of {saved} commits in the dump"


def the_host_with_the_names_is_lost():
    """Its names come from a dump, to a new disk; its chunks from the other hosts, but for those saved after the dump."""
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata="node", options=OPTIONS,
                                       certificates=False) as cluster:
        cluster.start()
        one, two, three = cluster.hosts
        make_tree(one.mount_point, SEED)
        write(two.path("deleted after it"), os.urandom(3 * MIB))
        expected = manifest(one.mount_point)
        cluster.wait_for_copies()
        file = os.path.join(scratch.path, "backup")
        dump(three, file)
        os.unlink(two.path("deleted after it"))
        one.cairnfs("gc", one.mount_point)  # its chunks are gone everywhere, then
        write(three.path("saved after it"), b"not in the dump")
        for host in (three, two, one):
            host.kill()
        one.wipe()
        one.cairnfs("metadata", "load", file, "--data", one.data)
        os.unlink(one.config)
        one.init()
        for host in cluster.hosts:
            host.mount()
        cluster.wait_for_states({host.name: "up" for host in (two, three)})
        wait_until(lambda: [node["state"] for node in two.node_list()] == ["up"] * 3, 60, "all are up")
        cluster.wait_for_copies()
        code, said = call(two, "check", two.mount_point)
        assert code == 4 and "damaged: deleted after it" in said and said.count("damaged: ") == 1, said
        assert error_of(os.stat, two.path("saved after it")) != 0
        del expected["deleted after it"]
        os.unlink(three.path("deleted after it"))
        for host in cluster.hosts:
            assert_same(expected, host.mount_point)
        three.cairnfs("gc", "--after-restore", three.mount_point)
        cluster.wait_for_copies()
        for host in cluster.hosts:
            assert_same(expected, host.mount_point)
            assert_clean(host)


def a_held_dump_stays_whole():
    """Everything is removed and collected after it, and is there again once it is loaded."""
    with Scratch() as scratch, Moving(scratch, 2, "cairnfs") as cluster:
        cluster.start()
        one, two = cluster.hosts
        make_tree(one.mount_point, SEED)
        write(two.path("deleted before it"), os.urandom(3 * MIB))
        os.unlink(two.path("deleted before it"))
        expected = manifest(one.mount_point)
        file, other = (os.path.join(scratch.path, name) for name in ("held", "other"))

        def held():
            told = json.loads(one.cairnfs("metadata", "holds", "--json", "--data", one.data))
            return [hold["id"] for hold in told["holds"]]

        kept = dump(two, file, "--data", two.data, "--hold", "1h")["hold"]
        released = dump(two, other, "--data", two.data, "--hold", "7d")["hold"]
        ended = dump(one, other, "--data", one.data, "--hold", "1s")["hold"]
        assert kept["complete"] and kept["host"] == two.name and kept["files"] > 50, kept
        assert held() == [kept["id"], released["id"], ended["id"]]
        one.cairnfs("metadata", "release", str(released["id"]), "--data", one.data)
        code, said = call(one, "metadata", "release", str(released["id"]), "--data", one.data)
        assert code != 0 and "no dump is held as" in said, said
        for name in os.listdir(one.mount_point):
            path = one.path(name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

        def only_one_is_left():
            two.cairnfs("gc", two.mount_point)
            return held() == [kept["id"]]

        wait_until(only_one_is_left, 60, "the time of the other is over")
        cluster.stop()
        cluster.load(file, "node")
        for host in cluster.hosts:
            assert_same(expected, host.mount_point)
            assert_clean(host)
        for words, expected in [(["--metadata", "etcd://127.0.0.1:1", "--hold", "1h"], "only a mounted host"),
                                (["--data", one.data, "--hold", "0s"], "must lie between")]:
            code, said = call(one, "metadata", "dump", other, *words)
            assert code == 2 and expected in said, (words, code, said)


def what_cannot_be_loaded_changes_nothing():
    with Scratch() as scratch, Moving(scratch, 1, "cairnfs", copies=1) as cluster:
        cluster.start()
        one, = cluster.hosts
        write(one.path("file"), b"content")
        whole = os.path.join(scratch.path, "whole")
        dump(one, whole)
        shown = json.loads(one.cairnfs("metadata", "show", whole, "--json"))
        assert shown["bytes"] == os.path.getsize(whole), shown
        bytes_of = read(whole)
        changed = bytearray(bytes_of)
        changed[len(changed) // 2] ^= 1
        cases = {
            "cut": (bytes_of[:-20], 7, "cut off at byte"),
            "changed": (bytes(changed), 7, "damaged at byte"),
            "longer": (bytes_of + b"x", 7, "something follows its end"),
            "newer": (bytes_of[:8] + b"\x09" + bytes_of[9:], 7, "format version 9, and this program reads"),
            "of something else": (b"#!/bin/sh\n" * 10, 7, "no dump of CairnFS"),
            "empty": (b"", 7, "no dump of CairnFS"),
        }
        empty = f"etcd://{cluster.members[0].endpoint}/empty"
        new = os.path.join(scratch.path, "new")
        for name, (content, expected, words) in cases.items():
            file = os.path.join(scratch.path, name)
            write(file, content)
            for where in (["--metadata", empty], ["--data", new]):
                code, said = call(one, "metadata", "load", file, *where)
                assert (code, words in said) == (expected, True), (name, code, said)
            assert call(one, "metadata", "show", file)[0] == expected, name
            assert not os.path.exists(new), name
        code, said = call(one, "cluster", "join", empty, "--config", new)
        assert code != 0 and "there is no filesystem" in said, said
        used = [(["--metadata", cluster.etcd_url], 1, "is not empty"),
                (["--data", one.data], 5, "in use by process")]
        for where, expected, words in used:
            code, said = call(one, "metadata", "load", whole, *where)
            assert (code, words in said) == (expected, True), (where, code, said)
        assert read(one.path("file")) == b"content"
        alone = cluster.hosts[0]
        one.umount()
        other = os.path.join(scratch.path, "alone")
        alone.cairnfs("mount", alone.mount_point, "--data", other, "-o", "pool_size=64MiB,reserve=8MiB")
        of_alone = os.path.join(scratch.path, "of alone")
        told = dump(alone, of_alone, "--data", other)
        assert told["of"] == "host alone", told
        alone.cairnfs("umount", alone.mount_point)
        assert dump(alone, of_alone, "--data", other)["entries"] == told["entries"]
        for file, where, expected, words in [(of_alone, ["--metadata", empty], 2, "of a host alone"),
                                             (whole, ["--data", other], 2, "is that of a host alone")]:
            code, said = call(one, "metadata", "load", file, *where)
            assert (code, words in said) == (expected, True), (where, code, said)


SEED = seed_from_arguments()
CASES = [on(store, case) for case in (a_host_alone_grows, a_dump_while_all_save_is_of_one_moment)
         for store in stores_of(SEED)]
CASES += [an_init_is_ended_by_its_own_directory, an_init_that_another_one_overtook_is_no_cluster,
          the_host_with_the_names_is_lost, a_held_dump_stays_whole, what_cannot_be_loaded_changes_nothing]

if __name__ == "__main__":
    sys.exit(run_cases(CASES))
