#!/usr/bin/env python3
"""`cairnfs check` beside other work, and what it tells of damage. Run as root."""

import glob
import json
import os
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, program, run, run_cases
from refusals import BUSY, CORRUPT, NO_DAEMON, PROBLEMS, call, expect


def fill(mount, megabytes):
    with open(mount.path + "/big", "wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1 << 20))
    run(program("cairnfs"), "wait", mount.path)


def drop_caches():
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as drop:
        drop.write("1")


def begin_check(mount):
    return subprocess.Popen([program("cairnfs"), "check", mount.path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)


def is_checking(mount):
    """Whether the daemon is at a check: it refuses a second one. If not, this one has been made."""
    check = begin_check(mount)
    output = check.communicate(timeout=600)[0]
    if check.returncode == 0:
        return False
    assert check.returncode == BUSY and "a check runs already" in output, (check.returncode, output)
    return True


def check_at_work(mount):
    """A check that the daemon is at."""
    for _ in range(20):
        check = begin_check(mount)
        while check.poll() is None:
            time.sleep(0.02)  # it should come to the daemon before the one that asks
            if is_checking(mount) and check.poll() is None:  # else it was refused itself
                return check
        check.communicate()
    raise AssertionError("no check was refused beside another one")


def kill_check(check):
    check.kill()
    check.communicate()


def keep_checking(mount, stop):
    """Several ask for a check at all times, until `stop`; then nobody waits for what they asked for."""
    while not stop.is_set():
        checks = [begin_check(mount) for _ in range(8)]
        while not stop.is_set() and any(check.poll() is None for check in checks):
            time.sleep(0.05)
        for check in checks:
            kill_check(check)


def kill_checks(mount, count):
    for _ in range(count):
        kill_check(check_at_work(mount))


def mount_is_free(mount):
    """Of checks, within a minute."""
    deadline = time.monotonic() + 60
    while is_checking(mount):
        assert time.monotonic() < deadline, "a check goes on"
        time.sleep(0.1)


def timed(action):
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def read_and_rename(mount):
    with open(mount.path + "/big", "rb") as file:
        file.seek(500 << 20)
        file.read(1 << 20)
    os.rename(mount.path + "/big", mount.path + "/renamed")


def umount_stops_a_check(mount, base):
    """How long the umount took that a check was stopped by; it may be done or not answered just then."""
    for _ in range(20):
        check = check_at_work(mount)
        ended = timed(mount.umount)
        message = check.communicate(timeout=60)[0]
        if check.returncode == 1 and "stop" in message:
            assert ended < base * 3 + 3, f"umount took {ended} s, without a check {base} s"
            return ended
        assert check.returncode in (0, NO_DAEMON), (check.returncode, message)
        mount.mount()
    raise AssertionError("no umount stopped a check")


def interrupted_checks_hold_nobody_up():
    with Scratch() as scratch:
        mount = Mount(scratch)
        fill(mount, 2048)
        whole = min(timed(mount.check) for _ in range(2))
        # A check that nobody waits for ends: the next is let in long before it would be done.
        shares = []
        while not shares or min(shares) > 0.7:
            assert len(shares) < 5, f"killed checks took {shares} of the time of whole ones"
            shares.append(timed(lambda: kill_checks(mount, 3)) / (3 * whole))
        stop = threading.Event()
        keeper = threading.Thread(target=keep_checking, args=(mount, stop))
        keeper.start()
        try:
            drop_caches()
            assert any(is_checking(mount) for _ in range(20)), "no check was seen at work"
            read = timed(lambda: read_and_rename(mount))
        finally:
            stop.set()
            keeper.join()
        assert read < 10, f"a read and a rename took {read} s"  # behind the checks it would take half a minute
        mount_is_free(mount)
        base = timed(mount.umount)
        mount.mount()
        ended = umount_stops_a_check(mount, base)
        return (f"a read beside took {read:.2f} s, umount {ended:.2f} s, without a check {base:.2f} s, a killed check "
                f"{min(shares):.2f} of the {whole:.2f} s of a whole one")


def flip(data, excerpt):
    """Flips a bit of stored bytes."""
    for path in glob.glob(data + "/segments/*"):
        with open(path, "r+b") as file:
            at = file.read().find(excerpt)
            if at >= 0:
                file.seek(at)
                file.write(bytes([excerpt[0] ^ 1]))
                return
    raise AssertionError("the bytes are not stored")


def damage_is_told_once_with_its_files():
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.makedirs(mount.path + "/runs/seven")
        contents = [os.urandom(2000) for _ in range(4)]
        for index, name in enumerate(("runs/seven/model", "runs/optimizer", "new\nline", "whole")):
            with open(f"{mount.path}/{name}", "wb") as file:
                file.write(contents[index])
        with open(mount.path + "/copy", "wb") as file:
            file.write(contents[0])
        mount.umount()
        for content in contents[:3]:
            flip(mount.data, content[500:600])
        damaged = ["copy", "new\nline", "runs/optimizer", "runs/seven/model"]

        def look(*where):
            done = subprocess.run([program("cairnfs"), "check", *where], capture_output=True, text=True, check=False)
            assert done.returncode == 4, done
            return done.stdout

        for where in ([mount.path], ["--data", mount.data]):
            if where[0] == mount.path:
                mount.mount()
            report = json.loads(look(*where, "--json"))
            assert report["problem_count"] == len(report["problems"]) == 3, report
            assert sorted(report["damaged_files"]) == damaged and report["damaged_file_count"] == 4, report
            lines = look(*where).splitlines()
            assert len([line for line in lines if line.startswith("problem: ")]) == 3, lines
            assert sorted(line[9:] for line in lines if line.startswith("damaged: ")) == [
                "copy", "new\\x0aline", "runs/optimizer", "runs/seven/model"], lines
            assert "runs/seven/model" in next(line for line in lines if "copy (" in line), lines
            if where[0] == mount.path:
                mount.umount()


def flip_middle(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def read_tables(mount):
    """The tables of metadata, once a check has read all that is in them."""
    for _ in range(20):
        tables = sorted(glob.glob(mount.data + "/metadata/*.sst"))
        mount.check()
        if tables and tables == sorted(glob.glob(mount.data + "/metadata/*.sst")):
            return tables
    raise AssertionError("the tables are replaced all the time")


def damaged_tables_are_found_beside_the_daemon():
    """All of the metadata is in memory, and is read from there: what lies on the disk is looked at all the same."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        for index in range(200):
            with open(f"{mount.path}/file-{index}", "wb") as file:
                file.write(os.urandom(100))
        mount.remount()  # what the log held becomes a table
        table = read_tables(mount)[-1]
        flip_middle(table)
        name = os.path.basename(table)
        expect(call(program("cairnfs"), "check", mount.path), PROBLEMS, name + " fails its checksum", "1 problems")
        mount.umount()
        code, output = call(program("cairnfs"), "check", "--data", mount.data)
        assert code in (PROBLEMS, CORRUPT) and name in output, (code, output)  # what is in it is needed now
        flip_middle(table)
        mount.mount()
        mount.check()
        mount.umount()


def small_files_that_were_synced_are_sound_after_a_kill():
    """Their bytes are in the engine, and go to a segment when the daemon, or a check, opens the directory."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        contents = {f"small-{i}": os.urandom(1000 + i) for i in range(5)}

        def save_and_kill(prefix):
            for name, content in contents.items():
                with open(f"{mount.path}/{prefix}{name}", "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            mount.kill()

        def look(prefix):
            for name, content in contents.items():
                with open(f"{mount.path}/{prefix}{name}", "rb") as file:
                    assert file.read() == content, prefix + name

        save_and_kill("a-")
        run(program("cairnfs"), "check", "--data", mount.data)
        mount.mount()
        look("a-")
        contents = {name: content[::-1] for name, content in contents.items()}
        save_and_kill("b-")
        mount.mount()  # without a check before it
        look("b-")
        run(program("cairnfs"), "check", mount.path)


if __name__ == "__main__":
    sys.exit(run_cases([interrupted_checks_hold_nobody_up, damage_is_told_once_with_its_files,
                        damaged_tables_are_found_beside_the_daemon,
                        small_files_that_were_synced_are_sound_after_a_kill]))
