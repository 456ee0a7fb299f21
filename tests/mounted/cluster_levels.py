#!/usr/bin/env python3
"""Four hosts in two failure domains, one of them with weight 0: where the copies go, what a level of durability waits for,
what one save of the same bytes on every host costs, and a file that is removed on one host while another has it open.

Options: --seed N; names of cases run these alone.
"""

import concurrent.futures
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, run_cases, seed_from_arguments
from cluster import Cluster, wait_until

MIB = 1 << 20
DOMAINS = ("rack-1", "rack-1", "rack-2", "rack-2")
IDLE_HOST = 3  # has weight 0
OPTIONS = {"lease": "5s", "out_after": "60s"}
PROMPT_SECONDS = 60  # a sync that waits for no other host; one that does goes on for as long as they are cut off
STILL_WAITING_SECONDS = 2


class World:
    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(seed)
        self.saved = {}  # name -> content, saved while every host reached every other

    @property
    def hosts(self):
        return self.cluster.hosts

    def content(self, size):
        return self.random.randbytes(size)

    def stored(self):
        """Bytes of chunks by host, each asked about itself: what it tells the others is some seconds old."""
        return [host.nodes()[host.name]["stored_bytes"] for host in self.hosts]

    def settled_stored(self):
        """The same once all copies are made."""
        self.cluster.wait_for_copies()
        seen = []

        def is_settled():
            seen.append(self.stored())
            return seen[-3:].count(seen[-1]) == 3
        wait_until(is_settled, 60, "what is stored stays the same", every=1.0)
        return seen[-1]


def write(path, content, sync=False):
    with open(path, "wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read(path):
    with open(path, "rb") as file:
        return file.read()


def durability(path):
    return os.getxattr(path, "user.cairnfs.durability").decode()


def copies_lie_in_both_domains(world):
    """A save on the first host leaves one copy there, and one in the other domain, on the host that has a weight."""
    before = world.settled_stored()
    content = world.content(16 * MIB)  # more would not stay where it was saved, as each node is to have its share
    write(world.hosts[0].path("model"), content, sync=True)
    after = world.settled_stored()
    grown = [(b - a) / len(content) for a, b in zip(before, after)]
    assert 0.99 < grown[0] < 1.1 and grown[1] < 0.05, grown
    assert 0.99 < grown[2] < 1.1 and grown[3] < 0.05, grown
    world.saved["model"] = content
    for host in world.hosts:
        assert read(host.path("model")) == content, host.name
        name = f"saved-{host.name}"
        world.saved[name] = world.content(5 * MIB)
        write(host.path(name), world.saved[name], sync=True)
    return " ".join(f"{share:.2f}" for share in grown)


def one_save_on_every_host_costs_one(world):
    """The same replica, saved by every host at once."""
    before = sum(world.settled_stored())
    content = world.content(24 * MIB)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: write(host.path(f"replica-{host.name}"), content, sync=True), world.hosts))
    grown = (sum(world.settled_stored()) - before) / len(content)
    for host in world.hosts:
        for other in world.hosts:
            assert read(host.path(f"replica-{other.name}")) == content, (host.name, other.name)
    assert 1.98 < grown < 2.2, grown  # two copies of each chunk, whoever sent it
    again = world.settled_stored()
    for host in world.hosts:
        write(host.path(f"again-{host.name}"), content, sync=True)
    more = (sum(world.settled_stored()) - sum(again)) / len(content)
    assert more < 0.01, more
    return f"{grown:.2f} times its size, again {more:.2f}"


def an_open_file_outlives_its_name(world):
    opener, remover = world.hosts[1], world.hosts[2]
    content = world.content(3 * MIB)
    write(remover.path("open"), content)
    with open(opener.path("open"), "r+b") as file:
        assert file.read(1000) == content[:1000]
        os.unlink(remover.path("open"))
        for host in world.hosts:
            assert "open" not in os.listdir(host.path()), host.name
        file.seek(0)
        assert file.read() == content
        os.pwrite(file.fileno(), b"still here", 5)
        os.fsync(file.fileno())
        assert os.pread(file.fileno(), 20, 0) == content[:5] + b"still here" + content[15:20]
        assert os.fstat(file.fileno()).st_nlink == 0
    write(remover.path("open"), b"another one")
    assert read(opener.path("open")) == b"another one"


def wait_leaves_every_copy(world):
    host = world.hosts[2]
    content = world.content(8 * MIB)
    write(host.path("waited"), content)
    host.cairnfs("wait", host.mount_point)
    assert durability(host.path("waited")) == "replicated"
    assert not host.status()["cluster"]["unacknowledged_bytes"]
    assert read(world.hosts[1].path("waited")) == content


def a_close_counts_for_other_hosts(world):
    """What one host has just closed is replicated as every other one sees it, and one that waits for it is done."""
    writer, waiter = world.hosts[0], world.hosts[1]
    os.mkdir(writer.path("step"))
    content = world.content(4 * MIB)
    for number in range(20):
        write(writer.path("step", f"part-{number}"), content[number * 1000:])
        for host in world.hosts:
            assert durability(host.path("step", f"part-{number}")) == "replicated", (host.name, number)
        waiter.cairnfs("wait", waiter.path("step"))
    assert durability(waiter.path("step")) == "replicated"


def a_local_level_waits_for_no_host(world):
    """Cut off from every other host a sync and a close at `local` return, those at `replicated` do so when they can be
    reached; and what goes from the one to the other gets its copies on the way."""
    host, others = world.hosts[0], world.hosts[1:]
    for name in ("scratch", "kept"):
        os.mkdir(host.path(name))
    os.setxattr(host.path("scratch"), "user.cairnfs.level", b"local")
    for other in world.hosts:
        wait_until(lambda other=other: os.getxattr(other.path("scratch"), "user.cairnfs.level") == b"local", 10,
                   f"{other.name} sees the level")
    assert os.getxattr(host.path("kept"), "user.cairnfs.level") == b"replicated"
    contents = {sync: world.content(6 * MIB) for sync in (True, False)}
    pool = concurrent.futures.ThreadPoolExecutor()
    for other in others:
        world.cluster.cut(host, other)
    try:
        begin = time.monotonic()
        for sync in (True, False):
            write(host.path("scratch", f"part-{sync}"), contents[sync], sync)
            assert durability(host.path("scratch", f"part-{sync}")) == "local"
        prompt = time.monotonic() - begin
        assert prompt < PROMPT_SECONDS, prompt
        savers = [pool.submit(write, host.path("kept", f"part-{sync}"), world.content(1000), sync) for sync in (True, False)]
        time.sleep(STILL_WAITING_SECONDS)
        assert not any(saver.done() for saver in savers), f"one copy was enough: {savers}"
    finally:
        world.cluster.heal()
    for saver in savers:
        saver.result(60)
    pool.shutdown()
    for sync in (True, False):
        assert durability(host.path("kept", f"part-{sync}")) == "replicated"
    os.rename(host.path("scratch", "part-False"), host.path("kept", "moved"))
    host.cairnfs("wait", host.mount_point)
    assert durability(host.path("kept", "moved")) == "replicated"
    for other in others:
        assert read(other.path("kept", "moved")) == contents[False], other.name
    return f"the local sync and close took {prompt:.2f} s"


def a_mount_at_level_local(world):
    """durability = "local" is the level of one mount; the others keep theirs."""
    host, others = world.hosts[1], [each for each in world.hosts if each is not world.hosts[1]]
    host.umount()
    with open(host.config, "a", encoding="utf-8") as config:
        config.write('durability = "local"\n')
    host.mount()
    assert os.getxattr(host.path(), "user.cairnfs.level") == b"local"
    assert os.getxattr(others[0].path(), "user.cairnfs.level") == b"replicated"
    for other in others:
        world.cluster.cut(host, other)
    try:
        begin = time.monotonic()
        write(host.path("quick"), world.content(MIB), sync=True)
        assert time.monotonic() - begin < PROMPT_SECONDS
        assert durability(host.path("quick")) == "local"
    finally:
        world.cluster.heal()
    world.cluster.wait_for_copies()


def a_domain_that_comes_back_gets_what_was_saved(world):
    """Saved while one domain is away, both copies lie in the other; one more is made once it is back."""
    cluster = world.cluster
    saver, away = world.hosts[0], world.hosts[2:]
    before = world.settled_stored()[2]
    for host in away:
        host.kill()
    cluster.wait_for_states({host.name: "down" for host in away}, at=world.hosts[:2])
    content = world.content(8 * MIB)
    write(saver.path("while-away"), content, sync=True)
    assert os.getxattr(saver.path("while-away"), "user.cairnfs.durability") == b"replicated"
    for host in away:
        host.mount()
    cluster.wait_for_states({host.name: "up" for host in world.hosts})
    world.saved["while-away"] = content
    wait_until(lambda: world.stored()[2] - before > 0.99 * len(content), 120, "a copy is in the domain that came back")
    cluster.wait_for_copies()


def a_domain_is_lost(world):
    """Both hosts of a domain die with their disks: the other domain has all that was saved on any host."""
    cluster = world.cluster
    assert world.saved, "copies_lie_in_both_domains saves what is looked at here"
    cluster.wait_for_copies()
    lost, left = world.hosts[:2], world.hosts[2:]
    for host in lost:
        host.kill()
        host.wipe()
    cluster.wait_for_states({host.name: "down" for host in lost}, at=left)
    for host in left:
        for name, saved in world.saved.items():
            assert read(host.path(name)) == saved, (host.name, name)
    return ", ".join(f"{name} in {node['domain']} is {node['state']}" for name, node in left[0].nodes().items())


CASES = (copies_lie_in_both_domains, one_save_on_every_host_costs_one, an_open_file_outlives_its_name,
         wait_leaves_every_copy, a_close_counts_for_other_hosts, a_local_level_waits_for_no_host, a_mount_at_level_local,
         a_domain_that_comes_back_gets_what_was_saved, a_domain_is_lost)


def main():
    seed = seed_from_arguments()
    with Scratch() as scratch, Cluster(scratch, hosts=len(DOMAINS), metadata="etcd", options=OPTIONS) as cluster:
        for host, domain in zip(cluster.hosts, DOMAINS):
            host.options["failure_domain"] = domain
        cluster.hosts[IDLE_HOST].options["weight"] = 0
        cluster.start()
        failed = run_cases(CASES, World(cluster, seed))
        if failed:
            print(cluster.logs())
        return failed


if __name__ == "__main__":
    sys.exit(main())
