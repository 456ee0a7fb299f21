"""The tests of cairnfs.torch, from the sources, with the torch that is there: with tensors of the device too, where
there is one."""

import os
import subprocess
import sys

from .library import ROOT

TESTS = ("test_torch", "test_dcp")
NEEDED = "import numpy, torch; exit(tuple(int(n) for n in torch.__version__.split('.')[:2]) < (2, 6))"


def run(library, folder, tests=TESTS):
    """({name: how it went}, {name: what went wrong})."""
    results, errors = {}, {}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "CAIRNFS_CLIENT_LIBRARY": str(library),
                   "CAIRNFS_TEST_DIR": os.path.abspath(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    can_run = subprocess.run([sys.executable, "-c", NEEDED], check=False, stderr=subprocess.DEVNULL).returncode == 0
    for name in tests:
        if not can_run:
            results[name] = "not run: needs numpy and torch 2.6 or newer"
            continue
        done = subprocess.run([sys.executable, "-W", "ignore", "-m", "unittest", name], check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                              cwd=ROOT / "python" / "tests" / "frameworks")
        results[name] = "passed" if done.returncode == 0 else "failed"
        if done.returncode != 0:
            errors[name] = f"ended with {done.returncode}: {done.stdout[-2000:]}"
    return results, errors
