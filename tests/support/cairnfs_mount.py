"""Support for the tests that make real mounts: a scratch directory that is always taken down, and a mount in it.

A test is a program that prints its seed, exits with 0 when it passed, and leaves nothing behind: no mount, no loop
device, no process, no file. Everything is found under CAIRNFS_BIN_DIR, the build directory that holds cairnfs.
"""

import contextlib
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

BIN_DIR = os.path.abspath(os.environ.get("CAIRNFS_BIN_DIR", "."))
SMALL = "pool_size=64MiB,reserve=8MiB"


def program(name):
    """The path of a program of the build: of a tool, or of a test written in C++."""
    places = [BIN_DIR, os.path.join(BIN_DIR, "tools"), *glob.glob(os.path.join(BIN_DIR, "..", "tests", "*")),
              *glob.glob(os.path.join(BIN_DIR, "tests", "*"))]
    for place in places:
        path = os.path.join(place, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.realpath(path)
    sys.exit(f"{name} is not built: looked in {', '.join(places)}")


def run(*command, timeout=600, **options):
    """Runs a command; its stdout. Raises with its output when it fails."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=timeout, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def has_ended(pid):
    """Whether a process holds nothing any more: it is gone, or was not waited for yet and has no other thread."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            state = stat.read().rpartition(")")[2].split()[0]
        return state in "ZX" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:
        return True


def await_end(pid, seconds=60):
    """Whether a process has ended within so many seconds."""
    deadline = time.monotonic() + seconds
    while not has_ended(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def resident_bytes(pid):
    """The memory that a process takes."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_port():
    """A TCP port of loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def mounts_below(directory):
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        points = [line.split()[1].encode().decode("unicode_escape") for line in mounts]
    return [point for point in points if point.startswith(directory + "/")]


class Scratch:
    """A directory for one test. Leaving it takes down what was mounted or looped below it, also after a failure."""

    def __init__(self, parent=None):
        self.path = os.path.realpath(tempfile.mkdtemp(prefix="cairnfs-test-", dir=parent))
        os.chmod(self.path, 0o755)
        self.mounts = []

    def __enter__(self):
        # A test that is told to end takes everything down first.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        return self

    def __exit__(self, *_):
        for mount in self.mounts:
            mount.kill()
        self._kill_daemons()
        # Latest first: a mount may lie on a loop device over a file of an earlier one.
        for _ in range(3):
            for point in reversed(mounts_below(self.path)):
                subprocess.run(["umount", "-l", point], check=False, stderr=subprocess.DEVNULL)
            self._detach_loops()
        shutil.rmtree(self.path, ignore_errors=True)
        if os.path.exists(self.path):  # mount points that were guarded
            subprocess.run(["chattr", "-R", "-f", "-i", self.path], check=False)
            shutil.rmtree(self.path, ignore_errors=True)

    def _kill_daemons(self):
        """Daemons that serve something below this directory, and nobody else's."""
        for entry in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError, ProcessLookupError):
                with open(entry + "/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace").split("\0")
                if words[0].endswith("/cairnfsd") and any(word.startswith(self.path + "/") for word in words[1:]):
                    os.kill(int(os.path.basename(entry)), signal.SIGKILL)

    def _detach_loops(self):
        listing = subprocess.run(["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"], check=False,
                                 stdout=subprocess.PIPE, text=True).stdout
        for line in listing.splitlines():
            device, _, file = line.partition(" ")
            if file.strip().startswith(self.path + "/"):
                subprocess.run(["losetup", "--detach", device], check=False)

    def directory(self, name):
        path = os.path.join(self.path, name)
        os.makedirs(path, exist_ok=True)
        return path

    def ext4(self, name, size, options="rw"):
        """A directory on a fresh ext4 of its own, on a loop device."""
        image = os.path.join(self.path, name + ".img")
        with open(image, "wb") as file:
            file.truncate(size)
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
        directory = self.directory(name)
        run("mount", "-o", "loop," + options, image, directory)
        return directory


class Mount:
    """A CairnFS of the scratch directory, mounted through the command line as a user does it."""

    def __init__(self, scratch, options=SMALL, name="", data=None):
        self.path = scratch.directory("mount" + name)
        self.data = data or os.path.join(scratch.path, "data" + name)
        self.options = options
        self.pid = None
        scratch.mounts.append(self)
        self.mount()

    def mount_command(self):
        return [program("cairnfs"), "mount", self.path, "--data", self.data, "-o", self.options]

    def umount_command(self):
        return [program("cairnfs"), "umount", self.path]

    def mount(self):
        run(*self.mount_command(), timeout=120)
        self.pid = self.status()["pid"]

    def umount(self):
        run(*self.umount_command(), timeout=300)
        self.pid = None

    def remount(self):
        self.umount()
        self.mount()

    def status(self):
        return json.loads(run(program("cairnfs"), "status", self.path, "--json"))

    def collect(self):
        return json.loads(run(program("cairnfs"), "gc", self.path, "--json"))

    def check(self):
        report = json.loads(run(program("cairnfs"), "check", self.path, "--json"))
        assert report["clean"], report
        return report

    def kill(self):
        """The end of the daemon, whatever state it is in."""
        if self.pid is None:
            return
        # The process may be gone, and its number may be somebody else's by now.
        with contextlib.suppress(OSError):
            with open(f"/proc/{self.pid}/comm", encoding="ascii") as name:
                is_daemon = name.read().strip() == "cairnfsd"
            if is_daemon:
                os.kill(self.pid, signal.SIGKILL)
                await_end(self.pid)  # until then it may answer, and hold its data directory
        self.pid = None
        subprocess.run(["umount", "-l", self.path], check=False, stderr=subprocess.DEVNULL)

    def log(self):
        try:
            with open(os.path.join(self.data, "cairnfs.log"), encoding="utf-8", errors="replace") as log:
                return log.read()[-4000:]
        except OSError:
            return ""


def seed_from_arguments():
    """--seed N of the command line, or a fresh one; printed either way."""
    arguments = sys.argv[1:]
    seed = int(arguments[arguments.index("--seed") + 1]) if "--seed" in arguments else random.randrange(10**9)
    print(f"{os.path.basename(sys.argv[0])} --seed {seed}", flush=True)
    return seed


def option(name, default=None):
    """The word after --name, taken out of the command line."""
    if name not in sys.argv:
        return default
    at = sys.argv.index(name)
    value = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    return value


def run_cpp(command, timeout):
    """Runs a test written in C++ in a process group of its own, shows its output, and ends all of it at the end."""
    print(" ".join(command), flush=True)
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            print(f"FAILED: not done after {timeout} s", flush=True)
            return 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def sample(cases, seed, count):
    """Of cases that take long so many, as the seed says; all with --all, or where cases are named."""
    if any(word == "--all" or not (word.startswith("-") or word.isdigit()) for word in sys.argv[1:]):
        return cases
    chosen = random.Random(seed).sample(range(len(cases)), count)
    return [case for number, case in enumerate(cases) if number in chosen]


def run_cases(cases, *arguments):
    """Calls each case, prints how it went and how long it took; the exit status."""
    wanted = [word for word in sys.argv[1:] if not word.startswith("-") and not word.isdigit()]
    failures = 0
    for case in cases:
        if wanted and case.__name__ not in wanted:
            continue
        begin = time.monotonic()
        try:
            note = case(*arguments)
            print(f"ok      {case.__name__}, {time.monotonic() - begin:.1f} s{': ' + note if note else ''}", flush=True)
        except Skip as skip:
            print(f"skipped {case.__name__}: {skip}", flush=True)
        except Exception:  # pylint: disable=broad-except
            failures += 1
            print(f"FAILED  {case.__name__}\n{traceback.format_exc()}", flush=True)
    print("PASSED" if failures == 0 else f"FAILED: {failures} cases", flush=True)
    return 0 if failures == 0 else 1


class Skip(Exception):
    """Raised by a case that cannot run here, with the reason."""
