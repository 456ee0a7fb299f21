"""Measures. Each measurement puts raw figures into `world.figures`, a list with one entry for each round, by names that
begin with "device." or "host.": where the tensors lie. goals.py makes ratios of them."""

import concurrent.futures
import dataclasses
import os
import pathlib
import random
import time

from . import peers
from .library import BLOCK, Client, abi
from .memory import DeviceMemory, HostMemory

TENSORS = 8
CHAIN_BYTES_MAX = 1 << 30


@dataclasses.dataclass
class World:
    client: Client
    folder: pathlib.Path
    bytes: int  # of the state
    rounds: int
    saves: int  # of the chain
    has_device: bool
    figures: dict = dataclasses.field(default_factory=dict)

    @property
    def kind(self):
        return "device" if self.has_device else "host"

    @property
    def memory_of(self):
        return DeviceMemory if self.has_device else HostMemory

    def add(self, name, value):
        self.figures.setdefault(name, []).append(value)


def _state(memory_of, size, seed):
    """Tensors of random bytes. The peer has other ones: CairnFS stores the same content once."""
    tensors = {f"t{i}": memory_of(max(size // TENSORS // BLOCK, 1) * BLOCK) for i in range(TENSORS)}
    with concurrent.futures.ThreadPoolExecutor(peers.THREADS) as pool:
        list(pool.map(lambda i: tensors[f"t{i}"].randomize(seed * TENSORS + i), range(TENSORS)))
    return tensors


def _size(tensors):
    return sum(memory.bytes for memory in tensors.values())


def _change_all(tensors):
    for memory in tensors.values():
        memory.change(0, memory.bytes)


def fingerprints(world):
    memory = world.memory_of(world.bytes if world.has_device else min(world.bytes, 1 << 29))
    memory.randomize(1)
    world.client.fingerprint(memory)  # the kernel is loaded
    for _ in range(world.rounds):
        begin = time.monotonic()
        world.client.fingerprint(memory)
        world.add(f"{world.kind}.fingerprint_bytes_per_s", memory.bytes / (time.monotonic() - begin))


def _add_save(world, name, result):
    world.add(name + "_held_s", result.held_s)
    world.add(name + "_durable_s", result.durable_ns / 1e9)
    world.add(name + "_bus_bytes", result.bytes_over_bus)
    world.add(name + "_reused_bytes", result.bytes_reused)


class _Series:
    """One saver, its files by turns, and the last of them as the base: fingerprints are made and compared each time."""

    def __init__(self, world, saver, tensors, name):
        self._world, self._saver, self._tensors, self._name = world, saver, tensors, name
        self._last, self._number = None, 0

    def save(self):
        self._number += 1
        path = self._world.folder / f"{self._name}-{self._number % 2}"
        result = self._world.client.save(self._saver, self._tensors, path, self._last)
        self._last = path
        return result

    def save_unchanged(self):
        """Once more where the saver could not be sure of its base, or took less than all from it: that figure would be
        of something else."""
        for _ in range(3):
            result = self.save()
            if abi.BASE_USES[result.base_use] == "used" and result.bytes_reused == _size(self._tensors):
                return result
            self._world.add("bases_not_used", result.base_text.decode())
        raise AssertionError(f"the base is not used: {result.base_text.decode()}, {result.bytes_reused} bytes reused")


def _saves_beside_peers(world, kind, memory_of):
    """Saves with everything and with nothing changed, beside plain writers and torch.save, in turns."""
    tensors = _state(memory_of, world.bytes, 1)
    theirs = _state(HostMemory, world.bytes, 2) if memory_of is DeviceMemory else tensors
    world.figures[f"{kind}.bytes"] = _size(tensors)
    # On a device, where the state goes through it, the ring holds all of it.
    options = {"ring_bytes": _size(tensors) + 64 * BLOCK} if memory_of is DeviceMemory else {}
    with world.client.saver(**options) as saver:
        series = _Series(world, saver, tensors, "state")
        series.save()
        for _ in range(world.rounds):
            _change_all(tensors)
            _add_save(world, f"{kind}.changed", series.save())
            _add_save(world, f"{kind}.unchanged", series.save_unchanged())
            _change_all(theirs)
            written, durable = peers.plain_write(world.folder / "plain", [each.buffer for each in theirs.values()])
            os.unlink(world.folder / "plain")  # the disk need not hold the files of all at once
            world.add(f"{kind}.plain_written_s", written)
            world.add(f"{kind}.plain_durable_s", durable)
            if peers.has_torch():
                _change_all(tensors)
                returned, durable = peers.torch_save(world.folder / "torch.pt", tensors)
                world.add(f"{kind}.torch_s", returned)
                world.add(f"{kind}.torch_durable_s", durable)
                os.unlink(world.folder / "torch.pt")


def saves(world):
    _saves_beside_peers(world, world.kind, world.memory_of)


def saves_of_the_host(world):
    """The last row of the table is about the CPU, also where there is a device."""
    if world.has_device:
        _saves_beside_peers(world, "host", HostMemory)


def _changed_with(world, name, tensors, **options):
    with world.client.saver(**options) as saver:
        series = _Series(world, saver, tensors, name)
        series.save()  # memory that is kept between saves is there
        for _ in range(world.rounds):
            _change_all(tensors)
            result = series.save()
            _add_save(world, f"{world.kind}.{name}", result)
            world.add(f"{world.kind}.{name}_ring_bytes", result.ring_bytes)
            world.add(f"{world.kind}.{name}_snapshot", result.snapshot)


def small_ring(world):
    tensors = _state(world.memory_of, world.bytes, 3)
    _changed_with(world, "small_ring", tensors, ring_bytes=max(world.bytes // 4, 2 * BLOCK))


def snapshot(world):
    _changed_with(world, "snapshot", _state(world.memory_of, world.bytes, 4), snapshot=1)


def loads(world):
    """From the page cache, where that holds the file: what the disk takes is the same for both."""
    tensors = _state(world.memory_of, world.bytes, 5)
    world.figures[f"{world.kind}.load_bytes"] = _size(tensors)
    buffers = [HostMemory(memory.bytes).buffer for memory in tensors.values()]
    with world.client.saver() as saver:
        world.client.save(saver, tensors, world.folder / "load")
    peers.plain_read(world.folder / "load", buffers)
    for _ in range(world.rounds):
        world.add(f"{world.kind}.load_s", world.client.load(tensors, world.folder / "load"))
        world.add(f"{world.kind}.plain_read_s", peers.plain_read(world.folder / "load", buffers))


def pinned(world):
    if not world.has_device:
        return
    memory = DeviceMemory(min(world.bytes, 2 << 30))
    for _ in range(world.rounds):
        to_host, to_device = peers.pinned_copies(memory.torch())
        world.add("device.pinned_to_host_bytes_per_s", to_host)
        world.add("device.pinned_to_device_bytes_per_s", to_device)


def chain(world):
    """Many saves, each upon the one before, a tenth of the blocks changed: what all of them need together, and how fast
    the last one loads, beside a file of that size that was written whole. Where files share nothing, each would be a copy
    of the one before."""
    if not peers.shares_extents(world.folder):
        print("chain: not measured: it needs CairnFS, or a file system with reflinks", flush=True)
        return
    found = os.statvfs(world.folder)
    tensors = _state(world.memory_of, min(world.bytes, CHAIN_BYTES_MAX, found.f_bavail * found.f_frsize // 16), 6)
    blocks = [(memory, at) for memory in tensors.values() for at in range(0, memory.bytes, BLOCK)]
    rng = random.Random(7)
    changed = _size(tensors)
    folder = world.folder / "chain"
    folder.mkdir()
    before = peers.used_bytes(world.folder)
    with world.client.saver() as saver:
        world.client.save(saver, tensors, folder / "0")
        for i in range(1, world.saves + 1):
            for memory, at in rng.sample(blocks, max(len(blocks) // 10, 1)):
                memory.change(at, BLOCK)
                changed += BLOCK
            world.client.save(saver, tensors, folder / str(i), folder / str(i - 1))
    world.figures[f"{world.kind}.chain_file_bytes"] = _size(tensors)
    world.figures[f"{world.kind}.chain_saves"] = world.saves
    world.figures[f"{world.kind}.chain_space_bytes"] = peers.used_bytes(world.folder) - before
    world.figures[f"{world.kind}.chain_changed_bytes"] = changed
    _load_chain(world, tensors, folder / str(world.saves))


def _load_chain(world, tensors, last):
    saved = [world.client.fingerprint(memory) for memory in tensors.values()]
    _change_all(tensors)  # content that is stored nowhere else
    with world.client.saver() as saver:
        world.client.save(saver, tensors, world.folder / "whole")
    for _ in range(world.rounds):
        for name, path in (("whole", world.folder / "whole"), ("chain", last)):
            peers.forget(path)
            world.add(f"{world.kind}.{name}_load_s", world.client.load(tensors, path))
    assert saved == [world.client.fingerprint(memory) for memory in tensors.values()], f"{last} has other bytes"


ALL = (fingerprints, pinned, saves, small_ring, snapshot, loads, chain, saves_of_the_host)
