"""Hosts of support/cluster.py that boot: a systemd of their own each, which runs CairnFS by its installed unit.

A host has namespaces of its own (processes, mounts, network, cgroup, names) and, over an overlay of this machine's root,
what `meson install` put into a folder, with /etc/cairnfs, /etc/systemd, /run and /var/lib/cairnfs of its own. Needs root.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import cluster as support
from cairnfs_mount import run
from cluster import wait_until

# In the mount namespace that is to be the host's: everything is made below $1 and becomes its root.
BOOT = r"""
set -e
root=$1 folder=$2 cgroup=$3
mount -t tmpfs tmpfs "$root"; mkdir "$root/upper" "$root/work" "$root/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/root"
root=$root/root
cp -a "$folder/destination/." "$root"
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


class SystemdHost(support.Host):
    folder = None

    def prepare(self, destination):
        """REQUIRES: destination holds what `meson install --destdir` makes."""
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
        self.init_pid = None

    def boot(self):
        with open(os.path.join(self.folder, "boot_id"), "w", encoding="ascii") as file:
            file.write(str(uuid.uuid4()) + "\n")
        cgroup = f"/sys/fs/cgroup/unified/{self.netns}"
        if not os.path.isdir("/sys/fs/cgroup/unified"):
            cgroup = f"/sys/fs/cgroup/{self.netns}"
        os.makedirs(cgroup, exist_ok=True)
        self.cgroup = cgroup
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
        wait_until(lambda: os.path.exists(os.path.join("/proc", str(self.init_pid), "root", "run/systemd/private")), 20, f"{self.name} boots")

    def command(self, *words):
        return ["nsenter", f"--target={self.init_pid}", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup",
                "--root", "--wd=/", "env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=dumb", *map(str, words)]

    def try_do(self, *words, timeout=120):
        done = subprocess.run(self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=timeout, check=False)
        return done.returncode, done.stdout

    def do(self, *words, timeout=120):
        return run(*self.command(*words), timeout=timeout)

    def show(self, *properties, unit="cairnfs"):
        lines = self.do("systemctl", "show", unit, "-p", ",".join(properties)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def state(self):
        return self.show("ActiveState")["ActiveState"]

    def journal(self, *words):
        return self.do("journalctl", "-u", "cairnfs", "--no-pager", "-o", "short-precise", *words)

    def node_id(self):
        nodes = json.loads(self.do("cairnfs", "node", "list", "--json"))["nodes"]
        return {node["name"]: (node["id"], node["state"]) for node in nodes}

    def wait_down(self, seconds=60):
        self.outer.wait(seconds)
        self.processes.remove(self.outer)

    def power_off(self):
        """As if its cable was pulled."""
        os.kill(self.init_pid, signal.SIGKILL)
        self.wait_down()

    def remove(self):
        if self.folder is None:
            return
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)
