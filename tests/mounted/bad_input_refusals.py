#!/usr/bin/env python3
"""Bad input that is refused: each case asserts the message or the errno, and that nothing crashes. Run as root."""

import errno
import glob
import os
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, Skip, program, run, run_cases, seed_from_arguments
from refusals import BUSY, CORRUPT, NOBODY, NO_DAEMON, PERMISSION, USAGE, call, expect, expect_errno, made_data, try_mount


# --- configuration and command line -----------------------------------------------------------------------------------


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
        expect(with_config("copies = 1\nmetadata = \"etcd:10.0.0.1\"\n"), USAGE, "c.toml:2: metadata: must be \"node:")
        expect(with_config("metadata = \"node:10.0.0.1\"\n"), USAGE, "c.toml:1: metadata: \"10.0.0.1\" is no HOST:PORT")
        expect(with_config("a = = b\n"), USAGE, "c.toml:1: not valid TOML")
        expect(try_mount(scratch, "--config", path + ".none"), USAGE, "cannot read the configuration", "c.toml.none")
        expect(try_mount(scratch, "--config", scratch.path), USAGE, "cannot read the configuration", scratch.path)
        expect(try_mount(scratch, "--config", "/dev/zero"), USAGE, "/dev/zero: it is not a regular file")
        expect(with_config("a." * 50000 + "b = 1\n"), USAGE, "c.toml: it is larger than 32 KiB")
        expect(with_config("receive_threads = 64\n"), USAGE, "receive_threads = 64 is too many for pool_size = 64MiB",
               "receive_threads = 13 or fewer", "pool_size = \"267MiB\" or more")
        assert not os.path.exists(os.path.join(scratch.path, "data")), "a wrong configuration made a data directory"


def mount_options_are_checked(_):
    with Scratch() as scratch:
        expect(try_mount(scratch, "-o", "pol_size=1G"), USAGE, "unknown key 'pol_size'", "'pool_size'")
        expect(try_mount(scratch, "-o", "data="), USAGE, "data: needs a value")
        expect(try_mount(scratch, "-o", "metrics_address=::1"), USAGE, "must be ADDRESS:PORT", "IPv6 address in brackets")
        expect(try_mount(scratch, "-o", "pool_size=lots"), USAGE, "pool_size: 'lots' is not a size")
        expect(call(program("mount.cairnfs"), "only-one"), 1, "use: mount.cairnfs")
        expect(call(program("mount.cairnfs"), "/x", scratch.directory("point"), "-o", "renam=durable"), 32,
               "mount.cairnfs: ", "nearest valid key is 'rename'")
        # It has no option of that name.
        stranger = scratch.directory("stranger")
        with open(stranger + "/file", "wb"):
            pass
        result = call(program("mount.cairnfs"), stranger, scratch.directory("point"))
        expect(result, 32, "is not a CairnFS data directory", "give an empty or absent directory")
        assert "--data" not in result[1], result[1]


def command_line_errors(_):
    with Scratch() as scratch:
        cairnfs = program("cairnfs")
        plain = scratch.directory("plain")
        for words in ([], ["mont"], ["mount", "--no-such"], ["wait"], ["umount"], ["status", "a", "--data", "b"]):
            code, output = call(cairnfs, *words)
            assert code == USAGE and output.startswith("cairnfs: "), (words, code, output)
        for words, text in (([], "cairnfs needs one of its commands: mount, umount, status"),
                            (["mont"], "cairnfs has no command 'mont'; it has mount, umount"),
                            (["node"], "cairnfs node needs one of its commands: list, drain, remove"),
                            (["cluster", "set"], "cairnfs cluster set needs one of its commands: min-replicas"),
                            (["cluster", "set", "weight", "3"], "set has no command 'weight'; it has min-replicas"),
                            (["cluster", "set", "copies", "3"], "copies is chosen by cairnfs cluster init"),
                            (["cluster", "set", "out-after", "3min", "--json"],
                             "cluster set changes min-replicas alone")):
            expect(call(cairnfs, *words), USAGE, text)
        no_mount = "no CairnFS is mounted at " + plain
        for words in (["umount"], ["status"], ["wait"], ["drain", "--deadline=1s"], ["gc"], ["check"],
                      ["cluster", "status"], ["node", "list"], ["cluster", "set", "min-replicas", "1"],
                      ["node", "remove", "other"], ["ls"], ["latest"], ["watch"]):
            expect(call(cairnfs, *words, plain), NO_DAEMON, no_mount)
            expect(call(cairnfs, *words, plain + "/none"), 1 if words == ["wait"] else NO_DAEMON, plain + "/none")
        tmp = scratch.directory("plain.tmp")
        expect(call(cairnfs, "commit", tmp, plain + "/final", "--ranks", "1", "--rank", "0"), NO_DAEMON, no_mount)
        for words in (["status"], ["gc"], ["check"], ["cluster", "status"], ["node", "list"],
                      ["cluster", "set", "min-replicas", "1"], ["node", "remove", "other"]):
            expect(call(cairnfs, *words, "--data", plain + "/none"), NO_DAEMON, "no data directory", plain + "/none")
        for words in (["status"], ["gc"], ["cluster", "status"], ["cluster", "set", "min-replicas", "1"]):
            expect(call(cairnfs, *words, "--data", plain), NO_DAEMON, "no daemon answers")
        expect(call(cairnfs, "check", "--data", plain), USAGE, "is not a CairnFS data directory")
        assert not os.listdir(plain), "a check left something in a directory that is not ours"
        for words in (["mount", "", "--data", plain], ["mount", plain, "--data", ""], ["mount", plain, "--config", ""],
                      ["check", "--data", ""], ["status", ""]):
            expect(call(cairnfs, *words), USAGE, "must not be empty")
        expect(call(program("cairnfsd"), plain, "--data", ""), USAGE, "must not be empty")
        expect(call(program("mount.cairnfs"), "", plain), 1, "must not be empty")
        expect(call(program("mount.cairnfs"), plain, plain, "-o", "config="), 1, "must not be empty")
        for data in ("point", "point/sub"):
            expect(try_mount(scratch, data=os.path.join(scratch.path, data)), USAGE, "lies in the mount point")
        assert not os.listdir(scratch.path + "/point"), "a data directory was made in the mount point"
        expect(call(program("cairnfsd"), "--no-such"), USAGE, "cairnfsd: ")
        expect(call(program("cairnfsd"), plain, "--data", scratch.path + "/d",
                    env=dict(os.environ, CAIRNFS_FAILPOINTS="no.such=kill")), USAGE, "no failpoint 'no.such'")


def log_and_metrics_that_cannot_be_had(_):
    with Scratch() as scratch:
        expect(try_mount(scratch, "-o", "log_file=/dev/null/log"), USAGE, "cannot open the log file /dev/null/log")
        nowhere = scratch.path + "/no/such"
        expect(try_mount(scratch, "-o", "log_file=/"), USAGE, "cannot open the log file /: it is a directory")
        expect(try_mount(scratch, "-o", f"log_file={nowhere}/log"), USAGE, f"the directory {nowhere} does not exist")
        assert not os.path.exists(scratch.path + "/no"), "the log file's directory was made"
        assert not os.path.exists(scratch.path + "/data"), "a mount that cannot be made a data directory"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            expect(try_mount(scratch, "-o", "metrics_address=" + address), 1, "cannot serve metrics on " + address)
        assert not os.path.ismount(scratch.path + "/point")


# --- data directory ---------------------------------------------------------------------------------------------------


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


def data_that_is_something_else(_):
    with Scratch() as scratch:
        strange = scratch.directory("strange")
        with open(strange + "/thesis.tex", "w", encoding="ascii"):
            pass
        expect(try_mount(scratch, data=strange), USAGE, "is not a CairnFS data directory", "thesis.tex")
        assert os.listdir(strange) == ["thesis.tex"]
        expect(try_mount(scratch, data=strange + "/thesis.tex"), USAGE, "is not a directory")
        expect(try_mount(scratch, data=scratch.path + "/no/such"), USAGE, scratch.path + "/no does not exist")


def data_that_cannot_be_written(_):
    with Scratch() as scratch:
        data = scratch.directory("read-only")
        run("mount", "-t", "tmpfs", "-o", "ro,mode=0755", "none", data)
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


def second_daemon_says_who_holds_the_data(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        expect(try_mount(scratch, data=mount.data), BUSY, "is in use by process " + str(mount.pid), "running")
        expect(call(program("cairnfs"), "check", "--rebuild-index", "--data", mount.data), BUSY, str(mount.pid))
        mount.umount()


# --- mount point ------------------------------------------------------------------------------------------------------


def mount_points_that_are_wrong(_):
    with Scratch() as scratch:
        expect(try_mount(scratch, point=scratch.path + "/none"), USAGE, scratch.path + "/none", "mkdir -p")
        file_path = scratch.path + "/file"
        with open(file_path, "w", encoding="ascii"):
            pass
        expect(try_mount(scratch, point=file_path), USAGE, "not a directory")
        expect(try_mount(scratch, point=file_path + "/below"), USAGE, "Not a directory")
        expect(try_mount(scratch, point=scratch.path + "/" + "n" * 300), USAGE, "File name too long")
        full = scratch.directory("full")
        os.mkdir(full + "/something")
        expect(try_mount(scratch, point=full), USAGE, "not empty")
        assert not os.path.exists(scratch.path + "/data"), "a mount that cannot be made a data directory"
        mount = Mount(scratch)
        expect(try_mount(scratch, data=scratch.path + "/second", point=mount.path), BUSY, "already")
        assert os.path.ismount(mount.path) and mount.status()["pid"] == mount.pid
        mount.umount()


def umount_while_busy(_):
    """It names who uses the mount, and never itself, whose directory and output may lie in it."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb") as file:
            expect(call(program("cairnfs"), "umount", mount.path), BUSY, f"used by process {os.getpid()} (")
            file.write(b"still served")
        with open(mount.path + "/output", "wb") as output:
            done = subprocess.run([program("cairnfs"), "umount", mount.path], stdout=output, stderr=subprocess.PIPE,
                                  text=True, check=False, cwd=mount.path, timeout=120)
        expect((done.returncode, done.stderr), BUSY, f"used by process {os.getpid()} (")
        assert "(cairnfs)" not in done.stderr, done.stderr
        with open(mount.path + "/file", "rb") as file:
            assert file.read() == b"still served"
        run(program("cairnfs"), "umount", ".", cwd=mount.path)
        mount.pid = None


def a_host_alone_is_no_cluster(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        for words in (["cluster", "status"], ["node", "list"], ["node", "remove", "other"],
                      ["cluster", "set", "min-replicas", "1"]):
            expect(call(program("cairnfs"), *words, mount.path), USAGE, "cairnfs: this host is alone")
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


def main():
    seed = seed_from_arguments()
    return run_cases([
        config_file_errors_name_line_and_key, mount_options_are_checked, command_line_errors,
        log_and_metrics_that_cannot_be_had, data_of_a_newer_format, data_that_is_something_else,
        data_that_cannot_be_written, data_of_another_user, full_disk_at_the_first_start,
        second_daemon_says_who_holds_the_data, mount_points_that_are_wrong, umount_while_busy,
        a_host_alone_is_no_cluster, no_dev_fuse, not_root,
        no_fusermount, names, offsets_near_the_end, xattrs_too_large,
    ], seed)


if __name__ == "__main__":
    sys.exit(main())
