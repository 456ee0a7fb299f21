#!/usr/bin/env python3
"""Three hosts with one filesystem: files that appear whole. Who sees what on other hosts, what a killed writer and a host
that dies leave, and readers on all hosts that never see a part. Options: tests/support/cluster_world.py, and
--rewrites N (150): of the case with kills.
"""

import errno
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cluster import wait_until
from cluster_world import error_of, main, read, write
from whole_files import rewrites_with_kills

FILES, COMPLETE = "user.cairnfs.atomic_files", "user.cairnfs.atomic_complete"
STRANGER = 4321
rewrites = 150

WRITER = """
import os, signal, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
os.write(descriptor, sys.argv[2].encode())
print("wrote", flush=True)
sys.stdin.readline()
try: os.close(descriptor)
except OSError as error: os._exit(error.errno)
"""


def start(path, text, **options):
    process = subprocess.Popen(["/usr/bin/python3", "-c", WRITER, path, text], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline() == "wrote\n"
    return process


def end(process, status=0):
    process.stdin.close()
    process.stdout.close()
    assert process.wait(60) == status, process.returncode


def kill(process):
    process.kill()
    end(process, -signal.SIGKILL)


def make_run(world, name):
    """A directory whose files appear whole from the return of this call on, on all hosts."""
    os.mkdir(world.hosts[0].path(name))
    os.setxattr(world.hosts[0].path(name), FILES, b"*.index latest *.pt *.safetensors")
    return name


def found(host, *names):
    """What the host has under the name; None: nothing."""
    try:
        return read(host.path(*names)).decode()
    except FileNotFoundError:
        return None


def other_hosts_see_a_name_change_once(world):
    run = make_run(world, "seen")
    for host, others in world.pairs():
        name = f"{host.name}.pt"
        before = None
        for text in "one", "two, longer", "three":
            writer = start(host.path(run, name), text)
            for other in world.hosts:
                assert found(other, run, name) == before, (other.name, text)
                assert before is not None or name not in os.listdir(other.path(run))
            end(writer)
            for other in world.hosts:
                assert found(other, run, name) == text, (other.name, text)
            before = text
        # What the name tells of was closed before, on whatever host, and is safe as the name is.
        write(others[0].path(run, "shard"), b"s" * 3_000_000)
        write(host.path(run, "latest"), b"shard")
        assert os.getxattr(others[1].path(run, "shard"), "user.cairnfs.durability") == b"replicated"
    for host in world.hosts:
        assert sorted(os.listdir(host.path(run))) == sorted(["shard", "latest", *(h.name + ".pt" for h in world.hosts)])


def the_last_host_to_close_wins(world):
    run = make_run(world, "two")
    a, b, c = world.hosts
    for order in (0, 1), (1, 0):
        writers = [start(host.path(run, "model.pt"), f"of {host.name}") for host in (a, b)]
        for number in order:
            end(writers[number])
            assert found(c, run, "model.pt") == f"of {(a, b)[number].name}"
    # One who may write the file and not the directory replaces that file alone.
    os.chmod(a.path(run, "model.pt"), 0o666)
    by = dict(user=STRANGER, group=STRANGER, extra_groups=[])
    end(start(a.path(run, "model.pt"), "the stranger's", **by))
    assert found(c, run, "model.pt") == "the stranger's"
    writer = start(a.path(run, "model.pt"), "late", **by)
    write(b.path(run, "model.pt"), b"of b")
    end(writer, errno.ESTALE)
    assert found(c, run, "model.pt") == "of b"
    writer = start(a.path(run, "model.pt"), "late")
    os.rename(b.path(run), b.path("two-moved"))
    end(writer)
    assert found(c, "two-moved", "model.pt") == "late"
    writer = start(a.path("two-moved", "model.pt"), "too late")
    os.unlink(b.path("two-moved", "model.pt"))
    os.rmdir(c.path("two-moved"))
    end(writer, errno.ENOENT)


def a_host_that_dies_leaves_the_old_file(world):
    run = make_run(world, "dies")
    victim, *others = reversed(world.hosts)
    for host in world.hosts:
        write(host.path(run, f"{host.name}.pt"), b"old")
    killed = start(others[0].path(run, f"{others[0].name}.pt"), "half")
    kill(killed)
    writers = [start(victim.path(run, name), "half") for name in (f"{victim.name}.pt", "new.pt")]
    victim.kill()
    for writer in writers:
        kill(writer)
    world.cluster.wait_for_states({victim.name: "down"}, at=others)
    for host in others:
        assert found(host, run, f"{victim.name}.pt") == found(host, run, f"{others[0].name}.pt") == "old"
        assert found(host, run, "new.pt") is None
    # It wrote nothing that has a name: a commit is not refused for it.
    os.rename(others[0].path(run), others[0].path("dies-committed"))
    victim.mount()
    world.cluster.wait_for_states({host.name: "up" for host in world.hosts})
    write(victim.path("dies-committed", "new.pt"), b"new")
    for host in world.hosts:
        assert found(host, "dies-committed", "new.pt") == "new", host.name
        assert found(host, "dies-committed", f"{victim.name}.pt") == "old"


def what_one_host_sets_counts_on_all(world):
    a, b, c = world.hosts
    run = make_run(world, "sets")
    assert error_of(write, c.path(run, "cut.pt"), b"PK\3\4 and no end") == 0
    os.setxattr(b.path(run), COMPLETE, b"1")
    assert error_of(write, c.path(run, "cut.pt"), b"PK\3\4 again, and no end") == errno.EIO
    assert found(a, run, "cut.pt") == "PK\3\4 and no end"
    assert error_of(os.setxattr, c.path(run), FILES, b"a/b") == errno.EINVAL
    os.removexattr(c.path(run), FILES)
    writer = start(b.path(run, "cut.pt"), "in place")
    wait_until(lambda: found(b, run, "cut.pt") == "in place", what="it is written in place")
    end(writer)
    for host in world.hosts:
        assert found(host, run, "cut.pt") == "in place" and os.getxattr(host.path(run), COMPLETE) == b"1"


def readers_on_all_hosts_never_see_a_part(world):
    run = make_run(world, "proof")

    def kill_host(number):
        host = world.hosts[number]
        host.kill()
        host.mount()
        world.cluster.wait_for_states({each.name: "up" for each in world.hosts})

    # The first host may keep the names, and then all wait while it is away.
    paths = [host.path(run, "model.pt") for host in world.hosts]
    return rewrites_with_kills(paths, world.random, rewrites, kill_host)


CASES = (other_hosts_see_a_name_change_once, the_last_host_to_close_wins, a_host_that_dies_leaves_the_old_file,
         what_one_host_sets_counts_on_all, readers_on_all_hosts_never_see_a_part)


if __name__ == "__main__":
    if "--rewrites" in sys.argv:
        place = sys.argv.index("--rewrites")
        rewrites = int(sys.argv[place + 1])
        del sys.argv[place:place + 2]
    sys.exit(main(CASES, one_store=True))
