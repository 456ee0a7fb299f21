#!/usr/bin/env python3
"""Files that appear whole, on one host, and what there is beside them: rights and attributes, seals, what drains and stops
tell, hard links, locks, the directory, the trash. Run as root."""

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from atomic_run import FILES, OWNER, PATTERNS, PYTHON, Run, STRANGER, ends_with, error_of, others, rewrite, start, write
from cairnfs_mount import SMALL, Mount, Scratch, program, run_cases
from cluster import wait_until
from runs import call


def attributes_and_rights_are_kept():
    with Run() as run:
        rewrite(run.model, "old")
        os.setxattr(run.model, "user.note", b"x" * 1000)
        os.setxattr(run.model, "trusted.note", b"y")
        os.chown(run.model, OWNER, OWNER)
        os.chmod(run.model, 0o4766)
        first = os.stat(run.model)
        rewrite(run.model, "root's")
        now = os.stat(run.model)
        assert (now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (OWNER, OWNER, 0o766), now
        assert now.st_ino != first.st_ino
        assert os.getxattr(run.model, "user.note") == b"x" * 1000 and os.getxattr(run.model, "trusted.note") == b"y"
        # Who may write the file and not the directory: only in place of that file.
        by = dict(user=STRANGER, group=STRANGER, extra_groups=[])
        ends_with(start(run.model, "stranger's", "wait", **by), 0)
        now = os.stat(run.model)
        assert others(run.model) == "stranger's" and now.st_uid == OWNER and stat.S_IMODE(now.st_mode) == 0o766
        for change in (lambda: rewrite(run.model, "newer"), lambda: os.unlink(run.model)):
            writer = start(run.model, "late", "wait", **by)
            change()
            expected = others(run.model)
            ends_with(writer, errno.ESTALE)
            assert others(run.model) == expected
        done = subprocess.run(["sh", "-c", 'echo > "$1"', "sh", run.model], check=False, stderr=subprocess.DEVNULL, **by)
        assert done.returncode != 0 and others(run.model) is None
        # In a directory for all, with the sticky bit, nobody takes another's name.
        os.chmod(run.path, 0o1777)
        writer = start(run.model, "late", "wait", **by)
        rewrite(run.model, "root's")
        ends_with(writer, errno.ESTALE)
        assert others(run.model) == "root's"
        os.chmod(run.path, 0o777)
        os.unlink(run.model)
        writer = start(run.model, "late", "wait", **by)
        rewrite(run.model, "root's")
        ends_with(writer, 0)
        assert others(run.model) == "late" and os.stat(run.model).st_uid == STRANGER
        assert run.mount.log().count("keeps what it had") >= 3


def an_open_that_cannot_be_is_told_why():
    with Run() as run:
        rewrite(run.model, "old")
        call("seal", run.path)
        for flags in 0, os.O_CREAT:
            for _ in range(2):
                assert error_of(os.open, run.model, os.O_WRONLY | os.O_TRUNC | flags) == errno.EROFS
                os.stat(run.model)  # the kernel knows the name
        said = subprocess.run(["sh", "-c", 'echo new > "$1"', "sh", run.model], check=False, capture_output=True)
        assert said.returncode != 0 and b"Read-only" in said.stderr, said
        assert others(run.model) == "old"
        call("unseal", run.path)
        rewrite(run.model, "new")
        assert others(run.model) == "new"


def what_is_not_closed_is_named_by_its_place():
    """As a file that is written, and among what is not durable when a drain or a stop is over."""
    lost = 9
    files = [{"path": "run/model.pt", "bytes": 5}, {"path": "run/new.pt", "bytes": 4}]

    def begin(run):
        return write(run.model, "newer"), write(run.path + "/new.pt", "half")

    with Run() as run:
        rewrite(run.model, "old")
        drain = [program("cairnfs"), "drain", run.mount.path, "--json", "--deadline"]
        new = begin(run)
        said = os.getxattr(run.path, "user.cairnfs.writers").decode()
        assert all(f"'{file['path']}' is open for writing" in said for file in files), said
        told = subprocess.run([*drain, "1s"], capture_output=True, check=False)
        unsaved = json.loads(told.stdout)["unsaved"]
        assert told.returncode == lost and unsaved["files"] == files and "not closed yet" in unsaved["reason"], told
        told = subprocess.run([*run.mount.umount_command(), "--deadline", "10min", "--json"], capture_output=True,
                              check=False)
        run.mount.pid = None
        unsaved = json.loads(told.stdout)["unsaved"]
        assert told.returncode == lost and unsaved["files"] == files and "open still" in unsaved["reason"], told
        for descriptor in new:
            assert error_of(os.close, descriptor) == errno.ENOTCONN
        assert "not durable: 5 B of 'run/model.pt'" in run.mount.log(), run.mount.log()
        run.mount.mount()
        assert others(run.model) == "old" and os.listdir(run.path) == ["model.pt"]
        new = begin(run)
        for descriptor in new:
            os.close(descriptor)
        told = json.loads(call(*drain[1:], "10min").stdout)
        assert told["durable"] and others(run.model) == "newer", told


def hard_links_and_locks():
    with Run() as run:
        rewrite(run.model, "old")
        second = run.path + "/second.pt"
        os.link(run.model, second)
        new = write(run.model, "new")
        assert others(run.model) == others(second) == "old"
        os.close(new)
        assert others(run.model) == "new" and others(second) == "old" and os.stat(second).st_nlink == 1
        # A name that the kernel knows from before the rule, where another one was looked up since.
        os.removexattr(run.path, FILES)
        backup = run.mount.path + "/backup"
        rewrite(run.model, "known")
        os.stat(run.model)
        os.link(run.model, backup)
        os.setxattr(run.path, FILES, PATTERNS)
        new = write(run.model, "new one")
        assert others(run.model) == others(backup) == "known"
        os.close(new)
        assert others(run.model) == "new one" and others(backup) == "known"
        # A lock is one of the file, and ends up under no name with it.
        with open(run.model, "r+b") as held:
            fcntl.lockf(held, fcntl.LOCK_EX)
            new = write(run.model, "locked")
            fcntl.lockf(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(new)
            assert others(run.model) == "locked"
            take = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            subprocess.run([PYTHON, "-c", take, run.model], check=True)


def the_directory_is_renamed_or_removed_meanwhile():
    with Run() as run:
        step = run.path + "/step-1"
        os.mkdir(step + ".tmp")
        rewrite(step + ".tmp/model.pt", "old")
        new = write(step + ".tmp/model.pt", "new")
        os.rename(step + ".tmp", step)
        assert others(step + "/model.pt") == "old"
        os.close(new)
        assert others(step + "/model.pt") == "new"
        # Where its rule does not count any more it is as it was begun, and the next one is not.
        new = write(step + "/model.pt", "newer")
        os.rename(step, run.mount.path + "/step-1")
        step = run.mount.path + "/step-1"
        assert others(step + "/model.pt") == "new"
        os.close(new)
        assert others(step + "/model.pt") == "newer"
        plain = write(step + "/model.pt", "plain")
        assert others(step + "/model.pt") == "plain"
        os.close(plain)
        os.rename(step, run.path + "/step-1")
        step = run.path + "/step-1"
        new = write(step + "/model.pt", "back")
        assert others(step + "/model.pt") == "plain"
        os.close(new)
        os.unlink(step + "/model.pt")
        new = write(step + "/model.pt", "gone")
        os.rmdir(step)
        assert error_of(os.close, new) == errno.ENOENT


def what_is_replaced_goes_to_the_trash():
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1h")
        os.setxattr(mount.path, FILES, b"*.pt")
        for text in "one", "two":
            rewrite(mount.path + "/model.pt", text)
        killed = start(mount.path + "/model.pt", "half", "wait")
        killed.kill()
        ends_with(killed, -signal.SIGKILL)
        wait_until(lambda: mount.status()["open_files"] == 0)
        entries = json.loads(call("trash", "ls", mount.path, "--json").stdout)["entries"]
        assert [(entry["path"], entry["type"]) for entry in entries] == [("model.pt", "file")], entries
        mount.check()
        mount.umount()


CASES = (attributes_and_rights_are_kept, an_open_that_cannot_be_is_told_why,
         what_is_not_closed_is_named_by_its_place, hard_links_and_locks, the_directory_is_renamed_or_removed_meanwhile,
         what_is_replaced_goes_to_the_trash)


if __name__ == "__main__":
    sys.exit(run_cases(CASES))
