#!/usr/bin/env python3
"""A disk that runs full of metadata: it can always be mounted, everything can be deleted, and the room comes back.

Options: --seed N; --each: the sample of each kind of fill, and not of two; --rounds N: so many rounds, with the kinds of
fill in turn, on disks of 200 MiB and 1 GiB, in place of the sample; --mib N: on disks of that size.
"""

import concurrent.futures
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import random
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, program, run, run_cases, seed_from_arguments

SECONDS_TO_REFUSE = 2  # refused for so long: full, and not only for the moment
IS_SAMPLE = "--rounds" not in sys.argv or "--mib" in sys.argv
SECONDS_TO_COME_BACK = 300 if IS_SAMPLE else 30  # 30 is the promise, of an idle machine
SECONDS_TO_FILL_AGAIN = 600
LETTERS = bytes(range(48, 58)) + bytes(range(65, 91)) + bytes(range(97, 123)) + b"+-"
TO_LETTERS = bytes(LETTERS[byte % 64] for byte in range(256))


def text(rng, size):
    """Bytes that may stand in a name and hardly compress."""
    return rng.randbytes(size).translate(TO_LETTERS)


def symlinks(directory, number, rng):
    os.symlink(text(rng, 4000), f"{directory}/{number}")


def xattrs(directory, number, rng):
    path = f"{directory}/{number}"
    with open(path, "xb"):
        pass
    for name in ("user.first", "user.second"):
        os.setxattr(path, name, rng.randbytes(60_000))


def names(directory, number, rng):
    os.mknod(f"{directory}/{number}-{text(rng, 200).decode()}")


def links(directory, number, rng):
    first = f"{directory}/{number - number % 1000}-first"
    if not os.path.exists(first):
        os.mknod(first)
    os.link(first, f"{directory}/{number}-{text(rng, 230).decode()}")


def tiny(directory, number, rng):
    """The name may find room where the bytes find none."""
    fd = os.open(f"{directory}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    for act in (lambda: os.write(fd, rng.randbytes(100)), lambda: os.close(fd)):
        try:
            act()
        except OSError as error:
            assert error.errno == errno.ENOSPC, error


def locks(directory, number, rng):
    """A file with a lock and an attribute: what a store of small records does."""
    with open(f"{directory}/{number}", "xb", buffering=0) as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        os.setxattr(file.fileno(), "user.owner", rng.randbytes(2_000))


PIECES = 32  # as many extents as the record of a file holds itself
PIECE_BYTES, PIECE_EVERY = 16 << 10, 64 << 10
SOURCES = 500  # so many chunks: equal digests would be compressed
FILES_ALTERED_PER_MIB, FILES_ALTERED_MAX = 100, 40_000  # of the disk; their records take more than the reserve


def copies(path, sources, rng):
    """Bytes that are stored already: these need room for the file's record alone."""
    fd = os.open(path, os.O_WRONLY)
    try:
        for piece in range(PIECES):
            os.copy_file_range(rng.choice(sources), fd, PIECE_BYTES // 2, 0, piece * PIECE_EVERY)
    finally:
        os.close(fd)


def punched(path, sources, rng):
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size, punch_hole = 1, 2
    fd = os.open(path, os.O_WRONLY)
    try:
        for piece in range(PIECES // 2):
            os.copy_file_range(rng.choice(sources), fd, PIECE_BYTES, 0, piece * PIECE_BYTES)
        for piece in range(PIECES // 2):
            offset = ctypes.c_int64(piece * PIECE_BYTES + PIECE_BYTES // 4)
            if libc.fallocate(fd, keep_size | punch_hole, offset, ctypes.c_int64(PIECE_BYTES // 2)) != 0:
                raise OSError(ctypes.get_errno(), "fallocate")
    finally:
        os.close(fd)


def touched(path, _, rng):
    os.utime(path, (rng.randrange(1 << 30), rng.randrange(1 << 30)))


def written_later(path, sources, rng):
    """Bytes that are known, and now and then some that are not."""
    fd = os.open(path, os.O_WRONLY)
    try:
        for piece in range(PIECES):
            block = rng.randbytes(100) if rng.random() < 0.1 else os.pread(rng.choice(sources), PIECE_BYTES, 0)
            os.pwrite(fd, block, piece * PIECE_EVERY)
    finally:
        os.close(fd)


LARGE_KINDS = (symlinks, xattrs)  # these fill a disk alone, the others what data leaves of it
LATER_KINDS = (copies, punched, touched, written_later)  # these make the records of files longer
KINDS = (*LARGE_KINDS, names, links, tiny, locks, *LATER_KINDS)
LEFT_BY_DATA = 16 << 20
SAMPLE_MIB, ROUNDS_AT_ONCE = 80, 4
SAMPLE = KINDS if "--each" in sys.argv else (xattrs, copies)


def fill(root, kind, rng, patience=SECONDS_TO_REFUSE, limit=None):
    """Makes entries of the kind until they are refused for `patience` seconds, or `limit` of them; how many."""
    refused_since, number = None, 0
    directory = root
    while limit is None or number < limit:
        if number % 1000 == 0:
            directory = f"{root}/{number}"
            try:
                os.mkdir(directory)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                directory = root
        try:
            kind(directory, number, rng)
            refused_since = None
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            now = time.monotonic()
            refused_since = refused_since or now
            if now - refused_since >= patience:
                return number + 1
            time.sleep(0.01)
        number += 1
    return number


def alter(root, kind, sources, rng, patience):
    """Makes the records of the files below longer, until that is refused for `patience` seconds; of how many."""
    refused_since, number = None, 0
    for directory, _, files in os.walk(root):
        for name in files:
            number += 1
            try:
                kind(f"{directory}/{name}", sources, rng)
                refused_since = None
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                now = time.monotonic()
                refused_since = refused_since or now
                if now - refused_since >= patience:
                    return number
                time.sleep(0.01)
    return number


def open_sources(mount, stack, rng):
    """Descriptors of files of one chunk each."""
    os.mkdir(mount.path + "/filled/sources")
    sources = []
    for number in range(SOURCES):
        file = stack.enter_context(open(f"{mount.path}/filled/sources/{number}", "xb+", buffering=0))
        file.write(rng.randbytes(PIECE_BYTES))
        sources.append(file.fileno())
    os.fsync(sources[-1])
    return sources


def fill_later(mount, kind, count, rng, patience):
    """The files are there before the disk gets full: of data alone, or of names too. How many were altered."""
    root = mount.path + "/filled/there"
    os.mkdir(root)
    for number in range(count):
        if number % 1000 == 0:
            os.mkdir(f"{root}/{number}")
        os.mknod(f"{root}/{number - number % 1000}/{number}")
    with contextlib.ExitStack() as stack:
        sources = open_sources(mount, stack, rng)
        fill_with_data(mount, rng)
        if rng.random() < 0.7:
            os.mkdir(mount.path + "/filled/names")
            fill(mount.path + "/filled/names", names, rng)
        return alter(root, kind, sources, rng, patience)


def fill_with_data(mount, rng):
    with open(mount.path + "/data", "xb", buffering=0) as file:
        while free_bytes(mount) > LEFT_BY_DATA:
            file.write(rng.randbytes(1 << 20))
        os.fsync(file.fileno())


def remove_below(root, rng, share=1.0):
    """Deletes everything, or that share of the files. No deletion may be refused."""
    removed = []
    for directory, _, files in os.walk(root, topdown=False):
        for name in files:
            if share == 1.0 or rng.random() < share:
                os.unlink(f"{directory}/{name}")
                removed.append(f"{directory}/{name}")
        if share == 1.0:
            os.rmdir(directory)
            removed.append(directory)
    return removed


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def free_bytes(mount):
    space = os.statvfs(mount.path)
    return space.f_bavail * space.f_frsize


def await_room(mount, wanted):
    deadline = time.monotonic() + SECONDS_TO_COME_BACK
    while (free := free_bytes(mount)) < wanted:
        assert time.monotonic() < deadline, (f"{free >> 20} MiB free {SECONDS_TO_COME_BACK} s after everything was "
                                             f"deleted, of {wanted >> 20} wanted:\n{mount.log()}")
        time.sleep(0.2)


def fill_until_df_and_log_tell(mount, rng):
    """Names fill what room there is again, once tables were merged. Some of it is for root alone, which df leaves out."""
    deadline = time.monotonic() + SECONDS_TO_FILL_AGAIN
    while True:
        shown = run("df", "--output=iavail,ipcent", mount.path).split()[-2:]
        if shown[0] == "0" and "the metadata is what is full" in mount.log():
            assert shown[1] == "100%", shown
            return
        assert time.monotonic() < deadline, (shown, mount.log())
        try:
            for _ in range(1000):
                names(mount.path + "/filled", "more", rng)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error


def says_what_is_full(mount, rng):
    """What df, the status and the log say of a mount that refuses names."""
    fill_until_df_and_log_tell(mount, rng)
    owners = json.loads(run(program("cairnfs"), "status", mount.path, "--metadata", "--json"))["metadata_owners"]
    assert owners[0]["uid"] == os.geteuid() and owners[0]["bytes"] > 10 << 20, owners
    assert mount.status()["metadata_room_bytes"] < 64 << 20, mount.status()


def crash(mount):
    mount.kill()
    mount.mount()


def one_round(seed, kind, size, kills):
    """`kills`: when the daemon dies: "full", "deleting", both, or none of them."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=64MiB", data=scratch.ext4("disk", size) + "/data")
        try:
            kept = rng.randbytes(1 << 20)
            with open(mount.path + "/kept", "xb", buffering=0) as file:
                file.write(kept)
                os.fsync(file.fileno())
            free_at_first = free_bytes(mount)
            root = mount.path + "/filled"
            os.mkdir(root)
            if kind not in LARGE_KINDS and kind not in LATER_KINDS:
                fill_with_data(mount, rng)
            began = time.monotonic()
            # Killed perhaps at once, while tables are still merged.
            patience = rng.choice((0, 0, 0.1, 1)) if "full" in kills else SECONDS_TO_REFUSE
            if kind in LATER_KINDS:
                files = min(FILES_ALTERED_MAX, FILES_ALTERED_PER_MIB * (size >> 20))
                count = fill_later(mount, kind, files, rng, patience)
            else:
                count = fill(root, kind, rng, patience)
            filled = time.monotonic()
            if "full" in kills:
                crash(mount)
            else:
                says_what_is_full(mount, rng)
            if "deleting" in kills:
                removed = remove_below(root, rng, share=rng.random())
                sync(root)
                more = remove_below(root, rng, share=rng.random() / 2)
                crash(mount)
                for path in removed:
                    assert not os.path.lexists(path), f"{path} is back, whose deletion a sync point covered"
                assert removed or more, "nothing was there to delete"
            remove_below(root, rng)
            if kind not in LARGE_KINDS:
                os.unlink(mount.path + "/data")
            sync(mount.path)
            deleted = time.monotonic()
            # A small disk has small segments, and of each that holds something some MiB count as none.
            await_room(mount, free_at_first * 9 // 10 if size >= 200 << 20 else free_at_first * 3 // 5)
            back = time.monotonic()
            status = mount.status()
            assert not status["last_error"] and not status["failing"], status
            os.mkdir(root)
            fill(root, names, rng, limit=1000)
            with open(mount.path + "/new", "xb", buffering=0) as file:
                file.write(rng.randbytes(20 << 20))
                os.fsync(file.fileno())
            mount.remount()
            assert sorted(os.listdir(mount.path)) == ["filled", "kept", "new"], os.listdir(mount.path)
            with open(mount.path + "/kept", "rb") as file:
                assert file.read() == kept
            mount.check()
            mount.umount()
        except BaseException:
            print(f"{kind.__name__} on {size >> 20} MiB, kills {kills}, seed {seed}:\n{mount.log()}", flush=True)
            raise
    return (f"{count} {kind.__name__} on {size >> 20} MiB, kills {kills or '-'}: filled in {filled - began:.0f} s, "
            f"deleted in {deleted - filled:.0f} s, back after {back - deleted:.1f} s")


def kinds_on_a_small_disk(seed):
    """Most of a round is waiting."""
    def one(number):
        return run(sys.executable, __file__, "--rounds", len(KINDS), "--mib", SAMPLE_MIB, "--seed", seed,
                   f"round_{number}", timeout=3600).splitlines()[-2]
    with concurrent.futures.ThreadPoolExecutor(ROUNDS_AT_ONCE) as rounds:
        return "\n".join(["", *rounds.map(one, [KINDS.index(kind) for kind in SAMPLE])])


def as_user(uid, act):
    """Runs `act` in a process of that user; it must not raise."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            act()
            code = 0
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"user {uid} failed, see above"


def one_user_leaves_room_to_others(seed):
    hog, other = 65531, 65532
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=64MiB,allow_other=true", data=scratch.ext4("disk", 200 << 20) + "/data")
        for uid in (hog, other):
            os.mkdir(f"{mount.path}/{uid}")
            os.chown(f"{mount.path}/{uid}", uid, uid)
        as_user(hog, lambda: fill(f"{mount.path}/{hog}", xattrs, random.Random(seed)))
        assert os.statvfs(mount.path).f_favail > 1000, "one user took all"
        for uid in (other, 0):
            def make(uid=uid):
                for number in range(300):
                    names(f"{mount.path}/{other}", f"{uid}-{number}", random.Random(number))
            as_user(uid, make)
        owners = json.loads(run(program("cairnfs"), "status", mount.path, "--metadata", "--json"))["metadata_owners"]
        assert owners[0]["uid"] == hog and owners[0]["xattr_bytes"] > 20 << 20, owners
        mount.umount()


def many_rounds(rounds, mib):
    """One case for each round, so that a failure ends one of them alone."""
    def case_of(number):
        kind = KINDS[number % len(KINDS)]
        size = mib << 20 if mib else 1 << 30 if number % 7 == 6 else 200 << 20
        all_kills = (("full",), (), ("deleting",), ("full", "deleting"))

        def case(seed):
            kills = all_kills[((seed if mib else 0) + number // len(KINDS) + number) % 4]
            return one_round(seed + number, kind, size, kills)
        case.__name__ = f"round_{number}"
        return case
    return [case_of(number) for number in range(rounds)]


def main():
    arguments = sys.argv[1:]

    def number_after(option):
        return int(arguments[arguments.index(option) + 1]) if option in arguments else 0

    cases = [kinds_on_a_small_disk, one_user_leaves_room_to_others]
    if "--rounds" in arguments:
        cases = many_rounds(number_after("--rounds"), number_after("--mib"))
    return run_cases(cases, seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
