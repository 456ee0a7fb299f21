"""What goes wrong in a round, and how it is healed. A fault is a context: entered when it strikes, left healed.

`victim` is the host that it strikes, None when it strikes several, or what they share. `ends_sessions`: hosts whose
session may be lost. `fences`: the victim's session is surely lost by the end.
"""

import contextlib
import os
import signal
import subprocess
import time

from cairnfs_mount import run
from cluster import wait_until

LEASE_S = 5
# By then the store has ended the lease, wherever in it the host was cut off.
PAST_LEASE_S = LEASE_S + 4
# And on a machine that is busy with something else.
LEASE_END_MAX_S = 60


time_scale = 1.0  # less than 1 where faults do nothing and nobody needs to wait for their end


def sleep(seconds):
    time.sleep(seconds * time_scale)


def past_lease_s():
    return PAST_LEASE_S * time_scale


class Fault:
    """Base of all. `cluster` is that of tests/support/cluster.py, or looks like it."""

    fences = False

    def __init__(self, cluster, rng, environment):
        self.cluster = cluster
        self.rng = rng
        self.environment = environment  # of daemons that are started again
        self.victim = None
        self.ends_sessions = []
        self.choose()

    def choose(self):
        """Sets what it will strike."""

    def pick(self, hosts=None):
        self.victim = self.rng.choice(hosts or self.cluster.hosts)
        self.ends_sessions = [self.victim]
        return self.victim

    @property
    def struck(self):
        """Hosts that it strikes themselves. The others serve on."""
        return [self.victim] if self.victim else []

    @property
    def clients_only(self):
        """Hosts that do not serve the metadata."""
        return self.cluster.hosts if self.cluster.etcd else self.cluster.hosts[1:]

    @property
    def others(self):
        """Everybody but the victim: hosts and members of etcd."""
        return self.all_but(self.victim)

    def all_but(self, one):
        return [other for other in [*self.cluster.hosts, *self.cluster.etcd] if other is not one]

    def strike(self):
        raise NotImplementedError

    def last(self):
        """Lets it last."""
        sleep(self.rng.uniform(1, 4))

    def last_past_lease(self):
        """Until the session of the victim has ended, as the other hosts see it, and a moment more."""
        if getattr(self.cluster, "is_plain", False):
            sleep(PAST_LEASE_S)
            return
        others = [host for host in self.cluster.hosts if host is not self.victim]
        self.cluster.wait_for_states({self.victim.name: "down"}, seconds=LEASE_END_MAX_S, at=others)
        sleep(self.rng.uniform(0, 1.5))

    def heal(self):
        raise NotImplementedError

    def describe(self):
        return f"{type(self).__name__}{' of ' + self.victim.name if self.victim else ''}"


class Nothing(Fault):
    """No fault: names, locks and bytes under load alone."""

    def strike(self):
        pass

    def heal(self):
        pass


class KillDaemon(Fault):
    def choose(self):
        self.pick(self.clients_only)

    def strike(self):
        self.victim.kill()

    def heal(self):
        self.victim.mount(**self.environment)


class WipeData(Fault):
    """The host's disk is lost; it comes back as a new node."""

    def choose(self):
        # The first host signs: without its data nobody has a token to join with.
        signers = self.cluster.hosts[:1] if self.cluster.certificates else []
        self.pick([host for host in self.clients_only if host not in signers and not os.path.ismount(host.data)])
        self.lost_node = ""

    def strike(self):
        nodes = self.victim.cluster_status()["nodes"]
        self.lost_node = next(node["id"] for node in nodes if node["is_self"])
        self.victim.kill()
        self.victim.wipe()

    def last(self):
        self.last_past_lease()  # the address of a node that is up is refused to who joins

    def heal(self):
        self.victim.join()
        self.victim.mount(**self.environment)
        # So that nobody waits for what it had. Refused while its old lease lasts.
        wait_until(self._forget, 60, f"node {self.lost_node} is forgotten", every=1)

    def _forget(self):
        try:
            self.victim.cairnfs("node", "remove", "--lost", self.lost_node, "--data", self.victim.data)
        except AssertionError:
            return False
        return True


class MetadataFault(Fault):
    """Base of what strikes the node that serves the metadata, or one member of etcd, more often its leader."""

    def choose(self):
        if self.cluster.etcd:
            leader = leader_of(self.cluster)
            is_leader = leader is not None and self.rng.random() < 0.6
            self.server = leader if is_leader else self.rng.choice(self.cluster.etcd)
        else:
            self.server = self.pick(self.cluster.hosts[:1])
        self.ends_sessions = list(self.cluster.hosts)

    def last(self):
        """Shorter or longer than the leases that it keeps."""
        sleep(self.rng.uniform(1, PAST_LEASE_S))

    def describe(self):
        return f"{type(self).__name__} of {self.server.name}"


class KillMetadata(MetadataFault):
    """It dies and comes back."""

    def strike(self):
        self.server.kill()

    def last(self):
        Fault.last(self)

    def heal(self):
        if self.victim:
            self.victim.mount(**self.environment)
        else:
            self.server.serve()


class PauseMetadata(MetadataFault):
    """SIGSTOP, then SIGCONT: connections to it stay, and are silent."""

    def strike(self):
        self.server.pause()

    def heal(self):
        self.server.resume()


class CutOffMetadata(MetadataFault):
    """No packets between it and anybody."""

    def strike(self):
        for other in self.all_but(self.server):
            self.cluster.cut(self.server, other)

    def heal(self):
        self.cluster.heal()


class OneWayMetadata(CutOffMetadata):
    """What it sends is lost, so it carries out what it is asked and nobody is told; or what it should receive."""

    def choose(self):
        super().choose()
        self.sends = self.rng.random() < 0.6

    def strike(self):
        for other in self.all_but(self.server):
            if self.sends:
                self.cluster.drop(self.server, other)
            else:
                self.cluster.drop(other, self.server)

    def describe(self):
        return super().describe() + (" out" if self.sends else " in")


class CutOff(Fault):
    """No packets between the host and anybody, for longer than its lease."""

    fences = True

    def choose(self):
        self.pick(self.clients_only)

    def strike(self):
        for other in self.others:
            self.cluster.cut(self.victim, other)

    def last(self):
        self.last_past_lease()

    def heal(self):
        self.cluster.heal()


class CutFromMetadata(CutOff):
    """The host no longer reaches the metadata, and reaches the other hosts as before."""

    def strike(self):
        for server in self.cluster.etcd or self.cluster.hosts[:1]:
            self.cluster.cut(self.victim, server)


class CutFromMetadataBriefly(CutFromMetadata):
    """For about as long as its lease: sometimes it keeps its session."""

    fences = False

    def last(self):
        sleep(self.rng.uniform(1, LEASE_S + 2))


class CutOffBriefly(CutOff):
    """Shorter than its lease."""

    fences = False

    def last(self):
        sleep(self.rng.uniform(0.5, 3))


class LinkDown(CutOff):
    """The cable is out."""

    def strike(self):
        self.victim.set_link(False)

    def heal(self):
        self.victim.set_link(True)


class OneWay(Fault):
    """What the host sends is lost, or what it should receive."""

    def choose(self):
        self.pick(self.clients_only)
        self.sends = self.rng.random() < 0.5

    def strike(self):
        for other in self.others:
            if self.sends:
                self.cluster.drop(self.victim, other)
            else:
                self.cluster.drop(other, self.victim)

    def last(self):
        sleep(self.rng.uniform(1, LEASE_S + 2))

    def heal(self):
        self.cluster.heal()


class CutPair(Fault):
    """Two hosts do not reach each other; both reach everybody else."""

    def choose(self):
        self.pair = self.rng.sample(self.clients_only, 2) if len(self.clients_only) > 1 else self.cluster.hosts[:2]

    def strike(self):
        self.cluster.cut(*self.pair)

    def last(self):
        sleep(self.rng.uniform(2, LEASE_S + 2))

    def heal(self):
        self.cluster.heal()

    @property
    def struck(self):
        return self.pair

    def describe(self):
        return f"CutPair {self.pair[0].name} {self.pair[1].name}"


class Pause(Fault):
    """SIGSTOP past the lease, then SIGCONT: the host does not know that time went by."""

    fences = True

    def choose(self):
        self.pick(self.clients_only)

    def strike(self):
        self.victim.pause()

    def last(self):
        self.last_past_lease()

    def heal(self):
        self.victim.resume()


class PauseBriefly(Pause):
    fences = False

    def last(self):
        sleep(self.rng.uniform(0.5, 3))


class FullDisk(Fault):
    """The disk of a host's data (small, and of its own) is full, and the other hosts see it so: they commit without it.

    What fits on a node is more than its disk has left: also the rest of its open segment, and the one that stands
    ready. REQUIRES: SEGMENT_SIZE, so that all this is less than what the node takes for room."""

    SEGMENT_SIZE = "4MiB"
    LEFT_BYTES = 12 << 20  # what the daemon keeps for itself (reserve), and a segment
    ROOMY_BYTES = 64 << 20  # with so much left a node has room again
    SEEN_S = 30
    COMMIT_S = 60

    def choose(self):
        self.victim = self.rng.choice([host for host in self.cluster.hosts if os.path.ismount(host.data)])
        self.ballast = os.path.join(self.victim.data, "ballast-of-the-test")
        self.full_ns = 0

    def strike(self):
        wait_until(self.fill, self.SEEN_S, f"{self.victim.name} is full, as the other hosts see it", every=0.3)
        self.full_ns = time.monotonic_ns()

    def last(self):
        super().last()
        if len(self.cluster.hosts) > self.cluster.copies:
            wait_until(self.others_committed, self.COMMIT_S, f"the hosts commit while {self.victim.name} is full",
                       every=0.3)

    def heal(self):
        os.unlink(self.ballast)
        if self.free_bytes() > self.ROOMY_BYTES:
            wait_until(lambda: not any(self.seen_full()), self.SEEN_S, f"{self.victim.name} has room again", every=0.3)

    def free_bytes(self):
        space = os.statvfs(self.victim.data)
        return space.f_bavail * space.f_frsize

    def fill(self):
        """Takes what has become free. Whether each of the other hosts sees that the node is full."""
        with open(self.ballast, "ab") as file:
            more = self.free_bytes() - self.LEFT_BYTES
            if more > 0:
                # The daemon may be quicker to take it: what counts is what is seen.
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), file.tell(), more)
        return all(self.seen_full())

    def seen_full(self):
        return [host.nodes()[self.victim.name]["full"] for host in self.cluster.hosts if host is not self.victim]

    def others_committed(self):
        """Whether each of them has committed what it began to save when the node was full, and the node still is."""
        committed = {one.host for one in self.cluster.ledger.committed() if one.began_ns > self.full_ns}
        return self.fill() and committed >= {host.name for host in self.cluster.hosts if host is not self.victim}


class RestartAll(Fault):
    """Power is lost everywhere at once."""

    def choose(self):
        self.ends_sessions = list(self.cluster.hosts)

    def strike(self):
        # Nobody gets to see that another one is gone.
        for host in self.cluster.hosts:
            host.signal(signal.SIGKILL)
        for member in self.cluster.etcd:
            member.process.kill()
        for one in [*self.cluster.hosts, *self.cluster.etcd]:
            one.kill()

    @property
    def struck(self):
        return self.cluster.hosts

    def last(self):
        pass

    def heal(self):
        self.cluster.start_etcd()
        for host in self.cluster.hosts:
            host.mount(**self.environment)


FAULTS = [KillDaemon, Pause, CutOff, KillMetadata, OneWay, CutPair, Nothing, WipeData, CutOffBriefly, FullDisk,
          RestartAll, PauseBriefly, LinkDown, PauseMetadata, CutOffMetadata, OneWayMetadata, CutFromMetadata,
          CutFromMetadataBriefly]
# What a plain directory has none of.
NEEDS_DAEMONS = [WipeData, FullDisk, RestartAll, KillMetadata, PauseMetadata, CutOffMetadata, OneWayMetadata,
                 CutFromMetadata, CutFromMetadataBriefly]


def plan(rng, rounds, names=()):
    """The kinds of `rounds` rounds: each about as often, in random order."""
    kinds = [kind for kind in FAULTS if not names or kind.__name__ in names]
    chosen = []
    while len(chosen) < rounds:
        chosen += rng.sample(kinds, len(kinds))
    return chosen[:rounds]


def leader_of(cluster):
    for member in cluster.etcd:
        done = subprocess.run(
            member.inside("etcdctl", "--endpoints", member.endpoint, "endpoint", "status", "--write-out", "fields"),
            check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "ETCDCTL_API": "3"})
        fields = dict(line.split(" : ", 1) for line in done.stdout.splitlines() if " : " in line)
        if fields and fields.get('"Leader"') == fields.get('"MemberID"'):
            return member
    return None


def small_disk(host, size):
    """A disk of its own for the host's data, which a test can fill. Scratch unmounts it."""
    os.makedirs(host.data, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "tmpfs", host.data)
