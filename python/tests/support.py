"""What the tests of the package share. CAIRNFS_TEST_DIR is where they write; CAIRNFS_TEST_SEED makes a run again."""

import ctypes
import json
import mmap
import os
import random
import shutil
import struct
import tempfile
import unittest

import numpy

SEED = int(os.environ.get("CAIRNFS_TEST_SEED", random.randrange(10**9)))
DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    "complex64",
)  # fmt: skip


class Case(unittest.TestCase):
    """A test with a directory of its own, and random numbers that CAIRNFS_TEST_SEED repeats."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="cairnfs-python-", dir=os.environ.get("CAIRNFS_TEST_DIR"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.random = random.Random(f"{SEED} {self.id()}")
        self.bytes = numpy.random.default_rng(self.random.randrange(2**32))

    def path(self, name):
        return os.path.join(self.folder, name)

    def array(self, shape, dtype="uint8"):
        """Random bytes as an array; of bool, zeros and ones."""
        count = int(numpy.prod(shape, dtype=numpy.int64)) * numpy.dtype(dtype).itemsize
        data = self.bytes.integers(0, 2 if dtype == "bool" else 256, count, numpy.uint8)
        return data.view(dtype).reshape(shape)

    def assert_same(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for name, array in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape), (array.dtype, array.shape), name)
            self.assertEqual(found[name].tobytes(), array.tobytes(), name)

    def assert_raises(self, kind, *words):
        """As assertRaises; the text has each of these words."""
        return _Raises(self, kind, words)


def damaged(random, data, count):
    """Copies of these bytes, each with some of them changed, cut off, left out, put in or moved."""
    for _ in range(count):
        made = bytearray(data)
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            at, size = random.randrange(len(made) + 1), random.choice((1, 1, 2, 4, 8, 40))
            what = random.randrange(6)
            if what == 0:
                made[at : at + size] = random.randbytes(len(made[at : at + size]))
            elif what == 1:
                made[at : at + size] = random.choice((b"\0", b"\xff", b"\x7f", b"9")) * len(made[at : at + size])
            elif what == 2 and at < len(made):
                made[at] ^= 1 << random.randrange(8)
            elif what == 3:
                del made[at : random.choice((at + size, len(made) + 1))]
            elif what == 4:
                made[at:at] = random.randbytes(size)
            else:
                begin = random.randrange(len(made) + 1)
                made[at : at + size] = made[begin : begin + size]
        yield bytes(made)


def unmapped_array(size):
    """An array whose memory is gone; it may be described, and not be read."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    array = numpy.frombuffer((ctypes.c_uint8 * size).from_address(address), numpy.uint8)
    assert libc.munmap(address, size) == 0
    return array


class _Raises:
    def __init__(self, case, kind, words):
        self.case, self.kind, self.words = case, kind, words

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if error is None:
            self.case.fail(f"{self.kind.__name__} was not raised")
        if not isinstance(error, self.kind):
            return False
        for word in self.words:
            self.case.assertIn(str(word), str(error))
        return True


def read_plain(path):
    """{name: array} of a safetensors file, read as the format says and by nothing of the package."""
    names = {"BOOL": "bool", "C64": "complex64", **{f"{kind}{bits}": f"{word}{bits}" for kind, word in
             (("U", "uint"), ("I", "int"), ("F", "float")) for bits in (8, 16, 32, 64)}}  # fmt: skip
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header.pop("__metadata__", {})
    spans = sorted(value["data_offsets"] for value in header.values())
    assert not spans or (spans[0][0] == 0 and spans[-1][1] == len(body)), "bytes that belong to no tensor"
    assert all(before[1] == after[0] for before, after in zip(spans, spans[1:])), "tensors do not lie side by side"
    tensors = {}
    for name, value in header.items():
        begin, end = value["data_offsets"]
        dtype = numpy.dtype(names[value["dtype"]])
        assert begin % dtype.itemsize == 0, f"{name} is not aligned"
        tensors[name] = numpy.frombuffer(body[begin:end], dtype).reshape(value["shape"])
    return tensors, metadata
