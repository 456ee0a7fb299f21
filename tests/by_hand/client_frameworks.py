#!/usr/bin/env python3
"""The wheel of the package `cairnfs` in a fresh environment, with PyTorch, safetensors and DCP from PyPI.

    tests/by_hand/client_frameworks.py [--seed N] [--torch VERSION] [--environment DIR] [CASE...]

Builds the wheel from this tree, makes an environment, installs both there, and runs the tests of python/tests and
python/tests/frameworks on a plain directory; and, where CAIRNFS_BIN_DIR has a built cairnfs, on CairnFS. With a CUDA
device, tensors of devices are saved and loaded too. --environment DIR keeps the environment for another run: only the
wheel is installed anew. It is not among the tests that always run: torch has to be fetched, which takes gigabytes.
"""

import glob
import os
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from cairnfs_mount import BIN_DIR, Mount, Scratch, Skip, option, run, run_cases, seed_from_arguments


class World:
    def __init__(self, scratch, seed, torch, environment):
        self.scratch, self.seed = scratch, seed
        self.torch = torch
        self.environment = environment or os.path.join(scratch.path, "environment")
        self.python = os.path.join(self.environment, "bin", "python")
        self.is_ready = False

    def tests(self, folder, directory):
        """Runs the tests of a folder against the installed wheel, away from the sources of the package."""
        if not self.is_ready:
            raise Skip("the wheel was not installed by this run")
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if name not in ("PYTHONPATH", "CAIRNFS_CLIENT_LIBRARY")
            },
            "CAIRNFS_TEST_DIR": directory,
            "CAIRNFS_TEST_SEED": str(self.seed),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [
            self.python,
            "-W",
            "ignore",
            "-m",
            "unittest",
            "discover",
            "-s",
            os.path.join(ROOT, "python", folder),
        ]
        output = run(*command, cwd=self.scratch.path, env=environment, timeout=1800)
        return next(line for line in output.splitlines() if line.startswith("Ran "))


def wheel_installs(world):
    wheels = world.scratch.directory("wheels")
    if not os.path.exists(world.python):
        run(sys.executable, "-m", "venv", world.environment)
    pip = [world.python, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT, timeout=1800)
    (wheel,) = glob.glob(os.path.join(wheels, "*.whl"))
    packages = [f"torch=={world.torch}" if world.torch else "torch", "safetensors"]
    run(*pip, "install", wheel, *packages, timeout=3600)
    run(*pip, "install", "--force-reinstall", "--no-deps", wheel)
    shown = (
        "import cairnfs, torch, safetensors, numpy\n"
        "print(cairnfs.build(), *(each.__version__ for each in (torch, safetensors, numpy)))\n"
    )
    world.is_ready = True
    return f"{os.path.basename(wheel)}; " + run(world.python, "-c", shown, cwd=world.scratch.path).strip()


def numpy_on_a_plain_directory(world):
    return world.tests("tests", world.scratch.directory("plain"))


def torch_on_a_plain_directory(world):
    return world.tests("tests/frameworks", world.scratch.directory("plain"))


def torch_on_cairnfs(world):
    if not os.path.exists(os.path.join(BIN_DIR, "cairnfs")):
        raise Skip("CAIRNFS_BIN_DIR has no cairnfs")
    mount = Mount(world.scratch, options="pool_size=256MiB,reserve=8MiB")
    note = world.tests("tests/frameworks", mount.path)
    mount.check()
    mount.umount()
    return note


def main():
    torch, environment = option("--torch", None), option("--environment", None)
    seed = seed_from_arguments()
    cases = [wheel_installs, numpy_on_a_plain_directory, torch_on_a_plain_directory, torch_on_cairnfs]
    with Scratch(os.environ.get("TMPDIR", "/var/tmp")) as scratch:
        return run_cases(cases, World(scratch, seed, torch, environment))


if __name__ == "__main__":
    sys.exit(main())
