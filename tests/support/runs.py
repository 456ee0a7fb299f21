"""Runs of checkpoints on a mount, and the commands about them."""

import ctypes
import json
import os
import subprocess

from cairnfs_mount import program
from cluster import wait_until

LIBC = ctypes.CDLL(None, use_errno=True)
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


def exchange(one, other):
    if LIBC.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def record_of(path):
    return json.loads(os.getxattr(path, "user.cairnfs.commit"))


def whole_record_of(path):
    """Once nothing is added any more."""
    def whole():
        record = record_of(path)
        return record if None not in (record["files"], record["copied_seconds"]) else None
    return wait_until(whole)


def make_run(mount, losses):
    os.mkdir(mount.path + "/run")
    for number, loss in enumerate(losses, 1):
        commit(mount, f"run/step-{number}", {"below/model": b"x" * number, "metrics.json": json.dumps({"loss": loss}).encode()})
