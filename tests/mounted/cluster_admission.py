#!/usr/bin/env python3
"""Hosts with certificates: who joins, who is refused, what strangers on the network can do.

Options: --seed N; --seconds N: how long strangers try the ports (60); names of cases run these alone.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, program, resident_bytes, run, run_cases, seed_from_arguments
from cluster import ETCD_PORT, JOIN_PORT, METADATA_PORT, PEER_PORT, Cluster, Host, Namespace, wait_until
from cluster_world import MIB, OPTIONS, World, a_checkpoint_of_all_hosts, check_checkpoint, read, write

STRANGERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "strangers.py")
RSS_GROWTH_BYTES_MAX = 200 * MIB
seconds_of_strangers = 60


def refusal(host, *words):
    """The exit code and what is printed of a command that has to fail."""
    done = subprocess.run(host.inside(program("cairnfs"), *words), check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode != 0, f"{words} succeeded: {done.stdout}"
    return done.returncode, done.stdout


def join_words(host, token, address=None):
    return ["cluster", "join", address or f"10.77.0.1:{JOIN_PORT}", "--token", token, *host._own_options()]


def tls_file(host, name):
    return os.path.join(host.data, "tls", name)


def node_id(host):
    with open(os.path.join(host.data, "format"), encoding="ascii") as file:
        return re.search(r"uuid = (\w+)", file.read()).group(1)


def tokens_are_good_once_and_for_their_life(world):
    first, spare = world.hosts[0], world.spare
    used = first.token()
    spare.cairnfs(*join_words(spare, used))
    for wrong, code, words in [(used, 6, "was used"), (used[:-6], 2, "cut short"), ("nonsense", 2, "cut short"),
                               (first.token("--life", "1s"), 6, "has expired")]:
        if "expired" in words:
            wait_until(lambda token=wrong: "has expired" in refusal_or_joined(spare, token), 30, "a token expires")
            continue
        got, text = refusal(spare, *join_words(spare, wrong))
        assert got == code and words in text, (got, text)
    other_cluster = used[:6] + flip(used[6:])
    code, text = refusal(spare, *join_words(spare, other_cluster))
    assert code == 2, (code, text)  # its checksum does not fit
    code, text = refusal(spare, *join_words(spare, first.token(), f"10.77.0.1:{PEER_PORT}"))
    assert code == 3 and "serve_join" in text, (code, text)
    code, text = refusal(world.hosts[1], "cluster", "token", "--data", world.hosts[1].data)
    assert code == 2 and "host that made the cluster" in text, (code, text)
    code, text = refusal(first, "cluster", "token", "--data", first.data, "--life", "25h")
    assert code == 2 and "between 1s and 24h" in text, (code, text)
    # The one that has joined is a node like the others.
    spare.mount()
    world.cluster.wait_for_states({spare.name: "up"})
    content = world.content(3 * MIB)
    write(spare.path("of-the-new-one"), content)
    assert read(first.path("of-the-new-one")) == content


def flip(text):
    return ("1" if text[0] == "0" else "0") + text[1:]


def refusal_or_joined(host, token):
    done = subprocess.run(host.inside(program("cairnfs"), *join_words(host, token)), check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.stdout


def a_removed_node_is_refused(world):
    first, spare = world.hosts[0], world.spare
    if spare.pid is None:
        spare.cairnfs(*join_words(spare, first.token()))
        spare.mount()
    spare.umount()
    world.cluster.wait_for_states({spare.name: "down"}, at=[first])
    first.cairnfs("node", "remove", "--lost", "--data", first.data, spare.name)
    code, text = refusal(spare, "mount", "--config", spare.config)
    assert code == 6 and "was removed from the cluster" in text, (code, text)
    wait_until(lambda: first.status()["cluster"]["refused_total"] > 0, 30, "the refusal is counted")
    # With a new disk and a token it is a new node.
    shutil.rmtree(spare.data)
    spare.cairnfs(*join_words(spare, first.token()))
    spare.mount()
    world.cluster.wait_for_states({spare.name: "up"}, at=[first])


def a_node_that_was_never_mounted_is_listed_and_removed(world):
    first = world.hosts[0]
    fresh = Host(world.cluster, 5)
    fresh.cairnfs(*join_words(fresh, first.token()))
    assert first.states()[fresh.name] == "joined", first.states()
    assert first.cluster_status()["nodes_joined"] == 1
    assert "1 joined and never mounted" in first.cairnfs("cluster", "status", "--data", first.data)
    removed = json.loads(first.cairnfs("node", "remove", fresh.name, "--data", first.data, "--json"))
    assert removed == {"removed": True, "id": node_id(fresh), "name": fresh.name}, removed
    assert fresh.name not in first.states()
    code, text = refusal(fresh, "mount", "--config", fresh.config)
    assert code == 6 and "was removed from the cluster" in text, (code, text)
    # With a new token it may come, and then it is a node like the others.
    fresh.cairnfs(*join_words(fresh, first.token()))
    assert first.states()[fresh.name] == "joined", first.states()
    fresh.mount()
    assert [node["state"] for node in first.node_list() if node["name"] == fresh.name] == ["up"]
    fresh.umount()
    first.cairnfs("node", "remove", "--lost", fresh.name, "--data", first.data)


def keys_that_others_may_read_are_refused(world):
    host = world.hosts[2]
    host.umount()
    os.chmod(tls_file(host, "node.pem"), 0o644)
    code, text = refusal(host, "mount", "--config", host.config)
    assert code == 6 and "chmod 600" in text and "node.pem" in text, (code, text)
    os.chmod(tls_file(host, "node.pem"), 0o600)
    host.mount()


def an_authority_that_was_exchanged_is_noticed(world):
    host = world.hosts[2]
    kept = read(tls_file(host, "authority.pem"))
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
        "/CN=another", "-days", "30", "-keyout", "/dev/null", "-out", tls_file(host, "authority.pem"))
    write(host.path("while-exchanged"), b"what runs goes on")  # over the connections that there are
    host.umount()
    code, text = refusal(host, "mount", "--config", host.config)
    assert code == 7 and "not of this cluster's authority" in text, (code, text)
    write(tls_file(host, "authority.pem"), kept)
    host.mount()
    world.cluster.wait_for_states({host.name: "up"})


def certificates_are_renewed_and_end(world):
    first, host = world.hosts[0], world.hosts[1]

    def reissue(hours_ago):
        run(program("reissue"), os.path.join(first.data, "tls"), node_id(first), os.path.join(host.data, "tls"),
            node_id(host), hours_ago)

    host.umount()
    reissue(24 * 300)  # more than two thirds of a year
    before = read(tls_file(host, "node.pem"))
    host.mount()
    wait_until(lambda: read(tls_file(host, "node.pem")) != before, 90, "the certificate is renewed")
    left = wait_until(lambda: host.status()["cluster"]["certificate_seconds_left"], 30, "its time is told")
    assert left > 360 * 24 * 3600, left
    write(host.path("after-renewal"), world.content(MIB))
    host.umount()
    reissue(24 * 370)
    code, text = refusal(host, "mount", "--config", host.config)
    assert code == 6 and "ended at" in text, (code, text)
    host.cairnfs(*join_words(host, first.token()))  # keeps its data directory, and so its id
    host.mount()
    world.cluster.wait_for_states({host.name: "up"})


def a_token_makes_no_node_that_is_there(world):
    first, host = world.hosts[0], world.hosts[1]
    host.umount()
    world.cluster.wait_for_states({host.name: "down"}, at=[first])
    kept, token = os.path.join(world.cluster.scratch.path, "kept-tls"), first.token()
    shutil.move(tls_file(host, ""), kept)
    code, text = refusal(host, *join_words(host, token))
    assert code == 6 and f"node replace {host.name}" in text and node_id(host) in text, (code, text)
    assert first.states()[host.name] == "down"
    shutil.rmtree(tls_file(host, ""), ignore_errors=True)
    shutil.move(kept, tls_file(host, ""))
    host.cairnfs(*join_words(host, token))  # which is good still: it made nobody a node
    host.mount()
    world.cluster.wait_for_states({host.name: "up"})


def strangers_get_nothing_and_hold_nobody_up(world):
    first = world.hosts[0]
    stranger = Namespace(world.cluster, "stranger", "10.77.0.200")
    own = os.path.join(world.cluster.scratch.path, "stranger.pem")
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x",
        "-addext", f"subjectAltName=DNS:{node_id(world.hosts[1])}.node.cairnfs,DNS:node.cairnfs", "-days", "30",
        "-keyout", own, "-out", own + ".crt")
    with open(own, "ab") as file:
        file.write(read(own + ".crt"))
    resident, refused = resident_bytes(first.pid), first.status()["cluster"]["refused_total"]
    lines = len(first._whole_log().splitlines())
    attack = stranger.start(
        sys.executable, STRANGERS, "--seconds", seconds_of_strangers, "--seed", world.random.randrange(1 << 30),
        "--certificate", own, "--join", f"{first.ip}:{JOIN_PORT}", f"{first.ip}:{PEER_PORT}",
        f"{first.ip}:{METADATA_PORT}", stdout=subprocess.PIPE, text=True)
    told = []
    reader = threading.Thread(target=lambda: told.append(attack.stdout.read()))
    reader.start()
    rounds = 0
    while reader.is_alive():  # saves and restores go on, and a host comes back
        content = world.content(2 * MIB)
        write(world.hosts[1].path("beside"), content)
        assert read(world.hosts[2].path("beside")) == content
        if rounds % 5 == 1:
            world.hosts[2].umount()
            world.hosts[2].mount()
        rounds += 1
    assert attack.wait() == 0
    outcome = json.loads(told[0])
    assert not outcome["leaks"], outcome
    assert min(outcome["tries"].values()) > 0 and len(outcome["tries"]) == 7, outcome
    assert rounds > 0
    status = first.status()
    assert status["cluster"]["refused_total"] > refused + 10, (status, outcome)
    growth = resident_bytes(first.pid) - resident
    assert growth < RSS_GROWTH_BYTES_MAX, f"the daemon has grown by {growth / MIB:.0f} MiB"
    added = first._whole_log().splitlines()[lines:]
    told = [line for line in added if ": refused a" in line or ": refused 10." in line]
    assert len(told) <= 3 * (2 + seconds_of_strangers // 60), told
    assert not [line for line in added if "ssl_transport" in line], added
    print(f"   {sum(outcome['tries'].values())} tries, {status['cluster']['refused_total'] - refused} refused, "
          f"{rounds} saves beside them, {growth / MIB:.0f} MiB more", flush=True)


def a_checkpoint_is_saved_by_all(world):
    a_checkpoint_of_all_hosts(world)
    for folder, files in world.checkpoints.items():
        for host in world.hosts:
            check_checkpoint(host, folder, files)


def an_etcd_that_asks_for_certificates(world):
    """Three hosts of their own, whose names lie in an etcd that knows its clients by certificates."""
    with Scratch() as scratch:
        in_an_etcd_of_its_own(world, scratch)


def in_an_etcd_of_its_own(world, scratch):
    at = lambda name: os.path.join(scratch.path, name)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run("openssl", "req", "-x509", *key, "-subj", "/CN=etcd", "-days", "30", "-keyout", at("ca.key"), "-out", at("ca.pem"))
    for name in ("server", "client"):
        run("openssl", "req", *key, "-subj", f"/CN={name}", "-keyout", at(name + ".key"), "-out", at(name + ".csr"))
        with open(at(name + ".ext"), "w", encoding="ascii") as file:
            file.write("subjectAltName=IP:10.77.0.101\nextendedKeyUsage=serverAuth,clientAuth\n")
        run("openssl", "x509", "-req", "-in", at(name + ".csr"), "-CA", at("ca.pem"), "-CAkey", at("ca.key"),
            "-CAcreateserial", "-days", "30", "-extfile", at(name + ".ext"), "-out", at(name + ".pem"))
    files = ["--tls-ca", at("ca.pem"), "--tls-certificate", at("client.pem"), "--tls-key", at("client.key")]
    with Cluster(scratch, hosts=2, metadata="etcd", options=OPTIONS) as cluster:
        member = cluster.etcd[0]
        client, peer = f"https://{member.endpoint}", f"http://{member.ip}:{ETCD_PORT}"
        with open(member.data + ".log", "ab") as log:
            member.process = member.start(
                "etcd", "--name", member.name, "--data-dir", member.data, "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", f"{member.name}={peer}", "--client-cert-auth", "--trusted-ca-file", at("ca.pem"),
                "--cert-file", at("server.pem"), "--key-file", at("server.key"),
                "--quota-backend-bytes", str(4 << 30), stdout=log, stderr=log)
        one, other = cluster.hosts
        try:
            wait_until(lambda: "that etcd speaks TLS" in refusal(one, "cluster", "init", "--metadata", cluster.etcd_url,
                                                                 *one._own_options())[1], 60, "the etcd asks for TLS")
            wait_until(lambda: inited(one, cluster.etcd_url, files), 60, "the etcd answers")
            one._add_options()
            one.mount()
            token = one.token()
            # Refused in words, and the token is still good.
            code, text = refusal(other, *join_words(other, token, f"{one.ip}:{JOIN_PORT}"))
            assert code == 3 and "that etcd speaks TLS: give its authority" in text, (code, text)
            other.cairnfs("cluster", "join", f"{one.ip}:{JOIN_PORT}", "--token", token, *files, *other._own_options())
            other._add_options()
            other.mount()
            content = world.content(2 * MIB)
            write(one.path("x"), content)
            assert read(other.path("x")) == content
            assert one.status()["cluster"]["certificate_seconds_left"] > 0
            # Its quota is read from its metrics, with TLS as well.
            wait_until(lambda: (one.status().get("metadata_room_bytes") or 0) > 3 << 30, 30, "the host knows its quota")
            cluster.stop()
        except BaseException:
            print(cluster.logs(), flush=True)
            raise


def inited(host, etcd_url, files):
    done = subprocess.run(host.inside(program("cairnfs"), "cluster", "init", "--metadata", etcd_url, *files,
                                      *host._own_options()), check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.returncode == 0


CASES = [tokens_are_good_once_and_for_their_life, a_removed_node_is_refused,
         a_node_that_was_never_mounted_is_listed_and_removed, a_checkpoint_is_saved_by_all,
         keys_that_others_may_read_are_refused, an_authority_that_was_exchanged_is_noticed,
         certificates_are_renewed_and_end, a_token_makes_no_node_that_is_there, strangers_get_nothing_and_hold_nobody_up,
         an_etcd_that_asks_for_certificates]


def main():
    global seconds_of_strangers
    seed = seed_from_arguments()
    if "--seconds" in sys.argv:
        at = sys.argv.index("--seconds")
        seconds_of_strangers = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata="node", options=OPTIONS) as cluster:
        cluster.start()
        world = World(cluster, seed)
        world.spare = Host(cluster, 4)
        world.cluster.hosts.append(world.spare)  # is taken down with the others
        code = run_cases(CASES, world)
        if code != 0:
            print(cluster.logs(), flush=True)
        return code


if __name__ == "__main__":
    sys.exit(main())
