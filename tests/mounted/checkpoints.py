#!/usr/bin/env python3
"""What is kept of commits, and the commands that say which checkpoints stay (retain, pin, hold). Run as root."""

import contextlib
import errno
import fcntl
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, program, run_cases
from cluster import wait_until
from refusals import expect_errno
from runs import STEP, call, commit, make_run, record_of, whole_record_of

MIB = 1 << 20
STRANGER = ("setpriv", "--reuid", "1234", "--clear-groups")
NONE_FOUND = 8


def listed(mount, *options):
    return json.loads(call("ls", mount.path, "--json", *options).stdout)


def commits_are_recorded():
    with Scratch() as scratch:
        mount = Mount(scratch)
        content = os.urandom(3 * MIB)
        path = commit(mount, "step-1", {"a": content, "below/b": content, "below/empty": b""})
        record = whole_record_of(path)
        assert (record["files"], record["bytes"], record["written_bytes"]) == (3, 6 * MIB, 6 * MIB), record
        assert record["new_bytes"] == 3 * MIB and record["uid"] == 0, record
        with open("/proc/self/comm", encoding="utf-8") as name:
            assert record["command"] == name.read().strip(), record
        assert 0 <= record["save_seconds"] <= record["durable_seconds"] and record["write_seconds"] > 0, record
        # What is known of a save does not help strangers to guess what others have stored.
        seen = subprocess.run(["setpriv", "--reuid", "1234", "--clear-groups", "getfattr", "--only-values", "-n",
                               "user.cairnfs.commit", path], capture_output=True, check=True).stdout
        assert json.loads(seen)["new_bytes"] is None and json.loads(seen)["bytes"] == 6 * MIB, seen
        # What one user may not read keeps nobody from the rest.
        os.mkdir(mount.path + "/step-2", 0o700)
        alone = subprocess.run(["setpriv", "--reuid", "1234", "--clear-groups", program("cairnfs"), "ls", mount.path],
                               capture_output=True, text=True, check=True)
        assert "step-1" in alone.stdout and "step-2 may not be read" in alone.stderr, alone
        os.rmdir(mount.path + "/step-2")
        # A move carries it along; a copy has none; nor has a file.
        os.rename(path, mount.path + "/kept-1")
        assert record_of(mount.path + "/kept-1") == record
        subprocess.run(["cp", "-r", mount.path + "/kept-1", mount.path + "/copy-1"], check=True)
        for without in ("/copy-1", "/copy-1/a"):
            with contextlib.suppress(OSError):
                raise AssertionError(record_of(mount.path + without))
        mount.umount()
        mount = Mount(scratch)
        assert record_of(mount.path + "/kept-1") == record
        entries = listed(mount, "--match", r"(?:kept|copy)-(\d+)")
        assert [(entry["step"], entry["committed"]) for entry in entries] == [(1, False), (1, True)], entries
        assert entries[1]["files"] == 3 and entries[1]["time"] == record["committed_at"], entries
        shown = call("ls", mount.path).stdout
        assert "kept-1" in shown and "not committed" in shown and "6.0 MiB" in shown, shown
        mount.umount()


def many_files_are_counted():
    """And a move right after the commit is none of its own."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = commit(mount, "step-0", {"a": b"x" * 1000})
        revision = record_of(path)["revision"]
        os.rename(path, mount.path + "/kept-0")
        record = whole_record_of(mount.path + "/kept-0")
        assert (record["revision"], record["written_bytes"]) == (revision, 1000), record
        path = commit(mount, "step-1", {f"{number % 7}/{number}": b"x" for number in range(1000)})
        record = whole_record_of(path)
        assert (record["files"], record["bytes"]) == (1000, 1000), record
        mount.umount()


def fail(directory):
    """Has the ext4 refuse all reads and writes from now on."""
    shut_down, without_flush = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH of Linux's ext4.h
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.ioctl(descriptor, shut_down, struct.pack("I", without_flush))
    os.close(descriptor)


def refused_commits_are_told():
    """Of a host that is alone, too."""
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 200 << 20)
        mount = Mount(scratch, "pool_size=64MiB", data=disk + "/data")
        os.mkdir(mount.path + "/tmp")
        with open(mount.path + "/tmp/file", "wb", buffering=0) as file:
            file.write(os.urandom(MIB))
        assert mount.status()["failures"] == []
        fail(disk)
        try:
            os.rename(mount.path + "/tmp", mount.path + "/step-1")
            raise AssertionError("committed on a disk that cannot be written")
        except OSError as error:
            assert error.errno == errno.EIO, error
        failure, = mount.status()["failures"]
        assert failure["directory"] == "tmp" and failure["causes"][0]["cause"] and failure["left_out"] == 0, failure
        assert "tmp was not renamed: " in call("status", mount.path + "/tmp").stdout
        with contextlib.suppress(OSError):
            raise AssertionError(record_of(mount.path + "/tmp"))


def refusal_of(directory, uid=0):
    """As the user is told it."""
    told = subprocess.run(["setpriv", "--reuid", str(uid), "--clear-groups", "getfattr", "--only-values", "-n",
                           "user.cairnfs.refused", directory], capture_output=True, check=True).stdout
    return json.loads(told)


def lose_bytes(mount, path):
    """Of the file, which the disk has no room for; then there is room again."""
    with open(path, "w+b") as file:
        file.truncate(24 * MIB)
        os.fsync(file.fileno())
        with open(mount.path + "/fill", "wb", buffering=0) as fill, contextlib.suppress(OSError):
            while True:
                fill.write(os.urandom(MIB))
        with mmap.mmap(file.fileno(), 24 * MIB) as mapped:
            mapped[:] = os.urandom(24 * MIB)
        with contextlib.suppress(OSError):
            file.close()
    os.unlink(mount.path + "/fill")


def a_refusal_is_told_to_whom_it_concerns():
    """The owner of the directory, but not of a file that another user hides below it; over a restart, too."""
    owner, stranger = 1234, 1235
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 200 << 20)
        with open(disk + "/beside", "wb") as beside:
            os.posix_fallocate(beside.fileno(), 0, 80 * MIB)
        mount = Mount(scratch, "pool_size=64MiB", data=disk + "/data")
        tmp = mount.path + "/tmp"
        os.makedirs(tmp + "/private")
        os.chmod(tmp + "/private", 0o700)
        os.chown(tmp, owner, owner)
        lose_bytes(mount, tmp + "/private/weights")
        assert os.getxattr(tmp + "/private/weights", "user.cairnfs.durability") == b"lost"
        expect_errno((errno.ENOSPC, errno.EIO), os.rename, tmp, mount.path + "/step-1")
        expect_errno(errno.EIO, os.rename, tmp, mount.path + "/step-1")  # takes the first one's place

        def check_told():
            failure, = mount.status()["failures"]
            cause, = failure.pop("causes")
            assert failure.pop("directory") == "tmp" and failure["uid"] == 0 and failure["host"] == "", failure
            assert cause["file"] == "tmp/private/weights" and "are lost" in cause["cause"], cause
            own = dict(cause, file="private/weights")
            assert refusal_of(tmp) == dict(failure, causes=[own]), refusal_of(tmp)
            for uid in (owner, stranger):
                assert refusal_of(tmp, uid) == dict(failure, causes=[], left_out=1), uid
            os.chmod(tmp + "/private", 0o755)
            assert refusal_of(tmp, owner) == dict(failure, causes=[own])
            assert refusal_of(tmp, stranger) == dict(failure, causes=[], left_out=1)
            os.chmod(tmp + "/private", 0o700)
            os.chmod(tmp, 0o711)
            with contextlib.suppress(subprocess.CalledProcessError):
                raise AssertionError(refusal_of(tmp, stranger))  # may not read the directory
            os.chmod(tmp, 0o755)
            expect_errno(errno.ENODATA, os.getxattr, mount.path, "user.cairnfs.refused")
            expect_errno(errno.EPERM, os.setxattr, tmp, "user.cairnfs.refused", b"{}")

        check_told()
        mount.umount()
        mount = Mount(scratch, "pool_size=64MiB", data=disk + "/data")
        check_told()
        with open(tmp + "/private/weights", "wb") as file:
            file.write(b"again")
        os.rename(tmp, mount.path + "/step-1")
        assert len(refusal_of(mount.path + "/step-1")["causes"]) == 1
        mount.umount()


def a_strangers_commits_hold_up_nobody():
    """He has written into many directories, and commits faster than records are added to."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/public")
        os.chmod(mount.path + "/public", 0o1777)
        program_of = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "stranger_commits.py")
        command = [*STRANGER, sys.executable, program_of, mount.path + "/public", "--directories", "3000", "--renames", "6000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
            try:
                assert stranger.stdout.readline() == "renamed\n"
                for step in range(3):
                    record = whole_record_of(commit(mount, f"step-{step}", {"a": b"x" * 1000, "below/b": b"y" * 1000}))
                    assert (record["files"], record["bytes"], record["written_bytes"]) == (2, 2000, 2000), record
                    # One that was written to again is a new commit.
                    with open(mount.path + f"/step-{step}/a", "ab") as file:
                        file.write(b"z" * 10)
                    os.rename(mount.path + f"/step-{step}", mount.path + f"/kept-{step}")
                    again = whole_record_of(mount.path + f"/kept-{step}")
                    assert (again["bytes"], again["written_bytes"]) == (2010, 10), again
                assert stranger.poll() is None
            finally:
                stranger.kill()
        mount.umount()


def names_in(mount):
    return sorted(os.listdir(mount.path + "/run"))


def retain(mount, *options, expect=0):
    return call("retain", mount.path + "/run", *options, expect=expect)


def fates(done):
    """By name: whether it goes (or went), and why."""
    return {os.path.basename(one["path"]): (one["goes"], one["reason"]) for one in json.loads(done.stdout)["checkpoints"]}


def what_is_not_kept_goes():
    with Scratch() as scratch:
        mount = Mount(scratch)
        make_run(mount, [0.1, 0.5, float("nan"), "low", 0.3, 0.2, 0.9])
        run = mount.path + "/run"
        os.mkdir(run + "/notes")
        assert "has no policy" in retain(mount, "--now", expect=NONE_FOUND).stderr
        # By rules that are given: a policy would be applied by itself meanwhile.
        rules = ("--keep-last", "2", "--keep-best", "loss:min:1", "--match", STEP)
        os.mkdir(mount.path + "/empty")
        call("retain", mount.path + "/empty", *rules)
        assert "--keep-last 2 --keep-best 'loss:min:1' --match" in call("retain", mount.path + "/empty", "--show").stdout
        assert json.loads(call("retain", mount.path + "/empty", "--show", "--json").stdout)["policy"]["keep_last"] == 2
        assert json.loads(call("retain", mount.path + "/empty", "--now", "--json").stdout)["checkpoints"] == []
        call("pin", run + "/step-2")
        open(run + "/step-3/PINNED", "w", encoding="utf-8").close()
        with open(run + "/step-5/below/model", "rb"):
            said = retain(mount, "--dry-run", "--json", *rules)
            tried = fates(said)
            assert [name for name, (goes, _) in tried.items() if goes] == ["step-4"], tried
            assert tried["step-1"][1] == "among the 1 with the lowest loss (keep-best)", tried
            assert tried["step-7"][1] == "it is the newest durable one" and tried["step-2"][1] == "it is pinned", tried
            assert tried["step-3"][1] == "it is pinned" and "open" in tried["step-5"][1], tried
            notes = json.loads(said.stdout)["notes"]
            assert len(notes) == 2 and "not a null" in notes[0] and "not a string" in notes[1], notes
            assert fates(retain(mount, "--now", "--json", *rules)) == tried
        assert names_in(mount) == ["notes", "step-1", "step-2", "step-3", "step-5", "step-6", "step-7"]
        # A release follows its close.
        wait_until(lambda: os.getxattr(run + "/step-5", "user.cairnfs.open_files") == b"0")
        # What a removal may still be about, or has left: only told. A metric that cannot be read is not a bad one.
        os.rename(run + "/step-1", run + "/.cairnfs-going-abcdefghijklmnop")
        with open(run + "/step-6/metrics.json", "w", encoding="utf-8") as file:
            file.write('{"loss": ' + "[" * 100000 + "]" * 100000 + "}")
        going = retain(mount, "--now", "--keep-last", "1", "--keep-best", "loss:max:1", "--match", STEP)
        assert "removed  step-5" in going.stdout and "its metrics cannot be told" in going.stdout, going
        assert ".cairnfs-going-abcdefghijklmnop is being removed just now" in going.stderr, going
        shutil.rmtree(run + "/.cairnfs-going-abcdefghijklmnop")
        with open(run + "/step-6/metrics.json", "w", encoding="utf-8") as file:
            file.write('{"loss": 0.2}')
        assert names_in(mount) == ["notes", "step-2", "step-3", "step-6", "step-7"]
        # What is being written in place, without a commit, or is cut short, takes nobody's place.
        os.mkdir(run + "/step-8")
        commit(mount, "run/step-9", {"model.pt": b"PK\3\4" + b"x" * 100})
        said = retain(mount, "--dry-run", "--keep-last", "1", "--match", STEP)
        for words in ("stays    step-8", "stays    step-7", "goes     step-6"):
            assert words in said.stdout, said
        assert "step-9 is not taken for durable: model.pt: it begins as a zip file" in said.stderr, said
        shutil.rmtree(run + "/step-8")
        shutil.rmtree(run + "/step-9")
        # Whose name cannot tell in the trash what it was stays.
        long = "step-5-" + "x" * 105
        for name in (long, "step-10"):
            commit(mount, "run/" + name, {"below/model": b"x"})
        said = retain(mount, "--dry-run", "--keep-last", "1", "--match", STEP + ".*")
        assert f"stays    {long}" in said.stdout and "more than 111 bytes" in said.stdout, said
        shutil.rmtree(run + "/" + long)
        shutil.rmtree(run + "/step-10")
        mount.umount()
        mount = Mount(scratch)
        call("unpin", run + "/step-2")
        assert retain(mount, "--now", *rules).stdout.count("removed") == 1
        for _ in range(2):
            assert call("retain", mount.path + "/empty", "--off").stdout.endswith("no policy\n")
        call("retain", mount.path + "/empty", "--show", expect=NONE_FOUND)
        mount.umount()


def readers_hold_what_they_load():
    with Scratch() as scratch:
        mount = Mount(scratch)
        make_run(mount, [1, 2, 3])
        run = mount.path + "/run"
        found = call("latest", run, "--before", "3", "--hold", "2h").stdout.strip()
        assert found == run + "/step-2", found
        kept = {entry["step"]: (entry["pinned"], entry["held_until"]) for entry in json.loads(call("ls", run, "--json").stdout)}
        assert kept[1] == kept[3] == (False, None) and kept[2][1] > 0, kept
        assert " held " in call("ls", run).stdout
        held = json.loads(call("hold", found, "--for", "1h", "--json").stdout)["held_until"]
        assert held == kept[2][1], "another reader's hold was shortened"
        going = retain(mount, "--keep-last", "1", "--match", STEP, "--now")
        assert "removed  step-1" in going.stdout and "it is held until" in going.stdout, going
        with contextlib.suppress(OSError):
            os.rename(found, run + "/.cairnfs-going-abcdefghijklmnop")
            raise AssertionError("what is held was taken away")
        call("hold", found, "--release")
        call("retain", found, "--keep-last", "1")
        assert "policy of its own" in retain(mount, "--keep-last", "1", "--match", STEP, "--now").stdout
        call("retain", found, "--off")
        retain(mount, "--keep-last", "1", "--match", STEP, "--now")
        assert names_in(mount) == ["step-3"]
        mount.umount()


def wrong_words_are_refused():
    with Scratch() as scratch:
        mount = Mount(scratch)
        make_run(mount, [1, 2, 3])
        run = mount.path + "/run"
        os.symlink("step-1", run + "/step-9")
        for options, words in (((), "says what stays"), (("--keep-last", "-1"), "from 1 to 2^63 - 1, not '-1'"),
                               (("--keep-for", "-2h"), "is not a duration"),
                               (("--keep-best", "loss:2"), "METRIC:min:N"),
                               (("--keep-last", "1", "--match", r"step-\d+"), "has 0 groups"),
                               (("--show", "--keep-last", "1"), "no other options")):
            refused = retain(mount, *options, expect=2)
            assert words in refused.stderr, refused
        assert "root of a filesystem" in call("retain", mount.path, "--keep-last", "1", expect=2).stderr
        assert "no CairnFS" in call("retain", scratch.path, "--keep-last", "1", expect=3).stderr
        for path, words, code in (("step-8", "No such file", 1), ("step-9", "is a symbolic link", 2),
                                  ("step-1/metrics.json", "is no directory", 2), ("..", "root of a filesystem", 2)):
            assert words in call("pin", f"{run}/{path}", expect=code).stderr, path
        assert "at least a second" in call("hold", run + "/step-1", "--for", "0s", expect=2).stderr
        # Strangers, who may write there: nothing that keeps or removes.
        os.chmod(run, 0o777)
        os.chmod(run + "/step-1", 0o777)
        for words in (("pin", run + "/step-1"), ("hold", run + "/step-1", "--for", "1h"), ("unpin", run + "/step-1"),
                      ("retain", run, "--keep-last", "1"), ("retain", run, "--off")):
            done = subprocess.run([*STRANGER, program("cairnfs"), *words], capture_output=True, text=True, check=False)
            assert done.returncode == 6 and "for its owner and root" in done.stderr, done
        done = subprocess.run([*STRANGER, program("cairnfs"), "retain", run, "--keep-last", "1", "--match", STEP, "--now"],
                              capture_output=True, text=True, check=True)
        assert "told to its owner and root alone" in done.stdout and "removed" not in done.stdout, done
        for name, value in (("retain", b"{}"), ("pinned", b"2"), ("held_until", b"-1"), ("metric.loss", b"nan")):
            with contextlib.suppress(OSError):
                os.setxattr(run, "user.cairnfs." + name, value)
                raise AssertionError(name)
        assert os.listxattr(run + "/step-1") == []
        assert names_in(mount) == ["step-1", "step-2", "step-3", "step-9"]
        mount.umount()


if __name__ == "__main__":
    sys.exit(run_cases([commits_are_recorded, many_files_are_counted, refused_commits_are_told,
                        a_refusal_is_told_to_whom_it_concerns, a_strangers_commits_hold_up_nobody,
                        what_is_not_kept_goes, readers_hold_what_they_load, wrong_words_are_refused]))
