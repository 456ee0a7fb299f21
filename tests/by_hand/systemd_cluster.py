#!/usr/bin/env python3
"""Three hosts that boot: a systemd each, which runs CairnFS by its installed unit, with metadata on one of them or in etcd.

    CAIRNFS_BIN_DIR=build/tools tests/by_hand/systemd_cluster.py [CASE...]

A host has namespaces of its own (processes, mounts, network, cgroup, names) and, over an overlay of this machine's root,
what `meson install` put into a folder, with /etc/cairnfs, /etc/systemd, /run and /var/lib/cairnfs of its own. Root only.
It is not among the tests that always run: it needs systemd, cgroup2 and a kernel that lets a namespace have all of this.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import cluster as support
from cairnfs_mount import BIN_DIR, Scratch, run, run_cases
from cluster import Cluster, wait_until

# In the mount namespace that is to be the host's: everything is made below $1 and becomes its root.
BOOT = r"""
set -e
root=$1 folder=$2 cgroup=$3
mount -t tmpfs tmpfs "$root"; mkdir "$root/upper" "$root/work" "$root/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/root"
root=$root/root
tar -C "$folder/destination" -c . | tar -C "$root" -x --keep-directory-symlink
mount -t proc proc "$root/proc"
mount --bind "$folder/boot_id" "$root/proc/sys/kernel/random/boot_id"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty fuse; do cp -a "/dev/$device" "$root/dev/$device"; done
chmod 666 "$root/dev/fuse"; ln -s null "$root/dev/console"; ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
for own in etc/systemd/system etc/cairnfs var/lib/cairnfs var/log/journal; do
  mkdir -p "$folder/own/$own" "$root/$own"; mount --bind "$folder/own/$own" "$root/$own"
done
cp "$folder/machine-id" "$root/etc/machine-id"; echo "$4" > "$root/etc/hostname"
cd "$root"; pivot_root . .; umount -l .
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin container=other /lib/systemd/systemd --show-status=0
"""
# Of what a machine starts beside CairnFS only what a boot cannot do without.
MASKED = ["systemd-timesyncd", "systemd-resolved", "systemd-networkd", "systemd-logind", "getty@tty1", "e2scrub_reap",
          "systemd-udevd", "dbus", "console-getty", "systemd-sysctl", "systemd-modules-load"]
CGROUPS = "/sys/fs/cgroup/unified" if os.path.isdir("/sys/fs/cgroup/unified") else "/sys/fs/cgroup"


class SystemdHost(support.Host):
    def prepare(self, destination):
        """destination: what `meson install --destdir` made."""
        self.folder = self.cluster.scratch.directory(self.name + "-root")
        for name in ("root", "own/etc/systemd/system", "own/etc/cairnfs", "own/var/lib/cairnfs"):
            os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        os.symlink(destination, os.path.join(self.folder, "destination"))
        with open(os.path.join(self.folder, "machine-id"), "w", encoding="ascii") as file:
            file.write(uuid.uuid4().hex + "\n")
        units = os.path.join(self.folder, "own/etc/systemd/system")
        os.symlink("/lib/systemd/system/multi-user.target", units + "/default.target")
        for unit in MASKED:
            os.symlink("/dev/null", f"{units}/{unit}.service")
        self.init_pid = 0

    def boot(self):
        with open(os.path.join(self.folder, "boot_id"), "w", encoding="ascii") as file:
            file.write(str(uuid.uuid4()) + "\n")
        cgroup = f"{CGROUPS}/{self.netns}"
        os.makedirs(cgroup, exist_ok=True)
        root = os.path.join(self.folder, "root")
        script = f'echo $$ > "{cgroup}/cgroup.procs"; exec unshare --cgroup --mount --uts --ipc --pid --fork ' \
                 f'--kill-child --propagation private sh -c "$0" sh "$@"'
        with open(os.path.join(self.folder, "console"), "ab") as console:
            self.outer = self.start("sh", "-c", script, BOOT, root, self.folder, cgroup, self.name, stdin=subprocess.DEVNULL,
                                    stdout=console, stderr=console)

        def child():
            found = subprocess.run(["pgrep", "-P", str(self.outer.pid)], stdout=subprocess.PIPE, text=True, check=False)
            return int(found.stdout) if found.stdout.strip() else None
        self.init_pid = wait_until(child, 10, f"{self.name}'s process 1")
        ready = os.path.join("/proc", str(self.init_pid), "root", "run/systemd/private")
        wait_until(lambda: os.path.exists(ready), 20, f"{self.name} boots")

    def command(self, *words):
        return ["nsenter", f"--target={self.init_pid}", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup",
                "--root", "--wd=/", "env",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=dumb", *map(str, words)]

    def do(self, *words):
        return run(*self.command(*words), timeout=120)

    def service(self, verb):
        return subprocess.run(self.command("systemctl", verb, "cairnfs"), check=False, stderr=subprocess.DEVNULL).returncode

    def wait_active(self, seconds=90):
        wait_until(lambda: self.show("ActiveState")["ActiveState"] == "active", seconds, f"{self.name} serves")

    def show(self, *properties, unit="cairnfs"):
        lines = self.do("systemctl", "show", unit, "-p", ",".join(properties)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def journal(self):
        return self.do("journalctl", "-u", "cairnfs", "--no-pager", "-o", "short-precise", "-n", "40")

    def ids(self):
        """Of the nodes that are up."""
        nodes = json.loads(self.do("cairnfs", "node", "list", "--json"))["nodes"]
        return {node["name"]: node["id"] for node in nodes if node["state"] == "up"}

    def wait_down(self, seconds=60):
        self.outer.wait(seconds)
        self.processes.remove(self.outer)

    def power_off(self):
        """As if its cable was pulled."""
        os.kill(self.init_pid, signal.SIGKILL)
        self.wait_down()

    def remove(self):
        def is_gone():  # once its last process is
            for folder, _, _ in os.walk(f"{CGROUPS}/{self.netns}", topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            return not os.path.exists(f"{CGROUPS}/{self.netns}")
        wait_until(is_gone, 20, f"{self.name}'s cgroup is gone")


class SystemdCluster(Cluster):
    """Of hosts that have made and joined it, with the service enabled."""

    def __init__(self, scratch, store):
        support.Host = SystemdHost
        super().__init__(scratch, hosts=3, metadata=store)
        try:
            self.install_and_join(scratch)
        except BaseException:
            self.__exit__()
            raise

    def install_and_join(self, scratch):
        destination = scratch.directory("destination")
        run("meson", "install", "-C", os.path.dirname(BIN_DIR), "--no-rebuild", "--strip", "--destdir", destination)
        self.start_etcd()
        for host in self.hosts:
            host.prepare(destination)
            host.boot()
            options = ["--listen", host.listen, "--name", host.name]
            where = ["--metadata", self.etcd_url] if self.etcd else ["--serve-metadata", "10.77.0.1:7402"]
            if host is self.hosts[0]:
                host.do("cairnfs", "cluster", "init", *options, "--trusted-network", support.NETWORK, *where)
            else:
                host.do("cairnfs", "cluster", "join", self.etcd_url or "10.77.0.1:7402", *options)
            with open(host.folder + "/own/etc/cairnfs/cairnfs.toml", "a", encoding="ascii") as config:
                config.writelines(f'{key} = "{value}"\n' for key, value in support.SMALL.items())
            host.do("systemctl", "enable", "--now", "cairnfs")
        wait_until(lambda: len(self.hosts[0].ids()) == 3, 30, "three nodes are up")

    def __exit__(self, *what):
        super().__exit__(*what)
        for host in self.hosts:
            host.remove()

    def metadata(self, verb):
        if not self.etcd:
            self.hosts[0].service(verb)
        elif verb == "stop":
            self.etcd[0].kill()
        else:
            self.etcd[0].serve()

    def assert_same(self, ids):
        for host in self.hosts:
            host.wait_active()
        wait_until(lambda: self.hosts[0].ids() == ids, 60, "the nodes are up, with the ids that they had")
        assert self.hosts[1].do("cat", "/mnt/cairnfs/kept/file") == "content\n"


def story(store):
    with Scratch("/var/tmp") as scratch, SystemdCluster(scratch, store) as cluster:
        try:
            tell(cluster)
        except BaseException:
            print("\n".join(host.journal() for host in cluster.hosts if os.path.isdir(f"/proc/{host.init_pid}")))
            raise


def tell(cluster):
    hosts, ids = cluster.hosts, cluster.hosts[0].ids()
    other = hosts[1]
    hosts[0].do("sh", "-c", "cd /mnt/cairnfs && mkdir t && echo content > t/file && mv t kept")
    other.do("systemctl", "kill", "--kill-who=main", "-s", "KILL", "cairnfs")  # Restart= brings it back
    wait_until(lambda: other.show("NRestarts")["NRestarts"] == "1", 30, "a restart")
    cluster.assert_same(ids)
    begin = time.monotonic()
    for host in hosts:
        host.do("systemctl", "reboot", "--no-block")
    for host in hosts:
        host.wait_down()
    down = time.monotonic() - begin
    assert down < 45, f"the hosts took {down} s to go down"
    for host in reversed(hosts):  # the one that may serve the metadata comes last
        host.boot()
    cluster.assert_same(ids)
    for host in hosts:
        host.power_off()
    for host in reversed(hosts):
        host.boot()
    cluster.assert_same(ids)
    cluster.metadata("stop")
    begin = time.monotonic()
    assert other.service("stop") == 0
    stopped = time.monotonic() - begin
    assert stopped < 45, f"a stop without metadata took {stopped} s"
    starting = subprocess.Popen(other.command("systemctl", "start", "cairnfs"), stderr=subprocess.DEVNULL)
    wait_until(lambda: "joining the cluster" in other.show("StatusText")["StatusText"], 10,
               "the status tells what it waits for")
    assert other.service("stop") == 0 and starting.wait(10) != 0
    assert other.show("ActiveState", "SubState") == {"ActiveState": "inactive", "SubState": "dead"}
    cluster.metadata("start")
    other.service("start")
    cluster.assert_same(ids)


class JoiningCluster(SystemdCluster):
    """The first host has made it; of the others only the machines are there."""

    def install_and_join(self, scratch):
        destination = scratch.directory("destination")
        run("meson", "install", "-C", os.path.dirname(BIN_DIR), "--no-rebuild", "--strip", "--destdir", destination)
        for host in self.hosts:
            host.prepare(destination)
        first = self.hosts[0]
        first.boot()
        first.do("cairnfs", "cluster", "init", "--listen", first.listen, "--name", first.name)
        self.set_up(first)

    @staticmethod
    def set_up(host):
        with open(host.folder + "/own/etc/cairnfs/cairnfs.toml", "a", encoding="ascii") as config:
            config.writelines(f'{key} = "{value}"\n' for key, value in support.SMALL.items())
        host.do("systemctl", "enable", "--now", "cairnfs")


def a_host_that_boots_first_joins_later():
    """The cluster cannot be reached at its first boot; another one has a token that was used."""
    with Scratch("/var/tmp") as scratch, JoiningCluster(scratch, "node") as cluster:
        first, late, wrong = cluster.hosts
        try:
            token = first.do("cairnfs", "cluster", "token").splitlines()[-2]
            for host in (late, wrong):
                etc = host.folder + "/own/etc/cairnfs/"
                with open(etc + "join.env", "w", encoding="ascii") as file:
                    file.write(f"CAIRNFS_JOIN={first.ip}:{support.JOIN_PORT} --name {host.name}\n")
                with open(etc + "join.token", "w", encoding="ascii") as file:
                    file.write(token + "\n")
                wants = host.folder + "/own/etc/systemd/system/multi-user.target.wants"
                os.makedirs(wants)
                for unit in ("cairnfs-join", "cairnfs"):
                    os.symlink(f"/usr/local/lib/systemd/system/{unit}.service", f"{wants}/{unit}.service")
            first.set_link(False)
            late.boot()

            def restarts(host):
                return int(host.show("NRestarts", unit="cairnfs-join")["NRestarts"])
            wait_until(lambda: restarts(late) >= 2, 120, "it is tried again")
            state = late.show("ActiveState", "ConditionResult")
            assert state == {"ActiveState": "inactive", "ConditionResult": "no"}, state
            assert not os.path.exists(late.folder + "/own/etc/cairnfs/cairnfs.toml")
            first.set_link(True)
            late.wait_active()
            assert len(late.ids()) == 2, late.ids()
            first.do("sh", "-c", "echo content > /mnt/cairnfs/file")
            assert late.do("cat", "/mnt/cairnfs/file") == "content\n"
            late.do("systemctl", "reboot", "--no-block")
            late.wait_down()
            late.boot()
            late.wait_active()
            assert late.show("ConditionResult", unit="cairnfs-join")["ConditionResult"] == "no"
            # A token that was used is tried once.
            wrong.boot()
            wait_until(lambda: wrong.show("ActiveState", unit="cairnfs-join")["ActiveState"] == "failed", 60, "a failure")
            told = wrong.show("NRestarts", "ExecMainStatus", unit="cairnfs-join")
            assert told == {"NRestarts": "0", "ExecMainStatus": "6"}, told
            assert wrong.show("ActiveState")["ActiveState"] == "inactive"
            # What is written while nothing is mounted is refused: the unit guards its mount point.
            late.service("stop")
            bare = subprocess.run(late.command("touch", "/mnt/cairnfs/bare"), stderr=subprocess.PIPE, text=True,
                                  check=False)
            assert bare.returncode != 0 and "not permitted" in bare.stderr, bare
        except BaseException:
            for host in cluster.hosts:
                if host.init_pid and os.path.isdir(f"/proc/{host.init_pid}"):
                    print(host.do("journalctl", "-u", "cairnfs", "-u", "cairnfs-join", "--no-pager", "-n", "40"))
            raise


def on(store):
    def case():
        return story(store)
    case.__name__ = store
    return case


if __name__ == "__main__":
    sys.exit(run_cases([on("node"), on("etcd"), a_host_that_boots_first_joins_later]))
