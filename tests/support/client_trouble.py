"""Programs for tests of the client library that need a process of their own: one that saves until it is killed, and one
that saves while copy_file_range(2) does not do what it was asked for.

    client_trouble.py save LIBRARY PATH              saves version after version of one state to PATH
    client_trouble.py once LIBRARY FOLDER            saves FOLDER/base and, based on it, FOLDER/file; prints the result
"""

import json
import os
import pathlib
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
sys.dont_write_bytecode = True
from gpu_check.library import BLOCK, Client, abi
from gpu_check.memory import HostMemory

SIZES = (3 * BLOCK, 2 * BLOCK + 4096)


def state(version=0):
    """Tensors; every version differs from the one before in every byte of every second block."""
    tensors = {f"t{i}": HostMemory(size) for i, size in enumerate(SIZES)}
    for i, memory in enumerate(tensors.values()):
        memory.fill(0, random.Random(i).randbytes(memory.bytes))  # the same in each Python, with numpy or without
    for _ in range(version):
        advance(tensors)
    return tensors


def advance(tensors):
    for memory in tensors.values():
        for at in range(0, memory.bytes - BLOCK + 1, 2 * BLOCK):
            memory.change(at, BLOCK)


def content(tensors):
    return b"".join(memory.read() for memory in tensors.values())  # the sizes are multiples of a page


def save_until_killed(client, path):
    """Says "begun N" before and "done N" after each save, and is told the first N."""
    version = int(sys.stdin.readline())
    tensors = state(version)
    with client.saver(writers=random.choice((1, 4))) as saver:
        while True:
            advance(tensors)
            version += 1
            print(f"begun {version}", flush=True)
            client.save(saver, tensors, path, path)
            print(f"done {version}", flush=True)


def save_once(client, folder):
    tensors = state()
    with client.saver() as saver:
        client.save(saver, tensors, folder / "base")
        tensors["t0"].change(BLOCK, BLOCK)
        result = client.save(saver, tensors, folder / "file", folder / "base")
    print(json.dumps({
        "use": abi.BASE_USES[result.base_use], "text": result.base_text.decode(), "reused": result.bytes_reused,
        "written": result.bytes_written, "changed": result.blocks_changed, "blocks": result.blocks,
        "is_right": (folder / "file").read_bytes() == content(tensors), "names": sorted(os.listdir(folder))}))


if __name__ == "__main__":
    _, what, library, where = sys.argv
    if what == "save":
        save_until_killed(Client(library), pathlib.Path(where))
    else:
        save_once(Client(library), pathlib.Path(where))
