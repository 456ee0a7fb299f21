#!/usr/bin/env python3
"""What the command line and the metrics tell of a mount. Run as root."""

import contextlib
import http.client
import json
import os
import pty
import re
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, free_port, program, run, run_cases
from daemons import build_library, start_with_library
from refusals import call


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


class MountInNetwork(Mount):
    """Its daemon is in a network namespace of its own, in which all addresses of some networks are its own."""

    def __init__(self, scratch, netns, **options):
        self.enter = ["nsenter", "--net=/run/netns/" + netns]
        super().__init__(scratch, **options)

    def mount_command(self):
        return self.enter + super().mount_command()


HOLD_AND_SCRAPE = """
import http.client, socket, sys
port, crowded, other = int(sys.argv[1]), sys.argv[2], sys.argv[3]
idle = [socket.create_connection((crowded + "::ffff", port), source_address=(f"{crowded}::{i}", 0)) for i in range(1, 41)]
connection = http.client.HTTPConnection(other + "::ffff", port, timeout=5, source_address=(other + "::1", 0))
connection.request("GET", "/metrics")
print(connection.getresponse().status)
"""


def the_addresses_of_one_network_have_one_share_of_the_connections_for_metrics():
    """Over IPv6, where one host has as many addresses as it likes."""
    netns, crowded, other = f"cairnfs-metrics-{os.getpid()}", "fd00:0:0:1", "fd00:0:0:2"
    run("ip", "netns", "add", netns)
    try:
        run("ip", "-n", netns, "link", "set", "lo", "up")
        run("nsenter", "--net=/run/netns/" + netns, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind")
        for network in (crowded, other):
            run("ip", "-n", netns, "-6", "route", "add", "local", network + "::/64", "dev", "lo")
        with Scratch() as scratch:
            mount = MountInNetwork(scratch, netns, options=f"{SMALL},metrics_address=[::]:9464")
            assert run(*mount.enter, sys.executable, "-c", HOLD_AND_SCRAPE, "9464", crowded, other) == "200\n"
            mount.umount()
    finally:
        run("ip", "netns", "del", netns)


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


def paths_are_those_of_the_mount_that_is_named():
    """As a container has it, to which a directory is mounted."""
    with Scratch() as scratch, contextlib.ExitStack() as mounted:
        mount = Mount(scratch, options=SMALL + ",trash=1h")
        os.makedirs(mount.path + "/team/run/step.tmp")
        there = scratch.path + "/there"
        os.mkdir(there)
        run("mount", "--bind", mount.path + "/team", there)
        mounted.callback(run, "umount", there)
        ticket = run(program("cairnfs"), "commit", "--async", there + "/run/step.tmp", there + "/run/step").strip()
        assert run(program("cairnfs"), "commit", "--wait", ticket, there).strip() == there + "/run/step"
        number = str(os.stat(there + "/run/step").st_ino)
        os.rmdir(there + "/run/step")
        restored = run(program("cairnfs"), "trash", "restore", number, "--mount", there)
        assert restored.strip().endswith(f" {there}/run/step"), restored
        mounted.close()
        mount.umount()


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


SLOW_WHILE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
static void wait_for(int microseconds) { if (access(getenv("CAIRNFS_SLOW_WHILE"), F_OK) == 0) usleep(microseconds); }
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


def wait_and_check_say_how_far_they_are():
    """One line on a terminal, rewritten and gone at the end; nothing where there is none."""
    with Scratch() as scratch:
        shim = build_library(scratch, SLOW_WHILE)
        slow = scratch.path + "/slow"
        mount = Mount(scratch)
        mount.umount()
        process = start_with_library(mount, shim, CAIRNFS_SLOW_WHILE=slow)
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


def main():
    return run_cases([
        metrics_are_served, connections_for_metrics_are_bounded,
        the_addresses_of_one_network_have_one_share_of_the_connections_for_metrics, commands_print_json,
        paths_are_those_of_the_mount_that_is_named, status_is_right_before_anything_is_durable,
        wait_and_check_say_how_far_they_are,
    ])


if __name__ == "__main__":
    sys.exit(main())
