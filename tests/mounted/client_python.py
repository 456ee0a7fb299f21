#!/usr/bin/env python3
"""The Python package `cairnfs`, on a plain directory and on CairnFS: the tests of python/tests, which need numpy alone.

Options: --seed N; names of cases run these alone. tests/by_hand/client_frameworks.py tries it with torch.
"""

import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from cairnfs_mount import BIN_DIR, Mount, Scratch, Skip, run, run_cases, seed_from_arguments

PYTHON = "/usr/bin/python3"


def library():
    """The client library of the build that is tested."""
    folder = os.environ.get("CAIRNFS_BUILD_DIR", os.path.join(BIN_DIR, ".."))
    path = os.path.realpath(os.path.join(folder, "src", "client", "libcairnfs_client.so"))
    if not os.path.exists(path):
        sys.exit(f"{path} is not built")
    return path


def run_tests(directory, seed):
    if subprocess.run([PYTHON, "-c", "import numpy"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip("python3-numpy is not installed")
    environment = {
        **os.environ,
        "CAIRNFS_CLIENT_LIBRARY": library(),
        "CAIRNFS_TEST_DIR": directory,
        "CAIRNFS_TEST_SEED": str(seed),
        "PYTHONPATH": os.path.join(ROOT, "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    tests = os.path.join(ROOT, "python", "tests")
    output = run(PYTHON, "-W", "error", "-m", "unittest", "discover", "-s", tests, env=environment)
    return next(line for line in output.splitlines() if line.startswith("Ran "))


def on_a_plain_directory(scratch, seed):
    return run_tests(scratch.directory("plain"), seed)


def on_cairnfs(scratch, seed):
    mount = Mount(scratch)
    note = run_tests(mount.path, seed)
    mount.check()
    mount.umount()
    return note


def main():
    seed = seed_from_arguments()
    with Scratch() as scratch:
        return run_cases([on_a_plain_directory, on_cairnfs], scratch, seed)


if __name__ == "__main__":
    sys.exit(main())
