#!/usr/bin/env python3
"""Random histories of runs on three hosts, with kills and partitions: what must stay never goes, what is to go does.

Each round is the history of one run: all that tests/support/run_history.py and full_run.py do with checkpoints, while the
daemons apply policies by themselves. Options: tests/support/cluster_world.py, and --rounds N (60).
"""

import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cluster_world import main
from full_run import WHOLE_FILE, FullRun
from retention_model import Policy
from run_history import Run

OPS_PER_ROUND = 8
OPS_PER_FAULT = 90
WATCHED = 3


def kill(world, runs):
    host = world.random.choice(world.hosts)
    host.kill()
    for run in runs:
        run.lose(host)
        run.note()
    host.mount()


def cut_off(world, runs, go_on):
    """One host from all others, for less or more than its lease, while the runs go on at the others."""
    # Where the first host serves the names, the others can do nothing without it.
    host = world.random.choice(world.hosts[0 if world.cluster.etcd else 1:])
    others = [other for other in world.hosts if other is not host]
    for run in runs:
        run.cut_off = {host.name}
        run.note()
    world.cluster.split([host], others + world.cluster.etcd)
    if world.random.random() < 0.5:
        world.cluster.wait_for_states({host.name: "down"}, at=others)
    go_on()
    world.cluster.heal()
    world.cluster.wait_for_states({one.name: "up" for one in world.hosts})
    for run in runs:
        run.cut_off = set()
        run.lose(host)
        run.note()


def random_histories(world):
    rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 60
    os.setxattr(world.hosts[0].path(""), "user.cairnfs.atomic_files", WHOLE_FILE.encode())
    runs = [FullRun(world, world.hosts, f"run-{number}") for number in range(rounds)]
    for run, host in zip(runs[:WATCHED], world.hosts):
        run.watch(host, os.path.join(world.cluster.scratch.path, run.name))
    faults = 0

    def go_on(times):
        for _ in range(times):
            world.random.choice(runs).go_on()

    for _ in range(max(2, rounds * OPS_PER_ROUND // OPS_PER_FAULT)):
        go_on(OPS_PER_FAULT - 10)
        if world.random.random() < 0.5:
            kill(world, runs)
            go_on(10)
        else:
            cut_off(world, runs, lambda: go_on(10))
        faults += 1
    for run in runs:
        run.settle()
    for run in world.random.sample(runs, max(1, rounds // 4)):
        run.dry_run_agrees()
    for run in runs:
        run.end()
    gone = sum(not run.is_there(name) for run in runs for name in run.checkpoints)
    assert gone >= rounds, f"of {rounds} runs only {gone} checkpoints went: nothing was tried"
    for run in runs:
        run.vanish()
    return f"{rounds} runs, {faults} faults, {gone} checkpoints and more went"


def a_wrong_removal_is_noticed(world):
    run = Run(world, world.hosts, "run-0")
    for _ in range(3):
        run.save()
    run.policy = Policy(keep_last=2)  # which no daemon knows
    run.note()
    run.check()
    shutil.rmtree(run.path("step-%d" % max(one.step for one in run.checkpoints.values())))
    try:
        run.check()
    except AssertionError:
        shutil.rmtree(run.path(""))
        return
    raise AssertionError("a checkpoint that had to stay is gone, and nobody noticed")


CASES = (a_wrong_removal_is_noticed, random_histories)

if __name__ == "__main__":
    sys.exit(main(CASES, one_store=True))
