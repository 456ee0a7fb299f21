#!/usr/bin/env python3
"""The Python package `cairnfs`, on a plain directory and on CairnFS: the tests of python/tests, which need numpy alone.

Options: --seed N; names of cases run these alone. tests/by_hand/client_frameworks.py tries it with torch.
"""

import glob
import os
import shutil
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


def require(module, package):
    if subprocess.run([PYTHON, "-c", f"import {module}"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip(f"{package} is not installed")


def run_tests(python, directory, seed, pattern="test*.py", **variables):
    """Runs python/tests; `variables` say where the package is, `pattern` which files of tests."""
    require("numpy", "python3-numpy")
    environment = {
        **os.environ,
        "CAIRNFS_TEST_DIR": directory,
        "CAIRNFS_TEST_SEED": str(seed),
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    tests = os.path.join(ROOT, "python", "tests")
    output = run(python, "-W", "error", "-m", "unittest", "discover", "-s", tests, "-p", pattern, cwd=directory, env=environment)
    return next(line for line in output.splitlines() if line.startswith("Ran "))


def from_the_build(directory, seed):
    sources = os.path.realpath(os.path.join(ROOT, "python"))
    return run_tests(PYTHON, directory, seed, PYTHONPATH=sources, CAIRNFS_CLIENT_LIBRARY=library())


def on_cairnfs(scratch, seed):
    mount = Mount(scratch)
    note = from_the_build(mount.path, seed)
    mount.check()
    mount.umount()
    return note


def from_a_wheel(scratch, seed):
    """The wheel, made with Debian's packages, in an environment of its own that has nothing else but numpy. Tests of
    loading save too."""
    for module, package in (("mesonpy", "python3-mesonpy"), ("ensurepip", "python3-venv")):
        require(module, package)
    if shutil.which("patchelf") is None:
        raise Skip("patchelf is not installed")
    environment, wheels = scratch.directory("environment"), scratch.directory("wheels")
    run(PYTHON, "-m", "venv", "--system-site-packages", environment)
    python = os.path.join(environment, "bin", "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", wheels, os.path.realpath(ROOT))
    run(*pip, "install", "--no-index", *glob.glob(os.path.join(wheels, "*.whl")))
    variables = {"PYTHONPATH": "", "CAIRNFS_CLIENT_LIBRARY": ""}
    return run_tests(python, scratch.directory("wheel"), seed, "test_load.py", **variables)


def main():
    seed = seed_from_arguments()
    with Scratch() as scratch:
        return run_cases([on_cairnfs, from_a_wheel], scratch, seed)


if __name__ == "__main__":
    sys.exit(main())
