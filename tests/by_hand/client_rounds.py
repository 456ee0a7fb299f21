#!/usr/bin/env python3
"""Thousands of random saves with the client library, with bases that others spoil between and during saves.

    tests/by_hand/client_rounds.py [--seed N] [--rounds N] [CASE...]

Each case does N rounds (default: 1000): on CairnFS, with the other file system an ext4 of its own; on that ext4, with
CairnFS as the other one; on ext4 with a tmpfs beside it. tests/support/client_rounds.py says what a round is. A sample
of them is in tests/mounted/client_save.py. When a save is disturbed depends on the machine; the seed replays the rest.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from cairnfs_mount import BIN_DIR, Mount, Scratch, run, run_cases, seed_from_arguments
from client_rounds import run_series, text_of
from gpu_check.library import Client

BUILD = os.environ.get("CAIRNFS_BUILD_DIR", os.path.join(BIN_DIR, ".."))
OPTIONS = "pool_size=256MiB,reserve=8MiB"


def rounds_from_arguments():
    return int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 1000


def on_cairnfs(client, seed, rounds):
    with Scratch() as scratch:
        mount = Mount(scratch, OPTIONS)
        counts = run_series(client, seed, mount.path, scratch.ext4("ext4", 512 << 20), rounds)
        mount.check()
        mount.umount()
        return text_of(counts)


def on_ext4(client, seed, rounds):
    with Scratch() as scratch:
        mount = Mount(scratch, OPTIONS)
        return text_of(run_series(client, seed, scratch.ext4("ext4", 512 << 20), mount.path, rounds))


def on_ext4_beside_tmpfs(client, seed, rounds):
    with Scratch() as scratch:
        memory = scratch.directory("tmpfs")
        run("mount", "-t", "tmpfs", "-o", "size=256M", "tmpfs", memory)
        return text_of(run_series(client, seed, scratch.ext4("ext4", 512 << 20), memory, rounds))


if __name__ == "__main__":
    CLIENT = Client(os.path.join(BUILD, "src", "client", "libcairnfs_client.so"))
    sys.exit(run_cases((on_cairnfs, on_ext4, on_ext4_beside_tmpfs), CLIENT, seed_from_arguments(),
                       rounds_from_arguments()))
