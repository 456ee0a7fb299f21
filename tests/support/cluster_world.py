"""Three hosts with one filesystem, for the scripts that go through cases on them: helpers, and the loop over both stores.

Options of these scripts: --seed N; node, etcd: only on that store; --all: on both, where the seed chooses one; names of cases run these alone.
"""

import concurrent.futures
import errno
import hashlib
import os
import random
import subprocess
import sys

from cairnfs_mount import Scratch, program, run_cases, sample, seed_from_arguments
from cluster import Cluster

MIB = 1 << 20
STORES = ("node", "etcd")
LEASE_SECONDS = 5  # less, and a host of a busy machine may lose its session without a fault
OUT_AFTER_SECONDS = 8
OPTIONS = {"lease": f"{LEASE_SECONDS}s", "out_after": f"{OUT_AFTER_SECONDS}s"}


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


def a_checkpoint_of_all_hosts(world):
    """A case: each host renames what all have written; world.checkpoints has what is there then."""
    for step, host in enumerate(world.hosts):
        folder = f"step-{step}"
        files = save_checkpoint(world, folder)
        os.rename(host.path(folder + ".tmp"), host.path(folder))
        for other in world.hosts:
            assert error_of(os.stat, other.path(folder + ".tmp")) == errno.ENOENT
            check_checkpoint(other, folder, files)
            assert os.getxattr(other.path(folder), "user.cairnfs.durability") == b"replicated", other.name
        world.checkpoints[folder] = files


def stores_of(seed):
    """The stores that the arguments name; else one that the seed chooses, or with --all both."""
    named = [store for store in STORES if store in sys.argv[1:]]
    sys.argv = [word for word in sys.argv if word not in STORES]
    return named or (STORES if "--all" in sys.argv[1:] else [STORES[seed % len(STORES)]])


def main(cases, certificates=True, one_store=False, sample_of=None):
    """The exit code. Each store has a cluster of its own, on which all the cases run, one after the other.
    `certificates`: as of Cluster. `one_store`: only that which the seed chooses, without --all.
    `sample_of`: so many of the cases, in the same way."""
    seed = seed_from_arguments()
    if sample_of:
        cases = sample(cases, seed, sample_of)
    stores = stores_of(seed) if one_store else [store for store in STORES if store in sys.argv[1:]] or STORES
    sys.argv = [word for word in sys.argv if word not in STORES]
    worst = 0
    for store in stores:
        print(f"-- metadata: {store}", flush=True)
        with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=OPTIONS,
                                           certificates=certificates) as cluster:
            cluster.start()
            code = run_cases(cases, World(cluster, seed))
            if code != 0:
                print(cluster.logs(), flush=True)
            worst = max(worst, code)
    return worst

