#!/usr/bin/env python3
"""Quotas of directories on one host: what counts, what is refused, and that the sums are those of a walk after kills.
Options: --kills N (3): rounds of that case. Run as root."""

import contextlib
import errno
import json
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, program, run_cases
from cluster import wait_until
from quotas import walk
from runs import call

MIB = 1 << 20
USER = 1234
FAILED, USAGE, PERMISSION = 1, 2, 6
kills = 3


def as_user(*words):
    return subprocess.run(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *words],
                          capture_output=True, text=True, timeout=120, check=False)


def write(path, data, flags=os.O_CREAT | os.O_TRUNC):
    """Writes in pieces until an error; returns how many bytes were accepted, and the error."""
    accepted = 0
    try:
        file = os.open(path, os.O_WRONLY | flags, 0o644)
    except OSError as error:
        return 0, error.errno
    try:
        while accepted < len(data):
            accepted += os.write(file, data[accepted:accepted + 128 * 1024])
        os.fsync(file)
    except OSError as error:
        return accepted, error.errno
    finally:
        os.close(file)
    return accepted, 0


def show(path):
    return json.loads(call("quota", "show", path, "--json").stdout)


def used(path):
    told = show(path)
    return told["logical_used_bytes"], told["unique_used_bytes"]


def sync(mount):
    call("wait", mount.path)


@contextlib.contextmanager
def failpoint(point):
    os.environ["CAIRNFS_FAILPOINTS"] = point
    try:
        yield
    finally:
        del os.environ["CAIRNFS_FAILPOINTS"]


def a_quota_bounds_what_is_written():
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = mount.path + "/run"
        os.mkdir(run)
        told = json.loads(call("quota", "set", run, "--logical", "20M", "--json").stdout)
        assert told["logical_limit_bytes"] == 20 * MIB and told["state"] == "on", told
        assert told["directory"] == run and "unique_limit_bytes" not in told, told
        os.mkdir(run + "/below")
        accepted, error = write(run + "/below/a", os.urandom(30 * MIB))
        assert error == errno.EDQUOT and 19 * MIB < accepted <= 20 * MIB, (accepted, error)
        assert os.path.getsize(run + "/below/a") == accepted
        sync(mount)
        assert used(run)[0] == walk(run) == accepted, (used(run), walk(run), accepted)
        # df of any path below shows it; of others it does not.
        space = os.statvfs(run + "/below")
        assert space.f_blocks * space.f_frsize == 20 * MIB, space
        assert space.f_bavail * space.f_frsize == 20 * MIB - accepted, (space, accepted)
        other = os.statvfs(mount.path)
        assert other.f_blocks != space.f_blocks
        assert "quota" in call("status", run).stdout and "quota  " not in call("status", mount.path).stdout
        # Nothing is accepted, and what lies elsewhere is not touched by it.
        assert write(run + "/b", b"x" * 8 * MIB)[1] == errno.EDQUOT
        assert write(mount.path + "/c", os.urandom(MIB))[1] == 0
        # To write over what is there takes nothing; nor do holes.
        assert write(run + "/below/a", os.urandom(accepted), flags=0) == (accepted, 0)
        assert not os.path.exists(run + "/b")  # no file can be made either
        os.truncate(run + "/below/a", 5 * MIB)
        os.truncate(run + "/below/a", 500 * MIB)
        wait_until(lambda: used(run)[0] == 5 * MIB, what="a truncation frees")
        assert write(run + "/d", os.urandom(14 * MIB))[1] == 0
        os.unlink(run + "/d")
        os.unlink(run + "/below/a")
        assert write(run + "/e", os.urandom(19 * MIB))[1] == 0, used(run)
        # A copy counts, and moves no data.
        os.truncate(run + "/e", 8 * MIB)
        shutil.copyfile(run + "/e", run + "/f")
        with contextlib.suppress(OSError), open(run + "/e", "rb") as source, open(run + "/g", "wb") as target:
            os.copy_file_range(source.fileno(), target.fileno(), 8 * MIB)
            raise AssertionError("a copy past the quota")
        sync(mount)
        assert used(run)[0] == 16 * MIB, used(run)
        mount.umount()
        mount = Mount(scratch)
        assert used(run)[0] == walk(run) == 16 * MIB, used(run)
        # One of two limits is taken off, and the other stays.
        call("quota", "set", run, "--unique", "1G")
        told = json.loads(call("quota", "set", run, "--logical", "none", "--json").stdout)
        assert told["unique_limit_bytes"] == 1 << 30 and "logical_limit_bytes" not in told, told
        assert os.statvfs(run).f_blocks * os.statvfs(run).f_frsize == 1 << 30
        assert "quota off" in call("quota", "set", run, "--unique", "none", expect=USAGE).stderr
        assert write(run + "/past", os.urandom(8 * MIB))[1] == 0
        call("quota", "off", run)
        assert write(run + "/h", os.urandom(30 * MIB))[1] == 0
        assert "falls under no quota" in call("quota", "show", run, expect=FAILED).stderr
        mount.umount()


def unique_bytes_count_for_who_wrote_first():
    with Scratch() as scratch:
        mount = Mount(scratch)
        one, two = mount.path + "/one", mount.path + "/two"
        for path in (one, two):
            os.mkdir(path)
            call("quota", "set", path, "--unique", "16M")
        data = os.urandom(10 * MIB)
        assert write(one + "/a", data)[1] == 0
        assert write(one + "/b", data)[1] == 0
        assert write(two + "/a", data)[1] == 0
        sync(mount)

        def check(path, logical, unique):
            # Where a round cuts the end of a file that grows, its last chunk is another one.
            told = used(path)
            assert told[0] == logical and unique <= told[1] < unique + MIB, told
        check(one, 20 * MIB, 10 * MIB)
        check(two, 10 * MIB, 0)
        shutil.copyfile(one + "/a", one + "/c")
        sync(mount)
        check(one, 30 * MIB, 10 * MIB)
        accepted, error = write(one + "/d", os.urandom(20 * MIB))
        assert error == errno.EDQUOT and 4 * MIB <= accepted <= 6 * MIB, (accepted, error)
        os.unlink(one + "/a")
        assert used(one)[1] <= 7 * MIB, used(one)
        mount.umount()


def what_lies_there_counts_when_it_is_set():
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = mount.path + "/run"
        for folder in range(4):
            os.makedirs(f"{run}/{folder}/below")
            for name in range(50):
                write(f"{run}/{folder}/below/{name}", os.urandom(4096 * (1 + name % 3)))
        os.symlink("0", run + "/link")
        os.link(run + "/0/below/1", run + "/1/also")
        open(run + "/empty", "wb").close()
        before = walk(run)
        held = open(run + "/open", "wb", buffering=0)
        held.write(os.urandom(MIB))
        said = call("quota", "set", run, "--logical", "1M", expect=USAGE).stderr
        assert "below the" in said and "--force" in said, said
        call("quota", "set", run, "--logical", "100M")
        held.write(os.urandom(MIB))
        held.close()
        sync(mount)
        assert used(run)[0] == walk(run) == before + 2 * MIB, (used(run), walk(run), before)
        assert write(run + "/empty", os.urandom(MIB))[1] == 0
        # The limits can be changed, below what is used only by force.
        assert "below the" in call("quota", "set", run, "--logical", "1M", expect=USAGE).stderr
        call("quota", "set", run, "--logical", "1M", "--force")
        assert write(run + "/0/new", b"x" * MIB)[1] == errno.EDQUOT
        call("quota", "set", run, "--logical", "200M", "--unique", "300M")
        assert write(run + "/0/new", os.urandom(MIB))[1] == 0
        sync(mount)
        assert used(run)[0] == walk(run)
        listed = json.loads(call("quota", "show", mount.path, "--json").stdout)["quotas"]
        assert [one["directory"] for one in listed] == ["run"], listed
        call("quota", "off", run)
        assert json.loads(call("quota", "show", mount.path, "--json").stdout)["quotas"] == []
        os.rename(run + "/0/new", mount.path + "/new")
        mount.umount()


def names_stay_in_one_quota():
    with Scratch() as scratch:
        mount = Mount(scratch)
        one, two = mount.path + "/one", mount.path + "/two"
        for path in (one, two):
            os.makedirs(path + "/sub")
            call("quota", "set", path, "--logical", "50M")
        write(one + "/a", os.urandom(MIB))
        for name in ("/a", "/sub"):
            for target in (two + "/moved", mount.path + "/moved"):
                try:
                    os.rename(one + name, target)
                    raise AssertionError(f"{name} came to {target}")
                except OSError as error:
                    assert error.errno == errno.EXDEV, error
        try:
            os.link(one + "/a", mount.path + "/linked")
            raise AssertionError("a link out of a quota")
        except OSError as error:
            assert error.errno == errno.EXDEV, error
        os.link(one + "/a", one + "/sub/a")
        os.rename(one + "/a", one + "/sub/b")
        subprocess.run(["mv", one + "/sub/b", two + "/b"], check=True)
        subprocess.run(["mv", one + "/sub", mount.path + "/out"], check=True)
        sync(mount)
        wait_until(lambda: used(one)[0] == walk(one) == 0 and used(two)[0] == walk(two) == MIB, what="mv moves usage")
        # The directory itself goes where it likes, with its quota.
        os.mkdir(mount.path + "/deep")
        os.rename(two, mount.path + "/deep/two")
        assert used(mount.path + "/deep/two")[0] == MIB
        shutil.rmtree(mount.path + "/deep")
        wait_until(lambda: len(json.loads(call("quota", "show", mount.path, "--json").stdout)["quotas"]) == 1,
                   what="the quota of a removed directory goes")
        mount.umount()


def the_trash_and_files_that_appear_whole():
    """What unlink moves to the trash counts no more until it is restored, which takes room as a write does, also for who
    removed it; a rewrite that appears whole counts once."""
    with Scratch() as scratch:
        mount = Mount(scratch, options=SMALL + ",trash=24h")
        run = mount.path + "/run"
        os.mkdir(run)
        os.chown(run, USER, USER)
        call("quota", "set", run, "--logical", "20M")
        for size, others in ((15, 0), (10, 10 * MIB)):
            assert as_user("dd", "if=/dev/urandom", f"of={run}/a", "bs=1M", f"count={size}").returncode == 0
            entry = str(os.stat(run + "/a").st_ino)
            assert as_user("rm", run + "/a").returncode == 0
            assert used(run)[0] == others, used(run)
            sync(mount)
            assert used(run)[0] == others, used(run)
            write(run + "/b", os.urandom(10 * MIB))
            restored = as_user(program("cairnfs"), "trash", "restore", entry, "--mount", mount.path)
            assert (restored.returncode == 0) == (size == 10), restored
            assert size == 10 or "the quota of directory" in restored.stderr, restored
        assert used(run)[0] == walk(run) == 20 * MIB, (used(run), walk(run))
        os.unlink(run + "/a")
        call("trash", "restore", entry, mount.path + "/a", "--mount", mount.path)
        assert used(run)[0] == walk(run) == 10 * MIB, (used(run), walk(run))
        # Once the quota is off it comes back to its place all the same.
        removed = os.stat(run + "/b").st_ino
        os.unlink(run + "/b")
        call("quota", "off", run)
        call("trash", "restore", str(removed), "--mount", mount.path)
        call("quota", "set", run, "--logical", "20M")
        assert used(run)[0] == walk(run) == 10 * MIB, (used(run), walk(run))
        os.rename(mount.path + "/a", mount.path + "/c")
        call("trash", "empty", mount.path)
        os.setxattr(run, "user.cairnfs.atomic_files", b"*.pt")
        os.unlink(run + "/b")
        for _ in range(5):
            with open(run + "/model.pt", "wb") as file:
                file.write(os.urandom(4 * MIB))
        sync(mount)
        wait_until(lambda: used(run)[0] == walk(run) == 4 * MIB, what="one of the files that appeared whole counts")
        # Also one that was begun before there was a quota; and what is restored with all that was written just before.
        other = mount.path + "/other"
        os.mkdir(other)
        os.setxattr(other, "user.cairnfs.atomic_files", b"*.pt")
        with open(other + "/model.pt", "wb", buffering=0) as file:
            file.write(os.urandom(3 * MIB))
            call("quota", "set", other, "--logical", "10M")
        wait_until(lambda: used(other)[0] == walk(other) == 3 * MIB, what="it counts once it has its name")
        for number, fits in enumerate((True, False)):
            write(mount.path + "/late", os.urandom(4 * MIB))
            entry = str(os.stat(mount.path + "/late").st_ino)
            os.unlink(mount.path + "/late")
            call("trash", "restore", entry, f"{other}/late{number}", "--mount", mount.path, expect=0 if fits else FAILED)
        wait_until(lambda: used(other)[0] == walk(other) == 7 * MIB)
        mount.umount()
        mount.mount()
        assert used(other)[0] == walk(other) == 7 * MIB, used(other)
        mount.umount()


def what_retention_removed_makes_room():
    """It counts, and goes, the oldest first, before a write or a new file is refused."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = mount.path + "/run"
        os.mkdir(run)
        call("quota", "set", run, "--logical", "24M")
        for number in range(1, 4):
            os.mkdir(f"{run}/step-{number}.tmp")
            assert write(f"{run}/step-{number}.tmp/model", os.urandom(8 * MIB))[1] == 0
            os.rename(f"{run}/step-{number}.tmp", f"{run}/step-{number}")
        call("retain", run, "--now", "--keep-last", "1", "--match", r"step-(\d+)")

        def in_trash():
            entries = json.loads(call("trash", "ls", mount.path, "--json").stdout)["entries"]
            return [os.path.basename(one["path"]) for one in entries]
        assert os.listdir(run) == ["step-3"] and sorted(in_trash()) == ["step-1", "step-2"]
        assert used(run)[0] == 24 * MIB, used(run)
        assert write(run + "/a", b"") == (0, 0) and in_trash() == ["step-2"], "a new file"
        assert write(run + "/a", os.urandom(10 * MIB)) == (10 * MIB, 0) and in_trash() == [], "a write"
        accepted, error = write(run + "/b", os.urandom(8 * MIB))
        assert error == errno.EDQUOT and accepted > 5 * MIB, (accepted, error)
        sync(mount)
        assert used(run)[0] == walk(run) == 18 * MIB + accepted, (used(run), walk(run))
        mount.umount()


def wrong_input_is_told():
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = mount.path + "/run"
        os.makedirs(run + "/below/deep")
        write(run + "/file", b"x")
        write(run + "/below/linked", b"x")
        os.link(run + "/below/linked", mount.path + "/outside")

        def refused(*words, code=USAGE):
            return call("quota", *words, expect=code).stderr

        assert "--logical SIZE" in refused("set", run)
        for size in ("0", "-1", "2X", "1MB", "", "9223372036854775808", "99999999999T", "x"):
            assert refused("set", run, "--logical", size), size
        assert '"none" takes a limit off' in refused("set", run, "--unique", "0")
        assert 'or "none"' in refused("set", run, "--unique", "no")
        assert "quota off" in refused("set", run, "--logical", "none")
        assert "not a directory" in refused("set", run + "/file", "--logical", "1G")
        assert "there is no" in refused("set", run + "/none", "--logical", "1G")
        assert "root" in refused("set", mount.path, "--logical", "1G")
        assert refused("set", "/", "--logical", "1G", code=3)
        assert "hard link" in refused("set", run, "--logical", "1G")
        os.unlink(mount.path + "/outside")
        call("quota", "set", run + "/below", "--logical", "1G")
        assert "has a quota" in refused("set", run, "--logical", "1G")
        assert "has a quota" in refused("set", run + "/below/deep", "--logical", "1G")
        assert "no quota" in refused("off", run, code=FAILED)
        # Strangers look, and change nothing.
        os.chmod(mount.path, 0o755)
        cairnfs = program("cairnfs")
        assert as_user(cairnfs, "quota", "show", run + "/below").returncode == 0
        for words in (["set", run, "--logical", "1G"], ["off", run + "/below"]):
            done = as_user(cairnfs, "quota", *words)
            assert done.returncode == PERMISSION, done
        for name in ("user.cairnfs.quota",):
            try:
                os.setxattr(run + "/below", name, b"{}")
                raise AssertionError("an attribute of the daemon's own was set")
            except OSError as error:
                assert error.errno == errno.EPERM, error
        mount.umount()


def sums_are_those_of_a_walk_after_kills():
    """Random changes, a kill of the daemon in the midst of them, again and again: the sums are those of a walk."""
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    chance = random.Random(seed)
    points = [f"{point}=kill@{number}" for number in (1, 2, 4) for point in (
        "fs.round_published", "fs.round_data_synced", "fs.round_flushed", "meta.orphan_removed")]
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = mount.path + "/run"
        os.makedirs(run + "/sub")
        call("quota", "set", run, "--logical", "64M", "--unique", "48M")
        for number in range(kills):
            for _ in range(chance.randrange(5, 30)):
                with contextlib.suppress(OSError):
                    change(chance, run)
            if chance.random() < 0.5:
                sync(mount)
            mount.kill()
            # This one ends somewhere in between.
            with failpoint(chance.choice(points)):
                mount = Mount(scratch)
            for _ in range(chance.randrange(10)):
                with contextlib.suppress(OSError):
                    change(chance, run)
            mount.kill()
            mount = Mount(scratch)
            sync(mount)
            assert used(run)[0] == walk(run) <= 64 * MIB, (seed, number, used(run), walk(run))
            assert used(run)[1] <= used(run)[0]
        mount.umount()


def change(chance, run):
    folder = chance.choice([run, run + "/sub"])
    path = f"{folder}/{chance.randrange(6)}"
    what = chance.randrange(7)
    if what == 0:
        os.unlink(path)
    elif what == 1:
        os.truncate(path, chance.randrange(1024) * 4096)
    elif what == 2:
        os.rename(path, f"{run}/sub/{chance.randrange(6)}")
    elif what == 3:
        os.link(path, f"{run}/sub/{chance.randrange(6)}")
    elif what == 4:
        shutil.copyfile(path, f"{run}/{chance.randrange(6)}")
    else:
        write(path, chance.randbytes(chance.randrange(2048) * 4096), flags=os.O_CREAT)


def a_kill_while_it_is_set_is_gone_on_with():
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = mount.path + "/run"
        for folder in range(6):
            os.makedirs(f"{run}/{folder}")
            for name in range(30):
                write(f"{run}/{folder}/{name}", os.urandom(4096))
        for words, point in ((["set", run, "--logical", "100M"], "fs.round_published=kill@3"),
                             (["off", run], "fs.round_flushed=kill@5")):
            mount.umount()
            with failpoint(point):
                mount = Mount(scratch)
            subprocess.run([program("cairnfs"), "quota", *words], capture_output=True, timeout=120, check=False)
            mount.kill()
            mount = Mount(scratch)
            if words[0] == "set":
                call("quota", *words)
                sync(mount)
                assert used(run)[0] == walk(run) == 180 * 4096, (used(run), walk(run))
            else:
                subprocess.run([program("cairnfs"), "quota", *words], capture_output=True, timeout=120, check=False)
                wait_until(lambda: json.loads(call("quota", "show", mount.path, "--json").stdout)["quotas"] == [])
                os.rename(run + "/1/1", mount.path + "/out")
        mount.umount()


if __name__ == "__main__":
    if "--kills" in sys.argv:
        place = sys.argv.index("--kills")
        kills = int(sys.argv[place + 1])
        del sys.argv[place:place + 2]
    sys.exit(run_cases([a_quota_bounds_what_is_written, unique_bytes_count_for_who_wrote_first,
                        what_lies_there_counts_when_it_is_set, names_stay_in_one_quota,
                        the_trash_and_files_that_appear_whole, what_retention_removed_makes_room, wrong_input_is_told,
                        sums_are_those_of_a_walk_after_kills, a_kill_while_it_is_set_is_gone_on_with]))
