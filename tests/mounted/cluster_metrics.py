#!/usr/bin/env python3
"""What Prometheus reads from three hosts of a cluster: what is sent and received, how far copies lag, which are missing
and what repair makes of them. Each number is compared with what the case wrote. Metadata in etcd. Run as root.

Options: --seed N; names of cases run these alone.
"""

import os
import random
import re
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, run_cases, seed_from_arguments
from cluster import Cluster, wait_until

MIB = 1 << 20
ADDRESS = "127.0.0.1:9464"  # in the network of each host
# A node is down for some seconds, and so long takes repair, so that both are seen.
# With chunks for each owner the numbers are exact, and what root wrote on one host is root's on all.
OPTIONS = {"dedup": "owner", "lease": "5s", "out_after": "15s", "repair_rate": "2MiB", "metrics_address": ADDRESS}
FETCH = f"import urllib.request; print(urllib.request.urlopen('http://{ADDRESS}/metrics', timeout=10).read().decode())"
OF_THE_CLUSTER = ("sent_bytes_total", "received_bytes_total", "wire_sent_bytes_total", "wire_received_bytes_total",
                  "new_in_cluster_bytes_total", "known_in_cluster_bytes_total", "remote_reads_total",
                  "remote_read_bytes_total", "unacknowledged_bytes", "copies", "min_replicas", "missing_copies",
                  "repair_bytes_total", "repair_chunks_left", "metadata_reads_total", "metadata_commits_total",
                  "metadata_answers_total", "delegations", "delegations_recalled_total", "session",
                  'nodes{state="up"}', 'nodes{state="down"}', 'nodes{state="out"}')
PEAKS = ('nodes{state="down"}', "missing_copies", "repair_chunks_left")


class World:
    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(seed)

    @property
    def hosts(self):
        return self.cluster.hosts

    def shared(self, size=16 * MIB):
        """A file of the first host that has all its copies: its name and content."""
        path = self.hosts[0].path("shared")
        if not os.path.exists(path):
            write(path, self.random.randbytes(size))
        self.cluster.wait_for_copies()
        return "shared", read(path)


def metrics(host):
    """The values by name, without the prefix they share."""
    text = host.run(sys.executable, "-c", FETCH)
    return {name: float(value) for name, value in re.findall(r"^cairnfs_(\S+) (\S+)$", text, re.M)}


def sums(hosts, *names):
    each = [metrics(host) for host in hosts]
    return [sum(values[name] for values in each) for name in names]


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def every_metric_is_there(world):
    for host in world.hosts:
        values = metrics(host)
        assert not [name for name in OF_THE_CLUSTER if name not in values], (host.name, sorted(values))
        assert values["session"] == 1 and values['nodes{state="up"}'] == 3, values
        assert values["missing_copies"] == 0 and values["unacknowledged_bytes"] == 0, values
        assert values["copies"] == values["min_replicas"] == 2, values


def what_is_sent_is_what_is_received(world):
    writer, *others = world.hosts
    content = world.random.randbytes(16 * MIB)
    names = ("received_bytes_total", "wire_received_bytes_total")
    before, received_before = metrics(writer), sums(others, *names)
    write(writer.path("new"), content)
    world.cluster.wait_for_copies()
    after = metrics(writer)
    received, wire_received = (now - then for now, then in zip(sums(others, *names), received_before))
    sent = after["sent_bytes_total"] - before["sent_bytes_total"]
    wire = after["wire_sent_bytes_total"] - before["wire_sent_bytes_total"]
    new = after["new_in_cluster_bytes_total"] - before["new_in_cluster_bytes_total"]
    # Of two copies the writer keeps one.
    assert new == sent == len(content) == received, (new, sent, received)
    assert received < wire_received < 1.1 * received, (received, wire_received)
    assert sent < wire <= 1.02 * sent, (sent, wire)
    return f"{sent / MIB:.0f} MiB of chunks, {wire / sent:.4f} times that on the wire"


def what_others_have_is_not_sent(world):
    others = world.hosts[1:]
    _, content = world.shared()
    names = ("sent_bytes_total", "wire_sent_bytes_total", "new_in_cluster_bytes_total", "known_in_cluster_bytes_total")
    before = sums(world.hosts, *names)
    for host in others:
        write(host.path(f"again-{host.name}"), content)
    world.cluster.wait_for_copies()
    sent, wire, new, known = (now - then for now, then in zip(sums(world.hosts, *names), before))
    written = len(content) * len(others)
    assert known == written and sent == new == 0, (known, sent, new)
    assert 0 < wire <= 0.005 * written, wire
    # Logical bytes are of all hosts, unique ones of each alone: their ratio would say nothing.
    host = others[0]
    assert "dedup_ratio" not in host.status()
    text = host.cairnfs("status", "--data", host.data)
    assert "dedup ratio" not in text and "(0 B new to the cluster, 16.0 MiB known)" in text, text
    return f"{wire / written:.2%} of it on the wire"


def each_owner_has_chunks_of_its_own(world):
    """Users who save what another user has, on whatever host, see what they would if nobody had it."""
    one, two, _ = world.hosts
    content = world.random.randbytes(8 * MIB)
    names = ("new_in_cluster_bytes_total", "known_in_cluster_bytes_total")

    def saved(host, name, owner):
        before = sums(world.hosts, *names)
        with open(host.path(name), "wb") as file:
            os.fchown(file.fileno(), owner, owner)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        world.cluster.wait_for_copies()
        return tuple(now - then for now, then in zip(sums(world.hosts, *names), before))

    assert saved(one, "alice", 1001) == (len(content), 0)
    assert saved(two, "bob", 1002) == (len(content), 0)
    assert saved(two, "alice-again", 1001) == (0, len(content))
    for host in world.hosts:
        assert all(read(host.path(name)) == content for name in ("alice", "bob", "alice-again")), host.name
    return "stored for each"


def what_is_read_from_others_is_counted(world):
    others = world.hosts[1:]
    name, content = world.shared()
    names = ("remote_reads_total", "remote_read_bytes_total", "received_bytes_total")
    before = sums(others, *names)
    for host in others:
        assert read(host.path(name)) == content, host.name
    count, size, received = (now - then for now, then in zip(sums(others, *names), before))
    # Of each chunk one of the two has no copy. Readers at two places of a chunk may each fetch it.
    assert count > 0 and size == received >= len(content), (count, size, received)
    return f"{count:.0f} reads, {size / MIB:.1f} MiB"


def the_lag_is_what_has_not_all_its_copies(world):
    cluster, (writer, *others) = world.cluster, world.hosts
    content = world.random.randbytes(8 * MIB)
    for other in others:
        cluster.cut(writer, other)
    saver = threading.Thread(target=write, args=(writer.path("lag"), content))  # its close waits for the others
    saver.start()
    wait_until(lambda: metrics(writer)["unacknowledged_bytes"] == len(content), 30, "all that was written lags")
    cluster.heal()
    began = time.monotonic()
    wait_until(lambda: metrics(writer)["unacknowledged_bytes"] == 0, 60, "nothing lags")
    saver.join(60)
    assert not saver.is_alive() and read(others[0].path("lag")) == content
    return f"none {time.monotonic() - began:.1f} s after the cut was healed"


def missing_copies_are_repaired(world):
    cluster, (*others, victim) = world.cluster, world.hosts
    world.shared()
    lost = metrics(victim)["unique_bytes"]
    repaired_before = sums(others, "repair_bytes_total")[0]
    peaks = [dict.fromkeys(PEAKS, 0) for _ in others]  # of each host: the same sample need not show all of them

    def is_repaired():
        values = [metrics(host) for host in others]
        for peak, one in zip(peaks, values):
            peak.update({name: max(peak[name], one[name]) for name in PEAKS})
        return all(one['nodes{state="out"}'] == 1 for one in values) and any(
            peak["missing_copies"] for peak in peaks) and all(
            one["missing_copies"] == one["repair_chunks_left"] == 0 for one in values)

    victim.kill()
    wait_until(is_repaired, 180, "copies were missing and no longer are")
    repaired = sums(others, "repair_bytes_total")[0] - repaired_before
    assert all(peak['nodes{state="down"}'] == 1 for peak in peaks), peaks
    assert any(peak["repair_chunks_left"] for peak in peaks), peaks
    # A copy that arrived and was not answered for in time is made again.
    assert lost <= repaired <= 1.5 * lost, (repaired, lost)
    victim.mount()
    cluster.wait_for_states({host.name: "up" for host in world.hosts})
    missing = sum(peak["missing_copies"] for peak in peaks)
    return f"{repaired / MIB:.0f} MiB; {missing:.0f} were missing"


CASES = (every_metric_is_there, what_is_sent_is_what_is_received, what_others_have_is_not_sent,
         each_owner_has_chunks_of_its_own, what_is_read_from_others_is_counted,
         the_lag_is_what_has_not_all_its_copies, missing_copies_are_repaired)


def main():
    seed = seed_from_arguments()
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata="etcd", options=OPTIONS) as cluster:
        cluster.start()
        code = run_cases(CASES, World(cluster, seed))
        if code != 0:
            print(cluster.logs(), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
