#!/usr/bin/env python3
"""How training frameworks save on three hosts at once, and load elsewhere.

PyTorch's distributed checkpoint and TensorStore are the real libraries, a process on each host; TensorFlow's two ways to
save are the sequences of calls that it makes (each shard by another host, the merge by one). Torch is Debian's
python3-torch, or that of the Python that CAIRNFS_TORCH_PYTHON names: async_save needs torch 2.4. TensorStore comes from
PyPI into an environment of its own, or is that of CAIRNFS_TENSORSTORE_PYTHON. What cannot run says why.
Options: --seed N, which says what two of the ways are tried; --all: every one. Names of cases run these alone.
"""

import concurrent.futures
import glob
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Scratch, Skip, run, run_cases, sample, seed_from_arguments
from cluster import Cluster

DEBIAN_PYTHON = "/usr/bin/python3"
MIB = 1 << 20


class World:
    def __init__(self, cluster, scratch, seed):
        self.cluster, self.scratch, self.seed = cluster, scratch, seed
        self.random = random.Random(seed)
        self.ports = iter(range(29500, 29600))

    @property
    def hosts(self):
        return self.cluster.hosts


def at_once(jobs):
    """Runs each on a thread of its own; what they return."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        return [done.result() for done in [pool.submit(job) for job in jobs]]


def can_import(python, what):
    return subprocess.run([python, "-c", what], check=False, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def python_with(world, packages, imports):
    """A Python that can do `imports`: that of the variable, or one with packages of PyPI's."""
    variable = f"CAIRNFS_{packages[0].upper()}_PYTHON"
    folder = os.path.join(world.scratch.path, "venv-" + packages[0])
    python = os.environ.get(variable, os.path.join(folder, "bin", "python3"))
    if os.path.exists(python) and can_import(python, imports):
        return python
    if variable in os.environ:
        raise AssertionError(f"{variable}: {python} cannot do this: {imports}")
    try:
        run(DEBIAN_PYTHON, "-m", "venv", folder, timeout=120)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", *packages,
            timeout=600)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise Skip(f"{packages[0]} cannot be installed from PyPI: {str(error)[-300:]}") from None
    return python


# --- torch.distributed.checkpoint: a rank on each host, gloo between them ---------------------------------------------

# Torch 1.13 relies on dataclasses being usable as defaults, which Python 3.11 refuses: as it was before.
TORCH_IMPORT = """
import dataclasses, sys
def hashable(cls=None, **options):
    if cls is None: return lambda made: hashable(made, **options)
    made = dataclass(cls, **options)
    if made.__hash__ is None: made.__hash__ = object.__hash__
    return made
dataclass, is_old = dataclasses.dataclass, False
import torch
if int(torch.__version__.split(".")[0]) < 2:
    is_old, dataclasses.dataclass = True, hashable
import torch.distributed as dist
if is_old:
    from torch.distributed._shard.checkpoint import FileSystemReader, FileSystemWriter, load_state_dict, save_state_dict
    from torch.distributed._shard.sharded_tensor import init_from_local_shards, Shard
else:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor, Shard
"""

TORCH_RANK = TORCH_IMPORT + """
mode, rank, ranks, master, path, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6], int(sys.argv[6])
dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=ranks)

def full(name, step):
    rows = {"embedding": 6000, "up": 1200, "moment": 6000}[name]
    return torch.randn(rows, 256, generator=torch.Generator().manual_seed(hash((seed, step, len(name)))))

def sharded(tensor):
    if not is_old:
        return distribute_tensor(tensor, init_device_mesh("cpu", (ranks,)), [Shard(0)])
    each = tensor.shape[0] // ranks
    mine = tensor[rank * each:(rank + 1) * each].clone()
    return init_from_local_shards([Shard.from_tensor_and_offsets(mine, [rank * each, 0], rank)], *tensor.shape)

def local(tensor):
    return tensor.local_shards()[0].tensor if is_old else tensor.to_local()

def state(step, zero=False):
    made = {name: full(name, step) for name in ("embedding", "up", "moment")}
    made["everywhere"], made["counts"] = torch.arange(1000) * step, torch.full((7,), step, dtype=torch.int64)
    if zero: made = {name: torch.zeros_like(tensor) for name, tensor in made.items()}
    return {name: sharded(tensor) if name in ("embedding", "up", "moment") else tensor for name, tensor in made.items()}

def save(step):
    if is_old: save_state_dict(state(step), FileSystemWriter(f"{path}/step-{step}"))
    else: dcp.save(state(step), checkpoint_id=f"{path}/step-{step}")

def load_and_compare(step):
    loaded, expected = state(step, zero=True), state(step)
    if is_old: load_state_dict(loaded, FileSystemReader(f"{path}/step-{step}"))
    else: dcp.load(loaded, checkpoint_id=f"{path}/step-{step}")
    for name, tensor in expected.items():
        is_sharded = name in ("embedding", "up", "moment")
        assert torch.equal(*(local(one) if is_sharded else one for one in (tensor, loaded[name]))), (name, step)
        assert is_sharded or tensor.any(), name
    print(f"rank {rank} of {ranks}: {len(expected)} tensors of step {step} are the same")

if mode == "save":
    for step in (1, 2): save(step)
elif mode == "async":
    future, kept = None, None
    for step in (1, 2, 3):
        kept = state(step)
        future = dcp.async_save(kept, checkpoint_id=f"{path}/step-{step}")
        if step == 3:  # what training changes while it is written is not in it
            for name in ("everywhere", "counts"): kept[name].add_(1000)
        future.result()
else:
    for step in map(int, mode.split(",")): load_and_compare(step)
dist.barrier()
dist.destroy_process_group()
"""


def torch_ranks(world, python, hosts, mode, folder):
    """A rank on each of the hosts, until all are done."""
    master = f"{hosts[0].ip}:{next(world.ports)}"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    outputs = at_once([lambda rank=rank, host=host: host.run(
        python, "-c", TORCH_RANK, mode, rank, len(hosts), master, host.path(folder), world.seed, timeout=240,
        env=environment) for rank, host in enumerate(hosts)])
    return "".join(outputs)


def torch_version(python):
    return "torch " + run(python, "-c", "import torch; print(torch.__version__)").split()[-1]


def torch_distributed_checkpoint(world):
    """Three ranks save, two of other hosts load: each tensor is the same, sharded anew."""
    python = os.environ.get("CAIRNFS_TORCH_PYTHON", DEBIAN_PYTHON)
    if not can_import(python, TORCH_IMPORT):
        raise Skip(f"{python} has no torch.distributed.checkpoint: install python3-torch, or set CAIRNFS_TORCH_PYTHON")
    a, b, c = world.hosts
    os.mkdir(a.path("dcp"))
    torch_ranks(world, python, [a, b, c], "save", "dcp")
    for step in (1, 2):
        names = set(os.listdir(b.path(f"dcp/step-{step}")))
        assert ".metadata" in names and len(names) >= 4, names
    output = torch_ranks(world, python, [c, b], "1,2", "dcp")
    assert output.count("are the same") == 4, output
    torch_ranks(world, python, [b, c, a], "save", "dcp")  # over what is there, by other hosts
    assert torch_ranks(world, python, [a, c], "1,2", "dcp").count("are the same") == 4
    return torch_version(python)


def torch_async_save(world):
    """Training goes on while three ranks save; what it changes meanwhile is not in the checkpoint."""
    python = os.environ.get("CAIRNFS_TORCH_PYTHON", DEBIAN_PYTHON)
    if not can_import(python, TORCH_IMPORT + "assert not is_old; dcp.async_save"):
        # PyPI's is 5 GB to fetch and 8 on the disk.
        raise Skip(f"{python} has no torch 2.4 or later: set CAIRNFS_TORCH_PYTHON to one that has")
    os.mkdir(world.hosts[0].path("async"))
    torch_ranks(world, python, world.hosts, "async", "async")
    output = torch_ranks(world, python, world.hosts[1:], "1,2,3", "async")
    assert output.count("are the same") == 6, output
    return torch_version(python)


# --- TensorStore: zarr arrays written by three hosts ------------------------------------------------------------------

TENSORSTORE = """
import sys, numpy, tensorstore
mode, part, parts, path, seed, driver, locking = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:8]
rows, columns, chunk = 400, 150, [70, 64]  # the parts meet inside chunks
def value(step): return numpy.random.default_rng([int(seed), step]).integers(1, 1 << 30, (rows, columns), dtype="int32")
spec = {"driver": driver, "kvstore": {"driver": "file", "path": path}}
if driver == "zarr": spec["metadata"] = {"shape": [rows, columns], "chunks": chunk, "dtype": "<i4"}
else: spec["metadata"] = {"shape": [rows, columns], "data_type": "int32",
                          "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}}}
context = tensorstore.Context({"file_io_locking": {"mode": locking}, "cache_pool": {"total_bytes_limit": 0}})
array = tensorstore.open(spec, context=context, open=True, create=mode == "write").result()
if mode == "write":
    first, last = rows * part // parts, rows * (part + 1) // parts
    for step in (1, 2, 3):  # over each other's chunks, again and again
        data = value(step)[first:last]
        jobs = [array[first + i:min(first + i + 23, last)].write(data[i:i + 23]) for i in range(0, last - first, 23)]
        for job in jobs: job.result()
else:
    read = array.read().result()
    assert numpy.array_equal(read, value(3)), numpy.argwhere(read != value(3))[:5]
    print("the same")
"""


def tensorstore_zarr(world):
    """Three hosts write parts that meet inside chunks, under either kind of its locks; another one reads."""
    python = python_with(world, ["tensorstore", "numpy"], "import tensorstore, numpy")
    done = []
    for driver, locking in (("zarr", "os"), ("zarr3", "lockfile")):
        folder = f"tensorstore-{driver}-{locking}"
        os.mkdir(world.hosts[0].path(folder))

        def rank(mode, part, host, folder=folder, words=(world.seed, driver, locking)):
            return host.run(python, "-c", TENSORSTORE, mode, part, 3, host.path(folder) + "/", *words, timeout=240)
        at_once([lambda part=part, host=host: rank("write", part, host) for part, host in enumerate(world.hosts)])
        for outcome in at_once([lambda host=host: rank("read", 0, host) for host in world.hosts]):
            assert "the same" in outcome
        left = [name for _, _, names in os.walk(world.hosts[1].path(folder)) for name in names if "__lock" in name]
        assert not left, left
        done.append(f"{driver} with {locking}")
    return ", ".join(done)


# --- TensorFlow: shards of several hosts, merged by one ---------------------------------------------------------------

def write_through_temporary(path, content, rng):
    with open(f"{path}.tempstate{rng.randrange(10**9)}", "wb", buffering=8 * MIB) as file:
        file.write(content)
    os.rename(file.name, path)


def index_of(shard, content):
    return b"index %d of %d bytes" % (shard, len(content))


def check_restore(world, prefix, contents):
    """As restore does it: slices of the shards, on every host, at once after the merge returned."""
    for host in world.hosts:
        with open(host.path(prefix + ".index"), "rb") as file:
            assert file.read() == b"merged of %d" % len(contents), host.name
        for shard, content in enumerate(contents):
            fd = os.open(host.path(f"{prefix}.data-{shard:05}-of-{len(contents):05}"), os.O_RDONLY)
            try:
                middle = len(content) // 2
                assert os.fstat(fd).st_size == len(content), host.name
                assert os.pread(fd, len(content), middle) == content[middle:], (host.name, shard)
                assert os.pread(fd, middle, 0) == content[:middle], (host.name, shard)
            finally:
                os.close(fd)


def merge(world, host, prefix, part, contents):
    """By one host: it reads the indexes that others wrote, renames their data files, and writes the index in place."""
    for shard, content in enumerate(contents):
        with open(host.path(part(shard) + ".index"), "rb") as file:
            assert file.read() == index_of(shard, content), (host.name, shard)
    for shard in range(len(contents)):
        data = part(shard) + ".data-00000-of-00001"
        assert os.path.exists(host.path(data)), (host.name, data)
        os.rename(host.path(data), host.path(f"{prefix}.data-{shard:05}-of-{len(contents):05}"))
    with open(host.path(prefix + ".index"), "wb") as file:
        file.write(b"merged of %d" % len(contents))
    for shard in range(len(contents)):
        os.unlink(host.path(part(shard) + ".index"))
        for other in world.hosts:
            assert not glob.glob(glob.escape(other.path(part(shard))) + "*"), (other.name, shard)


def save_shards(world, prefix, part, makes_folder, shards=6):
    """Each shard by another host, all at once. What they hold."""
    contents = [world.random.randbytes(world.random.choice([0, 1, world.random.randrange(3 * MIB)])) for _ in range(shards)]
    seeds = [world.random.randrange(10**9) for _ in range(shards)]

    def save(shard):
        host, rng = world.hosts[shard % len(world.hosts)], random.Random(seeds[shard])
        if makes_folder:
            os.makedirs(host.path(f"{prefix}_temp"), exist_ok=True)
        write_through_temporary(host.path(part(shard) + ".data-00000-of-00001"), contents[shard], rng)
        write_through_temporary(host.path(part(shard) + ".index"), index_of(shard, contents[shard]), rng)
    at_once([lambda shard=shard: save(shard) for shard in range(shards)])
    return contents


def tensorflow_checkpoint(world):
    """tf.train.Checkpoint: shards in a temporary directory, the merge across directories, the manager's own file."""
    os.mkdir(world.hosts[0].path("tf"))
    for step in range(1, 5):
        host, prefix = world.hosts[step % 3], f"tf/ckpt-{step}"

        def part(shard, prefix=prefix):
            return f"{prefix}_temp/part-{shard:05}-of-00006"
        contents = save_shards(world, prefix, part, makes_folder=True)
        merge(world, host, prefix, part, contents)
        os.rmdir(host.path(f"{prefix}_temp"))
        with open(host.path(f"tf/checkpoint.tmp{step}"), "w", encoding="ascii") as file:
            file.write(f'model_checkpoint_path: "ckpt-{step}"\n')
        os.rename(file.name, host.path("tf/checkpoint"))
        for other in world.hosts:
            with open(other.path("tf/checkpoint"), encoding="ascii") as file:
                assert f'"ckpt-{step}"' in file.read(), other.name
            assert not os.path.exists(other.path(f"{prefix}_temp")), other.name
        check_restore(world, prefix, contents)
        for old in sorted(glob.glob(host.path(f"tf/ckpt-{step - 2}.*")), key=lambda name: not name.endswith(".index")):
            os.unlink(old)
    for host in world.hosts:
        assert len(glob.glob(host.path("tf/ckpt-*"))) == 2 * 7, host.name


def tensorflow_dtensor(world):
    """DTensor: shards beside the target, without a temporary directory; saved again over what is there."""
    os.mkdir(world.hosts[1].path("dtensor"))
    for step in (1, 2, 2, 3):
        host, prefix = world.hosts[step % 3], f"dtensor/ckpt-{step}"

        def part(shard, prefix=prefix):
            return f"{prefix}_dev-{shard:05}-of-00006"
        contents = save_shards(world, prefix, part, makes_folder=False)
        merge(world, host, prefix, part, contents)
        check_restore(world, prefix, contents)


CASES = [torch_distributed_checkpoint, torch_async_save, tensorstore_zarr, tensorflow_checkpoint, tensorflow_dtensor]


def main():
    seed = seed_from_arguments()
    with Scratch() as scratch, Cluster(scratch, hosts=3, metadata="etcd") as cluster:
        cluster.start()
        status = run_cases(sample(CASES, seed, 2), World(cluster, scratch, seed))
        if status == 0:
            cluster.wait_for_copies()
        else:
            print(cluster.logs())
        return status


if __name__ == "__main__":
    sys.exit(main())
