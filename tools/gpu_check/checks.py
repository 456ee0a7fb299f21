"""What must be right with memory of any kind: fingerprints, saves, loads, bad pointers. Each check raises what it finds
wrong, or returns why it did not run; `memory_of(count)` makes the memory."""

import contextlib
import dataclasses
import itertools
import random

from .library import BLOCK, abi, aligned
from .memory import HostMemory, device_count, free_text, freed_pointer, full_device, pending_fill

NEEDS_GPU = "not run: needs a GPU"


def check_fingerprints(client, memory_of, _folder, _rounds=60):
    memory, host = memory_of(3 * BLOCK), HostMemory(3 * BLOCK)
    data = random.Random(1).randbytes(3 * BLOCK)
    memory.fill(0, data)
    host.fill(0, data)
    for around in (1, 64, 1024, 2048, 3072, 128 * 1024, BLOCK, 2 * BLOCK):
        for count in range(max(1, around - 2), around + 3):
            for at in (0, 1, 4, 8):
                assert client.fingerprint(memory, at, count) == client.fingerprint(host, at, count), (count, at)


def check_saves(client, memory_of, folder, rounds=60, **options):
    """Saves of random changes, upon bases that are spoiled now and then, before the save and while it runs; each is
    compared and loaded."""
    rng = random.Random(2)
    tensors = {f"t{i}": memory_of(rng.choice((7, BLOCK, 3 * BLOCK + 5, 9 * BLOCK))) for i in range(6)}
    base, good, used, reused = None, 0, 0, 0
    with client.saver(**options) as saver:
        for i in range(rounds):
            for memory in tensors.values():
                if rng.random() < 0.4:
                    at = rng.randrange(memory.bytes)
                    memory.fill(at, rng.randbytes(min(memory.bytes - at, 1000)))
            spoiled = None if base is None else rng.choices((None, "before", "during"), (7, 2, 2))[0]
            path = folder / f"save-{i % 3}"
            result = _save_and_load(client, saver, tensors, path, base, spoiled)
            _check_snapshot_is_taken(tensors, result, options)
            if base is not None and spoiled is None:
                good, used, reused = good + 1, used + (_use(result) == "used"), reused + result.bytes_reused
            base = path
    # Now and then a saver is not sure of what it had saved.
    assert used * 2 > good and reused > 0, f"{used} of {good} good bases were used, {reused} bytes of them"


def _use(result):
    return abi.BASE_USES[result.base_use]


def _check_snapshot_is_taken(tensors, result, options):
    size = sum(memory.bytes for memory in tensors.values() if memory.device != abi.HOST)
    if options.get("snapshot") and size > 0:
        assert result.snapshot == 1, f"no snapshot of {size} bytes; {free_text()}"


def _spoil(base):
    with open(base, "r+b") as file:
        file.seek(500)
        file.write(b"spoiled")


def _save_and_load(client, saver, tensors, path, base, spoiled=None):
    expected = [memory.read() for memory in tensors.values()]
    if spoiled == "before":
        _spoil(base)
    save = client.start(saver, tensors, path, base)
    if spoiled == "during":
        _spoil(base)
    client.wait_source(save)
    for memory in tensors.values():  # the source is free
        memory.fill(0, b"changed")
    result = client.wait(save)
    # A saver that was not sure of what it had saved takes nothing from it either.
    if spoiled == "before":
        assert _use(result) in ("no fingerprints", "changed") and result.bytes_reused == 0, _use(result)
    content, at = path.read_bytes(), 0
    for data in expected:
        assert content[at : at + len(data)] == data, (path, at)
        at += aligned(len(data))
    for memory, data in zip(tensors.values(), expected):
        memory.fill(0, data[:7])
    client.load(tensors, path)
    assert [memory.read() for memory in tensors.values()] == expected, path
    return result


def check_small_ring(client, memory_of, folder, rounds=60):
    check_saves(client, memory_of, folder, rounds, ring_bytes=2 * BLOCK, copies_in_flight=1)


def check_snapshot(client, memory_of, folder, rounds=60):
    check_saves(client, memory_of, folder, rounds, snapshot=1)


def check_host_and_device(client, memory_of, folder, rounds=60):
    """A state that lies in both."""
    if memory_of is HostMemory:
        return NEEDS_GPU
    kinds = itertools.cycle((HostMemory, memory_of))
    check_saves(client, lambda count: next(kinds)(count), folder, rounds)
    return None


def check_side_stream(client, memory_of, folder, _rounds=60):
    """Work that is pending on the stream of the request comes before the save."""
    if memory_of is HostMemory:
        return NEEDS_GPU
    memory = memory_of(9 * BLOCK)
    for options in ({}, {"snapshot": 1}):
        with client.saver(**options) as saver:
            memory.fill(0, bytes(memory.bytes))
            with pending_fill(memory, 7) as stream:
                client.wait(client.start(saver, {"t": memory}, folder / "side", streams={0: stream}))
        assert (folder / "side").read_bytes() == bytes([7]) * memory.bytes, f"the save did not wait, {options}"
    return None


def check_bad_pointers(client, memory_of, folder, _rounds=60):
    memory = memory_of(BLOCK)
    with client.saver() as saver:
        for what, bad in _bad_memories(memory):
            _refused(client, saver, bad, folder / "bad", abi.errors.PointerError, what)
            client.save(saver, {"named": memory}, folder / "good")  # the context lives
    assert not (folder / "bad").exists()


def _refused(client, saver, memory, path, kind, what):
    try:
        client.save(saver, {"named": memory}, path)
    except kind as error:
        assert "named" in str(error), error
    else:
        raise AssertionError(f"a save of {what} succeeded")


@dataclasses.dataclass
class _Pointer:
    pointer: int
    bytes: int
    device: int


def _bad_memories(memory):
    """(what it is, memory that cannot be read); each is made when the one before has been tried."""
    for pointer in (0, 4096):
        yield f"address {pointer}", _Pointer(pointer, memory.bytes, memory.device)
    yield "a length past the allocation", _Pointer(memory.pointer, 1 << 45, memory.device)
    if memory.device == abi.HOST:
        return
    host = HostMemory(BLOCK)
    yield "memory of the host as the device's", _Pointer(host.pointer, host.bytes, memory.device)
    pointer, size = freed_pointer()
    yield "memory that was freed", _Pointer(pointer, size, memory.device)
    if device_count() > 1:
        yield "memory of device 0 as device 1's", _Pointer(memory.pointer, memory.bytes, 1)


def check_no_memory(client, memory_of, folder, _rounds=60):
    """A ring that is too large, and a device that is full: refused, and the next save succeeds."""
    memory = memory_of(BLOCK)
    try:
        with client.saver(ring_bytes=1 << 50) as saver:
            client.save(saver, {"named": memory}, folder / "file")
    except abi.errors.NoMemoryError:
        pass
    else:
        raise AssertionError("a ring of 2^50 bytes was pinned")
    if memory_of is not HostMemory:
        with contextlib.suppress(abi.errors.NoDeviceMemoryError), full_device(), client.saver(snapshot=1) as saver:
            client.save(saver, {"named": memory}, folder / "file")
    with client.saver() as saver:
        client.save(saver, {"named": memory}, folder / "file")
    assert (folder / "file").read_bytes() == memory.read()


ALL = (check_fingerprints, check_saves, check_small_ring, check_snapshot, check_host_and_device, check_side_stream,
       check_bad_pointers, check_no_memory)
# What compute-sanitizer runs, a hundred times slower: every kernel and copy. Bad pointers are errors by intent.
SANITIZED = (check_fingerprints, check_saves, check_small_ring, check_snapshot)
SANITIZED_ROUNDS = 6
