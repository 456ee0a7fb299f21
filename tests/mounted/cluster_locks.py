#!/usr/bin/env python3
"""Locks of processes on several hosts: flock, POSIX and OFD record locks, waits, interrupts, processes and daemons that
die. Run as root: makes a cluster of three hosts on this machine.

With --mounts A B (directories of two hosts that run already) only the cases that leave the hosts alone are run.
"""

import contextlib
import errno
import fcntl
import os
import select
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, run_cases
from locking_process import OFD_GETLK, OFD_SETLK, OFD_SETLKW, Process
from refusals import expect_errno

LEASE_SECONDS = 5


@contextlib.contextmanager
def processes(mounts, *where):
    """One on each of the mounts with these numbers, all with one new file open as "f"."""
    name = "locked-" + os.urandom(4).hex()
    made = []
    try:
        for number in where:
            made.append(Process(os.path.join(mounts[number], name)))
        yield made
    finally:
        for process in made:
            process.end()
        for mount in mounts:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(mount, name))


def first_to_answer(one, other):
    """Both, the one that is answered first in front."""
    outputs = [one.process.stdout, other.process.stdout]
    answered = select.select(outputs, [], [], 120)[0]
    assert answered, "neither is answered"
    return (one, other) if outputs[0] in answered else (other, one)


def eventually(call, wanted="ok", seconds=60):
    """What is freed by the end of a process or an open file: the kernel tells of that a moment later."""
    deadline = time.monotonic() + seconds
    while (got := call()) != wanted:
        assert time.monotonic() < deadline, got
        time.sleep(0.01)


EX, SH, UN = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN


# --- cases for two mounts ---------------------------------------------------------------------------------------------

def locks_exclude_each_other(mounts):
    with processes(mounts, 0, 1, 0) as (a, b, a2):
        assert a.flock(EX) == "ok"
        assert b.flock(EX) == b.flock(SH) == a2.flock(SH) == "EAGAIN"
        assert b.posix("w") == "ok"  # another kind
        assert a.posix("r") == a.ofd("w") == "EAGAIN"
        assert a.flock(SH) == "ok" and b.flock(SH) == "ok" and a2.flock(EX) == "EAGAIN"
        assert a.flock(UN) == b.flock(UN) == "ok" and a2.flock(EX) == "ok"
        assert b.posix("u") == "ok" and a.ofd("w") == "ok"
        assert b.posix("r") == "EAGAIN" and a2.posix("r") == "EAGAIN" and b.ofd("r") == "EAGAIN"


def ranges_are_split_and_joined(mounts):
    with processes(mounts, 0, 1) as (a, b):
        assert a.posix("w", 0, 100) == "ok" and a.posix("u", 40, 20) == "ok" and a.posix("r", 80, 20) == "ok"
        assert b.posix("w", 40, 20) == "ok" and b.posix("w", 39, 1) == "EAGAIN" and b.posix("w", 60, 1) == "EAGAIN"
        assert b.posix("r", 80, 20) == "ok" and b.posix("w", 80, 20) == "EAGAIN"
        assert b.posix("w", 100, 0) == "ok" and a.posix("r", 1 << 40, 1) == "EAGAIN"
        assert a.posix("w", 80, 20) == "EAGAIN"  # b reads it, too


def who_is_in_the_way_is_told(mounts):
    with processes(mounts, 0, 1, 0) as (a, b, a2):
        assert a.posix("w", 10, 20) == "ok"
        assert a2.call("record", fcntl.F_GETLK, "f", "r", 0, 0)[1] == [fcntl.F_WRLCK, 10, 20, a.process.pid]
        kind, start, length, pid = b.call("record", fcntl.F_GETLK, "f", "r", 0, 0)[1]
        assert (kind, start, length) == (fcntl.F_WRLCK, 10, 20) and pid == 0, pid  # no process of this host
        assert b.call("record", fcntl.F_GETLK, "f", "w", 30, 5)[1][0] == fcntl.F_UNLCK
        assert b.call("record", OFD_GETLK, "f", "w", 0, 0)[1] == [fcntl.F_WRLCK, 10, 20, -1]


def seconds_for_a_turn(process, wait, free):
    """Of a lock that nobody else wants: how fast this machine is now."""
    begin = time.monotonic()
    assert process.call(*wait)[0] == process.call(*free)[0] == "ok"
    return time.monotonic() - begin


def waits_end_when_the_lock_is_free(mounts):
    """Nobody can see that a process is queued, so whichever gets the lock first is right; the other gets it next."""
    times = []
    for wait, free in ((("flock", "f", EX), ("flock", "f", UN)),
                       (("record", fcntl.F_SETLKW, "f", "w", 0, 9), ("record", fcntl.F_SETLK, "f", "u", 0, 0)),
                       (("record", OFD_SETLKW, "f", "w", 0, 9), ("record", OFD_SETLK, "f", "u", 0, 0))):
        with processes(mounts, 0, 1, 0) as (a, b, a2):
            slowest = max(seconds_for_a_turn(a, wait, free) for _ in range(5))
            assert a.call(*wait)[0] == "ok"
            b.ask(*wait)
            assert b.waits()
            a2.ask(*wait)
            assert a2.waits()
            begin = time.monotonic()
            assert a.call(*free)[0] == "ok"
            first, second = first_to_answer(b, a2)
            times.append(time.monotonic() - begin)
            assert times[-1] < min(30, max(1, 20 * slowest)), (times, slowest)
            assert first.answer()[0] == "ok"
            assert second.waits()
            first.end()  # its end frees it as well
            assert second.answer()[0] == "ok"
    return f"handed over in {max(times) * 1000:.1f} ms at most"


def closing_frees(mounts):
    with processes(mounts, 0, 1) as (a, b):
        assert a.call("open", "g", a.path)[0] == "ok"
        # POSIX: any descriptor of the file frees the process's locks, at once.
        assert a.posix("w") == "ok" and b.posix("w") == "EAGAIN"
        assert a.call("close", "g")[0] == "ok" and b.posix("w") == "ok" and b.posix("u") == "ok"
        # The others belong to the open file.
        assert a.call("open", "g", a.path)[0] == "ok"
        assert a.flock(EX) == "ok" and a.ofd("w", 0, 5) == "ok" and a.ofd("w", 5, 5, "g") == "ok"
        assert a.call("close", "g")[0] == "ok"
        eventually(lambda: b.ofd("w", 5, 5))
        assert b.ofd("w", 0, 5) == "EAGAIN" and b.flock(EX) == "EAGAIN"
        assert a.call("close", "f")[0] == "ok"
        eventually(lambda: b.flock(EX))
        eventually(lambda: b.ofd("w", 0, 5))


def a_flock_is_free_for_who_comes_after_its_close(mounts):
    """RELEASE is not waited for by close(2); whoever asks on the same host afterwards still finds the lock free."""
    with processes(mounts, 0, 1) as (a, _):
        for _ in range(200):
            assert a.call("open", "g", a.path)[0] == "ok"
            answer = a.flock(EX, "g")
            assert answer == "ok", answer
            assert a.call("close", "g")[0] == "ok"


def a_try_is_refused_while_copies_are_closed(mounts):
    """Each child of the holder that ends closes its copy of the descriptor. Whoever tries meanwhile is refused."""
    path = os.path.join(mounts[0], "copied-" + os.urandom(4).hex())
    with open(path, "wb") as held:
        fcntl.flock(held, EX)
        with subprocess.Popen(["sh", "-c", "while :; do (:); done"], stdout=held) as holder:
            try:
                assert subprocess.run(["flock", "-n", path, "true"], timeout=60, check=False).returncode == 1
            finally:
                holder.kill()
    os.unlink(path)


def a_process_that_dies_frees(mounts):
    with processes(mounts, 0, 1) as (a, b):
        assert a.flock(EX) == "ok" and a.posix("w", 0, 5) == "ok" and a.ofd("w", 5, 5) == "ok"
        a.kill()
        eventually(lambda: b.flock(EX))
        eventually(lambda: b.posix("w", 0, 10))


def waits_are_interrupted(mounts):
    for wait in (("flock", "f", EX), ("record", fcntl.F_SETLKW, "f", "w", 0, 0),
                 ("record", OFD_SETLKW, "f", "w", 0, 0)):
        with processes(mounts, 0, 1, 1) as (a, b, c):
            assert a.call(*wait)[0] == "ok"
            begin = time.monotonic()
            assert b.call("with_alarm", 0.3, *wait)[0] == "alarm"
            assert 0.25 <= time.monotonic() - begin < 20
            c.ask(*wait)
            assert c.waits()
            assert c.kill() < 20  # of a process in the wait
            a.end()
            b.ask(*wait)  # nobody of those is in the way
            assert b.answer()[0] == "ok"


def deadlocks_are_refused(mounts):
    """On one host, over two, and over two files: one of those that would wait for each other, and only that one."""
    for where in ((0, 0), (0, 1)):
        for files in (("f", "f"), ("f", "g")):
            with processes(mounts, *where) as (a, b):
                for process in (a, b):
                    assert process.call("open", "g", process.path + "-g")[0] == "ok"
                assert a.posix("w", 0, 1, files[0]) == "ok" and b.posix("w", 1, 1, files[1]) == "ok"
                a.ask("record", fcntl.F_SETLKW, files[1], "w", 1, 1)
                assert a.waits()
                b.ask("record", fcntl.F_SETLKW, files[0], "w", 0, 1)
                refused, other = first_to_answer(a, b)
                assert refused.answer()[0] == errno.errorcode[errno.EDEADLK] and other.waits()
                assert refused.posix("u", name="f") == refused.posix("u", name="g") == "ok"
                assert other.answer()[0] == "ok"
                os.unlink(a.path + "-g")


def who_waits_for_no_circle_is_not_refused(mounts):
    """A chain: c waits for b, which waits for a, which waits for nobody."""
    with processes(mounts, 0, 1, 0) as (a, b, c):
        assert a.posix("w", 0, 1) == "ok" and b.posix("w", 1, 1) == "ok" and c.posix("w", 2, 1) == "ok"
        b.ask("record", fcntl.F_SETLKW, "f", "w", 0, 1)
        assert b.waits()
        c.ask("record", fcntl.F_SETLKW, "f", "w", 1, 1)
        assert c.waits() and b.waits()
        assert a.posix("u") == "ok" and b.answer()[0] == "ok" and c.waits()
        assert b.posix("u") == "ok" and c.answer()[0] == "ok"


def one_at_a_time(mounts):
    rounds = 50
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as counter:
        counter.write("0")
        counter.flush()
        with processes(mounts, 0, 1, 0, 1) as workers:
            for process in workers:
                process.ask("turns", process.path, counter.name, rounds)
            assert all(process.answer(300)[0] == "ok" for process in workers)
        with open(counter.name, encoding="ascii") as counted:
            assert int(counted.read()) == rounds * 4


@contextlib.contextmanager
def opened(mounts, name, flags):
    """One descriptor of the same file on each mount."""
    files = [os.open(f"{mount}/{name}", flags | os.O_CREAT, 0o644) for mount in mounts]
    try:
        yield files
    finally:
        for file in files:
            os.close(file)
        os.unlink(f"{mounts[0]}/{name}")


def who_has_the_lock_reads_what_others_synced(mounts):
    """Through descriptors that stay open; nobody opens the file anew."""
    for lock in (fcntl.flock, fcntl.lockf):
        with opened(mounts, "counter", os.O_RDWR) as files:
            os.write(files[0], b"0000")
            os.fsync(files[0])
            for turn in range(12):
                file = files[turn % len(files)]
                lock(file, fcntl.LOCK_EX)
                assert int(os.pread(file, 4, 0)) == turn, (lock, turn)
                os.pwrite(file, b"%04d" % (turn + 1), 0)
                os.fsync(file)
                lock(file, fcntl.LOCK_UN)


def lines_that_hosts_append_in_turns(mounts):
    with opened(mounts, "log", os.O_RDWR | os.O_APPEND) as files:
        for turn in range(12):
            os.write(files[turn % len(files)], b"line %02d\n" % turn)
            os.fsync(files[turn % len(files)])
        with open(f"{mounts[-1]}/log", "rb") as log:
            assert log.read() == b"".join(b"line %02d\n" % turn for turn in range(12))


def appends_after_another_host_cut_the_file(mounts):
    """The kernel of the host that appends does not know; one append takes more than one request."""
    with opened(mounts, "rotated", os.O_RDWR | os.O_APPEND) as files:
        os.write(files[1], b"x" * 5000)
        os.fsync(files[1])
        os.truncate(f"{mounts[0]}/rotated", 2)
        large = os.urandom(5 << 20)
        for piece in (b"one\n", b"two\n", large, b"three\n"):
            assert os.write(files[1], piece) == len(piece)
        os.fsync(files[1])
        with open(f"{mounts[0]}/rotated", "rb") as log:
            assert log.read() == b"xxone\ntwo\n" + large + b"three\n"


def a_reader_follows_a_file_that_grows_and_shrinks(mounts):
    with opened(mounts, "grows", os.O_RDWR) as (writer, reader):
        os.write(writer, b"one\n")
        os.fsync(writer)
        assert os.fstat(reader).st_size == 4 and os.read(reader, 100) == b"one\n"
        os.write(writer, b"two\n")
        os.fsync(writer)
        assert os.fstat(reader).st_size == 8 and os.read(reader, 100) == b"two\n"
        os.truncate(f"{mounts[0]}/grows", 2)
        assert os.fstat(reader).st_size == 2 and os.pread(reader, 100, 0) == b"on"
        os.pwrite(writer, b"ON", 0)
        os.fsync(writer)
        end = time.monotonic() + 60  # without a look at the size: before long
        while os.pread(reader, 2, 0) != b"ON":
            assert time.monotonic() < end
            time.sleep(0.05)


ON_MOUNTS = [locks_exclude_each_other, ranges_are_split_and_joined, who_is_in_the_way_is_told,
             waits_end_when_the_lock_is_free, closing_frees, a_flock_is_free_for_who_comes_after_its_close,
             a_try_is_refused_while_copies_are_closed,
             a_process_that_dies_frees, waits_are_interrupted, deadlocks_are_refused,
             who_waits_for_no_circle_is_not_refused, one_at_a_time,
             who_has_the_lock_reads_what_others_synced, lines_that_hosts_append_in_turns,
             appends_after_another_host_cut_the_file, a_reader_follows_a_file_that_grows_and_shrinks]


# --- cases with hosts that die ----------------------------------------------------------------------------------------

def on_cluster(case):
    def run_it(cluster):
        return case([host.mount_point for host in cluster.hosts[:2]])
    run_it.__name__ = case.__name__
    return run_it


def a_host_that_dies_frees(cluster):
    """Its locks and its places in the queue go with its lease, not before and not much later."""
    mounts = [host.mount_point for host in cluster.hosts]
    with processes(mounts, 0, 1, 2) as (a, b, c):
        assert c.flock(EX) == "ok" and c.posix("w", 0, 9) == "ok"
        a.ask("flock", "f", EX)
        assert a.waits()
        begin = time.monotonic()
        cluster.hosts[2].kill()
        assert a.answer()[0] == "ok"
        waited = time.monotonic() - begin
        assert waited < LEASE_SECONDS + 15, waited
        eventually(lambda: b.posix("w", 0, 9))
        assert b.flock(SH) == "EAGAIN"
    cluster.hosts[2].mount()
    with processes(mounts, 2, 0) as (c, a):
        assert c.flock(EX) == "ok" and a.flock(EX) == "EAGAIN"
    return f"free {waited:.1f} s after the kill"


def an_open_file_of_a_lost_session_locks_nothing(cluster):
    """Its process may believe that it still has what it locked before: it is told, whatever it asks for."""
    victim = cluster.hosts[2]
    with opened([cluster.hosts[0].mount_point], "cut", os.O_RDWR) as (other,), \
            processes([host.mount_point for host in cluster.hosts], 0, 2, 2, 2) as (a, flocked, ranged, idle):
        cut = os.open(f"{victim.mount_point}/cut", os.O_RDWR)
        locking, reading = (os.open(f"{victim.mount_point}/cut", os.O_RDONLY) for _ in range(2))
        fcntl.flock(locking, SH)
        assert flocked.flock(EX) == "ok" and ranged.ofd("w", 0, 9) == "ok"
        victim.pause()
        try:
            eventually(lambda: a.flock(EX), seconds=LEASE_SECONDS + 10)
            eventually(lambda: a.posix("w", 0, 9), seconds=LEASE_SECONDS + 10)
            assert a.flock(UN) == "ok" and a.posix("u") == "ok"
            os.write(other, b"of the next holder")
            os.fsync(other)
        finally:
            victim.resume()
        cluster.wait_for_states({victim.name: "up"})

        lost = ("ESTALE", "EIO")
        # It may not know yet; from the moment on at which it knows, for good.
        for _ in range(2):
            assert flocked.flock(EX) in lost
            assert ranged.ofd("w", 20, 9) in lost
            assert idle.posix("r", 40, 9) in lost
        for call in (lambda: os.ftruncate(cut, 0), lambda: os.ftruncate(cut, 0), lambda: os.close(cut)):
            expect_errno((errno.EIO, errno.ESTALE), call)
        assert os.pread(other, 100, 0) == b"of the next holder"
        # Whoever reads under a lock is told; whoever only reads has what was committed.
        expect_errno((errno.EIO,), lambda: os.pread(locking, 100, 0))
        assert os.pread(reading, 100, 0) == b"of the next holder"
        os.close(locking)
        os.close(reading)
        assert flocked.flock(UN) == "ok" and ranged.ofd("u", 0, 9) == "ok"
        for process in (flocked, ranged, idle):
            process.call("close", "f")
            assert process.call("open", "f", process.path)[0] == "ok"
        assert flocked.flock(EX) == "ok" and ranged.ofd("w", 20, 9) == "ok"
        assert a.flock(EX) == "EAGAIN" and a.posix("w") == "EAGAIN"


def main():
    if "--mounts" in sys.argv:
        at = sys.argv.index("--mounts")
        mounts = sys.argv[at + 1:at + 3]
        del sys.argv[at:at + 3]
        return run_cases(ON_MOUNTS, mounts)
    from cluster import Cluster  # pylint: disable=import-outside-toplevel
    with Scratch() as scratch, Cluster(scratch, hosts=3, options={"lease": f"{LEASE_SECONDS}s"}) as cluster:
        cluster.start()
        return run_cases([*map(on_cluster, ON_MOUNTS), a_host_that_dies_frees,
                          an_open_file_of_a_lost_session_locks_nothing], cluster)


if __name__ == "__main__":
    sys.exit(main())
