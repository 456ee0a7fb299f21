"""One run on several hosts as a random history makes it, and what is known of it: what had to stay, and what is to go.

Saves from any host, policies that change, pins, holds, open files, metrics, abandoned directories, `retain --now`, while
the daemons apply the policies by themselves. tests/support/retention_model.py says what had to stay.
"""

import contextlib
import json
import os
import shutil
import subprocess

from cluster import wait_until
from cluster_world import read, write
from retention_model import Checkpoint, Policy, may_go

KEPT_INSIDE = "train_ds*"
METRICS = ("loss", "score")
GOING = ".cairnfs-going-"


class Run:
    """One run, and what is known of it. may_be_gone: names that something let go at some time since."""

    def __init__(self, world, hosts, name):
        self.hosts, self.name, self.random = hosts, name, world.random
        self.cut_off = set()  # names of hosts whose open files may not be seen
        self.policy, self.policy_is_set = None, False
        self.keep_inside = self.random.choice(("", "", KEPT_INSIDE))
        self.checkpoints, self.may_be_gone = {}, set()
        self.contents, self.metrics = {}, {}  # of each name that was ever saved
        self.open_files, self.temporaries = {}, {}  # (name, host) -> file; name -> whether it may go
        self.next_step = self.random.randrange(1, 20)
        os.mkdir(self.any_host().path(name))
        os.chown(self.any_host().path(name), self.owner, self.owner)
        for _ in range(4):
            self.save()

    @property
    def owner(self):
        return 2000 + int(self.name.removeprefix("run-"))

    def any_host(self):
        return self.random.choice([host for host in self.hosts if host.name not in self.cut_off])

    def path(self, name, host=None):
        return (host or self.any_host()).path(self.name, name)

    def pick(self, among=None):
        return self.random.choice(sorted(self.checkpoints if among is None else among) or [None])

    def may_be_there(self):
        """The checkpoints that the daemons may find: a list for each case."""
        return [list(self.checkpoints.values())]

    def note(self):
        """After each change: what the policy lets go now, whichever open files it sees."""
        now = float("inf") if self.policy and self.policy.keep_seconds < 60 else 0
        for checkpoints in self.may_be_there():
            for unseen in (set(), self.cut_off):
                def sees_open(one, unseen=unseen):
                    return bool(one.open_on - unseen)
                gone = may_go(self.policy, checkpoints, now, sees_open)
                self.may_be_gone |= {f"step-{one.step}" for one in gone}
        if self.policy and 0 < self.policy.abandoned_seconds < 60:
            self.temporaries = dict.fromkeys(self.temporaries, True)

    def is_there(self, name, host=None):
        return os.path.exists(self.path(name, host) + "/model")

    def check(self):
        """Whatever had to stay is there."""
        for name, checkpoint in self.checkpoints.items():
            if name in self.may_be_gone or self.is_there(name):
                continue
            # One that was opened late gets its name back.
            assert checkpoint.open_on, f"{self.name}/{name} is gone: {self}"
            wait_until(lambda name=name: self.is_there(name), what=f"{self.name}/{name} has its name back")
        for name, may_be_gone in self.temporaries.items():
            assert may_be_gone or os.path.exists(self.path(name)), f"{self.name}/{name} is gone: {self}"

    def __str__(self):
        return f"{self.policy}, inside {self.keep_inside!r}, {self.checkpoints}, may be gone {self.may_be_gone}"

    # What may happen to it. Each ends with what is known of it up to date.

    def write_next(self):
        """Writes the next checkpoint under a name that is none: the host, that name, and its own."""
        goes_back = self.random.random() < 0.15 and self.next_step > 3
        step = self.random.randrange(1, self.next_step) if goes_back else self.next_step
        if f"step-{step}" in self.contents:
            step = self.next_step
        self.next_step = max(self.next_step, step + self.random.randrange(1, 4))
        host, name = self.any_host(), f"step-{step}"
        saved = self.path(name, host) + ".saving"
        os.mkdir(saved)
        content = self.random.randbytes(self.random.randrange(1, 100_000))
        write(saved + "/model", content)
        if self.keep_inside and self.random.random() < 0.5:
            write(saved + "/train_ds-0", b"kept")
        metrics = {metric: self.random.randrange(10) for metric in METRICS if self.random.random() < 0.7}
        write(saved + "/metrics.json", json.dumps(metrics).encode())
        for path in (saved, *(f"{saved}/{file}" for file in os.listdir(saved))):
            os.chown(path, self.owner, self.owner)
        self.contents[name], self.metrics[name] = content, metrics
        return host, saved, name

    def note_commit(self, name):
        """That it is there, as its record says."""
        committed_at = json.loads(os.getxattr(self.path(name), "user.cairnfs.commit"))["committed_at"]
        self.checkpoints[name] = Checkpoint(int(name.removeprefix("step-")), committed_at, self.metrics[name])

    def save(self):
        host, saved, name = self.write_next()
        os.rename(saved, self.path(name, host))
        self.note_commit(name)

    def change(self, name, how):
        """Whether what was tried on a checkpoint was done: it may have gone by then, if something has let it go."""
        try:
            how(self.path(name))
            return True
        except OSError:
            if name not in self.may_be_gone:
                raise
            return False

    def pin(self):
        if (name := self.pick()) and self.change(name, lambda path: os.setxattr(path, "user.cairnfs.pinned", b"1")):
            self.checkpoints[name].pinned = True
            self.may_be_gone.discard(name)

    def hold(self):
        host = self.any_host()
        if (name := self.pick()) is None:
            return
        try:
            host.cairnfs("hold", self.path(name, host), "--for", "3h")
        except AssertionError:
            assert name in self.may_be_gone, f"{self.name}/{name} cannot be held: {self}"
            return
        self.checkpoints[name].held = True
        self.may_be_gone.discard(name)

    def let_go(self):
        """Ends a pin, a hold or the use of a file."""
        kept = [name for name, one in self.checkpoints.items() if one.pinned or one.held or one.open_on]
        if (name := self.pick(kept)) is None:
            return
        one = self.checkpoints[name]
        if one.pinned:
            os.removexattr(self.path(name), "user.cairnfs.pinned")
        if one.held:
            host = self.any_host()
            host.cairnfs("hold", self.path(name, host), "--release")
        one.pinned = one.held = False
        self.close_files(lambda opened: opened == name)

    def open_file(self):
        host = self.any_host()
        if (name := self.pick()) is None or (name, host.name) in self.open_files:
            return
        try:
            file = open(self.path(name, host) + "/model", "rb")
        except FileNotFoundError:
            assert name in self.may_be_gone, f"{self.name}/{name} cannot be opened: {self}"
            return
        if not self.is_there(name, host):  # it was on its way out before
            file.close()
            return
        self.open_files[name, host.name] = file
        self.checkpoints[name].open_on.add(host.name)
        self.may_be_gone.discard(name)

    def close_files(self, of_name=lambda name: True, of_host=lambda host: True):
        for name, host in [key for key in self.open_files if of_name(key[0]) and of_host(key[1])]:
            with contextlib.suppress(OSError):
                self.open_files.pop((name, host)).close()
            if name in self.checkpoints:
                self.checkpoints[name].open_on.discard(host)

    def measure(self):
        metric, value = self.random.choice(METRICS), self.random.randrange(10)
        name = self.pick()
        attribute = f"user.cairnfs.metric.{metric}"
        if name and self.change(name, lambda path: os.setxattr(path, attribute, str(value).encode())):
            self.checkpoints[name].metrics[metric] = value

    def remove(self):
        """By hand: one that nothing else removes."""
        sealed = {name for name, one in self.checkpoints.items() if one.sealed}
        if (name := self.pick(set(self.checkpoints) - self.may_be_gone - sealed)) is None:
            return
        self.close_files(lambda opened: opened == name)
        shutil.rmtree(self.path(name))
        del self.checkpoints[name]

    def abandon(self):
        name = f"left-{len(self.temporaries)}.tmp"
        host = self.any_host()
        # The name may go as soon as it is there.
        self.temporaries[name] = False
        self.note()
        with contextlib.suppress(FileNotFoundError):
            os.mkdir(self.path(name, host))
            write(self.path(name, host) + "/part", b"part")
            for path in (self.path(name, host) + "/part", self.path(name, host)):
                os.chown(path, self.owner, self.owner)

    def set_policy(self):
        draw = self.random
        policy = Policy(keep_last=draw.choice((0, 1, 2)), keep_every=draw.choice((0, 0, 0, 3)),
                        keep_best=tuple((metric, draw.choice(("min", "max")), draw.choice((1, 2)))
                                        for metric in METRICS if draw.random() < 0.25),
                        keep_seconds=draw.choice((0, 0, 1, 1, 3600)), abandoned_seconds=draw.choice((0, 1, 3600)))
        if not (policy.keep_last or policy.keep_every or policy.keep_best or policy.keep_seconds):
            policy.keep_last = 2
        policy.keep_without_metric = bool(policy.keep_best) and draw.random() < 0.3
        # Until the command has returned, either may be applied.
        self.policy = policy
        self.note()
        host = self.any_host()
        host.cairnfs("retain", host.path(self.name), *policy.words(self.keep_inside))
        self.policy_is_set = True

    def end_policy(self):
        if self.policy_is_set:
            host = self.any_host()
            host.cairnfs("retain", host.path(self.name), "--off")
        self.policy, self.policy_is_set = None, False

    def apply_now(self):
        if self.policy_is_set:
            host = self.any_host()
            told = json.loads(host.cairnfs("retain", host.path(self.name), "--now", "--json"))
            for one in told["checkpoints"]:
                name = os.path.basename(one["path"])
                assert not one["removed"] or name in self.may_be_gone or self.temporaries.get(name), (one, str(self))

    OPS = (save, save, save, save, pin, hold, let_go, open_file, open_file, measure, remove, abandon, set_policy,
           set_policy, end_policy, apply_now)

    def go_on(self):
        self.random.choice(self.OPS)(self)
        self.note()
        self.check()

    # How it has to end.

    def lose(self, host):
        """Its daemon was killed, or it was cut off from the others: what was open there is closed."""
        self.close_files(of_host=lambda name: name == host.name)

    def settle(self):
        """From here on nothing changes but what the policy does."""
        if not self.policy_is_set:
            self.set_policy()
        self.close_files(lambda name: self.random.random() < 0.5)
        self.save()  # which the daemons are told of, other than that a file was closed
        self.note()

    def left_to_go(self):
        present = {name: one for name, one in self.checkpoints.items() if self.is_there(name)}
        now = max((one.time for one in present.values()), default=0) + 60
        return {f"step-{one.step}" for one in may_go(self.policy, list(present.values()), now)}

    def dry_run_agrees(self):
        """What it says goes is what has to: on a run that goes on by itself, in the end."""
        host = self.any_host()

        def agrees():
            before = self.left_to_go()
            told = json.loads(host.cairnfs("retain", host.path(self.name), "--dry-run", "--json"))
            goes = {os.path.basename(one["path"]) for one in told["checkpoints"] if one["goes"] and not one["temporary"]}
            return goes in (before, self.left_to_go())
        wait_until(agrees, seconds=180, what=f"--dry-run of {self.name} as of {self}")

    def why_not_over(self):
        host = self.any_host()
        told = host.cairnfs("retain", host.path(self.name), "--dry-run", "--json")
        return f"{self.left_to_go()} of {self.name} to go, of {os.listdir(self.path(''))}: {self}; the daemons: {told}"

    def end(self):
        def is_over():
            return not self.left_to_go() and not any(name.startswith(GOING) for name in os.listdir(self.path("")))
        wait_until(is_over, seconds=600, what=self.why_not_over, every=0.5)
        if 0 < self.policy.abandoned_seconds < 60:
            wait_until(lambda: not any(os.path.exists(self.path(name)) for name in self.temporaries), seconds=400,
                       what=f"what was abandoned in {self.name} to go", every=0.5)
        self.check()
        for name in self.checkpoints:
            if self.is_there(name):
                assert read(self.path(name) + "/model") == self.contents[name], f"{self.name}/{name}"
            else:
                with contextlib.suppress(FileNotFoundError):
                    left = os.listdir(self.path(name))
                    assert self.keep_inside and left == ["train_ds-0"], f"{left} is left of {self.name}/{name}: {self}"
        self.close_files()

    def vanish(self):
        """All of it is removed, whatever the policy still removes meanwhile."""
        self.end_policy()
        path = self.path("")
        wait_until(lambda: subprocess.run(["rm", "-rf", path], check=False).returncode == 0, what=f"{path} is removed")
