#!/usr/bin/env python3
"""Bad input: each case asserts the message or the errno, and that nothing crashes. Run as root."""

import errno
import glob
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, Skip, program, run, run_cases, seed_from_arguments

USAGE, NO_DAEMON, PROBLEMS, BUSY, PERMISSION, CORRUPT = 2, 3, 4, 5, 6, 7
NOBODY = 65534


def call(*command, **options):
    """Exit code and everything printed."""
    command = [os.fsencode(word) for word in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=120, check=False, **options)
    return done.returncode, done.stdout


def try_mount(scratch, *words, data=None, point=None, **options):
    point = point or scratch.directory("point")
    data = data or os.path.join(scratch.path, "data")
    return call(program("cairnfs"), "mount", point, "--data", data, "-o", SMALL, *words, **options)


def expect(result, code, *texts):
    """The exit code, and every text in the output."""
    got, output = result
    assert got == code, f"exit code {got}, not {code}:\n{output}"
    for text in texts:
        assert text in output, f"{text!r} is not in:\n{output}"


def expect_errno(number, function, *arguments, **options):
    numbers = number if isinstance(number, tuple) else (number,)
    try:
        function(*arguments, **options)
    except OSError as error:
        assert error.errno in numbers, f"{errno.errorcode[error.errno]}, not {[errno.errorcode[n] for n in numbers]}"
    else:
        raise AssertionError(f"no error, where {[errno.errorcode[n] for n in numbers]} is right")


def made_data(scratch, files=()):
    """A data directory with a filesystem in it, unmounted; `files` are (name, bytes)."""
    mount = Mount(scratch)
    for name, content in files:
        with open(os.path.join(mount.path, name), "wb") as file:
            file.write(content)
    mount.umount()
    return mount


# --- configuration and command line --------------------------------------------------------------------------------


def config_file_errors_name_line_and_key(_):
    with Scratch() as scratch:
        path = os.path.join(scratch.path, "c.toml")

        def with_config(text):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return try_mount(scratch, "--config", path)

        expect(with_config("log_level = \"info\"\npool_sise = 1\n"), USAGE, "c.toml:2: unknown key 'pool_sise'",
               "nearest valid key is 'pool_size'")
        expect(with_config("receive_threads = \"two\"\n"), USAGE, "c.toml:1: receive_threads: must be a whole number")
        expect(with_config("flush_interval = \"9h\"\n"), USAGE, "must lie between 10ms and 4s")
        expect(with_config("rename = \"fast\"\n"), USAGE, "must be one of \"ordered\", \"durable\"")
        expect(with_config("a = = b\n"), USAGE, "c.toml:1: not valid TOML")
        expect(try_mount(scratch, "--config", path + ".none"), 1, "cannot read the configuration", "c.toml.none")
        assert not os.path.exists(os.path.join(scratch.path, "data")), "a wrong configuration made a data directory"


def mount_options_are_checked(_):
    with Scratch() as scratch:
        expect(try_mount(scratch, "-o", "pol_size=1G"), USAGE, "unknown key 'pol_size'", "'pool_size'")
        expect(try_mount(scratch, "-o", "pool_size=lots"), USAGE, "pool_size: 'lots' is not a size")
        expect(call(program("mount.cairnfs"), "only-one"), 1, "use: mount.cairnfs")
        expect(call(program("mount.cairnfs"), "/x", scratch.directory("point"), "-o", "renam=durable"), 32,
               "nearest valid key is 'rename'")


def command_line_errors(_):
    with Scratch() as scratch:
        cairnfs = program("cairnfs")
        plain = scratch.directory("plain")
        for words in ([], ["mont"], ["mount", "--no-such"], ["wait"], ["umount"], ["status", "a", "--data", "b"]):
            code, output = call(cairnfs, *words)
            assert code == USAGE and output, (words, code, output)
        expect(call(cairnfs, "umount", plain), NO_DAEMON, "no CairnFS is mounted at " + plain)
        expect(call(cairnfs, "status", plain), NO_DAEMON, "no CairnFS is mounted at " + plain)
        expect(call(cairnfs, "wait", plain), NO_DAEMON, "no CairnFS is mounted at " + plain)
        expect(call(cairnfs, "wait", plain + "/none"), 1, "none", "No such file")
        expect(call(cairnfs, "check", "--data", plain), USAGE, "is not a CairnFS data directory")
        assert not os.listdir(plain), "a check left something in a directory that is not ours"
        expect(call(program("cairnfsd"), "--no-such"), USAGE)
        expect(call(program("cairnfsd"), plain, "--data", scratch.path + "/d",
                    env=dict(os.environ, CAIRNFS_FAILPOINTS="no.such=kill")), USAGE, "no failpoint 'no.such'")


def log_and_metrics_that_cannot_be_had(_):
    with Scratch() as scratch:
        expect(try_mount(scratch, "-o", "log_file=/dev/null/log"), 1, "cannot open the log file /dev/null/log")
        nowhere = scratch.path + "/no/such"
        expect(try_mount(scratch, "-o", f"log_file={nowhere}/log"), 1, f"the directory {nowhere} does not exist")
        assert not os.path.exists(scratch.path + "/no"), "the log file's directory was made"
        assert not os.path.exists(scratch.path + "/data"), "a mount that cannot be made a data directory"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            expect(try_mount(scratch, "-o", "metrics_address=" + address), 1, "cannot serve metrics on " + address)
        assert not os.path.ismount(scratch.path + "/point")


# --- data directory ------------------------------------------------------------------------------------------------


def data_of_a_newer_format(_):
    with Scratch() as scratch:
        mount = made_data(scratch)
        path = os.path.join(mount.data, "format")
        with open(path, encoding="ascii") as file:
            text = file.read()
        with open(path, "w", encoding="ascii") as file:
            file.write(text.replace("version = 1", "version = 2"))
        expect(try_mount(scratch, data=mount.data), CORRUPT, "format version 2", "versions up to 1", "newer cairnfs")
        with open(path, "w", encoding="ascii") as file:
            file.write("nonsense")
        expect(try_mount(scratch, data=mount.data), CORRUPT, "format is damaged")
        os.unlink(path)
        expect(try_mount(scratch, data=mount.data), CORRUPT, "'format' is missing")


def half_made_data_is_made_anew(_):
    with Scratch() as scratch:
        for point in ("daemon.making_begun", "daemon.header_written", "daemon.before_format", "daemon.after_format"):
            data = os.path.join(scratch.path, point)
            code, _ = try_mount(scratch, data=data, env=dict(os.environ, CAIRNFS_FAILPOINTS=point + "=kill"))
            assert code != 0, f"{point} did not kill the daemon"
            expect(try_mount(scratch, data=data), 0)
            run(program("cairnfs"), "umount", scratch.directory("point"))
            expect(call(program("cairnfs"), "check", "--data", data), 0, "clean")


def data_that_is_something_else(_):
    with Scratch() as scratch:
        strange = scratch.directory("strange")
        with open(strange + "/thesis.tex", "w", encoding="ascii"):
            pass
        expect(try_mount(scratch, data=strange), USAGE, "is not a CairnFS data directory", "thesis.tex")
        assert os.listdir(strange) == ["thesis.tex"]
        expect(try_mount(scratch, data=strange + "/thesis.tex"), 1, "is not a directory")
        expect(try_mount(scratch, data=scratch.path + "/no/such"), 1, scratch.path + "/no does not exist")


def data_that_cannot_be_written(_):
    with Scratch() as scratch:
        data = scratch.directory("read-only")
        run("mount", "-t", "tmpfs", "-o", "ro", "none", data)
        expect(try_mount(scratch, data=data), PERMISSION, "is not writable")
        run("umount", data)
        private = scratch.directory("private")
        os.chmod(private, 0o755)
        expect(try_mount(scratch, data=private, user=NOBODY, group=NOBODY, extra_groups=[]), PERMISSION,
               f"{private} is not writable by user {NOBODY}")


def data_of_another_user(_):
    """Root would leave files in it that its owner cannot read; files that are closed are no damage."""
    with Scratch() as scratch:
        mount = made_data(scratch)
        run("chown", "-R", str(NOBODY), mount.data)
        for command in (("mount", scratch.directory("point"), "--data", mount.data),
                        ("check", "--data", mount.data), ("check", "--rebuild-index", "--data", mount.data)):
            expect(call(program("cairnfs"), *command), PERMISSION, f"(uid {NOBODY}): run this as that user",
                   f"chown -R root {mount.data}")
        owners = {os.lstat(path).st_uid for path in glob.glob(mount.data + "/**", recursive=True)}
        assert owners == {NOBODY}, owners
        # What an earlier version left behind.
        os.chown(mount.data + "/metadata/CURRENT", 0, 0)
        os.chmod(mount.data + "/metadata/CURRENT", 0o600)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        os.chown(scratch.directory("point"), NOBODY, NOBODY)
        expect(try_mount(scratch, data=mount.data, **user), PERMISSION, "CURRENT: Permission denied",
               "that file belongs to root (uid 0)", "as root: chown -R", mount.data)
        run("chown", "-R", "root", mount.data)
        mount.mount()
        mount.umount()


def full_disk_at_the_first_start(_):
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 16 << 20)
        with open(disk + "/ballast", "wb") as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError as error:
                assert error.errno == errno.ENOSPC
        os.mkdir(disk + "/data")
        code, output = try_mount(scratch, data=disk + "/data")
        assert code != 0 and "space" in output, (code, output)


def full_disk_keeps_what_was_committed(seed):
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 192 << 20)
        mount = Mount(scratch, data=disk + "/data")
        kept = random.Random(seed).randbytes(8 << 20)
        with open(mount.path + "/kept", "wb", buffering=0) as file:
            file.write(kept)
            os.fsync(file.fileno())
        full = False
        for index in range(64):
            try:
                with open(f"{mount.path}/filler-{index}", "wb", buffering=0) as file:
                    file.write(random.Random(seed + index + 1).randbytes(8 << 20))
                    os.fsync(file.fileno())
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                full = True
                break
        assert full, "512 MiB fit on a disk of 192 MiB"
        with open(mount.path + "/kept", "rb") as file:
            assert file.read() == kept
        # What did not fit was reported by the write or the fsync; the stop may say it once more.
        code, output = call(*mount.umount_command())
        assert code == 0 or "no space" in output, (code, output)
        mount.mount()
        with open(mount.path + "/kept", "rb") as file:
            assert file.read() == kept
        for name in glob.glob(mount.path + "/filler-*"):
            os.unlink(name)
        mount.collect()
        with open(mount.path + "/again", "wb", buffering=0) as file:
            file.write(random.Random(seed + 99).randbytes(32 << 20))
            os.fsync(file.fileno())
        mount.check()
        mount.umount()


def second_daemon_says_who_holds_the_data(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        expect(try_mount(scratch, data=mount.data), BUSY, "is in use by process " + str(mount.pid), "running")
        expect(call(program("cairnfs"), "check", "--rebuild-index", "--data", mount.data), BUSY, str(mount.pid))
        mount.umount()


# --- mount point ----------------------------------------------------------------------------------------------------


def mount_points_that_are_wrong(_):
    with Scratch() as scratch:
        expect(try_mount(scratch, point=scratch.path + "/none"), 1, scratch.path + "/none")
        file_path = scratch.path + "/file"
        with open(file_path, "w", encoding="ascii"):
            pass
        expect(try_mount(scratch, point=file_path), 1, "not a directory")
        full = scratch.directory("full")
        os.mkdir(full + "/something")
        expect(try_mount(scratch, point=full), 1, "not empty")
        mount = Mount(scratch)
        expect(try_mount(scratch, data=scratch.path + "/second", point=mount.path), BUSY, "already")
        assert os.path.ismount(mount.path) and mount.status()["pid"] == mount.pid
        mount.umount()


def mount_of_a_dead_daemon_is_cleaned_up(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb", buffering=0) as file:
            file.write(b"kept")
            os.fsync(file.fileno())
        os.kill(mount.pid, signal.SIGKILL)
        for _ in range(100):
            try:
                os.stat(mount.path + "/file")
                time.sleep(0.05)
            except OSError as error:
                assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED), error
                break
        expect(call(program("cairnfs"), "status", mount.path), NO_DAEMON, "no daemon answers")
        mount.mount()
        with open(mount.path + "/file", "rb") as file:
            assert file.read() == b"kept"
        assert "not closed cleanly" in mount.log()
        os.kill(mount.pid, signal.SIGKILL)
        time.sleep(0.5)
        expect(call(program("cairnfs"), "umount", mount.path), 0)
        assert not os.path.ismount(mount.path)
        mount.pid = None


def mount_right_after_the_daemon_died(_):
    """The kernel answers a stat of the dead mount from its cache for a second."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.stat(mount.path)
        os.kill(mount.pid, signal.SIGKILL)
        time.sleep(0.3)
        os.stat(mount.path)
        mount.mount()
        mount.umount()


def umount_while_busy(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb") as file:
            expect(call(program("cairnfs"), "umount", mount.path), BUSY, mount.path)
            file.write(b"still served")
        with open(mount.path + "/file", "rb") as file:
            assert file.read() == b"still served"
        mount.umount()


def no_dev_fuse(_):
    with Scratch() as scratch:
        script = ("mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && exec "
                  + " ".join([program("cairnfs"), "mount", scratch.directory("point"), "--data", scratch.path + "/d"]))
        expect(call("unshare", "-m", "sh", "-c", script), NO_DAEMON, "/dev/fuse")


def not_root(_):
    with Scratch() as scratch:
        for name in ("data", "point"):
            os.chown(scratch.directory(name), NOBODY, NOBODY)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        if not os.access(os.path.dirname(program("cairnfsd")), os.X_OK) or call("true", **user)[0] != 0:
            raise Skip("another user cannot run the programs")
        code, output = try_mount(scratch, **user)
        if code == 0:
            run(program("cairnfs"), "umount", scratch.path + "/point", **user)
            return "mounted through fusermount3"
        assert code in (NO_DAEMON, PERMISSION) and ("fusermount3" in output or "/dev/fuse" in output), (code, output)
        return output.strip()


def no_fusermount(_):
    with Scratch() as scratch:
        for name in ("data", "point"):
            os.chown(scratch.directory(name), NOBODY, NOBODY)
        device = scratch.path + "/fuse"
        os.mknod(device, 0o666 | 0o020000, os.makedev(10, 229))
        os.chmod(device, 0o666)
        mount = f"{program('cairnfs')} mount {scratch.path}/point --data {scratch.path}/data -o {SMALL}"
        script = (f"mount --bind {device} /dev/fuse && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups "
                  f"env PATH={scratch.directory('empty')} {mount}")
        expect(call("unshare", "-m", "sh", "-ec", script), PERMISSION, "fusermount3 is not installed",
               "install the package fuse3")


# --- names, offsets, xattrs -------------------------------------------------------------------------------------------


def names(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        base = os.fsencode(mount.path)
        longest = b"n" * 255
        odd = bytes(set(range(1, 256)) - {ord("/")})
        for name in (longest, odd[:127], odd[127:], b"\xff\xfe", b"new\nline", b" ", b"...", b"-rf", b"\xc3\x28"):
            os.mkdir(base + b"/" + name)
            with open(base + b"/" + name + b"/" + name, "wb") as file:
                file.write(name)
        expect_errno(errno.ENAMETOOLONG, os.mkdir, base + b"/" + b"n" * 256)
        expect_errno(errno.ENAMETOOLONG, os.rename, base + b"/" + longest, base + b"/" + b"n" * 256)
        expect_errno(errno.ENAMETOOLONG, os.stat, base + b"/" + b"n" * 1000)
        expect_errno(errno.ENAMETOOLONG, os.symlink, b"t" * 4096, base + b"/link")
        os.symlink(b"t" * 4095, base + b"/link")
        expect_errno(errno.EINVAL, os.rename, base + b"/" + longest, base + b"/" + longest + b"/below")
        listing = sorted(os.listdir(base))
        mount.remount()
        assert sorted(os.listdir(base)) == listing and len(listing) == 10
        with open(base + b"/" + odd[127:] + b"/" + odd[127:], "rb") as file:
            assert file.read() == odd[127:]
        expect(call(program("cairnfs"), "wait", base + b"/\xff\xfe"), 0)
        mount.check()
        mount.umount()


def offsets_near_the_end(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        fd = os.open(mount.path + "/file", os.O_RDWR | os.O_CREAT, 0o644)
        top = 2**63 - 1
        expect_errno((errno.EFBIG, errno.EINVAL), os.pwrite, fd, b"x", top)
        expect_errno((errno.EFBIG, errno.EINVAL), os.pwrite, fd, b"xx", top - 1)
        expect_errno((errno.EFBIG, errno.EINVAL), os.ftruncate, fd, top)
        expect_errno((errno.EFBIG, errno.EINVAL), os.posix_fallocate, fd, top - 5, 100)
        expect_errno(errno.EINVAL, os.lseek, fd, -1, os.SEEK_SET)
        expect_errno(errno.ENXIO, os.lseek, fd, top, os.SEEK_DATA)
        assert os.pread(fd, 10, top - 10) == b""
        assert os.fstat(fd).st_size == 0
        far = 2**62
        assert os.pwrite(fd, b"far", far) == 3
        assert os.fstat(fd).st_size == far + 3 and os.pread(fd, 10, far - 3) == b"\0\0\0far"
        os.fsync(fd)
        os.ftruncate(fd, 0)
        os.close(fd)
        mount.remount()
        assert os.stat(mount.path + "/file").st_size == 0
        mount.umount()


def xattrs_too_large(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = mount.path + "/file"
        with open(path, "wb"):
            pass
        os.setxattr(path, "user.largest", b"v" * 65536)
        assert os.getxattr(path, "user.largest") == b"v" * 65536
        expect_errno(errno.E2BIG, os.setxattr, path, "user.larger", b"v" * 65537)
        expect_errno(errno.ERANGE, os.setxattr, path, "user." + "n" * 251, b"v")
        expect_errno(errno.ENODATA, os.getxattr, path, "user.none")
        expect_errno(errno.ENODATA, os.removexattr, path, "user.none")
        expect_errno(errno.EEXIST, os.setxattr, path, "user.largest", b"", os.XATTR_CREATE)
        expect_errno(errno.ENODATA, os.setxattr, path, "user.new", b"", os.XATTR_REPLACE)
        expect_errno((errno.EPERM, errno.EOPNOTSUPP, errno.EACCES, errno.EINVAL), os.setxattr, path,
                     "user.cairnfs.durability", b"x")
        assert os.getxattr(path, "user.cairnfs.durability") in (b"local", b"pending")
        mount.umount()


# --- damaged data -----------------------------------------------------------------------------------------------------


def damage(path, kind, rng, used_max):
    size = min(used_max, os.path.getsize(path))  # a segment's end is preallocated and may hold nothing
    if kind == "missing":
        os.unlink(path)
    elif kind == "truncated":
        os.truncate(path, size // 2)
    else:
        with open(path, "r+b") as file:
            at = rng.randrange(max(1, size // 2))
            file.seek(at)
            byte = file.read(1) or b"\0"
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x40]))


def reads_right_or_not_at_all(mount, files, log):
    """Every read gives the true bytes or an error; the number of files that could not be read."""
    unreadable = 0
    for name, content in files:
        try:
            with open(os.path.join(mount.path, name), "rb") as file:
                assert file.read() == content, f"{name} reads wrong bytes after damage ({log})"
        except OSError as error:
            assert error.errno in (errno.EIO, errno.EUCLEAN), error
            unreadable += 1
    return unreadable


def try_damage(scratch, mount, files, victim, kind, rng):
    """Damages one file of a copy of the data directory and uses it. What happened, in a word."""
    copy = scratch.path + "/damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(mount.data, copy, ignore=shutil.ignore_patterns("control.sock"))
    damage(os.path.join(copy, victim), kind, rng, sum(len(content) for _, content in files))
    log = f"{victim} {kind}"
    point = scratch.directory("damaged-point")
    code, output = try_mount(scratch, data=copy, point=point)
    if code != 0:
        assert code != NO_DAEMON and len(output) > 30 and "said nothing" not in output, (log, code, output)
        if os.path.dirname(victim) == "segments":
            assert os.path.basename(victim) in output, f"the message does not name {victim}: {output}"
        return "refused"
    damaged = Mount.__new__(Mount)
    damaged.path, damaged.data, damaged.options, damaged.pid = point, copy, SMALL, None
    scratch.mounts.append(damaged)
    damaged.pid = damaged.status()["pid"]
    unreadable = reads_right_or_not_at_all(damaged, files, log)
    code, output = call(program("cairnfs"), "check", point)
    assert code in (0, PROBLEMS), (log, code, output)
    if unreadable:
        assert code == PROBLEMS, f"check finds nothing, but {unreadable} files cannot be read ({log}): {output}"
    os.kill(damaged.pid, 0)  # alive
    damaged.umount()
    scratch.mounts.remove(damaged)
    return "found by check" if code == PROBLEMS else "harmless"


def damaged_segments_and_metadata(seed):
    rng = random.Random(seed)
    counts = {}
    with Scratch() as scratch:
        files = [(f"file-{index}", rng.randbytes(rng.randrange(1, 3 << 20))) for index in range(12)]
        mount = made_data(scratch, files)
        with_data = [path for path in glob.glob(mount.data + "/segments/*") if os.path.getsize(path) > 0]
        tables = glob.glob(mount.data + "/metadata/*.sst") + glob.glob(mount.data + "/metadata/*.log")
        tables += glob.glob(mount.data + "/metadata/MANIFEST-*") + [mount.data + "/metadata/CURRENT"]
        victims = [os.path.relpath(path, mount.data) for path in sorted(with_data)[:2] + sorted(tables)]
        for victim in victims:
            for kind in ("missing", "truncated", "flipped"):
                what = try_damage(scratch, mount, files, victim, kind, rng)
                print(f"        {victim} {kind}: {what}")
                counts[what] = counts.get(what, 0) + 1
    assert counts.get("refused", 0) > 0 and counts.get("found by check", 0) > 0, counts
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def advice_for_damaged_segments_works(seed):
    """What the message of a mount recommends: a check that names what is lost, then the index made anew."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = made_data(scratch, [("lost", rng.randbytes(3 << 20))])
        victim = sorted(glob.glob(mount.data + "/segments/segment-*"))[0]
        mount.mount()
        with open(mount.path + "/kept", "wb") as file:
            file.write(b"kept")
        mount.umount()
        whole = scratch.path + "/whole"
        shutil.copytree(mount.data, whole)
        for kind in ("missing", "empty", "header"):
            shutil.rmtree(mount.data)
            shutil.copytree(whole, mount.data)
            if kind == "missing":
                os.unlink(victim)
            elif kind == "empty":
                os.truncate(victim, 0)
            else:
                with open(victim, "r+b") as file:
                    file.write(bytes(64))
            name = os.path.basename(victim)
            expect(call(*mount.mount_command()), CORRUPT, name, "cairnfs check --data DATA",
                   "cairnfs check --rebuild-index --data DATA")
            expect(call(program("cairnfs"), "check", "--data", mount.data), PROBLEMS, f"problem: {name}", "the index names",
                   "damaged: lost", "is missing", "cairnfs check --rebuild-index")
            # The file that is lost stays a problem, for reading it gives an error.
            expect(call(program("cairnfs"), "check", "--rebuild-index", "--data", mount.data), PROBLEMS, "index rebuilt",
                   "damaged: lost")
            mount.mount()
            with open(mount.path + "/kept", "rb") as file:
                assert file.read() == b"kept"
            with open(mount.path + "/lost", "rb") as file:
                expect_errno(errno.EIO, file.read)
            mount.umount()


def advice_for_damaged_metadata_is_a_copy(seed):
    """Names are nowhere else: no message may promise that they can be made anew."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = made_data(scratch, [("file", rng.randbytes(1 << 20))])
        mount.mount()  # leaves a table
        mount.umount()
        for victim in (sorted(glob.glob(mount.data + "/metadata/*.sst"))[0], mount.data + "/metadata/CURRENT"):
            os.rename(victim, victim + ".away")
            for command in (mount.mount_command(), [program("cairnfs"), "check", "--data", mount.data],
                            [program("cairnfs"), "check", "--rebuild-index", "--data", mount.data]):
                code, output = call(*command)
                assert code == CORRUPT and "restore the data directory from a copy" in output, (command, code, output)
                assert os.path.basename(victim) in output and "rebuild-index" not in output, (command, output)
            os.rename(victim + ".away", victim)
        expect(call(program("cairnfs"), "check", "--data", mount.data), 0, "clean")


def rebuilt_index_finds_everything(seed):
    rng = random.Random(seed)
    with Scratch() as scratch:
        files = [(f"file-{index}", rng.randbytes(rng.randrange(1, 3 << 20))) for index in range(12)]
        mount = made_data(scratch, files)
        expect(call(program("cairnfs"), "check", "--rebuild-index", "--data", mount.data), 0, "index rebuilt", "clean")
        mount.mount()
        assert reads_right_or_not_at_all(mount, files, "rebuilt") == 0
        mount.umount()


def garbage_on_the_control_socket(seed):
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = mount.data + "/control.sock"
        assert os.stat(path).st_mode & 0o777 == 0o600
        for _ in range(30):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                try:
                    client.sendall(rng.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]) + rng.randbytes(rng.randrange(1, 4000)))
                except OSError:
                    pass
        assert mount.status()["pid"] == mount.pid
        mount.umount()


def main():
    seed = seed_from_arguments()
    return run_cases([
        config_file_errors_name_line_and_key, mount_options_are_checked, command_line_errors,
        log_and_metrics_that_cannot_be_had, data_of_a_newer_format, half_made_data_is_made_anew,
        data_that_is_something_else, data_that_cannot_be_written, data_of_another_user, full_disk_at_the_first_start,
        full_disk_keeps_what_was_committed, second_daemon_says_who_holds_the_data, mount_points_that_are_wrong,
        mount_of_a_dead_daemon_is_cleaned_up, mount_right_after_the_daemon_died, umount_while_busy, no_dev_fuse, not_root,
        no_fusermount, names, offsets_near_the_end, xattrs_too_large, damaged_segments_and_metadata,
        advice_for_damaged_segments_works, advice_for_damaged_metadata_is_a_copy, rebuilt_index_finds_everything,
        garbage_on_the_control_socket,
    ], seed)


if __name__ == "__main__":
    sys.exit(main())
