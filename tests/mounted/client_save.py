#!/usr/bin/env python3
"""The client library on a CairnFS mount and on the plain directory beside it.

Saves of random states, with bases that are spoiled and bases on the other file system, are compared with plain bytes;
on the mount, what did not change since the save before adds nothing to what files need. Savers are killed, disks are
full, copy_file_range fails. The library is that of CAIRNFS_BUILD_DIR, else of the build that CAIRNFS_BIN_DIR lies in.
Options: --seed N; names of cases run these alone. tests/by_hand/client_rounds.py does thousands of rounds.
"""

import collections
import errno
import json
import os
import pathlib
import random
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "..", "tools")]
sys.dont_write_bytecode = True
import client_trouble
from cairnfs_mount import BIN_DIR, Mount, Scratch, Skip, run, run_cases, seed_from_arguments
from client_rounds import run_series, text_of
from gpu_check import checks
from gpu_check.library import Client
from gpu_check.memory import HostMemory

MIB = 1 << 20
BUILD = os.environ.get("CAIRNFS_BUILD_DIR", os.path.join(BIN_DIR, ".."))
LIBRARY = os.path.join(BUILD, "src", "client", "libcairnfs_client.so")
TROUBLE = os.path.join(HERE, "..", "support", "client_trouble.py")
PYTHON = "/usr/bin/python3"
client = Client(LIBRARY)
USED, OTHER_FILESYSTEM = 1, 6


def state_of(rng, *sizes):
    tensors = {}
    for i, size in enumerate(sizes):
        tensors[f"t{i}"] = HostMemory(size)
        tensors[f"t{i}"].fill(0, rng.randbytes(size))
    return tensors


def unchanged_adds_nothing(rng):
    with Scratch() as scratch:
        mount = Mount(scratch)
        folder = pathlib.Path(mount.path)
        tensors = state_of(rng, 24 * MIB, 8 * MIB + 4096)
        with client.saver() as saver:
            client.save(saver, tensors, folder / "one")
            before = mount.status()["live_bytes"]
            result = client.save(saver, tensors, folder / "two", folder / "one")
            assert result.base_use == USED, result.base_text
            assert result.bytes_reused == 32 * MIB + 4096 and result.bytes_written == 0
            tensors["t0"].fill(5 * MIB + 7, b"changed")
            result = client.save(saver, tensors, folder / "three", folder / "two")
        assert (result.base_use, result.bytes_written) == (USED, MIB), result.base_text
        added = mount.status()["live_bytes"] - before
        assert added <= 3 * MIB, f"{added} bytes more are needed"
        assert (folder / "one").read_bytes() == (folder / "two").read_bytes()


def every_check(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        folder = pathlib.Path(mount.path)
        checks.check_saves(client, HostMemory, folder)
        checks.check_small_ring(client, HostMemory, folder)
        assert not [name for name in os.listdir(folder) if ".tmp-" in name]


def random_rounds(rng):
    with Scratch() as scratch:
        mount = Mount(scratch, options="pool_size=256MiB,reserve=8MiB")
        disk = scratch.ext4("ext4", 256 << 20)
        seed = rng.randrange(10**9)
        counts = run_series(client, seed, mount.path, disk, 100) + run_series(client, seed, disk, mount.path, 50)
        mount.check()
        mount.umount()
        return f"seed {seed}: {text_of(counts)}"


def base_on_the_other_file_system(rng):
    with Scratch() as scratch:
        mount = Mount(scratch)
        folders = [pathlib.Path(mount.path), pathlib.Path(scratch.directory("plain"))]
        tensors = state_of(rng, 3 * MIB + 1)
        for here, there in (folders, folders[::-1]):
            with client.saver() as saver:
                client.save(saver, tensors, there / "base")
                result = client.save(saver, tensors, here / "file", there / "base")
            assert result.base_use == OTHER_FILESYSTEM and result.bytes_reused == 0, result.base_text
            assert (here / "file").read_bytes() == tensors["t0"].read() + bytes(4095)  # the file ends at a page


def kill_one(rng, path, version):
    """A saver goes on from `version` of the file and is killed at some time; (versions that the file may have now)."""
    with subprocess.Popen([PYTHON, TROUBLE, "save", LIBRARY, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as saver:
        saver.stdin.write(f"{version}\n")
        saver.stdin.flush()
        assert saver.stdout.readline() == f"begun {version + 1}\n"
        time.sleep(rng.random() * 0.3)
        saver.kill()
        said = [f"begun {version + 1}", *saver.stdout.read().split("\n")]
    done = max([version, *(int(line[5:]) for line in said if line.startswith("done "))])
    return {done, max(int(line[6:]) for line in said if line.startswith("begun "))}


def killed_savers_in(parent, rng, kills):
    folder = pathlib.Path(parent, "run")
    folder.mkdir()
    path = folder / "checkpoint"
    tensors, version, found, known = client_trouble.state(), 0, collections.Counter(), set()
    with client.saver() as saver:
        client.save(saver, tensors, path)
    for _ in range(kills):
        possible = kill_one(rng, path, version)
        content = path.read_bytes()
        while content != client_trouble.content(tensors):
            client_trouble.advance(tensors)
            version += 1
            assert version <= max(possible), f"the file is of no version up to {max(possible)}"
        assert version in possible, f"the file has version {version}, and {possible} were possible"
        found["old" if version < max(possible) else "new"] += 1
        names = set(os.listdir(folder))
        left = {name for name in names if name.startswith("checkpoint.tmp-")}
        assert names - left == {"checkpoint"}, names
        found["with a new temporary file"] += len(left - known)
        known = left
    # A lock of a process that died may go a little after it.
    with client.saver() as saver:
        while os.listdir(folder) != ["checkpoint"]:
            client.save(saver, tensors, path)
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items()))


def killed_savers(rng):
    with Scratch() as scratch:
        mount = Mount(scratch, options="pool_size=512MiB,reserve=8MiB")
        notes = [killed_savers_in(folder, rng, 20) for folder in (mount.path, scratch.ext4("ext4", 512 << 20))]
        mount.check()
        mount.umount()
        return "on CairnFS {}; on ext4 {}".format(*notes)


def import_package():
    sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))
    try:
        import cairnfs
        import numpy
    except ImportError as error:
        raise Skip(f"python3-numpy is not installed: {error}") from None
    return cairnfs, numpy


def fill_up(folder, rng, bytes_max):
    """A save that does not fit, upon a base: an error of its future and of the next save, and nothing else."""
    cairnfs, numpy = import_package()
    random_bytes = numpy.random.default_rng(rng.randrange(2**32))
    small = {"small": random_bytes.integers(0, 256, 5 * MIB, numpy.uint8)}
    large = {**small, "large": random_bytes.integers(0, 256, bytes_max, numpy.uint8)}
    with cairnfs.Saver() as saver:
        saver.save(small, folder / "base")
        base = (folder / "base").read_bytes()
        error = saver.save_async(large, folder / "next", base=folder / "base").exception()
        assert isinstance(error, cairnfs.errors.NoSpaceError) and error.errno == errno.ENOSPC, repr(error)
        assert str(folder / "next") in str(error), error
        assert os.listdir(folder) == ["base"] and (folder / "base").read_bytes() == base
        try:
            saver.save(small, folder / "next", base=folder / "base")
            raise AssertionError("the next save does not tell of the error")
        except cairnfs.errors.NoSpaceError:
            pass
        assert os.listdir(folder) == ["base"]
        yield "room is made"
        result = saver.save(small, folder / "next", base=folder / "base")
        assert result.base_use == "used" and result.bytes_reused == 5 * MIB, result
        assert (folder / "next").read_bytes() == base


def full_disk(rng):
    with Scratch() as scratch:
        disk = pathlib.Path(scratch.ext4("ext4", 64 << 20)) / "folder"
        disk.mkdir()
        for _ in fill_up(disk, rng, 80 * MIB):
            pass
        mount = Mount(scratch, "pool_size=64MiB", data=scratch.ext4("small", 200 << 20) + "/data")
        for _ in fill_up(pathlib.Path(mount.path), rng, 300 * MIB):
            mount.collect()
        mount.check()
        mount.umount()


def save_with(scratch, folder, how):
    """What client_trouble.py says of a save whose copy_file_range is disturbed."""
    shim = os.path.join(scratch.path, "short_copies.so")
    if not os.path.exists(shim):
        run("cc", "-shared", "-fPIC", "-o", shim, os.path.join(HERE, "..", "support", "short_copies.c"), "-ldl")
    os.mkdir(folder)
    environment = {**os.environ, "LD_PRELOAD": shim, "SHORT_COPIES": str(how)}
    return json.loads(run(PYTHON, TROUBLE, "once", LIBRARY, folder, env=environment))


def copies_that_fail_or_are_short(_):
    """All is written where the base gives nothing, and the result says so. Short counts are gone on from."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        for name, folder in (("cairnfs", mount.path), ("ext4", scratch.ext4("ext4", 128 << 20))):
            for how in ("zero", errno.EIO, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSPC):
                result = save_with(scratch, os.path.join(folder, str(how)), how)
                assert result["is_right"] and result["names"] == ["base", "file"], (name, how, result)
                assert (result["use"], result["reused"]) == ("refused", 0), (name, how, result)
                assert result["changed"] == result["blocks"], (name, how, result)
                assert result["written"] >= sum(client_trouble.SIZES), (name, how, result)
                assert "copy_file_range" in result["text"], (name, how, result)
            result = save_with(scratch, os.path.join(folder, "short"), "short")
            assert result["is_right"] and (result["use"], result["written"]) == ("used", MIB), (name, result)


CASES = (
    unchanged_adds_nothing,
    every_check,
    random_rounds,
    base_on_the_other_file_system,
    killed_savers,
    full_disk,
    copies_that_fail_or_are_short,
)

if __name__ == "__main__":
    sys.exit(run_cases(CASES, random.Random(seed_from_arguments())))
