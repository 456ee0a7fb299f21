"""Several hosts on this machine, and a checkpoint that outlives one of them.

quickstart_hosts.py HOSTS [--keep]       in network namespaces joined by a bridge; see tests/support/cluster.py
quickstart_hosts.py --take-down FOLDER   what --keep left

HOSTS hosts with a data directory and a mount each, two copies, a real etcd. As many ranks of torch.distributed, one on
each host, save one checkpoint, and one renames it. Then a host is killed and its data deleted; the others load the
checkpoint with one rank less, and the missing copies are made anew.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "support"))
from cairnfs_mount import Scratch, program
from cluster import Cluster, wait_until

PYTHON = "/usr/bin/python3"  # Debian's: it is the one that has python3-torch
RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quickstart_ranks.py")
RENDEZVOUS_PORT = 29500
# So that nobody waits minutes for a host to be out, and the repair can be seen.
DEMO = {"lease": "2s", "out_after": "15s", "repair_rate": "8MiB"}
STATE = "quickstart.json"


def say(text):
    print(f"\n\033[1m== {text}\033[0m", flush=True)


def show(host, *words):
    print(host.cairnfs(*words, "--data", host.data), flush=True)


def run_job(what, hosts, folder, port):
    """One rank on each of the hosts, in the host's network; all of them must end well."""
    master = f"{hosts[0].ip}:{port}"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    ranks = [host.start(PYTHON, RANKS, what, host.path(folder), rank, len(hosts), master, env=environment)
             for rank, host in enumerate(hosts)]
    codes = [rank.wait(timeout=600) for rank in ranks]
    assert codes == [0] * len(hosts), f"the ranks ended with {codes}"


def stored_bytes(host):
    """On all nodes that are up, copies counted one by one."""
    return sum(node.get("stored_bytes", 0) for node in host.nodes().values())


def show_repair(host, bytes_of_two_copies):
    began = time.monotonic()
    last = None

    def whole():
        nonlocal last
        status, stored = host.cluster_status(), stored_bytes(host)
        line = (f"{status['nodes_up']} up, {status['nodes_down']} down, {status['nodes_out']} out; "
                f"{status['repair_chunks_left']} chunks to copy; {stored / 2**20:.1f} of "
                f"{bytes_of_two_copies / 2**20:.1f} MiB stored")
        if line != last:
            print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)
        last = line
        return (status["nodes_out"] > 0 and stored >= bytes_of_two_copies and not status["missing_copies"]
                and not status["repair_chunks_left"])

    wait_until(whole, 300, "every chunk has two copies again", every=0.5)


def demonstrate(cluster):
    say(f"{len(cluster.hosts)} hosts, two copies of every chunk, metadata in etcd")
    cluster.start()
    first, *others = cluster.hosts
    show(first, "cluster", "status")
    for host in cluster.hosts:
        print(f"{host.name}: {host.ip}, mounted at {host.mount_point}")

    say(f"{len(cluster.hosts)} ranks of torch.distributed.checkpoint, one on each host, save one checkpoint")
    run_job("save", cluster.hosts, "step-100", RENDEZVOUS_PORT)
    victim = others[-1]
    names = os.listdir(victim.path("step-100"))
    durability = os.getxattr(victim.path("step-100"), "user.cairnfs.durability").decode()
    print(f"{victim.name} sees {len(names)} files in {victim.path('step-100')}; durability: {durability}", flush=True)
    cluster.wait_for_copies()
    size = sum(os.path.getsize(victim.path("step-100", name)) for name in names)
    # No two tensors of it are alike, so that each byte is stored twice. Nodes tell their space every few seconds.
    wait_until(lambda: stored_bytes(first) >= 2 * size * 0.99, 30, "both copies are counted")
    two_copies = stored_bytes(first)
    print(f"{size / 2**20:.1f} MiB in files, {two_copies / 2**20:.1f} MiB stored")

    say(f"{victim.name} dies, and its disk with it")
    victim.kill()
    victim.wipe()
    survivors = [host for host in cluster.hosts if host is not victim]

    say(f"the other {len(survivors)} load it, with {len(survivors)} ranks")
    run_job("load", survivors[::-1], "step-100", RENDEZVOUS_PORT + 1)

    say("and make the missing copies anew")
    show_repair(survivors[0], two_copies)
    print("every chunk has two copies again\n", flush=True)
    show(survivors[0], "cluster", "status")


def leave_up(cluster):
    state = {"namespaces": [cluster.bridge_netns, *(namespace.netns for namespace in cluster.namespaces)],
             "mounts": [host.mount_point for host in cluster.hosts if host.pid is not None],
             "processes": [process.pid for member in cluster.etcd for process in member.processes]}
    folder = cluster.scratch.path
    with open(os.path.join(folder, STATE), "w", encoding="utf-8") as file:
        json.dump(state, file)
    say("all of it is still up")
    for host in cluster.hosts:
        if host.pid is not None:
            print(f"On {host.name}:  nsenter --net=/run/netns/{host.netns} bash   (mount: {host.mount_point})")
    print(f"Look at it:    {program('cairnfs')} cluster status {state['mounts'][0]}")
    print(f"Take it down:  tools/quickstart --take-down {folder}", flush=True)
    os._exit(0)  # leaves everything as it is


def take_down(folder):
    with open(os.path.join(folder, STATE), encoding="utf-8") as file:
        state = json.load(file)
    for mount in reversed(state["mounts"]):
        subprocess.run([program("cairnfs"), "umount", mount], check=False)
    for pid in state["processes"]:
        try:
            with open(f"/proc/{pid}/comm", encoding="ascii") as name:
                if name.read().strip() == "etcd":
                    os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    for namespace in state["namespaces"]:
        subprocess.run(["ip", "netns", "del", namespace], check=False)
    shutil.rmtree(folder)


def main():
    arguments = sys.argv[1:]
    if arguments[0] == "--take-down":
        take_down(arguments[1])
        return
    keep = "--keep" in arguments
    with Scratch("/var/tmp") as scratch, Cluster(scratch, hosts=int(arguments[0]), options=DEMO,
                                                 outlives_us=keep) as cluster:
        demonstrate(cluster)
        if keep:
            leave_up(cluster)
    say("done; everything is taken down again")


if __name__ == "__main__":
    main()
