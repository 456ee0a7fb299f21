#!/usr/bin/env python3
"""Three hosts with one filesystem: what one does the others see at once.
Options: tests/support/cluster_world.py.
"""

import concurrent.futures
import ctypes
import errno
import mmap
import os
import stat
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import program, run
from cluster import wait_until
from cluster_world import MIB, error_of, main, read, write
from file_handles import handle_of, open_handle

PROMPT_SECONDS = 10  # once nothing has to be waited for


def names_are_seen_at_once(world):
    for host, others in world.pairs():
        folder = f"names-{host.name}"
        os.mkdir(host.path(folder))
        for other in others:
            assert os.listdir(other.path(folder)) == [], other.name
            # Looked for before it is there: no host may remember that it was not.
            assert error_of(os.stat, other.path(folder, "a")) == errno.ENOENT
        write(host.path(folder, "a"), b"")
        os.symlink("a", host.path(folder, "s"))
        os.link(host.path(folder, "a"), host.path(folder, "l"))
        for other in others:
            assert sorted(os.listdir(other.path(folder))) == ["a", "l", "s"], other.name
            assert os.readlink(other.path(folder, "s")) == "a"
            assert os.stat(other.path(folder, "a")).st_nlink == 2
            assert os.stat(other.path(folder, "l")).st_ino == os.stat(host.path(folder, "a")).st_ino
        os.rename(host.path(folder, "a"), host.path(folder, "b"))
        for other in others:
            assert error_of(os.stat, other.path(folder, "a")) == errno.ENOENT
            assert stat.S_ISREG(os.stat(other.path(folder, "b")).st_mode)
        for name in ("b", "s", "l"):
            os.unlink(host.path(folder, name))
            for other in others:
                assert error_of(os.lstat, other.path(folder, name)) == errno.ENOENT, (other.name, name)
        os.rmdir(host.path(folder))
        for other in others:
            assert error_of(os.stat, other.path(folder)) == errno.ENOENT


def bytes_are_seen_after_close_and_fsync(world):
    for host, others in world.pairs():
        name = f"bytes-{host.name}"
        first, second = world.content(3 * MIB + 17), world.content(100_000)
        write(host.path(name), first)
        for other in others:
            assert os.stat(other.path(name)).st_size == len(first), other.name
            assert read(other.path(name)) == first, other.name
        descriptor = os.open(host.path(name), os.O_WRONLY)
        try:
            os.pwrite(descriptor, second, 1000)
            os.fsync(descriptor)
            expected = first[:1000] + second + first[1000 + len(second):]
            for other in others:
                assert read(other.path(name)) == expected, other.name
        finally:
            os.close(descriptor)
        os.truncate(host.path(name), 5000)
        for other in others:
            assert read(other.path(name)) == expected[:5000], other.name
        # The other way round: who looked on writes.
        write(others[0].path(name), second)
        assert read(host.path(name)) == second
        assert read(others[1].path(name)) == second


def values_in_another_order_are_shared(world):
    host, *others = world.hosts
    values = [world.content(2 * MIB) for _ in range(12)]
    write(host.path("values"), b"".join(values))
    run(program("cairnfs"), "wait", host.path("values"))
    before = host.status()["cluster"]["new_in_cluster_bytes_total"]
    other_order = b"".join(reversed(values))
    write(host.path("values-again"), other_order)
    run(program("cairnfs"), "wait", host.path("values-again"))
    new = host.status()["cluster"]["new_in_cluster_bytes_total"] - before
    assert new <= len(other_order) * 12 // 100, f"{new} bytes were new to the cluster"
    for other in others:
        assert read(other.path("values-again")) == other_order, other.name
    return f"{new} bytes were new to the cluster"


def stores_are_seen_after_munmap(world):
    """The descriptor is closed first: nothing but its pages tells that the mapping has ended, and a round in the background
    publishes them. A commit of their host covers them at once."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = 2 * MIB
    for host, others in world.pairs():
        folder = f"mapped-{host.name}"
        os.mkdir(host.path(folder))
        name = os.path.join(folder, "f")
        write(host.path(name), world.content(size))
        for content in (world.content(size), world.content(size)):
            descriptor = os.open(host.path(name), os.O_RDWR)
            address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
            assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
            os.close(descriptor)
            ctypes.memmove(address, content, size)
            assert libc.munmap(address, size) == 0
            for other in others:
                wait_until(lambda at=other: read(at.path(name)) == content, 60, f"{other.name} sees the stores")
        content = world.content(size)
        descriptor = os.open(host.path(name), os.O_RDWR)
        address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
        assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
        os.close(descriptor)
        ctypes.memmove(address, content, size)
        assert libc.munmap(address, size) == 0
        os.rename(host.path(folder), host.path(folder + "-committed"))
        for other in others:
            assert read(other.path(folder + "-committed", "f")) == content, other.name


def mappings_are_as_of_the_last_open(world):
    """Pages that a mapping has read, and stored into, show what another host has closed as soon as anybody opens the file
    there: a mapping that is made then, and those that were there before."""
    size = 2 * MIB + 5000
    for host, others in world.pairs():
        name = f"mapping-{host.name}"
        expected = bytearray(world.content(size))
        write(host.path(name), expected)
        for other in others:
            with open(other.path(name), "r+b") as file, mmap.mmap(file.fileno(), size) as shared, \
                    mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as private:
                assert shared[:] == expected and private[:] == expected, other.name
                for begin, own in ((0, 20_000), (4090, 40_000), (MIB + 1, 60_000), (size - 10, 80_000)):
                    shared[own:own + 4] = expected[own:own + 4] = b"here"  # is not lost with the pages
                    new = world.content(10)
                    with open(host.path(name), "r+b") as file_there:
                        file_there.seek(begin)
                        file_there.write(new)
                    expected[begin:begin + 10] = new
                    with open(other.path(name), "rb") as file_again, \
                            mmap.mmap(file_again.fileno(), size, prot=mmap.PROT_READ) as again:
                        assert again[:] == expected, (other.name, begin)
                        assert shared[:] == expected, (other.name, begin)
                        assert private[:] == expected, (other.name, begin)
            assert read(host.path(name)) == expected, other.name


def attributes_are_seen_at_once(world):
    for host, others in world.pairs():
        name = f"attributes-{host.name}"
        write(host.path(name), b"x")
        for other in others:
            os.stat(other.path(name))
        os.chmod(host.path(name), 0o640)
        os.chown(host.path(name), 12, 34)
        os.utime(host.path(name), ns=(1_000_000_001, 2_000_000_002))
        os.setxattr(host.path(name), "user.step", b"7")
        for other in others:
            seen = os.stat(other.path(name))
            assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o640, 12, 34), other.name
            assert seen.st_mtime_ns == 2_000_000_002
            assert os.getxattr(other.path(name), "user.step") == b"7"
        os.removexattr(host.path(name), "user.step")
        for other in others:
            assert "user.step" not in os.listxattr(other.path(name))


def open_and_close(host, handle):
    os.close(open_handle(host.path(), handle))


def handles_hold_on_all_hosts(world):
    handles = []
    for host, others in world.pairs():
        name = f"handle-{host.name}"
        write(host.path(name), name.encode())
        handles.append(handle_of(host.path(name)))
        for other in others:
            with os.fdopen(open_handle(other.path(), handles[-1]), "rb") as file:
                assert file.read() == name.encode(), other.name
        os.unlink(others[0].path(name))
    # A host whose kernel knows a file finds it until all hosts have said that nobody has it open.
    for handle in handles:
        for each in world.hosts:
            wait_until(lambda at=each, of=handle: error_of(open_and_close, at, of) == errno.ESTALE, what=each.name)


def read_much(host, folder, rounds=40):
    """So often that the host may answer from memory, if it ever does."""
    for _ in range(rounds):
        for name in os.listdir(host.path(folder)):
            os.stat(host.path(folder, name))


def what_is_read_much_stays_true(world):
    writer, *readers = world.hosts
    os.mkdir(writer.path("hot"))
    for number in range(5):
        write(writer.path("hot", f"f{number}"), world.content(1000))
    for turn in range(4):
        for reader in readers:
            read_much(reader, "hot")
        content = world.content(2000 + turn)
        write(writer.path("hot", "f0"), content)
        os.chmod(writer.path("hot", "f1"), 0o600 + turn)
        os.rename(writer.path("hot", f"f2{'x' * turn}"), writer.path("hot", f"f2{'x' * (turn + 1)}"))
        write(writer.path("hot", f"new-{turn}"), b"new")
        for reader in readers:
            assert os.stat(reader.path("hot", "f0")).st_size == len(content), (turn, reader.name)
            assert read(reader.path("hot", "f0")) == content, (turn, reader.name)
            assert stat.S_IMODE(os.stat(reader.path("hot", "f1")).st_mode) == 0o600 + turn, (turn, reader.name)
            assert error_of(os.stat, reader.path("hot", f"f2{'x' * turn}")) == errno.ENOENT
            assert f"f2{'x' * (turn + 1)}" in os.listdir(reader.path("hot"))
            assert read(reader.path("hot", f"new-{turn}")) == b"new", (turn, reader.name)


def a_file_that_is_replaced_is_always_there(world):
    """One host renames new files over a name; whoever opens or looks at it on another finds the old one or the new. Where
    it is replaced twice within one call the caller may be told to look again (ESTALE), but never that nothing is there."""
    maker, others = world.hosts[0], world.hosts[1:]
    write(maker.path("latest"), b"step 0")
    done = threading.Event()

    def replace():
        for step in range(1, 150):
            write(maker.path("latest.tmp"), b"step %d" % step)
            os.rename(maker.path("latest.tmp"), maker.path("latest"))
            time.sleep(0.02)

    def look(host):
        path, looks, stale = host.path("latest"), 0, 0
        while not done.is_set():
            for call in (lambda: os.stat(path), lambda: read(path), lambda: os.utime(path),
                         lambda: os.close(os.open(path, os.O_RDWR | os.O_CREAT)), lambda: os.listxattr(path)):
                looks += 1
                if error := error_of(call):
                    assert error == errno.ESTALE, (host.name, errno.errorcode[error])
                    stale += 1
        return looks, stale

    with concurrent.futures.ThreadPoolExecutor() as threads:
        looking = [threads.submit(look, host) for host in others]
        try:
            replace()
        finally:
            done.set()
        looks, stale = map(sum, zip(*(one.result() for one in looking)))
    assert stale <= looks / 4, (looks, stale)
    for host in others:
        assert read(host.path("latest")) == b"step 149"
    return f"looked at {looks} times, of which {stale} were to look again"


def a_paused_host_holds_nobody_up(world):
    """A stopped daemon that may remember what is changed delays the change by no more than its lease."""
    writer, witness, paused = world.hosts

    def is_down():
        world.cluster.wait_for_states({paused.name: "down"}, at=[witness])
        return time.monotonic()

    os.mkdir(writer.path("paused"))
    write(writer.path("paused", "f"), b"before")
    read_much(paused, "paused")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        paused.pause()
        try:
            began = time.monotonic()
            down = threads.submit(is_down)
            os.chmod(writer.path("paused", "f"), 0o600)
            os.mkdir(writer.path("paused", "d"))
            ended = time.monotonic()
            lease_ended = down.result()
        finally:
            paused.resume()
    assert ended - lease_ended < PROMPT_SECONDS, (ended - lease_ended, lease_ended - began)
    assert stat.S_IMODE(os.stat(paused.path("paused", "f")).st_mode) == 0o600
    assert sorted(os.listdir(paused.path("paused"))) == ["d", "f"]
    world.cluster.wait_for_states({host.name: "up" for host in world.hosts})
    return f"delayed by {ended - began:.1f} s"


def disjoint_ranges_of_one_file_stay(world):
    """Three hosts write a third each, at the same time, through descriptors that were open before."""
    size = 4 * MIB
    write(world.hosts[0].path("shared"), bytes(size * len(world.hosts)))
    parts = [world.content(size) for _ in world.hosts]
    descriptors = [os.open(host.path("shared"), os.O_WRONLY) for host in world.hosts]

    def write_part(number):
        os.pwrite(descriptors[number], parts[number], number * size)
        os.close(descriptors[number])

    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(write_part, range(len(parts))))
    for host in world.hosts:
        assert read(host.path("shared")) == b"".join(parts), host.name


def one_host_is_remounted_read_only(world):
    """By its configuration, as fstab names it: it writes nothing, the others do, and what they write it reads."""
    host, other = world.hosts[-1], world.hosts[0]
    write(host.path("before"), b"before")
    remount = ["mount", host.mount_point, "--config", host.config, "-o"]
    host.cairnfs(*remount, "remount,ro,repair_rate=64MiB")
    assert os.getxattr(other.path("before"), "user.cairnfs.durability") == b"replicated"
    assert error_of(os.unlink, host.path("before")) == errno.EROFS
    write(other.path("meanwhile"), b"meanwhile")
    assert read(host.path("meanwhile")) == b"meanwhile"
    refused = subprocess.run(host.inside(program("cairnfs"), *remount, "remount,copies=3"), check=False, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert refused.returncode == 2 and "copies cannot change" in refused.stdout, refused
    host.cairnfs(*remount, "remount,rw")
    os.unlink(host.path("before"))
    os.unlink(host.path("meanwhile"))


CASES = (names_are_seen_at_once, bytes_are_seen_after_close_and_fsync, values_in_another_order_are_shared,
         stores_are_seen_after_munmap, mappings_are_as_of_the_last_open, attributes_are_seen_at_once,
         handles_hold_on_all_hosts, what_is_read_much_stays_true, a_file_that_is_replaced_is_always_there,
         a_paused_host_holds_nobody_up, disjoint_ranges_of_one_file_stay, one_host_is_remounted_read_only)


if __name__ == "__main__":
    sys.exit(main(CASES, one_store=True))
