"""GlusterFS and MooseFS of Debian's packages, on three hosts: configuration, state, logs and mounts are in the folder
of the run. Nothing of /etc/glusterfs, /etc/mfs, /var/lib/glusterd or /var/lib/mfs is read or written."""

import contextlib
import os
import shutil
import signal
import subprocess

from cairnfs_mount import has_ended
from cluster import Namespace, Network
from machine import CannotRun, drop_caches, run, wait_until
from systems import FIRST, HOSTS, System, require


class PeerHost(Namespace):
    """A host whose daemons fork: all that run in its network namespace are its own."""

    def __init__(self, network, number):
        super().__init__(network, f"host{number}", f"10.77.0.{number}")
        self.mount_point = network.scratch.directory(f"mount{number}")

    def directory(self, name):
        return self.cluster.scratch.directory(self.name, name)

    def write(self, name, text):
        """A file of its configuration; the path."""
        path = os.path.join(self.directory("etc"), name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def call(self, *command):
        """Runs a command in this network; its output."""
        return run(*self.inside(*command), timeout=120)

    def pids(self):
        listing = subprocess.run(["ip", "netns", "pids", self.netns], check=False, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True).stdout
        return [int(word) for word in listing.split()]

    def umount(self):
        subprocess.run(["umount", "-l", self.mount_point], check=False, stderr=subprocess.DEVNULL)

    def kill_processes(self):
        for _ in range(3):  # one that forks meanwhile is met the next time
            for pid in self.pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(CannotRun):
                    wait_until(lambda pid=pid: has_ended(pid), "a daemon ends", 20)
        super().kill_processes()
        self.umount()


class PeerNetwork(Network):

    def _make_hosts(self):
        self.hosts = []
        for number in range(1, HOSTS + 1):
            self.hosts.append(PeerHost(self, number))


class Peer(System):

    def __init__(self, comparison, folder):
        super().__init__(comparison, folder)
        self.hosts = []

    def _start(self):
        self.hosts = self.closing.enter_context(PeerNetwork(self.place)).hosts
        self._start_servers()
        for host in self.hosts:
            self._mount(host)

    def _start_servers(self):
        raise NotImplementedError

    def _mount(self, host):
        raise NotImplementedError

    def path(self, host, *names):
        return os.path.join(self.hosts[host].mount_point, *names)

    def make_cold(self):
        """The clients are started anew. Servers have file contents in the kernel's page cache alone."""
        for host in self.hosts:
            run("umount", host.mount_point)
        drop_caches()
        for host in self.hosts:
            self._mount(host)
        drop_caches()

    def lose(self, host):
        self.hosts[host].set_link(False)
        self.hosts[host].kill_processes()


class GlusterFS(Peer):
    """Distributed and replicated over three hosts: three sets of two bricks and an arbiter, each host has two bricks
    and one arbiter. All options are the defaults of the package."""

    name = "GlusterFS"
    # A mount namespace hides what Debian's package has of these, and what a glusterd of this machine would use.
    HIDE = ('mount --bind "$1" /var/lib/glusterd && mount --bind "$2" /var/log/glusterfs && '
            'mount -t tmpfs none /run && shift 2 && exec "$@"')

    def _start_servers(self):
        glusterd = require("glusterd", "glusterfs-server")
        servers = []
        for host in self.hosts:
            state, logs = host.directory("state"), host.directory("log")
            volfile = host.write("glusterd.vol", f"""volume management
    type mgmt/glusterd
    option working-directory /var/lib/glusterd
    option transport-type socket
    option transport.socket.keepalive-time 10
    option transport.socket.keepalive-interval 2
    option transport.socket.read-fail-log off
    option transport.socket.listen-port 24007
    option ping-timeout 0
    option event-threads 1
    option max-port 60999
end-volume
""")
            servers.append(host.start("unshare", "--mount", "--propagation", "private", "sh", "-c", self.HIDE, "sh",
                                      state, logs, glusterd, "--no-daemon", "--volfile", volfile, "--log-level",
                                      "WARNING", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        def gluster(host, *words):
            return run("nsenter", "--target", servers[host].pid, "--mount", "--net",
                       "gluster", "--mode=script", *words)

        def answers(host):
            with contextlib.suppress(CannotRun):
                return bool(gluster(host, "peer", "status"))
            return False

        def all_joined(host):
            with contextlib.suppress(CannotRun):
                return gluster(host, "peer", "status").count("Peer in Cluster (Connected)") == HOSTS - 1
            return False

        for number in range(HOSTS):
            wait_until(lambda number=number: answers(number), "glusterd answers")
        for host in self.hosts[1:]:
            gluster(FIRST, "peer", "probe", host.ip)
        for number in range(HOSTS):
            wait_until(lambda number=number: all_joined(number), "all glusterds know each other")
        bricks = [f"{host.ip}:{host.directory('bricks')}/{number}-{role}"
                  for number in range(HOSTS)
                  for role, host in enumerate(self.hosts[number:] + self.hosts[:number])]
        gluster(FIRST, "volume", "create", "data", "replica", 3, "arbiter", 1, *bricks, "force")
        gluster(FIRST, "volume", "start", "data")
        wait_until(lambda: " N " not in gluster(FIRST, "volume", "status", "data").replace("N/A", ""),
                   "all bricks are up")

    def _mount(self, host):
        number = self.hosts.index(host)
        host.call("glusterfs", f"--volfile-server={host.ip}", "--volfile-id=data", "--log-level=WARNING",
                  f"--log-file={host.directory('log')}/client.log", host.mount_point)
        wait_until(lambda: os.path.ismount(self.path(number)), "GlusterFS mounts")


class MooseFS(Peer):
    """Goal 2, the master on the first host, a chunk server on each. Chunk servers sync a chunk before they close it, as
    whoever counts on fsync needs, and all have the priority that others have; all else, the master's changes written
    behind included, is as the package has it."""

    name = "MooseFS"

    def _start_servers(self):
        master, server = require("mfsmaster", "moosefs-master"), require("mfschunkserver", "moosefs-chunkserver")
        first = self.hosts[FIRST]
        state = first.directory("master")
        with open(os.path.join(state, "metadata.mfs"), "w", encoding="ascii") as file:
            file.write("MFSM NEW")  # an empty filesystem
        common = "WORKING_USER = root\nWORKING_GROUP = root\nDISABLE_OOM_KILLER = 0\nNICE_LEVEL = 0\n"
        exports = first.write("mfsexports.cfg", "* / rw,alldirs,admin,maproot=0:0\n* . rw\n")
        topology = first.write("mfstopology.cfg", "")
        config = first.write("mfsmaster.cfg", common + f"DATA_PATH = {state}\nEXPORTS_FILENAME = {exports}\n"
                             f"TOPOLOGY_FILENAME = {topology}\n")
        self._serve(first, "master", master, config)
        for host in self.hosts:
            disks = host.write("mfshdd.cfg", host.directory("chunks") + "\n")
            config = host.write("mfschunkserver.cfg", common + f"DATA_PATH = {host.directory('server')}\n"
                                f"HDD_CONF_FILENAME = {disks}\nMASTER_HOST = {first.ip}\nHDD_FSYNC_BEFORE_CLOSE = 1\n"
                                "MASTER_RECONNECTION_DELAY = 1\n")
            self._serve(host, "server", server, config)
        require("mfsmount", "moosefs-client")

    @staticmethod
    def _serve(host, name, program, config):
        with open(os.path.join(host.directory("log"), name), "ab") as log:
            host.start(program, "-c", config, "-f", "start", stdout=log, stderr=log)

    def _mount(self, host):
        config = host.write("mfsmount.cfg", "")

        def mounts():
            with contextlib.suppress(CannotRun):
                host.call("mfsmount", "-c", config, "-H", self.hosts[FIRST].ip, "-o", "mfsnice=0,allowoomkiller",
                          host.mount_point)
            return os.path.ismount(host.mount_point)
        wait_until(mounts, "MooseFS mounts")
        if host is self.hosts[FIRST]:
            self._set_up(host)

    @staticmethod
    def _set_up(host):
        # Settings of the root, which all below it inherit: two copies, and no trash that keeps what was removed.
        host.call("mfssetgoal", "2", host.mount_point)
        host.call("mfssettrashtime", "0", host.mount_point)
        disk = shutil.disk_usage(host.directory("chunks"))
        wait_until(lambda: shutil.disk_usage(host.mount_point).total > (HOSTS - 0.5) * (disk.used + disk.free),
                   "all chunk servers are there")
