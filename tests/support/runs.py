"""Runs of checkpoints on a mount, and the commands about them."""

import os
import subprocess

from cairnfs_mount import program

STEP = r"step-(\d+)"


def call(*words, expect=0):
    """Runs cairnfs; what it said and the exit code, which is to be `expect`."""
    done = subprocess.run([program("cairnfs"), *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expect, done
    return done


def commit(mount, name, files):
    """Publishes a directory with these files; a path of None is made of nothing."""
    temporary = f"{mount.path}/{name}.tmp"
    os.mkdir(temporary)
    for path, content in files.items():
        os.makedirs(os.path.dirname(f"{temporary}/{path}"), exist_ok=True)
        with open(f"{temporary}/{path}", "wb") as file:
            file.write(content)
    os.rename(temporary, f"{mount.path}/{name}")
    return f"{mount.path}/{name}"
