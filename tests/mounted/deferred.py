#!/usr/bin/env python3
"""Deferred commits: cairnfs commit --async and --wait, the same by ioctl, who may, what may happen meanwhile, and ends of
the daemon at each step. Run as root."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, await_end, program, run_cases
from cluster import wait_until
from held_mount import HeldMount
from runs import call

MIB = 1 << 20
USER, OTHER, GROUP = 1234, 4321, 5678
FAILED, USAGE, BUSY, PERMISSION, NONE = 1, 2, 5, 6, 8
# Around the steps of a deferred commit, in their order.
FAILPOINTS = ["fs.ticket_taken", "fs.rename_data_durable", "fs.rename_committed", "fs.ticket_renamed",
              "fs.ticket_ended"]


# As cairnfs/cairnfs.h has them: struct cairnfs_defer_commit and cairnfs_commit_result, and the numbers of _IOWR.
DEFER, RESULT = struct.Struct("=QQII256s"), struct.Struct("=QII512s")
DEFER_COMMIT = 3 << 30 | DEFER.size << 16 | 0xC7 << 8 | 1
COMMIT_RESULT = 3 << 30 | RESULT.size << 16 | 0xC7 << 8 | 2
UNDER_WAY, DONE, NOT_DONE = 0, 1, 2


def as_user(user, *words):
    return subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", program("cairnfs"), *words],
                          capture_output=True, text=True, timeout=120, check=False)


def make(mount, name, size=MIB, owner=0):
    """A directory that is to be committed, as its path without the end ".tmp"."""
    path = f"{mount.path}/{name}"
    os.mkdir(path + ".tmp")
    with open(path + ".tmp/model", "wb") as file:
        file.write(os.urandom(size))
    subprocess.run(["chown", "-R", f"{owner}:{owner}", path + ".tmp"], check=True)
    return path


def defer(path, *options, expect=0):
    done = call("commit", "--async", path + ".tmp", path, *options, expect=expect)
    return done.stdout.strip() if expect == 0 else done.stderr


def result_of(ticket, mount, expect=0):
    return call("commit", "--wait", ticket, mount.path, expect=expect)


def a_ticket_gives_its_result_once():
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = make(mount, "step-1", 20 * MIB)
        ticket = defer(path)
        assert len(ticket) == 16, ticket
        assert result_of(ticket, mount).stdout == path + "\n"
        assert os.path.getsize(path + "/model") == 20 * MIB and not os.path.exists(path + ".tmp")
        assert json.loads(os.getxattr(path, "user.cairnfs.commit"))["uid"] == 0
        assert "there is no ticket" in result_of(ticket, mount, expect=NONE).stderr
        # Who asks later is told as well; a caller that is gone holds up nothing.
        path = make(mount, "step-2")
        taken = json.loads(call("commit", "--async", path + ".tmp", path, "--json").stdout)
        assert taken["path"] == path and list(taken) == ["ticket", "path"], taken
        wait_until(lambda: os.path.exists(path))
        told = json.loads(call("commit", "--wait", taken["ticket"], mount.path, "--json").stdout)
        assert told == {"ticket": taken["ticket"], "state": "committed", "path": path, "reason": None}, told
        mount.umount()


def wrong_input_is_told():
    with Scratch() as scratch:
        mount = Mount(scratch)
        path = make(mount, "step-1")
        with open(mount.path + "/file.tmp", "wb"):
            pass
        os.makedirs(mount.path + "/full/below")
        sealed = make(mount, "sealed")
        os.makedirs(mount.path + "/closed/sealed.tmp")
        _ = call("seal", sealed + ".tmp"), call("seal", mount.path + "/closed")
        for words, code, text in [
                (("--async", path + ".tmp", path, "--ranks", "2"), USAGE, "excludes"),
                (("--async", path + ".tmp"), USAGE, "FINAL is required"),
                ((path + ".tmp", path), USAGE, "one of --ranks, --async and --wait is required"),
                (("--async", path + ".tmp", path, "--under-way", "0"), USAGE, "--under-way"),
                (("--async", path + ".tmp", path, "--at-least", "1"), USAGE, "--ranks"),
                (("--ranks", "2", "--rank", "0", "--at-least", "3", path + ".tmp", path), USAGE,
                 "at least 3 of 2 ranks: that is more than there are"),
                (("--ranks", "2", "--rank", "0", "--at-least", "0", path + ".tmp", path), USAGE, "--at-least"),
                (("--ranks", "2", "--rank", "0", "--require", "below/shard", path + ".tmp", path), USAGE, "--require"),
                (("--ranks", "2", "--rank", "0", "--require", "a=0", path + ".tmp", path), USAGE, "the count lies"),
                (("--wait", "12", mount.path), USAGE, "16 hexadecimal digits"),
                (("--wait", "0" * 16, mount.path), USAGE, "16 hexadecimal digits"),
                (("--wait", "1" * 16, mount.path, path), USAGE, "FINAL"),
                (("--wait", "1" * 16, mount.path, "--timeout", "soon"), USAGE, "--timeout"),
                (("--wait", "1" * 16, mount.path), NONE, "there is no ticket"),
                (("--wait", "1" * 16, scratch.path), 3, "no CairnFS"),
                (("--async", mount.path + "/none.tmp", path), FAILED, "No such file"),
                (("--async", mount.path + "/file.tmp", path), USAGE, "only directories are committed"),
                (("--async", path + ".tmp", mount.path + "/full"), FAILED, "there is another 'full' already"),
                (("--async", path + ".tmp", mount.path + "/file.tmp"), FAILED, "there is another 'file.tmp' already"),
                (("--async", path + ".tmp", path + ".tmp/below"), USAGE, "in the directory that is to get it"),
                (("--async", path + ".tmp", scratch.path + "/step-1"), USAGE, "do not lie in one mount"),
                (("--async", path + ".tmp", mount.path + "/.cairnfs-going-1"), USAGE, "what retention removes"),
                (("--async", path + ".tmp", path + "x" * 300), FAILED, "name"),
                (("--async", sealed + ".tmp", sealed), FAILED, "sealed"),
                (("--async", path + ".tmp", mount.path + "/closed/step-1"), FAILED, "sealed"),
                (("--async", mount.path + "/closed/sealed.tmp", path), FAILED, "sealed"),
                (("--async", mount.path, path), USAGE, "the root of the filesystem cannot be renamed")]:
            said = call("commit", *words, expect=code).stderr
            assert text in said, (words, said)
        os.mkdir(mount.path + "/empty")  # as rename(2) does
        assert result_of(call("commit", "--async", path + ".tmp", mount.path + "/empty").stdout.strip(), mount)
        assert os.listdir(mount.path + "/empty") == ["model"]
        assert "has its final name already" in call("commit", "--async", path + ".tmp", mount.path + "/empty",
                                                    expect=FAILED).stderr
        mount.umount()


def one_is_under_way_for_each_directory():
    with Scratch() as scratch:
        mount = HeldMount(scratch)
        mount.hold()
        first, second, third = (make(mount, f"step-{number}") for number in (1, 2, 3))
        os.mkdir(mount.path + "/run")
        elsewhere = make(mount, "run/step-1")
        tickets = [defer(first)]
        said = defer(first, expect=BUSY)
        assert "under way already: ticket " + tickets[0] in said, said
        tickets.append(defer(elsewhere))  # of another directory
        waiting = subprocess.Popen([program("cairnfs"), "commit", "--async", second + ".tmp", second],
                                   stdout=subprocess.PIPE, text=True)
        tickets.append(defer(third, "--under-way", "2"))
        told = call("commit", "--wait", tickets[0], mount.path, "--timeout", "300ms", "--json", expect=BUSY)
        assert json.loads(told.stdout)["state"] == "under_way" and "goes on" in told.stderr, told
        interrupted = subprocess.Popen([program("cairnfs"), "commit", "--wait", tickets[0], mount.path],
                                       stdout=subprocess.PIPE)
        interrupted.send_signal(signal.SIGINT)
        interrupted.communicate(timeout=60)
        assert interrupted.returncode == -signal.SIGINT, interrupted
        assert waiting.poll() is None and os.path.exists(first + ".tmp")
        mount.release()
        tickets.append(waiting.communicate(timeout=60)[0].strip())
        for ticket in tickets:
            result_of(ticket, mount)
        for path in (first, second, third, elsewhere):
            assert os.listdir(path) == ["model"]
        mount.umount()


def what_happens_meanwhile_counts():
    with Scratch() as scratch:
        mount = HeldMount(scratch)
        mount.hold()
        os.mkdir(mount.path + "/run")
        paths = {name: make(mount, "run/" + name) for name in ("renamed", "removed", "taken", "written", "committed")}
        tickets = {name: defer(path, "--under-way", "9") for name, path in paths.items()}
        os.rename(paths["renamed"] + ".tmp", mount.path + "/other")
        subprocess.run(["rm", "-r", paths["removed"] + ".tmp"], check=True)
        os.makedirs(paths["taken"] + "/below")
        os.rename(paths["committed"] + ".tmp", paths["committed"])
        os.rename(mount.path + "/run", mount.path + "/moved")  # the directory above is known by its inode
        with open(mount.path + "/moved/written.tmp/open", "wb") as file:
            file.write(b"x" * MIB)
            file.flush()
            mount.release()
            told = {name: call("commit", "--wait", ticket, mount.path, "--json", expect=expect)
                    for (name, ticket), expect in zip(tickets.items(), (FAILED, FAILED, FAILED, 0, 0))}
            # Who has a file open goes on with it, as after every rename.
            file.write(b"y")
        reasons = {name: json.loads(done.stdout)["reason"] for name, done in told.items()}
        assert "was renamed or removed meanwhile" in reasons["renamed"], reasons
        assert "was renamed or removed meanwhile" in reasons["removed"], reasons
        assert "Directory not empty" in reasons["taken"], reasons
        assert json.loads(told["written"].stdout)["path"] == mount.path + "/moved/written", told
        assert os.path.getsize(mount.path + "/moved/written/open") == MIB + 1
        assert os.listdir(mount.path + "/moved/committed") == ["model"]
        assert os.path.exists(mount.path + "/moved/taken.tmp/model")
        mount.umount()


def strangers_have_their_own_rights():
    with Scratch() as scratch:
        mount = HeldMount(scratch)
        os.mkdir(mount.path + "/home")
        os.chown(mount.path + "/home", USER, USER)
        mine, lost, roots = make(mount, "home/mine", owner=USER), make(mount, "home/lost", owner=USER), make(mount, "roots")
        refused = as_user(USER, "commit", "--async", roots + ".tmp", roots)
        assert refused.returncode == PERMISSION and "Permission denied" in refused.stderr, refused
        taken = as_user(USER, "commit", "--async", mine + ".tmp", mine)
        assert taken.returncode == 0, taken
        asked = as_user(OTHER, "commit", "--wait", taken.stdout.strip(), mount.path)
        assert asked.returncode == PERMISSION and f"is another user's: its result is for uid {USER}" in asked.stderr, asked
        asked = as_user(USER, "commit", "--wait", taken.stdout.strip(), mount.path)
        assert asked.returncode == 0 and asked.stdout == mine + "\n", asked
        assert json.loads(os.getxattr(mine, "user.cairnfs.commit"))["uid"] == USER
        # Rights are those of the moment at which it is renamed.
        mount.hold()
        taken = as_user(USER, "commit", "--async", lost + ".tmp", lost)
        assert taken.returncode == 0, taken
        os.chown(mount.path + "/home", 0, 0)
        mount.release()
        told = result_of(taken.stdout.strip(), mount, expect=FAILED)  # root may ask, too
        assert "Permission denied" in told.stderr and os.path.exists(lost + ".tmp"), told
        # Tickets of one user hold up nobody else, and there are not many of them.
        mount.hold()
        os.chown(mount.path + "/home", USER, USER)
        for number in range(26):
            make(mount, f"home/{number}", size=0, owner=USER)
        codes = [as_user(USER, "commit", "--async", f"{mount.path}/home/{number}.tmp", f"{mount.path}/home/{number}",
                         "--under-way", "64") for number in range(26)]
        assert all(done.returncode == 0 for done in codes), codes
        os.chmod(mount.path + "/home", 0o777)
        other = make(mount, "home/other", owner=OTHER)
        taken = as_user(OTHER, "commit", "--async", other + ".tmp", other)
        assert taken.returncode == 0, taken
        wait_until(lambda: children_of(mount.pid) in (22, 23))  # 21 or 22 of one user, and the other's
        mount.release()
        assert as_user(OTHER, "commit", "--wait", taken.stdout.strip(), mount.path).returncode == 0
        wait_until(lambda: not [name for name in os.listdir(mount.path + "/home") if name.endswith(".tmp")
                                and name[0].isdigit()])
        mount.umount()


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        own = len(file.read().split())
    for task in os.listdir(f"/proc/{pid}/task"):
        if task != str(pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                own += len(file.read().split())
    return own


def it_goes_on_after_a_start():
    with Scratch() as scratch:
        mount = HeldMount(scratch)
        mount.hold()
        path, second = make(mount, "step-1", 5 * MIB), make(mount, "step-2")
        ticket, other = defer(path), defer(second, "--under-way", "2")
        mount.umount()
        mount.release()
        mount.mount()
        assert result_of(ticket, mount).stdout == path + "\n"
        mount.umount()  # the result of the other waits
        mount.mount()
        assert result_of(other, mount).stdout == second + "\n"
        assert "no ticket" in result_of(ticket, mount, expect=NONE).stderr
        # A read-only mount takes none, and leaves what is under way alone.
        third = make(mount, "step-3")
        mount.hold()
        ticket = defer(third)
        mount.umount()
        mount.options += ",ro"
        mount.mount()
        mount.release()
        assert "read-only" in call("commit", "--async", path, path + "-new", expect=PERMISSION).stderr
        told = call("commit", "--wait", ticket, mount.path, "--timeout", "4s", expect=BUSY)
        assert "goes on" in told.stderr and os.path.exists(third + ".tmp"), told
        mount.umount()
        mount.options = mount.options.removesuffix(",ro")
        mount.mount()
        assert result_of(ticket, mount).stdout == third + "\n"
        mount.umount()


def call_ioctl(path, number, body):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return fcntl.ioctl(descriptor, number, body)
    finally:
        os.close(descriptor)


def defer_by_ioctl(path, name, parent=0, under_way=1, reserved=0):
    """The ticket, or what went wrong as the name of an errno."""
    try:
        return DEFER.unpack(call_ioctl(path, DEFER_COMMIT, DEFER.pack(0, parent, under_way, reserved, name)))[0]
    except OSError as error:
        return errno.errorcode[error.errno]


def result_by_ioctl(path, ticket, reserved=0):
    """State and reason, or the name of an errno."""
    try:
        _, state, _, reason = RESULT.unpack(call_ioctl(path, COMMIT_RESULT, RESULT.pack(ticket, 9, reserved, b"")))
        return state, reason.rstrip(b"\0").decode()
    except OSError as error:
        return errno.errorcode[error.errno]


def as_child(user, action):
    """What it gives, as text, in a process of that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        os.write(writer, str(action()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        text = told.read().decode()
    os.waitpid(child, 0)
    return text


def programs_call_ioctls():
    with Scratch() as scratch:
        mount = HeldMount(scratch)
        os.mkdir(mount.path + "/other")
        first, second = make(mount, "step-1", owner=USER), make(mount, "step-2")
        os.chmod(mount.path, 0o777)
        ticket = int(as_child(USER, lambda: defer_by_ioctl(first + ".tmp", b"step-1")))
        assert as_child(OTHER, lambda: result_by_ioctl(mount.path, ticket)) == "EPERM"
        wait_until(lambda: os.path.exists(first))
        told = wait_until(lambda: None if (told := result_by_ioctl(mount.path, ticket))[0] == UNDER_WAY else told)
        assert told == (DONE, ""), told
        assert result_by_ioctl(mount.path, ticket) == "ENOENT"
        assert json.loads(os.getxattr(first, "user.cairnfs.commit"))["uid"] == USER
        # The command and the ioctls are about the same tickets.
        mount.hold()
        ticket = defer_by_ioctl(second + ".tmp", b"step-2", parent=os.stat(mount.path + "/other").st_ino)
        assert result_by_ioctl(mount.path, ticket) == (UNDER_WAY, "")
        assert defer_by_ioctl(second + ".tmp", b"step-2") == "EBUSY"
        mount.release()
        assert result_of(f"{ticket:016x}", mount).stdout == mount.path + "/other/step-2\n"
        # Nobody waits here for another to end.
        mount.hold()
        third, fourth = make(mount, "step-3"), make(mount, "step-4")
        ticket = defer_by_ioctl(third + ".tmp", b"step-3")
        assert defer_by_ioctl(fourth + ".tmp", b"step-4") == "EBUSY"
        beside = defer_by_ioctl(make(mount, "step-5") + ".tmp", b"step-5", under_way=2)
        assert isinstance(beside, int), beside
        os.makedirs(third + "/below")
        mount.release()
        told = wait_until(lambda: None if (told := result_by_ioctl(mount.path, ticket))[0] == UNDER_WAY else told)
        assert told[0] == NOT_DONE and "Directory not empty" in told[1], told
        result_of(f"{beside:016x}", mount)
        assert os.path.exists(fourth + ".tmp")
        with open(mount.path + "/file", "wb") as file:
            for path, name, options, expected in [
                    (fourth + ".tmp", b"step-3", {}, "ENOTEMPTY"), (fourth + ".tmp", b"file", {}, "EEXIST"),
                    (fourth + ".tmp", b"step-4.tmp", {}, "EEXIST"), (fourth + ".tmp", b"x" * 256, {}, "EINVAL"),
                    (fourth + ".tmp", b"", {}, "EINVAL"), (fourth + ".tmp", b"a/b", {}, "EINVAL"),
                    (fourth + ".tmp", b"a", {"under_way": 0}, "EINVAL"), (fourth + ".tmp", b"a", {"reserved": 1}, "EINVAL"),
                    (fourth + ".tmp", b"a", {"parent": 1 << 60}, "ENOENT"), (mount.path, b"a", {}, "EINVAL"),
                    (fourth + ".tmp", b"a", {"parent": os.stat(fourth + ".tmp").st_ino}, "EINVAL"),
                    (mount.path + "/file", b"a", {}, "ENOTDIR")]:
                assert defer_by_ioctl(path, name, **options) == expected, (path, name, options)
            ticket = int(as_child(USER, lambda: defer_by_ioctl(first, b"\xff")))  # a name that is no text
            told = json.loads(call("commit", "--wait", f"{ticket:016x}", mount.path, "--json").stdout)
            assert told["state"] == "committed" and os.path.exists(mount.path.encode() + b"/\xff/model"), told
            os.chmod(mount.path, 0o755)
            assert as_child(USER, lambda: defer_by_ioctl(second[:-1] + "5", b"a")) == "EPERM"
            assert result_by_ioctl(mount.path, 0) == "ENOENT" and result_by_ioctl(mount.path, 1, reserved=1) == "EINVAL"
            # Others of this kind, and bodies of another size, are none.
            for number in (DEFER_COMMIT + 2, DEFER_COMMIT - (8 << 16), 0xC701):
                try:
                    fcntl.ioctl(file.fileno(), number, bytes(1024))
                    raise AssertionError(hex(number))
                except OSError as error:
                    assert error.errno == errno.ENOTTY, error
        mount.umount()


def what_was_told_stays():
    """Also when the daemon is killed right after it was told."""
    with Scratch() as scratch:
        mount = HeldMount(scratch)
        committed, failed = make(mount, "committed", 3 * MIB), make(mount, "failed")
        ticket = defer(committed)
        result_of(ticket, mount)
        mount.kill()
        mount.mount()
        assert os.path.getsize(committed + "/model") == 3 * MIB and not os.path.exists(committed + ".tmp")
        assert "no ticket" in result_of(ticket, mount, expect=NONE).stderr
        mount.hold()
        ticket = defer(failed)
        os.makedirs(failed + "/below")
        mount.release()
        assert "Directory not empty" in result_of(ticket, mount, expect=FAILED).stderr
        mount.kill()
        mount.mount()
        assert "no ticket" in result_of(ticket, mount, expect=NONE).stderr
        assert os.listdir(failed) == ["below"] and os.listdir(failed + ".tmp") == ["model"]
        mount.umount()


def groups_count():
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/shared")
        os.chown(mount.path + "/shared", 0, GROUP)
        os.chmod(mount.path + "/shared", 0o770)
        path = make(mount, "shared/step-1", owner=USER)
        words = [program("cairnfs"), "commit", "--async", path + ".tmp", path]
        outside = subprocess.run(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *words],
                                 capture_output=True, text=True, timeout=120, check=False)
        assert outside.returncode != 0 and "Permission denied" in outside.stderr, outside
        member = ["setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={GROUP}"]
        taken = subprocess.run([*member, *words], capture_output=True, text=True, timeout=120, check=False)
        assert taken.returncode == 0, taken
        told = subprocess.run([*member, program("cairnfs"), "commit", "--wait", taken.stdout.strip(), mount.path],
                              capture_output=True, text=True, timeout=120, check=False)
        assert told.returncode == 0 and told.stdout == path + "\n", told
        # Who may no longer list all directories above is told the last name alone.
        path = make(mount, "shared/step-2", owner=USER)
        taken = subprocess.run([*member, program("cairnfs"), "commit", "--async", path + ".tmp", path],
                               capture_output=True, text=True, timeout=120, check=False)
        assert taken.returncode == 0, taken
        wait_until(lambda: os.path.exists(path))
        os.chmod(mount.path + "/shared", 0o700)
        told = as_user(USER, "commit", "--wait", taken.stdout.strip(), mount.path)
        assert told.returncode == 0 and told.stdout == "step-2\n", told
        mount.umount()


def the_process_renames_no_other_directory():
    """What the daemon starts, called by hand: what is not where it is said to be stays."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        path, root = make(mount, "step-1"), os.stat(mount.path).st_ino
        inode = os.stat(path + ".tmp").st_ino

        def apply(where=mount.path, what=inode, parent=root, to_parent=root):
            done = subprocess.run([program("cairnfs"), "apply-commit", "--mount", where, "--inode", str(what),
                                   "--from-inode", str(parent), "--to-inode", str(to_parent), "--user", "0", "--group",
                                   "0", "--", ".", "step-1.tmp", ".", "step-1"], capture_output=True, text=True,
                                  timeout=60, check=False)
            return errno.errorcode.get(int(done.stdout.split()[0]))
        assert apply(what=inode + 1) == "ESTALE"
        assert apply(parent=inode) == "ESTALE"
        assert apply(to_parent=inode) == "ESTALE"
        assert apply(where=scratch.path) == "ENOTCONN"
        call("seal", path + ".tmp")
        assert apply() == "EPERM" and os.path.exists(path + ".tmp")  # EROFS passes only with a mount that is read-only
        call("unseal", path + ".tmp")
        assert apply() is None and os.listdir(path) == ["model"]
        mount.umount()


def kills_at_each_step():
    """The directory has one of its names, with the final one it is whole, and a ticket that is known gives the result
    that is true."""
    with Scratch() as scratch:
        mount = HeldMount(scratch)
        for failpoint in FAILPOINTS:
            mount.umount()
            os.environ["CAIRNFS_FAILPOINTS"] = failpoint + "=kill"
            try:
                mount.mount()
            finally:
                del os.environ["CAIRNFS_FAILPOINTS"]
            path = f"{mount.path}/{failpoint}"
            os.mkdir(path + ".tmp")
            directory = os.open(mount.path, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
            content = os.urandom(3 * MIB)
            with open(path + ".tmp/model", "wb") as file:
                file.write(content)
            pid = mount.pid
            mount.hold()
            asked = subprocess.run([program("cairnfs"), "commit", "--async", path + ".tmp", path], capture_output=True,
                                   text=True, timeout=120, check=False)
            mount.release()
            await_end(pid)
            mount.kill()
            mount.mount()
            ticket = asked.stdout.strip()
            is_known = failpoint != FAILPOINTS[0]  # there the answer is lost
            assert bool(ticket) == is_known, (failpoint, asked)
            if is_known:  # and durable, as all was that it needs
                assert result_of(ticket, mount).stdout == path + "\n", failpoint
            names = [name for name in (path, path + ".tmp") if os.path.exists(name)]
            assert len(names) == 1, (failpoint, names)
            assert not is_known or names == [path], (failpoint, names)
            if names == [path]:
                with open(path + "/model", "rb") as file:
                    assert file.read() == content, failpoint
        mount.check()
        mount.umount()


if __name__ == "__main__":
    sys.exit(run_cases([a_ticket_gives_its_result_once, wrong_input_is_told, one_is_under_way_for_each_directory,
                        what_happens_meanwhile_counts, strangers_have_their_own_rights, it_goes_on_after_a_start,
                        programs_call_ioctls, what_was_told_stays, groups_count,
                        the_process_renames_no_other_directory, kills_at_each_step]))
