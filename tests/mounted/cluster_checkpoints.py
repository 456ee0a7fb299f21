#!/usr/bin/env python3
"""Three hosts with one filesystem: checkpoints that all hosts write, who commits them, who is told, and which ones the
policy of a run lets go. Options: tests/support/cluster_world.py.
"""

import concurrent.futures
import errno
import json
import os
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import program, run
from cluster import wait_until
from cluster_world import (MIB, a_checkpoint_of_all_hosts, check_checkpoint, commit_by_ranks, error_of, main,
                           save_checkpoint, write)


def a_commit_by_all_ranks(world):
    """cairnfs commit on every host: all return when the last has come, and the directory has its final name."""
    files = save_checkpoint(world, "gated")
    done = commit_by_ranks(world.hosts, "gated", len(world.hosts))
    assert all(result.returncode == 0 for result in done), [result.stdout for result in done]
    for host in world.hosts:
        check_checkpoint(host, "gated", files)
    world.checkpoints["gated"] = files
    # One does not come: the others say which.
    os.mkdir(world.hosts[0].path("late.tmp"))
    for result in commit_by_ranks(world.hosts[:-1], "late", len(world.hosts), "10s"):
        assert result.returncode == 1, result
        assert "rank 2 did not come within 10 s" in result.stdout, result.stdout
    assert error_of(os.stat, world.hosts[0].path("late")) == errno.ENOENT
    os.rmdir(world.hosts[1].path("late.tmp"))


def those_that_are_left_commit(world):
    """With --at-least a rank that does not come, or is killed, holds up nothing when what is required is there."""
    count = len(world.hosts)

    def start(rank, timeout="20s"):
        host = world.hosts[rank]
        command = [program("cairnfs"), "commit", "--ranks", str(count + 1), "--rank", str(rank), "--timeout", timeout,
                   "--at-least", "2", "--require", "shard-*-of-0003*", "--require", "meta*=1",
                   host.path("left.tmp"), host.path("left")]
        return subprocess.Popen(host.inside(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def outcomes(calls):
        return [(call.communicate(timeout=120)[0], call.returncode) for call in calls]

    os.mkdir(world.hosts[0].path("left.tmp"))
    os.mkdir(world.hosts[0].path("left.tmp", "below"))
    write(world.hosts[0].path("left.tmp", "meta.json"), b"{}")
    for rank, host in enumerate(world.hosts[:2]):
        write(host.path("left.tmp", "below", f"shard-0000{rank}-of-0003.bin"), b"x" * MIB)
    for said, code in outcomes([start(rank) for rank in (0, 1)]):
        assert code == 1 and "2 of 4 ranks have come" in said, said
        assert "of 3 files 'shard-*-of-0003*' 2 are there" in said, said
    write(world.hosts[2].path("left.tmp", "shard-00002-of-0003.bin"), b"x" * MIB)
    left = [start(rank) for rank in (0, 1)]
    killed = start(2, "60s")
    time.sleep(1)  # so that it has come, mostly: the outcome is the same
    killed.kill()
    killed.communicate()
    for said, code in outcomes(left):
        assert code == 0, said
    for host in world.hosts:
        assert sorted(os.listdir(host.path("left"))) == ["below", "meta.json", "shard-00002-of-0003.bin"], host.name
    [(said, code)] = outcomes([start(2)])  # one that comes later
    assert code == 0, said
    shutil.rmtree(world.hosts[1].path("left"))


def deferred_commits_outlive_their_host(world):
    """A ticket of one host gives its result on another; and when its host dies, another one makes the commit."""
    first, victim, third = world.hosts
    files = save_checkpoint(world, "deferred")
    ticket = victim.cairnfs("commit", "--async", victim.path("deferred.tmp"), victim.path("deferred")).strip()
    assert third.cairnfs("commit", "--wait", ticket, third.mount_point).strip() == third.path("deferred")
    for host in world.hosts:
        check_checkpoint(host, "deferred", files)
    world.checkpoints["deferred"] = files
    # Before and after the rename.
    for failpoint in ("fs.ticket_taken", "fs.ticket_renamed"):
        folder = "deferred-" + failpoint[len("fs.ticket_"):]
        victim.umount()
        victim.mount(CAIRNFS_FAILPOINTS=failpoint + "=kill")
        files = save_checkpoint(world, folder)
        command = victim.inside(program("cairnfs"), "commit", "--async", victim.path(folder + ".tmp"),
                                victim.path(folder))
        ticket = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=120).stdout.strip()
        wait_until(lambda: not victim.is_alive(), 60, f"{victim.name} dies at {failpoint}")
        if ticket:
            third.cairnfs("commit", "--wait", ticket, third.mount_point)
        wait_until(lambda there=first.path(folder): os.path.isdir(there), 60, f"{folder} is committed")
        check_checkpoint(first, folder, files)
        world.checkpoints[folder] = files
        victim.kill()
        victim.mount()


def a_commit_by_ranks_of_another_user(world):
    """Ranks need not run as the daemon's user: they may commit what they may rename, and nothing else."""
    nobody = 65534
    ranks = range(len(world.hosts))

    def commit(rank, folder, timeout="60s"):
        host = world.hosts[rank]
        command = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", program("cairnfs"), "commit",
                   "--ranks", str(len(world.hosts)), "--timeout", timeout, host.path(folder + ".tmp"),
                   host.path(folder)]
        return subprocess.run(host.inside(*command), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120, env={**os.environ, "RANK": str(rank)})

    home = world.hosts[0].path("home")
    os.mkdir(home)
    os.chown(home, nobody, nobody)
    os.mkdir(os.path.join(home, "step.tmp"))
    os.chown(os.path.join(home, "step.tmp"), nobody, nobody)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda rank: commit(rank, "home/step"), ranks))
    assert all(result.returncode == 0 for result in done), [result.stdout for result in done]
    assert os.path.isdir(world.hosts[1].path("home", "step"))
    os.mkdir(world.hosts[0].path("roots.tmp"))
    refused = commit(0, "roots", "30s")
    assert refused.returncode == 6 and "Permission denied" in refused.stdout, refused
    status = world.hosts[0].inside("setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups",
                                   program("cairnfs"), "status", "--data", world.hosts[0].data)
    assert subprocess.run(status, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0
    os.rmdir(world.hosts[1].path("roots.tmp"))
    os.rmdir(world.hosts[1].path("home", "step"))
    os.rmdir(world.hosts[2].path("home"))


def waits_of_another_user(world):
    """`cairnfs wait` counts for every host's files, for any user; which files are lost is for root alone."""
    first, victim = world.hosts[0], world.hosts[-1]
    os.mkdir(first.path("waited"))

    def wait(*as_user):
        done = subprocess.run(first.inside(*as_user, program("cairnfs"), "wait", first.path("waited")), check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180)
        return done.returncode, done.stdout

    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    write(victim.path("waited", "kept"), b"kept")
    assert os.getxattr(first.path("waited", "kept"), "user.cairnfs.durability") == b"replicated"
    answer = wait(*nobody)
    assert answer == (0, ""), answer
    with open(victim.path("waited", "secret"), "wb", buffering=0) as left_open:
        left_open.write(os.urandom(MIB))
        victim.kill()
        assert error_of(left_open.close) == errno.ENOTCONN
    world.cluster.wait_for_states({victim.name: "down"}, at=[first])
    code, told = wait()
    assert code == 1 and "waited/secret" in told and victim.name in told, (code, told)
    code, told = wait(*nobody)
    assert code == 1 and "root is told of which files" in told and "secret" not in told, (code, told)
    victim.mount()
    shutil.rmtree(victim.path("waited"))


def commits_are_known_on_all_hosts(world):
    """Each host adds what it wrote; a refusal is told everywhere."""
    first, last = world.hosts[0], world.hosts[-1]
    run_folder = "recorded"
    os.mkdir(first.path(run_folder))
    os.mkdir(first.path(run_folder + "/step-1.tmp"))
    for number, host in enumerate(world.hosts):
        write(host.path(f"{run_folder}/step-1.tmp/shard-{number}"), os.urandom(100000))
    os.rename(first.path(run_folder + "/step-1.tmp"), first.path(run_folder + "/step-1"))
    told = json.loads(last.cairnfs("watch", last.path(run_folder), "--since", "0", "--count", "1", "--json"))
    assert told["path"] == last.path(run_folder + "/step-1") and told["host"] == first.name, told

    def whole():
        [entry] = json.loads(last.cairnfs("ls", last.path(run_folder), "--json"))
        is_whole = entry["files"] == len(world.hosts) and entry["copied_seconds"] is not None
        return is_whole and entry["written_bytes"] == 100000 * len(world.hosts) and entry
    entry = wait_until(whole, what="each host's part of the commit")
    assert entry["bytes"] == entry["new_bytes"] == 100000 * len(world.hosts), entry
    assert last.cairnfs("latest", last.path(run_folder)).strip() == last.path(run_folder + "/step-1")
    shutil.rmtree(first.path(run_folder))


def policies_are_applied_by_one_host(world):
    """What any host has open stays. Another host takes over from one that becomes read-only."""
    folder, rules = "retained", ("--keep-last", "1", "--match", r"step-(\d+)")
    os.mkdir(world.hosts[0].path(folder))

    def commit(host, step):
        os.mkdir(host.path(f"{folder}/{step}.tmp"))
        write(host.path(f"{folder}/{step}.tmp/model"), b"x" * step)
        os.rename(host.path(f"{folder}/{step}.tmp"), host.path(f"{folder}/step-{step}"))

    def wait_for(*steps):
        wanted = sorted(f"step-{step}" for step in steps)
        for host in world.hosts:
            wait_until(lambda host=host: sorted(os.listdir(host.path(folder))) == wanted, seconds=180,
                       what=f"{wanted} in {folder} of {host.name}")

    def applier_of(host, run):
        """By which host the policy of a run was last applied."""
        shown = json.loads(host.cairnfs("retain", host.path(run), "--show", "--json"))
        return shown["applied"] and shown["applied"]["host"]

    os.mkdir(world.hosts[0].path("empty"))
    world.hosts[0].cairnfs("retain", world.hosts[0].path("empty"), *rules)
    name = wait_until(lambda: applier_of(world.hosts[0], "empty"), what="a host that applies policies")
    os.rmdir(world.hosts[0].path("empty"))
    [applier] = [host for host in world.hosts if host.name == name]
    for step, host in enumerate(world.hosts, 1):
        commit(host, step)
    reader, committer = [host for host in world.hosts if host is not applier]
    with open(reader.path(f"{folder}/step-1/model"), "rb") as file:
        applier.cairnfs("retain", applier.path(folder), *rules)
        wait_for(1, 3)
        assert file.read() == b"x"
        assert os.getxattr(committer.path(f"{folder}/step-1"), "user.cairnfs.open_files") == b"1"
    wait_for(3)
    assert applier_of(committer, folder) == applier.name
    # Where there is no policy, what another host's `retain --now` has left when it was killed goes too.
    going = committer.path("bare/.cairnfs-going-abcdefghijklmnop")
    os.makedirs(committer.path("bare/step-1"))
    os.rename(committer.path("bare/step-1"), going)
    os.setxattr(going, "user.cairnfs.removing", os.path.basename(going).encode())
    wait_until(lambda: os.listdir(reader.path("bare")) == [], what="the removal is gone on with")
    os.rmdir(reader.path("bare"))
    remount = ["mount", applier.mount_point, "--config", applier.config, "-o"]
    applier.cairnfs(*remount, "remount,ro")
    try:
        commit(committer, 4)
        wait_until(lambda: os.listdir(committer.path(folder)) == ["step-4"], seconds=180)
        wait_until(lambda: applier_of(committer, folder) in (reader.name, committer.name))
    finally:
        applier.cairnfs(*remount, "remount,rw")
    shutil.rmtree(committer.path(folder))


def what_any_host_has_open_or_writes_is_not_abandoned(world):
    for host, others in world.pairs():
        other, third = others
        run, left = f"abandoned-{host.name}", f"abandoned-{host.name}/left.tmp"
        os.mkdir(host.path(run))
        os.mkdir(host.path(left))
        write(host.path(left, "part"), b"part")

        def fate(by, wait, run=run):
            rules = ("--keep-every", "1", "--abandoned", f"*.tmp:{wait}")
            [one] = json.loads(by.cairnfs("retain", by.path(run), "--now", "--json", *rules))["checkpoints"]
            return one["removed"], one["reason"]

        written = os.stat(host.path(left, "part")).st_ctime
        wait_until(lambda written=written: time.time() > written + 1)
        with open(host.path(left, "part"), "rb"):
            removed, reason = fate(other, "1s")
            assert not removed and "open" in reason, reason
        wait_until(lambda seen=other.path(left): os.getxattr(seen, "user.cairnfs.open_files") == b"0")
        removed, reason = fate(third, "1h")
        assert not removed and "something was written below it" in reason, reason
        removed, reason = fate(third, "1s")
        assert removed, reason
        for one in world.hosts:
            assert os.listdir(one.path(run)) == []


CASES = (a_checkpoint_of_all_hosts, a_commit_by_all_ranks, those_that_are_left_commit,
         deferred_commits_outlive_their_host, a_commit_by_ranks_of_another_user, waits_of_another_user,
         commits_are_known_on_all_hosts, policies_are_applied_by_one_host,
         what_any_host_has_open_or_writes_is_not_abandoned)


if __name__ == "__main__":
    sys.exit(main(CASES, one_store=True))
