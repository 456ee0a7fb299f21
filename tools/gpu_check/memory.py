"""Memory of the host and of a CUDA device, with the few things that checks and measurements do to it.

Both kinds have: `pointer`, `bytes`, `device` as the C ABI wants them; fill(at, data); read(); randomize(seed);
change(at, count), which gives every byte there another value, and no block the content that it or another had before;
and torch(), the same memory as a torch tensor."""

import contextlib
import ctypes
import random

from .library import BLOCK, abi

try:
    import numpy
except ImportError:  # the same without it takes ten times as long
    numpy = None

# Every byte plus one: 255 changes give 255 new contents, and random ones stay as random as they were.
_NEXT = bytes((byte + 1) % 256 for byte in range(256))


class HostMemory:
    device = abi.HOST

    def __init__(self, count):
        self.bytes = count
        self.buffer = memoryview(bytearray(count))
        self.pointer = ctypes.addressof((ctypes.c_char * count).from_buffer(self.buffer))

    def fill(self, at, data):
        self.buffer[at : at + len(data)] = data

    def read(self):
        return bytes(self.buffer)

    def randomize(self, seed):
        if numpy is not None:
            rng, words = numpy.random.Generator(numpy.random.SFC64(seed)), self.bytes // 8
            if words > 0:
                numpy.frombuffer(self.buffer, numpy.uint64, words)[:] = rng.integers(0, 1 << 64, words, numpy.uint64)
            self.fill(8 * words, rng.bytes(self.bytes % 8))
            return
        rng = random.Random(seed)
        for at in range(0, self.bytes, BLOCK):
            self.fill(at, rng.randbytes(min(BLOCK, self.bytes - at)))

    def change(self, at, count):
        if numpy is not None:
            array = numpy.frombuffer(self.buffer, numpy.uint8, count, at)
            array += 1
            return
        for begin in range(at, at + count, BLOCK):
            end = min(begin + BLOCK, at + count)
            self.fill(begin, bytes(self.buffer[begin:end]).translate(_NEXT))

    def torch(self):
        import torch
        return torch.frombuffer(self.buffer, dtype=torch.uint8)


class DeviceMemory:
    device = 0

    def __init__(self, count):
        import torch
        self._torch, self.bytes = torch, count
        self._tensor = torch.zeros(count, dtype=torch.uint8, device="cuda:0")
        self.pointer = self._tensor.data_ptr()

    def fill(self, at, data):
        self._tensor[at : at + len(data)] = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8).cuda()
        self._torch.cuda.synchronize()

    def read(self):
        data = bytearray(self.bytes)
        self._torch.frombuffer(data, dtype=self._torch.uint8).copy_(self._tensor)
        return bytes(data)

    def randomize(self, seed):
        self._tensor.random_(0, 256, generator=self._torch.Generator("cuda:0").manual_seed(seed))
        self._torch.cuda.synchronize()

    def change(self, at, count):
        self._tensor[at : at + count].add_(1)
        self._torch.cuda.synchronize()

    def torch(self):
        return self._tensor


def device_count():
    import torch
    return torch.cuda.device_count()


def free_text():
    import torch
    return "{} of {} bytes of the device are free".format(*torch.cuda.mem_get_info(0))


def freed_pointer():
    """(address, bytes) of device memory that torch has given back."""
    import torch
    tensor = torch.zeros(64 * BLOCK, dtype=torch.uint8, device="cuda:0")  # so large that it is an allocation of its own
    pointer = tensor.data_ptr()
    del tensor
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return pointer, 64 * BLOCK


@contextlib.contextmanager
def full_device():
    """Takes what memory of the device there is."""
    import torch
    taken, size = [], torch.cuda.mem_get_info(0)[0]
    while size >= BLOCK:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda:0"))
        except torch.cuda.OutOfMemoryError:
            size //= 2
    try:
        yield
    finally:
        taken.clear()
        torch.cuda.empty_cache()


@contextlib.contextmanager
def pending_fill(memory, value):
    """A stream on which the memory is filled only after a while, as a number."""
    import torch
    stream = torch.cuda.Stream(0)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1 << 29)  # a few tenths of a second
        memory.torch().fill_(value)
    yield stream.cuda_stream
    stream.synchronize()
