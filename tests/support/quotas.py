"""What tests of quotas share."""

import os


def walk(path):
    """What a walk finds: the blocks of each file once."""
    blocks = {}
    for folder, _, files in os.walk(path):
        for name in files:
            info = os.lstat(f"{folder}/{name}")
            blocks[info.st_ino] = info.st_blocks * 512
    return sum(blocks.values())
