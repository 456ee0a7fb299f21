#!/usr/bin/env python3
"""The daemon as a service, and the command line as a user meets it. Run as root."""

import contextlib
import errno
import glob
import http.client
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, free_port, program, run, run_cases
from refusals import BUSY, NO_DAEMON, PERMISSION, USAGE, call, expect, expect_errno


class SystemdSocket:
    """What systemd offers a service: a socket that hears its notifications."""

    def __init__(self, scratch):
        self.path = os.path.join(scratch.path, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard = ""
        self.changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        """At all times, as systemd does: the queue is short, and what finds it full is not heard."""
        while True:
            text = self.socket.recv(65536).decode()
            with self.changed:
                self.heard += text + "\n"
                self.changed.notify_all()

    def wait_for(self, text, seconds=60):
        with self.changed:
            came = self.changed.wait_for(lambda: text in self.heard, seconds)
            assert came, f"{text} did not come within {seconds} s, but {self.heard!r}"

    def wait_for_next(self, text):
        """How long it took."""
        begin = time.monotonic()
        with self.changed:
            self.heard = ""
        self.wait_for(text)
        return time.monotonic() - begin


@contextlib.contextmanager
def foreground(scratch, *words, data=None, **environment):
    """cairnfsd in the foreground, its stderr in a file."""
    point = scratch.directory("point")
    log = open(os.path.join(scratch.path, "stderr"), "wb")
    process = subprocess.Popen([program("cairnfsd"), point, "--data", data or scratch.path + "/data", "-o", SMALL, *words],
                               stdout=log, stderr=log, env=dict(os.environ, **environment))
    try:
        yield process, point
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        subprocess.run(["umount", "-l", point], check=False, stderr=subprocess.DEVNULL)
        log.close()


def wait_for_mount(point):
    for _ in range(600):
        if os.path.ismount(point) and subprocess.run([program("cairnfs"), "status", point], check=False,
                                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError("the mount did not come up")


def systemd_is_told():
    with Scratch() as scratch:
        systemd = SystemdSocket(scratch)
        with foreground(scratch, NOTIFY_SOCKET=systemd.path, WATCHDOG_USEC="300000") as (process, point):
            systemd.wait_for("READY=1")
            assert os.path.ismount(point)
            # Some two of them come one soon after the other, also on a busy machine.
            assert any(systemd.wait_for_next("WATCHDOG=1") < 2 for _ in range(10))
            with open(point + "/file", "wb") as file:
                file.write(b"not synced")
            process.send_signal(signal.SIGHUP)
            process.terminate()
            systemd.wait_for("STOPPING=1")
            assert process.wait(60) == 0
            assert not os.path.ismount(point)
        with foreground(scratch) as (process, point):
            wait_for_mount(point)
            with open(point + "/file", "rb") as file:
                assert file.read() == b"not synced"
            with open(scratch.path + "/stderr", encoding="utf-8") as log:
                assert "not closed cleanly" not in log.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def umount_from_outside_ends_the_daemon():
    with Scratch() as scratch, foreground(scratch) as (process, point):
        wait_for_mount(point)
        with open(point + "/file", "wb") as file:
            file.write(bytes(5 << 20))
        run("umount", point)
        assert process.wait(60) == 0


def fstab_helper_mounts():
    with Scratch() as scratch:
        point = scratch.directory("point")
        data = scratch.path + "/data"
        # As mount(8) calls it, with the options that fstab adds.
        run(program("mount.cairnfs"), data, point, "-o", "rw,nosuid,_netdev,x-systemd.automount," + SMALL)
        try:
            with open("/proc/self/mounts", encoding="utf-8") as mounts:
                line = next(line for line in mounts if line.split()[1] == point)
            assert line.split()[0] == data and line.split()[2] == "fuse.cairnfs" and "nosuid" in line, line
            with open(point + "/x", "w", encoding="ascii") as file:
                file.write("x")
        finally:
            run(program("cairnfs"), "umount", point)
        # A data directory that systemd's fstab generator would hand over read-only.
        run(program("mount.cairnfs"), data, point, "-r", "-o", SMALL)
        try:
            with open(point + "/x", encoding="ascii") as file:
                assert file.read() == "x"
            try:
                os.unlink(point + "/x")
                raise AssertionError("a read-only mount was written to")
            except OSError as error:
                assert error.errno == 30, error  # EROFS
        finally:
            run(program("cairnfs"), "umount", point)


MOUNTS_AS_INSTALLED = """
import os, subprocess, sys
sbin, here, helper = os.path.realpath("/sbin"), sys.argv[1], sys.argv[2]
os.makedirs(here + "/all")
os.makedirs(here + "/sbin")
subprocess.run(["mount", "--bind", sbin, here + "/all"], check=True)
for name in os.listdir(sbin):
    if name not in ("mount.cairnfs", "mount.fuse.cairnfs"):
        os.symlink(here + "/all/" + name, here + "/sbin/" + name)
os.symlink(helper, here + "/sbin/mount.cairnfs")
os.symlink("mount.cairnfs", here + "/sbin/mount.fuse.cairnfs")
subprocess.run(["mount", "--bind", here + "/sbin", sbin], check=True)
os.execvp("sh", ["sh", "-c", sys.argv[3]])
"""


def mount_state(point):
    """What the kernel says: of the mount, and of the filesystem."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        words = next(line.split() for line in mounts if line.split()[4] == point)
    return set(words[5].split(",")), set(words[words.index("-") + 3].split(","))


def mount_8_remounts():
    """As an administrator types it, with fstab and without; mount(8) finds the helpers where they are installed."""
    with Scratch() as scratch:
        point, data, fstab = scratch.directory("point"), scratch.path + "/data", scratch.path + "/fstab"
        with open(fstab, "w", encoding="ascii") as file:
            file.write(f"{data} {point} cairnfs nosuid,nodev,{SMALL} 0 0\n")
        script = f"""
            set -e
            mount -t cairnfs {data} {point} -o nosuid,nodev,noexec,{SMALL}
            echo x > {point}/x
            mount -o remount,ro {point}
            if touch {point}/y 2> {scratch.path}/refused; then exit 3; fi
            grep -q "Read-only" {scratch.path}/refused
            mount -o remount,log_level=debug {point}
            if touch {point}/y 2> {scratch.path}/refused; then exit 3; fi
            if mount -o remount,pool_size=96MiB {point} 2> {scratch.path}/refused; then exit 3; fi
            grep -q "pool_size cannot change" {scratch.path}/refused
            mount -o remount,rw {point}
            grep " {point} rw,nosuid,nodev,noexec,relatime " /proc/self/mountinfo
            touch {point}/y
            mount -T {fstab} -o remount,ro {point}
            grep " {point} ro,nosuid,nodev,noexec,relatime " /proc/self/mountinfo
            mount -T {fstab} -o remount {point}
            touch {point}/y
            {program("cairnfs")} umount {point}
        """
        run("unshare", "-m", sys.executable, "-c", MOUNTS_AS_INSTALLED, scratch.directory("names"),
            program("mount.cairnfs"), script)


def read_only_by_a_remount():
    """Nobody writes, all is durable at once, nothing is collected; and back. What cannot change is named."""
    with Scratch() as scratch:
        mount = Mount(scratch, options=SMALL + ",flush_interval=4s,nosuid")

        def remount(words):
            return call(program("cairnfs"), "mount", mount.path, "-o", "remount," + words)

        with open(mount.path + "/file", "wb") as file:
            file.write(b"x" * 100000)
            file.flush()
            expect(remount("ro"), BUSY, f"open for writing by process {os.getpid()} (")
            file.write(b"y")
        expect(remount("ro"), 0)
        of_mount, of_filesystem = mount_state(mount.path)
        assert {"ro", "nosuid"} <= of_mount and "ro" in of_filesystem, (of_mount, of_filesystem)
        for refused in (lambda: os.unlink(mount.path + "/file"), lambda: os.truncate(mount.path + "/file", 0),
                        lambda: open(mount.path + "/new", "wb")):
            expect_errno(errno.EROFS, refused)
        assert mount.status()["dirty_bytes"] == 0
        expect(call(program("cairnfs"), "gc", mount.path), PERMISSION, "read_only")
        # A crash takes nothing of it.
        mount.kill()
        mount.mount()
        assert os.path.getsize(mount.path + "/file") == 100001
        expect(remount("ro,log_level=debug,collect_rate=1MiB"), 0)
        expect(remount("log_level=info"), 0)
        assert "ro" in mount_state(mount.path)[0], "a remount that names another option made it writable"
        expect(remount("rw,noatime,nodev"), 0)
        assert {"rw", "nosuid", "nodev", "noatime"} <= mount_state(mount.path)[0], mount_state(mount.path)
        os.unlink(mount.path + "/file")
        mount.collect()
        expect(remount("pool_size=64MiB"), 0)
        expect(remount("pool_size=65MiB"), USAGE, "pool_size cannot change")
        expect(remount("data=/elsewhere"), USAGE, "data cannot change")
        expect(remount("log_level=loud"), USAGE, "log_level: must be one of")
        expect(call(program("cairnfs"), "mount", mount.path, "--data", scratch.path, "-o", "remount"), USAGE,
               "is mounted from " + mount.data)
        expect(call(program("cairnfs"), "mount", scratch.path, "-o", "remount,ro"), NO_DAEMON, "no CairnFS is mounted")
        # As `mount -i` does: the kernel alone is told. The next remount goes by what it finds.
        run("mount", "-i", "-o", "remount,ro", mount.path)
        expect(remount("log_level=info"), 0)
        told = mount.log().count("remounted ")
        expect(remount("log_level=error"), 0)
        assert mount.log().count("remounted ") == told > 0, mount.log()
        assert "ro" in mount_state(mount.path)[0]
        expect(call(program("cairnfs"), "gc", mount.path), PERMISSION, "read_only")
        expect(remount("rw"), 0)
        mount.umount()


def scrape(address, source=None):
    """What Prometheus reads, without the comments; from the address `source`, where given."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=10,
                                            source_address=source and (source, 0))
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        lines = answer.read().decode().splitlines()
        assert answer.status == 200 and answer.getheader("Content-Type").startswith("text/plain; version="), answer.headers
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


def metrics_are_served():
    for host in ("127.0.0.1", "[::1]"):
        with Scratch() as scratch:
            address = f"{host}:{free_port()}"
            mount = Mount(scratch, options=f"{SMALL},metrics_address={address}")
            with open(mount.path + "/file", "wb", buffering=0) as file:
                file.write(b"x" * 100000)
                os.fsync(file.fileno())
            values = scrape(address)
            assert values["cairnfs_write_bytes_total"] == 100000, values
            assert values["cairnfs_failed"] == 0 and values["cairnfs_pool_buffers"] > 0
            # Without being synced, and whatever else an inode is.
            os.mkdir(mount.path + "/directory")
            with open(mount.path + "/empty", "wb"):
                pass
            with open(mount.path + "/unsynced", "wb") as file:
                file.write(b"y" * 5000)
            deadline = time.monotonic() + 60
            while "cairnfs_live_bytes" not in (values := scrape(address)):
                assert time.monotonic() < deadline, "nobody counts what files need"
                time.sleep(0.1)
            # In whole 64 MiB.
            assert values["cairnfs_live_bytes"] == values["cairnfs_unreferenced_bytes"] == 0, values
            assert values["cairnfs_inodes"] == 5 and values["cairnfs_logical_bytes"] == 105000, values
            mount.umount()


def connections_for_metrics_are_bounded():
    """Who opens hundreds takes few of the daemon's descriptors, and keeps nobody else from an answer."""
    with Scratch() as scratch, contextlib.ExitStack() as connections:
        address = f"127.0.0.1:{free_port()}"
        mount = Mount(scratch, options=f"{SMALL},metrics_address={address}")
        before = len(os.listdir(f"/proc/{mount.pid}/fd"))
        for _ in range(200):
            idle = connections.enter_context(socket.create_connection(("127.0.0.1", int(address.split(":")[1]))))
            with contextlib.suppress(OSError):
                idle.sendall(b"GET /metrics HT")
        assert scrape(address, "127.0.0.2")["cairnfs_failed"] == 0
        taken = len(os.listdir(f"/proc/{mount.pid}/fd")) - before
        assert taken <= 32, f"{taken} descriptors are taken"
        connections.close()
        mount.umount()


def long_data_path():
    """Longer than a Unix socket's name may be."""
    with Scratch() as scratch:
        mount = Mount(scratch, data=scratch.directory("d" * 120) + "/data")
        assert mount.status()["data"] == mount.data
        mount.umount()


def commands_print_json():
    with Scratch() as scratch:
        mount = Mount(scratch)
        for copy in ("a", "b"):
            with open(f"{mount.path}/{copy}", "wb") as file:
                file.write(bytes(range(256)) * 20000)
        assert json.loads(run(program("cairnfs"), "wait", mount.path + "/a", "--json")) == {"durable": True}
        os.mkdir(mount.path + "/step.tmp")
        committed = run(program("cairnfs"), "commit", "step.tmp", "step", "--ranks", "1", "--rank", "0", "--json",
                        cwd=mount.path)
        assert json.loads(committed) == {"committed": True, "path": mount.path + "/step", "ranks": 1}, committed
        status = mount.status()
        assert status["logical_bytes"] == 2 * 5120000, status
        assert status["unique_bytes"] <= 5120000 and status["dedup_ratio"] >= 2, status
        assert status["dirty_bytes"] == 0 and status["last_error"] == "", status
        assert os.getxattr(mount.path + "/a", "user.cairnfs.durability") == b"local"
        os.unlink(mount.path + "/a")
        os.unlink(mount.path + "/b")
        collected = mount.collect()
        assert collected["running"] is False and mount.status()["chunk_count"] == 0, (collected, mount.status())
        assert mount.check()["problem_count"] == 0
        text = run(program("cairnfs"), "status", mount.path)
        for word in ("logical", "unique", "on disk", "dedup ratio", "not durable", "rates", "pool", "last error"):
            assert word in text, text
        assert run(program("cairnfs"), "version").startswith("cairnfs ")
        mount.umount()
        offline = json.loads(run(program("cairnfs"), "check", "--data", mount.data, "--json"))
        assert offline["clean"], offline


def status_is_right_before_anything_is_durable():
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",flush_interval=4s")
        os.mkdir(mount.path + "/directory")
        os.symlink("elsewhere", mount.path + "/link")
        with open(mount.path + "/file", "wb") as file:
            file.write(os.urandom(3 << 20))
        status = mount.status()
        assert status["logical_bytes"] == 3 << 20 and status["inode_count"] == 4, status
        assert "3.0 MiB in 4 inodes" in run(program("cairnfs"), "status", mount.path)
        mount.umount()


def background_leaves_nothing_of_the_starter():
    with Scratch() as scratch:
        mount = Mount(scratch)
        assert os.readlink(f"/proc/{mount.pid}/cwd") == "/"
        with open(f"/proc/{mount.pid}/stat", encoding="ascii") as stat:
            session = stat.read().rsplit(")", 1)[1].split()[3]
        assert int(session) != os.getsid(0)
        for fd in ("0", "1", "2"):
            assert os.readlink(f"/proc/{mount.pid}/fd/{fd}") == "/dev/null"
        assert not [fd for fd in glob.glob(f"/proc/{mount.pid}/fd/*") if os.readlink(fd) == os.readlink("/proc/self/fd/0")
                    and os.readlink(fd) != "/dev/null"]
        mount.umount()


def background_has_no_more_rights_than_it_needs():
    """Of all of root's, each of its threads has those that the units allow, and nothing it starts gains any."""
    # DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, SYS_PTRACE, SYS_ADMIN
    kept = sum(1 << capability for capability in (1, 2, 3, 19, 21))
    with Scratch() as scratch:
        os.environ["HTTP_PROXY"] = "http://127.0.0.1:9"
        try:
            mount = Mount(scratch)
        finally:
            del os.environ["HTTP_PROXY"]
        with open(f"/proc/{mount.pid}/environ", "rb") as file:
            names = {variable.partition(b"=")[0].decode() for variable in file.read().split(b"\0") if variable}
        assert "PATH" in names and "HTTP_PROXY" not in names and "HOME" not in names, names
        for status in glob.glob(f"/proc/{mount.pid}/task/*/status"):
            with open(status, encoding="utf-8") as file:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            for name in ("CapPrm", "CapEff", "CapBnd"):
                assert int(fields[name], 16) & ~kept == 0, (fields["Name"], name, fields[name])
            assert int(fields["CapInh"], 16) & ~kept == 0 and fields["NoNewPrivs"] == "1", fields
        with open(f"/proc/{mount.pid}/comm", encoding="ascii") as file:
            assert file.read() == "cairnfsd\n"
        mount.umount()


def a_data_directory_that_others_could_change_is_refused():
    """And a log that leads elsewhere."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        mount.umount()
        for owner, mode, told in ((65534, 0o711, "run this as that user"), (0, 0o777, "run chmod go-w")):
            os.chown(mount.data, owner, owner)
            os.chmod(mount.data, mode)
            expect(call(*mount.mount_command()), PERMISSION, told)
            expect(call(program("cairnfs"), "check", "--data", mount.data), PERMISSION, told)
        os.chmod(mount.data, 0o711)
        log, victim = mount.data + "/cairnfs.log", scratch.path + "/victim"
        os.rename(log, victim)
        size = os.path.getsize(victim)
        os.symlink(victim, log)
        expect(call(*mount.mount_command()), USAGE, f"{log} is a symbolic link")
        assert os.path.getsize(victim) == size
        os.unlink(log)
        mount.mount()
        mount.umount()


def mount_after_drain(mount):
    """A drain may take longer than a mount waits for it."""
    deadline = time.monotonic() + 60
    code, output = call(*mount.mount_command())
    while code == BUSY and time.monotonic() < deadline:
        time.sleep(0.1)
        code, output = call(*mount.mount_command())
    assert code == 0, (code, output)
    mount.pid = mount.status()["pid"]


def remount_right_after_umount():
    """umount(8) does not wait for the drain; the next mount does."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        for round_number in range(5):
            with open(f"{mount.path}/file-{round_number}", "wb") as file:
                file.write(os.urandom(8 << 20))
            run("umount", mount.path)
            mount_after_drain(mount)
        assert len(os.listdir(mount.path)) == 5
        mount.check()
        mount.umount()


def unprivileged_user_mounts():
    """Through fusermount3, with a /dev/fuse that everybody may open, as distributions have it."""
    with Scratch() as scratch:
        nobody = 65534
        for name in ("data", "point"):
            os.chown(scratch.directory(name), nobody, nobody)
        cairnfs, point = program("cairnfs"), scratch.path + "/point"
        steps = [f"{cairnfs} mount {point} --data {scratch.path}/data -o {SMALL}", f"echo hello > {point}/file",
                 f"cat {point}/file", f"{cairnfs} status {point}", f"{cairnfs} wait {point}/file",
                 f"{cairnfs} mount {point} -o remount,flush_interval=2s,log_level=debug",
                 # What the kernel is to be told only root may tell it.
                 f"if {cairnfs} mount {point} -o remount,ro; then exit 9; else test $? = 6; fi",
                 f"{cairnfs} umount {point}"]
        device = scratch.path + "/fuse"
        os.mknod(device, 0o666 | 0o020000, os.makedev(10, 229))
        os.chmod(device, 0o666)
        script = (f"mount --bind {device} /dev/fuse && exec setpriv --reuid {nobody} --regid {nobody} --clear-groups "
                  f"sh -ec '{' && '.join(steps)}'")
        output = run("unshare", "-m", "sh", "-ec", script)
        assert "hello" in output and "not durable" in output and "only root may remount" in output, output


def umount_tells_when_not_everything_became_durable():
    """The daemon dies while it drains."""
    with Scratch() as scratch:
        cairnfs = program("cairnfs")
        for attempt in range(5):
            point = scratch.directory(f"point-{attempt}")
            run(cairnfs, "mount", "-o", SMALL + ",flush_interval=4s", point, "--data", f"{scratch.path}/data-{attempt}",
                env=dict(os.environ, CAIRNFS_FAILPOINTS="fs.round_published=kill"))
            with contextlib.suppress(OSError):
                os.mkdir(point + "/lost")
            ended = subprocess.run([cairnfs, "umount", point], capture_output=True, text=True, check=False)
            assert ended.returncode == 1, ended
            if "before everything was durable" in ended.stderr:
                return
            # By itself, when the flush interval was over before the umount came.
            assert "its daemon had ended before" in ended.stderr, ended
        raise AssertionError("each daemon had ended before its umount")


def umount_of_a_folder_inside_is_refused():
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/inside")
        refused = subprocess.run([program("cairnfs"), "umount", mount.path + "/inside"], capture_output=True, text=True,
                                 check=False)
        assert refused.returncode == 3 and "is not a mount point" in refused.stderr, refused
        mount.umount()


def set_group_id_of_a_directory_survives_a_chown():
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/shared")
        os.chmod(mount.path + "/shared", 0o2775)
        os.chown(mount.path + "/shared", 1234, 1234)
        assert os.stat(mount.path + "/shared").st_mode & 0o7777 == 0o2775
        with open(mount.path + "/program", "wb") as file:
            os.fchmod(file.fileno(), 0o4755)
        os.chown(mount.path + "/program", 1234, 1234)
        assert os.stat(mount.path + "/program").st_mode & 0o7777 == 0o755
        mount.umount()


def noatime_leaves_times_alone():
    for options, moves in (("", True), (",noatime", False)):
        with Scratch() as scratch:
            mount = Mount(scratch, SMALL + options)
            path = mount.path + "/file"
            with open(path, "wb") as file:
                file.write(b"x" * 100)
            os.utime(path, (1000, 2000))
            with open(path, "rb") as file:
                file.read()
            time.sleep(1.2)  # the kernel may know attributes for a second
            assert (os.stat(path).st_atime != 1000) == moves, (options, os.stat(path))
            mount.umount()


def relative_paths_are_the_callers():
    """The daemon in the background has "/" as its working directory."""
    with Scratch() as scratch:
        here = scratch.directory("here")
        with open(here + "/c.toml", "w", encoding="ascii") as file:
            file.write('data = "from-config"\nmount_point = "point"\nlog_file = "daemon.log"\n')
        scratch.directory("here/point")
        cairnfs = program("cairnfs")
        for words, data in ((["-o", SMALL, "--config", "c.toml"], "from-config"),
                            (["point", "-o", SMALL + ",data=from-option,log_file=daemon.log"], "from-option"),
                            (["-o", SMALL + ",data=from-option,mount_point=point,log_file=./daemon.log"], "from-option")):
            run(cairnfs, "mount", *words, cwd=here)
            status = json.loads(run(cairnfs, "status", here + "/point", "--json"))
            assert status["data"] == f"{here}/{data}" and status["mount_point"] == here + "/point", status
            assert status["log"] == here + "/daemon.log" and os.path.getsize(here + "/daemon.log") > 0, status
            assert os.readlink(f"/proc/{status['pid']}/cwd") == "/"
            run(cairnfs, "umount", here + "/point")
            os.unlink(here + "/daemon.log")


def log_file_is_bounded():
    """8 MiB and two older files."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        mount.umount()
        log = mount.data + "/cairnfs.log"
        for _ in range(3):
            with open(log, "ab") as file:
                file.write(b"x" * (9 << 20))
            mount.mount()
            mount.umount()
        names = sorted(name for name in os.listdir(mount.data) if name.startswith("cairnfs."))
        assert names == ["cairnfs.1.log", "cairnfs.2.log", "cairnfs.log"], names
        assert os.path.getsize(log) < 1 << 20
        with open(log, encoding="utf-8") as file:
            assert "which CairnFS did not put there" not in file.read()


def log_goes_where_no_file_can_be_renamed():
    with Scratch() as scratch, foreground(scratch, "-o", "log_file=/dev/stderr") as (process, point):
        wait_for_mount(point)
        process.terminate()
        assert process.wait(60) == 0
        assert os.path.islink("/dev/stderr")
        with open(scratch.path + "/stderr", encoding="utf-8") as log:
            assert "everything is durable" in log.read()


def ro_among_the_words_for_the_kernel_is_read_only():
    """Not even times of access are written."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb") as file:
            file.write(b"x" * 100)
        os.utime(mount.path + "/file", (1000, 2000))
        mount.umount()
        config = scratch.path + "/c.toml"
        with open(config, "w", encoding="ascii") as file:
            file.write('mount_options = ["ro"]\n')
        run(program("cairnfs"), "mount", mount.path, "--data", mount.data, "--config", config, "-o", SMALL)
        with open(mount.path + "/file", "rb") as file:
            file.read()
        try:
            os.unlink(mount.path + "/file")
            raise AssertionError("a read-only mount was written to")
        except OSError as error:
            assert error.errno == 30, error  # EROFS
        run(program("cairnfs"), "umount", mount.path)
        mount.mount()
        assert os.stat(mount.path + "/file").st_atime == 1000, os.stat(mount.path + "/file")
        mount.umount()


SLOW_SYNCS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fdatasync(int fd) { usleep(500000); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
int fsync(int fd) { usleep(500000); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
"""


SLOW_WHILE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
static void wait_for(int microseconds) { if (access(getenv("SLOW_WHILE"), F_OK) == 0) usleep(microseconds); }
int fdatasync(int fd) { wait_for(600000); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
int fsync(int fd) { wait_for(600000); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
ssize_t pread64(int fd, void* to, size_t size, off64_t offset) {
  if (size >= 1 << 20) wait_for(300000);
  return ((ssize_t (*)(int, void*, size_t, off64_t))dlsym(RTLD_NEXT, "pread64"))(fd, to, size, offset);
}
ssize_t pread(int fd, void* to, size_t size, off_t offset) { return pread64(fd, to, size, offset); }
"""


def on_terminal(*command, **options):
    """Runs it with stderr on a terminal; its exit code, its output, and what the terminal got."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, **options) as process:
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
                while part := os.read(ours, 65536):
                    shown += part
            return process.wait(60), process.stdout.read(), shown.decode()
    finally:
        os.close(ours)


def build_library(scratch, text):
    """From its text in C; its path."""
    source, library = os.path.join(scratch.path, "library.c"), os.path.join(scratch.path, "library.so")
    with open(source, "w", encoding="ascii") as file:
        file.write(text)
    run("cc", "-shared", "-fPIC", "-o", library, source)
    return library


def start_with_library(mount, shim, **environment):
    """Its daemon, with a library before its own, which cairnfs mount does not pass on; mounted."""
    process = subprocess.Popen([program("cairnfsd"), mount.path, "--data", mount.data, "-o", SMALL + ",io_uring=false"],
                               stderr=subprocess.DEVNULL, env=dict(os.environ, LD_PRELOAD=shim, **environment))
    wait_for_mount(mount.path)
    return process


def wait_and_check_say_how_far_they_are():
    """One line on a terminal, rewritten and gone at the end; nothing where there is none."""
    with Scratch() as scratch:
        shim = build_library(scratch, SLOW_WHILE)
        slow = scratch.path + "/slow"
        mount = Mount(scratch)
        mount.umount()
        process = start_with_library(mount, shim, SLOW_WHILE=slow)
        mount.pid = process.pid
        cairnfs, clear = program("cairnfs"), "\r\x1b[K"

        def write(mib):
            with open(mount.path + "/file", "wb") as file:
                file.write(os.urandom(mib << 20))

        write(40)
        with open(slow, "wb"):
            pass
        code, output, shown = on_terminal(cairnfs, "wait", mount.path)
        assert (code, output) == (0, "") and shown.endswith(clear), (code, output, shown)
        assert "waiting until everything is durable" in shown and "\n" not in shown, shown
        code, output, shown = on_terminal(cairnfs, "check", mount.path)
        assert code == 0 and output.endswith("clean\n") and shown.endswith(clear), (code, output, shown)
        share = [int(number) for number in re.findall(r"checking chunks: \S+ MiB of \S+ MiB \((\d+) %\)", shown)]
        assert len(set(share)) > 2 and share == sorted(share), shown
        assert re.search(r"%\), about \d+ s left", shown) and "\n" not in shown, shown
        os.unlink(slow)
        write(1)
        assert call(cairnfs, "wait", mount.path) == (0, "")
        run("umount", mount.path)
        assert process.wait(60) == 0
        mount.pid = None
        code, output, shown = on_terminal(cairnfs, "check", "--data", mount.data)
        assert code == 0 and output.endswith("clean\n") and "\n" not in shown, (code, output, shown)
        code, output, shown = on_terminal(cairnfs, "check", "--data", mount.data, "--json")
        assert code == 0 and shown == "", (code, shown)
        code, output = call(cairnfs, "check", "--data", mount.data)
        assert code == 0 and "checking" not in output, output


def commit_while_stopping(mount, shim, folder, delay):
    """SIGTERM comes `delay` seconds after a commit began. Whether the rename returned after it; None if it failed."""
    mount.umount()
    process = start_with_library(mount, shim)
    pid = process.pid
    os.mkdir(folder + ".tmp")
    with open(os.path.join(folder + ".tmp", "file"), "wb") as file:
        file.write(b"x" * 100000)
    told = threading.Event()

    def terminate():
        told.set()
        os.kill(pid, signal.SIGTERM)

    stop = threading.Timer(delay, terminate)
    stop.start()
    outlasted = None
    try:
        os.rename(folder + ".tmp", folder)
        outlasted = not stop.is_alive()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    except OSError as failure:
        # The mount was gone before the call came to the daemon, on which the stop made durable what there was.
        if not told.is_set() or failure.errno not in (errno.ENOENT, errno.ENOTCONN, errno.ECONNABORTED):
            raise
    finally:
        stop.cancel()
        stop.join()
    process.wait(300)
    mount.mount()
    place = folder if outlasted is not None or os.path.exists(folder) else folder + ".tmp"
    with open(os.path.join(place, "file"), "rb") as file:
        assert file.read() == b"x" * 100000, place
    return outlasted


def a_commit_that_a_stopping_daemon_answers_is_durable():
    """On a slow disk: whatever moment of a commit SIGTERM comes at, it is there when the rename has returned."""
    with Scratch() as scratch:
        shim = build_library(scratch, SLOW_SYNCS)
        mount = Mount(scratch)
        stopped_before = 0
        for delay in (0.4, 1.2, 2.2):
            for attempt in range(5):
                folder = os.path.join(mount.path, f"step-{delay}-{attempt}")
                outlasted = commit_while_stopping(mount, shim, folder, delay)
                if outlasted is not None:
                    stopped_before += outlasted
                    break
            assert outlasted is not None, f"no rename succeeded that began {delay} s before the stop"
        mount.umount()
        assert stopped_before > 0, "no commit took as long as it should have on such a disk"


def main():
    return run_cases([
        relative_paths_are_the_callers, log_file_is_bounded, log_goes_where_no_file_can_be_renamed,
        ro_among_the_words_for_the_kernel_is_read_only,
        umount_tells_when_not_everything_became_durable, umount_of_a_folder_inside_is_refused,
        set_group_id_of_a_directory_survives_a_chown, noatime_leaves_times_alone,
        systemd_is_told, umount_from_outside_ends_the_daemon, fstab_helper_mounts, metrics_are_served,
        connections_for_metrics_are_bounded, mount_8_remounts, read_only_by_a_remount, long_data_path,
        commands_print_json, status_is_right_before_anything_is_durable, wait_and_check_say_how_far_they_are,
        unprivileged_user_mounts, background_leaves_nothing_of_the_starter, background_has_no_more_rights_than_it_needs,
        a_data_directory_that_others_could_change_is_refused,
        remount_right_after_umount, a_commit_that_a_stopping_daemon_answers_is_durable,
    ])


if __name__ == "__main__":
    sys.exit(main())
