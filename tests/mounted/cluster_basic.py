#!/usr/bin/env python3
"""Three hosts, each with a mount of one filesystem: what one does the others see at once, a checkpoint that all write
and one renames, a host that dies with its disk, everything started again. On a node's store and on etcd.

Options: --seed N; node, etcd: only on that store; names of cases run these alone.
"""

import concurrent.futures
import errno
import glob
import hashlib
import json
import os
import random
import stat
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, Skip, program, run_cases, seed_from_arguments
from cluster import NETWORK, Cluster, wait_until

MIB = 1 << 20
STORES = ("node", "etcd")
LEASE_SECONDS = 2
OPTIONS = {"lease": f"{LEASE_SECONDS}s", "out_after": "4s"}


class World:
    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(seed)
        self.checkpoints = {}  # path -> {name: digest}

    @property
    def hosts(self):
        return self.cluster.hosts

    def pairs(self):
        """Every host, and the ones that look on."""
        for host in self.hosts:
            yield host, [other for other in self.hosts if other is not host]

    def content(self, size):
        return self.random.randbytes(size)


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def digest(path):
    state = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(4 * MIB):
            state.update(block)
    return state.hexdigest()


def error_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


def names_are_seen_at_once(world):
    for host, others in world.pairs():
        folder = f"names-{host.name}"
        os.mkdir(host.path(folder))
        for other in others:
            assert os.listdir(other.path(folder)) == [], other.name
            # Looked for before it is there: no host may remember that it was not.
            assert error_of(os.stat, other.path(folder, "a")) == errno.ENOENT
        write(host.path(folder, "a"), b"")
        os.symlink("a", host.path(folder, "s"))
        os.link(host.path(folder, "a"), host.path(folder, "l"))
        for other in others:
            assert sorted(os.listdir(other.path(folder))) == ["a", "l", "s"], other.name
            assert os.readlink(other.path(folder, "s")) == "a"
            assert os.stat(other.path(folder, "a")).st_nlink == 2
            assert os.stat(other.path(folder, "l")).st_ino == os.stat(host.path(folder, "a")).st_ino
        os.rename(host.path(folder, "a"), host.path(folder, "b"))
        for other in others:
            assert error_of(os.stat, other.path(folder, "a")) == errno.ENOENT
            assert stat.S_ISREG(os.stat(other.path(folder, "b")).st_mode)
        for name in ("b", "s", "l"):
            os.unlink(host.path(folder, name))
            for other in others:
                assert error_of(os.lstat, other.path(folder, name)) == errno.ENOENT, (other.name, name)
        os.rmdir(host.path(folder))
        for other in others:
            assert error_of(os.stat, other.path(folder)) == errno.ENOENT


def bytes_are_seen_after_close_and_fsync(world):
    for host, others in world.pairs():
        name = f"bytes-{host.name}"
        first, second = world.content(3 * MIB + 17), world.content(100_000)
        write(host.path(name), first)
        for other in others:
            assert os.stat(other.path(name)).st_size == len(first), other.name
            assert read(other.path(name)) == first, other.name
        descriptor = os.open(host.path(name), os.O_WRONLY)
        try:
            os.pwrite(descriptor, second, 1000)
            os.fsync(descriptor)
            expected = first[:1000] + second + first[1000 + len(second):]
            for other in others:
                assert read(other.path(name)) == expected, other.name
        finally:
            os.close(descriptor)
        os.truncate(host.path(name), 5000)
        for other in others:
            assert read(other.path(name)) == expected[:5000], other.name
        # The other way round: who looked on writes.
        write(others[0].path(name), second)
        assert read(host.path(name)) == second
        assert read(others[1].path(name)) == second


def attributes_are_seen_at_once(world):
    for host, others in world.pairs():
        name = f"attributes-{host.name}"
        write(host.path(name), b"x")
        for other in others:
            os.stat(other.path(name))
        os.chmod(host.path(name), 0o640)
        os.chown(host.path(name), 12, 34)
        os.utime(host.path(name), ns=(1_000_000_001, 2_000_000_002))
        os.setxattr(host.path(name), "user.step", b"7")
        for other in others:
            seen = os.stat(other.path(name))
            assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o640, 12, 34), other.name
            assert seen.st_mtime_ns == 2_000_000_002
            assert os.getxattr(other.path(name), "user.step") == b"7"
        os.removexattr(host.path(name), "user.step")
        for other in others:
            assert "user.step" not in os.listxattr(other.path(name))


def read_much(host, folder, rounds=40):
    """So often that the host may answer from memory, if it ever does."""
    for _ in range(rounds):
        for name in os.listdir(host.path(folder)):
            os.stat(host.path(folder, name))


def what_is_read_much_stays_true(world):
    writer, *readers = world.hosts
    os.mkdir(writer.path("hot"))
    for number in range(5):
        write(writer.path("hot", f"f{number}"), world.content(1000))
    for turn in range(4):
        for reader in readers:
            read_much(reader, "hot")
        content = world.content(2000 + turn)
        write(writer.path("hot", "f0"), content)
        os.chmod(writer.path("hot", "f1"), 0o600 + turn)
        os.rename(writer.path("hot", f"f2{'x' * turn}"), writer.path("hot", f"f2{'x' * (turn + 1)}"))
        write(writer.path("hot", f"new-{turn}"), b"new")
        for reader in readers:
            assert os.stat(reader.path("hot", "f0")).st_size == len(content), (turn, reader.name)
            assert read(reader.path("hot", "f0")) == content, (turn, reader.name)
            assert stat.S_IMODE(os.stat(reader.path("hot", "f1")).st_mode) == 0o600 + turn, (turn, reader.name)
            assert error_of(os.stat, reader.path("hot", f"f2{'x' * turn}")) == errno.ENOENT
            assert f"f2{'x' * (turn + 1)}" in os.listdir(reader.path("hot"))
            assert read(reader.path("hot", f"new-{turn}")) == b"new", (turn, reader.name)


def a_file_that_is_replaced_is_always_there(world):
    """One host renames new files over a name; whoever opens or looks at it on another finds the old one or the new. Where
    it is replaced twice within one call the caller may be told to look again (ESTALE), but never that nothing is there."""
    maker, others = world.hosts[0], world.hosts[1:]
    write(maker.path("latest"), b"step 0")
    done = threading.Event()

    def replace():
        for step in range(1, 150):
            write(maker.path("latest.tmp"), b"step %d" % step)
            os.rename(maker.path("latest.tmp"), maker.path("latest"))
            time.sleep(0.02)

    def look(host):
        path, looks, stale = host.path("latest"), 0, 0
        while not done.is_set():
            for call in (lambda: os.stat(path), lambda: read(path), lambda: os.utime(path),
                         lambda: os.close(os.open(path, os.O_RDWR | os.O_CREAT)), lambda: os.listxattr(path)):
                looks += 1
                if error := error_of(call):
                    assert error == errno.ESTALE, (host.name, errno.errorcode[error])
                    stale += 1
        return looks, stale

    with concurrent.futures.ThreadPoolExecutor() as threads:
        looking = [threads.submit(look, host) for host in others]
        try:
            replace()
        finally:
            done.set()
        looks, stale = map(sum, zip(*(one.result() for one in looking)))
    assert stale <= looks / 4, (looks, stale)
    for host in others:
        assert read(host.path("latest")) == b"step 149"
    return f"looked at {looks} times, of which {stale} were to look again"


def a_paused_host_holds_nobody_up(world):
    """A stopped daemon that may remember what is changed delays the change by no more than its lease."""
    writer, *_, paused = world.hosts
    os.mkdir(writer.path("paused"))
    write(writer.path("paused", "f"), b"before")
    read_much(paused, "paused")
    paused.pause()
    try:
        began = time.monotonic()
        os.chmod(writer.path("paused", "f"), 0o600)
        os.mkdir(writer.path("paused", "d"))
        seconds = time.monotonic() - began
    finally:
        paused.resume()
    assert seconds < 3 * LEASE_SECONDS, seconds
    assert stat.S_IMODE(os.stat(paused.path("paused", "f")).st_mode) == 0o600
    assert sorted(os.listdir(paused.path("paused"))) == ["d", "f"]
    world.cluster.wait_for_states({host.name: "up" for host in world.hosts})
    return f"delayed by {seconds:.1f} s"


def disjoint_ranges_of_one_file_stay(world):
    """Three hosts write a third each, at the same time, through descriptors that were open before."""
    size = 4 * MIB
    write(world.hosts[0].path("shared"), bytes(size * len(world.hosts)))
    parts = [world.content(size) for _ in world.hosts]
    descriptors = [os.open(host.path("shared"), os.O_WRONLY) for host in world.hosts]

    def write_part(number):
        os.pwrite(descriptors[number], parts[number], number * size)
        os.close(descriptors[number])

    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(write_part, range(len(parts))))
    for host in world.hosts:
        assert read(host.path("shared")) == b"".join(parts), host.name


def save_checkpoint(world, folder, ranks_of=None):
    """Every host writes its files below folder.tmp; what was written, by name."""
    os.mkdir(world.hosts[0].path(folder + ".tmp"))
    files = {}

    def write_rank(rank, contents):
        host = (ranks_of or world.hosts)[rank]
        for name, content in contents.items():
            write(host.path(folder + ".tmp", name), content)

    ranks = range(len(ranks_of or world.hosts))
    contents = [{f"rank-{rank}-{number}": world.content(world.random.randrange(1, 6 * MIB)) for number in range(3)}
                for rank in ranks]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(write_rank, ranks, contents))
    for content in contents:
        files.update({name: hashlib.sha256(data).hexdigest() for name, data in content.items()})
    return files


def check_checkpoint(host, folder, files):
    assert sorted(os.listdir(host.path(folder))) == sorted(files), host.name
    for name, expected in files.items():
        assert digest(host.path(folder, name)) == expected, (host.name, folder, name)


def a_checkpoint_of_all_hosts(world):
    for step, host in enumerate(world.hosts):
        folder = f"step-{step}"
        files = save_checkpoint(world, folder)
        os.rename(host.path(folder + ".tmp"), host.path(folder))
        for other in world.hosts:
            assert error_of(os.stat, other.path(folder + ".tmp")) == errno.ENOENT
            check_checkpoint(other, folder, files)
            assert os.getxattr(other.path(folder), "user.cairnfs.durability") == b"replicated", other.name
        world.checkpoints[folder] = files


def commit_by_ranks(hosts, folder, ranks, timeout="60s"):
    """cairnfs commit on each of the hosts at once, as ranks 0, 1, ...: what became of each call."""
    def commit(rank):
        host = hosts[rank]
        command = [program("cairnfs"), "commit", "--ranks", str(ranks), "--timeout", timeout,
                   host.path(folder + ".tmp"), host.path(folder)]
        return subprocess.run(host.inside(*command), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120, env={**os.environ, "RANK": str(rank)})

    with concurrent.futures.ThreadPoolExecutor() as threads:
        return list(threads.map(commit, range(len(hosts))))


def a_commit_by_all_ranks(world):
    """cairnfs commit on every host: all return when the last has come, and the directory has its final name."""
    files = save_checkpoint(world, "gated")
    done = commit_by_ranks(world.hosts, "gated", len(world.hosts))
    assert all(result.returncode == 0 for result in done), [result.stdout for result in done]
    for host in world.hosts:
        check_checkpoint(host, "gated", files)
    world.checkpoints["gated"] = files
    # One does not come: the others say which.
    os.mkdir(world.hosts[0].path("late.tmp"))
    for result in commit_by_ranks(world.hosts[:-1], "late", len(world.hosts), "2s"):
        assert result.returncode == 1, result
        assert "rank 2 did not come within 2 s" in result.stdout, result.stdout
    assert error_of(os.stat, world.hosts[0].path("late")) == errno.ENOENT
    os.rmdir(world.hosts[1].path("late.tmp"))


def a_commit_by_ranks_of_another_user(world):
    """Ranks need not run as the daemon's user: they may commit what they may rename, and nothing else."""
    nobody = 65534
    ranks = range(len(world.hosts))

    def commit(rank, folder, timeout="60s"):
        host = world.hosts[rank]
        command = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", program("cairnfs"), "commit",
                   "--ranks", str(len(world.hosts)), "--timeout", timeout, host.path(folder + ".tmp"),
                   host.path(folder)]
        return subprocess.run(host.inside(*command), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120, env={**os.environ, "RANK": str(rank)})

    home = world.hosts[0].path("home")
    os.mkdir(home)
    os.chown(home, nobody, nobody)
    os.mkdir(os.path.join(home, "step.tmp"))
    os.chown(os.path.join(home, "step.tmp"), nobody, nobody)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda rank: commit(rank, "home/step"), ranks))
    assert all(result.returncode == 0 for result in done), [result.stdout for result in done]
    assert os.path.isdir(world.hosts[1].path("home", "step"))
    os.mkdir(world.hosts[0].path("roots.tmp"))
    refused = commit(0, "roots", "30s")
    assert refused.returncode == 6 and "Permission denied" in refused.stdout, refused
    status = world.hosts[0].inside("setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups",
                                   program("cairnfs"), "status", "--data", world.hosts[0].data)
    assert subprocess.run(status, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0
    os.rmdir(world.hosts[1].path("roots.tmp"))
    os.rmdir(world.hosts[1].path("home", "step"))
    os.rmdir(world.hosts[2].path("home"))


def nodes_are_listed(world):
    for host in world.hosts:
        nodes = host.nodes()
        assert sorted(nodes) == sorted(other.name for other in world.hosts), nodes
        for other in world.hosts:
            node = nodes[other.name]
            assert node["state"] == "up" and node["address"] == other.listen, node
            assert node["is_self"] == (other is host)
        wait_until(lambda at=host: all("available_bytes" in node for node in at.nodes().values()), 30,
                   "every node has told its space")
        status = host.cluster_status()
        assert status["copies"] == 2 and status["nodes_up"] == 3, status
        assert "3 up" in host.cairnfs("cluster", "status", "--data", host.data)


def a_bad_copy_is_repaired_by_a_check(world):
    content = world.content(20_000)
    with open(world.hosts[1].path("bad"), "wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
    copies = [(host, segment, read(segment).find(content[1000:1064])) for host in world.hosts
              for segment in glob.glob(os.path.join(host.data, "segments", "segment-*"))]
    host, segment, at = next(copy for copy in copies if copy[2] >= 0)
    with open(segment, "r+b") as file:
        file.seek(at)
        file.write(bytes([content[1000] ^ 1]))
        file.flush()
        os.fsync(file.fileno())
    told = host.cairnfs("check", "--data", host.data)
    assert f"repaired: {os.path.basename(segment)}: chunk " in told and "read: clean, 1 repaired" in told, told
    assert "; replaced by another node's copy; it is part of bad (inode " in told and "damaged:" not in told, told
    report = json.loads(host.cairnfs("check", "--data", host.data, "--json"))
    assert report["clean"] and report["repaired_count"] == 0, report
    assert read(host.path("bad")) == content
    world.cluster.wait_for_copies()


def a_host_dies_with_its_disk(world):
    world.cluster.wait_for_copies()
    victim = world.hosts[-1]
    others = world.hosts[:-1]
    victim.kill()
    victim.wipe()
    for host in others:
        for folder, files in world.checkpoints.items():
            check_checkpoint(host, folder, files)
    world.cluster.wait_for_states({victim.name: "out"}, 60)
    world.cluster.wait_for_copies(120)
    # It comes back with an empty disk, as another node; what was on the two that are left is on each of them.
    victim.mount()
    others[-1].kill()
    for host in (victim, others[0]):
        for folder, files in world.checkpoints.items():
            check_checkpoint(host, folder, files)
    others[-1].mount()
    out = [node for node in others[0].nodes().values() if node["state"] == "out"]
    for node in out:
        others[0].cairnfs("node", "forget", node["id"], "--data", others[0].data)
    world.cluster.wait_for_states({host.name: "up" for host in world.hosts})
    assert len(others[0].nodes()) == len(world.hosts), others[0].nodes()


def a_host_that_stays_away_is_replaced(world):
    """Past out_after the others copy what it held, until each chunk has its copies again; it comes back with its disk."""
    world.cluster.wait_for_copies()
    first, second, victim = world.hosts
    node = first.nodes()[victim.name]["id"]
    victim.kill()
    began = time.monotonic()
    world.cluster.wait_for_states({victim.name: "down"})
    folder = "while-away"
    os.mkdir(first.path(folder + ".tmp"))
    content = world.content(3 * MIB)
    write(second.path(folder + ".tmp", "file"), content)
    os.rename(first.path(folder + ".tmp"), first.path(folder))
    world.checkpoints[folder] = {"file": hashlib.sha256(content).hexdigest()}
    world.cluster.wait_for_states({victim.name: "out"})
    away = time.monotonic() - began
    assert away >= 4, away
    world.cluster.wait_for_copies()
    # Two copies on two hosts: either of them has all of it.
    second.kill()
    for name, files in world.checkpoints.items():
        check_checkpoint(first, name, files)
    second.mount()
    victim.mount()
    world.cluster.wait_for_states({host.name: "up" for host in world.hosts})
    assert first.nodes()[victim.name]["id"] == node, first.nodes()
    world.cluster.wait_for_copies()
    for name, files in world.checkpoints.items():
        check_checkpoint(victim, name, files)
    return f"out after {away:.1f} s"


def everything_starts_again(world):
    world.cluster.stop()
    for host in world.hosts:
        host.mount()
    world.cluster.wait_for_states({host.name: "up" for host in world.hosts})
    for host in world.hosts:
        for folder, files in world.checkpoints.items():
            check_checkpoint(host, folder, files)
    # And after kill -9 of all at once.
    for host in world.hosts:
        host.kill()
    for host in world.hosts:
        host.mount()
    for host in world.hosts:
        for folder, files in world.checkpoints.items():
            check_checkpoint(host, folder, files)


def a_directory_belongs_to_its_cluster(world):
    """What is refused: another cluster's directory, a host alone, an address outside the trusted network."""
    host = world.hosts[-1]
    host.umount()

    def refusal(*words):
        done = subprocess.run(host.inside(program("cairnfs"), "mount", host.mount_point, *words), check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        assert done.returncode == 2, done
        return done.stdout

    assert "belongs to filesystem" in refusal("--data", host.data)
    assert "does not lie in trusted_network" in refusal("--config", host.config, "-o", "listen=127.0.0.1:7401")
    assert "must be the same on every host" in refusal("--config", host.config, "-o", "copies=3")
    alone = host.data + "-alone"
    host.cairnfs("mount", host.mount_point, "--data", alone, "-o", "pool_size=64MiB,reserve=8MiB")
    write(host.path("mine"), b"x")
    host.cairnfs("umount", host.mount_point)
    assert "of a host alone and holds files" in refusal("--config", host.config, "--data", alone)
    host.mount()
    world.cluster.wait_for_states({host.name: "up"})


def a_prefix_belongs_to_its_cluster(world):
    """Clusters share an etcd where none begins with another's prefix."""
    cluster, host = world.cluster, world.hosts[0]
    if not cluster.etcd:
        raise Skip("a node's store has no prefix")
    made = 0

    def init(prefix):
        nonlocal made
        made += 1
        own = f"{host.data}-other{made}"
        metadata = cluster.etcd_url.removesuffix("/cairnfs") + prefix
        command = ["cluster", "init", "--listen", host.listen, "--trusted-network", NETWORK, "--metadata", metadata,
                   "--data", own, "--config", own + ".toml"]
        done = subprocess.run(host.inside(program("cairnfs"), *command), check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        assert os.path.exists(own + ".toml") == (done.returncode == 0), done
        return done

    refused = init("/cairnfs/more")
    assert refused.returncode == 2 and "the prefix /cairnfs/more/ of " in refused.stdout, refused
    assert f"lies below /cairnfs/, that of filesystem {host.cluster_status()['filesystem']}:" in refused.stdout, refused
    other = init("/team/ckpt")
    assert other.returncode == 0, other
    filesystem = other.stdout.split()[2].rstrip(";")
    for prefix, where in (("/team", "above"), ("/team/ckpt/k/x/", "below")):
        refused = init(prefix)
        assert refused.returncode == 2, refused
        assert f"lies {where} /team/ckpt/, that of filesystem {filesystem}:" in refused.stdout, refused
    assert init("/team/ckpt2").returncode == 0


def a_start_that_fails_leaves_no_node(world):
    """Each fails after the node has joined: on its own address, and on what comes after the mount."""
    host, other = world.hosts[-1], world.hosts[0]
    host.umount()

    def ids():
        return sorted(node["id"] for node in json.loads(
            other.cairnfs("node", "list", "--data", other.data, "--json"))["nodes"])

    known = ids()
    for data, option, text in ((host.data + "-listens", "listen=10.77.0.250:7401", "10.77.0.250:7401"),
                               (host.data + "-mounts", "metrics_address=10.77.0.250:9464", "cannot serve metrics on")):
        done = subprocess.run(host.inside(program("cairnfs"), "mount", host.mount_point, "--config", host.config,
                                          "--data", data, "-o", option, "-o", "weight=0"), check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        assert done.returncode != 0 and text in done.stdout, done
        with open(os.path.join(data, "cairnfs.log"), encoding="utf-8") as log:
            assert "joined the cluster" in log.read()
        wait_until(lambda: ids() == known, 30, f"{other.name} lists {known}, and not {ids()}")
    host.mount()
    world.cluster.wait_for_states({each.name: "up" for each in world.hosts})
    assert ids() == known


def a_commit_that_lost_bytes_says_so(world):
    """A host dies whose bytes were closed and had not reached another one: the commit names the host and the file."""
    cluster = world.cluster
    if not cluster.etcd:
        raise Skip("the host that serves the metadata cannot be cut off from one host alone")
    victim, host = world.hosts[-1], world.hosts[0]
    os.mkdir(host.path("torn.tmp"))
    write(host.path("torn.tmp", "whole"), world.content(MIB))
    for other in world.hosts[:-1]:
        cluster.cut(victim, other)
    write(victim.path("torn.tmp", "lost"), world.content(2 * MIB))
    assert os.stat(host.path("torn.tmp", "lost")).st_size == 2 * MIB
    victim.kill()
    cluster.heal()
    cluster.wait_for_states({victim.name: "down"})
    assert error_of(os.rename, host.path("torn.tmp"), host.path("torn")) == errno.EIO
    failures = host.status()["failures"]
    assert failures and "torn.tmp" in failures[0], failures
    assert victim.name in failures[0] and "lost" in failures[0], failures
    torn = [failure for failure in failures if "torn.tmp" in failure]
    for names, expected in (((), failures), (("torn.tmp",), torn), (("torn.tmp", "lost"), torn), (("torn.tm",), [])):
        told = json.loads(host.cairnfs("status", host.path(*names), "--json"))["failures"]
        assert told == expected, (names, told)
    # All ranks hear of it, whichever of them renames.
    for result in commit_by_ranks(world.hosts[:-1], "torn", len(world.hosts) - 1):
        assert result.returncode == 1 and victim.name in result.stdout and "torn.tmp/lost" in result.stdout, result
    os.unlink(host.path("torn.tmp", "lost"))
    os.rename(host.path("torn.tmp"), host.path("torn"))
    assert os.listdir(world.hosts[1].path("torn")) == ["whole"]
    victim.mount()
    cluster.wait_for_states({other.name: "up" for other in world.hosts})


CASES = (nodes_are_listed, names_are_seen_at_once, bytes_are_seen_after_close_and_fsync, attributes_are_seen_at_once,
         what_is_read_much_stays_true, a_file_that_is_replaced_is_always_there, a_paused_host_holds_nobody_up,
         disjoint_ranges_of_one_file_stay, a_checkpoint_of_all_hosts, a_commit_by_all_ranks,
         a_commit_by_ranks_of_another_user, a_bad_copy_is_repaired_by_a_check, a_host_dies_with_its_disk,
         a_host_that_stays_away_is_replaced, a_commit_that_lost_bytes_says_so, everything_starts_again,
         a_directory_belongs_to_its_cluster, a_prefix_belongs_to_its_cluster, a_start_that_fails_leaves_no_node)


def main():
    seed = seed_from_arguments()
    stores = [store for store in STORES if store in sys.argv[1:]] or STORES
    sys.argv = [word for word in sys.argv if word not in STORES]
    worst = 0
    for store in stores:
        print(f"-- metadata: {store}", flush=True)
        with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=OPTIONS) as cluster:
            cluster.start()
            code = run_cases(CASES, World(cluster, seed))
            if code != 0:
                print(cluster.logs(), flush=True)
            worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
