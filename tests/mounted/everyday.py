#!/usr/bin/env python3
"""What people do to a filesystem all day, with the tools that they use, each result compared with the same on ext4.

Options: --seed N, --large-gib N (size of the large file; otherwise 2 GiB, or a quarter of the free space if that is
less); names of cases run these alone.
"""

import contextlib
import fcntl
import hashlib
import mmap
import multiprocessing
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, Skip, program, run, run_cases, seed_from_arguments

MIB = 1 << 20


class World:
    def __init__(self, scratch, mount, seed):
        self.scratch, self.mount, self.random = scratch, mount, random.Random(seed)
        self.plain = scratch.directory("plain")
        self.source = scratch.directory("source")
        self.make_tree(self.source, 150)

    def make_tree(self, root, count):
        """Files of odd sizes, links, an empty directory, odd names."""
        directories = [root]
        for name in ("a", "a/b", "empty", "with space", "\xfcml\xe4ut"):
            os.makedirs(os.path.join(root, name), exist_ok=True)
            directories.append(os.path.join(root, name))
        for i in range(count):
            directory = self.random.choice(directories)
            if directory.endswith("empty"):
                continue
            path = os.path.join(directory, f"file{i}")
            with open(path, "wb") as file:
                file.write(self.random.randbytes(int(2 ** self.random.uniform(0, 20))))
            os.chmod(path, self.random.choice([0o644, 0o600, 0o755, 0o440]))
            os.utime(path, (1600000000 + i, 1500000000 + i * 1000.5))
        os.symlink("a/b", os.path.join(root, "link"))
        os.symlink("nowhere", os.path.join(root, "dangling"))
        os.link(path, path + ".hard")

    def path(self, *names):
        return os.path.join(self.mount.path, *names)


def assert_same(expected, found):
    run("diff", "-r", "--no-dereference", expected, found)
    listing = ["-printf", r"%P %y %m %s %T@ %l\n"]
    trees = [sorted(line for line in run("find", root, "!", "-type", "d", *listing).splitlines())
             for root in (expected, found)]
    assert trees[0] == trees[1], [pair for pair in zip(*trees) if pair[0] != pair[1]][:5]


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cp(world):
    run("cp", "-a", world.source, world.path("cp"))
    assert_same(world.source, world.path("cp"))
    run("cp", "-a", world.path("cp"), world.path("cp-inside"))
    assert_same(world.source, world.path("cp-inside"))
    run("cp", "-r", world.path("cp"), world.scratch.path + "/cp-out")
    run("diff", "-r", "--no-dereference", world.source, world.scratch.path + "/cp-out")


def cp_inside_moves_no_data(world):
    path = world.path("to-copy")
    with open(path, "wb") as file:
        file.write(world.random.randbytes(48 * MIB))
        os.fsync(file.fileno())
    before = world.mount.status()
    run("cp", "--reflink=auto", path, path + ".copy")
    run(program("cairnfs"), "wait", path + ".copy")
    after = world.mount.status()
    run("cmp", path, path + ".copy")
    new = after["new_bytes_total"] - before["new_bytes_total"]
    assert new < 3 * MIB, f"{new} bytes were stored anew"
    assert after["unique_bytes"] - before["unique_bytes"] < 3 * MIB
    written = after["write_bytes_total"] - before["write_bytes_total"]
    return f"{written} bytes went through write"


def rsync(world):
    # By default rsync leaves a time alone that differs by less than a second; -1 compares nanoseconds.
    run("rsync", "-aHX", "--modify-window=-1", world.source + "/", world.path("rsync/"))
    assert_same(world.source, world.path("rsync"))
    again = run("rsync", "-aHXi", world.source + "/", world.path("rsync/"))
    assert again.strip() == "", f"the second rsync found something to do: {again[:500]}"
    checked = run("rsync", "-aHXic", world.source + "/", world.path("rsync/"))
    assert checked.strip() == "", checked[:500]


def tar(world):
    run("tar", "-C", world.source, "--format=posix", "-cf", world.path("tree.tar"), ".")
    os.mkdir(world.path("untarred"))
    run("tar", "-C", world.path("untarred"), "-xpf", world.path("tree.tar"))
    assert_same(world.source, world.path("untarred"))
    run("tar", "-C", world.path("untarred"), "-df", world.path("tree.tar"))
    run("tar", "-czf", world.path("tree.tgz"), "-C", world.path("untarred"), ".")
    run("gzip", "-t", world.path("tree.tgz"))


def git(world):
    repository = world.path("repository")
    environment = {**os.environ, "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@localhost", "GIT_COMMITTER_NAME": "t",
                   "GIT_COMMITTER_EMAIL": "t@localhost", "HOME": world.scratch.path}
    run("cp", "-r", world.source, repository)
    run("git", "init", "-q", repository, env=environment)
    for i in range(3):
        with open(os.path.join(repository, "changing"), "w", encoding="ascii") as file:
            file.write("line\n" * (i + 1) * 1000)
        run("git", "-C", repository, "add", "-A", env=environment)
        run("git", "-C", repository, "commit", "-qm", f"commit {i}", env=environment)
    run("git", "clone", "-q", repository, world.path("clone"), env=environment)
    run("git", "clone", "-q", "--no-local", repository, world.scratch.path + "/clone-out", env=environment)
    run("git", "-C", world.path("clone"), "fsck", "--full", "--strict", env=environment)
    run("git", "-C", repository, "gc", "-q", "--prune=now", env=environment)
    run("git", "-C", repository, "checkout", "-q", "HEAD~1", env=environment)
    assert run("git", "-C", repository, "status", "--porcelain", env=environment) == ""


def replace_by_rename(world):
    path = world.path("edited.txt")
    with open(path, "w", encoding="ascii") as file:
        file.write("old\n")
    for i in range(200):
        # As vim does it: the new text beside the old file, a backup link, fsync, a rename over it.
        text = f"version {i}\n" * (i + 1)
        with open(path + "~new", "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            if i % 20 == 0:
                os.fsync(file.fileno())
        if os.path.exists(path + "~"):
            os.unlink(path + "~")
        os.link(path, path + "~")
        os.rename(path + "~new", path)
        with open(path, encoding="ascii") as file:
            assert file.read() == text
    run("sed", "-i", "s/version/edition/", path)
    with open(path, encoding="ascii") as file:
        assert file.readline() == "edition 199\n"


def dd_odd_sizes(world):
    source = world.scratch.path + "/dd-source"
    with open(source, "wb") as file:
        file.write(world.random.randbytes(9 * MIB + 12345))
    for size in (1, 511, 513, 4095, 4097, 65537, 1000003, 3 * MIB + 1):
        count = max(1, min(2000, 9 * MIB // size))
        for flags in ([], ["oflag=sync"] if count < 20 else [], ["oflag=append", "conv=notrunc"]):
            for target in (world.path("dd"), world.plain + "/dd"):
                run("dd", f"if={source}", f"of={target}", f"bs={size}", f"count={count}", "status=none", *flags)
            run("cmp", world.plain + "/dd", world.path("dd"))
    for flags in (["oflag=direct"], ["oflag=direct", "conv=notrunc,fsync", "seek=3"]):
        for target in (world.path("direct"), world.plain + "/direct"):
            run("dd", f"if={source}", f"of={target}", "bs=64K", "count=100", "status=none", *flags)
        run("cmp", world.plain + "/direct", world.path("direct"))
    for target in (world.path("holes"), world.plain + "/holes"):
        run("dd", f"if={source}", f"of={target}", "bs=7777", "count=20", "seek=1000", "skip=3", "status=none")
    run("cmp", world.plain + "/holes", world.path("holes"))
    for flags in (["iflag=direct", "bs=1M"], ["bs=12345"], ["bs=3M"]):
        run("dd", f"if={world.path('direct')}", f"of={world.scratch.path}/back", "status=none", *flags)
        run("cmp", world.plain + "/direct", world.scratch.path + "/back")


def fio(world):
    if shutil.which("fio") is None:
        raise Skip("fio is not installed")
    jobs = {
        "random-direct": ["--rw=randwrite", "--direct=1", "--ioengine=libaio", "--iodepth=8", "--bs=4k"],
        "odd-sizes": ["--rw=randwrite", "--direct=0", "--ioengine=psync", "--bsrange=512-130k", "--bs_unaligned=1"],
        "sequential": ["--rw=write", "--direct=1", "--ioengine=libaio", "--iodepth=4", "--bs=1m"],
        "mixed-sync": ["--rw=randrw", "--direct=0", "--ioengine=psync", "--bs=8k", "--fsync=64"],
        "mapped": ["--rw=randwrite", "--direct=0", "--ioengine=mmap", "--bs=4k"],
    }
    for name, flags in jobs.items():
        run("fio", f"--name={name}", f"--directory={world.mount.path}", "--size=16m", "--numjobs=2", "--verify=crc32c",
            "--verify_fatal=1", "--do_verify=1", "--group_reporting", "--minimal", "--end_fsync=1",
            f"--randseed={world.random.randrange(10**6)}", *flags, cwd=world.scratch.path)


def small_files(world, count=4000):
    root = world.path("small")
    for i in range(count):
        directory = f"{root}/{i % 40}"
        if i < 40:
            os.makedirs(directory)
        with open(f"{directory}/{i}", "wb") as file:
            file.write(b"%d" % i * (1 + i % 300))
    assert int(run("sh", "-c", f"find {root} -type f | wc -l")) == count
    world.mount.remount()
    for i in range(0, count, 37):
        with open(f"{root}/{i % 40}/{i}", "rb") as file:
            assert file.read() == b"%d" % i * (1 + i % 300)
    begin = time.monotonic()
    shutil.rmtree(root)
    return f"{count} files, removed in {time.monotonic() - begin:.2f} s"


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


def mapped_stores_come_before_later_names(world):
    """Stores count from munmap on, though the file stays open: a name made after it never survives without them."""
    fd = os.open(world.path("mapped-store"), os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b"-" * 8192)
    os.fsync(fd)
    with mmap.mmap(fd, 8192) as view:
        view[:5] = b"STORE"
    os.mkdir(world.path("later"))
    for _ in range(100):  # by itself within 5 s
        if os.getxattr(world.path("later"), "user.cairnfs.durability") == b"local":
            break
        time.sleep(0.1)
    world.mount.kill()
    with contextlib.suppress(OSError):
        os.close(fd)
    world.mount.mount()
    assert os.path.isdir(world.path("later"))
    with open(world.path("mapped-store"), "rb") as file:
        assert file.read(6) == b"STORE-"


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


def sqlite(world):
    for mode in ("delete", "wal"):
        path = world.path(f"{mode}.sqlite")
        with contextlib.closing(sqlite3.connect(path)) as database:
            assert database.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
            database.execute("create table t (a integer primary key, b blob)")
            for i in range(60):
                with database:
                    database.executemany("insert into t (b) values (?)", [(b"%d" % i * 100,)] * 20)
        with contextlib.closing(sqlite3.connect(path)) as database:
            assert database.execute("select count(*) from t").fetchone()[0] == 1200
            assert database.execute("pragma integrity_check").fetchone()[0] == "ok"


def df_du_find(world):
    space = os.statvfs(world.mount.path)
    below = os.statvfs(world.mount.data)
    assert 0 < space.f_bavail * space.f_frsize <= below.f_bavail * below.f_frsize * 1.05
    assert "cairnfs" in run("df", "-T", world.mount.path)
    root = world.path("found")
    run("cp", "-a", world.source, root)
    sizes = [int(run("du", "-s", "--apparent-size", "--block-size=1", "--exclude=nothing", path).split()[0])
             for path in (world.source, root)]
    assert abs(sizes[0] - sizes[1]) < MIB, sizes  # directories have other sizes
    queries = [["-perm", "755"], ["-size", "+100k"], ["-newermt", "2020-01-01"], ["-links", "2", "-type", "f"],
               ["-type", "l"], ["-empty"], ["-name", "*1*"], ["-mtime", "+1000"]]
    for query in queries:
        found = [sorted(os.path.relpath(line, top) for line in run("find", top, *query).splitlines())
                 for top in (world.source, root)]
        assert found[0] == found[1], (query, set(found[0]) ^ set(found[1]))


def large_file(world):
    arguments = sys.argv[1:]
    if "--large-gib" in arguments:
        size = int(arguments[arguments.index("--large-gib") + 1]) << 30
    else:
        size = min(2 << 30, shutil.disk_usage(world.mount.data).free // 4) // (8 * MIB) * 8 * MIB
    path, piece = world.path("large"), bytearray(world.random.randbytes(8 * MIB))

    def stamp(i):  # every 64 KiB of every piece is different
        for at in range(0, len(piece), 65536):
            piece[at:at + 8] = (i * len(piece) + at).to_bytes(8, "little")
        return piece

    begin = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for i in range(size // len(piece)):
            assert file.write(stamp(i)) == len(piece)
        os.fsync(file.fileno())
    written = time.monotonic()
    assert os.stat(path).st_size == size
    with open(path, "rb", buffering=0) as file:
        found = bytearray(len(piece))
        for i in range(size // len(piece)):
            assert file.readinto(found) == len(piece) and found == stamp(i), f"piece {i}"
    read = time.monotonic()
    os.unlink(path)
    return f"{size / 2**30:.1f} GiB written in {written - begin:.1f} s, read in {read - written:.1f} s"


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


def everything_after_a_remount(world):
    """What the other cases left is the same after a remount, bit for bit, and the check is clean."""
    before = {}
    for _ in range(2):
        found = {}
        for directory, _, files in os.walk(world.mount.path):
            for name in files:
                path = os.path.join(directory, name)
                info = os.lstat(path)
                if not os.path.islink(path):
                    found[path] = (digest(path), info.st_mode, info.st_mtime_ns, info.st_size, info.st_ino)
        assert not before or found == before, [path for path in found if found[path] != before.get(path)][:5]
        before = found
        world.mount.remount()
    world.mount.collect()
    report = world.mount.check()
    return f"{len(before)} files, {report['chunks']} chunks"


CASES = [cp, cp_inside_moves_no_data, rsync, tar, git, replace_by_rename, dd_odd_sizes, fio, small_files, several_writers,
         append_from_many, sparse_files, mapped_readers_and_writers, locks_of_two_processes, file_capabilities,
         append_flag_taken_away, mapped_stores_come_before_later_names, sqlite, df_du_find,
         large_file, umount_while_busy, everything_after_a_remount]


def main():
    seed = seed_from_arguments()
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=256MiB,reserve=64MiB")
        status = run_cases(CASES, World(scratch, mount, seed))
        if status != 0:
            print(mount.log())
        return status


if __name__ == "__main__":
    sys.exit(main())
