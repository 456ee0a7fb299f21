#!/usr/bin/env python3
"""How a daemon ends while others still have its mount, and within a deadline. Run as root."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, await_end, mounts_below, program, run, run_cases
from cluster import wait_until
from daemons import lock_text
from refusals import NO_DAEMON, NOBODY, PERMISSION, USAGE, call, expect, expect_errno


@contextlib.contextmanager
def setting(name, value):
    """An environment variable, for what is started meanwhile."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def namespace_with(mount):
    """A process in a mount namespace of its own, which has a copy of the mount and a file open in it."""
    script = "exec 3>held && echo written there >&3 && echo ready && exec sleep 300"
    process = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sh", "-c", script], cwd=mount.path,
                               stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def umount_says_whose_namespace_still_has_the_mount():
    with Scratch() as scratch:
        mount = Mount(scratch)
        for end in ("the holder ends", "SIGTERM"):
            with namespace_with(mount) as holder:
                # The holder's descriptor is of its own copy: here the mount is not busy.
                begin = time.monotonic()
                umount = subprocess.Popen(mount.umount_command(), stderr=subprocess.PIPE, text=True)
                told = umount.stderr.readline() + umount.stderr.readline()
                waited = time.monotonic() - begin
                assert mount.path + " is unmounted" in told and f"at {mount.path} in the mount namespace" in told, told
                assert f"process {holder.pid} (sleep)" in told and 1.5 < waited < 60, (told, waited)
                assert f"nsenter -t {holder.pid} -m umount {mount.path}" in umount.stderr.readline()
                time.sleep(3)
                assert umount.poll() is None and not os.path.ismount(mount.path)
                if end == "SIGTERM":
                    os.kill(mount.pid, signal.SIGTERM)
                else:
                    holder.kill()
                rest = umount.communicate(timeout=30)[1]
                assert umount.returncode == 0 and rest == "", (umount.returncode, rest)  # told once
            mount.mount()
            with open(mount.path + "/held", encoding="ascii") as file:
                assert file.read() == "written there\n"
        mount.umount()


def a_stop_ends_while_another_namespace_writes():
    """What systemctl stop does. Bytes that a sync covered are there, and whoever writes on is told."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        with namespace_with(mount) as holder:
            inside = ["nsenter", "-t", str(holder.pid), "-m"]
            run(*inside, "sh", "-c", f"echo synced > {mount.path}/synced && sync {mount.path}/synced")
            writer = subprocess.Popen([*inside, "dd", "if=/dev/urandom", f"of={mount.path}/much", "bs=1M"],
                                      stderr=subprocess.PIPE, text=True)
            time.sleep(1)
            pid = mount.pid
            os.kill(pid, signal.SIGTERM)
            assert await_end(pid, 300), "the daemon did not end"
            message = writer.communicate(timeout=30)[1]
            assert writer.returncode != 0 and "not connected" in message, message
            assert not os.path.ismount(mount.path)
        assert lock_text(mount) == ""
        mount.mount()
        with open(mount.path + "/synced", encoding="ascii") as file:
            assert file.read() == "synced\n"
        mount.check()
        mount.umount()


LOST = 9
NO_ANSWER = "fs.round_answer=skip"  # as of a disk that answers no more


def umount_within(mount, seconds):
    """Exit code and what it tells, of `cairnfs umount --deadline --json`."""
    done = subprocess.run([*mount.umount_command(), "--deadline", f"{seconds}s", "--json"], stdout=subprocess.PIPE,
                          check=False, timeout=seconds + 120)
    mount.pid = None
    assert mount.path not in mounts_below(os.path.dirname(mount.path))
    return done.returncode, json.loads(done.stdout)


def write_and_keep_open(path, size):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, os.urandom(size))
    return descriptor


def a_stop_within_a_deadline_makes_all_durable():
    """Also while files are open, and the command runs in the mount."""
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",flush_interval=4s")
        content = os.urandom(1 << 20)
        with open(mount.path + "/closed", "wb") as file:
            file.write(content)
        descriptor = write_and_keep_open(mount.path + "/open", 3 << 20)
        os.write(descriptor, os.urandom(1 << 20))
        code, told = umount_within(mount, 600)
        assert code == 0 and told["durable"] and "unsaved" not in told, told
        assert told["deadline_seconds"] == 600, told
        expect_errno(errno.ENOTCONN, os.write, descriptor, b"late")
        with contextlib.suppress(OSError):
            os.close(descriptor)
        assert lock_text(mount) == ""
        mount.mount()
        with open(mount.path + "/closed", "rb") as file:
            assert file.read() == content
        assert os.stat(mount.path + "/open").st_size == 4 << 20
        mount.umount()


def what_is_lost_at_the_deadline_is_named():
    """By `umount --deadline`, and in the log by SIGTERM with stop_deadline. What was durable before stays."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/run")
        with open(mount.path + "/run/durable", "wb") as file:
            file.write(b"durable")
        mount.umount()
        for by_signal in (False, True):
            mount.options = SMALL + ",stop_deadline=20s"
            with setting("CAIRNFS_FAILPOINTS", NO_ANSWER):
                mount.mount()
            with open(mount.path + "/run/closed\n", "wb") as file:
                file.write(b"x" * 100000)
            descriptor = write_and_keep_open(mount.path + "/open", 3 << 20)
            if by_signal:
                pid = mount.pid
                os.kill(pid, signal.SIGTERM)
                assert await_end(pid, 60), "the daemon did not end"
                mount.pid = None
            else:
                code, told = umount_within(mount, 20)
                assert code == LOST and not told["durable"] and told["estimate"]["bytes"] >= 3 << 20, told
                unsaved = told["unsaved"]
                assert unsaved["file_count"] == 2 and unsaved["names"], told
                assert unsaved["files"] == [{"path": "open", "bytes": 3 << 20},
                                            {"path": "run/closed\n", "bytes": 100000}], told
            with contextlib.suppress(OSError):
                os.close(descriptor)
            assert lock_text(mount).startswith("failed: the time of the stop was up; not durable: 3.1 MiB of 2 files")
            mount.mount()
            log = mount.log()
            assert "not durable: 97.7 KiB of 'run/closed\\x0a'" in log and "not durable: 3.0 MiB of 'open'" in log, log
            assert "was not closed cleanly (\"failed: the time of the stop was up" in log, log
            assert os.listdir(mount.path + "/run") == ["durable"] and os.listdir(mount.path) == ["run"]
            with open(mount.path + "/run/durable", "rb") as file:
                assert file.read() == b"durable"
            mount.check()
            mount.umount()


def a_drain_leaves_the_mount_and_names_what_is_not_durable():
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",flush_interval=4s")
        drain = [program("cairnfs"), "drain", mount.path, "--json", "--deadline"]
        with open(mount.path + "/closed", "wb") as file:
            file.write(b"x" * 100000)
        descriptor = write_and_keep_open(mount.path + "/open", 3 << 20)
        told = json.loads(run(*drain, "10min"))
        assert told["durable"] and "unsaved" not in told and told["deadline_seconds"] == 600, told
        mount.kill()
        with contextlib.suppress(OSError):
            os.close(descriptor)
        with setting("CAIRNFS_FAILPOINTS", NO_ANSWER):
            mount.mount()
        assert os.stat(mount.path + "/closed").st_size == 100000 and os.stat(mount.path + "/open").st_size == 3 << 20
        with open(mount.path + "/later", "wb") as file:
            file.write(b"x" * 100000)
        done = subprocess.run([*drain, "2s"], capture_output=True, text=True, check=False, timeout=120)
        told = json.loads(done.stdout)
        assert done.returncode == LOST and not told["durable"], done
        assert told["unsaved"]["files"] == [{"path": "later", "bytes": 100000}] and told["unsaved"]["names"], told
        assert "not everything became durable: the time was up" in done.stderr, done
        assert "a drain has begun; " in mount.log() and "a drain is over: " in mount.log(), mount.log()
        assert "not durable: 97.7 KiB of 'later'" in mount.log(), mount.log()
        assert os.path.ismount(mount.path) and os.stat(mount.path + "/later").st_size == 100000
        refused = call("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *drain, "5s")
        expect(refused, PERMISSION, "only root and the user whom the daemon runs as")
        expect(call(*drain, "0s"), USAGE, "must lie between 1s and 24h")
        expect(call(*drain[:-1]), USAGE, "--deadline")
        mount.kill()
        mount.mount()
        mount.check()
        mount.umount()


def wrong_deadlines_are_refused():
    cairnfs = program("cairnfs")
    with Scratch() as scratch:
        mount = Mount(scratch)
        for text, right in (("0", "a whole number with ms, s, min, h or d"), ("0s", "must lie between 1s and 24h"),
                            ("-5s", "is not a duration"), ("soon", "is not a duration"), ("", "--deadline"),
                            ("1ms", "must lie between 1s and 24h"), ("25h", "must lie between 1s and 24h"),
                            ("99999999999999999999s", "is not a duration")):
            expect(call(cairnfs, "umount", mount.path, f"--deadline={text}"), USAGE, right)
        expect(call(cairnfs, "umount", mount.path, "--deadline", "5s", "--lazy"), USAGE, "--lazy")
        expect(call(cairnfs, "umount", mount.path, "--json"), USAGE, "--deadline")
        refused = call("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", cairnfs, "umount",
                       mount.path, "--deadline", "5s")
        expect(refused, PERMISSION, "only root and the user whom the daemon runs as")
        assert os.path.ismount(mount.path)
        mount.umount()
        expect(call(cairnfs, "umount", mount.path, "--deadline", "5s"), NO_DAEMON, mount.path)
        for value in ("-1s", "500ms", "25h", "5"):
            mount.options = SMALL + ",stop_deadline=" + value
            expect(call(*mount.mount_command()), USAGE, "stop_deadline")


def a_second_stop_beside_one_with_a_deadline():
    """Finds nothing mounted, or ends it sooner."""
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",stop_deadline=20s")
        mount.umount()
        with setting("CAIRNFS_FAILPOINTS", NO_ANSWER):
            mount.mount()
        pid = mount.pid
        os.close(write_and_keep_open(mount.path + "/file", 1 << 20))
        first = subprocess.Popen([*mount.umount_command(), "--deadline", "1h"], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        wait_until(lambda: not os.path.ismount(mount.path))
        for words in ([], ["--deadline", "5s"]):
            expect(call(*mount.umount_command(), *words), NO_DAEMON, mount.path)
        os.kill(pid, signal.SIGTERM)
        output, errors = first.communicate(timeout=60)
        mount.pid = None
        assert first.returncode == LOST and "not durable: file (1.0 MiB)" in output, (output, errors)
        assert "1.0 MiB are not durable" in errors and "the time is 3600 s" in errors, errors


if __name__ == "__main__":
    sys.exit(run_cases([umount_says_whose_namespace_still_has_the_mount, a_stop_ends_while_another_namespace_writes,
                        a_stop_within_a_deadline_makes_all_durable, what_is_lost_at_the_deadline_is_named,
                        a_drain_leaves_the_mount_and_names_what_is_not_durable, wrong_deadlines_are_refused,
                        a_second_stop_beside_one_with_a_deadline]))
