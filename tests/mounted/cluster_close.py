#!/usr/bin/env python3
"""Three hosts with one filesystem: what close(2) promises the others, who waits in it and who does not, and which commits
a host that died with a file open refuses. Options: tests/support/cluster_world.py.
"""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch
from cluster import Cluster, wait_until
from cluster_world import MIB, OPTIONS, commit_by_ranks, error_of, main, read, write

PROMPT_SECONDS = 20  # what waits for no other host: one that does would wait for as long as they are cut off
STILL_WAITING_SECONDS = 2
DURABILITY = "user.cairnfs.durability"
SMALL_DISK = "160m"
LEFT_BYTES = 12 * MIB  # of that disk: hardly more than its daemon keeps for itself

# A process that writes argv[2] bytes of argv[3] to the new file argv[1], says so, and ends in the way of argv[4]. How
# its close ended is its exit status.
WRITER = """
import os, signal, sys
path, size, byte, how = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), sys.argv[4]
descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
os.write(descriptor, byte * size)
def say(text): os.write(1, text.encode() + b"\\n")
def close():
    try: os.close(descriptor)
    except OSError as error: os._exit(error.errno)
if how == "exit": os._exit(0)  # the kernel closes it
if how == "exec": os.execlp("true", "true")  # which closes it as well
if how == "fork":
    child = os.fork()
    if child == 0: os._exit(0)
    say("ended" if os.waitpid(child, 0)[1] == 0 else "failed")
    copy = os.dup(descriptor)
    child = os.fork()
    if child == 0:
        os.close(copy)
        os.execlp("true", "true")
    say("ended" if os.waitpid(child, 0)[1] == 0 else "failed")
if how == "sleep":
    say("wrote")
    signal.pause()
if how != "sleep": close()
"""


def start_writer(path, size, byte, how):
    return subprocess.Popen([sys.executable, "-c", WRITER, path, str(size), byte, how], stdout=subprocess.PIPE)


@contextlib.contextmanager
def alone(world):
    """The first host, which serves the metadata if a node does, while it reaches no other: nothing of it is replicated."""
    writer, *others = world.hosts
    for other in others:
        world.cluster.cut(writer, other)
    try:
        yield writer
    finally:
        world.cluster.heal()


def is_up_again(world):
    world.cluster.wait_for_states({host.name: "up" for host in world.hosts})


def what_is_closed_outlives_its_host(world):
    """The daemon is killed as soon as close(2), or the end of a process, has returned: others have every byte."""
    victim, *others = reversed(world.hosts)
    contents = {name: world.content(size) for name, size in (("tiny", 1), ("small", 5000), ("large", 5 * MIB + 3))}
    os.mkdir(victim.path("closed"))
    for name, content in contents.items():
        write(victim.path("closed", name), content)
        for other in others:
            assert read(other.path("closed", name)) == content, (other.name, name)
    with open(victim.path("closed", "small"), "r+b") as file:
        file.seek(4990)
        file.write(b"overwritten and longer")
    contents["small"] = contents["small"][:4990] + b"overwritten and longer"
    write(victim.path("closed", "rewritten"), b"first")
    write(victim.path("closed", "rewritten"), b"second one")
    contents["rewritten"] = b"second one"
    assert start_writer(victim.path("closed", "exited"), MIB, "e", "exit").wait(60) == 0
    contents["exited"] = b"e" * MIB
    assert start_writer(victim.path("closed", "executed"), MIB, "x", "exec").wait(60) == 0
    contents["executed"] = b"x" * MIB
    victim.kill()
    for other in others:
        for name, content in contents.items():
            assert os.stat(other.path("closed", name)).st_size == len(content), (other.name, name)
            assert read(other.path("closed", name)) == content, (other.name, name)
    world.cluster.wait_for_states({victim.name: "down"}, at=others)
    os.rename(others[0].path("closed"), others[0].path("closed-committed"))
    assert os.getxattr(others[0].path("closed-committed"), DURABILITY) == b"replicated"
    victim.mount()
    is_up_again(world)
    for name, content in contents.items():
        assert read(victim.path("closed-committed", name)) == content, name


def no_call_changes_a_file_behind_its_close(world):
    """Each is seen at once, and not by the luck of a round in the background."""
    for host, others in world.pairs():
        folder = f"calls-{host.name}"
        os.mkdir(host.path(folder))
        content = world.content(300_000)
        write(host.path(folder, "source"), content)
        with open(host.path(folder, "source"), "rb", buffering=0) as source:
            changes = {
                "write": lambda file, size: os.pwrite(file, content[:size], 0),
                "writev": lambda file, size: os.pwritev(file, [content[:1000], content[1000:size]], 0),
                "copy_file_range": lambda file, size: os.copy_file_range(source.fileno(), file, size, 0),
                "sendfile": lambda file, size: os.sendfile(file, source.fileno(), 0, size),
                "posix_fallocate": lambda file, size: os.posix_fallocate(file, 0, size),
                "ftruncate": os.ftruncate,
            }
            for turn in range(8):
                for name, change in changes.items():
                    size = 200_000 + turn
                    file = os.open(host.path(folder, f"{name}-{turn}"), os.O_WRONLY | os.O_CREAT)
                    change(file, size)
                    os.close(file)
                    for other in others:
                        path = other.path(folder, f"{name}-{turn}")
                        assert os.stat(path).st_size == size, (name, other.name, os.stat(path).st_size)
                        is_empty = name in ("posix_fallocate", "ftruncate")
                        assert read(path) == (bytes(size) if is_empty else content[:size]), (name, other.name)


def a_close_waits_for_its_copies(world):
    """Nothing of the file is seen elsewhere before, and all of it after."""
    others = world.hosts[1:]
    with alone(world) as writer:
        process = start_writer(writer.path("waits"), 3 * MIB, "w", "close")
        try:
            process.wait(STILL_WAITING_SECONDS)
            raise AssertionError(f"close did not wait: {process.returncode}")
        except subprocess.TimeoutExpired:
            pass
    assert process.wait(60) == 0, errno.errorcode.get(process.returncode)
    is_up_again(world)
    for other in others:
        assert read(other.path("waits")) == b"w" * (3 * MIB), other.name


def a_child_that_holds_the_descriptor_does_not_wait(world):
    """One that exits, and one that closes a copy and executes another program: neither wrote."""
    others = world.hosts[1:]
    with alone(world) as writer:
        began = time.monotonic()
        process = start_writer(writer.path("forked"), MIB, "f", "fork")
        said = [process.stdout.readline() for _ in range(2)]
        took = time.monotonic() - began
        assert said == [b"ended\n", b"ended\n"], said
        assert process.poll() is None, "its own close did not wait"
    assert took < PROMPT_SECONDS, took
    assert process.wait(60) == 0, errno.errorcode.get(process.returncode)
    is_up_again(world)
    for other in others:
        assert read(other.path("forked")) == b"f" * MIB, other.name
    return f"{took:.1f} s"


def a_writer_that_is_killed_does_not_hang(world):
    """Neither while it writes on, nor in the close that waits. Its bytes are published later."""
    others = world.hosts[1:]
    with alone(world) as writer:
        writing = start_writer(writer.path("writing"), MIB, "k", "sleep")
        assert writing.stdout.readline() == b"wrote\n"
        closing = start_writer(writer.path("closing"), MIB, "c", "close")
        time.sleep(STILL_WAITING_SECONDS)
        assert closing.poll() is None, closing.returncode
        began = time.monotonic()
        for process in (writing, closing):
            process.kill()
        for process in (writing, closing):
            process.wait(PROMPT_SECONDS)
        took = time.monotonic() - began
    is_up_again(world)
    for other in others:
        for name, byte in (("writing", b"k"), ("closing", b"c")):
            wait_until(lambda at=other.path(name), of=byte * MIB: read(at) == of, 30, f"{other.name} reads {name}")
    return f"ended {took:.1f} s after the kill"


def a_touched_file_is_committed(world):
    """An unwritten close is covered by commits of its host, and holds up none of others."""
    for toucher, others in world.pairs():
        for number, committer in enumerate((toucher, others[0])):
            folder = f"done-{toucher.name}-{number}"
            os.mkdir(toucher.path(folder + ".tmp"))
            write(others[1].path(folder + ".tmp", "part"), b"part")
            assert subprocess.run(["touch", toucher.path(folder + ".tmp", "DONE")], check=False).returncode == 0
            os.rename(committer.path(folder + ".tmp"), committer.path(folder))
            for host in world.hosts:
                assert sorted(os.listdir(host.path(folder))) == ["DONE", "part"], host.name
                assert os.stat(host.path(folder, "DONE")).st_size == 0
                wait_until(lambda at=host.path(folder): os.getxattr(at, DURABILITY) == b"replicated", 20,
                           f"{folder} counts as replicated on {host.name}")


AGAIN = b"written again"


def rewrite(path):
    write(path, AGAIN)


def overwrite(path):
    """All of it, in place."""
    with open(path, "r+b") as file:
        file.write(AGAIN + bytes(max(0, os.fstat(file.fileno()).st_size - len(AGAIN))))


def a_host_that_dies_with_files_open(world):
    """A commit above a file that it had not closed names host and file, by whatever name the file lies there. It passes
    once the file is written again, emptied or removed."""
    host, witness, victim = world.hosts
    cures = {"rewritten": rewrite, "overwritten": overwrite, "truncated": lambda path: os.truncate(path, 0),
             "removed": os.unlink, "emptied": rewrite}
    files, folders = [], [*cures, "linked"]
    for folder in folders:
        os.mkdir(host.path(folder + ".tmp"))
        write(host.path(folder + ".tmp", "whole"), b"whole")
    os.mkdir(host.path("elsewhere"))
    write(host.path("emptied.tmp", "part"), b"of an earlier save, which the dead host was about to replace")
    for name in (*(cure + ".tmp/part" for cure in cures), "elsewhere/origin"):
        files.append(open(victim.path(name), "wb", buffering=0))  # pylint: disable=consider-using-with
        files[-1].write(world.content(MIB))
    os.link(witness.path("elsewhere", "origin"), witness.path("linked.tmp", "part"))
    victim.kill()
    for file in files:
        with contextlib.suppress(OSError):
            file.close()
    for folder in folders:  # while nobody knows yet that it is down
        for committer in (host, witness):
            source, target = committer.path(folder + ".tmp"), committer.path(folder)
            assert error_of(os.rename, source, target) == errno.EIO, folder
            failures = json.loads(committer.cairnfs("status", source, "--json"))["failures"]
            cause = failures[0]["causes"][0]
            assert cause["host"] == victim.name and "lost" in cause["cause"], failures
            assert cause["file"] in (folder + ".tmp/part", "elsewhere/origin"), failures
            assert os.getxattr(source, DURABILITY) == b"lost"
            assert os.getxattr(committer.path(folder + ".tmp", "part"), DURABILITY) == b"lost"
            assert os.getxattr(committer.path(folder + ".tmp", "whole"), DURABILITY) == b"replicated"
        for result in commit_by_ranks([host, witness], folder, 2):
            assert result.returncode == 1 and victim.name in result.stdout and "/part" in result.stdout, result
    for folder, cure in cures.items():
        cure(host.path(folder + ".tmp", "part"))
        os.rename(witness.path(folder + ".tmp"), witness.path(folder))
        left = ["whole"] if folder == "removed" else ["part", "whole"]
        for each in (host, witness):
            assert sorted(os.listdir(each.path(folder))) == left, (each.name, folder)
            # The dead host had copies, which are being made anew.
            assert os.getxattr(each.path(folder), DURABILITY) in (b"local", b"replicated"), folder
    for folder in ("rewritten", "overwritten", "emptied"):
        assert read(witness.path(folder, "part")) == AGAIN, folder
    assert read(witness.path("truncated", "part")) == b""
    # By its other name the file is the same one.
    rewrite(witness.path("elsewhere", "origin"))
    os.rename(host.path("linked.tmp"), host.path("linked"))
    assert read(witness.path("linked", "part")) == AGAIN
    victim.mount()
    is_up_again(world)
    assert read(victim.path("linked", "part")) == AGAIN
    world.cluster.wait_for_copies()
    for folder in folders:
        wait_until(lambda at=victim.path(folder): os.getxattr(at, DURABILITY) == b"replicated", 20, folder)


def fill(host):
    """Takes what has become free on its small disk."""
    with open(os.path.join(host.data, "ballast-of-the-test"), "ab") as file:
        space = os.fstatvfs(file.fileno())
        if (more := space.f_bavail * space.f_frsize - LEFT_BYTES) > 0:
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), file.tell(), more)


def a_full_cluster_fails_the_close(world):
    """There is room on the writer's own node, and for the second copy nowhere: its close says ENOSPC, and the file is not
    what another host commits. Once there is room it is written by itself."""
    store = "etcd" if world.cluster.etcd else "node"
    options = {**OPTIONS, "segment_size": "4MiB"}
    with Scratch() as scratch, Cluster(scratch, hosts=2, metadata=store, options=options) as cluster:
        writer, full = cluster.hosts
        os.makedirs(full.data)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=0711", "tmpfs", full.data], check=True)
        cluster.start()
        os.mkdir(writer.path("step.tmp"))

        def is_full():
            fill(full)
            return writer.nodes()[full.name]["full"]
        wait_until(is_full, 60, f"{full.name} is full", every=0.3)
        content, closed = world.content(3 * MIB), []

        def save():
            closed.append(error_of(write, writer.path("step.tmp", "part"), content))
        saver = threading.Thread(target=save)
        saver.start()
        wait_until(lambda: is_full() and closed, 60, "close has returned", every=0.3)
        try:
            assert closed == [errno.ENOSPC], closed
            assert error_of(os.rename, full.path("step.tmp"), full.path("step")) == errno.EIO
            failures = full.status()["failures"]
            cause, = failures[0]["causes"]
            assert (cause["host"], cause["file"]) == (writer.name, "step.tmp/part"), failures
        except AssertionError:
            print(cluster.logs())
            raise
        os.unlink(os.path.join(full.data, "ballast-of-the-test"))
        wait_until(lambda: error_of(os.rename, full.path("step.tmp"), full.path("step")) == 0, 60, "the commit", every=0.5)
        assert read(full.path("step", "part")) == content
        return cause["cause"]


def a_close_gives_up_on_copies(world):
    """After commit_wait_max it fails, and so do commits on other hosts, which name host and file. Its bytes are kept, and
    published once there are nodes for them."""
    store = "etcd" if world.cluster.etcd else "node"
    options = {**OPTIONS, "commit_wait_max": "2s", "out_after": "10min"}
    with Scratch() as scratch, Cluster(scratch, hosts=3, copies=3, metadata=store, options=options) as cluster:
        cluster.start()
        committer, writer, away = cluster.hosts
        os.mkdir(writer.path("step.tmp"))
        away.kill()
        cluster.wait_for_states({away.name: "down"}, at=[committer, writer])
        content = world.content(2 * MIB)
        began = time.monotonic()
        assert error_of(write, writer.path("step.tmp", "part"), content) == errno.ETIMEDOUT
        took = time.monotonic() - began
        assert error_of(os.rename, committer.path("step.tmp"), committer.path("step")) == errno.EIO
        failures = committer.status()["failures"]
        cause, = failures[0]["causes"]
        assert (cause["host"], cause["file"]) == (writer.name, "step.tmp/part"), failures
        assert os.getxattr(committer.path("step.tmp", "part"), DURABILITY) == b"pending"
        away.mount()
        wait_until(lambda: error_of(os.rename, committer.path("step.tmp"), committer.path("step")) == 0, 60, "the commit",
                   every=0.5)
        for host in cluster.hosts:
            assert read(host.path("step", "part")) == content, host.name
        return f"gave up after {took:.1f} s: {cause['cause']}"


CASES = (what_is_closed_outlives_its_host, no_call_changes_a_file_behind_its_close, a_close_waits_for_its_copies,
         a_child_that_holds_the_descriptor_does_not_wait, a_writer_that_is_killed_does_not_hang,
         a_touched_file_is_committed, a_host_that_dies_with_files_open, a_full_cluster_fails_the_close,
         a_close_gives_up_on_copies)


if __name__ == "__main__":
    sys.exit(main(CASES, one_store=True))
