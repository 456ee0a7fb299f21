#!/usr/bin/env python3
"""The model test on a fresh mount: random operations side by side with ext4 (tests/model), with remounts between.

Options: --seed N, --operations N, --processes N, --phases N.
"""

import os
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, program, run, run_cpp


def main():
    arguments = sys.argv[1:] or ["--operations", "60000"]
    with Scratch() as scratch:
        if run("stat", "-f", "-c", "%T", scratch.path).strip() == "ext2/ext3":
            plain = scratch.directory("plain")
        else:
            plain = scratch.ext4("plain", 16 << 30)
        mount = Mount(scratch, SMALL + ",collect_delay=200ms,collect_after=8MiB")
        remount = f"{shlex.join(mount.umount_command())} && {shlex.join(mount.mount_command())}"
        status = run_cpp([program("model_test"), "--plain", plain, "--mount", mount.path, "--remount", remount,
                          *arguments], timeout=3600)
        try:
            mount.pid = mount.status()["pid"]
            mount.collect()
            mount.check()
        except AssertionError as error:
            print(f"FAILED: {error}\n{mount.log()}")
            status = 1
        if status == 0:
            mount.umount()
        else:
            print(mount.log())
        return status


if __name__ == "__main__":
    sys.exit(main())
