#!/usr/bin/env python3
"""The commands that find checkpoints (cairnfs ls, latest, watch, and status of a path): what they step over, in which
order they tell, and which words they refuse. Run as root."""

import contextlib
import errno
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, await_end, program, run_cases
from cluster import wait_until
from runs import STEP, call, commit, exchange, make_run, record_of, whole_record_of

MIB = 1 << 20
NONE_FOUND = 8


def the_latest_whole_one_is_found():
    with Scratch() as scratch:
        mount = Mount(scratch)

        def latest(*options, expect=0):
            return call("latest", mount.path, "--match", STEP, *options, expect=expect)

        found = latest(expect=NONE_FOUND)
        assert found.stdout == "" and "no whole checkpoint" in found.stderr, found
        archive = scratch.path + "/model.pt"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("data.pkl", b"x" * 10000)
        with open(archive, "rb") as file:
            whole = file.read()
        commit(mount, "step-9", {"model.pt": whole})
        commit(mount, "step-100", {"model.pt": whole})
        assert latest().stdout == mount.path + "/step-100\n"
        os.mkdir(mount.path + "/step-300.tmp")
        found = call("latest", mount.path)
        assert found.stdout == mount.path + "/step-100\n" and "step-300.tmp is not committed" in found.stderr, found
        os.rmdir(mount.path + "/step-300.tmp")
        assert latest("--before", "100").stdout == mount.path + "/step-9\n"
        commit(mount, "step-200", {"model.pt": whole[:-30]})
        commit(mount, "step-300.tmp", {"model.pt": whole})
        os.symlink("step-100", mount.path + "/step-400")
        os.mkdir(mount.path + "/step-99999999999999999999")
        found = latest("--verify")
        assert found.stdout == mount.path + "/step-100\n", found
        for words in ("step-200: model.pt: it begins as a zip file", "step-400 is a symbolic link", "below 2^63"):
            assert words in found.stderr, found.stderr
        # The same step twice: the later commit, and that is told.
        commit(mount, "step-0100", {"model.pt": whole})
        found = latest()
        assert found.stdout == mount.path + "/step-0100\n" and "step 100 is there twice" in found.stderr, found
        entry = json.loads(latest("--json").stdout)
        assert entry["path"] == mount.path + "/step-0100" and entry["step"] == 100, entry
        for pattern in (r"step-\d+", r"(s)tep-(\d+)", "step-("):
            wrong = call("latest", mount.path, "--match", pattern, expect=2)
            assert wrong.stderr.startswith("cairnfs: the pattern"), wrong
        assert "cannot list" in call("latest", mount.path + "/none", expect=1).stderr
        mount.umount()


def zip_of(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", content)
    return file.getvalue()


def what_is_cut_short_is_stepped_over():
    """Each as the newest: a save that was killed, at several of its bytes."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        inner = zip_of(b"x" * 1000)
        whole = zip_of(inner)
        best = commit(mount, "step-1", {"model.pt": whole, "a.npz": inner, "v.index": b"1", "v.data-00000-of-00001": b"1",
                                        "dcp/__0_0.distcp": inner + inner, "dcp/__1_0.distcp": b"", "dcp/.metadata": b"1"})
        inner_end = whole.index(inner) + len(inner)
        cut = [({"model.pt": whole[:size]}, "model.pt: it ") for size in (0, 2, 30, inner_end, *range(-22, 0))]
        cut += [({"a.npz": b""}, "0 bytes"), ({"model.pt": bytes(4096)}, "begins with zeros"),
                ({"v.index": b"", "v.data-00000-of-00001": b"1"}, "v.index has 0 bytes"),
                ({"v.index": b"1", "v.data-00000-of-00002": b"1"}, "1 of 2 files v.data-*-of-*"),
                ({".metadata": b"", "__0_0.distcp": b"1"}, ".metadata has 0 bytes"),
                ({"__0_0.distcp": (inner + inner)[:-1], ".metadata": b"1"}, "__0_0.distcp: it begins as a zip"),
                *(({name: b""}, "0 bytes") for name in ("pytorch_model.bin", "m.npy", "m.h5", "m.msgpack", "m.index.json"))]
        for step, (files, _) in enumerate(cut, 2):
            commit(mount, f"step-{step}", files)
        found = call("latest", mount.path, "--match", STEP)
        assert found.stdout == best + "\n", found
        told = dict(line.split(": ", 3)[2:] for line in found.stderr.splitlines())
        for step, (_, words) in enumerate(cut, 2):
            assert words in told[f"{mount.path}/step-{step}"], (step, words, told)
        mount.umount()


def damage_is_stepped_over():
    """Also what is whole in memory, as right after a save."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        content = os.urandom(4 * MIB)
        commit(mount, "step-1", {"file": os.urandom(MIB), "empty": b""})
        commit(mount, "step-2", {"file": content})
        assert call("latest", mount.path, "--verify").stdout == mount.path + "/step-2\n"
        for name in os.listdir(mount.data + "/segments"):
            with open(f"{mount.data}/segments/{name}", "r+b") as file:
                at = file.read().find(content[-1000:])
                if at >= 0:
                    file.seek(at)
                    file.write(b"damage" * 100)
                    os.fsync(file.fileno())
        found = call("latest", mount.path, "--verify")
        assert found.stdout == mount.path + "/step-1\n" and "step-2: file: it cannot be read" in found.stderr, found
        mount.umount()
        mount = Mount(scratch)
        assert call("latest", mount.path).stdout == mount.path + "/step-2\n"
        found = call("latest", mount.path, "--verify")
        assert found.stdout == mount.path + "/step-1\n" and "step-2: file: it cannot be read" in found.stderr, found
        mount.umount()


def what_is_in_removal_is_named():
    with Scratch() as scratch:
        mount = Mount(scratch)
        make_run(mount, [1, 2, 3])
        run = mount.path + "/run"
        call("retain", mount.path + "/run", "--now", "--keep-last", "1", "--keep-inside", "below", "--match", STEP)
        going = run + "/.cairnfs-going-abcdefghijklmnop-" + "step-9".encode().hex().translate(
            str.maketrans("0123456789abcdef", "abcdefghijklmnop"))
        os.mkdir(going)
        for command, code in (("ls", 0), ("latest", NONE_FOUND)):
            options = ("--before", "3") if command == "latest" else ()
            found = call(command, run, "--match", STEP, *options, expect=code)
            for words in ("step-1: retention has removed it, but for what stays", "step-9: retention removes it"):
                assert words in found.stderr, found
        nothing = call("retain", run, "--dry-run", "--keep-last", "1", "--match", r"other-(\d+)")
        assert nothing.stdout == "" and r"no directory in" in nothing.stderr and r"matches other-(\d+)" in nothing.stderr
        mount.umount()


def the_newest_file_is_the_time():
    """Of what was not committed, and all of one step are told."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        for number, name in enumerate(("step-5", "step-05", "step-005"), 1):
            os.mkdir(f"{mount.path}/{name}")
            for path in (f"{mount.path}/{name}/file", f"{mount.path}/{name}"):
                if path.endswith("file"):
                    open(path, "w", encoding="utf-8").close()
                os.utime(path, (number * 1000, number * 1000))
        os.utime(mount.path + "/step-5/file", (9000, 9000))
        found = call("latest", mount.path)
        older = f"step 5 is there 3 times; {mount.path}/step-005, {mount.path}/step-05 are older than {mount.path}/step-5"
        assert found.stdout == mount.path + "/step-5\n" and older in found.stderr, found
        assert json.loads(call("latest", mount.path, "--json").stdout)["time"] == 9000
        mount.umount()


@contextlib.contextmanager
def watching(path, *options):
    with subprocess.Popen([program("cairnfs"), "watch", path, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def commits_are_watched():
    with Scratch() as scratch:
        mount = Mount(scratch)
        first = commit(mount, "step-1", {"a": b"1"})
        revision = record_of(first)["revision"]
        with watching(mount.path, "--since", "0") as process:
            assert process.stdout.readline() == f"{revision} {first}\n"
            second = commit(mount, "step-2", {"a": b"2"})
            assert process.stdout.readline() == f"{record_of(second)['revision']} {second}\n"
            # A daemon that was started anew is no end, and nothing is told twice.
            mount.umount()
            mount = Mount(scratch)
            third = commit(mount, "step-3", {"a": b"3"})
            assert process.stdout.readline() == f"{record_of(third)['revision']} {third}\n"
        told = scratch.path + "/told"
        line = f"echo {{}} >> {shlex.quote(told)}"
        subprocess.run([program("cairnfs"), "watch", mount.path, "--since", str(revision), "--count", "2", "--json", "--exec",
                        line], check=True, stdout=subprocess.DEVNULL)
        with open(told, encoding="utf-8") as file:
            assert file.read().split() == [second, third]
        mount.umount()


def both_of_an_exchange_are_told():
    with Scratch() as scratch:
        mount = Mount(scratch)
        paths = [f"{mount.path}/step-{step}" for step in (1, 2)]
        for path in paths:
            os.mkdir(path)
            with open(path + "/file", "wb") as file:
                file.write(b"1")
        exchange(*paths)
        revision = record_of(paths[0])["revision"]
        assert record_of(paths[1])["revision"] == revision
        told = call("watch", mount.path, "--since", "0", "--count", "1", "--exec", "true").stdout
        assert told == "".join(f"{revision} {path}\n" for path in paths), told
        mount.umount()


def names_that_cannot_be_read_are_stepped_over():
    with Scratch() as scratch:
        mount = Mount(scratch)
        plain = commit(mount, "step-1", {"a": b"1"})
        line, bytes_alone = os.fsencode(mount.path) + b"/step\n-3", os.fsencode(mount.path) + b"/step-\xff-2"

        def latest(*options):
            return subprocess.run([program("cairnfs"), "latest", mount.path, *options], capture_output=True, check=True)

        for path in (line, bytes_alone):
            os.mkdir(path + b".tmp")
            os.rename(path + b".tmp", path)
        found = latest()
        assert found.stdout == bytes_alone + b"\n" and rb"step\x0a-3: its name has a newline" in found.stderr, found
        assert json.loads(latest("--json").stdout)["path"] == os.fsdecode(line)
        os.rmdir(line)
        found = latest("--json")
        assert json.loads(found.stdout)["path"] == plain and b"its name is no UTF-8" in found.stderr, found
        assert json.loads(call("ls", mount.path, "--json").stdout)[1]["path"] == mount.path + "/step-\ufffd-2"
        mount.umount()


def what_this_user_cannot_enter_is_stepped_over():
    with Scratch() as scratch:
        os.chmod(scratch.path, 0o755)
        mount = Mount(scratch)
        os.chmod(mount.path, 0o755)
        whole, listed = (commit(mount, f"step-{number}", {"a": b"1"}) for number in (1, 2))
        os.chmod(whole, 0o755)
        for mode in (0o744, 0o711):
            os.chmod(listed, mode)
            found = subprocess.run([program("cairnfs"), "latest", mount.path], capture_output=True, text=True, check=True,
                                   user=4321, group=4321, extra_groups=[])
            assert found.stdout == whole + "\n" and "step-2 may not be read by this user" in found.stderr, found
        assert call("latest", mount.path).stdout == listed + "\n"
        mount.umount()


def names_of_strangers_are_no_commands():
    with Scratch() as scratch:
        mount = Mount(scratch)
        run, told = mount.path + "/run", scratch.path + "/told"
        os.mkdir(run)
        os.chmod(run, 0o1777)
        names = ["a;touch made;-1", "b'$(touch made)-2", "c`touch made`-3", 'd"; touch made; "-4', "-e $1 {} 5"]
        for name in names:
            for words in (["mkdir", run + "/new.tmp"], ["mv", run + "/new.tmp", f"{run}/{name}"]):
                subprocess.run(["setpriv", "--reuid", "1234", "--clear-groups", *words], check=True)
        for place in ("{}", '"$1"', "''{}\"\""):
            subprocess.run([program("cairnfs"), "watch", run, "--since", "0", "--count", str(len(names)), "--exec",
                            f"printf '%s\\n' {place} >> {shlex.quote(told)}"],
                           check=True, cwd=scratch.path, stdout=subprocess.DEVNULL)
            with open(told, encoding="utf-8") as file:
                assert file.read().splitlines() == [f"{run}/{name}" for name in names], place
            os.unlink(told)
        for line in ("echo '{}'", 'echo "{}"', 'echo GOT {} "{}"'):
            assert "inside quotes" in call("watch", run, "--since", "0", "--count", "1", "--exec", line, expect=2).stderr
        assert not [path for path in (scratch.path, run) if "made" in os.listdir(path)]
        mount.umount()


def is_held(path):
    try:
        return float(os.getxattr(path, "user.cairnfs.held_until")) > 0
    except OSError as error:
        assert error.errno == errno.ENODATA, error
        return False


def those_that_are_removed_meanwhile_are_told():
    """While a command runs, and a hold keeps each that comes from retention."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/run")
        paths = [commit(mount, f"run/step-{step}", {"a": b"1"}) for step in (1, 2)]
        revisions = [record_of(path)["revision"] for path in paths]
        told, go = scratch.path + "/told", scratch.path + "/go"
        line = f"echo {{}} >> {shlex.quote(told)}; while [ ! -e {shlex.quote(go)} ]; do sleep 0.1; done"
        options = ("--since", str(revisions[0]), "--count", "3", "--hold", "1h", "--exec", line)
        with watching(mount.path + "/run", *options) as process:
            assert process.stdout.readline() == f"{revisions[1]} {paths[1]}\n"
            assert is_held(paths[1]) and not is_held(paths[0]), "a revision before --since"
            for step in (3, 4):
                paths.append(commit(mount, f"run/step-{step}", {"a": b"1"}))
                revisions.append(record_of(paths[-1])["revision"])
                wait_until(lambda path=paths[-1]: is_held(path))
                if step == 3:
                    going = call("retain", mount.path + "/run", "--now", "--keep-last", "1", "--match", STEP)
                    assert "it is held until" in going.stdout, going
                    shutil.rmtree(paths[-1])
            open(go, "w", encoding="utf-8").close()
            assert process.wait(60) == 0
            assert process.stdout.read() == "".join(f"{revisions[i]} {paths[i]}\n" for i in (2, 3))
        with open(told, encoding="utf-8") as file:
            assert file.read().split() == paths[1:]
        mount.umount()


def output_that_is_lost_is_told():
    """By every command: a script would take nothing for an answer."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = mount.path + "/run"
        os.mkdir(path)
        commit(mount, "run/step-1", {"a": b"1"})
        os.mkdir(path + "/step-2.tmp")
        for words in (["latest", path], ["latest", path, "--json"], ["ls", path], ["ls", path, "--json"], ["status", path],
                      ["watch", path, "--since", "0", "--count", "1"], ["watch", path, "--since", "0", "--exec", "false"],
                      ["commit", "--async", path + "/step-2.tmp", path + "/step-2"], ["retain", path, "--dry-run",
                      "--keep-last", "1"], ["version"], ["--help"], ["--version"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([program("cairnfs"), *words], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=60, check=False)
            assert done.returncode == 1, (words, done)
            assert done.stderr.count("cannot write") == 1, (words, done)
            assert done.stderr.endswith("cairnfs: cannot write the output: No space left on device\n"), (words, done)
        wait_until(lambda: os.path.isdir(path + "/step-2"))
        mount.umount()


def status_tells_a_commit():
    """Also to those who may not ask the daemon."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = commit(mount, "step-1", {"a": b"x" * 2048})
        record = whole_record_of(path)
        status = json.loads(call("status", path, "--json").stdout)
        assert status["commit"] == record and status["mount_point"] == mount.path, status
        assert "commit" not in json.loads(call("status", mount.path, "--json").stdout)
        assert "files 1, bytes 2.0 KiB" in call("status", path).stdout
        stranger = ("setpriv", "--reuid", "1234", "--clear-groups", program("cairnfs"), "status")
        asked = subprocess.run([*stranger, path, "--json"], capture_output=True, text=True, check=True)
        assert json.loads(asked.stdout) == {"commit": {**record, "new_bytes": None}}, asked
        asked = subprocess.run([*stranger, path], capture_output=True, text=True, check=True)
        assert asked.stdout.startswith("commit ") and asked.stdout.count("\n") == 1, asked
        for words in ([mount.path], [path + "/a"], [path, "--exact"]):
            asked = subprocess.run([*stranger, *words], capture_output=True, text=True, check=False)
            assert asked.returncode == 6 and asked.stdout == "", asked
        mount.umount()


def a_daemon_that_is_gone_is_told():
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = commit(mount, "step-1", {"a": b"1"})
        os.kill(mount.pid, signal.SIGKILL)
        await_end(mount.pid)
        for command in ("ls", "latest", "watch"):
            gone = call(command, mount.path, expect=3)
            assert "not connected" in gone.stderr, gone
        call("status", path, expect=3)
        call("pin", path, expect=3)


def a_mount_that_is_missing_is_told():
    """No script starts a run anew because of it."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = commit(mount, "step-1", {"a": b"1"})
        for command, code in (("ls", 1), ("latest", 1), ("watch", 1), ("status", 1), ("wait", 1)):
            assert "No such file" in call(command, mount.path + "/none", expect=code).stderr
        os.symlink(mount.path, scratch.path + "/link")
        assert call("latest", scratch.path + "/link").stdout == scratch.path + "/link/step-1\n"
        with watching(mount.path, "--since", "0") as process:
            assert process.stdout.readline() == f"{record_of(path)['revision']} {path}\n"  # it has begun
            mount.umount()
            for command in ("ls", "latest", "watch", "status"):
                assert "no CairnFS is mounted at" in call(command, mount.path, expect=3).stderr
            mount = Mount(scratch)
            second = commit(mount, "step-2", {"a": b"2"})
            assert process.stdout.readline() == f"{record_of(second)['revision']} {second}\n"
        mount.umount()


def numbers_are_whole():
    with Scratch() as scratch:
        for words in (["latest", "--before"], ["watch", "--since"], ["watch", "--count"]):
            for number in ("-1", "9223372036854775808", "99999999999999999999", "", "abc", "2.5", " 1", "1 "):
                refused = call(*words[:1], scratch.path, words[1], number, expect=2)
                assert f"to 2^63 - 1, not '{number}'" in refused.stderr, refused
        assert "from 1 to" in call("watch", scratch.path, "--count", "0", expect=2).stderr
        for command in ("ls", "latest", "watch"):
            assert "must not be empty" in call(command, scratch.path, "--match", "", expect=2).stderr
        for time in ("0s", "1000001d"):
            for command in ("latest", "watch"):
                refused = call(command, scratch.path, "--hold", time, expect=2)
                assert "at least a second and at most 1000000d" in refused.stderr, refused
        assert "must not be empty" in call("watch", scratch.path, "--hold", "", expect=2).stderr


if __name__ == "__main__":
    sys.exit(run_cases([the_latest_whole_one_is_found, what_is_cut_short_is_stepped_over, damage_is_stepped_over,
                        what_is_in_removal_is_named, the_newest_file_is_the_time, commits_are_watched,
                        both_of_an_exchange_are_told, names_that_cannot_be_read_are_stepped_over,
                        what_this_user_cannot_enter_is_stepped_over, names_of_strangers_are_no_commands,
                        those_that_are_removed_meanwhile_are_told, output_that_is_lost_is_told, status_tells_a_commit,
                        a_daemon_that_is_gone_is_told, a_mount_that_is_missing_is_told, numbers_are_whole]))
