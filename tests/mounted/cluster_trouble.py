#!/usr/bin/env python3
"""Hosts in trouble, as operators have met it: what can be removed while copies cannot be made, what a stop says that
waits for them, and what a trainer sees of a lost session. Each case makes a cluster of its own, with the store that the
seed chooses.
Options: --seed N; --all: both stores; node, etcd: that one; names of cases run these alone.
"""

import errno
import os
import random
import signal
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program, run_cases, seed_from_arguments
from cluster import Cluster, wait_until
from cluster_close import SMALL_DISK, fill, start_writer
from cluster_world import MIB, OPTIONS, error_of, read, stores_of, write

LONG_AWAY = {**OPTIONS, "out_after": "10min"}
HANGS_SECONDS = 60  # what waits for copies would wait for ten minutes


def unless_it_hangs(call, *arguments):
    """The error of the call, 0 where it went well."""
    errors = []
    thread = threading.Thread(target=lambda: errors.append(error_of(call, *arguments)), daemon=True)
    thread.start()
    thread.join(HANGS_SECONDS)
    assert errors, f"{call.__name__}{arguments} hangs"
    return errors[0]


def leave_unpublished(host, name):
    """Bytes that were accepted and that no close waits for: their writer is killed."""
    writer = start_writer(host.path(name), MIB, "x", "sleep")
    assert writer.stdout.readline() == b"wrote\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()


def removals_need_no_copies(store):
    """A node is gone, and another one full; then that one is gone too. Whoever reaches the names can remove."""
    options = {**LONG_AWAY, "segment_size": "4MiB"}
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=options) as cluster:
        writer, full, away = cluster.hosts
        os.makedirs(full.data)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=0711", "tmpfs", full.data], check=True)
        cluster.start()
        for number in range(8):
            write(writer.path(f"old-{number}"), b"old")
            os.mkdir(writer.path(f"empty-{number}"))
        away.kill()
        cluster.wait_for_states({away.name: "down"})

        def is_full():
            fill(full)
            return writer.nodes()[full.name]["full"]
        wait_until(is_full, 60, f"{full.name} is full", every=0.3)
        leave_unpublished(writer, "killed")
        wait_until(lambda: "copies" in writer.status()["last_error"], 30, "copies cannot be made", every=0.3)
        assert error_of(write, writer.path("save"), os.urandom(MIB)) in (errno.ENOSPC, errno.ETIMEDOUT)
        for number, host in enumerate((writer, full)):
            assert unless_it_hangs(os.rmdir, host.path(f"empty-{number}")) == 0, host.name
            assert unless_it_hangs(os.rename, host.path(f"old-{2 * number}"), host.path(f"old-{2 * number + 1}")) == 0
            assert unless_it_hangs(os.unlink, host.path(f"old-{2 * number + 1}")) == 0, host.name
        assert unless_it_hangs(os.unlink, full.path("save")) == 0

        full.kill()
        cluster.wait_for_states({full.name: "down"}, at=[writer])
        leave_unpublished(writer, "killed-later")
        assert unless_it_hangs(os.rmdir, writer.path("empty-4")) == 0
        assert unless_it_hangs(os.unlink, writer.path("old-4")) == 0
        assert unless_it_hangs(os.rename, writer.path("old-5"), writer.path("old-6")) == 0
        assert unless_it_hangs(os.unlink, writer.path("killed")) == 0


def a_stop_says_what_it_waits_for(store):
    """In the terminal, in the log and in the status, which is answered. Commits with fewer copies let it end."""
    with Scratch() as scratch, Cluster(scratch, hosts=3, copies=3, metadata=store, options=LONG_AWAY) as cluster:
        first, stopped, away = cluster.hosts
        cluster.start()
        away.kill()
        cluster.wait_for_states({away.name: "down"})
        leave_unpublished(stopped, "killed")
        umount = stopped.start(program("cairnfs"), "umount", stopped.mount_point, stderr=subprocess.PIPE, text=True)
        told = next(line for line in umount.stderr if "waits for copies, for " in line)
        assert "s at most" in told and away.name in told, told
        status = stopped.status()
        assert away.name in status["stop"]["waits_for"], status
        assert 0 < status["stop"]["seconds_left_max"] <= 600, status
        assert "waits for copies" in stopped.cairnfs("status", "--data", stopped.data)
        refused = subprocess.run(stopped.inside(program("cairnfs"), "cluster", "status", "--data", stopped.data),
                                 check=False, capture_output=True, text=True)
        assert refused.returncode == 3 and "stopping" in refused.stderr, refused
        wait_until(lambda: "the stop waits for copies, for " in stopped.log(), what=stopped.log)
        assert umount.poll() is None
        first.cairnfs("cluster", "set", "min-replicas", "2", "--data", first.data)
        assert umount.wait(HANGS_SECONDS) == 0, umount.stderr.read()
        stopped.processes.remove(umount)
        stopped.pid = None
        wait_until(lambda: read(first.path("killed")) == b"x" * MIB, 30, "what it waited for is there", every=0.3)
        return told.strip()


def a_removed_node_stays_away(store):
    """Its start is refused and says why; who joins it anew has it back with what it stores."""
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=LONG_AWAY) as cluster:
        first, other, gone = cluster.hosts
        cluster.start()
        content = os.urandom(8 * MIB)
        write(gone.path("file"), content)
        node = first.nodes()[gone.name]["id"]
        gone.umount()
        first.cairnfs("node", "remove", "--lost", gone.name, "--data", first.data)
        for _ in range(2):
            refused = subprocess.run(gone.inside(program("cairnfs"), "mount", "--config", gone.config), check=False,
                                     capture_output=True, text=True)
            assert refused.returncode == 6 and "was removed" in refused.stderr and node in refused.stderr, refused
            assert "cairnfs cluster join" in refused.stderr, refused
            assert sorted(first.nodes()) == [first.name, other.name], first.nodes()
        gone.join()
        gone.mount()
        assert first.nodes()[gone.name]["id"] == node
        cluster.wait_for_states({gone.name: "up"})
        assert read(gone.path("file")) == content
        return refused.stderr.strip()


def no_two_nodes_have_one_address(store):
    """A configuration that was copied names another host's address. The same address on a new disk is that host's own."""
    options = {**LONG_AWAY, "lease": "2s"}
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=options,
                                       certificates=False) as cluster:
        cluster.start()
        first, other, copied = cluster.hosts
        copied.umount()
        config = read(copied.config)
        write(copied.config, config + f'advertise = "{other.listen}"\n'.encode())
        refused = subprocess.run(copied.inside(program("cairnfs"), "mount", "--config", copied.config), check=False,
                                 capture_output=True, text=True)
        assert refused.returncode == 2 and f"{other.listen} is the address of node {other.name}" in refused.stderr, refused
        assert first.nodes()[copied.name]["address"] == copied.listen, first.nodes()
        write(copied.config, config)
        copied.mount()
        cluster.wait_for_states({host.name: "up" for host in cluster.hosts})
        copied.kill()
        copied.wipe()
        copied.mount()
        wait_until(lambda: [node["state"] for node in first.node_list() if node["name"] == copied.name].count("up") == 1, 30,
                   "it is there as a new node", every=0.3)
        return refused.stderr.strip()


class Saver(threading.Thread):
    """Saves checkpoints on a host, one after another, and restores those of all hosts. Raises in join what it met."""

    def __init__(self, host, seed, saved):
        super().__init__(daemon=True)
        self.host, self.random, self.saved = host, random.Random(seed), saved
        self.saves, self.error = 0, None
        self.ends, self.goes_on, self.stands = threading.Event(), threading.Event(), threading.Event()
        self.goes_on.set()

    def run(self):
        try:
            while not self.ends.is_set():
                if not self.goes_on.is_set():
                    self.stands.set()
                    self.goes_on.wait()
                    self.stands.clear()
                self.save_and_restore()
        except BaseException as error:  # pylint: disable=broad-except
            self.error = error
        self.stands.set()

    def save_and_restore(self):
        folder = f"{self.host.name}-{self.saves}"
        contents = [self.random.randbytes(self.random.randrange(2 * MIB)) for _ in range(3)]
        os.mkdir(self.host.path(folder + ".tmp"))
        for rank, content in enumerate(contents):
            write(self.host.path(folder + ".tmp", str(rank)), content)
        os.rename(self.host.path(folder + ".tmp"), self.host.path(folder))
        self.saved.append((folder, contents))
        self.saves += 1
        folder, contents = self.random.choice(self.saved)
        for rank, content in enumerate(contents):
            assert read(self.host.path(folder, str(rank))) == content, f"{folder}/{rank} differs on {self.host.name}"

    def stand(self):
        self.goes_on.clear()
        self.stands.wait()

    def finish(self):
        self.ends.set()
        self.goes_on.set()
        self.join()
        if self.error:
            raise AssertionError(f"the trainer on {self.host.name} failed") from self.error


def each_host_is_restarted_while_others_save(store):
    """As an upgrade does it, host by host, also that with the names: the trainers of the other hosts see nothing of
    it. One host is killed instead of unmounted."""
    rng = random.Random(SEED)
    with Scratch() as scratch, Cluster(scratch, metadata=store, options=OPTIONS) as cluster:
        cluster.start()
        saved = []
        trainers = [Saver(host, rng.random(), saved) for host in cluster.hosts]
        killed = rng.choice(cluster.hosts)

        def others_save(trainer):
            others = [(other, other.saves) for other in trainers if other is not trainer]
            wait_until(lambda: all(other.saves >= saves + 2 or other.error for other, saves in others), 120,
                       "the other hosts save")
        for trainer in trainers:
            trainer.start()
        for trainer in trainers:
            others_save(trainer)
            trainer.stand()
            trainer.host.kill() if trainer.host is killed else trainer.host.umount()
            if store == "etcd" or trainer.host is not cluster.hosts[0]:  # else they wait for the names
                others_save(trainer)
            trainer.host.mount()
            others_save(trainer)
            trainer.goes_on.set()
        for trainer in trainers:
            trainer.finish()
        for folder, contents in saved:
            host = rng.choice(cluster.hosts)
            assert [read(host.path(folder, str(rank))) for rank in range(3)] == contents, (folder, host.name)
        return f"{len(saved)} checkpoints"


class Trainer(threading.Thread):
    """Saves one small file after the other, over files that are there, and opens anew after an error."""

    def __init__(self, host):
        super().__init__(daemon=True)
        self.host, self.saved, self.failed, self.ends = host, [], [], False

    def run(self):
        while not self.ends:
            number = len(self.saved) + len(self.failed)
            try:
                with open(self.host.path(f"saved-{number % 3}"), "wb", buffering=0) as file:
                    file.write(b"%08d" % number)
                    os.fsync(file.fileno())
                self.saved.append(number)
            except OSError as error:
                self.failed.append((number, error))


def one_lost_session_is_one_error(store):
    """A host hears nothing for longer than its lease while it saves: one save fails, and the next one succeeds."""
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata=store, options={**OPTIONS, "lease": "2s"}) as cluster:
        cluster.start()
        first, victim = cluster.hosts
        trainer = Trainer(victim)
        trainer.start()
        told = []
        for _ in range(3):
            saved, failed, lost = len(trainer.saved), len(trainer.failed), victim.sessions_lost()
            wait_until(lambda at=saved: len(trainer.saved) > at + 3, 60, "it saves")
            for other in [first, *cluster.etcd]:
                cluster.drop(other, victim)
            cluster.wait_for_states({victim.name: "down"}, at=[first])
            cluster.heal()
            wait_until(lambda at=lost: victim.sessions_lost() > at, 60, "it has lost its session")
            saved = len(trainer.saved)
            wait_until(lambda at=saved: len(trainer.saved) > at + 6, 60, "it saves again")
            assert len(trainer.failed) - failed <= 1, (trainer.failed[failed:], victim.log())
            told += trainer.failed[failed:]
        trainer.ends = True
        trainer.join()
        assert all(error.errno in (errno.EIO, errno.ESTALE) for _, error in told), told
        for number in trainer.saved[-3:]:
            assert read(first.path(f"saved-{number % 3}")) == b"%08d" % number
        return f"{len(told)} saves of {len(trainer.saved)} failed"


CASES = (removals_need_no_copies, a_stop_says_what_it_waits_for, a_removed_node_stays_away,
         no_two_nodes_have_one_address, one_lost_session_is_one_error, each_host_is_restarted_while_others_save)
SEED = seed_from_arguments()


if __name__ == "__main__":
    sys.exit(max(run_cases(CASES, store) for store in stores_of(SEED)))
