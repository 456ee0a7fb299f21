#!/usr/bin/env python3
"""A standby for the host that serves the names: three hosts, saves that go on, and the loss of the one that serves.
Options: --seed N; --rounds N: so many losses (1); --all: all cases, where the seed chooses one beside the losses; names
of cases run these alone.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program, run_cases, seed_from_arguments
from cluster import METADATA_PORT, Cluster, wait_until
from cluster_world import OPTIONS, digest, read, write

SKIPPED = "standby.before_ship=skip"  # the primary acknowledges what its standby does not have


class StandbyCluster(Cluster):
    """Three hosts that may all serve the names; the first does."""

    def start(self):
        addresses = [f"{host.ip}:{METADATA_PORT}" for host in self.hosts[:3]]
        self.hosts[0].options["metadata"] = "node:" + ",".join(addresses)
        for host, address in zip(self.hosts[1:3], addresses[1:]):
            host.options["serve_metadata"] = address
        super().start()

    def follow(self, primary, standby):
        primary.cairnfs("metadata", "standby", standby.name, "--data", primary.data)
        self.wait_for_names(primary, "whole", standby)

    def wait_for_names(self, at, state, standby, seconds=60):
        def is_so():
            names = at.cluster_status()["names"]
            return names["state"] == state and names["standby"] == standby.name
        wait_until(is_so, seconds, f"the names of {standby.name} are {state}")

    def promote(self, standby, *options):
        return json.loads(standby.cairnfs("metadata", "promote", "--data", standby.data, "--json", *options))


class Saver:
    """Saves checkpoints on a host until it is told to stop, and knows which of them were acknowledged."""

    def __init__(self, host, seed):
        self.host, self.random = host, random.Random(seed)
        self.saved, self.failures, self.is_ending = {}, [], False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        number = 0
        while not self.is_ending:
            folder = f"{self.host.name}-{self.random.randrange(1 << 40)}-{number}"
            number += 1
            try:
                self._save(folder)
            except OSError as error:
                self.failures.append(f"{folder}: {error}")

    def _save(self, folder):
        os.mkdir(self.host.path(folder + ".tmp"))
        files = {}
        for name in ("a", "b"):
            content = self.random.randbytes(self.random.randrange(1, 60_000))
            write(self.host.path(folder + ".tmp", name), content)
            files[name] = hashlib.sha256(content).hexdigest()
        os.rename(self.host.path(folder + ".tmp"), self.host.path(folder))
        self.saved[folder] = files

    def stop(self):
        self.is_ending = True
        self.thread.join(180)
        assert not self.thread.is_alive(), f"a save on {self.host.name} hangs"


def check_all(hosts, saved):
    """What is lost of what was acknowledged."""
    lost = []
    for host in hosts:
        there = set(os.listdir(host.path()))
        for folder, files in saved.items():
            if folder not in there:
                lost.append(f"{folder} on {host.name}")
                continue
            for name, expected in files.items():
                assert digest(host.path(folder, name)) == expected, (host.name, folder, name)
    return lost


def lose_primary(cluster, primary, standby, seed):
    """Saves on the two others while the one is killed, and its names are gone; the promotion, what was acknowledged,
    and the saves that failed."""
    others = [host for host in cluster.hosts if host is not primary]
    savers = [Saver(host, seed + host.number) for host in others]
    wanted = random.Random(seed).randrange(1, 12)
    wait_until(lambda: sum(len(saver.saved) for saver in savers) >= wanted, 60, f"{wanted} saves", every=0.003)
    primary.kill()
    shutil.rmtree(os.path.join(primary.data, "shared"))
    promotion = cluster.promote(standby)
    before = sum(len(saver.saved) for saver in savers)
    wait_until(lambda: sum(len(saver.saved) for saver in savers) > before + 2, 120, "saves go on")
    for saver in savers:
        saver.stop()
    saved = {folder: files for saver in savers for folder, files in saver.saved.items()}
    return promotion, saved, [failure for saver in savers for failure in saver.failures]


class World:
    """The cluster, and who has which part in it: that changes from case to case."""

    def __init__(self, cluster, seed):
        self.cluster, self.seed = cluster, seed
        self.primary, self.standby, self.witness = cluster.hosts
        self.saved = {}

    def swap(self):
        self.primary, self.standby = self.standby, self.primary

    def follow_old(self):
        """The old primary becomes the standby of the new one, and they have each other's parts."""
        self.cluster.follow(self.standby, self.primary)
        self.swap()


def lose_and_promote(world):
    """A round; what was acknowledged in it and before is there on all hosts."""
    promotion, more, failures = lose_primary(world.cluster, world.primary, world.standby, world.seed)
    world.seed += 1
    assert promotion["was_whole"], promotion
    assert not failures, failures
    assert more, "nothing was saved"
    world.saved.update(more)
    lost = check_all((world.standby, world.witness), world.saved)
    assert not lost, lost
    world.primary.mount()
    world.follow_old()


def nothing_acknowledged_is_lost(world, rounds):
    for _ in range(rounds):
        lose_and_promote(world)
    world.cluster.wait_for_copies()
    assert not check_all(world.cluster.hosts, world.saved)
    checked = json.loads(world.primary.cairnfs("check", "--data", world.primary.data, "--json"))
    assert checked["clean"], checked
    return f"{len(world.saved)} saves, {rounds} losses"


def refused(host, *words, command="metadata"):
    done = subprocess.run(host.inside(program("cairnfs"), command, *words, "--data", host.data), check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0, done.stdout
    return done.stdout


def none_of_the_three_leaves(world):
    primary, standby, witness = world.primary, world.standby, world.witness
    for node, words in [(primary, f"promote on {standby.name}"), (standby, "standby --none"), (witness, "standby --none")]:
        for call in (["drain"], ["remove", "--lost"]):
            text = refused(standby, *call, node.name, command="node")
            assert words in text, (node.name, call, text)
    witness.umount()
    assert f"{witness.name} is the witness" in refused(primary, "remove", "--lost", witness.name, command="node")
    primary.cairnfs("metadata", "standby", "--none", "--data", primary.data)
    primary.cairnfs("node", "remove", "--lost", witness.name, "--data", primary.data)
    assert "give it a standby first" in refused(standby, "remove", "--lost", primary.name, command="node")
    # It comes back, and the names have a standby again.
    witness.join()
    witness.mount()
    world.cluster.follow(primary, standby)


def one_that_is_cut_off_serves_nothing(world):
    cluster = world.cluster
    assert "is not the standby" in refused(world.witness, "promote")
    assert "serves the names" in refused(world.standby, "promote", "--lose")
    write(world.witness.path("cut-first"), b"1")
    cluster.split([world.primary], [world.standby, world.witness])
    assert cluster.promote(world.standby)["was_whole"]
    write(world.witness.path("cut-second"), b"2")
    cluster.heal()
    wait_until(lambda: os.path.exists(world.primary.path("cut-second")), 90, "the old primary finds the new one")
    assert read(world.standby.path("cut-first")) == b"1"
    assert "does not serve the names" in refused(world.primary, "standby", world.witness.name)
    world.primary.umount()
    world.primary.mount()
    world.follow_old()


def one_that_lags_is_promoted_with_loss_alone(world):
    cluster = world.cluster
    write(world.witness.path("lag-first"), b"1")
    cluster.cut(world.primary, world.standby)
    write(world.witness.path("lag-second"), b"2")
    cluster.wait_for_names(world.witness, "detached", world.standby)
    world.primary.kill()
    cluster.heal()
    text = refused(world.standby, "promote")
    assert "--lose" in text and "revision" in text, text
    assert not cluster.promote(world.standby, "--lose")["was_whole"]
    assert read(world.witness.path("lag-first")) == b"1"
    wait_until(lambda: not os.path.exists(world.witness.path("lag-second")), 60, "the loss is seen")
    world.primary.mount()
    world.follow_old()


def a_planted_loss_is_found(world):
    """A primary that acknowledges what its standby does not have."""
    world.primary.umount()
    world.primary.mount(CAIRNFS_FAILPOINTS=SKIPPED)
    world.cluster.wait_for_names(world.primary, "whole", world.standby)
    write(world.witness.path("planted"), b"x")
    world.primary.kill()
    assert world.cluster.promote(world.standby)["was_whole"]
    # The witness knows the file until it hears that the store went back.
    wait_until(lambda: not os.path.exists(world.witness.path("planted")), 60, "the planted loss is seen")
    world.primary.mount()
    world.follow_old()


def await_death(host):
    wait_until(lambda: not host.is_alive(), 60, f"{host.name} dies at its failpoint")
    host.kill()


def a_kill_at_each_step_loses_nothing(world):
    """The primary dies as it has sent a batch, has detached its standby, takes it back; the standby in a promotion."""
    primary, standby, witness = world.primary, world.standby, world.witness

    def saved(name, died):
        done = []
        thread = threading.Thread(target=lambda: done.append(write(witness.path(name), name.encode())), daemon=True)
        thread.start()
        await_death(died)
        return thread

    def check(name):
        assert read(witness.path(name)) == name.encode()

    primary.umount()
    primary.mount(CAIRNFS_FAILPOINTS="standby.after_ship=kill@40")
    saver = Saver(witness, world.seed)
    await_death(primary)
    assert world.cluster.promote(standby)["was_whole"]
    saver.stop()
    assert not saver.failures and not check_all((standby, witness), saver.saved), saver.failures
    primary.mount()
    world.follow_old()
    primary, standby = world.primary, world.standby

    primary.umount()
    primary.mount(CAIRNFS_FAILPOINTS="standby.detached=kill")
    standby.kill()
    thread = saved("detached", primary)
    assert "standby" in refused(witness, "promote")
    primary.mount(CAIRNFS_FAILPOINTS="standby.attaching=kill")
    thread.join(60)
    check("detached")
    starting = standby.start(program("cairnfs"), "mount", "--config", standby.config)  # it may wait for the names
    await_death(primary)
    primary.mount()
    assert starting.wait(120) == 0
    standby.pid = standby.status()["pid"]
    world.cluster.wait_for_names(primary, "whole", standby)
    check("detached")

    standby.umount()
    standby.mount(CAIRNFS_FAILPOINTS="standby.promoted=kill")
    world.cluster.wait_for_names(primary, "whole", standby)
    write(witness.path("promoted"), b"promoted")
    primary.kill()
    refused(standby, "promote")
    await_death(standby)
    # No daemon could start while nobody serves: in the directory itself, and again.
    for _ in range(2):
        assert world.cluster.promote(standby)["was_whole"]
    standby.mount()
    check("promoted")
    primary.mount()
    world.follow_old()


def main():
    seed = seed_from_arguments()
    rounds = 1
    if "--rounds" in sys.argv:
        place = sys.argv.index("--rounds")
        rounds = int(sys.argv[place + 1])
        del sys.argv[place:place + 2]

    def losses(world):
        return nothing_acknowledged_is_lost(world, rounds)

    sampled = [none_of_the_three_leaves, one_that_is_cut_off_serves_nothing, one_that_lags_is_promoted_with_loss_alone, a_planted_loss_is_found]
    is_named = any(not word.startswith("-") and not word.isdigit() for word in sys.argv[1:])
    chosen = [sampled[seed % len(sampled)]]
    if is_named or "--all" in sys.argv:
        chosen = [*sampled, a_kill_at_each_step_loses_nothing]
    with Scratch() as scratch, StandbyCluster(scratch, hosts=3, metadata="node", options=OPTIONS) as cluster:
        cluster.start()
        world = World(cluster, seed)
        cluster.follow(world.primary, world.standby)
        code = run_cases([losses, *chosen], world)
        if code != 0:
            print(cluster.logs(), flush=True)
        return code


if __name__ == "__main__":
    sys.exit(main())
