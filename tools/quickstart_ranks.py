"""One rank of a training job that saves, or loads, a sharded checkpoint with torch.distributed.checkpoint over gloo.

quickstart_ranks.py save|load DIR RANK WORLD MASTER_IP:PORT
save: all ranks write into DIR.tmp, then rank 0 renames it to DIR. load: any number of ranks reads DIR, and compares every
tensor bit for bit with what was saved. Nothing here knows CairnFS.
"""
import contextlib
import dataclasses
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist

LAYERS, ROWS, COLUMNS = 6, 1536, 1024
SEED = 11


@contextlib.contextmanager
def dataclasses_of_old_torch():
    """torch 1.13 has defaults in its dataclasses that Python 3.11 takes for mutable, because they have no hash."""
    make = dataclasses._process_class

    def make_hashable(cls, *arguments, **options):
        made = make(cls, *arguments, **options)
        if made.__hash__ is None:
            made.__hash__ = object.__hash__
        return made

    dataclasses._process_class = make_hashable
    try:
        yield
    finally:
        dataclasses._process_class = make


with dataclasses_of_old_torch():
    try:
        import torch.distributed.checkpoint as checkpoint
    except ImportError:
        import torch.distributed._shard.checkpoint as checkpoint
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec


def tensor_of(name, shape):
    """What the tensor of this name holds, on whichever rank."""
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(f"{SEED}/{name}".encode()).digest()[:7], "big"))
    return torch.randn(shape, generator=generator)


def names():
    for layer in range(LAYERS):
        for kind in ("weight", "exp_avg"):
            yield f"layers.{layer}.{kind}", (ROWS, COLUMNS)


def make_state(world, fill):
    """Large tensors in shards over the ranks, small ones whole on each; `fill` (or zeros) is what they hold."""
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in range(world)])
    state = {}
    for name, shape in names():
        sharded = sharded_tensor.zeros(spec, *shape)
        if fill:
            whole = tensor_of(name, shape)
            for shard in sharded.local_shards():
                shard.tensor.copy_(part_of(whole, shard.metadata))
        state[name] = sharded
    for layer in range(LAYERS):
        name = f"layers.{layer}.bias"
        state[name] = tensor_of(name, (COLUMNS,)) if fill else torch.zeros(COLUMNS)
    return state


def part_of(whole, metadata):
    for dim, (offset, size) in enumerate(zip(metadata.shard_offsets, metadata.shard_sizes)):
        whole = whole.narrow(dim, offset, size)
    return whole


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def compare(state):
    compared = 0
    for name, value in state.items():
        if torch.is_tensor(value) and not hasattr(value, "local_shards"):
            assert same_bits(value, tensor_of(name, value.shape)), name
            compared += 1
            continue
        whole = tensor_of(name, value.size())
        for shard in value.local_shards():
            assert same_bits(shard.tensor, part_of(whole, shard.metadata)), (name, shard.metadata)
            compared += 1
    return compared


def save(folder, rank, world):
    temporary = folder + ".tmp"
    if rank == 0:
        os.makedirs(temporary)
    dist.barrier()
    state = make_state(world, fill=True)
    began = time.monotonic()
    checkpoint.save_state_dict(state, checkpoint.FileSystemWriter(temporary))
    dist.barrier()
    saved = time.monotonic()
    if rank == 0:
        os.rename(temporary, folder)  # returns once every rank's bytes are safe; readers see all of it or nothing
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        print(f"{world} ranks saved {size / 2**20:.1f} MiB in {saved - began:.2f} s; "
              f"the rename took {time.monotonic() - saved:.2f} s", flush=True)
    dist.barrier()


def load(folder, rank, world):
    state = make_state(world, fill=False)
    began = time.monotonic()
    checkpoint.load_state_dict(state, checkpoint.FileSystemReader(folder))
    seconds = time.monotonic() - began
    compared = torch.tensor(compare(state))
    dist.all_reduce(compared)
    if rank == 0:
        print(f"{world} ranks loaded it in {seconds:.2f} s: {compared.item()} tensors and shards, "
              f"every one equal bit for bit", flush=True)


def main():
    what, folder, rank, world, master = sys.argv[1:]
    rank, world = int(rank), int(world)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=world)
    (save if what == "save" else load)(folder, rank, world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
