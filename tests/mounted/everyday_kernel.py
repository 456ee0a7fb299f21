#!/usr/bin/env python3
"""What programs ask of the kernel: several writers, holes, mappings, locks, flags, capabilities.

Options: --seed N; names of cases run these alone.
"""

import contextlib
import errno
import fcntl
import hashlib
import mmap
import multiprocessing
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import run
from everyday_world import MIB, run_everyday
from file_handles import handle_of, open_handle


def _write_blocks(path, worker, workers, block, blocks):
    fd = os.open(path, os.O_WRONLY)
    order = list(range(worker, blocks, workers))
    random.Random(worker).shuffle(order)
    for i in order:
        assert os.pwrite(fd, bytes([i % 251]) * block, i * block) == block
    os.close(fd)


def several_writers(world):
    path, block, blocks = world.path("many-writers"), 100003, 240
    open(path, "wb").close()
    workers = [multiprocessing.Process(target=_write_blocks, args=(path, i, 6, block, blocks)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    with open(path, "rb") as file:
        for i in range(blocks):
            assert file.read(block) == bytes([i % 251]) * block, f"block {i}"
        assert file.read() == b""


def _append(path, worker, count):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for i in range(count):
        line = b"%d %d %s\n" % (worker, i, b"x" * (i * 7 % 900))
        assert os.write(fd, line) == len(line)
    os.close(fd)


def append_from_many(world):
    path = world.path("log")
    open(path, "wb").close()
    workers = [multiprocessing.Process(target=_append, args=(path, i, 300)) for i in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    following = [0] * 5
    with open(path, "rb") as file:
        for line in file:
            worker, number, filling = line.split(b" ")
            assert int(number) == following[int(worker)] and filling == b"x" * (int(number) * 7 % 900) + b"\n"
            following[int(worker)] += 1
    assert following == [300] * 5, following


def sparse_files(world):
    path = world.path("sparse")
    with open(path, "wb") as file:
        file.truncate(1 << 40)
        file.seek((1 << 39) + 12345)
        file.write(b"in the middle")
        file.seek((1 << 40) - 3)
        file.write(b"end")
    assert os.stat(path).st_size == 1 << 40
    blocks = int(run("du", "--block-size=1", path).split()[0])
    assert blocks < MIB, f"du says {blocks}"
    with open(path, "rb") as file:
        data = os.lseek(file.fileno(), 0, os.SEEK_DATA)
        assert (1 << 39) - MIB <= data <= (1 << 39) + 12345, data
        assert os.pread(file.fileno(), 30, (1 << 39) + 12340) == b"\0" * 5 + b"in the middle" + b"\0" * 12
        assert os.pread(file.fileno(), 10, (1 << 40) - 3) == b"end"
    run("cp", "--sparse=always", path, path + ".copy")
    assert digest_of_data(path) == digest_of_data(path + ".copy")
    os.unlink(path)
    os.unlink(path + ".copy")


def digest_of_data(path):
    result = hashlib.sha256(str(os.stat(path).st_size).encode())
    with open(path, "rb") as file:
        position = 0
        with contextlib.suppress(OSError):
            while True:
                begin = os.lseek(file.fileno(), position, os.SEEK_DATA)
                position = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
                content = os.pread(file.fileno(), position - begin, begin)
                # Holes may be rounded differently: what counts is where bytes are that are not zero.
                first = len(content) - len(content.lstrip(b"\0"))
                result.update(b"%d" % (begin + first) + content.strip(b"\0"))
    return result.hexdigest()


def _map_writer(path, ready, go_on):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for i in range(0, len(mapped), 4096):
            mapped[i:i + 8] = i.to_bytes(8, "little")
        ready.set()
        go_on.wait(60)
        mapped[5:10] = b"hello"
        mapped.flush()


def mapped_readers_and_writers(world):
    path = world.path("mapped")
    with open(path, "wb") as file:
        file.write(b"\xff" * (4 * MIB + 100))
    ready, go_on = multiprocessing.Event(), multiprocessing.Event()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as shared, \
            mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as private:
        writer = multiprocessing.Process(target=_map_writer, args=(path, ready, go_on))
        writer.start()
        assert ready.wait(60)
        # Another process's stores are seen at once.
        for i in range(0, len(shared), 4096):
            assert shared[i:i + 8] == i.to_bytes(8, "little"), i
        private[100:104] = b"mine"
        assert shared[100:104] == b"\xff" * 4
        go_on.set()
        writer.join()
        assert shared[5:10] == b"hello"
    with open(path, "rb") as file:
        content = file.read()
    assert content[5:10] == b"hello" and content[100:104] == b"\xff" * 4 and len(content) == 4 * MIB + 100
    # A program runs from the mount, which maps it.
    shutil.copy2("/bin/true", world.path("true"))
    run(world.path("true"))


def _hold_lock(path, kind, held, release):
    fd = os.open(path, os.O_RDWR)
    (fcntl.flock if kind == "flock" else fcntl.lockf)(fd, fcntl.LOCK_EX)
    held.set()
    release.wait(60)
    os._exit(0)  # the end of a process frees its locks


def locks_of_two_processes(world):
    path = world.path("locked")
    open(path, "wb").close()
    for kind in ("flock", "lockf"):
        call = fcntl.flock if kind == "flock" else fcntl.lockf
        held, release = multiprocessing.Event(), multiprocessing.Event()
        holder = multiprocessing.Process(target=_hold_lock, args=(path, kind, held, release))
        holder.start()
        assert held.wait(60)
        fd = os.open(path, os.O_RDWR)
        try:
            call(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise AssertionError(f"{kind}: two processes hold it")
        except BlockingIOError:
            pass
        release.set()
        call(fd, fcntl.LOCK_EX)  # waits for the end of the other process
        holder.join()
        call(fd, fcntl.LOCK_UN)
        os.close(fd)


def file_capabilities(world):
    path = world.path("ping")
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)  # version 2, CAP_NET_BIND_SERVICE

    def append():
        with open(path, "ab") as file:
            file.write(b"more")

    append()
    for change in (append, lambda: os.truncate(path, 1), lambda: os.chown(path, 7, 7)):
        os.setxattr(path, "security.capability", capability)
        assert os.getxattr(path, "security.capability") == capability
        change()
        assert "security.capability" not in os.listxattr(path), "a changed file kept its capabilities"


def append_flag_taken_away(world):
    fd = os.open(world.path("appended"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, b"hello world")
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
    os.pwrite(fd, b"XX", 0)
    assert os.pread(fd, 100, 0) == b"XXllo world"
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    os.pwrite(fd, b"YY", 0)
    assert os.pread(fd, 100, 0) == b"XXllo worldYY"
    os.close(fd)


def wait_until_durable(path):
    for _ in range(600):  # by itself
        if os.getxattr(path, "user.cairnfs.durability") == b"local":
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} is not durable after a minute")


def a_child_closes_no_file_of_its_parent(world):
    """Nor does a program that it starts. A round in the background takes the file once its writer closes a descriptor."""
    fd = os.open(world.path("parents"), os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"x" * 100000)
    run("true")  # closes what it has inherited
    with open(world.path("closed"), "wb") as file:
        file.write(b"x" * 100000)
    wait_until_durable(world.path("closed"))
    assert os.getxattr(world.path("parents"), "user.cairnfs.durability") == b"pending"
    os.close(os.dup(fd))
    wait_until_durable(world.path("parents"))
    os.close(fd)


def mapped_stores_come_before_later_names(world):
    """Stores count from munmap on, though the file stays open: a name made after it never survives without them."""
    fd = os.open(world.path("mapped-store"), os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b"-" * 8192)
    os.fsync(fd)
    with mmap.mmap(fd, 8192) as view:
        view[:5] = b"STORE"
    os.mkdir(world.path("later"))
    wait_until_durable(world.path("later"))
    world.mount.kill()
    with contextlib.suppress(OSError):
        os.close(fd)
    world.mount.mount()
    assert os.path.isdir(world.path("later"))
    with open(world.path("mapped-store"), "rb") as file:
        assert file.read(6) == b"STORE-"


def _store_through_mapping(path, pages, ready, stop):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), pages * 4096) as view:
        ready.set()
        count = 0
        while not stop.is_set():
            count += 1
            struct.pack_into("<I", view, 4096 * (count % pages), count)


def written_and_mapped_at_once(world):
    """write(2) and stores through a mapping to other bytes of the same pages: neither undoes the other."""
    path, pages = world.path("both"), 4
    with open(path, "wb") as file:
        file.truncate(pages * 4096)
    ready, stop = multiprocessing.Event(), multiprocessing.Event()
    mapper = multiprocessing.Process(target=_store_through_mapping, args=(path, pages, ready, stop))
    mapper.start()
    fd = os.open(path, os.O_RDWR)
    try:
        assert ready.wait(120)
        end = time.monotonic() + 4
        count = 0
        while time.monotonic() < end:
            count += 1
            at = 4096 * (count % pages) + 2048
            os.pwrite(fd, struct.pack("<I", count), at)
            (found,) = struct.unpack("<I", os.pread(fd, 4, at))
            assert found == count, f"write {count} is undone: {found}"
    finally:
        stop.set()
        mapper.join()
        os.close(fd)
    with open(path, "rb") as file:
        stored = [struct.unpack_from("<I", file.read(4096))[0] for _ in range(pages)]
    assert max(stored) - min(stored) < pages, f"stores are lost: {stored}"


def handles_outlive_the_daemon(world):
    """What a server of NFS gives its clients leads to the same files when everything was started anew."""
    deep = os.path.join(world.path("handles"), "a", "b")
    os.makedirs(deep)
    names = {name: os.path.join(deep, name) for name in ("kept", "moved", "removed", "replaced")}
    for name, path in names.items():
        with open(path, "w", encoding="ascii") as file:
            file.write(name)
    handles = {name: handle_of(path) for name, path in names.items()}
    folder, root, numbers = handle_of(deep), handle_of(world.mount.path), os.stat(deep).st_ino
    world.mount.remount()

    def content(name):
        with os.fdopen(open_handle(world.mount.path, handles[name])) as file:
            return file.read()

    assert all(content(name) == name for name in names)
    os.rename(names["moved"], world.path("handles", "elsewhere"))
    os.unlink(names["removed"])
    with open(deep + "/new", "w", encoding="ascii") as file:
        file.write("new")
    os.rename(deep + "/new", names["replaced"])
    for _ in range(2):
        assert content("kept") == "kept" and content("moved") == "moved"
        for name in ("removed", "replaced"):
            try:
                content(name)
                raise AssertionError(f"{name} is there")
            except OSError as error:
                assert error.errno == errno.ESTALE, error
        fd = open_handle(world.mount.path, folder, os.O_RDONLY | os.O_DIRECTORY)
        assert os.fstat(fd).st_ino == numbers and sorted(os.listdir(fd)) == ["kept", "replaced"]
        assert os.path.samestat(os.stat("../../..", dir_fd=fd), os.stat(world.path()))
        os.close(fd)
        fd = open_handle(world.mount.path, root, os.O_RDONLY | os.O_DIRECTORY)
        assert os.path.samestat(os.fstat(fd), os.stat(world.mount.path))
        os.close(fd)
        world.mount.remount()
    with os.fdopen(open_handle(world.mount.path, handles["kept"], os.O_WRONLY | os.O_APPEND), "w") as file:
        file.write(" and written")
    with open(names["kept"], encoding="ascii") as file:
        assert file.read() == "kept and written"


def below_an_overlay_not_on_top(world):
    """docs/operating.md, "NFS and overlayfs". In a mount namespace of its own, which ends with the shell."""
    lower, upper, work = (world.path("overlay", name) for name in ("lower", "upper", "work"))
    disk = tempfile.mkdtemp(dir=os.path.dirname(world.mount.path))
    for path in (lower, upper, work, disk + "/upper", disk + "/work", disk + "/merged"):
        os.makedirs(path)
    with open(lower + "/file", "w", encoding="ascii") as file:
        file.write("lower")

    def overlay(upper, work, then):
        mount = f"mount -t overlay none -o lowerdir={lower},upperdir={upper},workdir={work} {disk}/merged"
        return subprocess.run(["unshare", "-m", "sh", "-c", f"{mount} && {then}"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)

    with open("/proc/filesystems", encoding="ascii") as kinds:
        if "\toverlay\n" not in kinds.read() and subprocess.run(["modprobe", "overlay"], check=False).returncode != 0:
            return "no overlayfs in this kernel: not tried"
    done = overlay(disk + "/upper", disk + "/work", f"cd {disk}/merged && cat file && echo more >> file && cat file")
    assert (done.returncode, done.stdout) == (0, "lowerlowermore\n"), done
    with open(lower + "/file", encoding="ascii") as file:
        assert file.read() == "lower"
    assert overlay(upper, work, "true").returncode == 32, "an upper directory works: the documentation says it does not"
    return None


def umount_while_busy(world):
    path = world.path("busy")
    with open(path, "wb") as file:
        file.write(b"before")
        file.flush()
        done = subprocess.run(world.mount.umount_command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, check=False)
        assert done.returncode == 5, (done.returncode, done.stdout)
        assert "busy" in done.stdout or "use" in done.stdout, done.stdout
        file.write(b" and after")
        file.flush()
        assert os.stat(path).st_size == 16
    world.mount.remount()
    with open(path, "rb") as file:
        assert file.read() == b"before and after"


CASES = [several_writers, append_from_many, sparse_files, mapped_readers_and_writers, locks_of_two_processes,
         file_capabilities, append_flag_taken_away, a_child_closes_no_file_of_its_parent,
         mapped_stores_come_before_later_names,
         written_and_mapped_at_once, handles_outlive_the_daemon,
         below_an_overlay_not_on_top, umount_while_busy]


if __name__ == "__main__":
    sys.exit(run_everyday(CASES))
