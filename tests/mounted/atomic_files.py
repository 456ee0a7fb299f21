#!/usr/bin/env python3
"""Files that appear whole, on one host: who sees what and when, which closes give the name, what kills leave, and readers
that never see a part. Options: --rewrites N (150): of that last case. Run as root."""

import contextlib
import ctypes
import errno
import os
import random
import resource
import signal
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from atomic_run import FILES, PATTERNS, PYTHON, STRANGER, Run, ends_with, error_of, others, rewrite, start, write
from cairnfs_mount import Mount, Scratch, run_cases, seed_from_arguments
from cluster import wait_until
from silent_file import SilentFile
from whole_files import rewrites_with_kills

rewrites = 150
# A process of which a look at an epoll descriptor never ends, and that closes twelve files of a directory at once.
CLOSES_UNSEEN = """
import os, select, sys, threading
folder = sys.stdin.readline().rstrip()
silent = os.open(sys.argv[1], os.O_RDONLY)
epoll = select.epoll()
threading.Thread(target=epoll.register, args=(silent, select.EPOLLIN), daemon=True).start()
sys.stdin.readline()
new = [os.open(f"{folder}/{n}.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) for n in range(12)]
for each in new: os.write(each, b"unseen")
closing = [threading.Thread(target=os.close, args=(each,)) for each in new]
for each in closing: each.start()
for each in closing: each.join()
print("closed", flush=True)
sys.stdin.readline()
os._exit(0)
"""


def others_see_the_old_file_or_none():
    with Run() as run:
        os.makedirs(run.path + "/step-1/shards")  # inherited
        for path in run.model, run.path + "/step-1/shards/rank.index":
            folder, name = os.path.split(path)
            new = write(path, "one")
            assert others(path) is None and name not in os.listdir(folder)
            assert subprocess.run(["test", "-e", path], check=False).returncode == 1
            assert os.stat(path).st_ino == os.fstat(new).st_ino and os.fstat(new).st_nlink == 0
            with open(path, encoding="ascii") as own:
                assert own.read() == "one"
            os.write(new, b" and more")
            os.fsync(new)
            assert others(path) is None
            os.close(new)
            assert others(path) == "one and more" and name in os.listdir(folder)
            first = os.stat(path)
            assert first.st_nlink == 1
            with open(path, "rb") as held:
                again = write(path, "two")
                assert os.stat(path).st_ino == os.fstat(again).st_ino != first.st_ino
                assert others(path) == "one and more"
                os.close(again)
                assert others(path) == "two" and os.stat(path).st_ino != first.st_ino
                assert held.read() == b"one and more"  # who has the old file open keeps it
        # What comes under the name in other ways is there at once.
        rewrite(run.path + "/tmp", "renamed")
        os.rename(run.path + "/tmp", run.model)
        assert others(run.model) == "renamed"
        again = write(run.model, "after")
        assert others(run.model) == "renamed"
        os.close(again)
        assert others(run.model) == "after"
        # Another name, and the same one where no directory above has the attribute.
        for path in run.path + "/log.txt", run.mount.path + "/model.pt":
            plain = write(path, "seen")
            assert others(path) == "seen"
            os.close(plain)
        os.removexattr(run.path, FILES)
        plain = write(run.model, "in place")
        assert others(run.model) == "in place"
        os.close(plain)


def only_what_empties_or_makes_a_file_is_hidden():
    with Run() as run:
        lock = run.path + "/lock.pt"
        held = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        assert others(lock) == ""
        os.close(held)
        # Nobody writes it, so no close would give it a name.
        held = os.open(run.path + "/read.pt", os.O_RDONLY | os.O_CREAT, 0o644)
        assert others(run.path + "/read.pt") == ""
        os.close(held)
        os.mknod(run.path + "/node.pt", 0o644)
        assert others(run.path + "/node.pt") == ""
        rewrite(run.model, "0123456789")
        for flags in os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND:
            place = os.open(run.model, flags)
            os.write(place, b"x")
            assert "x" in others(run.model)
            os.close(place)
        os.truncate(run.model, 3)
        assert others(run.model) == "x12"
        # An open that looks no name up is of the file itself.
        for flags in os.O_RDONLY, os.O_PATH:
            by = os.open(run.model, flags)
            place = os.open(f"/proc/self/fd/{by}", os.O_WRONLY | os.O_TRUNC)
            os.write(place, b"place")
            assert others(run.model) == "place"
            os.close(place)
            os.close(by)
        folder = os.open(run.path, os.O_RDONLY)
        new = os.open("model.pt", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
        assert others(run.model) == "place"
        os.close(new)
        assert others(run.model) == ""
        os.close(folder)
        # By a link, and read-only: the name that is reached counts.
        os.symlink("model.pt", run.path + "/link")
        new = write(run.path + "/link", "by link")
        assert others(run.model) == ""
        os.close(new)
        assert others(run.model) == "by link" and os.path.islink(run.path + "/link")
        new = os.open(run.model, os.O_RDONLY | os.O_TRUNC)
        assert others(run.model) == "by link"
        os.close(new)
        assert others(run.model) == ""


def the_last_close_of_its_process_gives_the_name():
    with Run() as run:
        rewrite(run.model, "old")
        new = write(run.model, "dup")
        copy = os.dup(new)
        twice = os.open(run.model, os.O_WRONLY)
        for descriptor in new, copy:
            os.close(descriptor)
            assert others(run.model) == "old"
        reading = os.open(run.model, os.O_RDONLY)
        os.close(twice)
        assert others(run.model) == "dup"
        os.close(reading)
        new = write(run.model, "fork")
        for _ in range(2):
            if (child := os.fork()) == 0:
                os.close(new)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0 and others(run.model) == "dup"
        os.set_inheritable(new, True)
        subprocess.run(["true"], close_fds=False, check=True)
        assert others(run.model) == "dup"
        os.close(new)
        assert others(run.model) == "fork"
        for how, status in ("exit", 0), ("exception", 1):
            writer = start(run.model, how, how, stderr=subprocess.DEVNULL)
            ends_with(writer, status)
            assert others(run.model) == how
        subprocess.run(["sh", "-c", 'exec 3> "$1"; echo shell >&3; cat "$1"', "sh", run.model], check=True,
                       stdout=subprocess.DEVNULL)
        assert others(run.model) == "shell\n"
        subprocess.run(["sh", "-c", 'echo redirected > "$1"', "sh", run.model], check=True)
        assert others(run.model) == "redirected\n"


def an_exec_closes_and_ends():
    """It waits for the answer to each close, and holds what a look at its /proc/PID/stat takes."""
    words = "import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), b'new'); " \
            "os.execv('/bin/true', ['true'])"
    with Run() as run:
        for _ in range(3):
            with subprocess.Popen([PYTHON, "-c", words, run.model]) as process:
                try:
                    assert process.wait(60) == 0
                except subprocess.TimeoutExpired:
                    run.mount.kill()  # else nobody could end it
                    raise
            assert others(run.model) == "new"
            os.unlink(run.model)


def one_with_very_many_descriptors_closes_too():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, max(20_000, limit[1])))
    many = []
    try:
        with Run() as run:
            rewrite(run.model, "old")
            many += [os.open("/dev/null", os.O_RDONLY) for _ in range(16_500)]
            new = write(run.model, "new")
            assert others(run.model) == "old"
            os.close(new)
            wait_until(lambda: others(run.model) == "new")
            while many:
                os.close(many.pop())
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def one_that_lets_nobody_see_its_descriptors_holds_up_itself():
    """As long as his other filesystem does not answer; it keeps no mount from being stopped either."""
    by = dict(user=STRANGER, group=STRANGER, extra_groups=[])
    with Scratch() as scratch:
        command = [PYTHON, "-c", CLOSES_UNSEEN, scratch.path + "/silent"]
        # He ends when the silent file is gone, and not before.
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **by) as stranger, \
                SilentFile(scratch.path + "/silent") as silent, Run() as run:
            try:
                his = run.path + "/his"
                os.mkdir(his)
                os.chown(his, STRANGER, STRANGER)
                print(his, file=stranger.stdin, flush=True)
                silent.await_poll()
                print(file=stranger.stdin, flush=True)
                wait_until(lambda: looks(run.mount) >= 4)
                for number in range(3):
                    rewrite(run.model, f"{number}")
                    assert others(run.model) == f"{number}"
                # He is answered in the end, and has what he wrote: all copies of his descriptors are closed.
                assert stranger.stdout.readline() == "closed\n"
                wait_until(lambda: [others(f"{his}/{number}.pt") for number in range(12)] == ["unseen"] * 12)
                wait_until(lambda: looks(run.mount) == 4)
            finally:
                stranger.kill()


def looks(mount):
    """Threads of the daemon that look at descriptors at the moment."""
    names = []
    for thread in os.listdir(f"/proc/{mount.pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{mount.pid}/task/{thread}/comm", encoding="ascii") as name:
            names.append(name.read())
    return names.count("cairn-looks\n")


def a_killed_writer_leaves_the_old_file():
    with Run() as run:
        for number in signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV:
            for old in None, "old":
                if old:
                    rewrite(run.model, old)
                writer = start(run.model, "half", "wait")
                assert others(run.model) == old
                writer.send_signal(number)
                ends_with(writer, -number)
                assert others(run.model) == old
            os.unlink(run.model)
        rewrite(run.model, "old")
        writer = start(run.model, "half", "abort", stderr=subprocess.DEVNULL)
        ends_with(writer, -signal.SIGABRT)
        assert others(run.model) == "old"
        # Its child has the file open still, and closes it by the end of its own.
        writer = start(run.model, "half", "child")
        child = int(writer.stdout.readline())
        writer.kill()
        ends_with(writer, -signal.SIGKILL)
        os.kill(child, signal.SIGTERM)
        wait_until(lambda: "its writer was killed" in run.mount.log() and not os.path.exists(f"/proc/{child}"))
        assert others(run.model) == "old"
        rewrite(run.model, "and again")
        assert others(run.model) == "and again"


def a_killed_daemon_leaves_the_old_file():
    with Run() as run:
        rewrite(run.model, "old")
        os.sync()
        os.close(os.open(run.path, os.O_RDONLY))
        with open(run.model, "rb") as file:
            os.fsync(file.fileno())
        writers = [start(path, "half", "wait") for path in (run.model, run.path + "/new.pt")]
        run.mount.kill()
        for writer in writers:
            writer.kill()
            ends_with(writer, -signal.SIGKILL)
        run.mount.mount()
        assert others(run.model) == "old" and os.listdir(run.path) == ["model.pt"]
        assert os.getxattr(run.path, FILES) == PATTERNS
        again = write(run.model, "new")
        assert others(run.model) == "old"
        os.close(again)
        assert others(run.model) == "new"


def the_daemon_dies_around_the_name():
    with Run() as run:
        for number, failpoint in enumerate(("fs.atomic_before_name", "fs.atomic_after_name")):
            run.mount.umount()
            rewritten = f"of {failpoint}"
            run.mount.mount()
            rewrite(run.model, "old")
            run.mount.umount()
            os.environ["CAIRNFS_FAILPOINTS"] = failpoint + "=kill"
            try:
                run.mount.mount()
            finally:
                del os.environ["CAIRNFS_FAILPOINTS"]
            new = write(run.model, rewritten)
            assert error_of(os.close, new) != 0
            run.mount.kill()
            run.mount.mount()
            # With its name or not, which is durable a little later; never in between.
            assert others(run.model) in ("old", rewritten)[:number + 1], failpoint
            assert os.listdir(run.path) == ["model.pt"]


def each_process_has_its_own_and_the_last_wins():
    with Run() as run:
        rewrite(run.model, "old")
        for order in (0, 1), (1, 0):
            writers = [start(run.model, f"of {number}", "wait") for number in range(2)]
            for number in order:
                ends_with(writers[number], 0)
                assert others(run.model) == f"of {number}"
        # Also where it is new, and where the name is gone or another's by then.
        os.unlink(run.model)
        writers = [start(run.model, f"new {number}", "wait") for number in range(2)]
        ends_with(writers[1], 0)
        assert others(run.model) == "new 1"
        os.unlink(run.model)
        os.mkdir(run.model)
        ends_with(writers[0], errno.EISDIR)
        assert os.listdir(run.model) == []
        os.rmdir(run.model)
        # Threads of a process write to one file, as ever.
        first, second = write(run.model, "one"), os.open(run.model, os.O_WRONLY)
        assert os.fstat(first).st_ino == os.fstat(second).st_ino
        os.close(first)
        assert others(run.model) is None
        os.close(second)
        assert others(run.model) == "one"


def the_writer_finds_its_own_file_by_the_name():
    with Run() as run:
        rewrite(run.model, "old")
        os.setxattr(run.model, "user.of_old", b"kept")
        new = write(run.model, "new")
        os.chmod(run.model, 0o600)
        os.setxattr(run.model, "user.mine", b"1")
        os.truncate(run.model, 2)
        assert others(run.model) == "old" and os.getxattr(run.model, "user.of_old") == b"kept"
        listed = subprocess.run(["getfattr", "--only-values", "-n", "user.mine", run.model], capture_output=True,
                                check=False)
        assert listed.returncode != 0
        assert error_of(os.link, run.model, run.path + "/second") == errno.ENOENT
        os.close(new)
        assert others(run.model) == "ne" and stat.S_IMODE(os.stat(run.model).st_mode) == 0o600
        assert os.getxattr(run.model, "user.mine") == b"1" and os.getxattr(run.model, "user.of_old") == b"kept"
        # unlink takes its own file away, and not the old one.
        new = write(run.model, "unlinked")
        os.unlink(run.model)
        assert others(run.model) == "ne" and os.stat(run.model).st_size == 2
        os.close(new)
        assert others(run.model) == "ne"
        # A rename of it gives it the new name at once, whatever that is.
        new = write(run.path + "/other.pt", "renamed")
        os.rename(run.path + "/other.pt", run.model)
        assert others(run.model) == "renamed" and others(run.path + "/other.pt") is None
        os.write(new, b" and on")
        assert others(run.model) == "renamed and on"
        os.close(new)
        # One that is renamed over it takes its place, as over any open file.
        new = write(run.model, "lost")
        rewrite(run.path + "/tmp", "over")
        os.rename(run.path + "/tmp", run.model)
        assert others(run.model) == "over"
        os.close(new)
        assert others(run.model) == "over"


def what_others_move_to_the_name_is_replaced_by_the_close():
    """The kernel moves what it knows of the old name, which it need not ask for again."""
    def exchange(temporary, path):
        ctypes.CDLL(None, use_errno=True).renameat2(-100, temporary.encode(), -100, path.encode(), 2)

    with Run() as run:
        for number, move in enumerate((os.rename, exchange, lambda temporary, path: exchange(path, temporary))):
            rewrite(run.model, "old")
            new = write(run.model, f"new {number}")
            temporary = (run.path, run.mount.path)[number % 2] + "/temporary"
            rewrite(temporary, f"moved {number}")
            child = os.fork()
            if child == 0:
                os.stat(temporary)
                move(temporary, run.model)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert others(run.model) == f"moved {number}"
            assert os.stat(run.model).st_ino == os.fstat(new).st_ino
            os.close(new)
            assert others(run.model) == f"new {number}"


def no_open_fails_as_others_remove_the_name():
    opens = """
import os, sys
for _ in range(int(sys.argv[2])):
    with open(sys.argv[1], "w") as file: file.write("x" * 1000)
"""
    removals = """
import contextlib, os, sys, time
while True:
    with contextlib.suppress(FileNotFoundError): os.unlink(sys.argv[1])
    time.sleep(0.003)
"""
    with Run() as run:
        for name in ("model.pt", "plain"):
            remover = subprocess.Popen([PYTHON, "-c", removals, f"{run.path}/{name}"])
            writers = [subprocess.Popen([PYTHON, "-c", opens, f"{run.path}/{name}", "1500"]) for _ in range(2)]
            ended = [writer.wait(120) for writer in writers]
            remover.kill()
            remover.wait()
            assert ended == [0, 0], name


def readers_never_see_a_part():
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/run")
        os.setxattr(mount.path + "/run", FILES, b"model.pt")
        descriptor = os.open(mount.path + "/run", os.O_RDONLY)
        os.fsync(descriptor)  # a kill may come before anything else makes it durable
        os.close(descriptor)

        def kill(_):
            mount.kill()
            mount.mount()

        rng = random.Random(seed_from_arguments())
        note = rewrites_with_kills([mount.path + "/run/model.pt"] * 3, rng, rewrites, kill)
        mount.check()
        mount.umount()
        return note


CASES = (others_see_the_old_file_or_none, only_what_empties_or_makes_a_file_is_hidden,
         the_last_close_of_its_process_gives_the_name, an_exec_closes_and_ends, one_with_very_many_descriptors_closes_too,
         one_that_lets_nobody_see_its_descriptors_holds_up_itself,
         a_killed_writer_leaves_the_old_file, a_killed_daemon_leaves_the_old_file, the_daemon_dies_around_the_name,
         each_process_has_its_own_and_the_last_wins, the_writer_finds_its_own_file_by_the_name,
         what_others_move_to_the_name_is_replaced_by_the_close, no_open_fails_as_others_remove_the_name,
         readers_never_see_a_part)


if __name__ == "__main__":
    if "--rewrites" in sys.argv:
        place = sys.argv.index("--rewrites")
        rewrites = int(sys.argv[place + 1])
        del sys.argv[place:place + 2]
    sys.exit(run_cases(CASES))
