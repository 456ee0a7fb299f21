"""A run whose histories have, beside what stays and what goes (run_history.py), all else that is done with checkpoints:
deferred commits, the trash, seals, quotas, a file that appears whole, `cairnfs latest` and `cairnfs watch`."""

import contextlib
import errno
import json
import os
import subprocess

from cluster import wait_until
from cluster_world import error_of, read
from cairnfs_mount import program
from retention_model import Checkpoint
from run_history import Run

PATTERN = r"step-(\d+)"
NONE_FOUND = 8  # the exit code
TICKETS_MAX = 60  # of a user 64 results are kept
WHOLE_FILE = "latest.json"  # of which the root of the filesystem has the pattern, in user.cairnfs.atomic_files


class FullRun(Run):
    """under_way: the checkpoints whose commit was deferred, by name, with their tickets. whole: what the file that
    appears whole holds; rewriting: the host on which it is being rewritten, the file and what it will hold."""

    tickets = 0  # of all runs, whose results wait to be asked for

    def __init__(self, world, hosts, name):
        self.under_way, self.whole, self.rewriting = {}, None, None
        self.watched, self.watcher, self.has_quota = None, None, False
        self.gone_before_quota = set()  # what may have been removed before it was set
        super().__init__(world, hosts, name)

    def may_be_there(self):
        waiting = [one for one, _ in self.under_way.values()]
        return [*super().may_be_there(), list(self.checkpoints.values()) + waiting]

    def note(self):
        super().note()
        if self.policy:  # what it lets go of these, nobody knows before they are committed
            self.may_be_gone |= set(self.under_way)

    def check(self):
        super().check()
        self.check_whole_file()

    # Deferred commits.

    def begin_commit(self):
        if FullRun.tickets >= TICKETS_MAX:
            return
        FullRun.tickets += 1
        host, saved, name = self.write_next()
        step = int(name.removeprefix("step-"))
        self.under_way[name] = Checkpoint(step, float("inf"), self.metrics[name]), None
        self.note()  # once it is there, others may go
        ticket = host.cairnfs("commit", "--async", "--under-way", "64", saved, self.path(name, host)).strip()
        self.under_way[name] = self.under_way[name][0], ticket

    def end_commit(self):
        if (name := self.pick(self.under_way)) is None:
            return
        host, (_, ticket) = self.any_host(), self.under_way[name]
        told = host.cairnfs("commit", "--wait", ticket, host.mount_point, timeout=400).strip()
        assert told == self.path(name, host), (told, str(self))
        del self.under_way[name]
        FullRun.tickets -= 1
        with contextlib.suppress(OSError) if name in self.may_be_gone else contextlib.nullcontext():
            self.note_commit(name)

    # The trash.

    def removed_directories(self, host):
        """Of this run, as entries of the trash."""
        entries = json.loads(host.cairnfs("trash", "ls", host.mount_point, "--json"))["entries"]
        return [entry for entry in entries
                if os.path.dirname(entry["path"]) == self.name and entry["type"] == "directory"]

    def restore(self):
        host = self.any_host()
        ids = {os.path.basename(entry["path"]): entry["id"] for entry in self.removed_directories(host)}
        name = self.pick(set(ids) & set(self.contents))
        if name is None:
            return
        assert name in self.may_be_gone, f"{self.name}/{name} is in the trash: {self}"
        try:
            host.cairnfs("trash", "restore", str(ids[name]), "--mount", host.mount_point)
        except AssertionError as refused:
            # It may have been removed before there was a quota.
            if self.has_quota and name in self.gone_before_quota and "under another quota" in str(refused):
                return
            # What stayed inside has the name.
            assert self.keep_inside and os.path.isdir(self.path(name)), f"{name} cannot be restored: {self}"
            return
        self.may_be_gone.discard(name)  # it is held
        self.note_commit(name)
        one = self.checkpoints[name]
        one.held = True
        one.open_on = {opened_on for opened, opened_on in self.open_files if opened == name}
        assert read(self.path(name) + "/model") == self.contents[name], f"{self.name}/{name} came back otherwise"

    # Seals.

    def seal(self):
        host = self.any_host()
        if (name := self.pick()) is None:
            return
        try:
            host.cairnfs("seal", self.path(name, host))
        except AssertionError:
            # A host that is cut off cannot say that nobody writes there.
            assert name in self.may_be_gone or self.cut_off, f"{self.name}/{name} cannot be sealed: {self}"
            return
        if name in self.may_be_gone and not self.is_there(name):  # it was what stayed inside
            host.cairnfs("unseal", self.path(name, host))
            return
        self.checkpoints[name].sealed = True
        self.may_be_gone.discard(name)
        for change in os.unlink, lambda path: os.truncate(path, 0):
            assert error_of(change, self.path(name) + "/model") == errno.EROFS, f"{self.name}/{name} is not sealed"

    def unseal(self, name=None):
        sealed = {name for name, one in self.checkpoints.items() if one.sealed}
        if (name := name or self.pick(sealed)) is None:
            return
        host = self.any_host()
        host.cairnfs("unseal", self.path(name, host))
        self.checkpoints[name].sealed = False

    # Quotas.

    def set_quota(self):
        """So large that nothing is refused; what counts is compared in the end."""
        # All hosts have to hear of it, and what is being rewritten counts only once that is done again.
        if self.cut_off or self.rewriting:
            return
        host = self.any_host()
        host.cairnfs("quota", "set", self.path("", host), "--logical", "1T")
        if not self.has_quota:
            self.gone_before_quota = set(self.may_be_gone)
        self.has_quota = True

    def empty_trash(self):
        """Of what this run's policy removed: that counts until then."""
        host = self.any_host()
        for entry in self.removed_directories(host):
            host.cairnfs("trash", "empty", host.mount_point, "--id", str(entry["id"]))

    def check_quota(self):
        def used():
            host = self.any_host()
            told = json.loads(host.cairnfs("quota", "show", self.path("", host), "--json"))
            return told["logical_used_bytes"]

        def there():
            sizes = {}  # by inode; no file has holes
            for folder, _, files in os.walk(self.path("")):
                for name in files:
                    info = os.lstat(f"{folder}/{name}")
                    sizes[info.st_ino] = info.st_size
            return sum(sizes.values())

        def is_what_is_there():
            self.empty_trash()  # the policy may go on removing
            return used() == there()
        wait_until(is_what_is_there, seconds=60, what=f"what counts is what is there: {self}")

    # What is found, and what is told.

    def surely_there(self):
        return {name for name, one in self.checkpoints.items() if name not in self.may_be_gone and not one.open_on}

    def find_latest(self):
        host, sure = self.any_host(), self.surely_there()
        command = host.inside(program("cairnfs"), "latest", self.path("", host), "--match", PATTERN, "--json")
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode == NONE_FOUND:
            assert not sure, f"{self.name} has no latest checkpoint: {done.stderr} {self}"
            return
        assert done.returncode == 0, (done, str(self))
        found = json.loads(done.stdout)
        name = os.path.basename(found["path"])
        assert name in self.checkpoints or name in self.under_way, (found, str(self))
        newest = max((self.checkpoints[one].step for one in sure), default=0)
        assert found["step"] >= newest, f"the latest of {self.name} is {name}: {self}"

    def watch(self, host, output):
        """From now on a process on the host tells of commits, to the file `output`."""
        self.watched = output
        with open(output, "wb") as file:
            self.watcher = host.start(program("cairnfs"), "watch", self.path("", host), "--match", PATTERN, "--since", "0",
                                      "--json", stdout=file, stderr=subprocess.DEVNULL)

    def check_watched(self):
        """Each that is there was told once, in the order of the commits."""
        def told():
            return [json.loads(line) for line in read(self.watched).splitlines(keepends=True) if line.endswith(b"\n")]

        def all_were_told():
            return {name for name in self.checkpoints if self.is_there(name)} <= \
                   {os.path.basename(one["path"]) for one in told()}
        wait_until(all_were_told, seconds=60, what=f"all of {self.name} are told of: {self}")
        self.watcher.terminate()
        self.watcher.wait()
        revisions = [one["revision"] for one in told()]
        assert revisions == sorted(set(revisions)), f"{self.name} was watched: {revisions}"

    # A file that appears whole.

    def begin_rewrite(self):
        if self.rewriting:
            return
        host = self.any_host()
        content = json.dumps({"run": self.name, "text": self.random.randbytes(3000).hex()}).encode()
        file = open(self.path(WHOLE_FILE, host), "wb", buffering=0)
        file.write(content[:len(content) // 2])
        self.rewriting = host.name, file, content

    def end_rewrite(self, may_fail=False):
        """A host that is cut off lets a close wait, and this thread would have to end that."""
        if not self.rewriting or self.rewriting[0] in self.cut_off:
            return
        _, file, content = self.rewriting
        self.rewriting = None
        try:
            file.write(content[len(content) // 2:])
        except OSError:
            assert may_fail, str(self)
        else:
            try:
                file.close()
                self.whole = content
            except OSError:
                assert may_fail, str(self)
            return
        with contextlib.suppress(OSError):
            file.close()

    def check_whole_file(self):
        """Hosts other than the writer's find what was whole last."""
        hidden_from = self.rewriting[0] if self.rewriting else None
        host = self.random.choice([one for one in self.hosts if one.name not in self.cut_off | {hidden_from}])
        try:
            found = read(self.path(WHOLE_FILE, host))
        except OSError as error:
            assert error.errno == errno.ENOENT, error
            found = None
        assert found == self.whole, f"{host.name} finds {found} in place of {self.whole}"

    def lose(self, host):
        super().lose(host)
        if self.rewriting and self.rewriting[0] == host.name:
            self.end_rewrite(may_fail=True)

    def settle(self):
        while self.under_way:
            self.end_commit()
            self.note()
        self.end_rewrite()
        super().settle()

    def end(self):
        super().end()
        self.find_latest()
        self.check_whole_file()
        if self.watched:
            self.check_watched()
        if self.has_quota:
            self.check_quota()
        for name, one in self.checkpoints.items():
            if one.sealed:
                self.unseal(name)

    OPS = (*Run.OPS, begin_commit, begin_commit, end_commit, restore, restore, seal, unseal, set_quota, find_latest,
           begin_rewrite, begin_rewrite, end_rewrite)
