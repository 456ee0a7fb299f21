#!/usr/bin/env python3
"""What people do to a filesystem all day, with the tools that they use, each result compared with the same on ext4.

Options: --seed N, --large-gib N (size of the large file; otherwise 2 GiB, or a quarter of the free space if that is
less); names of cases run these alone.
"""

import contextlib
import os
import shutil
import sqlite3
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Skip, program, run
from everyday_world import MIB, run_everyday


def assert_same(expected, found):
    run("diff", "-r", "--no-dereference", expected, found)
    listing = ["-printf", r"%P %y %m %s %T@ %l\n"]
    trees = [sorted(line for line in run("find", root, "!", "-type", "d", *listing).splitlines())
             for root in (expected, found)]
    assert trees[0] == trees[1], [pair for pair in zip(*trees) if pair[0] != pair[1]][:5]


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


def values_in_another_order(world):
    values = [world.random.randbytes(2 * MIB) for _ in range(24)]
    path = world.path("ordered")

    def save(name, saved):
        with open(name, "wb") as file:
            for value in saved:
                file.write(value)
            os.fsync(file.fileno())

    save(path, values)
    before = world.mount.status()["new_bytes_total"]
    world.random.shuffle(values)
    save(path + ".again", values)
    new = world.mount.status()["new_bytes_total"] - before
    assert new <= 48 * MIB * 12 // 100, f"{new} bytes were stored anew"
    os.unlink(path)
    run(program("cairnfs"), "gc", world.mount.path)
    world.mount.remount()
    with open(path + ".again", "rb") as file:
        for value in values:
            assert file.read(2 * MIB) == value
    return f"{new} bytes were stored anew"


def rsync(world):
    # By default rsync leaves a time alone that differs by less than a second; -1 compares nanoseconds.
    run("rsync", "-aHX", "--modify-window=-1", world.source + "/", world.path("rsync/"))
    assert_same(world.source, world.path("rsync"))
    again = run("rsync", "-aHXi", world.source + "/", world.path("rsync/"))
    assert again.strip() == "", f"the second rsync found something to do: {again[:500]}"
    checked = run("rsync", "-aHXic", world.source + "/", world.path("rsync/"))
    assert checked.strip() == "", checked[:500]


def rsync_sparse(world):
    """Zeros at the borders of its blocks become seeks; the file shares its chunks with the one that was copied."""
    plain, size = world.scratch.path + "/random", 8 * MIB
    with open(plain, "wb") as file:
        file.write(world.random.randbytes(size))
    run("cp", plain, world.path("dense"))
    run(program("cairnfs"), "wait", world.path("dense"))
    before = world.mount.status()["new_bytes_total"]
    run("rsync", "--sparse", plain, world.path("sparse"))
    run(program("cairnfs"), "wait", world.path("sparse"))
    new = world.mount.status()["new_bytes_total"] - before
    run("cmp", plain, world.path("sparse"))
    os.unlink(plain)
    assert new < 64 * 1024, f"{new} of {size} bytes were stored anew"


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


CASES = [cp, cp_inside_moves_no_data, values_in_another_order, rsync, rsync_sparse, tar, git, replace_by_rename,
         dd_odd_sizes, fio, small_files, sqlite, df_du_find, large_file]


if __name__ == "__main__":
    sys.exit(run_everyday(CASES))
