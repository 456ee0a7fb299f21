"""What is compared: a filesystem on three hosts, with two copies of all data. Here CairnFS; peers.py has the others."""

import contextlib
import os
import shutil
import signal

from cluster import Cluster
from machine import CannotRun, drop_caches, settle
from subjects import wait_until_warm

HOSTS = 3
FIRST, WRITER, READER = range(HOSTS)  # the first serves what only one host does; the reader is the one that is lost


class Place:
    """What hosts need of a scratch directory: one of their own below that of the run."""

    def __init__(self, scratch, name):
        self.scratch, self.name = scratch, name
        self.path = scratch.directory(name)

    def directory(self, *names):
        return self.scratch.directory(self.name, *names)


@contextlib.contextmanager
def uninterrupted():
    """What is taken down is taken down to the end."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


class System:
    """Three hosts that all mount one filesystem. Leaving it ends all of it, also after a failure."""

    name = ""
    is_peer = True

    def __init__(self, comparison, folder):
        self.comparison, self.place = comparison, Place(comparison.scratch, folder)
        self.closing = contextlib.ExitStack()
        # Last, when nothing runs any more: what was saved would take the disk from those that follow.
        self.closing.callback(lambda: shutil.rmtree(self.place.path, ignore_errors=True))

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with uninterrupted():
            self.closing.close()

    def round_trips(self):
        """To the store of the names, by all hosts since they started; None where that is not told."""
        return None

    def _start(self):
        """Returns when every host has mounted it."""
        raise NotImplementedError

    def path(self, host, *names):
        """In the mount of a host, by its number."""
        raise NotImplementedError

    def make_cold(self):
        """Afterwards no daemon and no kernel has anything in memory of a file's bytes. All hosts have mounted it."""
        raise NotImplementedError

    def lose(self, host):
        """The host is gone as one without power: no packet comes from it any more."""
        raise NotImplementedError

    def remove(self, *names):
        """Removes directories; their space comes back before it returns, as far as the system can be asked for that."""
        for name in names:
            shutil.rmtree(self.path(WRITER, name), ignore_errors=True)
        settle()


class CairnFS(System):
    """With the names in three members of etcd, or on the first host. Without TLS, which the peers have not either."""

    is_peer = False

    def __init__(self, comparison, folder, metadata):
        super().__init__(comparison, folder)
        self.metadata = metadata
        self.name = f"CairnFS, {'etcd' if metadata == 'etcd' else 'a host'}"
        self.cluster = None

    def _start(self):
        options = {"pool_size": f"{self.comparison.pool_bytes}", "touch_pool": True, "reserve": "64MiB",
                   "segment_size": "256MiB"}
        self.cluster = self.closing.enter_context(
            Cluster(self.place, hosts=HOSTS, metadata=self.metadata, etcd_members=HOSTS, options=options,
                    certificates=False))
        self.cluster.start()
        self._wait_until_warm()

    def _wait_until_warm(self):
        for host in self.cluster.hosts:
            wait_until_warm(host.pid, host.status())

    def path(self, host, *names):
        return self.cluster.hosts[host].path(*names)

    def make_cold(self):
        for host in reversed(self.cluster.hosts):
            host.umount()
        drop_caches()
        for host in self.cluster.hosts:
            host.mount()
        self.cluster.wait_for_states({host.name: "up" for host in self.cluster.hosts})
        self._wait_until_warm()
        drop_caches(1)

    def lose(self, host):
        lost = [self.cluster.hosts[host], *self.cluster.etcd[host:host + 1]]
        for one in lost:
            one.set_link(False)
        self.cluster.hosts[host].kill()
        if self.cluster.etcd:
            self.cluster.etcd[host].kill()

    def remove(self, *names):
        super().remove(*names)
        self.cluster.hosts[WRITER].cairnfs("gc", self.path(WRITER))
        settle()

    def round_trips(self):
        activities = [host.status()["cluster"] for host in self.cluster.hosts]
        return sum(activity["metadata_reads_total"] + activity["metadata_commits_total"] for activity in activities)


def require(program, package):
    """The path of a program of a Debian package."""
    path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if path is None:
        raise CannotRun(f"{program} is not there: Debian's package {package} has it")
    return path
