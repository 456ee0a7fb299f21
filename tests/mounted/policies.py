#!/usr/bin/env python3
"""Policies of retention that daemons apply by themselves: what goes, what stays, and what they cost others. Run as
root."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, program, run_cases
from cluster import wait_until
from runs import STEP, call, commit

OWNER = 1234


def make_owned_run(mount, name, count, extra=None):
    """A run of OWNER's with so many checkpoints; its path."""
    run = f"{mount.path}/{name}"
    os.mkdir(run)
    for number in range(1, count + 1):
        commit(mount, f"{name}/step-{number}", {"below/model": b"x" * number, **(extra or {})})
    subprocess.run(["chown", "-R", str(OWNER), run], check=True)
    return run


def last_time_of(run):
    return json.loads(call("retain", run, "--show", "--json").stdout)["applied"]


def steps_in(run):
    return sorted(name for name in os.listdir(run) if name.startswith("step-"))


def wait_for_steps(run, *numbers):
    wanted = sorted(f"step-{number}" for number in numbers)
    wait_until(lambda: steps_in(run) == wanted, seconds=240, what=f"{wanted}, not {steps_in(run)}")


def policies_are_applied_by_themselves():
    with Scratch() as scratch:
        mount = Mount(scratch)
        plain, held, opened, foreign = (make_owned_run(mount, name, 3) for name in ("plain", "held", "opened", "foreign"))
        # What its owner could not remove stays.
        os.chown(foreign + "/step-1/below", 0, 0)
        os.chown(foreign + "/step-2", 0, 0)
        call("hold", held + "/step-1", "--for", "25s")
        held_until = int(os.getxattr(held + "/step-1", "user.cairnfs.held_until"))
        with open(opened + "/step-2/below/model", "rb"):
            for run in (plain, held, opened, foreign):
                call("retain", run, "--keep-last", "1", "--match", STEP)
            wait_for_steps(plain, 3)
            wait_for_steps(opened, 2, 3)
            wait_until(lambda: last_time_of(foreign))
        assert "step-2" in steps_in(foreign) and "step-3" in steps_in(foreign), steps_in(foreign)
        assert os.path.exists(foreign + "/step-2/below/model")
        told = last_time_of(foreign)
        assert "Permission denied" in json.dumps(told), told
        wait_for_steps(held, 3)
        assert time.time() >= held_until
        wait_for_steps(opened, 3)
        shown = call("retain", plain, "--show").stdout
        assert "applied 20" in shown, shown
        refused = subprocess.run(["setpriv", "--reuid", "4321", "--clear-groups", "getfattr", "-n", "user.cairnfs.retained",
                                  plain], capture_output=True, text=True, check=False)
        assert "not permitted" in refused.stderr, refused
        # By a commit; and one line of the log for each.
        commit(mount, "plain/step-4", {"below/model": b"4"})
        subprocess.run(["chown", "-R", str(OWNER), plain + "/step-4"], check=True)
        wait_for_steps(plain, 4)
        for name in ("plain/step-1", "plain/step-2", "plain/step-3", "held/step-1", "opened/step-2"):
            line = f"retention removed '{name}' of uid {OWNER}"
            wait_until(lambda line=line: line in mount.log(), what=line)
            assert mount.log().count(line) == 1, mount.log()
        # Another mount goes on.
        mount.umount()
        mount = Mount(scratch)
        commit(mount, "plain/step-5", {"below/model": b"5"})
        subprocess.run(["chown", "-R", str(OWNER), plain + "/step-5"], check=True)
        wait_for_steps(plain, 5)
        mount.umount()


def removals_that_were_cut_short_are_taken_up():
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = make_owned_run(mount, "run", 4)
        letters = "abcdefghijklmnop"
        hidden = "".join(letters[byte >> 4] + letters[byte & 15] for byte in b"step-1")
        begun, not_begun = f"{run}/.cairnfs-going-{letters}", f"{run}/.cairnfs-going-{letters}-{hidden}"
        os.rename(run + "/step-2", begun)
        os.setxattr(begun, "user.cairnfs.removing", os.path.basename(begun).encode())
        os.rename(run + "/step-1", not_begun)
        call("pin", not_begun)
        try:
            os.rename(begun, run + "/step-2")
            raise AssertionError("what is half removed got its name back")
        except OSError as error:
            assert error.errno == errno.EBUSY, error
        call("retain", run, "--keep-last", "2", "--match", STEP)
        wait_for_steps(run, 1, 3, 4)
        wait_until(lambda: sorted(os.listdir(run)) == ["step-1", "step-3", "step-4"])
        call("unpin", run + "/step-1")
        wait_for_steps(run, 3, 4)
        mount.umount()


def removals_without_a_policy_are_taken_up():
    """As `retain --now` leaves them when it is killed, and the daemon with it."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        run, off, given = (make_owned_run(mount, name, 2) for name in ("run", "off", "given"))
        for directory in off, given:
            call("retain", directory, "--keep-last", "2")
        going = [begin_removal(directory) for directory in (run, off, given)]
        # The policy goes before anybody has gone on with what is left.
        call("retain", off, "--off")
        subprocess.run(["chown", "-R", str(OWNER + 1), given], check=True)
        assert call("retain", given, "--show", expect=8).stdout == ""
        # Of another owner: nobody has said that root is to touch it.
        foreign = f"{run}/.cairnfs-going-ponmlkjihgfedcba"
        os.mkdir(run + "/step-0")
        os.rename(run + "/step-0", foreign)
        os.setxattr(foreign, "user.cairnfs.removing", os.path.basename(foreign).encode())
        call("wait", mount.path)
        mount.kill()
        mount = Mount(scratch)
        wait_until(lambda: not any(os.path.exists(path) for path in going), what="they are removed")
        assert sorted(os.listdir(run)) == [os.path.basename(foreign), "step-2"], os.listdir(run)
        assert call("retain", run, "--show", expect=8).stdout == ""
        wait_until(lambda: f"then rm -r {os.path.basename(foreign)}" in mount.log(), what="what stays is told")
        mount.umount()


def begin_removal(run):
    """As one that was killed; the name that step-1 has then."""
    going = f"{run}/.cairnfs-going-abcdefghijklmnop"
    os.rename(run + "/step-1", going)
    os.setxattr(going, "user.cairnfs.removing", os.path.basename(going).encode())
    return going


def left_of(run, step):
    """Every path below a directory."""
    return sorted(os.path.relpath(os.path.join(directory, name), f"{run}/{step}")
                  for directory, subdirectories, names in os.walk(f"{run}/{step}") for name in subdirectories + names)


def what_stays_inside_stays():
    """By --now and by daemons; also when a removal was cut short, and the policy is another one by then."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = make_owned_run(mount, "run", 4, {"train_ds-0": b"0", "train_ds-1/part": b"1", "a/train_ds-2": b"2"})
        for path in ("train_ds-0", "train_ds-1"):
            subprocess.run(["rm", "-r", f"{run}/step-3/{path}"], check=True)
        rules = ("--keep-last", "2", "--match", STEP, "--keep-inside", "train_ds*", "--keep-inside", "opt[!0-9]")
        for wrong, words in (("a/b", "has a slash"), ("[a", "has a [ without a ]")):
            assert words in call("retain", run, *rules, "--keep-inside", wrong, expect=2).stderr
        tried = call("retain", run, "--dry-run", *rules).stdout
        assert "2 entries in it stay (keep-inside)" in tried and tried.count("goes ") == 2, tried
        done = json.loads(call("retain", run, "--now", "--json", *rules).stdout)
        assert done["policy"]["keep_inside"] == ["train_ds*", "opt[!0-9]"], done
        assert [(one["removed"], one["kept_inside"]) for one in done["checkpoints"]] == [
            (False, 0), (False, 0), (True, 2), (True, 2)], done
        kept = ["train_ds-0", "train_ds-1", "train_ds-1/part"]
        for step in ("step-1", "step-2"):
            assert left_of(run, step) == kept, left_of(run, step)
            assert os.stat(f"{run}/{step}").st_uid == OWNER
            try:
                raise AssertionError(os.getxattr(f"{run}/{step}", "user.cairnfs.commit"))
            except OSError as error:
                assert error.errno == errno.ENODATA, error
        # They are no checkpoints any more, for no command, by no pattern, and take nobody's place.
        assert call("ls", run).stdout.count("step-") == 2
        assert call("latest", run, "--match", STEP, "--before", "3", expect=8).stdout == ""
        again = json.loads(call("retain", run, "--now", "--json", *rules).stdout)
        assert [os.path.basename(one["path"]) for one in again["checkpoints"]] == ["step-4", "step-3"], again
        assert again["notes"] == [], again
        assert "was removed by retention" in call("pin", run + "/step-1", expect=1).stderr
        # Cut short, by a policy that is none any more: the mark says what stays.
        letters = "abcdefghijklmnop"
        going = f".cairnfs-going-{letters}-" + "".join(letters[byte >> 4] + letters[byte & 15] for byte in b"step-3")
        os.rename(run + "/step-3", f"{run}/{going}")
        os.setxattr(f"{run}/{going}", "user.cairnfs.removing", f"{going}/nothing/a*".encode())
        os.remove(f"{run}/{going}/below/model")
        commit(mount, "run/step-5", {"below/model": b"5", "rest": b""})
        subprocess.run(["chown", "-R", str(OWNER), run + "/step-5"], check=True)
        call("retain", run, "--keep-last", "1", "--match", STEP, "--keep-inside", "below")
        wait_until(lambda: left_of(run, "step-3") == ["a", "a/train_ds-2"])
        wait_until(lambda: left_of(run, "step-4") == ["below", "below/model"])
        wait_until(lambda: last_time_of(run)["stay_count"] == 1 and last_time_of(run)["next"] > time.time() + 1000)
        assert left_of(run, "step-1") == kept and "--keep-inside 'below'" in call("retain", run, "--show").stdout
        # Where nothing matches it goes as a whole; and who takes the mark away has a checkpoint as others are.
        os.removexattr(run + "/step-1", "user.cairnfs.removing")
        call("retain", run, "--now", "--keep-last", "1", "--match", STEP, "--keep-inside", "none")
        assert steps_in(run) == ["step-2", "step-3", "step-4", "step-5"]
        mount.umount()


def a_kill_loses_nothing_that_stays_inside():
    """Whoever goes on keeps it, by other rules too."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        os.mkdir(mount.path + "/run")
        run, kept = mount.path + "/run", ["train_ds-0", "train_ds-1", "train_ds-1/part"]
        files = {f"model-{number}": b"x" for number in range(60)}
        whole = sorted([*files, *kept])
        rules = ("--match", STEP, "--now")
        cut_short = 0
        for number in range(1, 13):
            for step in (number, number + 1):
                if not os.path.exists(f"{run}/step-{step}"):
                    commit(mount, f"run/step-{step}", {**files, "train_ds-0": b"0", "train_ds-1/part": b"1"})
            with subprocess.Popen([program("cairnfs"), "retain", run, "--keep-last", "1", "--keep-inside", "train_ds*", *rules],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                going = []
                while process.poll() is None and not going:
                    going = [name for name in os.listdir(run) if name.startswith(".cairnfs-going-")]
                # Later and later in it.
                while process.poll() is None and going and len(left_of(run, going[0])) > len(whole) - 5 * number:
                    pass
                process.kill()
            names = [name for name in os.listdir(run) if name.startswith(".cairnfs-going-")] or [f"step-{number}"]
            left = left_of(run, names[0])
            assert set(kept) <= set(left), left
            cut_short += 1 if len(kept) < len(left) < len(whole) else 0
            # Before it has begun, nobody but the one who is gone goes on, for ten seconds.
            call("retain", run, "--keep-last", "20", *rules)
            left = left_of(run, f"step-{number}") or left_of(run, names[0])
            assert left in (whole, kept), left
            if left == whole:
                with contextlib.suppress(FileNotFoundError):  # it has its name back already
                    os.rename(f"{run}/{names[0]}", f"{run}/step-{number}")
                call("retain", run, "--keep-last", "1", "--keep-inside", "train_ds*", *rules)
        assert all(left_of(run, f"step-{number}") == kept for number in range(1, 13))
        mount.umount()
        return f"{cut_short} were cut short"


def make_temporary(run, name, owner=OWNER):
    os.makedirs(f"{run}/{name}/below")
    with open(f"{run}/{name}/below/part", "wb") as file:
        file.write(b"part")
    subprocess.run(["chown", "-R", str(owner), f"{run}/{name}"], check=True)
    return f"{run}/{name}"


def what_was_abandoned_goes():
    """By --now as --dry-run says, and by daemons without a commit."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = make_owned_run(mount, "run", 2)
        for name in ("old.tmp-1", "open.tmp", "pinned.tmp", "held.tmp", "written.tmp", "step-9", "old.temp"):
            make_temporary(run, name)
        commit(mount, "run/committed.tmp", {"model": b""})
        subprocess.run(["chown", "-R", str(OWNER), run + "/committed.tmp"], check=True)
        os.symlink("old.tmp-1", run + "/link.tmp")
        open(run + "/file.tmp", "w", encoding="utf-8").close()
        call("pin", run + "/pinned.tmp")
        call("hold", run + "/held.tmp", "--for", "1h")
        made = os.stat(run + "/held.tmp/below").st_ctime
        wait_until(lambda: time.time() > made + 2)
        rules = ("--keep-last", "2", "--match", STEP, "--abandoned", "*.tmp*:2s", "--abandoned", "step-*:1s",
                 "--abandoned", "written*:1h")
        for wrong, words in (("*.tmp*", "PATTERN:TIME, as '*.tmp*:24h'"), ("*.tmp*:-1h", "is not a duration"),
                             ("*.tmp*:0s", "at least a second"), ("a/b:1h", "has a slash"), (":1h", "is empty")):
            assert words in call("retain", run, *rules, "--abandoned", wrong, expect=2).stderr, words
        with open(run + "/open.tmp/below/part", "rb"):
            with open(run + "/written.tmp/below/new", "w", encoding="utf-8") as file:
                file.write("new")
            tried, done = (json.loads(call("retain", run, how, "--json", *rules).stdout) for how in ("--dry-run", "--now"))
        fates = {os.path.basename(one["path"]): one for one in tried["checkpoints"]}
        temporaries = {name: one["reason"] for name, one in fates.items() if one["temporary"]}
        assert [name for name, one in fates.items() if one["goes"]] == ["old.tmp-1"], fates
        assert sorted(temporaries) == ["held.tmp", "old.tmp-1", "open.tmp", "pinned.tmp", "written.tmp"], temporaries
        for name, words in (("old.tmp-1", "nothing was written below it since"), ("open.tmp", "a process has a file"),
                            ("pinned.tmp", "it is pinned"), ("held.tmp", "it is held until"),
                            ("written.tmp", "something was written below it at")):
            assert words in temporaries[name], temporaries
        assert [os.path.basename(one["path"]) for one in done["checkpoints"] if one["removed"]] == ["old.tmp-1"], done
        assert sorted(os.listdir(run)) == ["committed.tmp", "file.tmp", "held.tmp", "link.tmp", "old.temp", "open.tmp",
                                           "pinned.tmp", "step-1", "step-2", "step-9", "written.tmp"]
        # The look that follows comes when it can go, and removes it with the rights of the owner alone.
        foreign = make_temporary(run, "foreign.tmp", OWNER + 1)
        call("unpin", run + "/pinned.tmp")
        call("retain", run, "--keep-last", "2", "--match", STEP, "--abandoned", "*.tmp*:15s")
        due = max(os.stat(path).st_ctime for path in (run + "/pinned.tmp/below", run + "/written.tmp/below")) + 15
        left = ["committed.tmp", "file.tmp", "foreign.tmp", "held.tmp", "link.tmp", "old.temp", "step-1", "step-2", "step-9"]
        # One that goes has another name for a moment.
        wait_until(lambda: sorted(os.listdir(run)) == left, seconds=120, what=str(os.listdir(run)))
        assert time.time() >= due
        assert os.listdir(foreign + "/below") == ["part"]
        assert "--abandoned '*.tmp*:15s'" in call("retain", run, "--show").stdout
        # Without a pattern what was not committed is no checkpoint, whatever its name.
        make_temporary(run, "step-7.tmp")
        made = os.stat(run + "/step-7.tmp/below/part").st_ctime
        wait_until(lambda: time.time() > made + 1)
        assert "removed  step-7.tmp" in call("retain", run, "--now", "--keep-last", "2", "--abandoned", "*.tmp:1s").stdout
        mount.umount()


def a_policy_costs_others_little():
    """A user's files that are no files, and what takes long, are in nobody's way; nor is an umount."""
    with Scratch() as scratch:
        mount = Mount(scratch)
        run = make_owned_run(mount, "run", 3)
        other = make_owned_run(mount, "other", 3)
        for step in ("step-1", "step-2"):
            os.mkfifo(f"{run}/{step}/metrics.json")
        os.symlink("/etc/shadow", run + "/step-3/metrics.json")
        call("retain", run, "--keep-best", "loss:min:1", "--keep-last", "1", "--match", STEP)
        wait_until(lambda: last_time_of(run))
        assert steps_in(run) == ["step-1", "step-2", "step-3"]
        many = make_owned_run(mount, "many", 2)
        for number in range(20000):
            open(f"{many}/step-1/below/{number}", "w", encoding="utf-8").close()
        subprocess.run(["chown", "-R", str(OWNER), many], check=True)
        call("retain", many, "--keep-last", "1", "--match", STEP)
        wait_until(lambda: not os.path.exists(many + "/step-1"))
        subprocess.run(["chown", "-R", str(OWNER + 1), other], check=True)
        call("retain", other, "--keep-last", "1", "--match", STEP)
        wait_for_steps(other, 3)
        mount.umount()
        # What was left goes on.
        mount = Mount(scratch)
        wait_until(lambda: os.listdir(many) == ["step-2"], seconds=240)
        mount.umount()


if __name__ == "__main__":
    sys.exit(run_cases([policies_are_applied_by_themselves, removals_that_were_cut_short_are_taken_up,
                        removals_without_a_policy_are_taken_up, what_stays_inside_stays,
                        a_kill_loses_nothing_that_stays_inside, what_was_abandoned_goes,
                        a_policy_costs_others_little]))
