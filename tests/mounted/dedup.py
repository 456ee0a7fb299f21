#!/usr/bin/env python3
"""What equal data takes, as its users and as strangers see it: status, attributes, df; dedup for each owner.

Options: --seed N.
"""

import contextlib
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, program, run, run_cases, seed_from_arguments

MIB = 1 << 20
ALICE, BOB = 65534, 65533
UNIT = 1024  # df is told in units of about one part in so many of the disk


def wait_until(holds, what):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"never seen: {what}"
        time.sleep(0.05)


def save_as(uid, path, content):
    """Writes and syncs a file as that user."""
    subprocess.run(["dd", "of=" + path, "bs=1M", "iflag=fullblock", "conv=fsync", "status=none"], input=content,
                   check=True, user=uid, group=uid, extra_groups=[])


def added_by(mount, save):
    """Chunk bytes that a save added to what files need, and how many of what it wrote were known."""
    before = mount.status()
    save()
    after = mount.status()
    return (after["live_bytes"] - before["live_bytes"], after["known_bytes_total"] - before["known_bytes_total"])


def each_owner_has_chunks_of_its_own(seed):
    secret = random.Random(seed).randbytes(8 * MIB)
    with Scratch() as scratch:
        mount = Mount(scratch, options=SMALL + ",dedup=owner")
        os.chmod(mount.path, 0o1777)
        save = lambda uid, name: lambda: save_as(uid, f"{mount.path}/{name}", secret)
        first, known = added_by(mount, save(ALICE, "alice"))
        assert first >= len(secret) and known == 0, (first, known)
        assert added_by(mount, save(BOB, "bob")) == (first, 0), "bob sees that alice has it"
        assert added_by(mount, save(ALICE, "again"))[0] == 0, "alice's own is stored twice"
        mount.remount()
        assert added_by(mount, save(BOB, "later"))[0] == 0
        assert mount.status()["dedup"] == "owner"
        assert "dedup         owner" in run(program("cairnfs"), "status", mount.path)
        mount.check()
        mount.umount()
        assert_cannot_change(mount, "owner", "mount")
        other = Mount(scratch, name="-other")
        assert other.status()["dedup"] == "mount"
        other.umount()
        assert_cannot_change(other, "mount", "owner")


def assert_cannot_change(mount, made, wanted):
    command = [program("cairnfs"), "mount", mount.path, "--data", mount.data, "-o", f"{SMALL},dedup={wanted}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          timeout=120)
    assert done.returncode == 2 and f'was made with "{made}", which cannot be changed' in done.stdout, done


def df_tells_no_small_file(seed):
    """df moves in steps of a thousandth of the disk, never says more than there is, and says 0 when it is full."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=64MiB", data=scratch.ext4("disk", 200 << 20) + "/data")
        os.chmod(mount.path, 0o777)
        steps, total = set(), 0
        for i in range(40):
            save_as(ALICE, f"{mount.path}/{i}", rng.randbytes(50_000))
            before = mount.status()["available_bytes"]
            space = os.statvfs(mount.path)
            free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
            steps.add(free)
            assert free <= max(before, mount.status()["available_bytes"]) + 2 * MIB, "more than there is"
        unit = min(value & -value for value in steps | {total})
        assert unit >= total // UNIT, (unit, total)

        def fill():
            # A collection may find some room after it.
            with open(mount.path + "/fill", "ab", buffering=0) as file:
                for size in (MIB, 4096):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(rng.randbytes(size))
            return os.statvfs(mount.path).f_bavail == 0

        wait_until(fill, "0 when it is full")
        os.unlink(mount.path + "/fill")
        mount.collect()
        wait_until(lambda: os.statvfs(mount.path).f_bavail * os.statvfs(mount.path).f_frsize > 50 * MIB, "room again")
        mount.umount()


def attribute(path, name):
    return int(os.getxattr(path, "user.cairnfs." + name))


def live_is_what_files_need(seed):
    """A file of many small appends: its attributes say what status says, over remounts; what it left behind is dead."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = Mount(scratch, options=SMALL + ",collect_after=1GiB")
        path = mount.path + "/appended"
        for i in range(1500):
            with open(path, "ab", buffering=0) as file:
                file.write(rng.randbytes(100))
            if i % 100 == 99:
                run(program("cairnfs"), "wait", path)  # a round: its tail is stored, and left behind by the next
        for _ in range(2):
            run(program("cairnfs"), "wait", path)
            status = mount.status()
            took = (attribute(path, "chunks"), attribute(path, "unique_bytes"))
            assert took == (status["live_chunk_count"], status["live_bytes"]), (took, status)
            assert status["live_bytes"] + status["unreferenced_bytes"] == status["unique_bytes"], status
            assert status["live_chunk_count"] + status["unreferenced_chunk_count"] == status["chunk_count"], status
            assert status["unreferenced_bytes"] > 0 and status["counted_seconds_ago"] == 0, status
            mount.remount()
        # A save of the same adds nothing, whatever it leaves behind on its way.
        with open(path, "rb") as file:
            content = file.read()
        live = mount.status()["live_bytes"]
        for name in ("one", "two"):
            with open(mount.path + "/" + name, "wb", buffering=0) as file:
                for at in range(0, len(content), 40_000):
                    file.write(content[at:at + 40_000])
                    os.fsync(file.fileno())
        grown = mount.status()["live_bytes"] - live
        assert grown <= len(content), (grown, len(content))  # one chunk of the whole, in place of 1,500
        os.unlink(path)
        os.unlink(mount.path + "/two")
        wait_until(lambda: mount.status()["live_bytes"] == len(content), "one file is left")
        dead = mount.status()["unreferenced_bytes"]
        collected = mount.collect()
        assert collected["bytes_freed"] == dead, (collected, dead)
        status = mount.status()
        assert (status["live_bytes"], status["unreferenced_bytes"]) == (len(content), 0), status
        assert status["unique_bytes"] == len(content) and status["dedup_ratio"] == 1, status
        assert "files need; dead, until collected: 0 B in 0 (counted now)" in run(
            program("cairnfs"), "status", "--exact", mount.path)
        mount.umount()


CASES = (each_owner_has_chunks_of_its_own, df_tells_no_small_file, live_is_what_files_need)

if __name__ == "__main__":
    sys.exit(run_cases(CASES, seed_from_arguments()))
