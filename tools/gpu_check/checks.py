"""What must be right with memory of any kind: fingerprints, saves, loads, bad pointers. Each check raises what it finds
wrong; `memory_of(count)` makes the memory."""

import random

from .library import BLOCK, abi, aligned
from .memory import HostMemory


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
    """Saves of random changes, upon bases that are spoiled now and then; each is compared and loaded."""
    rng = random.Random(2)
    tensors = {f"t{i}": memory_of(rng.choice((7, BLOCK, 3 * BLOCK + 5, 9 * BLOCK))) for i in range(6)}
    base = None
    with client.saver(**options) as saver:
        for i in range(rounds):
            for memory in tensors.values():
                if rng.random() < 0.4:
                    at = rng.randrange(memory.bytes)
                    memory.fill(at, rng.randbytes(min(memory.bytes - at, 1000)))
            spoiled = base is not None and rng.random() < 0.2
            if spoiled:
                with open(base, "r+b") as file:
                    file.seek(rng.randrange(1000))
                    file.write(b"spoiled")
            path = folder / f"save-{i % 3}"
            _save_and_load(client, saver, tensors, path, base, spoiled)
            base = path


def _save_and_load(client, saver, tensors, path, base, spoiled):
    expected = [memory.read() for memory in tensors.values()]
    save = client.start(saver, tensors, path, base)
    client.wait_source(save)
    for memory in tensors.values():  # the source is free
        memory.fill(0, b"changed")
    result = client.wait(save)
    use = abi.BASE_USES[result.base_use]
    # A saver that was not sure of what it had saved takes nothing from it either.
    assert not spoiled or (use in ("no fingerprints", "changed") and result.bytes_reused == 0), use
    content, at = path.read_bytes(), 0
    for data in expected:
        assert content[at : at + len(data)] == data, (path, at)
        at += aligned(len(data))
    for memory, data in zip(tensors.values(), expected):
        memory.fill(0, data[:7])
    client.load(tensors, path)
    assert [memory.read() for memory in tensors.values()] == expected, path


def check_small_ring(client, memory_of, folder, rounds=60):
    check_saves(client, memory_of, folder, rounds, ring_bytes=2 * BLOCK, copies_in_flight=1)


def check_snapshot(client, memory_of, folder, rounds=60):
    check_saves(client, memory_of, folder, rounds, snapshot=1)


def check_bad_pointers(client, memory_of, folder, _rounds=60):
    memory = memory_of(BLOCK)
    kept = memory.pointer
    with client.saver() as saver:
        for pointer in (0, 4096):
            memory.pointer = pointer
            try:
                client.save(saver, {"named": memory}, folder / "bad")
            except abi.errors.PointerError as error:
                assert "named" in str(error), error
            else:
                raise AssertionError(f"a save of address {pointer} succeeded")
        memory.pointer = kept
        assert not (folder / "bad").exists()
        client.save(saver, {"named": memory}, folder / "good")  # the context lives


ALL = (check_fingerprints, check_saves, check_small_ring, check_snapshot, check_bad_pointers)
# What compute-sanitizer runs, a hundred times slower: every kernel and copy. Bad pointers are errors by intent.
SANITIZED = (check_fingerprints, check_saves, check_small_ring, check_snapshot)
SANITIZED_ROUNDS = 6
