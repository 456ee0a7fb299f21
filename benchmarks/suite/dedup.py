"""The rows about duplicate bytes: what share of them is found, case by case.

Every case saves something first, then something that holds so many bytes again, and compares the chunk bytes that were
stored anew with the bytes that were really new.
"""

import json
import os
import random

from machine import GIB, KIB, MIB, run
from measuring import Row
from saving import BLOCK
from subjects import Cairn


class Case:
    """The contents of files, put together in the load generator's buffer."""

    def __init__(self, bench, cairn):
        self.bench, self.cairn = bench, cairn
        self.end = 0

    def clear(self):
        self.end = 0
        return self

    def random(self, seed, size):
        self.bench.load("fill", seed, self.end, size)
        self.end += size

    def text(self, data):
        self.bench.load("text", self.end, data.hex())
        self.end += len(data)

    def save(self, name, files=1):
        """Saves the buffer as `files` equal files at once; the chunk bytes that were new."""
        before = self.cairn.status()["new_bytes_total"]
        self.bench.load("save", "rename", f"{self.cairn.path}/{name}", files, self.end, 0, BLOCK)
        return self.cairn.status()["new_bytes_total"] - before


def safetensors_header(names, sizes, metadata):
    header, position = {"__metadata__": metadata}, 0
    for name, size in zip(names, sizes):
        header[name] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def model_sizes(total):
    """Tensor sizes as models have them: large ones and many small ones. The same at every run."""
    choose, sizes, left = random.Random(4), [], total
    while left > 0:
        size = min(left, choose.choice((4 * KIB, 16 * KIB, MIB, 4 * MIB, 16 * MIB, 16 * MIB)))
        sizes.append(size)
        left -= size
    return sizes


METADATA = {"format": "pt"}


def put_model(case, seed, sizes, metadata=METADATA, first_name="layers.0.weight"):
    case.clear()
    names = [first_name, *(f"layers.{i}.weight" for i in range(1, len(sizes)))]
    case.text(safetensors_header(names, sizes, metadata))
    for i, size in enumerate(sizes):
        case.random(seed + i, size)


def found(duplicate, really_new, new):
    """The share of the duplicate bytes that was not stored again, in percent, and how many there were."""
    return 100.0 * (duplicate - max(0, new - really_new)) / duplicate, duplicate


def identical(case, bench, size):
    put_model(case, bench.next_seed(), model_sizes(size))
    case.save("identical-1")
    return found(case.end, 0, case.save("identical-2"))


def longer_header(case, bench, size, kind, **longer):
    """The same tensors behind a header that has grown, so that all of them have moved."""
    seed, sizes = bench.next_seed(), model_sizes(size)
    put_model(case, seed, sizes)
    case.save(kind + "-1")
    put_model(case, seed, sizes, **longer)
    header = case.end - size
    return found(size, header, case.save(kind + "-2"))


def longer_key(case, bench, size):
    note = {"note": "a longer metadata key, which moves all that follows"}
    return longer_header(case, bench, size, "key", metadata={**METADATA, **note})


def longer_name(case, bench, size):
    return longer_header(case, bench, size, "name", first_name="model.decoder.layers.0.attention.output.weight")


def four_ranks(case, bench, size):
    put_model(case, bench.next_seed(), model_sizes(size // 2))
    return found(3 * case.end, case.end, case.save("ranks", files=4))


def copy_from_outside(case, bench, size):
    put_model(case, bench.next_seed(), model_sizes(size))
    case.save("inside")
    outside = bench.plain_directory("outside")
    bench.load("save", "none", outside, 1, case.end, 0, BLOCK)
    before = case.cairn.status()["new_bytes_total"]
    run("cp", "-r", outside, case.cairn.path + "/outside")
    case.cairn.wait()
    new = case.cairn.status()["new_bytes_total"] - before
    bench.forget(outside)
    return found(case.end, 0, new)


def insertion(case, bench, size):
    seed = bench.next_seed()
    case.clear().random(seed, size)
    case.save("insertion-1")
    case.clear().text(bytes(range(16)))
    case.random(seed, size)
    return found(size, 16, case.save("insertion-2"))


def other_order(case, bench, size, value=2 * MIB):
    """The same values in another order, as frameworks store what many threads write."""
    seeds = [bench.next_seed() for _ in range(size // value)]

    def put(order):
        case.clear()
        for seed in order:
            case.random(seed, value)

    put(seeds)
    case.save(f"order-1-{value}")
    put(random.Random(value).sample(seeds, len(seeds)))
    return found(case.end, 0, case.save(f"order-2-{value}"))


def frozen_base(case, bench, size, layer=32 * MIB):
    """Layers that stay, an adapter of 1 MiB after each that does not. A matrix of 4096 by 4096 in bfloat16 takes
    32 MiB, and its adapter of rank 64 takes 1 MiB."""
    seed, layers = bench.next_seed(), max(2, size // layer)

    def put():
        case.clear()
        for i in range(layers):
            case.random(seed + i, layer)
            case.random(bench.next_seed(), MIB)

    put()
    case.save(f"frozen-1-{layer}")
    put()
    return found(layers * layer, layers * MIB, case.save(f"frozen-2-{layer}"))


TWO_FORMATS = """
import sys, torch
from safetensors.torch import save_file
torch_path, safetensors_path, total, each = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
state = {f"layers.{i}.weight": torch.randn(each // 4) * 0.02 for i in range(max(1, total // each))}
torch.save(state, torch_path)
save_file(state, safetensors_path)
"""


def two_formats(case, bench, size, tensor=16 * MIB):
    """Between two tensors torch.save writes a record header."""
    python = bench.framework_python()
    directory = bench.plain_directory("formats")
    run(python, "-c", TWO_FORMATS, directory + "/model.pt", directory + "/model.safetensors", size, tensor)
    os.mkdir(case.cairn.path + "/formats")
    run("cp", directory + "/model.pt", case.cairn.path + "/formats")
    case.cairn.wait()
    before = case.cairn.status()["new_bytes_total"]
    run("cp", directory + "/model.safetensors", case.cairn.path + "/formats")
    case.cairn.wait()
    new = case.cairn.status()["new_bytes_total"] - before
    case.cairn.remove("formats")
    size = os.path.getsize(directory + "/model.safetensors")
    bench.forget(directory)
    return found(size, 0, new)


def frozen_base_small(case, bench, size):
    return frozen_base(case, bench, size, 16 * MIB)


def two_formats_small(case, bench, size):
    return two_formats(case, bench, size, 2 * MIB)


def two_formats_middle(case, bench, size):
    return two_formats(case, bench, size, 8 * MIB)


def other_order_large(case, bench, size):
    return other_order(case, bench, size, 8 * MIB)


def dedup_rows(bench):
    half = max(64 * MIB, min(bench.size // (4 if bench.quick else 2), GIB // 2))
    cases = (("identical re-save", identical, half, 99),
             ("one longer tensor name earlier in the file", longer_name, half, 98),
             ("one longer metadata key earlier in the file", longer_key, half, 98),
             ("four ranks saving the same replica", four_ranks, half, 99),
             ("cp from outside of a checkpoint already stored", copy_from_outside, half, 95),
             ("one 16-byte insertion at the front", insertion, min(bench.size - MIB, GIB), 99),
             ("frozen base with 1 MiB adapters between its layers of 32 MiB", frozen_base, half, 95),
             ("the same with layers of 16 MiB", frozen_base_small, half, 95),
             ("values of 8 MiB in another order", other_order_large, half, 94),
             ("values of 2 MiB in another order", other_order, half, 88),
             ("the same tensors of 16 MiB by torch.save and by safetensors", two_formats, half, 94),
             ("the same tensors of 8 MiB", two_formats_middle, half, 94),
             ("the same tensors of 2 MiB", two_formats_small, half, 88))
    row = Row("dedup: share of the duplicate bytes that is found")
    with Cairn(bench, "dedup") as cairn:
        for name, measure, size, goal in cases:
            try:
                share, duplicate = measure(Case(bench, cairn), bench, size)
                row.check(f"{name}; {duplicate / MIB:.0f} MiB", [share], "%", at_least=goal)
            except bench.CannotRun as reason:
                row.notes.append(f"{name}: cannot run: {reason}")
    return [row]
