#!/usr/bin/env python3
"""A removed tree comes back by one command, on a host alone. Run as root."""

import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, program, run_cases
from runs import call

OWNER, FOREIGN = 1234, 4321
TAKEN, DENIED, MISSING = 1, 6, 8


def contents_below(path):
    """The content of each file below it; None of each directory."""
    found = {}
    for directory, subdirectories, names in os.walk(path):
        found.update({os.path.relpath(os.path.join(directory, name), path): None for name in subdirectories})
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                found[os.path.relpath(os.path.join(directory, name), path)] = file.read()
    return found


def make_tree(path):
    os.makedirs(path + "/step/below/deep")
    os.makedirs(path + "/step/empty")
    for number, name in enumerate(("model", "below/optimizer", "below/deep/part", "with\nnewline")):
        with open(f"{path}/step/{name}", "wb") as file:
            file.write(b"%d" % number * 1000)


def a_removed_tree_comes_back():
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1h")
        tree = mount.path + "/step"
        make_tree(mount.path)
        with open(tree + "/other", "wb") as file:
            file.write(b"removed before")
        before = contents_below(tree)
        # Of one name the last that was removed comes back.
        with open(tree + "/old", "wb") as file:
            file.write(b"old")
        os.rename(tree + "/old", tree + "/model.old")
        os.unlink(tree + "/model.old")
        with open(tree + "/model.old", "wb") as file:
            file.write(b"new")
        os.unlink(tree + "/other")
        number = str(os.stat(tree).st_ino)
        shutil.rmtree(tree)
        entries = json.loads(call("trash", "ls", mount.path, "--json").stdout)["entries"]
        assert {entry["path"]: entry["parent"] for entry in entries}["step"] == 1, entries
        done = call("trash", "restore", number, "--tree", "--mount", mount.path)
        assert f"{tree} ({len(before) + 2} entries)" in done.stdout and "1 of the same names" in done.stderr, done
        assert contents_below(tree) == dict(before, **{"model.old": b"new"})
        # The rest is restored where something stands in the way, which is told; the same call goes on with it.
        shutil.rmtree(tree)
        call("trash", "restore", number, "--mount", mount.path)
        os.mkdir(tree + "/below")
        told = call("trash", "restore", number, "--tree", "--json", "--mount", mount.path, expect=TAKEN)
        result = json.loads(told.stdout)
        assert not result["restored"] and result["restored_count"] == len(before) - 3, result
        assert [one["path"] for one in result["failed"]][0] == "step/below" and len(result["failed"]) == 4, result
        assert "its place is taken" in told.stderr and "restore that first" in told.stderr, told
        os.rename(tree + "/below", mount.path + "/in-the-way")
        again = json.loads(call("trash", "restore", number, "--tree", "--json", "--mount", mount.path, expect=TAKEN).stdout)
        assert again["restored_count"] == 4, again
        assert [one["path"] for one in again["failed"]] == ["step/model.old"], "an older one of what is there again"
        os.rmdir(mount.path + "/in-the-way")
        assert contents_below(tree) == dict(before, **{"model.old": b"new"})
        assert "no entry 999" in call("trash", "restore", "999", "--tree", "--mount", mount.path, expect=MISSING).stderr
        # Elsewhere, with what lay below.
        shutil.rmtree(tree)
        call("trash", "restore", number, mount.path + "/moved", "--tree")
        assert contents_below(mount.path + "/moved") == dict(before, **{"model.old": b"new"})
        mount.umount()


def a_user_gets_what_the_user_may():
    with Scratch() as scratch:
        mount = Mount(scratch, SMALL + ",trash=1h")
        home = mount.path + "/home"
        make_tree(home)
        subprocess.run(["chown", "-R", str(OWNER), home], check=True)
        os.chown(home + "/step/below/deep/part", FOREIGN, FOREIGN)
        before = contents_below(home + "/step")
        number = str(os.stat(home + "/step").st_ino)
        shutil.rmtree(home + "/step")
        os.chmod(mount.path, 0o755)

        def restore(uid):
            return subprocess.run(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", program("cairnfs"),
                                   "trash", "restore", number, "--tree", "--mount", mount.path],
                                  capture_output=True, text=True, timeout=120, check=False)

        # He sees one file of his, and may not write where it lay.
        refused = restore(FOREIGN)
        assert refused.returncode == MISSING and not os.path.exists(home + "/step"), refused
        done = restore(OWNER)
        assert done.returncode == 0 and contents_below(home + "/step") == before, done
        mount.umount()


if __name__ == "__main__":
    sys.exit(run_cases([a_removed_tree_comes_back, a_user_gets_what_the_user_may]))
