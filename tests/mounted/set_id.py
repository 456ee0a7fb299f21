#!/usr/bin/env python3
"""Set-id bits and file capabilities on a mount that honours them: nobody gets another's rights by writing to a program.

Options: names of cases run these alone.
"""

import contextlib
import ctypes
import mmap
import os
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, program, run, run_cases
from cluster import Cluster

STRANGER = 12345
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)  # version 2, CAP_NET_RAW
ROUNDS = 60


class World:
    def __init__(self, scratch, mount):
        self.scratch, self.mount = scratch, mount
        self.path = os.path.join(mount.path, "program")
        with open("/usr/bin/id", "rb") as file:
            self.id = file.read()
        with open("/usr/bin/true", "rb") as file:
            self.harmless = file.read().ljust(len(self.id), b"\0")

    def make(self, mode, content=None, path=None):
        """root's file, fresh, that has this mode."""
        path = path or self.path
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(path, "wb") as file:
            file.write(content or self.harmless)
            os.fchmod(file.fileno(), mode)
        assert mode_of(path) == mode
        return path


def mode_of(path):
    return os.stat(path).st_mode & 0o7777


def child(act, groups=(), uid=STRANGER):
    """Starts a process that does this as the stranger."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            act()
            status = 0
        os._exit(status)
    return pid


def as_stranger(act, groups=()):
    assert os.waitpid(child(act, groups), 0)[1] == 0


def euid_of(program_file):
    """As whom the program, a path or a descriptor, runs when the stranger runs it; None when it does not run."""
    reader, writer = os.pipe()

    def execute():
        os.dup2(writer, 1)
        os.execve(program_file, ["id", "-u"], os.environ)

    pid = child(execute)
    os.close(writer)
    with os.fdopen(reader) as output:
        said = output.read().strip()
    os.waitpid(pid, 0)
    return int(said) if said else None


# --- ways to change the content of a file -----------------------------------------------------------------------------

def write(path, content):
    with open(path, "r+b") as file:
        file.write(content)


def write_direct(path, content):
    length = -(-len(content) // 4096) * 4096
    with mmap.mmap(-1, length) as memory:
        memory[:len(content)] = content
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
        assert os.pwrite(fd, memory, 0) == length
        os.close(fd)


def store(path, content):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:len(content)] = content


def copy(path, _):
    with open("/proc/self/fd/9", "rb") as source, open(path, "r+b") as file:
        left = os.fstat(source.fileno()).st_size
        while left > 0:
            left -= os.copy_file_range(source.fileno(), file.fileno(), left)


def truncate(path, _):
    os.truncate(path, 10)


def open_truncated(path, _):
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


def allocate(path, content):
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, len(content) + 1)


def fallocate(path, mode):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "r+b") as file:
        if libc.fallocate(file.fileno(), mode, ctypes.c_long(0), ctypes.c_long(100)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")


def punch(path, _):
    fallocate(path, 0x03)  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def zero(path, _):
    fallocate(path, 0x10)  # FALLOC_FL_ZERO_RANGE


REPLACE = (write, write_direct, store, copy)
CHANGE = (write, write_direct, truncate, open_truncated, allocate, punch, zero)


@contextlib.contextmanager
def source_of_copies(path, content):
    """The stranger's program, on the same mount: `copy` copies it."""
    with open(path, "wb") as file:
        file.write(content)
    source = os.open(path, os.O_RDONLY)
    os.dup2(source, 9)
    os.close(source)
    try:
        yield
    finally:
        os.close(9)


def has_capability(path):
    return "security.capability" in os.listxattr(path)


def modes_after(world, path):
    table = {}
    for change in CHANGE:
        for mode in (0o4777, 0o2777, 0o6777, 0o2666):
            for who, groups, by_root in (("stranger", (), False), ("member", (0,), False), ("root", (), True)):
                world.make(mode, path=path)
                if by_root:
                    change(path, world.id)
                else:
                    as_stranger(lambda: change(path, world.id), groups)
                table[change.__name__, oct(mode), who] = oct(mode_of(path))
    for mode in (0o4777, 0o2777, 0o2666):
        world.make(mode, path=path)
        os.chown(path, STRANGER, -1)
        table["chown by root", oct(mode)] = oct(mode_of(path))
        os.chmod(path, mode)
        as_stranger(lambda: os.chown(path, -1, STRANGER))
        table["chown by owner", oct(mode)] = oct(mode_of(path))
    return table


def bits_go_as_on_ext4(world):
    expected = modes_after(world, os.path.join(world.scratch.ext4("plain", 64 << 20), "program"))
    found = modes_after(world, world.path)
    differing = {what: (mode, found[what]) for what, mode in expected.items() if found[what] != mode}
    assert not differing, differing


def a_strangers_program_runs_as_the_stranger(world):
    assert euid_of(world.make(0o4777, world.id)) == 0, "the mount does not honour set-id bits: the test tells nothing"
    with source_of_copies(world.path + ".id", world.id):
        for change in REPLACE:
            world.make(0o4777)
            as_stranger(lambda: change(world.path, world.id))
            assert mode_of(world.path) == 0o777, change.__name__
            assert euid_of(world.path) == STRANGER, change.__name__
            # One that the stranger had open before.
            fd = os.open(world.path, os.O_RDONLY)
            assert euid_of(fd) == STRANGER, change.__name__
            os.close(fd)


def _spin(microseconds):
    end = time.perf_counter_ns() + microseconds * 1000
    while time.perf_counter_ns() < end:
        pass


def executed_while_it_is_overwritten(world):
    """The kernel looks at the mode, then a stranger writes and closes, then the kernel takes the file for a program."""
    ran = {STRANGER: 0, None: 0}
    begin = mmap.mmap(-1, 4096)
    for i in range(ROUNDS):
        world.make(0o4777)
        begin[0] = 0

        def overwrite():
            fd = os.open(world.path, os.O_WRONLY)
            begin[1] = 1
            while begin[0] == 0:
                pass
            _spin(i * 37 % 200)
            os.pwrite(fd, world.id, 0)
            os.close(fd)

        begin[1] = 0
        writer = child(overwrite)
        while begin[1] == 0:
            pass
        reader, output = os.pipe()

        def execute():
            os.dup2(output, 1)
            begin[0] = 1
            _spin(i * 61 % 1000)
            os.execv(world.path, ["id", "-u"])

        executor = child(execute)
        os.close(output)
        with os.fdopen(reader) as said:
            text = said.read().strip()
        os.waitpid(executor, 0)
        os.waitpid(writer, 0)
        euid = int(text) if text else None
        assert euid != 0, f"round {i}: the stranger's program ran as root"
        ran[euid] += 1
        assert mode_of(world.path) == 0o777
    return f"{ran[STRANGER]} ran, {ran[None]} were refused or harmless"


def capabilities_go(world):
    with source_of_copies(world.path + ".id", world.id):
        for change in (*CHANGE, store, copy):
            world.make(0o777)
            os.setxattr(world.path, "security.capability", CAPABILITY)
            as_stranger(lambda: change(world.path, world.id))
            assert not has_capability(world.path), change.__name__


def stores_through_a_mapping_leave_no_group_of_a_strangers(world):
    """ext4 leaves all bits. Here they go, without the right of the group to execute too."""
    world.make(0o2666)
    as_stranger(lambda: store(world.path, world.id))
    assert mode_of(world.path) == 0o666


def a_mount_honours_neither_bits_nor_devices_unless_told(world):
    def flags(mount):
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            return set(next(line for line in mounts if line.split()[1] == mount.path).split()[3].split(","))

    assert not flags(world.mount) & {"nosuid", "nodev"}, flags(world.mount)
    plain = Mount(world.scratch, name="-plain")
    assert flags(plain) >= {"nosuid", "nodev"}, flags(plain)
    path = world.make(0o4755, world.id, os.path.join(plain.path, "id"))
    assert euid_of(path) == STRANGER
    device = os.path.join(plain.path, "null")
    os.mknod(device, 0o20666, os.makedev(1, 3))
    try:
        os.close(os.open(device, os.O_RDONLY))
        raise AssertionError("a device could be opened")
    except PermissionError:
        pass
    plain.umount()
    # As mount(8) calls the helper for a line of fstab.
    run(program("mount.cairnfs"), plain.data, plain.path, "-o", "rw,dev," + SMALL)
    assert "nosuid" in flags(plain) and "nodev" not in flags(plain), flags(plain)
    os.close(os.open(device, os.O_RDONLY))
    subprocess.run(plain.umount_command(), check=True)


def expect_strangers_program(path, seen, mode, why):
    assert mode_of(path) == mode_of(seen) == mode, (why, oct(mode_of(path)), oct(mode_of(seen)))
    assert not has_capability(path) and not has_capability(seen), why
    assert euid_of(path) == euid_of(seen) == STRANGER, why


def write_through_an_old_descriptor(world, path, seen):
    """The stranger's file, which root of another host takes over while the stranger has it open."""
    begun, may_write = os.pipe(), os.pipe()

    def overwrite():
        fd = os.open(seen, os.O_RDWR | os.O_CREAT, 0o755)
        os.write(fd, world.harmless)
        os.fsync(fd)
        os.write(begun[1], b"x")
        os.read(may_write[0], 1)
        os.pwrite(fd, world.id, 0)
        os.close(fd)

    writer = child(overwrite)
    os.read(begun[0], 1)
    os.chown(path, 0, 0)
    os.chmod(path, 0o4755)
    os.setxattr(path, "security.capability", CAPABILITY)
    os.write(may_write[1], b"x")
    assert os.waitpid(writer, 0)[1] == 0
    for fd in begun + may_write:
        os.close(fd)


def another_host_is_no_way_around(world):
    options = {"pool_size": "64MiB", "reserve": "64MiB", "mount_options": ["suid"]}
    with Cluster(world.scratch, hosts=2, metadata="node", copies=1, options=options) as cluster:
        cluster.start()
        os.chmod(cluster.hosts[0].path(""), 0o777)
        for here, there in (cluster.hosts, cluster.hosts[::-1]):
            path, seen = here.path("program"), there.path("program")
            with source_of_copies(there.path("source"), world.id):
                for change in (*REPLACE, *CHANGE):
                    world.make(0o4777, path=path)
                    assert mode_of(seen) == 0o4777
                    os.setxattr(path, "security.capability", CAPABILITY)
                    as_stranger(lambda: change(seen, world.id))
                    if change in REPLACE:
                        expect_strangers_program(path, seen, 0o777, change.__name__)
                    assert mode_of(path) == mode_of(seen) == 0o777, change.__name__
                    assert not has_capability(path) and not has_capability(seen), change.__name__
            os.unlink(path)
            write_through_an_old_descriptor(world, path, seen)
            expect_strangers_program(path, seen, 0o755, "old descriptor")
            os.unlink(path)


CASES = [bits_go_as_on_ext4, a_strangers_program_runs_as_the_stranger, executed_while_it_is_overwritten,
         capabilities_go, stores_through_a_mapping_leave_no_group_of_a_strangers, another_host_is_no_way_around,
         a_mount_honours_neither_bits_nor_devices_unless_told]


def main():
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",suid,dev")
        os.chmod(mount.path, 0o755)
        status = run_cases(CASES, World(scratch, mount))
        if status != 0:
            print(mount.log())
        return status


if __name__ == "__main__":
    sys.exit(main())
