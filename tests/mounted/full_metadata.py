#!/usr/bin/env python3
"""A disk that runs full of metadata: it can always be mounted, everything can be deleted, and the room comes back.

Options: --seed N; --rounds N: so many rounds of each kind of fill in turn, on disks of 200 MiB and 1 GiB, in place of
the sample.
"""

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
SECONDS_TO_COME_BACK = 30 if "--rounds" in sys.argv else 300  # the promise; what no machine needs, however busy
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


LARGE_KINDS = (symlinks, xattrs)  # these fill a disk alone, the others what data leaves of it
KINDS = (*LARGE_KINDS, names, links, tiny, locks)
LEFT_BY_DATA = 16 << 20


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


def df_says_that_no_name_fits(mount, rng):
    """Names fill what room there is again, once tables were merged."""
    deadline = time.monotonic() + 60
    while (shown := run("df", "--output=iavail,ipcent", mount.path).split()[-2:])[0] != "0":
        assert time.monotonic() < deadline, shown
        try:
            for _ in range(1000):
                names(mount.path + "/filled", "more", rng)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
    assert shown[1] == "100%", shown


def says_what_is_full(mount, rng):
    """What df, the status and the log say of a mount that refused names."""
    df_says_that_no_name_fits(mount, rng)
    owners = json.loads(run(program("cairnfs"), "status", mount.path, "--metadata", "--json"))["metadata_owners"]
    assert owners[0]["uid"] == os.geteuid() and owners[0]["bytes"] > 10 << 20, owners
    assert mount.status()["metadata_room_bytes"] < 64 << 20, mount.status()
    assert "the metadata is what is full" in mount.log(), mount.log()


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
            if kind not in LARGE_KINDS:
                fill_with_data(mount, rng)
            began = time.monotonic()
            if "full" in kills:  # perhaps at once, while tables are still merged
                count = fill(root, kind, rng, patience=rng.choice((0, 0, 0.1, 1)))
                filled = time.monotonic()
                crash(mount)
            else:
                count = fill(root, kind, rng)
                filled = time.monotonic()
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
            await_room(mount, free_at_first * 9 // 10)
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


def filled_with_links_and_killed(seed):
    return one_round(seed, symlinks, 80 << 20, ("full", "deleting"))


def filled_with_attributes(seed):
    return one_round(seed, xattrs, 200 << 20, ())


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


def many_rounds(rounds):
    """One case for each round, so that a failure ends one of them alone."""
    def case_of(number):
        kind = KINDS[number % len(KINDS)]
        size = 1 << 30 if number % 5 == 4 else 200 << 20
        kills = (("full",), (), ("deleting",), ("full", "deleting"))[number // len(KINDS) % 4]

        def case(seed):
            return one_round(seed + number, kind, size, kills)
        case.__name__ = f"round_{number}"
        return case
    return [case_of(number) for number in range(rounds)]


def main():
    arguments = sys.argv[1:]
    cases = [filled_with_links_and_killed, filled_with_attributes, one_user_leaves_room_to_others]
    if "--rounds" in arguments:
        cases = many_rounds(int(arguments[arguments.index("--rounds") + 1]))
    return run_cases(cases, seed_from_arguments())


if __name__ == "__main__":
    sys.exit(main())
