#!/usr/bin/env python3
"""Mounting as mount(8), fstab and users do it, options of a mount, and remounts. Run as root."""

import errno
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, await_end, program, run, run_cases
from refusals import BUSY, NO_DAEMON, PERMISSION, USAGE, call, expect, expect_errno


def fstab_helper_mounts():
    with Scratch() as scratch:
        point = scratch.directory("point")
        data = scratch.path + "/data"
        # As mount(8) calls it, with the options that fstab adds.
        run(program("mount.cairnfs"), data, point, "-o", "rw,nosuid,_netdev,x-systemd.automount," + SMALL)
        try:
            with open("/proc/self/mounts", encoding="utf-8") as mounts:
                line = next(line for line in mounts if line.split()[1] == point)
            assert line.split()[0] == data and line.split()[2] == "fuse.cairnfs" and "nosuid" in line, line
            with open(point + "/x", "w", encoding="ascii") as file:
                file.write("x")
        finally:
            run(program("cairnfs"), "umount", point)
        # A data directory that systemd's fstab generator would hand over read-only.
        run(program("mount.cairnfs"), data, point, "-r", "-o", SMALL)
        try:
            with open(point + "/x", encoding="ascii") as file:
                assert file.read() == "x"
            try:
                os.unlink(point + "/x")
                raise AssertionError("a read-only mount was written to")
            except OSError as error:
                assert error.errno == 30, error  # EROFS
        finally:
            run(program("cairnfs"), "umount", point)


MOUNTS_AS_INSTALLED = """
import os, subprocess, sys
sbin, here, helper = os.path.realpath("/sbin"), sys.argv[1], sys.argv[2]
os.makedirs(here + "/all")
os.makedirs(here + "/sbin")
subprocess.run(["mount", "--bind", sbin, here + "/all"], check=True)
for name in os.listdir(sbin):
    if name not in ("mount.cairnfs", "mount.fuse.cairnfs"):
        os.symlink(here + "/all/" + name, here + "/sbin/" + name)
os.symlink(helper, here + "/sbin/mount.cairnfs")
os.symlink("mount.cairnfs", here + "/sbin/mount.fuse.cairnfs")
subprocess.run(["mount", "--bind", here + "/sbin", sbin], check=True)
os.execvp("sh", ["sh", "-c", sys.argv[3]])
"""


def mount_state(point):
    """What the kernel says: of the mount, and of the filesystem."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        words = next(line.split() for line in mounts if line.split()[4] == point)
    return set(words[5].split(",")), set(words[words.index("-") + 3].split(","))


def mount_8_remounts():
    """As an administrator types it, with fstab and without; mount(8) finds the helpers where they are installed."""
    with Scratch() as scratch:
        point, data, fstab = scratch.directory("point"), scratch.path + "/data", scratch.path + "/fstab"
        with open(fstab, "w", encoding="ascii") as file:
            file.write(f"{data} {point} cairnfs nosuid,nodev,{SMALL} 0 0\n")
        script = f"""
            set -e
            mount -t cairnfs {data} {point} -o nosuid,nodev,noexec,{SMALL}
            echo x > {point}/x
            mount -o remount,ro {point}
            if touch {point}/y 2> {scratch.path}/refused; then exit 3; fi
            grep -q "Read-only" {scratch.path}/refused
            mount -o remount,log_level=debug {point}
            if touch {point}/y 2> {scratch.path}/refused; then exit 3; fi
            if mount -o remount,pool_size=96MiB {point} 2> {scratch.path}/refused; then exit 3; fi
            grep -q "pool_size cannot change" {scratch.path}/refused
            mount -o remount,rw {point}
            grep " {point} rw,nosuid,nodev,noexec,relatime " /proc/self/mountinfo
            touch {point}/y
            mount -T {fstab} -o remount,ro {point}
            grep " {point} ro,nosuid,nodev,noexec,relatime " /proc/self/mountinfo
            mount -T {fstab} -o remount {point}
            touch {point}/y
            {program("cairnfs")} umount {point}
        """
        run("unshare", "-m", sys.executable, "-c", MOUNTS_AS_INSTALLED, scratch.directory("names"),
            program("mount.cairnfs"), script)


def read_only_by_a_remount():
    """Nobody writes, all is durable at once, nothing is collected; and back. What cannot change is named."""
    with Scratch() as scratch:
        mount = Mount(scratch, options=SMALL + ",flush_interval=4s,nosuid")

        def remount(words):
            return call(program("cairnfs"), "mount", mount.path, "-o", "remount," + words)

        with open(mount.path + "/file", "wb") as file:
            file.write(b"x" * 100000)
            file.flush()
            expect(remount("ro"), BUSY, f"open for writing by process {os.getpid()} (")
            file.write(b"y")
        expect(remount("ro"), 0)
        of_mount, of_filesystem = mount_state(mount.path)
        assert {"ro", "nosuid"} <= of_mount and "ro" in of_filesystem, (of_mount, of_filesystem)
        for refused in (lambda: os.unlink(mount.path + "/file"), lambda: os.truncate(mount.path + "/file", 0),
                        lambda: open(mount.path + "/new", "wb")):
            expect_errno(errno.EROFS, refused)
        assert mount.status()["dirty_bytes"] == 0
        expect(call(program("cairnfs"), "gc", mount.path), PERMISSION, "read_only")
        # A crash takes nothing of it.
        mount.kill()
        mount.mount()
        assert os.path.getsize(mount.path + "/file") == 100001
        expect(remount("ro,log_level=debug,collect_rate=1MiB"), 0)
        expect(remount("log_level=info"), 0)
        assert "ro" in mount_state(mount.path)[0], "a remount that names another option made it writable"
        expect(remount("rw,noatime,nodev"), 0)
        assert {"rw", "nosuid", "nodev", "noatime"} <= mount_state(mount.path)[0], mount_state(mount.path)
        os.unlink(mount.path + "/file")
        mount.collect()
        expect(remount("pool_size=64MiB"), 0)
        expect(remount("pool_size=65MiB"), USAGE, "pool_size cannot change")
        expect(remount("data=/elsewhere"), USAGE, "data cannot change")
        expect(remount("log_level=loud"), USAGE, "log_level: must be one of")
        expect(call(program("cairnfs"), "mount", mount.path, "--data", scratch.path, "-o", "remount"), USAGE,
               "is mounted from " + mount.data)
        expect(call(program("cairnfs"), "mount", scratch.path, "-o", "remount,ro"), NO_DAEMON, "no CairnFS is mounted")
        # As `mount -i` does: the kernel alone is told. The next remount goes by what it finds.
        run("mount", "-i", "-o", "remount,ro", mount.path)
        expect(remount("log_level=info"), 0)
        told = mount.log().count("remounted ")
        expect(remount("log_level=error"), 0)
        assert mount.log().count("remounted ") == told > 0, mount.log()
        assert "ro" in mount_state(mount.path)[0]
        expect(call(program("cairnfs"), "gc", mount.path), PERMISSION, "read_only")
        expect(remount("rw"), 0)
        mount.umount()


def mount_after_drain(mount):
    """A drain may take longer than a mount waits for it."""
    deadline = time.monotonic() + 60
    code, output = call(*mount.mount_command())
    while code == BUSY and time.monotonic() < deadline:
        time.sleep(0.1)
        code, output = call(*mount.mount_command())
    assert code == 0, (code, output)
    mount.pid = mount.status()["pid"]


def remount_right_after_umount():
    """umount(8) does not wait for the drain; the next mount does."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        for round_number in range(5):
            with open(f"{mount.path}/file-{round_number}", "wb") as file:
                file.write(os.urandom(8 << 20))
            run("umount", mount.path)
            mount_after_drain(mount)
        assert len(os.listdir(mount.path)) == 5
        mount.check()
        mount.umount()


def unprivileged_user_mounts():
    """Through fusermount3, with a /dev/fuse that everybody may open, as distributions have it."""
    with Scratch() as scratch:
        nobody = 65534
        for name in ("data", "point"):
            os.chown(scratch.directory(name), nobody, nobody)
        cairnfs, point = program("cairnfs"), scratch.path + "/point"
        steps = [f"{cairnfs} mount {point} --data {scratch.path}/data -o {SMALL}", f"echo hello > {point}/file",
                 f"cat {point}/file", f"{cairnfs} status {point}", f"{cairnfs} wait {point}/file",
                 f"{cairnfs} mount {point} -o remount,flush_interval=2s,log_level=debug",
                 # What the kernel is to be told only root may tell it.
                 f"if {cairnfs} mount {point} -o remount,ro; then exit 9; else test $? = 6; fi",
                 f"{cairnfs} umount {point}"]
        device = scratch.path + "/fuse"
        os.mknod(device, 0o666 | 0o020000, os.makedev(10, 229))
        os.chmod(device, 0o666)
        script = (f"mount --bind {device} /dev/fuse && exec setpriv --reuid {nobody} --regid {nobody} --clear-groups "
                  f"sh -ec '{' && '.join(steps)}'")
        output = run("unshare", "-m", "sh", "-ec", script)
        assert "hello" in output and "not durable" in output and "only root may remount" in output, output


def set_group_id_of_a_directory_survives_a_chown():
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/shared")
        os.chmod(mount.path + "/shared", 0o2775)
        os.chown(mount.path + "/shared", 1234, 1234)
        assert os.stat(mount.path + "/shared").st_mode & 0o7777 == 0o2775
        with open(mount.path + "/program", "wb") as file:
            os.fchmod(file.fileno(), 0o4755)
        os.chown(mount.path + "/program", 1234, 1234)
        assert os.stat(mount.path + "/program").st_mode & 0o7777 == 0o755
        mount.umount()


def noatime_leaves_times_alone():
    for options, moves in (("", True), (",noatime", False)):
        with Scratch() as scratch:
            mount = Mount(scratch, SMALL + options)
            path = mount.path + "/file"
            with open(path, "wb") as file:
                file.write(b"x" * 100)
            os.utime(path, (1000, 2000))
            with open(path, "rb") as file:
                file.read()
            time.sleep(1.2)  # the kernel may know attributes for a second
            assert (os.stat(path).st_atime != 1000) == moves, (options, os.stat(path))
            mount.umount()


def ro_among_the_words_for_the_kernel_is_read_only():
    """Not even times of access are written."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb") as file:
            file.write(b"x" * 100)
        os.utime(mount.path + "/file", (1000, 2000))
        mount.umount()
        config = scratch.path + "/c.toml"
        with open(config, "w", encoding="ascii") as file:
            file.write('mount_options = ["ro"]\n')
        run(program("cairnfs"), "mount", mount.path, "--data", mount.data, "--config", config, "-o", SMALL)
        with open(mount.path + "/file", "rb") as file:
            file.read()
        try:
            os.unlink(mount.path + "/file")
            raise AssertionError("a read-only mount was written to")
        except OSError as error:
            assert error.errno == 30, error  # EROFS
        run(program("cairnfs"), "umount", mount.path)
        mount.mount()
        assert os.stat(mount.path + "/file").st_atime == 1000, os.stat(mount.path + "/file")
        mount.umount()


def touch(path):
    with open(path, "wb"):
        pass


def a_guarded_mount_point_takes_nothing_while_nothing_is_mounted():
    """What a trainer writes after an unmount is refused, root's too; until the guard is taken away."""
    cairnfs = program("cairnfs")
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",guard")
        touch(mount.path + "/kept")
        trainer = os.open(mount.path + "/step", os.O_CREAT | os.O_WRONLY)  # while it is at work
        os.write(trainer, b"begun")
        run("umount", "-l", mount.path)
        expect_errno(errno.EPERM, touch, mount.path + "/step-2")
        expect_errno(errno.EPERM, os.mkdir, mount.path + "/step-3.tmp")
        expect_errno(errno.EPERM, os.rmdir, mount.path)
        os.close(trainer)
        assert await_end(mount.pid), "the daemon does not end"
        # It stays so, over mounts and a daemon that is killed.
        for end in (mount.umount, mount.kill):
            mount.mount()
            assert sorted(os.listdir(mount.path)) == ["kept", "step"]
            end()
            if os.path.ismount(mount.path):
                run("umount", "-l", mount.path)
            expect_errno(errno.EPERM, touch, mount.path + "/bare")
        mount.mount()
        run(cairnfs, "umount", "--unguard", mount.path)
        for name in "abcd":
            touch(f"{mount.path}/{name}")
        expect(call(*mount.mount_command()), USAGE, 'is not empty (it holds "', "and more, which the mount would hide")
        for name in "abcd":
            os.unlink(f"{mount.path}/{name}")  # nothing was guarded
        # By fstab; and taken away while nothing is mounted.
        run(program("mount.cairnfs"), mount.data, mount.path, "-o", SMALL + ",guard")
        run(cairnfs, "umount", mount.path)
        expect_errno(errno.EPERM, os.rmdir, mount.path)
        run(cairnfs, "umount", "--unguard", mount.path)
        run(cairnfs, "umount", "--unguard", mount.path)
        os.rmdir(mount.path)


def a_file_system_without_such_a_flag_is_warned_of():
    with Scratch() as scratch:
        below = scratch.directory("ram")
        run("mount", "-t", "ramfs", "ramfs", below)
        point = below + "/point"
        os.mkdir(point)
        data = scratch.path + "/data"
        run(program("cairnfs"), "mount", point, "--data", data, "-o", SMALL + ",guard")
        with open(data + "/cairnfs.log", encoding="utf-8") as log:
            text = log.read()
        assert f"{point} is not guarded, and can be written into" in text and "has no flag" in text, text
        run(program("cairnfs"), "umount", point)
        touch(point + "/bare")
        run(program("cairnfs"), "umount", "--unguard", point)


def main():
    return run_cases([
        a_guarded_mount_point_takes_nothing_while_nothing_is_mounted, a_file_system_without_such_a_flag_is_warned_of,
        ro_among_the_words_for_the_kernel_is_read_only, set_group_id_of_a_directory_survives_a_chown,
        noatime_leaves_times_alone, fstab_helper_mounts, mount_8_remounts, read_only_by_a_remount,
        unprivileged_user_mounts, remount_right_after_umount,
    ])


if __name__ == "__main__":
    sys.exit(main())
