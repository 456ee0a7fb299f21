#!/usr/bin/env python3
"""Several hosts, one filesystem, while hosts die, pause and lose sight of each other.

    faults.py [--seed N] [--rounds N] [--hosts N] [--copies N] [--store node|etcd|both] [--faults NAME,...]
              [--planted FAILPOINT]
    faults.py --self-test [--seed N]

Each round: clients on every host carry out traced calls, save checkpoints, and look at what others saved; a fault
strikes, lasts, and is healed; all nodes are up again and all copies there. Then new clients go on with the traced calls,
and everything is judged: the history (check_history), the checkpoints on every host (checkpoints.py), a host that was
paused or cut off past its lease and goes on writing (zombie.py), the time that each call took. README.md says more.

--planted arms a failpoint that leaves a safeguard out, and the test fails unless a history is found that is not
linearizable; other complaints do not count. --self-test runs on a plain directory (plain_hosts.py): nothing may be
found, and then each kind of damage must be.
"""

import argparse
import concurrent.futures
import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import recorder  # first: it says where the support is found

import checkpoints
import nemesis
import plain_hosts
from burst import Burst
from cairnfs_mount import Scratch, program, run
from cluster import Cluster, Host
from zombie import Zombie

CHECKPOINTS_KEPT = 24
# Deleted data stays on the nodes: in a long run this disk would be full in rounds that are about other faults.
SMALL_DISK_MIB, SMALL_DISK_MIB_PER_ROUND = 400, 8
KEPT = os.environ.get("CAIRNFS_KEEP_FAILURES", "/var/tmp")
# Locks are freed at most so long after their client or their host's lease has ended. A plain directory needs less.
UNLOCK_S, PLAIN_UNLOCK_S = 4, 1
# What may be answered outside of the fault: the call waits for a host that is away, or only that one has room.
MAY_BE_TOLD = {errno.ETIMEDOUT, errno.ENOSPC}
# What a host that lost its session says to whom it promised something before.
TOLD_OF_A_LOSS = {errno.ESTALE, errno.EIO}
# More sessions that end without a fault are not for want of a processor.
UNLUCKY_MAX = 6
# Safeguards whose absence the search for an order must find, and the faults in whose rounds it shows.
PLANTED = {
    "meta.skip_delegation_recall": ["Nothing"],
    "fs.skip_close_wait": ["Nothing"],
}


class Violation(Exception):
    """A promise was broken; the text says which."""


class NotLinearizable(Violation):
    """Among what is wrong is a history that no order explains."""


def at_once(jobs):
    """Runs each on a thread of its own; raises what one of them raised."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


def is_traced_rename(line):
    return line["op"] == "rename" and "root" in line


def tells_of_a_loss(answer):
    return any(os.strerror(error) in answer for error in TOLD_OF_A_LOSS)


def remove(host, saved):
    if saved:
        # As a process of its own, which can be given up.
        run("rm", "-rf", *(host.path(one.name + suffix) for one in saved for suffix in ("", ".tmp")), timeout=120)


class Round:
    """One round on the cluster, from clean to clean."""

    def __init__(self, test, number, kind):
        self.test, self.cluster, self.options = test, test.cluster, test.options
        self.number = number
        self.rng = random.Random(f"{self.options.seed} {number}")
        self.fault = kind(self.cluster, self.rng, test.environment)
        self.name = f"round-{self.options.seed}-{number}"
        self.problems = []
        self.everybody = []
        self.stop = threading.Event()
        self.struck_ns = self.healthy_ns = 0
        self.lines = []
        self.is_refused = False  # the history of this round
        self.committed = 0  # checkpoints of this round
        self.began_ns = time.monotonic_ns()
        self.sessions_lost = self.count_sessions_lost()  # before it

    def clients(self, what, hosts=None):
        made = []
        for host in hosts or self.cluster.hosts:
            client = recorder.Client(f"{host.name}.{what}", host.mount_point, limit_s=self.options.limit_s,
                                     mounted=not self.test.is_plain, plain=self.test.is_plain)
            client.host = host
            made.append(client)
        self.everybody += made
        return made

    def run(self):
        try:
            self._run()
        finally:
            self.stop.set()
            for client in self.everybody:
                client.close()
        for client in self.everybody:
            self.problems += [f"a call did not end within {self.options.limit_s} s: {recorder.describe(hang)}"
                              for hang in client.hangs]

    def _run(self):
        tracers, savers, watchers = (self.clients(what) for what in ("trace", "save", "watch"))
        tracers[0].must("mkdir", path=self.name, mode=0o755)
        tracers[0].must("mkdir", path=self.name + "/trace", mode=0o755)
        traced = recorder.Round(self.name + "/trace", self.options.seed, tracers, stop_at_unknown=True)
        saved = recorder.Round(self.name, self.options.seed, savers)
        watched = recorder.Round(self.name, self.options.seed + 1, watchers)
        traced.start(self.work(0.3))
        saved.start(checkpoints.saver_work(self.test.ledger, self.stop, 0.4))
        watched.start(checkpoints.watcher_work(self.test.ledger, self.stop, self.problems))
        collector = threading.Thread(target=self.collect)
        collector.start()
        nemesis.sleep(self.rng.uniform(0.3, 2))
        self.strike_and_heal()
        self.stop.set()
        for part in (saved, watched, traced):
            part.finish()
        collector.join()
        self.cluster.wait_for_copies(seconds=180)
        self.healthy_ns = time.monotonic_ns()
        if isinstance(self.fault, nemesis.Nothing):
            self.complain("without a fault", traced.lines, self.sessions_lost)
        self.judge_others(tracers + savers, watchers)
        self.go_on(traced, tracers)
        self.judge_checkpoints()
        self.problems += self.test.check_nodes()

    def collect(self):
        """Chunks are collected all the time, as far as the fault lets them; what is saved or kept must not go."""
        rng = random.Random(f"{self.options.seed} {self.number} collect")
        while not self.test.is_plain and not self.stop.wait(rng.uniform(0.2, 2)):
            host = rng.choice(self.cluster.hosts)
            asked = subprocess.Popen(host.inside(program("cairnfs"), "gc", "--data", host.data),
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while asked.poll() is None and not self.stop.wait(0.1):
                pass
            if asked.poll() is None:
                asked.terminate()
            self.test.collections += asked.wait() == 0

    def count_sessions_lost(self):
        return {host: host.sessions_lost() for host in self.cluster.hosts}

    def unlucky(self, lost_before):
        """Names of hosts that lost a session since, as one may without a fault when the machine is busy."""
        return {host.name for host in self.cluster.hosts if host.sessions_lost() != lost_before[host]}

    def complain(self, when, lines, lost_before):
        """Of calls that did not say whether they took effect, unless that is how a host tells of a lost session."""
        names = self.unlucky(lost_before)
        if names:
            print(f"     {when} {' '.join(sorted(names))} lost a session", flush=True)
            self.test.unlucky += len(names)
            if self.test.unlucky > UNLUCKY_MAX:
                self.problems.append(f"{when}: hosts lost {self.test.unlucky} sessions so far without a fault")
        # A directory with lost bytes of a host that lost its session is not renamed (docs/contract.md, item 19).
        may_have_lost = bool(self.fault.ends_sessions or self.unlucky(self.sessions_lost))
        self.problems += [f"{when}: {recorder.describe(line)}" for line in recorder.unknown_outcomes(lines)
                          if (line["client"].split(".")[0] not in names or line.get("error") not in TOLD_OF_A_LOSS)
                          and not (may_have_lost and is_traced_rename(line) and line.get("error") == errno.EIO)]

    def work(self, pause_s):
        """Names, locks, and a directory that is read much take turns."""
        pause_s = 0.0 if self.test.is_plain else pause_s
        works = [recorder.tree_work(9, pause_s=pause_s), recorder.lock_work(9, pause_s=pause_s), recorder.reading_work(40)]
        return works[self.number % len(works)]

    def is_about_locks(self):
        return self.number % 3 == 1

    def strike_and_heal(self):
        zombie = burst = None
        if self.fault.fences and (not self.test.is_plain or self.cluster.damage == "no_fencing"):
            zombie = Zombie(self.clients("zombie", [self.fault.victim])[0], self.name)
            burst = Burst(self.clients("burst", [self.fault.victim] * 6), self.name + "/burst")
            nemesis.sleep(1)
        self.struck_ns = time.monotonic_ns()
        self.fault.strike()
        self.fault.last()
        if zombie:
            other = self.rng.choice([host for host in self.cluster.hosts if host is not self.fault.victim])
            heir = self.clients("heir", [other])[0]
            zombie.overwrite(heir)
            burst.look(heir)
        self.fault.heal()
        if zombie:
            zombie.go_on()
        self.cluster.wait_for_states({host.name: "up" for host in self.cluster.hosts}, seconds=120)
        if zombie:
            burst.stop()
            self.problems += zombie.judge(self.clients("look")) + burst.judge(heir)
        if self.test.is_plain and self.cluster.damage == "hang":
            self.clients("late")[0].call("verify", path=self.cluster.hang(), bytes=0, seed=0)

    def judge_others(self, writers, readers):
        """Hosts that the fault does not strike serve on: no call fails there (docs/contract.md, items 16 and 17).

        But a directory with lost bytes of a host that died is not renamed (item 19); savers have no such. And a host
        that lost its session all the same, since the machine is busy, tells those who write (item 18)."""
        others = [host for host in self.cluster.hosts if host not in self.fault.struck]
        names = self.unlucky(self.sessions_lost)
        unlucky = [host for host in others if host.name in names]
        if unlucky:
            print(f"     outside the fault {' '.join(host.name for host in unlucky)} lost a session", flush=True)
        for client in writers + readers:
            if client.host not in others or (client.host in unlucky and client in writers):
                continue
            self.problems += [f"on a host outside the fault: {recorder.describe(line)}" for line in client.failed
                              if line.get("error") not in MAY_BE_TOLD and not is_traced_rename(line)]

    def go_on(self, traced, tracers):
        """The traced calls by new clients, now that all is well; then the history."""
        for client in tracers:
            client.close()
        closed_ns = time.monotonic_ns()
        lost_before = self.count_sessions_lost()
        again = recorder.Round(traced.name, self.options.seed, self.clients("after"), first=len(tracers))
        again.start(self.work(0.05))
        again.finish()
        unlock_s = PLAIN_UNLOCK_S if self.test.is_plain else UNLOCK_S
        freed_ns = max(closed_ns, self.healthy_ns) + unlock_s * 10**9
        if self.fault.ends_sessions:
            freed_ns = max(freed_ns, self.struck_ns + int((nemesis.past_lease_s() + unlock_s) * 10**9))
        if self.is_about_locks():
            time.sleep(max(0.0, (freed_ns - time.monotonic_ns()) / 1e9))
            recorder.free_locks(again, again.clients[0])
        self.complain("after healing", again.lines, lost_before)
        self.lines = traced.lines + again.lines
        for line in traced.lines:
            if line.get("error", -1) not in recorder.DEFINITE:
                # Whatever is not decided when all is well again would be a write of a lost session.
                line["effect_by"] = max(self.healthy_ns, line.get("end", 0), line["begin"])
                line.pop("end", None)
                line.pop("error", None)
                line["end"] = line["effect_by"]
        for client in tracers:
            self.lines += self.losses(client, freed_ns)
        unlucky = self.unlucky(lost_before)
        self.lines += [self.loss(client, closed_ns, time.monotonic_ns()) for client in again.clients
                       if client.host.name in unlucky]
        path = os.path.join(self.test.artefacts, self.name + ".jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.lines)
        refused, given_up = recorder.judge([path])
        self.test.given_up += given_up
        if refused:
            assert "NOT LINEARIZABLE" in refused, refused
            self.is_refused = True
            self.problems.insert(0, refused)
        else:
            os.unlink(path)

    def losses(self, client, freed_ns):
        """Lines of the history: the moments at which the client loses its locks."""
        # It ends, as a program does.
        lines = [{**self.loss(client, client.end_began_ns, freed_ns), "error": 0}]
        if client.host in self.fault.ends_sessions:
            # Its host loses its session, and perhaps the next one too.
            line = self.loss(client, self.struck_ns, freed_ns)
            lines += [{**line, **({"error": 0} if self.fault.fences else {})}, line]
        elif client.host.name in self.unlucky(self.sessions_lost):
            lines.append(self.loss(client, self.began_ns, freed_ns))
        return lines

    def loss(self, client, begin_ns, end_ns):
        """Perhaps; with an error of 0 surely."""
        return {"client": client.name, "session": client.session, "op": "lose_session", "begin": begin_ns,
                "end": end_ns}

    def judge_checkpoints(self):
        own = [one for one in self.test.ledger.checkpoints if one.name.startswith(self.name + "/")]
        self.committed = sum(one.committed for one in own)
        if isinstance(self.fault, nemesis.Nothing):
            # Each saver ends the checkpoint that it has begun.
            unlucky = self.unlucky(self.sessions_lost)
            self.problems += [f"without a fault: {answer}" for one in own for answer in one.answers
                              if one.host not in unlucky or not tells_of_a_loss(answer)]
            if self.committed == 0:
                self.problems.append("without a fault no checkpoint was committed")
        judges = self.clients("judge")
        at_once([lambda judge=judge: self.save_on(judge) for judge in judges])
        self.inspect_all(judges)
        if not self.problems:
            old = self.test.ledger.take(CHECKPOINTS_KEPT)
            hosts = self.cluster.hosts
            at_once([lambda host=host, share=old[i::len(hosts)]: remove(host, share) for i, host in enumerate(hosts)])

    def save_on(self, judge):
        """When all is well again, every host commits; in a second try where it lost its session in the first."""
        lost_before = judge.host.sessions_lost()
        saved = self.save_by(judge)
        is_told = saved.answers and all(tells_of_a_loss(answer) for answer in saved.answers)
        if is_told and judge.host.sessions_lost() != lost_before:
            saved = self.save_by(self.clients("judge-again", [judge.host])[0])
        self.problems += [f"after healing no commit: {answer}" for answer in saved.answers]

    def save_by(self, judge):
        rng = random.Random(f"{self.options.seed} {self.number} {judge.name}")
        return checkpoints.save(judge, judge.host.name, f"{self.name}/{judge.name}", rng, self.test.ledger)

    def inspect_all(self, judges):
        """Every checkpoint that is there, on some host; the last ones on all. So each is seen after the last fault that
        it lived through, before it is deleted."""
        older, recent = self.test.ledger.split(checkpoints.RECENT)
        shares = {judge: list(recent) for judge in judges}
        for checkpoint in older:
            shares[self.rng.choice(judges)].append(checkpoint)

        def look(judge):
            for checkpoint in shares[judge]:
                self.problems += checkpoints.inspect(judge, checkpoint, after_healing=True)
        at_once([lambda judge=judge: look(judge) for judge in judges])


class Test:
    """Rounds on one cluster. `kinds`: the faults, one for each round."""

    def __init__(self, cluster, options, artefacts, environment):
        self.cluster, self.options, self.artefacts = cluster, options, artefacts
        self.environment = environment
        self.is_plain = getattr(cluster, "is_plain", False)
        self.ledger = cluster.ledger = checkpoints.Ledger()
        self.calls = self.committed = self.given_up = 0
        self.unlucky = 0  # sessions that ended without a fault
        self.collections = 0  # that went well

    def run(self, kinds, first=0):
        for number, kind in enumerate(kinds, first):
            began = time.monotonic()
            round_ = Round(self, number, kind)
            try:
                round_.run()
            except Exception:  # pylint: disable=broad-except
                if self.options.planted:
                    raise  # the test itself got stuck: that is not how a planted bug is found
                round_.problems.append(traceback.format_exc())
            print(f"{number:4} {round_.fault.describe():26} {len(round_.lines):4} calls traced, {round_.committed:3} checkpoints "
                  f"committed, {time.monotonic() - began:5.1f} s", flush=True)
            self.calls += len(round_.lines)
            self.committed += round_.committed
            if round_.problems and self.options.planted and not round_.is_refused:
                print(f"{number:4} wrong, and not what is looked for: {round_.problems[0]}", flush=True)
            elif round_.problems:
                self.keep(round_)
                kind = NotLinearizable if round_.is_refused else Violation
                raise kind("\n".join([f"round {number}, {round_.fault.describe()}:", *round_.problems[:12],
                                      *self.complaints()]))
        if self.committed == 0:
            raise Violation(f"no checkpoint was committed in {len(kinds)} rounds")
        if recorder.too_many_given_up(self.given_up, len(kinds)):
            raise Violation(f"of {len(kinds)} histories {self.given_up} were too much for the search: they prove nothing")

    def keep(self, round_):
        """What a person needs to find out why."""
        with open(os.path.join(self.artefacts, round_.name + ".txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(round_.problems) + "\n\n")
            for checkpoint in self.ledger.checkpoints:
                file.write(f"{checkpoint.name} of {checkpoint.host}, committed {checkpoint.committed_ns}: "
                           f"{checkpoint.files} {checkpoint.answers}\n")
            file.write(self.cluster.logs())

    def complaints(self):
        """The last lines of the hosts' logs that say that something is wrong."""
        lines = []
        for host in self.cluster.hosts:
            worth = [line[:200] for line in host.log().splitlines() if " error " in line or " warning " in line]
            lines += [f"-- {host.name} said:", *worth[-6:]] if worth else []
        return lines

    def check_nodes(self):
        """What `cairnfs check` finds on the nodes, as lines of text."""
        if self.is_plain:
            return []
        with concurrent.futures.ThreadPoolExecutor() as pool:
            found = list(pool.map(Host.what_is_wrong, self.cluster.hosts))
        return [f"cairnfs check of {host.name}: {text}" for host, text in zip(self.cluster.hosts, found) if text]


def run_on_cluster(store, rounds, options, artefacts):
    """All rounds on one kind of store. Raises Violation."""
    environment = {"CAIRNFS_FAILPOINTS": options.planted + "=skip"} if options.planted else {}
    names = PLANTED.get(options.planted, []) or [name for name in options.faults.split(",") if name]
    with Scratch() as scratch, Cluster(scratch, hosts=options.hosts, metadata=store, etcd_members=3,
                                       copies=options.copies,
                                       options={"segment_size": nemesis.FullDisk.SEGMENT_SIZE},
                                       certificates=options.seed % 2 == 0) as cluster:
        nemesis.small_disk(cluster.hosts[-1], f"{max(SMALL_DISK_MIB, 100 + SMALL_DISK_MIB_PER_ROUND * rounds)}m")
        # The daemons that the support starts see it too.
        os.environ.update(environment)
        try:
            cluster.start()
        finally:
            for name in environment:
                del os.environ[name]
        print(f"-- {options.hosts} hosts, {options.copies} copies, metadata in {store}", flush=True)
        test = Test(cluster, options, artefacts, environment)
        test.run(nemesis.plan(random.Random(f"{options.seed} {store}"), rounds, names))
        print(f"-- {test.calls} calls traced, {test.given_up} histories given up, {test.collections} collections", flush=True)


def run_on_plain(damage, rounds, options, artefacts):
    with tempfile.TemporaryDirectory(prefix="cairnfs-plain-") as directory:
        cluster = plain_hosts.PlainCluster(directory, options.hosts, damage, options.seed)
        test = Test(cluster, options, artefacts, {})
        names = [kind.__name__ for kind in nemesis.FAULTS if kind not in nemesis.NEEDS_DAEMONS]
        test.run(nemesis.plan(random.Random(options.seed), rounds, ["Pause"] if damage == "no_fencing" else names))


def self_test(options, artefacts):
    nemesis.time_scale, options.limit_s = 0.03, 5
    run_on_plain("", 6, options, artefacts)
    print("a plain directory is accepted", flush=True)
    options.limit_s = 2
    for damage, complaint in plain_hosts.DAMAGES.items():
        try:
            run_on_plain(damage, 9, options, artefacts)
        except Violation as violation:
            if "Traceback" in str(violation) or not re.search(complaint, str(violation)):
                raise Violation(f"{damage} was not noticed, but: {violation}") from violation
            print(f"{damage}: found: {str(violation).splitlines()[1][:150]}", flush=True)
            continue
        raise Violation(f"{damage} was not noticed")


def run_all(options, artefacts):
    """What is kept of each round lies in `artefacts`; returns the exit code."""
    found = None
    try:
        if options.self_test:
            self_test(options, artefacts)
        else:
            stores = ["etcd", "node"] if options.store == "both" else [options.store]
            for store in stores:
                run_on_cluster(store, -(-options.rounds // len(stores)), options, artefacts)
    except Violation as violation:
        found = violation
    if found and not options.planted:
        # Outside of the run's own folder, which is deleted when it ends.
        kept = shutil.copytree(artefacts, os.path.join(tempfile.mkdtemp(prefix="cairnfs-failed-", dir=KEPT), "faults"))
        print(f"FAILED: {found}\nkept: {kept}: {' '.join(sorted(os.listdir(kept)))}", flush=True)
        return 1
    if options.planted and not isinstance(found, NotLinearizable):
        # A hang or an errno is no sign of it: those have many causes.
        print(f"FAILED: {options.planted} was left out in {options.rounds} rounds and every history was accepted"
              f"{'; but: ' + str(found) if found else ''}", flush=True)
        return 1
    print(f"PASSED{': found ' + str(found)[:2000] if found else ''}", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--store", choices=["node", "etcd", "both"], default="both")
    parser.add_argument("--faults", default="", help="only these, by the names of their classes in nemesis.py")
    parser.add_argument("--planted", default="", choices=["", *PLANTED])
    parser.add_argument("--limit-s", type=float, default=90, help="the time within which every call ends")
    options = parser.parse_args()
    seed = [] if "--seed" in sys.argv else ["--seed", str(options.seed)]
    print(" ".join(["faults.py", *sys.argv[1:], *seed]), flush=True)
    with tempfile.TemporaryDirectory(prefix="cairnfs-faults-", ignore_cleanup_errors=True) as artefacts:
        return run_all(options, artefacts)


if __name__ == "__main__":
    sys.exit(main())
