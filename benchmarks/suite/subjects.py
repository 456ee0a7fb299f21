"""What is measured: CairnFS, the floor, libfuse's passthrough_ll, fio; and the load generator that drives them.

Each is started and ended by process id, and by nothing else.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

from machine import MIB, CannotRun, process_cpu_seconds, process_memory, run, settle, wait_until

PASSTHROUGH_SOURCE = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"


class Load:
    """The load generator (benchmarks/load): one process for the whole run, so that its memory is warm."""

    def __init__(self, bench):
        self.process = subprocess.Popen([bench.program("benchmarks/load/bench_load")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, start_new_session=True)
        bench.scratch.on_exit(self.process.kill)

    def __call__(self, *words):
        """Gives one command; the numbers of the answer. Raises CannotRun with what the generator says went wrong."""
        self.process.stdin.write("\t".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise CannotRun("the load generator ended")
        answer = json.loads(line)
        if "error" in answer:
            raise CannotRun(f"{words[0]}: {answer['error']}")
        return answer


def wait_until_warm(pid, status):
    """Waits until the daemon has touched what it touches of its pool at the start, and comes to rest."""
    touched = status["pool_buffers_touched"] * MIB
    wait_until(lambda: process_memory(pid, "VmRSS") >= touched, "the daemon touches its pool", 300)

    def idle():
        before = process_cpu_seconds(pid)
        time.sleep(0.15)
        return process_cpu_seconds(pid) - before <= 0.03
    wait_until(idle, "the daemon comes to rest")


class Cairn:
    """A CairnFS on a data directory of its own, mounted through the command line as a user does it."""

    def __init__(self, bench, name, **options):
        # The first save after a mount has a row of its own; elsewhere no row depends on how long ago that was.
        self.bench, self.options = bench, {"touch_pool": "true", **bench.mount_options, **options}
        self.path = bench.scratch.directory(name + "-mount")
        self.data = os.path.join(bench.scratch.path, name + "-data")
        self.pid = None
        self.is_warm = False
        bench.scratch.on_exit(self.kill)

    def __enter__(self):
        self.mount()
        self.warm()
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.kill()
        self.umount()
        shutil.rmtree(self.data, ignore_errors=True)

    def command(self, *words, **options):
        return run(self.bench.program("tools/cairnfs"), *words, **options)

    def mount(self):
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        begin = time.monotonic()
        self.command("mount", self.path, "--data", self.data, *(["-o", options] if options else []))
        seconds = time.monotonic() - begin
        self.pid = self.status()["pid"]
        self.is_warm = False
        return seconds

    def umount(self):
        if self.pid is not None:
            self.bench.note_memory(self)
            self.command("umount", self.path)
            self.pid = None

    def kill(self):
        """The end, whatever state the daemon is in. Its number may be somebody else's by now."""
        if self.pid is None:
            return
        with contextlib.suppress(OSError):
            with open(f"/proc/{self.pid}/comm", encoding="ascii") as name:
                if name.read().strip() == "cairnfsd":
                    os.kill(self.pid, signal.SIGKILL)
        self.pid = None

    def remount(self, between=lambda: None):
        """Ends the daemon, calls `between`, and starts it again; returns when it is idle and its pool is warm."""
        self.umount()
        between()
        self.mount()
        self.warm()

    def warm(self):
        """Waits until the daemon has touched its pool."""
        wait_until_warm(self.pid, self.status())
        self.is_warm = True

    def status(self):
        return json.loads(self.command("status", self.path, "--json"))

    def collect(self):
        self.command("gc", self.path)

    def wait(self):
        self.command("wait", self.path)

    def remove(self, name):
        """Removes a checkpoint and gives its space back."""
        shutil.rmtree(os.path.join(self.path, name))
        self.collect()
        settle()


class Floor:
    """The minimal FUSE program of benchmarks/floor."""

    def __init__(self, bench, name, size=0, *flags, buffers=None):
        self.bench = bench
        self.path = bench.scratch.directory(name + "-mount")
        self.pack = os.path.join(bench.scratch.path, name + "-pack")
        command = [bench.program("benchmarks/floor/bench_floor"), self.path, *flags,
                   "--buffers", str(buffers or bench.pool_bytes // MIB)]
        if size:
            command += ["--pack", self.pack, "--pack-bytes", str(size + 16 * MIB)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.pid = self.process.pid
        bench.scratch.on_exit(self.process.kill)
        if self.process.stdout.readline().strip() != "ready":
            raise CannotRun("the floor does not start")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        end_fuse(self, kind is None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.pack)

    def restart(self):
        """Removes its file, which starts its pack anew."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path + "/part-0")
        settle()


class PassthroughLl:
    """libfuse's own example, compiled from the source that Debian ships, on a directory beside the data."""

    def __init__(self, bench, name):
        self.path = bench.scratch.directory(name + "-mount")
        source = bench.scratch.directory(name + "-source")
        self.process = subprocess.Popen([build_passthrough(bench), "-f", "-o", f"source={source}", self.path],
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        self.pid = self.process.pid
        bench.scratch.on_exit(self.process.kill)
        wait_until(lambda: os.path.ismount(self.path), "passthrough_ll mounts", 10)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        end_fuse(self, kind is None)


def build_passthrough(bench):
    program = os.path.join(bench.scratch.path, "passthrough_ll")
    if not os.path.exists(program):
        if not os.path.exists(PASSTHROUGH_SOURCE):
            raise CannotRun(f"{PASSTHROUGH_SOURCE} is not there (libfuse3-dev ships it)")
        flags = run("pkg-config", "--cflags", "--libs", "fuse3").split()
        run("gcc", "-O2", "-w", PASSTHROUGH_SOURCE, "-o", program, *flags)
    return program


def end_fuse(subject, in_order):
    """Unmounts, and waits for the end of the process. After a failure the scratch directory sees to the mount."""
    if in_order:
        run("umount", subject.path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            subject.process.wait(20)
    subject.process.kill()
    subject.process.wait()


def fio(path, size, mode):
    """The disk's own rate with O_DIRECT and io_uring, in bytes per second. Modes: "fallocated" (a new file), "written
    before" (the same blocks again), "read"."""
    if mode == "fallocated":
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    settle()
    layout = ["--rw=read"] if mode == "read" else ["--rw=write", "--end_fsync=1"]
    layout += ["--fallocate=native"] if mode == "fallocated" else ["--overwrite=1"]
    answer = run("fio", "--name=disk", f"--filename={path}", f"--size={size}", "--direct=1", "--ioengine=io_uring",
                 "--bs=4M", "--iodepth=16", "--fixedbufs", "--registerfiles", "--output-format=json", *layout)
    job = json.loads(answer[answer.index("{"):])["jobs"][0]
    return job["read" if mode == "read" else "write"]["bw_bytes"]
