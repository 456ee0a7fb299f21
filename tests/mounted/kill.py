#!/usr/bin/env python3
"""The kill test (tests/crash): the daemon dies at random moments and at every failpoint, and keeps its promises.

Options: --seed N, --rounds N, --writers N, --only FAILPOINT.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program, run_cpp


def main():
    os.environ["CAIRNFS_BIN_DIR"] = os.path.dirname(program("cairnfsd"))
    with Scratch() as scratch:
        return run_cpp([program("kill_test"), "--scratch", scratch.path, *sys.argv[1:]], timeout=3600)


if __name__ == "__main__":
    sys.exit(main())
