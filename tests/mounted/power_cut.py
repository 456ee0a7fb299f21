#!/usr/bin/env python3
"""The power-cut test (tests/power_cut): images that drop, tear and reorder what no flush covered keep the promises, and
each sync that is left out on purpose is noticed. One of four of these is left out, as the seed says; --all: every one.

Options: --all, --seed N, --cuts N, --seconds N, --planted-cuts N, --only FAILPOINT, --control EXT4_OPTIONS.
"""

import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program, run_cpp


def main():
    os.environ["CAIRNFS_BIN_DIR"] = os.path.dirname(program("cairnfsd"))
    # Images are copied for each cut: in memory, where there is enough of it.
    shared_memory = "/dev/shm"
    parent = None
    if os.path.isdir(shared_memory) and shutil.disk_usage(shared_memory).free > 6 << 30:
        parent = shared_memory
    words = [word for word in sys.argv[1:] if word != "--all"] + ([] if "--all" in sys.argv else ["--one-of", "4"])
    with Scratch(parent) as scratch:
        return run_cpp([program("power_cut_test"), "--scratch", scratch.path, *words], timeout=3600)


if __name__ == "__main__":
    sys.exit(main())
