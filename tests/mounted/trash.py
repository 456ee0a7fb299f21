#!/usr/bin/env python3
"""The trash: what was removed can be restored, by whom it was and nobody else, and goes before anybody lacks room.
Options: --seed N. Run as root.
"""

import contextlib
import errno
import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, program, run, run_cases, seed_from_arguments
from cluster import wait_until
from runs import STEP, call, commit

OWNER, STRANGER = 1234, 4321
MIB = 1 << 20
DONE, USAGE, DENIED, MISSING = 0, 2, 6, 8
TAKEN = 1


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def trash(mount, word="ls", *words):
    """What `cairnfs trash` says as JSON."""
    where = ["--mount", mount.path] if word == "restore" else [mount.path]
    return json.loads(call("trash", word, *where, *words, "--json").stdout)


def entries_of(mount):
    """By the path below the mount."""
    return {entry["path"]: entry for entry in trash(mount)["entries"]}


def as_user(uid, *words):
    return subprocess.run(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", program("cairnfs"), *words],
                          capture_output=True, text=True, timeout=120, check=False)


def free_bytes(mount):
    space = os.statvfs(mount.path)
    return space.f_bavail * space.f_frsize


def what_is_removed_can_be_restored(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1h")
        os.makedirs(mount.path + "/dir/empty")
        write(mount.path + "/dir/file", b"f" * 100_000)
        write(mount.path + "/dir/old", b"old")
        write(mount.path + "/dir/new", b"new")
        write(mount.path + "/dir/one", b"linked")
        os.link(mount.path + "/dir/one", mount.path + "/dir/two")
        os.symlink("target", mount.path + "/dir/link")
        before = os.stat(mount.path + "/dir/file")
        # An open file goes on being written, and comes back with all of it.
        with open(mount.path + "/dir/file", "ab", buffering=0) as file:
            os.unlink(mount.path + "/dir/file")
            file.write(b"later")
        os.rename(mount.path + "/dir/new", mount.path + "/dir/old")
        os.rmdir(mount.path + "/dir/empty")
        os.unlink(mount.path + "/dir/link")
        os.unlink(mount.path + "/dir/one")
        assert "dir/one" not in entries_of(mount), "it has another name"
        os.unlink(mount.path + "/dir/two")
        found = entries_of(mount)
        assert sorted(found) == ["dir/empty", "dir/file", "dir/link", "dir/old", "dir/two"], found
        assert {name: entry["type"] for name, entry in found.items()} == {
            "dir/empty": "directory", "dir/file": "file", "dir/link": "symlink", "dir/old": "file", "dir/two": "file"}
        entry = found["dir/file"]
        assert (entry["owner"], entry["removed_by"], entry["by_retention"], entry["id"]) == (0, 0, False, before.st_ino)
        assert entry["expires_seconds"] - entry["removed_seconds"] == 3600, entry
        listed = call("trash", "ls", mount.path).stdout
        assert listed.startswith("          ID  REMOVED") and "dir/old" in listed, listed
        status = mount.status()
        assert status["trash_entries"] == 5 and status["trash_bytes"] >= 100_000, status
        assert "\ntrash         " in call("status", mount.path).stdout
        mount.umount()
        mount = Mount(scratch, SMALL + ",trash=1h")
        assert entries_of(mount) == found, "it outlives the daemon"
        # Names that the kernel knows to be absent are found again.
        for name in ("file", "empty", "link", "two"):
            assert not os.path.lexists(f"{mount.path}/dir/{name}")
            done = trash(mount, "restore", str(found["dir/" + name]["id"]))
            assert done["path"] == f"{mount.path}/dir/{name}" and done["restored"], done
            assert os.path.lexists(f"{mount.path}/dir/{name}"), name
        assert read(mount.path + "/dir/file") == b"f" * 100_000 + b"later"
        after = os.stat(mount.path + "/dir/file")
        assert (after.st_ino, after.st_nlink) == (before.st_ino, 1)
        assert os.readlink(mount.path + "/dir/link") == "target"
        write(mount.path + "/dir/empty/in", b"in it")
        # The place is taken; another one is not.
        old = str(found["dir/old"]["id"])
        refused = call("trash", "restore", old, "--mount", mount.path, expect=TAKEN)
        assert "its place is taken" in refused.stderr and "trash restore" in refused.stderr, refused
        assert read(mount.path + "/dir/old") == b"new"
        assert trash(mount, "restore", old, mount.path + "/dir/older")["path"] == mount.path + "/dir/older"
        assert read(mount.path + "/dir/older") == b"old" and read(mount.path + "/dir/old") == b"new"
        assert entries_of(mount) == {}
        assert mount.status()["trash_entries"] == 0
        # What lay in a directory that is removed too comes back after that.
        subprocess.run(["rm", "-r", mount.path + "/dir"], check=True)
        found = {os.path.basename(path): str(entry["id"]) for path, entry in entries_of(mount).items()}
        refused = call("trash", "restore", found["file"], "--mount", mount.path, expect=MISSING)
        assert "restore that first" in refused.stderr, refused
        for name in ("dir", "file"):
            trash(mount, "restore", found[name])
        assert read(mount.path + "/dir/file").endswith(b"later")
        mount.check()
        mount.umount()


def bad_input_is_told(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1h")
        write(mount.path + "/file", b"x")
        os.unlink(mount.path + "/file")
        os.mkdir(mount.path + "/part")
        number = str(entries_of(mount)["file"]["id"])
        for words, code, said in (
                (("restore", "nine"), USAGE, "a number"), (("restore", "0"), USAGE, "a number"), (("restore", ""), USAGE, ""),
                (("restore", "999999", "--mount", mount.path), MISSING, "has no entry 999999"),
                (("restore", number, mount.path + "/no/such"), 1, "cannot restore to"),
                (("restore", number, mount.path + "/.."), None, "no CairnFS"),
                (("restore", number, mount.path + "/" + "n" * 256), None, "255"),
                (("restore", number, scratch.path + "/elsewhere"), None, ""),
                (("restore", number, mount.path + "/part"), None, "the place that it was to get is taken"),
                (("empty", mount.path + "/part"), USAGE, "that of the whole filesystem"),
                (("empty", mount.path, "--id", "-1"), USAGE, ""), (("empty", mount.path, "--id", "7"), MISSING, "entry 7"),
                (("ls", scratch.path), None, ""), ((), USAGE, "needs one of its commands"), (("lost",), USAGE, "")):
            done = subprocess.run([program("cairnfs"), "trash", *words], capture_output=True, text=True, timeout=60,
                                  check=False)
            assert done.returncode == code or (code is None and done.returncode > 0), (words, done)
            assert said in done.stderr, (words, done)
        assert list(entries_of(mount)) == ["file"]
        assert trash(mount, "empty", "--id", number) == {"entries": 1, "bytes": 1}
        mount.umount()
        for value in ("10", "500ms", "soon", "1000d"):
            refused = subprocess.run([program("cairnfs"), "mount", mount.path, "--data", mount.data, "-o",
                                      f"{SMALL},trash={value}"], capture_output=True, text=True, timeout=60, check=False)
            assert refused.returncode == USAGE and "trash" in refused.stderr, refused


def strangers_see_and_restore_nothing(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1h")
        os.chmod(mount.data, 0o711)
        os.mkdir(mount.path + "/private")
        os.chown(mount.path + "/private", OWNER, OWNER)
        os.chmod(mount.path + "/private", 0o700)
        write(mount.path + "/private/secret", b"secret")
        os.chown(mount.path + "/private/secret", STRANGER + 1, STRANGER + 1)
        os.unlink(mount.path + "/private/secret")
        number = str(entries_of(mount)["private/secret"]["id"])
        os.mkdir(mount.path + "/open")
        os.chmod(mount.path + "/open", 0o777)

        def listed(uid):
            done = as_user(uid, "trash", "ls", mount.path, "--json")
            assert done.returncode == 0, done
            return json.loads(done.stdout)["entries"]

        assert listed(STRANGER) == []
        assert [entry["path"] for entry in listed(OWNER)] == ["private/secret"], "whose directory it was"
        hidden = f"#{os.stat(mount.path + '/private').st_ino}/secret"
        assert [entry["path"] for entry in listed(STRANGER + 1)] == [hidden], "whose it was, where he may not look"
        for words in (("restore", number, mount.path + "/open/stolen"), ("empty", mount.path, "--id", number)):
            done = as_user(STRANGER, "trash", *words)
            assert done.returncode == MISSING and "no entry" in done.stderr and "secret" not in done.stderr, done
        done = as_user(STRANGER, "trash", "empty", mount.path, "--json")
        assert json.loads(done.stdout) == {"entries": 0, "bytes": 0}, done
        # Whose it was may take it where rename(2) would let him: not into a directory that he may not pass.
        done = as_user(STRANGER + 1, "trash", "restore", number, "--mount", mount.path)
        assert done.returncode == DENIED, done
        done = as_user(STRANGER + 1, "trash", "restore", number, mount.path + "/mine")
        assert done.returncode == DENIED, done
        done = as_user(STRANGER + 1, "trash", "restore", number, mount.path + "/open/mine")
        assert done.returncode == DONE, done
        assert read(mount.path + "/open/mine") == b"secret"
        assert os.stat(mount.path + "/open/mine").st_uid == STRANGER + 1
        mount.umount()


def a_restored_directory_is_alive(_seed):
    """Also where processes have it, or what is below it, as their working directory or open."""
    with Scratch() as scratch, contextlib.ExitStack() as held:
        mount = Mount(scratch, SMALL + ",trash=1h")

        def stay_in(path):
            sleeper = held.enter_context(subprocess.Popen(["sleep", "1000"], cwd=path))
            held.callback(sleeper.kill)

        def make(name):
            os.makedirs(f"{mount.path}/{name}/below/more")
            write(f"{mount.path}/{name}/below/file", b"content")
            stay_in(f"{mount.path}/{name}")
            stay_in(f"{mount.path}/{name}/below/more")
            return held.enter_context(open(f"{mount.path}/{name}/below/file", "rb"))

        def check(name):
            assert os.listdir(f"{mount.path}/{name}") == ["below"]
            assert sorted(os.listdir(f"{mount.path}/{name}/below")) == ["file", "more"]
            assert read(f"{mount.path}/{name}/below/file") == b"content"
            for place in ("", "/below", "/below/more"):
                os.mkdir(f"{mount.path}/{name}{place}/made")
                write(f"{mount.path}/{name}{place}/made/in it", b"new")
                assert read(f"{mount.path}/{name}{place}/made/in it") == b"new"

        # One by one.
        opened = make("dir")
        subprocess.run(["rm", "-r", mount.path + "/dir"], check=True)
        found = {os.path.basename(path): str(entry["id"]) for path, entry in entries_of(mount).items()}
        for name in ("dir", "below", "more", "file"):
            trash(mount, "restore", found[name])
        check("dir")
        assert opened.read() == b"content"
        # As a whole, and twice.
        opened = make("step")
        for _ in range(2):
            going = mount.path + "/.cairnfs-going-abcdefghijklmnop-"
            going += "".join(chr(ord("a") + byte // 16) + chr(ord("a") + byte % 16) for byte in b"step")
            os.rename(mount.path + "/step", going)
            os.rmdir(going)
            assert not os.path.exists(mount.path + "/step")
            trash(mount, "restore", str(entries_of(mount)["step"]["id"]))
            call("hold", mount.path + "/step", "--release")
            assert os.listdir(mount.path + "/step") == ["below"]
        check("step")
        assert opened.read() == b"content"
        held.close()
        mount.check()
        mount.umount()


def an_emptied_checkpoint_is_none(_seed):
    """Neither as a directory that comes back without its files, nor as one that somebody has emptied."""
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1h")
        run = mount.path + "/run"
        for step in 1, 2, 3:
            os.makedirs(f"{run}/{step}.tmp")
            write(f"{run}/{step}.tmp/model", b"x" * step)
            os.rename(f"{run}/{step}.tmp", f"{run}/step-{step}")
        subprocess.run(["rm", "-r", run + "/step-3"], check=True)
        trash(mount, "restore", str(entries_of(mount)["run/step-3"]["id"]))
        assert os.listdir(run + "/step-3") == []
        assert "user.cairnfs.commit" not in os.listxattr(run + "/step-3")
        os.unlink(run + "/step-2/model")
        found = call("latest", run)
        assert found.stdout.strip() == run + "/step-1", found
        assert "its commit had 1 file, and none is left" in found.stderr, found
        call("retain", run, "--match", r"step-(\d+)", "--keep-last", "1")
        call("retain", run, "--now")
        assert sorted(os.listdir(run)) == ["step-1", "step-2", "step-3"]
        mount.umount()


def a_place_on_another_filesystem_is_refused(_seed):
    """Its directories have numbers too, which mean others here."""
    with Scratch() as scratch, contextlib.ExitStack() as mounted:
        mount = Mount(scratch, SMALL + ",trash=1h")
        write(mount.path + "/file", b"content")
        os.unlink(mount.path + "/file")
        number = str(entries_of(mount)["file"]["id"])
        os.makedirs(mount.path + "/dir/inner")
        elsewhere = scratch.path + "/elsewhere"
        os.mkdir(elsewhere)
        os.symlink(elsewhere, mount.path + "/out")
        os.symlink(mount.path + "/dir", elsewhere + "/in")
        run("mount", "-t", "tmpfs", "none", mount.path + "/dir/inner")
        mounted.callback(run, "umount", mount.path + "/dir/inner")
        os.mkdir(mount.path + "/dir/inner/below")
        for place in ("out", "dir/inner", "dir/inner/below"):
            done = subprocess.run([program("cairnfs"), "trash", "restore", number, f"{mount.path}/{place}/x"],
                                  capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode > 0 and ("another filesystem" in done.stderr or "no CairnFS" in done.stderr), (place, done)
            assert list(entries_of(mount)) == ["file"]
        # A link that leads here names the place it leads to.
        trash_place = elsewhere + "/in/x"
        call("trash", "restore", number, trash_place)
        assert read(mount.path + "/dir/x") == b"content"
        mounted.close()
        mount.umount()


def what_retention_removes_comes_back(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/run")
        for number in range(1, 4):
            commit(mount, f"run/step-{number}", {"below/model": b"%d" % number * 1000, "train_ds": b"kept"})
        subprocess.run(["chown", "-R", f"{OWNER}:{OWNER}", mount.path + "/run"], check=True)
        write(mount.path + "/plain", b"x")
        os.unlink(mount.path + "/plain")
        retained = ("retain", mount.path + "/run", "--now", "--keep-last", "1", "--match", STEP, "--json")
        done = as_user(OWNER, *retained)
        assert done.returncode == 0, done
        assert os.listdir(mount.path + "/run") == ["step-3"]
        found = entries_of(mount)
        assert sorted(found) == ["run/step-1", "run/step-2"], found
        entry = found["run/step-1"]
        assert (entry["by_retention"], entry["removed_by"], entry["owner"], entry["files"]) == (True, OWNER, OWNER, 2), entry
        assert entry["bytes"] == 1004 and entry["expires_seconds"] - entry["removed_seconds"] == 24 * 3600, entry
        os.chmod(mount.data, 0o711)
        restored = as_user(OWNER, "trash", "restore", str(entry["id"]), "--mount", mount.path)
        assert restored.returncode == 0, restored
        assert read(mount.path + "/run/step-1/below/model") == b"1" * 1000
        # It is a checkpoint as before, and does not go again at once.
        listed = json.loads(call("ls", mount.path + "/run", "--json").stdout)
        assert sorted(os.path.basename(one["path"]) for one in listed if one["committed"]) == ["step-1", "step-3"], listed
        assert as_user(OWNER, *retained).returncode == 0
        assert sorted(os.listdir(mount.path + "/run")) == ["step-1", "step-3"]
        # Of one in which something stays, the rest goes there piece by piece.
        call("hold", mount.path + "/run/step-1", "--release")
        done = as_user(OWNER, *retained, "--keep-inside", "train_ds")
        assert done.returncode == 0, done
        assert os.listdir(mount.path + "/run/step-1") == ["train_ds"]
        below = entries_of(mount)["run/step-1/below"]
        trash(mount, "restore", str(below["id"]))
        assert read(mount.path + "/run/step-1/below/model") == b"1" * 1000
        emptied = trash(mount, "empty")
        assert emptied["entries"] == 1 and emptied["bytes"] == 1004, emptied
        assert entries_of(mount) == {}
        mount.check()
        mount.umount()


def what_expires_goes_for_good(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1s,collect_after=1MiB,collect_delay=0s")
        write(mount.path + "/file", os.urandom(20 * MIB))
        os.sync()
        call("wait", mount.path)
        held = mount.status()["unique_bytes"]
        os.unlink(mount.path + "/file")
        wait_until(lambda: entries_of(mount) == {}, what="it expires")
        wait_until(lambda: mount.status()["unique_bytes"] < held - 19 * MIB, what="its chunks are collected")
        mount.check()
        mount.umount()


def a_kill_leaves_all_or_nothing(seed):
    """An entry is either there, or has its name, or goes for good; one half emptied can never be restored."""
    rng = random.Random(seed)
    for point in ("meta.trash_doomed", "meta.trash_cleared", "meta.trash_restored"):
        with Scratch() as scratch:
            mount = Mount(scratch)
            os.mkdir(mount.path + "/run")
            files = {f"a/{number % 7}/{number}": rng.randbytes(2000) for number in range(100)}
            for number in (1, 2):
                commit(mount, f"run/step-{number}", files)
            call("retain", mount.path + "/run", "--now", "--keep-last", "1", "--match", STEP)
            number = str(entries_of(mount)["run/step-1"]["id"])
            mount.umount()
            os.environ["CAIRNFS_FAILPOINTS"] = point + "=kill"
            try:
                mount = Mount(scratch)
            finally:
                del os.environ["CAIRNFS_FAILPOINTS"]
            words = ["restore", number] if point.endswith("restored") else ["empty"]
            if words == ["restore", number]:
                words += ["--mount"]
            subprocess.run([program("cairnfs"), "trash", *words, mount.path], check=False, capture_output=True, timeout=60)
            wait_until(lambda: "Transport endpoint" in subprocess.run(
                ["ls", mount.path], check=False, capture_output=True, text=True, timeout=60).stderr, what=point)
            mount.kill()
            mount = Mount(scratch)
            found = list(entries_of(mount))
            there = os.path.isdir(mount.path + "/run/step-1")
            assert len(found) + there <= 1, (point, found, there)
            if found:
                trash(mount, "restore", number)
            if found or there:
                for name, content in files.items():
                    assert read(f"{mount.path}/run/step-1/{name}") == content, (point, name)
            else:
                # What was taken out of reach goes, to the last inode: the root, the run, and what is in step-2.
                left = 2 + 1 + 1 + 7 + len(files)
                wait_until(lambda: mount.status()["inode_count"] == left, what=str(mount.status()["inode_count"]))
            mount.check()
            mount.umount()


def a_kill_while_room_is_made_leaves_whole_entries(seed):
    rng = random.Random(seed)
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 200 * MIB)
        options = "pool_size=64MiB,trash=1h"
        os.environ["CAIRNFS_FAILPOINTS"] = "meta.trash_doomed=kill"
        try:
            mount = Mount(scratch, options, data=disk + "/data")
        finally:
            del os.environ["CAIRNFS_FAILPOINTS"]
        contents = {}
        with contextlib.suppress(OSError):
            for number in range(16):
                name = f"file-{number}"
                contents[name] = rng.randbytes(20 * MIB)
                with open(f"{mount.path}/{name}", "wb") as file:
                    file.write(contents[name])
                    file.flush()
                    os.fsync(file.fileno())
                os.unlink(f"{mount.path}/{name}")
            raise AssertionError("320 MiB fit on a disk of 200, and no room was made")
        mount.kill()
        mount = Mount(scratch, options, data=disk + "/data")
        found = entries_of(mount)
        assert found, "all is gone"
        for name, entry in found.items():
            trash(mount, "restore", str(entry["id"]))
            assert read(f"{mount.path}/{name}") == contents[name], name
        mount.check()
        mount.umount()


def room_is_made_before_anybody_lacks_it(seed):
    """Far more than the disk holds is saved and removed: no call is told that it is full."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 200 * MIB)
        mount = Mount(scratch, "pool_size=64MiB,trash=1h", data=disk + "/data")
        kept = rng.randbytes(10 * MIB)
        write(mount.path + "/kept", kept)
        empty = free_bytes(mount)
        for number in range(16):
            write(mount.path + "/file.tmp", rng.randbytes(20 * MIB))
            fd = os.open(mount.path + "/file.tmp", os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            os.rename(mount.path + "/file.tmp", f"{mount.path}/file-{number % 2}")
            # What only the trash holds counts as free.
            assert free_bytes(mount) > empty - 60 * MIB, (number, free_bytes(mount), empty)
        found = sorted(entries_of(mount).values(), key=lambda entry: entry["removed_seconds"])
        assert 0 < len(found) < 14, found
        # The oldest went: what the last rename replaced is there, and whole.
        trash(mount, "restore", str(found[-1]["id"]), mount.path + "/newest")
        assert os.stat(mount.path + "/newest").st_size == 20 * MIB
        os.unlink(mount.path + "/newest")
        assert "oldest entries: room is needed" in mount.log()
        assert read(mount.path + "/kept") == kept
        # The same in place, by one file, without a sync.
        for _ in range(6):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(mount.path + "/again")
            write(mount.path + "/again", rng.randbytes(40 * MIB))
        # And by names alone.
        names_fit = 0
        try:
            for number in range(8000):
                path = f"{mount.path}/{'n' * 200}-{number}"
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
                os.unlink(path)
                names_fit += 1
        except OSError as error:
            raise AssertionError(f"after {names_fit} names: {error}") from error
        mount.check()
        mount.umount()
        # With nothing in the trash it is ENOSPC as ever.
        mount = Mount(scratch, "pool_size=64MiB", data=disk + "/data")
        trash(mount, "empty")
        try:
            write(mount.path + "/fill", rng.randbytes(250 * MIB))
            raise AssertionError("250 MiB fit on a disk of 200")
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        mount.umount()


if __name__ == "__main__":
    chosen = seed_from_arguments()
    sys.exit(run_cases([what_is_removed_can_be_restored, bad_input_is_told, strangers_see_and_restore_nothing,
                        a_restored_directory_is_alive, an_emptied_checkpoint_is_none,
                        a_place_on_another_filesystem_is_refused,
                        what_retention_removes_comes_back, what_expires_goes_for_good, a_kill_leaves_all_or_nothing,
                        a_kill_while_room_is_made_leaves_whole_entries, room_is_made_before_anybody_lacks_it], chosen))
