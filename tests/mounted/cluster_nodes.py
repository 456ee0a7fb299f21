#!/usr/bin/env python3
"""Three hosts with one filesystem and without certificates, while hosts join, are refused, die with their disk or stay away, and everything is
started again. Options: tests/support/cluster_world.py.
"""

import errno
import glob
import hashlib
import json
import os
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Skip, program, resident_bytes, run
from cluster import METADATA_PORT, NETWORK, PEER_PORT, Namespace, wait_until
from cluster_world import (MIB, OUT_AFTER_SECONDS, a_checkpoint_of_all_hosts, check_checkpoint, commit_by_ranks,
                           error_of, main, read, write)


UNFINISHED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "unfinished_messages.py")


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
    lost = others[0].nodes()[victim.name]["id"]
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
    # Two nodes have its name now.
    states = {node["id"]: node["state"] for node in others[0].node_list()}
    assert states[lost] == "out", states
    removed = others[0].cairnfs("node", "remove", "--lost", lost[:8], "--data", others[0].data, "--json")
    assert json.loads(removed) == {"removed": True, "id": lost, "name": victim.name}, removed
    world.cluster.wait_for_states({host.name: "up" for host in world.hosts})
    names = [node["name"] for node in others[0].node_list()]
    assert names == sorted(host.name for host in world.hosts), names


def a_host_that_stays_away_is_replaced(world):
    """Past out_after the others copy what it held, until each chunk has its copies again; it comes back with its disk."""
    world.cluster.wait_for_copies()
    first, second, victim = world.hosts
    node = first.nodes()[victim.name]["id"]
    began = time.monotonic()
    victim.kill()
    world.cluster.wait_for_states({victim.name: "down"})
    folder = "while-away"
    os.mkdir(first.path(folder + ".tmp"))
    content = world.content(3 * MIB)
    write(second.path(folder + ".tmp", "file"), content)
    os.rename(first.path(folder + ".tmp"), first.path(folder))
    world.checkpoints[folder] = {"file": hashlib.sha256(content).hexdigest()}
    world.cluster.wait_for_states({victim.name: "out"})
    away = time.monotonic() - began
    assert away >= OUT_AFTER_SECONDS, away
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


def strangers_are_no_nodes(world):
    """Users of a node's host other than root, and hosts outside of the trusted network, are refused at each port."""
    cluster, host = world.cluster, world.hosts[0]
    nobody = 65534
    outsider = Namespace(cluster, "outsider", "10.78.0.9")
    run("ip", "-n", outsider.netns, "route", "add", NETWORK, "dev", "eth0")
    run("ip", "-n", host.netns, "route", "add", "10.78.0.0/24", "dev", "eth0")
    own = host.data + "-asked"

    def ask(at, port, uid):
        command = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", program("cairnfs"), "cluster",
                   "join", f"{host.ip}:{port}", "--listen", f"{host.ip}:7499", "--data", own, "--config", own + ".toml"]
        return subprocess.run(at.inside(*command), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120)

    for port in [PEER_PORT] if cluster.etcd else [PEER_PORT, METADATA_PORT]:
        for at, uid in ((host, nobody), (outsider, 0)):
            refused = ask(at, port, uid)
            assert refused.returncode == 6 and f"refused by the node at {host.ip}:{port}:" in refused.stdout, refused
            assert "on its own host processes of root alone" in refused.stdout, refused
        served = ask(host, port, 0)
        if port == PEER_PORT:
            assert served.returncode == 2 and "serves no metadata" in served.stdout, served
        else:
            assert served.returncode == 0, served
    assert f"on this host, is of nobody (uid {nobody})" in host.log(), host.log()


def unfinished_messages_are_bounded(world):
    """Whoever may connect sends 200 messages of 12 MiB that never end: memory stays, and saves go on."""
    first, other = world.hosts[0], world.hosts[1]
    sender = Namespace(world.cluster, "sender", "10.77.0.201")
    ports = [(PEER_PORT, "/cairnfs.Peer/Put")]
    if not world.cluster.etcd:
        ports.append((METADATA_PORT, "/cairnfs.kvnet.proto.Kv/Commit"))
    before = resident_bytes(first.pid)
    for port, path in ports:
        attack = sender.start(sys.executable, UNFINISHED, first.ip, port, path, 200, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
        told = []
        reader = threading.Thread(target=lambda attack=attack, told=told: told.append(attack.stdout.readline()))
        reader.start()
        while reader.is_alive():
            content = world.content(2 * MIB)
            write(other.path("beside-unfinished"), content)
            assert read(world.hosts[2].path("beside-unfinished")) == content
        growth = resident_bytes(first.pid) - before
        outcome = json.loads(attack.stdout.readline())
        attack.stdin.close()
        assert attack.wait() == 0
        assert outcome["ended"] > 100, outcome
        assert growth < 600 * MIB, f"{growth / MIB:.0f} MiB more, {outcome}"


def init_says_who_is_obeyed(world):
    host = world.hosts[0]
    own = host.data + "-warned"

    def init(*words):
        return subprocess.run(host.inside(program("cairnfs"), "cluster", "init", "--listen", f"{host.ip}:7499", "--data",
                                          own, "--config", own + ".toml", *words),
                              check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)

    wide = init("--trusted-network", "8.0.0.0/6")
    assert wide.returncode == 2 and "is no private network" in wide.stdout and "--i-know" in wide.stdout, wide
    made = init("--trusted-network", "8.0.0.0/6", "--i-know")
    assert made.returncode == 0 and "any local user of a host there, is obeyed as a node" in made.stdout, made


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
        return sorted(node["id"] for node in other.node_list())

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
    """A host dies while closes wait for bytes to reach another one, of a new file and of one that was there: the commit
    names the host and the files."""
    cluster = world.cluster
    if not cluster.etcd:
        raise Skip("the host that serves the metadata cannot be cut off from one host alone")
    victim, host = world.hosts[-1], world.hosts[0]
    os.mkdir(host.path("torn.tmp"))
    write(host.path("torn.tmp", "whole"), world.content(MIB))
    write(host.path("torn.tmp", "changed"), world.content(MIB))
    for other in world.hosts[:-1]:
        cluster.cut(victim, other)
    closed = []

    def change(path, content):
        with open(path, "r+b") as file:
            file.write(content)

    def start(call, name):
        content = world.content(MIB // 2)
        thread = threading.Thread(target=lambda: closed.append(error_of(call, victim.path("torn.tmp", name), content)))
        thread.start()
        return thread
    writers = [start(write, "lost"), start(change, "changed")]
    writers[0].join(3)
    assert not closed, f"a close did not wait, and ended with {closed}"
    assert os.stat(host.path("torn.tmp", "lost")).st_size == 0
    victim.kill()
    for writer in writers:
        writer.join(30)
    assert len(closed) == 2 and all(closed), closed
    cluster.heal()
    cluster.wait_for_states({victim.name: "down"})
    assert error_of(os.rename, host.path("torn.tmp"), host.path("torn")) == errno.EIO
    failures = host.status()["failures"]
    assert failures and failures[0]["directory"].endswith("torn.tmp"), failures
    cause = failures[0]["causes"][0]
    assert cause["host"] == victim.name and "lost" in cause["cause"] and "torn.tmp/" in cause["file"], failures
    torn = [failure for failure in failures if "torn.tmp" in failure["directory"]]
    os.mkdir(host.path("torn.tm"))
    for names, expected in (((), failures), (("torn.tmp",), torn), (("torn.tmp", "lost"), torn), (("torn.tm",), [])):
        told = json.loads(host.cairnfs("status", host.path(*names), "--json"))["failures"]
        assert told == expected, (names, told)
    # So does every host, and the directory itself.
    for each in world.hosts[:-1]:
        wait_until(lambda at=each: at.status()["failures"] == failures)
        refused = json.loads(os.getxattr(each.path("torn.tmp"), "user.cairnfs.refused"))
        assert refused["host"] == host.name and [dict(one, file="torn.tmp/" + one["file"]) for one in refused["causes"]] \
            == failures[0]["causes"], refused
    # All ranks hear of it, whichever of them renames.
    for result in commit_by_ranks(world.hosts[:-1], "torn", len(world.hosts) - 1):
        assert result.returncode == 1 and victim.name in result.stdout and "torn.tmp/lost" in result.stdout, result
    os.unlink(host.path("torn.tmp", "lost"))
    assert error_of(os.rename, host.path("torn.tmp"), host.path("torn")) == errno.EIO
    assert host.status()["failures"][0]["causes"][0]["file"] == "torn.tmp/changed", host.status()["failures"]
    write(host.path("torn.tmp", "changed"), b"again")
    os.rename(host.path("torn.tmp"), host.path("torn"))
    assert sorted(os.listdir(world.hosts[1].path("torn"))) == ["changed", "whole"]
    victim.mount()
    cluster.wait_for_states({other.name: "up" for other in world.hosts})


CASES = (nodes_are_listed, a_checkpoint_of_all_hosts, a_bad_copy_is_repaired_by_a_check, a_host_dies_with_its_disk,
         a_host_that_stays_away_is_replaced, a_commit_that_lost_bytes_says_so, everything_starts_again,
         a_directory_belongs_to_its_cluster, strangers_are_no_nodes, unfinished_messages_are_bounded,
         init_says_who_is_obeyed, a_prefix_belongs_to_its_cluster, a_start_that_fails_leaves_no_node)


if __name__ == "__main__":
    sys.exit(main(CASES, certificates=False, one_store=True))
