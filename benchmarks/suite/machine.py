"""The machine below: a scratch directory that is always taken down, processor time, caches, what the machine is."""

import contextlib
import glob
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class CannotRun(Exception):
    """Why a measurement is not possible here; shown in its row."""


class Programs:
    """The programs of a build, and seeds for them: no two of one run share a part of what they make."""

    def __init__(self, build):
        self.build, self.seed = build, int.from_bytes(os.urandom(4), "little") << 20

    def program(self, name):
        path = os.path.join(self.build, name)
        if not os.path.exists(path):
            raise CannotRun(f"{path} is not built")
        return path

    def next_seed(self):
        self.seed += 100_000
        return self.seed


def run(*command, timeout=900, **options):
    """Runs a command; its output. Raises CannotRun with the output when it fails. Like all that is started here it is
    in a session of its own: an interrupt reaches this process alone, which then ends the others in order."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=timeout, check=False, start_new_session=True, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{words[0]}: {error}") from error
    if done.returncode != 0:
        raise CannotRun(f"{' '.join(words)} ended with {done.returncode}: {done.stdout.strip()[-800:]}")
    return done.stdout


def size_of(text):
    """512M, 4GiB, 1000000 -> bytes."""
    units = {"": 1, "K": KIB, "M": MIB, "G": GIB}
    word = text.strip().upper().removesuffix("IB").removesuffix("B")
    number, unit = (word[:-1], word[-1]) if word and word[-1] in "KMG" else (word, "")
    if not number.isdigit():
        raise ValueError(f"not a size: {text}; sizes look like 512M or 4G")
    return int(number) * units[unit]


def memory(field):
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * KIB
    raise CannotRun(f"/proc/meminfo has no {field}")


def load_average():
    return os.getloadavg()[0]


def describe(directory):
    """What a reader needs to judge the figures."""
    processor = platform.machine()
    flags = ""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            processor = value.strip() if name.strip() == "model name" else processor
            flags = value if name.strip() == "flags" else flags
    found = run("findmnt", "--noheadings", "--output", "FSTYPE,OPTIONS", "--target", directory).split()
    return {"processor": processor, "cores": os.cpu_count(), "memory_bytes": memory("MemTotal"),
            "vectors": [name for name in ("avx2", "avx512bw") if name in flags.split()],
            "kernel": platform.release(), "file_system": found[0], "mount_options": found[1],
            "disk_free_bytes": shutil.disk_usage(directory).free}


def settle():
    """What was written before is on the disk, and nothing of it is in the way of what is measured next."""
    os.sync()


def drop_caches(what=3):
    os.sync()
    write_word("/proc/sys/vm/drop_caches", what)


def hold_dirty_limits(scratch):
    """Keeps the kernel's limits on dirty pages what they are now, until the scratch directory is left; the upper one.

    They are shares of the memory that is not in use. A daemon's pool in memory would lower them, and with them the rate
    of the directory's own file system, which nobody who uses that alone has to bear."""
    folder = "/proc/sys/vm/"
    before = {name: int(read_word(folder + name)) for name in (
        "dirty_background_ratio", "dirty_ratio", "dirty_background_bytes", "dirty_bytes")}

    def restore():
        # Of each pair that which is written last counts, and the other becomes 0.
        for name, value in before.items():
            if value != 0:
                write_word(folder + name, value)

    scratch.on_exit(restore)
    with open("/proc/vmstat", encoding="ascii") as file:
        pages = dict(line.split() for line in file)
    limits = {"dirty_background_bytes": "nr_dirty_background_threshold", "dirty_bytes": "nr_dirty_threshold"}
    for name, field in limits.items():
        write_word(folder + name, int(pages[field]) * os.sysconf("SC_PAGE_SIZE"))
    return int(read_word(folder + "dirty_bytes"))


def read_word(path):
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def write_word(path, value):
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{value}\n")


def process_cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def system_cpu_seconds():
    """All that ran on any core, interrupts included."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


def process_io(pid):
    """Bytes that the process made the block devices read and write."""
    with open(f"/proc/{pid}/io", encoding="ascii") as file:
        fields = dict(line.strip().split(": ") for line in file)
    return {"read": int(fields["read_bytes"]), "written": int(fields["write_bytes"])}


def process_memory(pid, field="VmHWM"):
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * KIB
    raise CannotRun(f"process {pid} has no {field}")


class Usage:
    """CPU seconds of a daemon and of the whole system over a block, and what the daemon wrote and read."""

    def __init__(self, pid=None):
        self.pid = pid

    def __enter__(self):
        self.before = self._sample()
        return self

    def __exit__(self, *_):
        after = self._sample()
        self.daemon_s, self.system_s, self.read_bytes, self.written_bytes = (
            now - before for now, before in zip(after, self.before))

    def _sample(self):
        if self.pid is None:
            return 0.0, system_cpu_seconds(), 0, 0
        io = process_io(self.pid)
        return process_cpu_seconds(self.pid), system_cpu_seconds(), io["read"], io["written"]


class Scratch:
    """A directory for one run. Leaving it ends what was started and takes down what was mounted below it, also after
    a failure or an interrupt; nothing else on the machine is touched."""

    def __init__(self, parent):
        self.path = os.path.realpath(tempfile.mkdtemp(prefix="cairnfs-bench-", dir=parent))
        self.closers = []

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: (_ for _ in ()).throw(SystemExit(128 + number)))
        return self

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # the cleaning is short, and must not be cut shorter
        for close in reversed(self.closers):
            with contextlib.suppress(Exception):
                close()
        self._kill_daemons()
        for _ in range(3):
            for point in reversed(self._mounts()):
                subprocess.run(["umount", "-l", point], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.path, ignore_errors=True)

    def _kill_daemons(self):
        """Daemons that serve something below this directory, and nobody else's: a mount may have been cut short before
        it told its number."""
        for entry in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                with open(entry + "/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace").split("\0")
                if words[0].endswith("/cairnfsd") and any(word.startswith(self.path + "/") for word in words[1:]):
                    os.kill(int(os.path.basename(entry)), signal.SIGKILL)
                    wait_until(lambda entry=entry: not os.path.exists(entry), "a daemon ends", 20)

    def _mounts(self):
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            points = [line.split()[1].encode().decode("unicode_escape") for line in mounts]
        return [point for point in points if point.startswith(self.path + "/")]

    def on_exit(self, close):
        self.closers.append(close)

    def directory(self, *names):
        path = os.path.join(self.path, *names)
        os.makedirs(path, exist_ok=True)
        return path


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise CannotRun(f"{what}: not after {seconds} s")
        time.sleep(0.02)
