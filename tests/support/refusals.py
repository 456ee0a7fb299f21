"""Calling the programs and asserting what they answer: exit code and words, or an errno."""

import errno
import os
import subprocess

from cairnfs_mount import SMALL, Mount, program

USAGE, NO_DAEMON, PROBLEMS, BUSY, PERMISSION, CORRUPT = 2, 3, 4, 5, 6, 7
NOBODY = 65534


def call(*command, **options):
    """Exit code and everything printed."""
    command = [os.fsencode(word) for word in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=120, check=False, **options)
    return done.returncode, done.stdout


def try_mount(scratch, *words, data=None, point=None, **options):
    point = point or scratch.directory("point")
    data = data or os.path.join(scratch.path, "data")
    return call(program("cairnfs"), "mount", point, "--data", data, "-o", SMALL, *words, **options)


def expect(result, code, *texts):
    """The exit code, and every text in the output."""
    got, output = result
    assert got == code, f"exit code {got}, not {code}:\n{output}"
    for text in texts:
        assert text in output, f"{text!r} is not in:\n{output}"


def expect_errno(number, function, *arguments, **options):
    numbers = number if isinstance(number, tuple) else (number,)
    try:
        function(*arguments, **options)
    except OSError as error:
        assert error.errno in numbers, f"{errno.errorcode[error.errno]}, not {[errno.errorcode[n] for n in numbers]}"
    else:
        raise AssertionError(f"no error, where {[errno.errorcode[n] for n in numbers]} is right")


def made_data(scratch, files=()):
    """A data directory with a filesystem in it, unmounted; `files` are (name, bytes)."""
    mount = Mount(scratch)
    for name, content in files:
        with open(os.path.join(mount.path, name), "wb") as file:
            file.write(content)
    mount.umount()
    return mount
