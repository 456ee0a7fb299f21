#!/usr/bin/env python3
"""Daemons that are told to end while the metadata of their cluster does not answer: before they are mounted and after;
and reads while the daemon that has the bytes is started anew. On a node's store or on etcd. Run as root.

Options: --seed N, which chooses the store; --all: both; node, etcd: that one; names of cases run these alone.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program, run_cases, seed_from_arguments
from cluster import Cluster, on, wait_until
from cluster_world import stores_of
from daemons import lock_text
from refusals import expect_errno

SILENCE_SECONDS = 10  # of the metadata, after which a daemon that stops gives up
MIB = 1 << 20
LOST = 9  # exit code: not everything became durable


class Foreground:
    """The daemon of a host as a service has it: not in the background."""

    def __init__(self, host):
        self.host, self.log_path = host, host.data + ".stderr"
        with open(self.log_path, "wb") as log:
            self.process = host.start(program("cairnfsd"), "--config", host.config, stdout=log, stderr=log)
        host.pid = self.process.pid

    def log(self):
        with open(self.log_path, encoding="utf-8") as log:
            return log.read()

    def wait_for(self, text, seconds=30):
        wait_until(lambda: text in self.log(), seconds, f"the log of {self.host.name} says: {text}")

    def ends(self, seconds):
        """Its exit code, as subprocess has it."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.host.name} still runs after {seconds} s:\n{self.log()}") from None
        self.host.processes.remove(self.process)
        self.host.pid = None
        return code


def metadata_goes(cluster, kind):
    """killed: connections are refused; silent: what is sent there is lost."""
    holder = cluster.etcd[0] if cluster.etcd else cluster.hosts[0]
    if kind == "killed":
        holder.kill()
    else:
        for host in cluster.hosts:
            if host is not holder:
                cluster.cut(host, holder)


def assert_nothing_is_left(host):
    assert not os.path.ismount(host.mount_point), host.mount_point
    assert os.listdir(host.mount_point) == []
    for name in ("control.sock", "ranks.sock"):
        path = os.path.join(host.data, name)
        if not os.path.exists(path):
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            assert probe.connect_ex(path) in (errno.ECONNREFUSED, errno.ENOENT), path
    # The lock is free: whoever checks the directory takes it.
    done = subprocess.run(["flock", "--nonblock", os.path.join(host.data, "LOCK"), "true"], check=False)
    assert done.returncode == 0, "the lock of the data directory is held"


def a_daemon_that_starts_ends_at_once(store):
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata=store) as cluster:
        cluster.start()
        host = cluster.hosts[1]
        host.umount()
        for kind, number in (("killed", signal.SIGTERM), ("silent", signal.SIGINT)):
            metadata_goes(cluster, kind)
            daemon = Foreground(host)
            daemon.wait_for("waiting for the cluster's metadata")
            daemon.process.send_signal(number)
            assert daemon.ends(10) == -number, daemon.log()  # it would wait for a minute
            assert "received while starting" in daemon.log(), daemon.log()
            assert_nothing_is_left(host)
            assert lock_text(host) == "", "the next start would tell of an unclean end"
            if kind == "silent":
                continue
            # It comes up all the same once the metadata is there.
            daemon = Foreground(host)
            daemon.wait_for("waiting for the cluster's metadata")
            if cluster.etcd:
                cluster.etcd[0].serve()
            else:
                cluster.hosts[0].mount()
            wait_until(lambda: os.path.ismount(host.mount_point), 120, "the mount")
            daemon.process.terminate()
            assert daemon.ends(30) == 0, daemon.log()


def opened(path):
    """None while its host has no session."""
    try:
        return open(path, "rb")
    except OSError:
        return None


def a_stop_without_metadata_is_brief(store):
    """What a sync point covered is there afterwards; who waits for the metadata gets an error, and the log says why."""
    notes = []
    for kind in ("killed", "silent"):
        with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store) as cluster:
            cluster.start()
            host, witness = cluster.hosts[1:]
            host.umount()
            daemon = Foreground(host)
            wait_until(lambda: os.path.ismount(host.mount_point), 30, "the mount")
            content = os.urandom(3 * MIB)
            with open(host.path("durable"), "wb") as file:
                file.write(content)
                os.fsync(file.fileno())
            left_open = os.open(host.path("durable"), os.O_WRONLY)
            metadata_goes(cluster, kind)
            failures = []

            def wait_for_metadata():
                try:
                    os.mkdir(host.path("never"))
                except OSError as error:
                    failures.append(error.errno)
            waiter = threading.Thread(target=wait_for_metadata)
            waiter.start()
            os.write(left_open, b"not durable")  # waits for nobody
            time.sleep(1)
            begin = time.monotonic()
            daemon.process.terminate()
            code = daemon.ends(SILENCE_SECONDS + 30)
            took = time.monotonic() - begin
            waiter.join(10)
            with contextlib.suppress(OSError):
                os.close(left_open)
            assert failures and failures[0] in (errno.ETIMEDOUT, errno.ENOTCONN), failures
            log = daemon.log()
            assert "has not answered for 10 s" in log and "not everything became durable" in log, log
            assert code not in (0, -signal.SIGTERM), code
            assert_nothing_is_left(host)
            notes.append(f"{kind}: {took:.1f} s")
            cluster.heal()
            if kind == "killed":
                if cluster.etcd:
                    cluster.etcd[0].serve()
                else:
                    cluster.hosts[0].mount()
            with wait_until(lambda: opened(witness.path("durable")), 60, "the cluster is back") as file:
                # Its other holder may be on its way back yet: the read waits for that.
                assert file.read() == content, "what was durable is lost"
    return ", ".join(notes)


def an_idle_host_stops_without_metadata(store):
    """Nothing waits to become durable: that is no failure."""
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata=store) as cluster:
        cluster.start()
        host = cluster.hosts[1]
        host.umount()
        daemon = Foreground(host)
        wait_until(lambda: os.path.ismount(host.mount_point), 30, "the mount")
        metadata_goes(cluster, "killed")
        begin = time.monotonic()
        daemon.process.terminate()
        assert daemon.ends(SILENCE_SECONDS + 30) == 0, daemon.log()
        assert "everything is durable" in daemon.log(), daemon.log()
        assert_nothing_is_left(host)
        return f"{time.monotonic() - begin:.1f} s"


def a_stop_within_a_deadline_names_what_lacks_copies(store):
    """And does not wait until there are nodes for them. Other hosts know that the file is not what was closed."""
    options = {"out_after": "10min"}
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, copies=3, options=options) as cluster:
        cluster.start()
        witness, host, away = cluster.hosts
        os.mkdir(host.path("step.tmp"))
        with open(host.path("step.tmp", "safe"), "wb") as file:
            file.write(b"safe")
        with open(host.path("open"), "wb", buffering=0) as file:
            file.write(b"written while its host stops")
            done = host.cairnfs("umount", host.mount_point, "--deadline", "10min", "--json")
            assert json.loads(done)["durable"], done
            with contextlib.suppress(OSError):
                file.close()
        with open(witness.path("open"), "rb") as file:
            assert file.read() == b"written while its host stops"
        host.mount()
        away.kill()
        cluster.wait_for_states({away.name: "down"}, at=[witness, host])
        write = "import os, sys; f = open(sys.argv[1], 'wb', 0); f.write(b'w' * (1 << 20)); f.close()"
        closing = subprocess.Popen([sys.executable, "-c", write, host.path("step.tmp", "part")],
                                   stderr=subprocess.DEVNULL)
        wait_until(lambda: os.path.exists(host.path("step.tmp", "part")) and
                   os.path.getsize(host.path("step.tmp", "part")) == MIB, 60, "the file is written")
        assert not ends(closing, 2), "its close did not wait for copies"
        begin = time.monotonic()
        umount = host.inside(program("cairnfs"), "umount", host.mount_point, "--deadline", "20s", "--json")
        done = subprocess.run(umount, stdout=subprocess.PIPE, check=False, timeout=120)
        took = time.monotonic() - begin
        host.pid = None
        told = json.loads(done.stdout)
        assert done.returncode == LOST and not told["durable"], told
        assert told["unsaved"]["files"] == [{"path": "step.tmp/part", "bytes": MIB}], told
        assert ends(closing, 60), "the close goes on waiting"
        assert lock_text(host).startswith("failed: the time of the stop was up"), lock_text(host)
        away.mount()
        cluster.wait_for_states({host.name: "down"}, at=[witness])
        expect_errno(errno.EIO, os.rename, witness.path("step.tmp"), witness.path("step"))
        cause, = witness.status()["failures"][0]["causes"]
        assert (cause["host"], cause["file"]) == (host.name, "step.tmp/part"), cause
        with open(witness.path("step.tmp", "safe"), "rb") as file:
            assert file.read() == b"safe"
        return f"{took:.1f} s"


class Reading(threading.Thread):
    """Of a file, as any program reads it."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.result = path, None
        self.start()

    def run(self):
        try:
            with open(self.path, "rb") as file:
                self.result = file.read()
        except OSError as error:
            self.result = error.errno

    def outcome(self, seconds):
        self.join(seconds)
        return self.result


def ends(process, seconds):
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def a_read_outlasts_a_restart(store):
    """Of the one host that has the bytes. A stop of the reader's own host is not held up by a read that waits, and who
    is killed waits no more."""
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata=store, copies=1) as cluster:
        cluster.start()
        reader, holder = cluster.hosts
        contents = {name: os.urandom(3 * MIB) for name in ("first", "second")}
        for name, content in contents.items():
            with open(holder.path(name), "wb") as file:
                file.write(content)
                os.fsync(file.fileno())
        holder.kill()
        reading = Reading(reader.path("first"))
        assert reading.outcome(2) is None, "it did not wait"
        begin = time.monotonic()
        holder.mount()
        assert reading.outcome(55) == contents["first"], "the read did not outlast the restart"
        took = time.monotonic() - begin
        holder.kill()
        with open(reader.path("second"), "rb", buffering=0) as file:  # waits in its read alone
            program_that_reads = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
        try:
            assert not ends(program_that_reads, 2), "it did not wait"
            begin = time.monotonic()
            program_that_reads.kill()
            assert ends(program_that_reads, 30), "a killed reader goes on waiting"
            killed = time.monotonic() - begin
        finally:
            program_that_reads.kill()
            program_that_reads.stdout.close()
        reading = Reading(reader.path("second"))
        assert reading.outcome(2) is None, "it did not wait"
        begin = time.monotonic()
        reader.signal(signal.SIGTERM)  # `cairnfs umount` would refuse: the mount is in use
        wait_until(lambda: not reader.is_alive(), 60, "the reader's daemon ends")
        outcome = reading.outcome(10)
        assert isinstance(outcome, int), "the read does not end with an error"
        stop = time.monotonic() - begin
        assert stop < 40, f"the stop took {stop:.0f} s"
        return f"read {took:.1f} s after the holder's start, ends {killed:.1f} s after a kill, stop {stop:.1f} s"


def who_waits_for_copies_ends_when_killed(store):
    """An fsync; a close; a truncation; and a commit, which holds its directory in the kernel. What was closed is there
    once there are copies. A removal waits for nobody, before a process was killed and after."""
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata=store) as cluster:
        cluster.start()
        host, other = cluster.hosts
        for name in ("old", "cut", "beside"):
            with open(host.path(name), "wb") as file:
                file.write(os.urandom(MIB))
        os.mkdir(host.path("step.tmp"))
        cluster.wait_for_copies()
        other.kill()
        writes = "import os, signal; os.write(1, b'w' * (1 << 20)); {}; os._exit(7)"
        waiting = []
        for name, call in (("killed", "signal.pause()"), ("synced", "os.fsync(1)"), ("closed", "os.close(1)")):
            with open(host.path(name), "wb") as file:
                waiting.append(subprocess.Popen([sys.executable, "-c", writes.format(call)], stdout=file))
        for name in ("killed", "synced", "closed"):
            wait_until(lambda at=host.path(name): os.stat(at).st_size == MIB, 60, f"{name} is written")
        beside = subprocess.Popen(["rm", host.path("beside")])
        assert ends(beside, 60) and beside.returncode == 0, "a removal waited for a save"
        killed = waiting.pop(0)
        killed.kill()
        killed.wait()
        after = subprocess.Popen(["rm", host.path("old")])
        assert ends(after, 60) and after.returncode == 0, "a removal waited for copies that cannot be made"
        rename = "import os, sys; os.rename(*sys.argv[1:])"
        waiting += [subprocess.Popen(["truncate", "--size=1", host.path("cut")]),
                    subprocess.Popen([sys.executable, "-c", rename, host.path("step.tmp"), host.path("step")])]
        try:
            assert not ends(waiting[0], 3), "it did not wait"
            assert all(process.poll() is None for process in waiting), "not all waited"
            begin = time.monotonic()
            for process in waiting:
                process.kill()
            assert all(ends(process, 30) for process in waiting), "who was killed goes on waiting"
            took = time.monotonic() - begin
        finally:
            for process in waiting:
                process.kill()
        assert os.path.exists(host.path("step.tmp")), "renamed after its caller was told that it was not"
        other.mount()
        for name in ("killed", "synced", "closed"):
            wait_until(lambda at=other.path(name): os.stat(at).st_size == MIB, 60, f"{name} is published")
            with open(other.path(name), "rb") as file:
                assert file.read() == b"w" * MIB, name
        cluster.wait_for_copies()
        return f"{took:.1f} s after the kill"


def who_waits_for_metadata_ends_when_killed(store):
    """More of them than the daemon has threads for; and nothing is lost by it once the metadata is back."""
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata=store) as cluster:
        cluster.start()
        host = cluster.hosts[1]
        os.mkdir(host.path("directory"))
        with open(host.path("directory", "file"), "wb") as file:
            file.write(b"content")
            file.flush()
            os.fsync(file.fileno())
        metadata_goes(cluster, "silent")
        time.sleep(1)
        commands = [["mkdir", host.path("directory", f"made-{i}")] for i in range(12)]
        commands += [["stat", host.path("directory", f"absent-{i}")] for i in range(12)]
        commands += [["cp", host.path("directory", "file"), host.path(f"copy-{i}")] for i in range(12)]
        commands += [["mv", host.path("directory", f"absent-{i}"), host.path(f"moved-{i}")] for i in range(6)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        waiting = [subprocess.Popen(command, **quiet) for command in commands]
        try:
            assert not ends(waiting[0], 4), "it did not wait"
            late = [process.args for process in waiting if process.poll() is not None]
            assert len(late) < 6, f"these did not wait: {late}"
            begin = time.monotonic()
            for process in waiting:
                process.kill()
            stuck = [process.args for process in waiting if not ends(process, begin + 30 - time.monotonic())]
            assert not stuck, f"who was killed goes on waiting: {stuck}"
            took = time.monotonic() - begin
        finally:
            for process in waiting:
                process.kill()
        cluster.heal()
        wait_until(lambda: opened(host.path("directory", "file")), 60, "the metadata answers")
        for each in cluster.hosts:
            with open(each.path("directory", "file"), "rb") as file:
                found = file.read()
                assert found == b"content", f"{each.name} finds {found!r}"
        os.mkdir(host.path("directory", "after"))

        def listings_are_equal():
            # A call of who was killed may take effect yet.
            first, second = (sorted(os.listdir(each.path("directory"))) for each in cluster.hosts)
            return first == second and "after" in first
        wait_until(listings_are_equal, 60, "both hosts list the same")
        return f"{len(waiting)} ended {took:.1f} s after the kill"


def main():
    return run_cases([on(store, case) for store in stores_of(seed_from_arguments()) for case in (
        a_daemon_that_starts_ends_at_once, an_idle_host_stops_without_metadata, a_stop_without_metadata_is_brief,
        a_stop_within_a_deadline_names_what_lacks_copies, a_read_outlasts_a_restart,
        who_waits_for_copies_ends_when_killed,
        who_waits_for_metadata_ends_when_killed)])


if __name__ == "__main__":
    sys.exit(main())
