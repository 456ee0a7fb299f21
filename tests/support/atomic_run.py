"""Helpers of the tests of files that appear whole: a directory with the attribute, and processes that write there."""

import contextlib
import os
import subprocess

from cairnfs_mount import Mount, Scratch

FILES, COMPLETE = "user.cairnfs.atomic_files", "user.cairnfs.atomic_complete"
PATTERNS = b"*.index latest .metadata *.pt *.safetensors"
OWNER, STRANGER = 1234, 4321
PYTHON = "/usr/bin/python3"  # which every user may run
# Opens argv[1], writes argv[2] and does what argv[3] says; its exit status is the errno of its close.
WRITER = """
import os, signal, subprocess, sys
path, text, how = sys.argv[1:4]
descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
os.write(descriptor, text.encode())
def close():
    try: os.close(descriptor)
    except OSError as error: os._exit(error.errno)
print("wrote", flush=True)
if how == "exit": os._exit(0)
if how == "exception": raise KeyError("unwinds")
if how == "abort": os.abort()
if how == "child":
    os.set_inheritable(descriptor, True)
    child = subprocess.Popen(["sleep", "1000"], close_fds=False)
    print(child.pid, flush=True)
    signal.pause()
sys.stdin.readline()
close()
"""


class Run:
    """A directory of a mount whose files appear whole."""

    def __init__(self, patterns=PATTERNS):
        self.patterns = patterns

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        scratch = self.stack.enter_context(Scratch())
        self.mount = Mount(scratch)
        os.chmod(self.mount.path, 0o755)
        self.path = self.mount.path + "/run"
        os.mkdir(self.path)
        os.setxattr(self.path, FILES, self.patterns)
        self.model = self.path + "/model.pt"
        return self

    def __exit__(self, kind, *rest):
        if kind is None:
            assert self.mount.check()["clean"]
            self.mount.umount()
        self.stack.__exit__(kind, *rest)


def others(path):
    """What another process finds under the name; None: nothing."""
    done = subprocess.run(["cat", path], capture_output=True, check=False)
    return done.stdout.decode() if done.returncode == 0 else None


def write(path, text, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    descriptor = os.open(path, flags, 0o644)
    os.write(descriptor, text.encode())
    return descriptor


def rewrite(path, text):
    os.close(write(path, text))


def error_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except OSError as error:
        return error.errno
    return 0


def start(path, text, how, **options):
    process = subprocess.Popen([PYTHON, "-c", WRITER, path, text, how], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline() == "wrote\n"
    return process


def ends_with(process, status):
    process.stdin.close()
    process.stdout.close()
    assert process.wait(60) == status, process.returncode
