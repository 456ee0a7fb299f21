"""Daemons that a test starts itself, not through `cairnfs mount`."""

import contextlib
import os
import subprocess
import time

from cairnfs_mount import SMALL, program, run


@contextlib.contextmanager
def foreground(scratch, *words, data=None, **environment):
    """cairnfsd in the foreground, its stderr in a file."""
    point = scratch.directory("point")
    log = open(os.path.join(scratch.path, "stderr"), "wb")
    process = subprocess.Popen([program("cairnfsd"), point, "--data", data or scratch.path + "/data", "-o", SMALL, *words],
                               stdout=log, stderr=log, env=dict(os.environ, **environment))
    try:
        yield process, point
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        subprocess.run(["umount", "-l", point], check=False, stderr=subprocess.DEVNULL)
        log.close()


def wait_for_mount(point):
    for _ in range(600):
        if os.path.ismount(point) and subprocess.run([program("cairnfs"), "status", point], check=False,
                                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError("the mount did not come up")


def lock_text(daemon):
    """What the lock of a mount's or a host's data directory says of how it ended last."""
    with open(os.path.join(daemon.data, "LOCK"), encoding="utf-8") as lock:
        return lock.read()


def build_library(scratch, text):
    """From its text in C; its path."""
    source, library = os.path.join(scratch.path, "library.c"), os.path.join(scratch.path, "library.so")
    with open(source, "w", encoding="ascii") as file:
        file.write(text)
    run("cc", "-shared", "-fPIC", "-o", library, source)
    return library


def start_with_library(mount, shim, **environment):
    """Its daemon, with a library before its own; mounted. Of the environment the library gets CAIRNFS_... alone.

    The daemon begins with no more rights than it keeps. Otherwise it would begin anew, without the library.
    """
    kept = ",".join(["-all", "+sys_admin", "+dac_override", "+dac_read_search", "+fowner", "+sys_ptrace"])
    process = subprocess.Popen(["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=" + kept,
                                program("cairnfsd"), mount.path, "--data", mount.data, "-o", SMALL + ",io_uring=false"],
                               stderr=subprocess.DEVNULL, env=dict(os.environ, LD_PRELOAD=shim, **environment))
    wait_for_mount(mount.path)
    return process
