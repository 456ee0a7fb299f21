"""The rows about several hosts: three of them on this machine, in network namespaces, on one disk and the same cores."""

import contextlib
import os
import shutil
import sys
import threading

from machine import GIB, KIB, MIB, Usage, drop_caches, process_io, process_memory, settle
from measuring import Row, take_turns
from reading import must_equal
from saving import BLOCK, save_cairn
from subjects import Cairn, Load, wait_until_warm

POOL = "1GiB"
ROUNDS = 4  # at most, where a round takes long: what is saved stays on the disks, and three daemons are restarted


@contextlib.contextmanager
def hosts_of(bench, name, metadata="etcd", last_stores=True, certificates=False):
    """Three hosts that are up, with or without TLS between them. `last_stores` false: the third has weight 0, and so keeps no chunks."""
    os.environ["CAIRNFS_BIN_DIR"] = os.path.join(bench.build, "tools")
    sys.path.insert(0, os.path.join(bench.source, "tests", "support"))
    import cluster as support  # the tests' own, which finds the programs by the variable  pylint: disable=import-error

    class Place:
        """What the tests' hosts need of a scratch directory."""
        path = bench.scratch.directory(name)

        @staticmethod
        def directory(*names):
            return bench.scratch.directory(name, *names)

    options = {"pool_size": POOL, "touch_pool": True, "reserve": "64MiB", "segment_size": "256MiB"}
    with contextlib.ExitStack() as stack:
        # Last, when no daemon runs: what was saved would take the disk from the rows that follow.
        stack.callback(lambda: [shutil.rmtree(host.data, ignore_errors=True) for host in cluster.hosts])
        cluster = stack.enter_context(support.Cluster(Place, hosts=3, metadata=metadata, options=options,
                                                        certificates=certificates))
        if not last_stores:
            cluster.hosts[-1].options["weight"] = 0
        cluster.start()
        yield cluster


class Member:
    """A host as the rows about one host see a mount."""

    def __init__(self, host):
        self.host, self.path = host, host.mount_point

    @property
    def pid(self):
        return self.host.pid

    def chunks(self):
        return self.host.status()["cluster"]


def wire_bytes(cluster):
    return sum(host.status()["cluster"]["wire_sent_bytes_total"] for host in cluster.hosts)


def disk_reads(cluster):
    return sum(process_io(host.pid)["read"] for host in cluster.hosts)


class Peaks:
    """The most that each daemon of a cluster had in memory, beside its pool, and what it may have."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.seen = {host.name: [] for host in cluster.hosts}  # (beside the pool, allowed)

    def note(self):
        """Before the daemons end: what they tell of their peak ends with them."""
        for host in self.cluster.hosts:
            status = host.status()
            self.seen[host.name].append((process_memory(host.pid) - status["pool_buffers_touched"] * MIB,
                                         256 * MIB + 64 * status["chunk_count"]))

    def row(self, what):
        self.note()
        row = Row(f"cluster: memory of each daemon at its peak, {what}")
        for name, seen in self.seen.items():
            beside, allowed = max(seen, key=lambda one: one[0] - one[1])
            row.check(f"{name}, beside the pool", [beside / MIB], "MiB", at_most=allowed / MIB)
        return row


def remount_all(cluster, peaks):
    """Every daemon is restarted between dropped caches: nothing of any checkpoint is in memory, and the pools are
    touched, as that of the host that is alone."""
    peaks.note()
    for host in reversed(cluster.hosts):
        host.umount()
    drop_caches()
    for host in cluster.hosts:
        host.mount()
    cluster.wait_for_states({host.name: "up" for host in cluster.hosts})
    for host in cluster.hosts:
        wait_until_warm(host.pid, host.status())
    drop_caches(1)


def size_of_saves(bench, rounds):
    """What is deleted in a cluster stays on its disks, so each round takes the size twice."""
    room = shutil.disk_usage(bench.scratch.path).free * 3 // 4
    return min(bench.size, room // (2 * rounds + 4) // (16 * MIB) * (16 * MIB))


def save_rows(bench):
    """New data, known data, and what fits in half of the pool, on one of three hosts and on one that is alone."""
    rounds = min(bench.rounds, ROUNDS)
    size = size_of_saves(bench, rounds)
    # Two copies of every round's are to fit into the quarter of the disk that is left.
    half_pool = min(size, GIB // 2, shutil.disk_usage(bench.scratch.path).free // (8 * bench.rounds + 16))
    half_pool -= half_pool % MIB
    with Cairn(bench, "alone", pool_size=POOL, free_segments_max=MIB) as alone, \
            hosts_of(bench, "cluster-save") as cluster:
        member = Member(cluster.hosts[0])

        def save(who, name, bytes_count):
            before = wire_bytes(cluster)
            sample = save_cairn(bench, who, name, bytes_count)
            return {**sample, "wire": wire_bytes(cluster) - before}

        number = iter(range(1_000_000))

        def alone_turn():
            sample = save(alone, "step", size)
            alone.remove("step")
            return sample

        def cluster_turn():
            name = f"step-{next(number)}"
            sample = save(member, name, size)
            known = save(member, name + "-again", size)
            return {**sample, "known_s": known["total_s"], "known_wire": known["wire"]}

        series = take_turns(rounds, {"one host": alone_turn, "cluster": cluster_turn},
                            before_round=lambda _: bench.load("fill", bench.next_seed(), 0, size))

        def small_alone():
            sample = save(alone, "small", half_pool)
            alone.remove("small")
            return sample

        def small_cluster():
            sample = save(member, f"small-{next(number)}", half_pool)
            settle()
            return sample

        stalls = take_turns(bench.rounds, {"one host": small_alone, "cluster": small_cluster},
                            before_round=lambda _: bench.load("fill", bench.next_seed(), 0, half_pool))
        peaks = Peaks(cluster).row("saving")
    durable = Row(f"cluster: durable save of {size // MIB} MiB of new data, two copies")
    for who in ("cluster", "one host"):
        durable.figure(who, series.rates(who, size), "B/s")
    durable.ratio("vs one host", "cluster", "one host", at_least=0.45)
    durable.check("wire bytes per new byte", [b / size for b in series.get("cluster", "wire")], at_most=1.02)
    stall = Row(f"cluster: stall, time in write(2) of {half_pool // MIB} MiB, half of the pool at most")
    for who in ("cluster", "one host"):
        stall.figure(who, stalls.get(who, "write_s"), "s")
    stall.check("cluster over one host",
                [a / b for a, b in zip(stalls.get("cluster", "write_s"), stalls.get("one host", "write_s"))],
                at_most=1.2)
    known = Row("cluster: save of known data again")
    known.figure("known", [size / s for s in series.get("cluster", "known_s")], "B/s")
    known.figure("new", series.rates("cluster", size), "B/s")
    known.ratio("vs new", "known", "new", at_least=3.0)
    known.check("wire bytes, share of the checkpoint", [100 * b / size for b in series.get("cluster", "known_wire")],
                "%", at_most=0.5)
    return [durable, stall, known, peaks]


def restore_rows(bench):
    size = size_of_saves(bench, rounds=1)
    bench.load("fill", bench.next_seed(), 0, size)
    with Cairn(bench, "alone-restore", pool_size=POOL) as alone, \
            hosts_of(bench, "cluster-restore", last_stores=False) as cluster:
        save_cairn(bench, alone, "step", size)
        save_cairn(bench, Member(cluster.hosts[0]), "step", size)
        peaks = Peaks(cluster)

        def alone_turn():
            alone.remount(between=drop_caches)
            drop_caches(1)
            return bench.load("read", alone.path + "/step/part-0", BLOCK)

        def far_turn():
            remount_all(cluster, peaks)
            return bench.load("read", cluster.hosts[2].path("step", "part-0"), BLOCK)

        series = take_turns(min(bench.rounds, ROUNDS), {"one host": alone_turn, "far": far_turn}, warm_up=False)
        all_rows = all_at_once(bench, cluster, size, peaks)
        for path in (alone.path, *(host.mount_point for host in cluster.hosts)):
            must_equal(bench, path + "/step/part-0", size)
        all_rows.append(peaks.row("restoring"))
    row = Row("cluster: restore on a host that has none of it, cold")
    row.figure("far", series.rates("far", size), "B/s")
    row.figure("one host", series.rates("one host", size), "B/s")
    row.ratio("vs one host", "far", "one host", at_least=0.6)
    return [row, *all_rows]


def all_at_once(bench, cluster, size, peaks):
    """Three processes with memory of their own, one per host."""
    loads = [Load(bench) for _ in cluster.hosts]
    reads, seconds = [], []
    for _ in range(min(bench.rounds, ROUNDS)):
        remount_all(cluster, peaks)
        before = disk_reads(cluster)
        answers = [None] * len(loads)

        def read(index):
            answers[index] = loads[index]("read", cluster.hosts[index].path("step", "part-0"), BLOCK)

        threads = [threading.Thread(target=read, args=(index,)) for index in range(len(loads))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reads.append((disk_reads(cluster) - before) / size)
        seconds.append(max(answer["total_s"] for answer in answers))
    for load in loads:
        load.process.kill()
    row = Row("cluster: three hosts restore one checkpoint at once, cold")
    row.figure("the last one", [size / s for s in seconds], "B/s")
    row.check("disk reads over size", reads, at_most=1.2)
    return [row]


def round_trips(cluster):
    activities = [host.status()["cluster"] for host in cluster.hosts]
    return sum(activity["metadata_reads_total"] + activity["metadata_commits_total"] for activity in activities)


# What is added goes once for many: numbers of inodes, delegations, a look at the levels now and then.
ROUND_TRIPS_MAX = {"create, close": 1.05, "stat": 0.05, "stat again, under a delegation": 0.05}


def names_rows(bench):
    """Small files in a directory that another host has made."""
    count = bench.small_files if bench.quick else 10_000
    row = Row(f"cluster: names, {count} small files in a directory of another host")
    for metadata in ("node", "etcd"):
        with hosts_of(bench, "cluster-names-" + metadata, metadata) as cluster:
            for name in ("files", "moved", "empty"):
                os.mkdir(cluster.hosts[0].path(name))
            directory, moved, empty = (cluster.hosts[1].path(name) for name in ("files", "moved", "empty"))
            steps = [("create, close", ["create", empty, count, 0, bench.next_seed()]),
                     ("create, write 4 KiB, close", ["create", directory, count, 4 * KIB, bench.next_seed()]),
                     ("stat", ["stat", directory, count]), ("stat again, under a delegation", ["stat", directory, count]),
                     ("readdir", ["list", directory, count]), ("readdir and stat", ["list-stat", directory, count]),
                     ("rename", ["rename-files", directory, moved, count]), ("unlink", ["unlink", moved, count])]
            for step, words in steps:
                before = round_trips(cluster)
                seconds = bench.load(*words)["total_s"]
                row.figure(f"{metadata}: {step}", [count / seconds], "/s")
                row.check(f"{metadata}: {step}, round trips each", [(round_trips(cluster) - before) / count],
                          at_most=ROUND_TRIPS_MAX.get(step))
    return [row]


def commit_rows(bench):
    many = bench.commit_files
    with hosts_of(bench, "cluster-commit") as cluster:
        writer, reader = cluster.hosts[0], cluster.hosts[1]
        os.mkdir(writer.path("many"))
        bench.load("create", writer.path("many"), many, 16, bench.next_seed())
        writer.cairnfs("wait", writer.mount_point)
        seconds = []
        names = ["many", "moved"]
        for _ in range(10):
            seconds.append(bench.load("rename", writer.path(names[0]), writer.path(names[1]))["total_s"])
            if not os.path.isdir(reader.path(names[1])) or os.path.exists(reader.path(names[0])):
                raise AssertionError("another host does not see the rename that has returned")
            names.reverse()
    row = Row(f"cluster: rename of a directory of {many} files, all durable, seen on another host")
    row.check("rename", [1000 * s for s in seconds], "ms", at_most=50)
    return [row]


def cpu_row(bench):
    """CPU time of all daemons per GiB of new data with two copies."""
    size = min(bench.size, GIB)
    bench.load("fill", bench.next_seed(), 0, size)
    with hosts_of(bench, "cluster-cpu") as cluster:
        usages = [Usage(host.pid) for host in cluster.hosts]
        with contextlib.ExitStack() as stack:
            for usage in usages:
                stack.enter_context(usage)
            save_cairn(bench, Member(cluster.hosts[0]), "step", size)
    row = Row("cluster: CPU per GiB of new data, two copies")
    row.figure("CPU of the writer's host: daemon", [usages[0].daemon_s * GIB / size], "s/GiB")
    row.figure("CPU of the other hosts: daemon", [sum(usage.daemon_s for usage in usages[1:]) * GIB / size], "s/GiB")
    row.figure("CPU of all: system", [usages[0].system_s * GIB / size], "s/GiB")
    return [row]


def tls_rows(bench):
    """A save, and a cold restore on a host that has none of it, among hosts with certificates and among others."""
    size = min(size_of_saves(bench, 2 * ROUNDS), GIB)
    bench.load("fill", bench.next_seed(), 0, size)
    with contextlib.ExitStack() as stack:
        clusters = {name: stack.enter_context(hosts_of(bench, "cluster-" + name, last_stores=False,
                                                       certificates=name == "tls"))
                    for name in ("tls", "plain")}
        number = iter(range(1_000_000))

        def turn(cluster):
            step = f"step-{next(number)}"
            with Usage(cluster.hosts[0].pid) as usage:
                saved = save_cairn(bench, Member(cluster.hosts[0]), step, size)
            drop_caches(1)
            read = bench.load("read", cluster.hosts[2].path(step, "part-0"), BLOCK)
            settle()
            return {"total_s": saved["total_s"], "read_s": read["total_s"], "cpu_s": usage.system_s * GIB / size}

        series = take_turns(min(bench.rounds, ROUNDS),
                            {name: lambda cluster=cluster: turn(cluster) for name, cluster in clusters.items()},
                            before_round=lambda _: bench.load("fill", bench.next_seed(), 0, size))
    rows = []
    for what, field in (("durable save, two copies", "total_s"), ("restore on a host that has none of it", "read_s")):
        row = Row(f"cluster: {what}, {size // MIB} MiB, with certificates")
        for name in ("tls", "plain"):
            row.figure(name, [size / s for s in series.get(name, field)], "B/s")
        row.check("with TLS over without", [a / b for a, b in zip(series.get("plain", field), series.get("tls", field))],
                  at_least=0.8)
        rows.append(row)
    for name in ("tls", "plain"):
        rows[0].figure(f"CPU of all, {name}", series.get(name, "cpu_s"), "s/GiB")
    return rows
