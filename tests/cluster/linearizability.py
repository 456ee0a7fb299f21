#!/usr/bin/env python3
"""Are names, attributes, contents and locks linearizable, seen from several mounts at once?

    linearizability.py [--seed N] [--rounds N] [--calls N] [--planted LIE] DIRECTORY...
    linearizability.py --self-test [--seed N]

Each DIRECTORY is one host's mount of the same filesystem; one client works on each (give one twice for two). Rounds on
names and rounds on locks take turns. With --planted the clients lie, and the test must notice. --self-test does both on
a plain directory, which is linearizable once reads and writes are kept apart: all rounds must be accepted, and each lie
be found.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile

import recorder

LIES = ["stale_read", "stale_stat", "stale_names", "lost_write", "lost_rename", "double_create", "double_lock"]


def run_rounds(directories, rounds, calls, seed, artefacts, planted="", plain=False):
    """(violations as text, rounds given up, calls)"""
    clients = [recorder.Client(f"c{index}", directory, planted=planted, seed=seed * 100 + index, plain=plain)
               for index, directory in enumerate(directories)]
    paths, count = [], 0
    try:
        for number in range(rounds):
            name = f"round-{seed}-{number}"
            clients[number % len(clients)].must("mkdir", path=name, mode=0o755)
            round_ = recorder.Round(name, seed, clients)
            round_.start(recorder.lock_work(calls) if number % 3 == 2 else recorder.tree_work(calls))
            lines = round_.finish()
            paths.append(round_.write(artefacts))
            count += len(lines)
            hangs = [hang for client in clients for hang in client.hangs]
            unknown = recorder.unknown_outcomes(lines)
            if hangs or unknown:
                return "\n".join(map(recorder.describe, hangs or unknown)), 0, count
    finally:
        for client in clients:
            client.close()
    violations, given_up = recorder.judge(paths)
    return violations, given_up, count


def self_test(seed):
    with tempfile.TemporaryDirectory(prefix="cairnfs-linearizability-") as scratch:
        mount, artefacts = os.path.join(scratch, "mount"), os.path.join(scratch, "histories")
        os.mkdir(mount)
        os.mkdir(artefacts)
        violations, given_up, calls = run_rounds([mount] * 4, 60, 12, seed, artefacts, plain=True)
        print(f"a plain directory: {calls} calls, {given_up} rounds given up", flush=True)
        if violations or given_up:
            print(f"FAILED: it is linearizable\n{violations}")
            return 1
        for number, lie in enumerate(LIES):
            violations, _, calls = run_rounds([mount] * 4, 60, 12, seed + 1 + number, artefacts, planted=lie,
                                              plain=True)
            found = violations.count("NOT LINEARIZABLE")
            print(f"{lie}: found in {found} rounds of 60", flush=True)
            if found == 0:
                print("FAILED: it was not noticed")
                return 1
    print("PASSED")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--planted", default="", choices=["", *LIES])
    parser.add_argument("directories", nargs="*")
    options = parser.parse_args()
    print(f"linearizability.py --seed {options.seed}", flush=True)
    if options.self_test:
        return self_test(options.seed)
    if not options.directories:
        parser.error("give the mounts, or --self-test")
    artefacts = tempfile.mkdtemp(prefix="cairnfs-histories-")
    violations, given_up, calls = run_rounds(options.directories, options.rounds, options.calls, options.seed, artefacts,
                                             options.planted)
    print(f"{options.rounds} rounds, {calls} calls, {given_up} given up")
    if violations:
        print(f"{violations}\nhistories: {artefacts}")
    else:
        shutil.rmtree(artefacts)
    too_many = recorder.too_many_given_up(given_up, options.rounds)
    if too_many:
        print("too many were given up: they prove nothing")
    if bool(violations) != bool(options.planted) or too_many:
        print("FAILED")
        return 1
    print("PASSED")
    return 0


if __name__ == "__main__":
    sys.exit(main())
