#!/usr/bin/env python3
"""Hosts in trouble, as operators have met it: what can be removed while copies cannot be made. Each case makes a cluster
of its own. Options: tests/support/cluster_world.py.
"""

import errno
import os
import signal
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, run_cases
from cluster import Cluster, wait_until
from cluster_close import SMALL_DISK, fill, start_writer
from cluster_world import MIB, OPTIONS, STORES, error_of, write

HANGS_SECONDS = 60  # what waits for copies would wait for ten minutes


def unless_it_hangs(call, *arguments):
    """The error of the call, 0 where it went well."""
    errors = []
    thread = threading.Thread(target=lambda: errors.append(error_of(call, *arguments)), daemon=True)
    thread.start()
    thread.join(HANGS_SECONDS)
    assert errors, f"{call.__name__}{arguments} hangs"
    return errors[0]


def leave_unpublished(host, name):
    """Bytes that were accepted and that no close waits for: their writer is killed."""
    writer = start_writer(host.path(name), MIB, "x", "sleep")
    assert writer.stdout.readline() == b"wrote\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()


def removals_need_no_copies(store):
    """A node is gone, and another one full; then that one is gone too. Whoever reaches the names can remove."""
    options = {**OPTIONS, "segment_size": "4MiB", "out_after": "10min"}
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata=store, options=options) as cluster:
        writer, full, away = cluster.hosts
        os.makedirs(full.data)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=0711", "tmpfs", full.data], check=True)
        cluster.start()
        for number in range(8):
            write(writer.path(f"old-{number}"), b"old")
            os.mkdir(writer.path(f"empty-{number}"))
        away.kill()
        cluster.wait_for_states({away.name: "down"})

        def is_full():
            fill(full)
            return writer.nodes()[full.name]["full"]
        wait_until(is_full, 60, f"{full.name} is full", every=0.3)
        leave_unpublished(writer, "killed")
        wait_until(lambda: "copies" in writer.status()["last_error"], 30, "copies cannot be made", every=0.3)
        assert error_of(write, writer.path("save"), os.urandom(MIB)) in (errno.ENOSPC, errno.ETIMEDOUT)
        for number, host in enumerate((writer, full)):
            assert unless_it_hangs(os.rmdir, host.path(f"empty-{number}")) == 0, host.name
            assert unless_it_hangs(os.rename, host.path(f"old-{2 * number}"), host.path(f"old-{2 * number + 1}")) == 0
            assert unless_it_hangs(os.unlink, host.path(f"old-{2 * number + 1}")) == 0, host.name
        assert unless_it_hangs(os.unlink, full.path("save")) == 0

        full.kill()
        cluster.wait_for_states({full.name: "down"}, at=[writer])
        leave_unpublished(writer, "killed-later")
        assert unless_it_hangs(os.rmdir, writer.path("empty-4")) == 0
        assert unless_it_hangs(os.unlink, writer.path("old-4")) == 0
        assert unless_it_hangs(os.rename, writer.path("old-5"), writer.path("old-6")) == 0
        assert unless_it_hangs(os.unlink, writer.path("killed")) == 0


CASES = (removals_need_no_copies,)


if __name__ == "__main__":
    stores = [store for store in STORES if store in sys.argv[1:]] or STORES
    sys.argv = [word for word in sys.argv if word not in STORES]
    sys.exit(max(run_cases(CASES, store) for store in stores))
