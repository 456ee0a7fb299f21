#!/usr/bin/env python3
"""What the daemon tells of its state, in its lock, its status and its metrics. Run as root."""

import contextlib
import datetime
import errno
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, Skip, await_end, free_port, mounts_below, program, run, run_cases
from daemons import lock_text
from refusals import CORRUPT, NO_DAEMON, NOBODY, USAGE, call, expect, expect_errno


@contextlib.contextmanager
def without(path):
    """A start fails while this file of the data directory is away."""
    os.rename(path, path + ".away")
    try:
        yield
    finally:
        os.rename(path + ".away", path)


def starts_that_fail_say_nothing_of_the_last_end():
    """The daemon died, or ended well; then starts and checks fail; then one works, and tells how the daemon ended."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        for died in (True, False):
            if died:
                pid = mount.pid
                mount.kill()
                while os.path.exists(f"/proc/{pid}"):
                    time.sleep(0.05)
            else:
                mount.umount()
            before = lock_text(mount)
            assert before == (f"{pid} running\n" if died else ""), before
            with without(mount.data + "/metadata/CURRENT"):
                expect(call(*mount.mount_command()), CORRUPT, "CURRENT")
                expect(call(program("cairnfs"), "check", "--data", mount.data), CORRUPT, "CURRENT")
            assert lock_text(mount) == before, lock_text(mount)
            taken = ["-o", "metrics_address=256.0.0.1:1"]  # found out after the mount
            expect(call(*mount.mount_command(), *taken), 1, "cannot serve metrics")
            assert lock_text(mount) == before, lock_text(mount)
            mount_after(mount, died)
        mount.umount()


def mount_after(mount, died):
    """Mounts it again; the log says whether its daemon had died."""
    log_size = os.path.getsize(mount.data + "/cairnfs.log")
    mount.mount()
    with open(mount.data + "/cairnfs.log", encoding="utf-8") as log:
        log.seek(log_size)
        assert ("not closed cleanly" in log.read()) == died


def die(mount):
    """The daemon ends without a word, and its mount stays. What LOCK tells then."""
    pid, mount.pid = mount.pid, None
    os.kill(pid, signal.SIGKILL)
    assert await_end(pid, 30), "the daemon did not end"
    left = f"{pid} running"
    assert lock_text(mount) == left + "\n", lock_text(mount)
    return left


def offline_report(mount):
    return json.loads(run(program("cairnfs"), "check", "--data", mount.data, "--json"))


def a_check_leaves_what_lock_tells_and_tells_it_too():
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb") as file:
            file.write(b"x" * 100000)
            os.fsync(file.fileno())
        left = die(mount)
        for where in (["--data", mount.data], [mount.path], ["--rebuild-index", "--data", mount.data]):
            expect(call(program("cairnfs"), "check", *where), 0, f'not closed cleanly ("{left}")', "read: clean")
            assert lock_text(mount) == left + "\n", lock_text(mount)
        report = offline_report(mount)
        assert report["clean"] and report["closed_cleanly"] is False and report["last_end"] == left, report
        mount.mount()
        assert f'was not closed cleanly ("{left}")' in mount.log(), mount.log()
        assert "closed_cleanly" not in mount.check()  # the daemon has it open
        mount.umount()
        report = offline_report(mount)
        assert report["closed_cleanly"] is True and report["last_end"] == "", report
        code, output = call(program("cairnfs"), "check", "--data", mount.data)
        assert code == 0 and "not closed cleanly" not in output, (code, output)


def interrupt_a_check(mount, number):
    """An offline check gets the signal while it has the directory."""
    for _ in range(50):
        check = subprocess.Popen([program("cairnfs"), "check", "--data", mount.data], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        while check.poll() is None and not lock_text(mount).startswith(f"{check.pid} checking\n"):
            time.sleep(0.001)
        check.send_signal(number)
        if check.wait(60) == -number:
            return
    raise AssertionError("each check was over before it was interrupted")


def a_check_that_is_interrupted_says_nothing_of_the_last_end():
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb") as file:
            file.write(os.urandom(32 << 20))
        for died in (False, True):
            left = ""
            if died:
                mount.mount()
                left = die(mount)
            else:
                mount.umount()
            for number in (signal.SIGINT, signal.SIGKILL):
                interrupt_a_check(mount, number)
                report = offline_report(mount)
                assert report["clean"] and report["closed_cleanly"] == (not died), report
                assert report["last_end"] == left, report
            interrupt_a_check(mount, signal.SIGINT)
            mount_after(mount, died)
            mount.umount()


def what_lock_holds_is_printed_as_text():
    with Scratch() as scratch:
        mount = Mount(scratch)
        mount.umount()
        shown = "1 \\x1b[31m\\x9b\\xff"
        for words in ([], ["--json"]):
            with open(mount.data + "/LOCK", "wb") as lock:
                lock.write(b"1 \x1b[31m\x9b\xff\n")
            output = subprocess.run([program("cairnfs"), "check", "--data", mount.data, *words], check=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
            text = json.loads(output)["last_end"] if words else output.decode("ascii")
            assert shown in text and all(32 <= byte < 127 or byte == 10 for byte in output), output
        mount.mount()
        assert shown in mount.log() and "\x1b" not in mount.log(), mount.log()
        mount.umount()


def a_refused_first_start_is_no_crash():
    with Scratch() as scratch:
        mount = Mount(scratch)
        mount.umount()
        data = scratch.path + "/new"
        command = [program("cairnfs"), "mount", mount.path, "--data", data, "-o"]
        expect(call(*command, "pool_size=1TiB"), USAGE, "pool_size = 1TiB does not fit the ", "give less")
        assert not os.path.exists(data)
        run(*command, SMALL)
        with open(data + "/cairnfs.log", encoding="utf-8") as log:
            text = log.read()
        assert "made a new filesystem" in text and "crash" not in text and "half-made" not in text, text
        mount.umount()


def process_memory(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) << 10


def memory_is_taken_as_it_is_used():
    """A quarter of the machine's would be gone as soon as it is mounted."""
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=1GiB,reserve=8MiB")
        time.sleep(1)  # in which more would have come
        status = mount.status()
        assert 1000 < status["pool_buffers"] and status["pool_buffers_touched"] == 128, status
        assert process_memory(mount.pid) < 320 << 20, process_memory(mount.pid)
        with open(mount.path + "/file", "wb") as file:
            for _ in range(300):
                file.write(os.urandom(1 << 20))
        run(program("cairnfs"), "wait", mount.path)
        status = mount.status()
        assert 128 < status["pool_buffers_touched"] <= status["pool_buffers"], status
        mount.remount()
        assert mount.status()["pool_buffers_touched"] == 128
        mount.umount()


def json_objects(text):
    while text.strip():
        found, end = json.JSONDecoder().raw_decode(text := text.lstrip())
        yield found
        text = text[end:]


def daemons_share_a_quarter_of_the_memory():
    """In a pid namespace of their own, so that no other daemons of the machine count. Nor does what a stranger runs."""
    with Scratch() as scratch:
        stranger = scratch.path + "/cairnfsd"
        shutil.copy("/usr/bin/sleep", stranger)
        os.chmod(stranger, 0o755)
        points = [scratch.directory(name) for name in ("one", "two")]
        cairnfs = program("cairnfs")
        lines = [f"setpriv --reuid={NOBODY} --clear-groups {stranger} 300 >/dev/null 2>&1 &",
                 "until grep -q cairnfsd /proc/$!/comm; do sleep 0.05; done"]
        lines += [f"{cairnfs} mount {point} --data {point}-data -o reserve=8MiB" for point in points]
        lines += [f"{cairnfs} status {point} --json" for point in points]
        lines += [f"{cairnfs} umount {point}" for point in points]
        output = run("unshare", "--pid", "--fork", "--mount-proc", "sh", "-ec", "\n".join(lines))
        first, second = (status["pool_buffers"] for status in json_objects(output))
        if first >= 8000 or second <= 64:
            raise Skip("the default pool is at one of its bounds")
        assert abs(first - 2 * second) <= 2, (first, second)


def the_next_mount_says_what_programs_saw():
    """Also where it is mounted elsewhere, and only where a mount was left; when something was durable last is told."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb", buffering=0) as file:
            file.write(b"x" * 100000)
            os.fsync(file.fileno())
            synced = time.time()
            die(mount)
            expect_errno((errno.ENOTCONN, errno.ECONNABORTED), file.write, b"y")
            with contextlib.suppress(OSError):
                file.close()
        expect_errno(errno.ENOTCONN, os.listdir, mount.path)
        assert not os.path.isdir(mount.path), "frameworks say that it is no directory"
        elsewhere = Mount(scratch, name="-elsewhere", data=mount.data)
        log = elsewhere.log()
        line = next(line for line in log.splitlines() if "was not closed cleanly" in line)
        for words in (f"The daemon that served {mount.path} died", "ENOTCONN", "TensorFlow", "unexpected pos",
                      "start them again from their last checkpoint"):
            assert words in line, line
        told = re.search(r"made durable last at (\S+)\.", line)[1]
        told = datetime.datetime.strptime(told, "%Y-%m-%dT%H:%M:%S%z").timestamp()
        assert -60 < told - synced < 1, (told, synced)
        # Unmounted before the next start, as by a reboot: no program can have seen anything.
        die(elsewhere)
        subprocess.run(["umount", "-l", elsewhere.path], check=True)
        subprocess.run(["umount", "-l", mount.path], check=True)
        elsewhere.mount()
        line = [line for line in elsewhere.log().splitlines() if "was not closed cleanly" in line][-1]
        assert "ENOTCONN" not in line and "what no sync point covered may be lost" in line, line
        elsewhere.umount()


def umount_tells_that_the_daemon_had_died():
    with Scratch() as scratch:
        mount = Mount(scratch)
        for words in ([], ["--lazy"]):
            left = die(mount)
            expect(call(*mount.umount_command(), *words), 1, "unmounted; its daemon had ended before", f'("{left}")',
                   "what no sync point covered may be lost")
            assert mount.path not in mounts_below(scratch.path)
            assert lock_text(mount) == left + "\n", lock_text(mount)
            mount.mount()
            assert f'was not closed cleanly ("{left}")' in mount.log(), mount.log()
        mount.umount()  # nothing to tell of this end


HOLD_CONNECTIONS = """
import socket, sys
held = []
for _ in range(400):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
    held[-1].settimeout(60)
refused = sum(1 for each in held if not each.recv(1))  # the daemon speaks first, or closes
print(len(held) - refused, flush=True)
sys.stdin.read()
"""


def one_user_leaves_the_socket_of_ranks_to_others():
    def as_user(uid, *command):
        return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *command]

    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb") as file:
            file.write(b"x" * 100000)
        holder = subprocess.Popen(as_user(12345, sys.executable, "-c", HOLD_CONNECTIONS, mount.data + "/ranks.sock"),
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            held = int(holder.stdout.readline())
            assert held == 256, held
            expect(call(*as_user(12346, program("cairnfs"), "wait", mount.path + "/file")), 0)
            code, output = call(*as_user(12345, program("cairnfs"), "wait", mount.path + "/file"))
            assert code != 0, output
        finally:
            holder.communicate()
        mount.umount()


def has_socket(pid):
    names = []
    for fd in glob.glob(f"/proc/{pid}/fd/*"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(fd))
    return any(name.startswith("socket:") for name in names)


def a_check_whose_daemon_dies_says_so():
    """It must not go on by itself, and call clean what the daemon could not finish."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.kill(mount.pid, signal.SIGSTOP)  # it is connected to, and does not answer
        check = subprocess.Popen([program("cairnfs"), "check", mount.path], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            for _ in range(600):
                if has_socket(check.pid):
                    break
                time.sleep(0.05)
            time.sleep(0.5)
            left = die(mount)
            output, message = check.communicate(timeout=60)
        finally:
            check.kill()
        assert check.returncode == NO_DAEMON and output == "", (check.returncode, output, message)
        assert "the check was not finished: the daemon ended before it answered" in message, message
        assert lock_text(mount) == left + "\n", lock_text(mount)
        mount.mount()
        mount.check()
        mount.umount()


def data_paths_that_look_like_addresses():
    """The control socket's path is a part of what gRPC takes for a URI."""
    with Scratch() as scratch:
        for name in ("run#7", "run?7", "run%417", "100%", "two words", "sch\xf6n"):
            mount = Mount(scratch, name=name, data=scratch.path + "/data " + name)
            assert mount.status()["data"] == mount.data
            with open(mount.path + "/file", "wb") as file:
                file.write(b"x" * 100000)
            run(program("cairnfs"), "wait", mount.path + "/file")
            mount.collect()
            assert mount.check()["files"] == 1
            mount.umount()


def metric(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))


def one_damaged_chunk_is_no_failure():
    """It is told, but all else goes on: nobody needs to be called at night."""
    with Scratch() as scratch:
        port = free_port()
        mount = Mount(scratch, options=f"{SMALL},metrics_address=127.0.0.1:{port}")
        content = os.urandom(50000)
        with open(mount.path + "/file", "wb") as file:
            file.write(content)
        mount.umount()
        for path in glob.glob(mount.data + "/segments/*"):
            with open(path, "r+b") as file:
                at = file.read().find(content[5000:5100])
                if at >= 0:
                    file.seek(at)
                    file.write(bytes([content[5000] ^ 1]))
        mount.mount()
        with open(mount.path + "/file", "rb") as file:
            try:
                file.read()
                raise AssertionError("damaged bytes were read")
            except OSError:
                pass
        status = mount.status()
        assert status["last_error"] and status["corrupt_chunks_total"] == 1 and status["failing"] is False, status
        assert metric(port, "cairnfs_failed") == 0 and metric(port, "cairnfs_corrupt_chunks_total") == 1
        assert "state         good\n" in run(program("cairnfs"), "status", mount.path)
        with open(mount.path + "/new", "wb") as file:
            file.write(b"still taken")
            os.fsync(file.fileno())
        mount.umount()


def main():
    return run_cases([
        starts_that_fail_say_nothing_of_the_last_end, a_check_leaves_what_lock_tells_and_tells_it_too,
        the_next_mount_says_what_programs_saw, umount_tells_that_the_daemon_had_died, a_check_whose_daemon_dies_says_so,
        data_paths_that_look_like_addresses, a_check_that_is_interrupted_says_nothing_of_the_last_end,
        what_lock_holds_is_printed_as_text, a_refused_first_start_is_no_crash, memory_is_taken_as_it_is_used,
        daemons_share_a_quarter_of_the_memory,
        one_user_leaves_the_socket_of_ranks_to_others,
        one_damaged_chunk_is_no_failure,
    ])


if __name__ == "__main__":
    sys.exit(main())
