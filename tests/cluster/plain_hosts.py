"""Looks like the cluster of tests/support/cluster.py, but all hosts are one plain directory, and faults do nothing.

A plain directory keeps every promise, so the test must accept it; and with `damage` it breaks one, which the test must
find. This proves the test, not CairnFS.
"""

import os
import random
import time

import checkpoints

# Kinds of damage, and the complaint that belongs to each, as a regular expression.
OF_CHECKPOINTS = {
    "lose_file": "has .* instead of|is missing",
    "corrupt_byte": "is different",
    "undo_commit": "committed, and not there",
    "half_commit": "is different .* at 0",
}
DAMAGES = {
    **OF_CHECKPOINTS,
    # To one that only a test that looks at all of them sees.
    **{"old " + name: complaint for name, complaint in OF_CHECKPOINTS.items()},
    "no_fencing": "its open file does not say so|a write of a lost session came through",
    "hang": "a call did not end within",
}


class PlainHost:
    def __init__(self, cluster, number):
        self.cluster, self.name, self.number = cluster, f"host{number}", number
        self.mount_point = cluster.directory
        self.data = os.path.join(cluster.directory, "none")
        self.pid = 0

    def path(self, *names):
        return os.path.join(self.mount_point, *names)

    def mount(self, **_):
        pass

    def log(self):
        return ""

    def sessions_lost(self):
        return 0

    def set_link(self, up):
        pass

    kill = pause = resume = wipe = join = lambda self: None


class PlainCluster:
    """`ledger` is where the damage finds what was committed."""

    is_plain = True

    def __init__(self, directory, hosts, damage="", seed=1):
        self.directory, self.damage = directory, damage
        self.rng = random.Random(seed)
        self.hosts = [PlainHost(self, number) for number in range(1, hosts + 1)]
        self.etcd, self.ledger = [], None

    def cut(self, one, other):
        pass

    drop = cut

    def heal(self):
        """Damages one committed checkpoint that has bytes."""
        committed = [one for one in self.ledger.committed() if os.path.isdir(os.path.join(self.directory, one.name))
                     and any(size for size, _ in one.files.values())]
        age, _, damage = self.damage.rpartition(" ")
        committed = committed[:-checkpoints.RECENT] if age else committed[-3:]
        if not committed or damage not in OF_CHECKPOINTS:
            return
        path = os.path.join(self.directory, self.rng.choice(committed).name)
        files = sorted(os.path.join(folder, file) for folder, _, names in os.walk(path) for file in names)
        if damage == "lose_file":
            os.unlink(self.rng.choice(files))
        elif damage == "undo_commit":
            os.rename(path, path + ".tmp")
        elif damage == "half_commit":
            os.truncate(max(files, key=os.path.getsize), 0)
        else:
            victim = max(files, key=os.path.getsize)
            with open(victim, "r+b") as file:
                file.seek(os.path.getsize(victim) // 2)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))

    def hang(self):
        """A call on this path does not end for a while."""
        fifo = os.path.join(self.directory, "hang")
        if not os.path.exists(fifo):
            os.mkfifo(fifo)
        return "hang"

    def logs(self):
        return ""

    def wait_for_states(self, states, **_):
        pass

    def wait_for_copies(self, **_):
        time.sleep(0)
