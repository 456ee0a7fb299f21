"""States of torch, and how they are compared."""

import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support import Case, damaged  # pylint: disable=wrong-import-position,unused-import

# Tests run with device tensors where there is a device.
DEVICES = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]  # fmt: skip


def random_tensor(random, shape, dtype=torch.float32, device="cpu"):
    """Random bits of a dtype; of bool, zeros and ones."""
    size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    data = torch.frombuffer(bytearray(random.randbytes(size) or b"\0"), dtype=torch.uint8)[:size].clone()
    if dtype == torch.bool:
        data %= 2
    return data.view(dtype).reshape(shape).to(device)


def bits(tensor):
    """The bits of a dense tensor in row-major order, NaNs and all."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.reshape(-1)


def difference(a, b, path="state"):
    """Where two states differ in types, shapes, strides, dtypes or bits; None where they do not."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        if a.layout != b.layout or a.dtype != b.dtype or a.shape != b.shape or a.requires_grad != b.requires_grad:
            return f"{path}: {a} and {b}"
        if a.layout != torch.strided:
            return difference(a.to_dense(), b.to_dense(), path)
        return None if a.stride() == b.stride() and torch.equal(bits(a), bits(b)) else f"{path}: values or strides"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{path}: {list(a)} and {list(b)}"
        return next((d for key in a if (d := difference(a[key], b[key], f"{path}.{key}"))), None)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{path}: {len(a)} and {len(b)} items"
        return next((d for i in range(len(a)) if (d := difference(a[i], b[i], f"{path}.{i}"))), None)
    return None if a == b else f"{path}: {a} and {b}"


def model_and_optimizer(device="cpu", width=300):
    """A small model after one step of Adam, as modules."""
    model = torch.nn.Sequential(torch.nn.Embedding(500, width), torch.nn.Linear(width, 1000), torch.nn.Linear(1000, 3))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.arange(20, device=device)).sum().backward()
    optimizer.step()
    return model, optimizer
