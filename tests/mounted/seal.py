#!/usr/bin/env python3
"""Sealed directories: nothing below one can be changed or removed, by nobody and in no way, until its owner or root ends
that; on one host and on three. Options: tests/support/cluster_world.py; names of cases. Run as root.
"""

import contextlib
import errno
import json
import mmap
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, program, run_cases, seed_from_arguments
from cluster import Cluster, wait_until
from cluster_world import OPTIONS, World, read, stores_of, write
from runs import STEP, call, exchange

OWNER, STRANGER = 1234, 4321
DONE, USAGE, BUSY, DENIED = 0, 2, 5, 6


def as_user(uid, *words, cwd=None):
    return subprocess.run(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *words], cwd=cwd,
                          capture_output=True, text=True, timeout=120, check=False)


def attempt(*words):
    return subprocess.run([program("cairnfs"), *words], capture_output=True, text=True, timeout=120, check=False)


def failure_of(act):
    """The errno with which it fails; 0: it does not."""
    try:
        act()
    except OSError as error:
        return error.errno
    return 0


def sealed(path):
    try:
        return os.getxattr(path, "user.cairnfs.sealed").decode()
    except OSError as error:
        assert error.errno == errno.ENODATA, error
        return None


def make(path):
    """A checkpoint with something of each kind in it."""
    os.makedirs(path + "/below/more")
    write(path + "/file", b"content")
    os.setxattr(path + "/file", "user.before", b"1")
    write(path + "/below/deep", b"deep")
    os.symlink("file", path + "/link")


def changes_of(top, outside):
    """Each way to change what is below: by its name, what does it, and whether nothing of it takes the names away."""
    fd = os.open(top + "/file", os.O_RDONLY)
    folder = os.open(top + "/below", os.O_RDONLY | os.O_DIRECTORY)
    ways = {
        "open for writing": lambda: os.close(os.open(top + "/file", os.O_WRONLY)),
        "open for both": lambda: os.close(os.open(top + "/below/deep", os.O_RDWR)),
        "open for appending": lambda: os.close(os.open(top + "/file", os.O_WRONLY | os.O_APPEND)),
        "open and empty": lambda: os.close(os.open(top + "/file", os.O_RDONLY | os.O_TRUNC)),
        "create": lambda: os.close(os.open(top + "/below/new", os.O_CREAT | os.O_WRONLY)),
        "create by the directory's descriptor": lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=folder)),
        "truncate": lambda: os.truncate(top + "/file", 3),
        "mkdir": lambda: os.mkdir(top + "/new"),
        "mkfifo": lambda: os.mkfifo(top + "/new"),
        "symlink": lambda: os.symlink("x", top + "/new"),
        "link inside": lambda: os.link(top + "/file", top + "/new"),
        "link in": lambda: os.link(outside + "/free", top + "/new"),
        "link out": lambda: os.link(top + "/file", outside + "/new"),
        "unlink": lambda: os.unlink(top + "/file"),
        "rmdir": lambda: os.rmdir(top + "/below/more"),
        "rename inside": lambda: os.rename(top + "/file", top + "/new"),
        "rename out": lambda: os.rename(top + "/below", outside + "/new"),
        "rename in": lambda: os.rename(outside + "/free", top + "/new"),
        "rename over": lambda: os.rename(outside + "/free", top + "/file"),
        "exchange": lambda: exchange(outside + "/free", top + "/file"),
        "exchange of the directory": lambda: exchange(outside, top),
        "rename of the directory": lambda: os.rename(top, top + ".new"),
        "chmod": lambda: os.chmod(top + "/file", 0o600),
        "fchmod of a file open for reading": lambda: os.fchmod(fd, 0o600),
        "chmod of the directory": lambda: os.chmod(top, 0o700),
        "chown": lambda: os.chown(top + "/file", OWNER, OWNER),
        "lchown of the link": lambda: os.lchown(top + "/link", OWNER, OWNER),
        "utimens": lambda: os.utime(top + "/file", (1, 1)),
        "utimens of a directory": lambda: os.utime(top + "/below", (1, 1)),
        "setxattr": lambda: os.setxattr(top + "/file", "user.mine", b"1"),
        "removexattr": lambda: os.removexattr(top + "/file", "user.before"),
        "a policy": lambda: os.setxattr(top, "user.cairnfs.retain", b'{"keep_last":1}'),
        "a level": lambda: os.setxattr(top, "user.cairnfs.level", b"local"),
        "seal of what is below": lambda: os.setxattr(top + "/below", "user.cairnfs.sealed", b"1"),
    }
    return ways, [fd, folder]


def contents_of(top):
    found = {}
    for path, folders, files in os.walk(top):
        for name in folders + files:
            info = os.lstat(os.path.join(path, name))
            found[os.path.relpath(os.path.join(path, name), top)] = (
                info.st_ino, info.st_mode, info.st_uid, info.st_size, info.st_nlink, info.st_mtime_ns, info.st_ctime_ns)
    return found


def expect_all_refused(top, outside):
    before = contents_of(top)
    ways, descriptors = changes_of(top, outside)
    try:
        for name, act in ways.items():
            found = failure_of(act)
            # On a host alone there are no levels.
            allowed = (errno.EROFS, errno.EOPNOTSUPP, errno.EPERM) if name == "a level" else (errno.EROFS,)
            assert found in allowed, (name, errno.errorcode.get(found, found))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert contents_of(top) == before
    assert read(top + "/file") == b"content" and os.listdir(top + "/below/more") == []


def nothing_below_can_be_changed(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1h")
        os.chmod(mount.data, 0o711)
        os.mkdir(mount.path + "/out")
        write(mount.path + "/out/free", b"free")
        top = mount.path + "/run/step-1"
        make(top)
        write(top + "/gone", b"gone")
        os.unlink(top + "/gone")
        subprocess.run(["chown", "-Rh", f"{OWNER}:{OWNER}", mount.path + "/run"], check=True)
        # A stranger may not.
        done = as_user(STRANGER, program("cairnfs"), "seal", top)
        assert done.returncode == DENIED and "owner and root" in done.stderr, done
        done = as_user(OWNER, program("cairnfs"), "seal", top, "--json")
        assert done.returncode == DONE and json.loads(done.stdout)["sealed"], done
        assert sealed(top) == "1" and sealed(top + "/below") == "below" and sealed(mount.path + "/run") is None
        expect_all_refused(top, mount.path + "/out")
        for uid in (OWNER, STRANGER):
            for words in (("rm", "-rf", top), ("touch", top + "/file"), ("sh", "-c", f"echo x >> {top}/file")):
                done = as_user(uid, *words)
                assert done.returncode != 0 and "file" in contents_of(top), (uid, words, done)
        # Nothing is restored into it, and nothing above it goes with it.
        entry = json.loads(call("trash", "ls", mount.path, "--json").stdout)["entries"][0]
        refused = attempt("trash", "restore", str(entry["id"]), "--mount", mount.path)
        assert refused.returncode != 0 and "sealed" in refused.stderr, refused
        assert failure_of(lambda: os.rmdir(mount.path + "/run")) == errno.ENOTEMPTY
        os.rename(mount.path + "/run", mount.path + "/runs")
        os.rename(mount.path + "/runs", mount.path + "/run")
        # Pins, holds and metrics change nothing of it.
        os.setxattr(top, "user.cairnfs.metric.loss", b"1")
        os.removexattr(top, "user.cairnfs.metric.loss")
        call("hold", top, "--for", "1h")
        call("pin", top)
        call("unpin", top)
        # It outlives the daemon, also a killed one.
        mount.kill()
        mount = Mount(scratch, SMALL + ",trash=1h")
        expect_all_refused(top, mount.path + "/out")
        done = as_user(STRANGER, program("cairnfs"), "unseal", top)
        assert done.returncode == DENIED, done
        done = as_user(OWNER, program("cairnfs"), "unseal", top)
        assert done.returncode == DONE and sealed(top) is None, done
        write(top + "/file", b"changed")
        os.unlink(top + "/below/deep")
        mount.check()
        mount.umount()


def a_file_is_sealed_under_each_of_its_names(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL)
        make(mount.path + "/step")
        os.mkdir(mount.path + "/out")
        os.link(mount.path + "/step/file", mount.path + "/out/file")
        write(mount.path + "/out/other", b"other")
        call("seal", mount.path + "/step")
        second = mount.path + "/out/file"
        for act in (lambda: os.close(os.open(second, os.O_WRONLY)), lambda: os.truncate(second, 1),
                    lambda: os.chmod(second, 0o600), lambda: os.link(second, mount.path + "/out/third")):
            assert failure_of(act) == errno.EROFS
        write(mount.path + "/out/other", b"changed")
        os.unlink(second)
        assert read(mount.path + "/step/file") == b"content"
        assert failure_of(lambda: os.truncate(mount.path + "/step/file", 1)) == errno.EROFS
        call("unseal", mount.path + "/step")
        os.truncate(mount.path + "/step/file", 1)
        mount.umount()


def it_is_refused_while_somebody_writes(_seed):
    with Scratch() as scratch, contextlib.ExitStack() as held:
        mount = Mount(scratch, SMALL)
        top = mount.path + "/step"
        make(top)
        writer = open(top + "/below/deep", "r+b")
        refused = call("seal", top, expect=BUSY)
        assert "'step/below/deep' is open for writing" in refused.stderr, refused
        assert sealed(top) is None
        writer.write(b"DEEP")
        writer.flush()
        # A mapping is a writer too, also once its descriptor is closed.
        mapping = mmap.mmap(writer.fileno(), 4) if has_mappings(writer) else None
        writer.close()
        if mapping is not None:
            expect_writer(top, "below/deep")
            mapping[0:1] = b"d"
            mapping.close()
        # Who reads is in nobody's way, and one who has just closed neither.
        held.enter_context(open(top + "/file", "rb"))
        with open(top + "/below/deep", "r+b") as file:
            file.write(b"last")
        call("seal", top)
        assert read(top + "/below/deep") == b"last"
        assert failure_of(lambda: os.close(os.open(top + "/below/deep", os.O_RDWR))) == errno.EROFS
        call("unseal", top)
        # By the name that it has elsewhere.
        os.link(top + "/file", mount.path + "/second")
        with open(mount.path + "/second", "r+b"):
            expect_writer(top, "is open for writing")
        held.close()
        mount.umount()


def expect_writer(top, said):
    """The call is refused soon; the command asks again for some seconds."""
    assert failure_of(lambda: os.setxattr(top, "user.cairnfs.sealed", b"1")) == errno.EBUSY
    assert said in os.getxattr(top, "user.cairnfs.writers").decode()


def has_mappings(file):
    try:
        mmap.mmap(file.fileno(), 1).close()
    except OSError as error:
        assert error.errno == errno.ENODEV, error
        return False
    return True


def bad_input_is_told(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL)
        os.mkdir(mount.path + "/dir")
        write(mount.path + "/file", b"x")
        os.symlink("dir", mount.path + "/link")
        for path, said in (("/", "root of a filesystem"), ("/file", "no directory"), ("/link", "symbolic link"),
                           ("/none", "No such file")):
            done = attempt("seal", mount.path + path)
            assert done.returncode != 0 and said in done.stderr, (path, done)
        assert failure_of(lambda: os.setxattr(mount.path + "/dir", "user.cairnfs.sealed", b"2")) == errno.EINVAL
        assert failure_of(lambda: os.setxattr(mount.path + "/dir", "user.cairnfs.writers", b"")) == errno.EPERM
        call("unseal", mount.path + "/dir")
        call("seal", mount.path + "/dir")
        call("seal", mount.path + "/dir")
        assert failure_of(lambda: os.setxattr(mount.path + "/dir", "user.cairnfs.sealed", b"at-commit")) == errno.EROFS
        call("unseal", mount.path + "/dir")
        mount.umount()


def commits_seal(_seed):
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL)
        os.mkdir(mount.path + "/run")
        os.mkdir(mount.path + "/out")
        write(mount.path + "/out/free", b"free")
        # The directory says so for all.
        done = json.loads(call("seal", mount.path + "/run", "--commits", "--json").stdout)
        assert done["seals_commits"] and not done["sealed"], done
        make(mount.path + "/run/step-1.tmp")
        os.rename(mount.path + "/run/step-1.tmp", mount.path + "/run/step-1")
        assert sealed(mount.path + "/run/step-1") == "1"
        expect_all_refused(mount.path + "/run/step-1", mount.path + "/out")
        # One that is still written to is not committed.
        make(mount.path + "/run/step-2.tmp")
        with open(mount.path + "/run/step-2.tmp/file", "r+b"):
            assert failure_of(lambda: os.rename(mount.path + "/run/step-2.tmp", mount.path + "/run/step-2")) == errno.EBUSY
        assert sealed(mount.path + "/run/step-2.tmp") is None
        os.rename(mount.path + "/run/step-2.tmp", mount.path + "/run/step-2")
        assert sealed(mount.path + "/run/step-2") == "1"
        call("unseal", mount.path + "/run")
        make(mount.path + "/run/step-3.tmp")
        os.rename(mount.path + "/run/step-3.tmp", mount.path + "/run/step-3")
        assert sealed(mount.path + "/run/step-3") is None
        # Or one commit does, deferred or of ranks.
        for step, words in (("4", ("--ranks", "1", "--rank", "0")), ("5", ("--async",))):
            make(mount.path + f"/run/step-{step}.tmp")
            done = call("commit", "--seal", *words, mount.path + f"/run/step-{step}.tmp", mount.path + f"/run/step-{step}")
            if "--async" in words:
                call("commit", "--wait", done.stdout.strip(), mount.path)
            assert sealed(mount.path + f"/run/step-{step}") == "1", step
        # What holds a deferred one up is told.
        make(mount.path + "/run/held.tmp")
        with open(mount.path + "/run/held.tmp/file", "r+b"):
            ticket = call("commit", "--seal", "--async", mount.path + "/run/held.tmp", mount.path + "/run/held").stdout.strip()

            def is_told():
                said = attempt("commit", "--wait", ticket, mount.path, "--timeout", "1s")
                return "'run/held.tmp/file' is open for writing" in said.stdout + said.stderr
            wait_until(is_told, what="the writer is told")
        call("commit", "--wait", ticket, mount.path)
        # What is sealed never goes, and is told.
        told = call("retain", mount.path + "/run", "--dry-run", "--keep-last", "1", "--match", STEP).stdout
        assert told.count("it is sealed") >= 3, told
        call("retain", mount.path + "/run", "--now", "--keep-last", "1", "--match", STEP)
        left = sorted(os.listdir(mount.path + "/run"))
        assert left == ["held", "step-1", "step-2", "step-4", "step-5"], left
        listed = call("ls", mount.path + "/run").stdout
        assert "sealed" in listed, listed
        # One in which something is sealed stays whole, also where it would go entry by entry.
        for step in (6, 7):
            make(mount.path + f"/run/step-{step}.tmp")
            os.rename(mount.path + f"/run/step-{step}.tmp", mount.path + f"/run/step-{step}")
        call("seal", mount.path + "/run/step-6/below")
        for words in ((), ("--keep-inside", "link")):
            for when in ("--dry-run", "--now"):
                told = call("retain", mount.path + "/run", when, "--keep-last", "1", "--match", STEP, *words).stdout
                assert "'run/step-6/below' in it is sealed" in told, told
            assert sorted(os.listdir(mount.path + "/run/step-6")) == ["below", "file", "link"], words
        mount.check()
        mount.umount()


def a_daemon_that_dies_while_it_seals_leaves_a_way_on(_seed):
    for commits in (True, False):
        with Scratch() as scratch:
            mount = Mount(scratch, SMALL)
            make(mount.path + "/tmp")
            os.mkdir(mount.path + "/out")
            write(mount.path + "/out/free", b"free")
            mount.umount()
            os.environ["CAIRNFS_FAILPOINTS"] = "fs.seal_marked=kill"
            try:
                mount = Mount(scratch, SMALL)
            finally:
                del os.environ["CAIRNFS_FAILPOINTS"]
            if commits:
                os.setxattr(mount.path + "/tmp", "user.cairnfs.sealed", b"at-commit")
                assert failure_of(lambda: os.rename(mount.path + "/tmp", mount.path + "/final")) != 0
            else:
                assert attempt("seal", mount.path + "/tmp").returncode != 0
            mount.kill()
            mount = Mount(scratch, SMALL)
            assert sealed(mount.path + "/tmp") == ("at-commit" if commits else None)
            write(mount.path + "/tmp/file", b"content")
            if commits:
                os.rename(mount.path + "/tmp", mount.path + "/final")
                assert sealed(mount.path + "/final") == "1"
                expect_all_refused(mount.path + "/final", mount.path + "/out")
                call("unseal", mount.path + "/final")
                os.chmod(mount.path + "/final/file", 0o600)
            else:
                call("seal", mount.path + "/tmp")
                expect_all_refused(mount.path + "/tmp", mount.path + "/out")
                call("unseal", mount.path + "/tmp")
            mount.check()
            mount.umount()


def it_holds_on_all_hosts(world):
    one, two, three = world.hosts
    make(one.path("step"))
    os.mkdir(one.path("out"))
    write(one.path("out", "free"), b"free")
    with open(two.path("step", "below", "deep"), "r+b"):
        done = subprocess.run(one.inside(program("cairnfs"), "seal", one.path("step")), capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == BUSY and two.name in done.stderr and "step/below/deep" in done.stderr, done
        os.truncate(three.path("step", "file"), 7)
    # What others wrote last is in it, and from then on it holds everywhere.
    write(two.path("step", "below", "deep"), b"last")
    one.cairnfs("seal", one.path("step"))
    for host in world.hosts:
        assert read(host.path("step", "below", "deep")) == b"last", host.name
        expect_all_refused(host.path("step"), host.path("out"))
    two.cairnfs("unseal", two.path("step"))
    for host in world.hosts:
        write(host.path("step", "file"), b"content")
        os.chmod(host.path("step", "file"), 0o644)


def a_host_that_dies_at_a_commit_leaves_it_to_the_next_try(world):
    one, two, _ = world.hosts
    one.umount()
    one.mount(CAIRNFS_FAILPOINTS="fs.seal_marked=kill")
    make(one.path("tmp"))
    os.mkdir(one.path("out3"))
    write(one.path("out3", "free"), b"free")
    words = ("commit", "--seal", "--ranks", "1", "--rank", "0")
    subprocess.run(one.inside(program("cairnfs"), *words, one.path("tmp"), one.path("final")), check=False, timeout=60)
    one.kill()
    one.mount()
    assert sealed(one.path("tmp")) == "sealing"
    assert failure_of(lambda: os.unlink(one.path("tmp", "file"))) == errno.EROFS
    two.cairnfs(*words, two.path("tmp"), two.path("final"))
    assert sealed(one.path("final")) == "1"
    expect_all_refused(one.path("final"), one.path("out3"))
    two.cairnfs("unseal", two.path("final"))


def a_host_that_comes_later_knows(world):
    one, two, _ = world.hosts
    make(one.path("later"))
    write(one.path("free2"), b"free")
    two.umount()
    one.cairnfs("seal", one.path("later"))
    two.mount()
    os.makedirs(two.path("out2"))
    write(two.path("out2", "free"), b"free")
    expect_all_refused(two.path("later"), two.path("out2"))
    one.cairnfs("unseal", one.path("later"))


ALONE = (nothing_below_can_be_changed, a_file_is_sealed_under_each_of_its_names, it_is_refused_while_somebody_writes,
         bad_input_is_told, commits_seal, a_daemon_that_dies_while_it_seals_leaves_a_way_on)
AMONG_SEVERAL = (it_holds_on_all_hosts, a_host_that_comes_later_knows,
                 a_host_that_dies_at_a_commit_leaves_it_to_the_next_try)


def main():
    seed = seed_from_arguments()
    worst = run_cases(ALONE, seed)
    for store in stores_of(seed):
        print(f"-- metadata: {store}", flush=True)
        with Scratch() as scratch:
            with Cluster(scratch, hosts=3, metadata=store, options=OPTIONS) as cluster:
                cluster.start()
                code = run_cases(AMONG_SEVERAL, World(cluster, seed))
                if code != 0:
                    print(cluster.logs(), flush=True)
                worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
