"""The checks once more under compute-sanitizer, in processes of their own."""

import os
import shutil
import subprocess
import sys


def find():
    return shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


def command(program, tool, script, library, folder):
    """What a run is. Checks of bad pointers are not among them, but torch and the library ask CUDA about memory of the
    host, which is an error of the API and none of ours."""
    return [program, "--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no", sys.executable, str(script),
            "--checks-only", str(library), "--dir", str(folder)]


def run(script, library, folder):
    """({name: how it went}, {name: what went wrong}) of racecheck and memcheck."""
    program = find()
    tests, errors = {}, {}
    for tool in ("racecheck", "memcheck"):
        if program is None:
            tests[tool] = "not run: no compute-sanitizer on PATH or in /usr/local/cuda/bin"
            continue
        done = subprocess.run(command(program, tool, script, library, folder), check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              # Behind torch's cache a read past the end of a tensor is one of memory that is there.
                              env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
        tests[tool] = "passed" if done.returncode == 0 else "failed"
        if done.returncode != 0:
            errors[tool] = f"ended with {done.returncode}: {done.stdout[-2000:]}"
    return tests, errors
