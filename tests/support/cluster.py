"""Several hosts on one machine: a network namespace each, joined by a bridge, with a data directory and a mount each.

Everything lies in namespaces of its own, with names of its own, so that runs do not meet: the hosts, the bridge, and the
members of etcd. Mounts stay in the mount namespace of the caller (only the network of a process is another one), so a
test looks into every host's mount. Leaving the cluster takes all of it down, also after a failure. Needs root.

    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata="etcd") as cluster:
        cluster.start()
        a, b, c = cluster.hosts
        open(a.path("x"), "w").close()
        cluster.cut(a, b)                # no packets between them, in either direction
        c.kill()                         # as kill -9 of its daemon
"""

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import time

from cairnfs_mount import has_ended, program, run

PEER_PORT, METADATA_PORT, JOIN_PORT, CLIENT_PORT, ETCD_PORT = 7401, 7402, 7403, 2379, 2380
NETWORK = "10.77.0.0/24"
NOBODY = "02:00:00:00:00:00"  # a hardware address that no host has: what is sent there is lost
AGREED = ("min_replicas", "lease", "out_after", "dedup")  # settings of the whole cluster: init is told of them
SMALL = {"pool_size": "64MiB", "reserve": "8MiB", "segment_size": "32MiB"}


def wait_until(condition, seconds=60, what="", every=0.1):
    """Calls condition until it is true; its value. A look that takes long, as one by a program, is taken more rarely.
    what: what is waited for, or a function that says it once it did not come."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not after {seconds} s: {what() if callable(what) else what or condition}")
        time.sleep(max(every, 3 * (time.monotonic() - began)))


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Namespace:
    """A network namespace with one interface, eth0, on the bridge of its Network."""

    def __init__(self, cluster, name, ip):
        self.cluster, self.name, self.ip = cluster, name, ip
        self.netns = f"{cluster.prefix}-{name}"
        self.processes = []
        run("ip", "netns", "add", self.netns)
        cluster.namespaces.append(self)
        port = f"to-{name}"
        run("ip", "-n", self.netns, "link", "set", "lo", "up")
        run("ip", "-n", self.netns, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns",
            cluster.bridge_netns)
        run("ip", "-n", cluster.bridge_netns, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", self.netns, "addr", "add", f"{ip}/24", "dev", "eth0")
        run("ip", "-n", self.netns, "link", "set", "eth0", "up")

    def inside(self, *command):
        """The command that runs `command` with this network."""
        return ["nsenter", f"--net=/run/netns/{self.netns}", *(str(word) for word in command)]

    def run(self, *command, **options):
        return run(*self.inside(*command), **options)

    def start(self, *command, **options):
        """A process in this namespace, which ends with this one or with the test."""
        if self.cluster.outlives_us:
            options["start_new_session"] = True
        else:
            options["preexec_fn"] = _die_with_parent
        process = subprocess.Popen(self.inside(*command), **options)
        self.processes.append(process)
        return process

    def set_link(self, up):
        """The cable of the host: whatever it sends or should receive is lost while it is down."""
        run("ip", "-n", self.cluster.bridge_netns, "link", "set", f"to-{self.name}", "up" if up else "down")

    def kill_processes(self):
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.processes = []


class Etcd(Namespace):
    """One member of the etcd."""

    def __init__(self, cluster, number):
        super().__init__(cluster, f"etcd{number}", f"10.77.0.{100 + number}")
        self.data = os.path.join(cluster.scratch.path, self.name)
        self.process = None

    @property
    def endpoint(self):
        return f"{self.ip}:{CLIENT_PORT}"

    def serve(self):
        members = ",".join(f"{m.name}=http://{m.ip}:{ETCD_PORT}" for m in self.cluster.etcd)
        client, peer = f"http://{self.endpoint}", f"http://{self.ip}:{ETCD_PORT}"
        with open(self.data + ".log", "ab") as log:
            self.process = self.start(
                "etcd", "--name", self.name, "--data-dir", self.data, "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", members, "--initial-cluster-token", self.cluster.prefix,
                "--heartbeat-interval", "200", "--election-timeout", "2000", *self.cluster.etcd_flags, stdout=log,
                stderr=log)

    def is_healthy(self):
        done = subprocess.run(self.inside("etcdctl", "--endpoints", self.endpoint, "endpoint", "health"), check=False,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={**os.environ, "ETCDCTL_API": "3"})
        return done.returncode == 0

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.processes.remove(self.process)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)


class Host(Namespace):
    """A host with CairnFS: configuration, data directory and mount are its own."""

    def __init__(self, cluster, number):
        super().__init__(cluster, f"host{number}", f"10.77.0.{number}")
        self.number = number
        self.config = os.path.join(cluster.scratch.path, self.name + ".toml")
        self.data = os.path.join(cluster.scratch.path, self.name + "-data")
        self.mount_point = cluster.scratch.directory(self.name)
        self.options = {}  # keys of its configuration alone
        self.pid = None
        self.wiped_log = ""  # of data directories that were lost

    def path(self, *names):
        return os.path.join(self.mount_point, *names)

    def cairnfs(self, *words, **options):
        return self.run(program("cairnfs"), *words, **options)

    @property
    def listen(self):
        return f"{self.ip}:{PEER_PORT}"

    def _own_options(self):
        return ["--listen", self.listen, "--data", self.data, "--mount-point", self.mount_point, "--config",
                self.config, "--name", self.name, "--force"]

    def init(self):
        where = (["--metadata", self.cluster.etcd_url] if self.cluster.etcd
                 else ["--serve-metadata", f"{self.ip}:{METADATA_PORT}"])
        agreed = [word for key in AGREED if key in self.cluster.options
                  for word in ("--" + key.replace("_", "-"), self.cluster.options[key])]
        trust = [] if self.cluster.certificates else ["--trusted-network", NETWORK]
        output = self.cairnfs("cluster", "init", *trust, "--copies", self.cluster.copies, *where, *agreed,
                              *self._own_options())
        self._add_options()
        return output

    def token(self, *options):
        """For one host, which joins by this one."""
        return json.loads(self.cairnfs("cluster", "token", "--data", self.data, "--json", *options))["token"]

    def join(self):
        first = self.cluster.hosts[0]
        address = self.cluster.etcd_url or f"{first.ip}:{METADATA_PORT}"
        words = [address]
        if self.cluster.certificates:
            words = [f"{first.ip}:{JOIN_PORT}", "--token", first.token()]
        output = self.cairnfs("cluster", "join", *words, *self._own_options())
        self._add_options()
        return output

    def _add_options(self):
        with open(self.config, "a", encoding="utf-8") as config:
            for key, value in {**self.cluster.options, **self.options}.items():
                if key in AGREED:
                    continue
                config.write(f"{key} = {json.dumps(value)}\n")

    def mount(self, timeout=120, **environment):
        try:
            self.cairnfs("mount", "--config", self.config, timeout=timeout, env={**os.environ, **environment})
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None
        self.pid = self.status()["pid"]

    def umount(self, timeout=300):
        self.cairnfs("umount", self.mount_point, timeout=timeout)
        self.pid = None

    def kill(self):
        """kill -9 of the daemon; its mount goes too."""
        if self.pid is not None:
            self.signal(signal.SIGKILL)
            wait_until(lambda: not self.is_alive(), 30, f"{self.name}'s daemon is gone")
            self.pid = None
        subprocess.run(["umount", "-l", self.mount_point], check=False, stderr=subprocess.DEVNULL)

    def is_alive(self):
        """Until then it holds its port and its data directory."""
        return not has_ended(self.pid)

    def signal(self, number):
        """To the daemon, if it still is one."""
        with contextlib.suppress(OSError):
            with open(f"/proc/{self.pid}/comm", encoding="ascii") as name:
                if name.read().strip() == "cairnfsd":
                    os.kill(self.pid, number)

    def pause(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def wipe(self):
        """Its disk is gone. REQUIRES: no daemon runs."""
        self.wiped_log += self._whole_log()[-6000:]
        shutil.rmtree(self.data)

    def status(self):
        return json.loads(self.cairnfs("status", "--data", self.data, "--json"))

    def what_is_wrong(self):
        """With its data, as text; empty when nothing is, and nothing had to be repaired."""
        try:
            report = self.cairnfs("check", "--data", self.data, "--json", timeout=600)
        except AssertionError as failure:
            return str(failure)
        found = json.loads(report)
        return "" if found["clean"] and found["repaired_count"] == 0 else report

    def cluster_status(self):
        return json.loads(self.cairnfs("cluster", "status", "--data", self.data, "--json"))

    def node_list(self):
        """What this host knows of the nodes. One that joined anew may have the name of one that is out."""
        return json.loads(self.cairnfs("node", "list", "--data", self.data, "--json"))["nodes"]

    def nodes(self):
        """The same by name."""
        return {node["name"]: node for node in self.node_list()}

    def states(self):
        return {name: node["state"] for name, node in self.nodes().items()}

    def log(self):
        text = self.wiped_log + self._whole_log()[-6000:]
        return f"-- log of {self.name}\n{text}" if text else ""

    def sessions_lost(self):
        """How many sessions its daemons have noticed the loss of."""
        return self._whole_log().count("session with the cluster is lost")

    def _whole_log(self):
        try:
            with open(os.path.join(self.data, "cairnfs.log"), encoding="utf-8", errors="replace") as log:
                return log.read()
        except OSError:
            return ""


class Network:
    """A bridge in a namespace of its own, for the namespaces of hosts. Leaving it ends what was started in these, and
    takes all of them down. outlives_us: what was started stays when this process ends without leaving it."""

    def __init__(self, scratch, outlives_us=False):
        self.scratch, self.outlives_us = scratch, outlives_us
        self.prefix = "cairn-" + secrets.token_hex(3)
        self.bridge_netns = self.prefix + "-net"
        self.namespaces = []
        try:
            run("ip", "netns", "add", self.bridge_netns)
            run("ip", "-n", self.bridge_netns, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self.bridge_netns, "link", "set", "bridge", "up")
            self._make_hosts()
        except BaseException:
            self.__exit__()
            raise

    def _make_hosts(self):
        """What else is to be there from the start."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for namespace in self.namespaces:
            namespace.kill_processes()
        for name in [*(namespace.netns for namespace in self.namespaces), self.bridge_netns]:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


class Cluster(Network):
    """metadata: "etcd" (with etcd_members of it, and further etcd_flags), or "node" (the first host serves it).
    options: keys of the configuration, of every host. certificates: nodes have them, else they trust the network."""

    def __init__(self, scratch, hosts=3, metadata="etcd", etcd_members=1, copies=2, options=None, outlives_us=False,
                 certificates=True, etcd_flags=()):
        self.etcd_flags = etcd_flags
        self.copies, self.certificates = copies, certificates
        self.options = {**SMALL, **(options or {})}
        self.etcd, self.hosts, self.cuts = [], [], []
        self._counts = hosts, etcd_members if metadata == "etcd" else 0
        super().__init__(scratch, outlives_us)

    def _make_hosts(self):
        hosts, etcd_members = self._counts
        for number in range(1, etcd_members + 1):
            self.etcd.append(Etcd(self, number))
        for number in range(1, hosts + 1):
            self.hosts.append(Host(self, number))

    def __exit__(self, *_):
        for host in self.hosts:
            if host.pid is not None:
                host.resume()
                host.kill()
        super().__exit__()

    @property
    def etcd_url(self):
        return "etcd://" + ",".join(member.endpoint for member in self.etcd) + "/cairnfs" if self.etcd else ""

    def start_etcd(self):
        for member in self.etcd:
            member.serve()
        for member in self.etcd:
            wait_until(member.is_healthy, 60, f"{member.name} is healthy")

    def start(self):
        """Everything: the first host makes the cluster, the others join it, all mount it."""
        self.start_etcd()
        self.hosts[0].init()
        for host in self.hosts:
            if host is not self.hosts[0]:
                host.join()
            host.mount()
        self.wait_for_states({host.name: "up" for host in self.hosts})

    def stop(self):
        """Unmounts every host; the one that serves the metadata last."""
        for host in reversed(self.hosts):
            if host.pid is not None:
                host.umount()

    def wait_for_states(self, states, seconds=60, at=None):
        """Until the hosts `at` (default: all that run) see every node of `states` in that state, or out where down is
        wanted: down lasts for out_after alone, which a busy machine sleeps through."""
        def is_in(state, wanted):
            return state == wanted or (wanted, state) == ("down", "out")

        def agreed():
            seen = [host.states() for host in at or [host for host in self.hosts if host.pid is not None]]
            return all(is_in(of.get(name), wanted) for of in seen for name, wanted in states.items())
        wait_until(agreed, seconds, f"nodes are {states}")

    def wait_for_copies(self, seconds=120, at=None):
        """Until no host that runs knows of a chunk that lacks copies."""
        hosts = at or [host for host in self.hosts if host.pid is not None]

        def whole():
            clusters = [host.status()["cluster"] for host in hosts]
            return all(not c["missing_copies"] and not c["unacknowledged_bytes"] and not c["repair_chunks_left"]
                       and not c["repair_phase"] for c in clusters)
        wait_until(whole, seconds, "every chunk has its copies", every=0.3)

    def drop(self, source, target):
        """What `source` sends to `target` is lost; not the other way round."""
        run("ip", "-n", source.netns, "neigh", "replace", target.ip, "lladdr", NOBODY, "dev", "eth0", "nud",
            "permanent")
        self.cuts.append((source, target))

    def cut(self, one, other):
        self.drop(one, other)
        self.drop(other, one)

    def split(self, *groups):
        """Only namespaces of one group reach each other."""
        for index, group in enumerate(groups):
            for other in groups[index + 1:]:
                for a in group:
                    for b in other:
                        self.cut(a, b)

    def heal(self):
        for source, target in self.cuts:
            subprocess.run(["ip", "-n", source.netns, "neigh", "del", target.ip, "dev", "eth0"], check=False,
                           stderr=subprocess.DEVNULL)
        self.cuts = []

    def logs(self):
        return "\n".join(host.log() for host in self.hosts)


def on(store, case):
    """The case, with that store for the metadata, by a name that tells it."""
    def run_case():
        return case(store)
    run_case.__name__ = f"{case.__name__}_{store}"
    return run_case
