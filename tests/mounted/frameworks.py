#!/usr/bin/env python3
"""How training frameworks save and load, each pattern as the framework does it, on a mount.

torch.save and torch.load are PyTorch's own (Debian's python3-torch); the others are the sequences of system calls that
the frameworks make. Options: --seed N; names of cases run these alone.
"""

import fcntl
import glob
import json
import mmap
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, Skip, program, run, run_cases, seed_from_arguments

MIB = 1 << 20


class World:
    def __init__(self, mount, seed):
        self.mount, self.seed, self.random = mount, seed, random.Random(seed)

    def path(self, *names):
        return os.path.join(self.mount.path, *names)

    def durability(self, path):
        return os.getxattr(path, "user.cairnfs.durability").decode()


def in_torch_python(code, *arguments):
    """Runs code in the Python that has torch: it need not be this one."""
    python = "/usr/bin/python3"
    if subprocess.run([python, "-c", "import torch"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip("python3-torch is not installed")
    return run(python, "-c", code, *arguments, env={**os.environ, "OMP_NUM_THREADS": "2"})


SAVE_TWO_STEPS = """
import os, sys, torch
root, seed = sys.argv[1], int(sys.argv[2])
torch.manual_seed(seed)
model = torch.nn.Sequential(torch.nn.Embedding(4000, 256), torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256))
frozen = torch.nn.Linear(1024, 2048).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters())
def state():
    return {"model": model.state_dict(), "frozen": frozen.state_dict(), "optimizer": optimizer.state_dict()}
kept = []
for step in (1, 2):
    model(torch.randint(0, 4000, (8, 16))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    temporary = f"{root}/step-{step}.tmp"
    os.mkdir(temporary)
    torch.save(state(), f"{temporary}/model.pt")
    torch.save(state(), f"{temporary}/legacy.pt", _use_new_zipfile_serialization=False)
    os.rename(temporary, f"{root}/step-{step}")
    kept.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
def same(a, b):
    if torch.is_tensor(a): return torch.equal(a, b)
    if isinstance(a, dict): return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)): return len(a) == len(b) and all(map(same, a, b))
    return a == b
for name in ("model.pt", "legacy.pt"):
    assert same(torch.load(f"{root}/step-2/{name}"), state()), name
    assert same(torch.load(f"{root}/step-1/{name}")["model"], kept[0]), name
torch.save(state(), f"{root}/expected.pt")
"""

LOAD_AGAIN = """
import sys, torch
root = sys.argv[1]
a, b = torch.load(f"{root}/step-2/model.pt"), torch.load(f"{root}/expected.pt")
assert all(torch.equal(a["model"][k], b["model"][k]) for k in b["model"])
assert all(torch.equal(x[k], y[k]) for x, y in zip(a["optimizer"]["state"].values(), b["optimizer"]["state"].values())
           for k in x if torch.is_tensor(x[k]))
"""


def torch_save_and_load(world):
    root = world.path("torch")
    os.mkdir(root)
    in_torch_python(SAVE_TWO_STEPS, root, str(world.seed))
    deadline = time.monotonic() + 60  # what nobody waits for, a time of reading say, becomes durable by itself
    while world.durability(root + "/step-2") != "local":
        assert time.monotonic() < deadline, f"step-2 is {world.durability(root + '/step-2')} after a minute"
        time.sleep(0.1)
    world.mount.remount()
    in_torch_python(LOAD_AGAIN, root)
    return f"dedup ratio {world.mount.status()['dedup_ratio']:.2f}"


def _distributed_rank(root, rank, barrier):
    """torch.distributed.checkpoint, as every rank does it."""
    contents = random.Random(rank)
    os.makedirs(root, exist_ok=True)
    for number in range(2):
        with open(f"{root}/__{rank}_{number}.distcp", "wb") as stream:
            for _ in range(5):
                stream.write(contents.randbytes(contents.randrange(MIB)))
            stream.flush()
            os.fsync(stream.fileno())
    barrier.wait(60)
    if rank == 0:
        if os.path.exists(f"{root}/.metadata"):
            os.unlink(f"{root}/.metadata")
        with open(f"{root}/.metadata.tmp", "wb") as file:
            file.write(b"metadata")
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{root}/.metadata.tmp", f"{root}/.metadata")
    barrier.wait(60)


def torch_distributed_checkpoint(world):
    root, ranks = world.path("dcp"), 4
    for _ in range(2):  # the second time over the first: the files are truncated in place
        barrier = multiprocessing.Barrier(ranks)
        processes = [multiprocessing.Process(target=_distributed_rank, args=(root, rank, barrier)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        assert sorted(os.listdir(root)) == [".metadata"] + sorted(f"__{r}_{n}.distcp" for r in range(ranks) for n in range(2))
    for rank in range(ranks):
        contents = random.Random(rank)
        for number in range(2):
            with open(f"{root}/__{rank}_{number}.distcp", "rb") as stream:
                expected = b"".join(contents.randbytes(contents.randrange(MIB)) for _ in range(5))
                assert stream.read() == expected
                stream.seek(len(expected) // 3)
                assert stream.read(1000) == expected[len(expected) // 3:][:1000]


TORCH_SHARDED = """
import os, sys, torch
root = sys.argv[1]
try:
    from torch.distributed._shard.checkpoint import FileSystemReader, FileSystemWriter, load_state_dict, save_state_dict
except Exception as error:
    print("cannot be imported:", type(error).__name__)
    sys.exit(0)
os.makedirs(root, exist_ok=True)
state = {"a": torch.randn(300, 300), "b": torch.arange(1000)}
save_state_dict(state, FileSystemWriter(root), no_dist=True)
loaded = {"a": torch.zeros(300, 300), "b": torch.zeros(1000, dtype=torch.int64)}
load_state_dict(loaded, FileSystemReader(root), no_dist=True)
assert torch.equal(state["a"], loaded["a"]) and torch.equal(state["b"], loaded["b"])
"""


def torch_shard_checkpoint(world):
    output = in_torch_python(TORCH_SHARDED, world.path("shard"))
    if "cannot be imported" in output:
        raise Skip(output.strip())


def safetensors(world):
    """A named temporary file beside the target, renamed over it; loaded through a private mapping."""
    path = world.path("model.safetensors")
    tensors = {f"layer.{i}.weight": world.random.randbytes(world.random.randrange(1, 3 * MIB)) for i in range(12)}
    header, position = {}, 0
    for name, content in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [position, position + len(content)]}
        position += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    for _ in range(2):
        temporary = world.path(f".tmp{world.random.randrange(10**9)}")
        with open(temporary, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for content in tensors.values():
                file.write(content)
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
        size = int.from_bytes(mapped[:8], "little")
        found = json.loads(mapped[8:8 + size])
        for name in world.random.sample(sorted(tensors), len(tensors)):
            begin, end = found[name]["data_offsets"]
            assert mapped[8 + size + begin:8 + size + end] == tensors[name], name


def _write_zarr_chunk(root, key, content):
    """TensorStore's file driver: lock file, OFD lock, the same inode?, write, fsync, rename while locked, fsync of the
    directory."""
    path, lock_path = f"{root}/{key}", f"{root}/{key}.__lock"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    while True:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        lock = OFD_LOCK(fcntl.F_WRLCK)
        fcntl.fcntl(fd, F_OFD_SETLKW, lock)
        try:
            there = os.stat(lock_path)
        except FileNotFoundError:
            there = None
        held = os.fstat(fd)
        if there is not None and (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino):
            break
        os.close(fd)  # somebody renamed it away meanwhile
    os.ftruncate(fd, 0)
    assert os.write(fd, content) == len(content)
    os.fsync(fd)
    os.rename(lock_path, path)
    os.close(fd)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


F_OFD_SETLKW = 38


def OFD_LOCK(kind):
    return kind.to_bytes(2, "little") + b"\0" * 30


def tensorstore_zarr(world):
    """T5X: chunks in parallel into a temporary directory, which is renamed as a whole; retention deletes the oldest."""
    contents = {}
    for step in range(1, 6):
        temporary = world.path(f"checkpoint_{step}.tmp-1700000000")
        os.mkdir(temporary)
        jobs = []
        for array in range(3):
            os.makedirs(f"{temporary}/target.{array}")
            with open(f"{temporary}/target.{array}/.zarray", "w", encoding="ascii") as file:
                json.dump({"chunks": [100], "shape": [1000]}, file)
            for chunk in range(10):
                key = f"target.{array}/{chunk}"
                contents[step, key] = world.random.randbytes(world.random.randrange(1, 200000))
                jobs += [(temporary, key, contents[step, key])] * (2 if chunk == 3 else 1)  # two writers of one key
        threads = [threading.Thread(target=lambda part: [_write_zarr_chunk(*job) for job in part], args=(jobs[i::16],))
                   for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with open(f"{temporary}/checkpoint", "wb") as file:
            file.write(b"msgpack")
        os.rename(temporary, world.path(f"checkpoint_{step}"))
        assert world.durability(world.path(f"checkpoint_{step}")) == "local"
        kept = sorted(glob.glob(world.path("checkpoint_*/checkpoint")))
        for old in kept[:-2]:
            shutil.rmtree(os.path.dirname(old))
    assert not glob.glob(world.path("checkpoint_*/*/*.__lock"))
    for (step, key), content in contents.items():
        path = world.path(f"checkpoint_{step}", key)
        if step <= 3:
            assert not os.path.exists(path)
        else:
            with open(path, "rb") as file:
                assert file.read() == content, path


def tensorflow_checkpoint(world):
    """Shards through temporary names, moved across directories by the merge, which writes the index in place."""
    root = world.path("tf")
    os.mkdir(root)
    for step in range(1, 5):
        prefix, shards = f"{root}/ckpt-{step}", 3
        contents = [world.random.randbytes(world.random.randrange(MIB)) for _ in range(shards)]
        os.makedirs(f"{prefix}_temp", exist_ok=True)
        for i, content in enumerate(contents):
            for suffix, text in ((f".data-00000-of-00001", content), (".index", b"index %d" % i)):
                path = f"{prefix}_temp/part-{i:05}-of-{shards:05}{suffix}"
                with open(f"{path}.tempstate{world.random.randrange(10**9)}", "wb", buffering=8 * MIB) as file:
                    file.write(text)
                os.rename(file.name, path)
        for i in range(shards):
            part = f"{prefix}_temp/part-{i:05}-of-{shards:05}"
            with open(part + ".index", "rb") as file:
                assert file.read() == b"index %d" % i
            os.rename(part + ".data-00000-of-00001", f"{prefix}.data-{i:05}-of-{shards:05}")
        with open(prefix + ".index", "wb") as file:
            file.write(b"merged")
        for i in range(shards):
            os.unlink(f"{prefix}_temp/part-{i:05}-of-{shards:05}.index")
        os.rmdir(f"{prefix}_temp")
        with open(f"{root}/checkpoint.tmp{step}", "w", encoding="ascii") as file:
            file.write(f'model_checkpoint_path: "ckpt-{step}"\n')
        os.rename(file.name, f"{root}/checkpoint")
        for old in sorted(glob.glob(f"{root}/ckpt-{step - 2}.*"), key=lambda name: not name.endswith(".index")):
            os.unlink(old)
        for i, content in enumerate(contents):
            fd = os.open(f"{prefix}.data-{i:05}-of-{shards:05}", os.O_RDONLY)
            middle = len(content) // 2
            assert os.pread(fd, len(content), middle) == content[middle:]
            os.close(fd)
    assert len(glob.glob(f"{root}/ckpt-*")) == 2 * 4


def orbax(world):
    """mkdir that must fail when the name is there, files, a marker, a rename; deletion by a rename aside."""
    root = world.path("orbax")
    os.mkdir(root)
    for step in range(3):
        temporary = f"{root}/{step}.orbax-checkpoint-tmp"
        os.mkdir(temporary)
        try:
            os.mkdir(temporary)
            raise AssertionError("mkdir of a name that is there")
        except FileExistsError:
            pass
        for item in ("state", "metadata"):
            os.makedirs(f"{temporary}/{item}/d")
            with open(f"{temporary}/{item}/d/data", "wb") as file:
                file.write(world.random.randbytes(300000))
        with open(f"{temporary}/commit_success.txt", "w", encoding="ascii") as file:
            file.write("Checkpoint commit was successful")
        os.rename(temporary, f"{root}/{step}")
    os.mkdir(f"{root}/todelete")
    os.rename(f"{root}/0", f"{root}/todelete/0")
    shutil.rmtree(f"{root}/todelete")
    assert sorted(os.listdir(root)) == ["1", "2"]


def trackers_and_links(world):
    """DeepSpeed, Megatron, NVRx: a tracker written in place, a link replaced, O_EXCL and a rename of the file."""
    root = world.path("megatron")
    os.mkdir(root)
    for step in (100, 200, 300):
        os.mkdir(f"{root}/global_step{step}")
        for rank in range(3):
            with open(f"{root}/global_step{step}/{rank}.dirty.pt", "xb") as file:
                file.write(bytes([rank]) * 500000)
            os.rename(file.name, f"{root}/global_step{step}/{rank}.pt")
        with open(f"{root}/latest", "w", encoding="ascii") as file:
            file.write(f"global_step{step}")
        os.symlink(f"global_step{step}", f"{root}/current.new")
        os.rename(f"{root}/current.new", f"{root}/current")
        for old in glob.glob(f"{root}/global_step{step - 100}"):
            shutil.rmtree(old)
    with open(f"{root}/latest", encoding="ascii") as file:
        assert file.read() == "global_step300"
    with open(f"{root}/current/2.pt", "rb") as file:
        assert file.read() == b"\2" * 500000
    assert sorted(os.listdir(root)) == ["current", "global_step300", "latest"]


def everything_is_collected(world):
    """Without files nothing is stored."""
    run(program("cairnfs"), "wait", world.mount.path)
    world.mount.check()
    for name in os.listdir(world.mount.path):
        path = world.path(name)
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    world.mount.collect()
    status = world.mount.status()
    assert status["chunk_count"] == 0 and status["unique_bytes"] == 0, status


CASES = [torch_save_and_load, torch_shard_checkpoint, torch_distributed_checkpoint, safetensors, tensorstore_zarr,
         tensorflow_checkpoint, orbax, trackers_and_links, everything_is_collected]


def main():
    seed = seed_from_arguments()
    with Scratch() as scratch:
        mount = Mount(scratch)
        status = run_cases(CASES, World(mount, seed))
        if status != 0:
            print(mount.log())
        return status


if __name__ == "__main__":
    sys.exit(main())
