#!/usr/bin/env python3
"""Quotas of directories over three hosts: all that write at once stop at the limit, and the sums are those of a walk after
kills of daemons. Options: tests/support/cluster_world.py.
"""

import concurrent.futures
import errno
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cluster import wait_until
from cluster_world import MIB, error_of, main, read, write
from quotas import walk

PIECE = 128 * 1024


def fill(path, size, content):
    """Writes until an error; how many bytes were accepted, and the error of a write or of the close."""
    accepted = 0
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        return 0, error.errno
    try:
        while accepted < size:
            accepted += os.write(file, content(min(PIECE, size - accepted)))
    except OSError as error:
        return accepted, error.errno
    finally:
        os.close(file)
    return accepted, 0


def show(host, *names):
    return json.loads(host.cairnfs("quota", "show", host.path(*names), "--json"))


def used(host, *names):
    told = show(host, *names)
    return told["logical_used_bytes"], told["unique_used_bytes"]


def wait_for_use(host, folder, expected=None, seconds=30):
    """Waits until what counts is what a walk finds, and is what was expected."""
    seen = []

    def agrees():
        seen[:] = [used(host, folder)[0], walk(host.path(folder))]
        return seen[0] == seen[1] and expected in (None, seen[0])
    try:
        wait_until(agrees, seconds=seconds)
    except AssertionError as error:
        raise AssertionError(f"{host.name}: {seen} counts and is there, not {expected}") from error


def all_hosts_write(world, folder, size, content):
    with concurrent.futures.ThreadPoolExecutor(len(world.hosts)) as pool:
        return list(pool.map(lambda host: fill(host.path(folder, f"of-{host.name}"), size, content), world.hosts))


def hosts_that_write_at_once_stop_at_the_limit(world):
    for kind, content in (("unique", os.urandom), ("logical", lambda size: b"x" * size)):
        folder = f"{kind}-{len(os.listdir(world.hosts[0].path()))}"
        limit = 30 * MIB
        os.mkdir(world.hosts[0].path(folder))
        world.hosts[1].cairnfs("quota", "set", world.hosts[1].path(folder), f"--{kind}", "30M")
        done = all_hosts_write(world, folder, 20 * MIB, content)
        accepted = sum(count for count, _ in done)
        assert all(error == errno.EDQUOT for count, error in done if count < 20 * MIB), done
        assert any(error for _, error in done), done
        assert 0.99 * limit <= accepted <= 1.01 * limit, (kind, done, accepted / limit)
        for host in world.hosts:
            number = 0 if kind == "logical" else 1
            wait_until(lambda host=host: used(host, folder)[number] == accepted, seconds=20)
            # Nothing that was accepted is lost.
            for other, (count, _) in zip(world.hosts, done):
                assert os.path.getsize(host.path(folder, f"of-{other.name}")) == count
            if kind == "logical":
                space = os.statvfs(host.path(folder))
                assert space.f_blocks * space.f_frsize == limit, space
                assert walk(host.path(folder)) == accepted
        # What one host removes, another can write.
        os.unlink(world.hosts[0].path(folder, f"of-{world.hosts[1].name}"))
        freed = done[1][0]
        wait_until(lambda: fill(world.hosts[2].path(folder, "again"), freed // 2, content)[1] == 0, seconds=20)


def quotas_are_set_where_others_write(world):
    """What lies there, and what others write meanwhile, counts; on another host it is taken off."""
    one, two, three = world.hosts[:3]
    os.makedirs(one.path("busy", "below"))
    for number in range(40):
        write(one.path("busy", "below", str(number)), os.urandom(4096))
    with open(two.path("busy", "held"), "wb", buffering=0) as held:
        held.write(os.urandom(MIB))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            def save(number):
                write(three.path("busy", f"new-{number}"), os.urandom(8192))
            saving = pool.map(save, range(40))
            one.cairnfs("quota", "set", one.path("busy"), "--logical", "1G")
            list(saving)
        held.write(os.urandom(MIB))
    expected = 40 * 4096 + 2 * MIB + 40 * 8192
    for host in (one, two, three):
        wait_for_use(host, "busy", expected)
    assert error_of(os.rename, two.path("busy", "held"), two.path("out")) == errno.EXDEV
    assert error_of(os.link, three.path("busy", "held"), three.path("out")) == errno.EXDEV
    two.cairnfs("quota", "off", two.path("busy"))
    wait_until(lambda: error_of(os.getxattr, three.path("busy"), "user.cairnfs.quota") == errno.ENODATA)
    wait_until(lambda: error_of(os.rename, three.path("busy", "held"), three.path("out")) == 0, seconds=10)


def sums_hold_after_kills(world):
    one = world.hosts[0]
    os.mkdir(one.path("killed"))
    one.cairnfs("quota", "set", one.path("killed"), "--logical", "100M", "--unique", "100M")
    for number in range(2):
        victim = world.hosts[1 + number % 2]
        kept = os.urandom(3 * MIB)
        write(victim.path("killed", f"kept-{number}"), kept)
        held = os.open(victim.path("killed", f"held-{number}"), os.O_WRONLY | os.O_CREAT)
        os.write(held, os.urandom(5 * MIB))
        victim.kill()
        try:
            os.close(held)
        except OSError:
            pass
        victim.mount()
        assert read(victim.path("killed", f"kept-{number}")) == kept
        for host in world.hosts:
            wait_for_use(host, "killed")
        # What the killed host had taken for itself is free again.
        wait_until(lambda: used(one, "killed")[0] < 100 * MIB)
    left = 100 * MIB - walk(one.path("killed"))
    count, error = 0, 0

    def all_is_written():
        nonlocal count, error
        with_error = fill(one.path("killed", "rest"), left, os.urandom)
        count, error = with_error
        return error == 0
    wait_until(all_is_written, seconds=60, what="what is left can be written by one host")


if __name__ == "__main__":
    sys.exit(main([hosts_that_write_at_once_stop_at_the_limit, quotas_are_set_where_others_write,
                   sums_hold_after_kills]))
