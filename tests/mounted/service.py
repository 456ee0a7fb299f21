#!/usr/bin/env python3
"""The daemon as a service: how it starts, what it leaves of its starter, logs, and how it stops. Run as root."""

import contextlib
import errno
import glob
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, program, run, run_cases
from daemons import build_library, foreground, start_with_library, wait_for_mount
from refusals import PERMISSION, USAGE, call, expect


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


def long_data_path():
    """Longer than a Unix socket's name may be."""
    with Scratch() as scratch:
        mount = Mount(scratch, data=scratch.directory("d" * 120) + "/data")
        assert mount.status()["data"] == mount.data
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


def environment_of(pid):
    """The names of its variables."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        return {variable.partition(b"=")[0].decode() for variable in file.read().split(b"\0") if variable}


def a_daemon_that_root_starts_keeps_nothing_of_the_environment_either():
    with Scratch() as scratch, foreground(scratch, HTTP_PROXY="http://127.0.0.1:9", LD_LIBRARY_PATH="/nowhere",
                                          CAIRNFS_OF_TEST="1") as (process, point):
        wait_for_mount(point)
        names = environment_of(process.pid)
        assert names >= {"PATH", "CAIRNFS_OF_TEST"} and not names & {"HTTP_PROXY", "LD_LIBRARY_PATH", "HOME"}, names


def background_has_no_more_rights_than_it_needs():
    """Of all of root's, each of its threads has those that the units allow, and nothing it starts gains any."""
    # DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL, SETGID, SETUID, SYS_PTRACE, SYS_ADMIN
    kept = sum(1 << capability for capability in (1, 2, 3, 5, 6, 7, 19, 21))
    with Scratch() as scratch:
        os.environ["HTTP_PROXY"] = "http://127.0.0.1:9"
        try:
            mount = Mount(scratch)
        finally:
            del os.environ["HTTP_PROXY"]
        names = environment_of(mount.pid)
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


SLOW_SYNCS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fdatasync(int fd) { usleep(500000); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
int fsync(int fd) { usleep(500000); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
"""


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
        umount_tells_when_not_everything_became_durable, umount_of_a_folder_inside_is_refused, systemd_is_told,
        umount_from_outside_ends_the_daemon, long_data_path, background_leaves_nothing_of_the_starter,
        background_has_no_more_rights_than_it_needs,
        a_daemon_that_root_starts_keeps_nothing_of_the_environment_either,
        a_data_directory_that_others_could_change_is_refused,
        a_commit_that_a_stopping_daemon_answers_is_durable,
    ])


if __name__ == "__main__":
    sys.exit(main())
