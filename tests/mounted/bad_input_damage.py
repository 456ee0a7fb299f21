#!/usr/bin/env python3
"""What is left after a crash, a full disk or damage: each case asserts what is told, and that no wrong byte is read.
Run as root."""

import contextlib
import errno
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, await_end, program, run, run_cases, seed_from_arguments
from refusals import CORRUPT, NO_DAEMON, PROBLEMS, call, expect, expect_errno, made_data, try_mount


# --- daemons and disks that gave out ----------------------------------------------------------------------------------


def half_made_data_is_made_anew(_):
    with Scratch() as scratch:
        for point in ("daemon.making_begun", "daemon.header_written", "daemon.before_format", "daemon.after_format"):
            data = os.path.join(scratch.path, point)
            code, _ = try_mount(scratch, data=data, env=dict(os.environ, CAIRNFS_FAILPOINTS=point + "=kill"))
            assert code != 0, f"{point} did not kill the daemon"
            expect(try_mount(scratch, data=data), 0)
            run(program("cairnfs"), "umount", scratch.directory("point"))
            expect(call(program("cairnfs"), "check", "--data", data), 0, "clean")


def full_disk_keeps_what_was_committed(seed):
    with Scratch() as scratch:
        disk = scratch.ext4("disk", 192 << 20)
        mount = Mount(scratch, data=disk + "/data")
        kept = random.Random(seed).randbytes(8 << 20)
        with open(mount.path + "/kept", "wb", buffering=0) as file:
            file.write(kept)
            os.fsync(file.fileno())
        full = False
        for index in range(64):
            try:
                with open(f"{mount.path}/filler-{index}", "wb", buffering=0) as file:
                    file.write(random.Random(seed + index + 1).randbytes(8 << 20))
                    os.fsync(file.fileno())
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                full = True
                break
        assert full, "512 MiB fit on a disk of 192 MiB"
        with open(mount.path + "/kept", "rb") as file:
            assert file.read() == kept
        # What did not fit was reported by the write or the fsync; the stop may say it once more.
        code, output = call(*mount.umount_command())
        assert code == 0 or "no space" in output, (code, output)
        mount.mount()
        with open(mount.path + "/kept", "rb") as file:
            assert file.read() == kept
        for name in glob.glob(mount.path + "/filler-*"):
            os.unlink(name)
        mount.collect()
        with open(mount.path + "/again", "wb", buffering=0) as file:
            file.write(random.Random(seed + 99).randbytes(32 << 20))
            os.fsync(file.fileno())
        mount.check()
        mount.umount()


def kill_daemon(mount):
    """Its mount stays."""
    os.kill(mount.pid, signal.SIGKILL)
    assert await_end(mount.pid), "the daemon does not end"


def mount_of_a_dead_daemon_is_cleaned_up(_):
    with Scratch() as scratch:
        mount = Mount(scratch)
        with open(mount.path + "/file", "wb", buffering=0) as file:
            file.write(b"kept")
            os.fsync(file.fileno())
        kill_daemon(mount)
        for _ in range(100):
            try:
                os.stat(mount.path + "/file")
                time.sleep(0.05)
            except OSError as error:
                assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED), error
                break
        expect(call(program("cairnfs"), "status", mount.path), NO_DAEMON, "no daemon answers")
        mount.mount()
        with open(mount.path + "/file", "rb") as file:
            assert file.read() == b"kept"
        assert "not closed cleanly" in mount.log()
        kill_daemon(mount)
        expect(call(program("cairnfs"), "umount", mount.path), 1, "unmounted", "ended before")
        assert not os.path.ismount(mount.path)
        mount.pid = None


def mount_right_after_the_daemon_died(_):
    """The kernel answers a stat of the dead mount from its cache for a second."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.stat(mount.path)
        kill_daemon(mount)
        with contextlib.suppress(OSError):  # the cache may be too old by now
            os.stat(mount.path)
        mount.mount()
        mount.umount()


# --- bytes that were changed ------------------------------------------------------------------------------------------


def damage(path, kind, rng, used_max):
    size = min(used_max, os.path.getsize(path))  # a segment's end is preallocated and may hold nothing
    if kind == "missing":
        os.unlink(path)
    elif kind == "truncated":
        os.truncate(path, size // 2)
    else:
        with open(path, "r+b") as file:
            at = rng.randrange(max(1, size // 2))
            file.seek(at)
            byte = file.read(1) or b"\0"
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x40]))


def reads_right_or_not_at_all(mount, files, log):
    """Every read gives the true bytes or an error; the number of files that could not be read."""
    unreadable = 0
    for name, content in files:
        try:
            with open(os.path.join(mount.path, name), "rb") as file:
                assert file.read() == content, f"{name} reads wrong bytes after damage ({log})"
        except OSError as error:
            assert error.errno in (errno.EIO, errno.EUCLEAN), error
            unreadable += 1
    return unreadable


def try_damage(scratch, mount, files, victim, kind, rng):
    """Damages one file of a copy of the data directory and uses it. What happened, in a word."""
    copy = scratch.path + "/damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(mount.data, copy, ignore=shutil.ignore_patterns("control.sock"))
    damage(os.path.join(copy, victim), kind, rng, sum(len(content) for _, content in files))
    log = f"{victim} {kind}"
    point = scratch.directory("damaged-point")
    code, output = try_mount(scratch, data=copy, point=point)
    if code != 0:
        assert code != NO_DAEMON and len(output) > 30 and "said nothing" not in output, (log, code, output)
        if os.path.dirname(victim) == "segments":
            assert os.path.basename(victim) in output, f"the message does not name {victim}: {output}"
        return "refused"
    damaged = Mount.__new__(Mount)
    damaged.path, damaged.data, damaged.options, damaged.pid = point, copy, SMALL, None
    scratch.mounts.append(damaged)
    damaged.pid = damaged.status()["pid"]
    unreadable = reads_right_or_not_at_all(damaged, files, log)
    code, output = call(program("cairnfs"), "check", point)
    assert code in (0, PROBLEMS), (log, code, output)
    if unreadable:
        assert code == PROBLEMS, f"check finds nothing, but {unreadable} files cannot be read ({log}): {output}"
    os.kill(damaged.pid, 0)  # alive
    damaged.umount()
    scratch.mounts.remove(damaged)
    return "found by check" if code == PROBLEMS else "harmless"


def damaged_segments_and_metadata(seed):
    rng = random.Random(seed)
    counts = {}
    with Scratch() as scratch:
        files = [(f"file-{index}", rng.randbytes(rng.randrange(1, 3 << 20))) for index in range(12)]
        mount = made_data(scratch, files)
        with_data = [path for path in glob.glob(mount.data + "/segments/*") if os.path.getsize(path) > 0]
        tables = glob.glob(mount.data + "/metadata/*.sst") + glob.glob(mount.data + "/metadata/*.log")
        tables += glob.glob(mount.data + "/metadata/MANIFEST-*") + [mount.data + "/metadata/CURRENT"]
        victims = [os.path.relpath(path, mount.data) for path in sorted(with_data)[:2] + sorted(tables)]
        for victim in victims:
            for kind in ("missing", "truncated", "flipped"):
                what = try_damage(scratch, mount, files, victim, kind, rng)
                print(f"        {victim} {kind}: {what}")
                counts[what] = counts.get(what, 0) + 1
    assert counts.get("refused", 0) > 0 and counts.get("found by check", 0) > 0, counts
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def advice_for_damaged_segments_works(seed):
    """What the message of a mount recommends: a check that names what is lost, then the index made anew."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = made_data(scratch, [("lost", rng.randbytes(3 << 20))])
        victim = sorted(glob.glob(mount.data + "/segments/segment-*"))[0]
        mount.mount()
        with open(mount.path + "/kept", "wb") as file:
            file.write(b"kept")
        mount.umount()
        whole = scratch.path + "/whole"
        shutil.copytree(mount.data, whole)
        for kind in ("missing", "empty"):
            shutil.rmtree(mount.data)
            shutil.copytree(whole, mount.data)
            if kind == "missing":
                os.unlink(victim)
            else:
                os.truncate(victim, 0)
            name = os.path.basename(victim)
            expect(call(*mount.mount_command()), CORRUPT, name, "cairnfs check --data DATA",
                   "cairnfs check --rebuild-index --data DATA")
            expect(call(program("cairnfs"), "check", "--data", mount.data), PROBLEMS, f"problem: {name}", "the index names",
                   "it is part of lost (inode", "damaged: lost", "cairnfs check --rebuild-index")
            # The file that is lost stays a problem, for reading it gives an error.
            expect(call(program("cairnfs"), "check", "--rebuild-index", "--data", mount.data), PROBLEMS, "index rebuilt",
                   "damaged: lost")
            mount.mount()
            with open(mount.path + "/kept", "rb") as file:
                assert file.read() == b"kept"
            with open(mount.path + "/lost", "rb") as file:
                expect_errno(errno.EIO, file.read)
            mount.umount()


def damaged_segment_headers_cost_nothing(seed):
    """A flipped bit in a field or in the padding, and the fields wiped: everything reads, and a collection mends it."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        files = [("kept", rng.randbytes(3 << 20))]
        mount = made_data(scratch, files)
        victim = sorted(glob.glob(mount.data + "/segments/segment-*"))[0]
        name = os.path.basename(victim)
        whole = scratch.path + "/whole"
        shutil.copytree(mount.data, whole)
        with open(victim, "rb") as file:
            header = file.read(4096)
        for kind in ("field", "padding", "wiped"):
            shutil.rmtree(mount.data)
            shutil.copytree(whole, mount.data)
            at = {"field": 30, "padding": 3000, "wiped": 0}[kind]
            with open(victim, "r+b") as file:
                file.seek(at)
                file.write(bytes(64) if kind == "wiped" else bytes([header[at] ^ 1]))
            expect(call(program("cairnfs"), "check", "--data", mount.data), PROBLEMS, f"problem: {name}")
            expect(call(program("cairnfs"), "check", "--rebuild-index", "--data", mount.data), PROBLEMS,
                   f"problem: {name}", "index rebuilt")
            mount.mount()
            assert name + ": the" in mount.log()
            assert reads_right_or_not_at_all(mount, files, kind) == 0
            expect(call(program("cairnfs"), "gc", mount.path), 0)
            expect(call(program("cairnfs"), "check", mount.path), 0, "clean")
            assert reads_right_or_not_at_all(mount, files, kind) == 0
            mount.umount()


def advice_for_damaged_metadata_is_a_copy(seed):
    """Names are nowhere else: no message may promise that they can be made anew."""
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = made_data(scratch, [("file", rng.randbytes(1 << 20))])
        mount.mount()  # leaves a table
        mount.umount()
        for victim in (sorted(glob.glob(mount.data + "/metadata/*.sst"))[0], mount.data + "/metadata/CURRENT"):
            os.rename(victim, victim + ".away")
            for command in (mount.mount_command(), [program("cairnfs"), "check", "--data", mount.data],
                            [program("cairnfs"), "check", "--rebuild-index", "--data", mount.data]):
                code, output = call(*command)
                assert code == CORRUPT and "restore the data directory from a copy" in output, (command, code, output)
                assert os.path.basename(victim) in output and "rebuild-index" not in output, (command, output)
            os.rename(victim + ".away", victim)
        expect(call(program("cairnfs"), "check", "--data", mount.data), 0, "clean")


def rebuilt_index_finds_everything(seed):
    rng = random.Random(seed)
    with Scratch() as scratch:
        files = [(f"file-{index}", rng.randbytes(rng.randrange(1, 3 << 20))) for index in range(12)]
        mount = made_data(scratch, files)
        rebuild = [program("cairnfs"), "check", "--rebuild-index", "--data", mount.data]
        expect(call(*rebuild), 0, "cairnfs: index rebuilt", "clean")
        done = subprocess.run([*rebuild, "--json"], capture_output=True, text=True, check=True)
        assert done.stderr == "" and json.loads(done.stdout)["clean"], done
        mount.mount()
        assert reads_right_or_not_at_all(mount, files, "rebuilt") == 0
        mount.umount()


# --- the control socket -----------------------------------------------------------------------------------------------


def garbage_on_the_control_socket(seed):
    rng = random.Random(seed)
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = mount.data + "/control.sock"
        assert os.stat(path).st_mode & 0o777 == 0o600
        for _ in range(30):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                try:
                    client.sendall(rng.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]) + rng.randbytes(rng.randrange(1, 4000)))
                except OSError:
                    pass
        assert mount.status()["pid"] == mount.pid
        mount.umount()


def main():
    seed = seed_from_arguments()
    return run_cases([
        half_made_data_is_made_anew, full_disk_keeps_what_was_committed, mount_of_a_dead_daemon_is_cleaned_up,
        mount_right_after_the_daemon_died, damaged_segments_and_metadata, advice_for_damaged_segments_works,
        damaged_segment_headers_cost_nothing, advice_for_damaged_metadata_is_a_copy, rebuilt_index_finds_everything,
        garbage_on_the_control_socket,
    ], seed)


if __name__ == "__main__":
    sys.exit(main())
