#!/usr/bin/env python3
"""The client library on a CairnFS mount and on the plain directory beside it.

Saves of random states, with bases that are spoiled and bases on the other file system, are compared with plain bytes;
on the mount, what did not change since the save before adds nothing to what files need. The library is that of
CAIRNFS_BUILD_DIR, else of the build that CAIRNFS_BIN_DIR lies in. Options: --seed N.
"""

import os
import pathlib
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "..", "tools")]
sys.dont_write_bytecode = True
from cairnfs_mount import BIN_DIR, Mount, Scratch, run_cases, seed_from_arguments
from gpu_check import checks
from gpu_check.library import Client
from gpu_check.memory import HostMemory

MIB = 1 << 20
BUILD = os.environ.get("CAIRNFS_BUILD_DIR", os.path.join(BIN_DIR, ".."))
client = Client(os.path.join(BUILD, "src", "client", "libcairnfs_client.so"))
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


def random_saves(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        folder = pathlib.Path(mount.path)
        checks.check_saves(client, HostMemory, folder)
        checks.check_small_ring(client, HostMemory, folder)
        assert not [name for name in os.listdir(folder) if ".tmp-" in name]


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


CASES = (unchanged_adds_nothing, random_saves, base_on_the_other_file_system)

if __name__ == "__main__":
    sys.exit(run_cases(CASES, random.Random(seed_from_arguments())))
