"""Builds the client library without meson, and calls it as a program in C would."""

import concurrent.futures
import contextlib
import ctypes
import importlib
import os
import pathlib
import subprocess
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_abi():
    """python/cairnfs/_abi.py, which describes the C ABI once for all of Python. It is loaded under a name of its own:
    the package itself would import numpy, and find its own library."""
    package = types.ModuleType("gpu_check_cairnfs")
    package.__path__ = [str(ROOT / "python" / "cairnfs")]
    sys.modules[package.__name__] = package
    return importlib.import_module("gpu_check_cairnfs._abi")


abi = load_abi()
BLOCK = abi.BLOCK_BYTES


ALIGNMENT = 4096  # where file systems can share extents


def aligned(count, alignment=ALIGNMENT):
    return -(-count // alignment) * alignment


def cuda_commands(nvcc, folder):
    """How the kernels are compiled for every device that this compiler knows of those that meson names, and what the
    library is linked with."""
    known = subprocess.run([nvcc, "--list-gpu-code"], check=True, capture_output=True, text=True).stdout.split()
    targets = [number for number in ("80", "90", "100") if f"sm_{number}" in known]
    codes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in targets]
    codes.append(f"-gencode=arch=compute_{targets[-1]},code=compute_{targets[-1]}")
    command = [nvcc, "-std=c++20", "-O3", "-Xcompiler=-fPIC,-Wall,-Wextra", "-D_GNU_SOURCE",
               f"-I{ROOT}/src", f"-I{ROOT}/include", *codes, "-c", ROOT / "src/client/cuda_device.cu",
               "-o", folder / "cuda_device.o"]
    root = pathlib.Path(os.path.realpath(nvcc)).parent.parent
    return command, [f"-L{root}/lib64", f"-L{root}/lib", "-lcudart_static", "-ldl", "-lrt"]


def build(folder, nvcc):
    """Compiles the lists that meson reads too; the library's path."""
    source = ROOT / "src"
    flags = ["-std=c++20", "-O3", "-fPIC", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", f"-I{source}",
             f"-I{ROOT}/include"]
    sources = [source / "client" / name for name in (source / "client/sources.txt").read_text().split()]
    sources += [source / "base" / name for name in (source / "client/base_sources.txt").read_text().split()]
    libraries = []
    if nvcc:
        cuda_command, libraries = cuda_commands(nvcc, folder)
    else:
        sources.append(source / "client/no_devices.cc")
    commands = [["g++", *flags, "-c", path, "-o", folder / f"{path.parent.name}_{path.stem}.o"] for path in sources]
    if nvcc:
        commands.insert(0, cuda_command)  # the longest one
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: subprocess.run([str(word) for word in command], check=True), commands))
    library = folder / "libcairnfs_client.so"
    objects = [str(command[-1]) for command in commands]
    subprocess.run(["g++", "-shared", "-o", str(library), *objects, "-pthread", *libraries], check=True)
    return library


class Client:
    """The functions of one built library. Tensors are {name: memory}, see memory.py; a file holds them in that order,
    each at a multiple of 4096, or of what start is told."""

    def __init__(self, path):
        os.environ["CAIRNFS_CLIENT_LIBRARY"] = str(path)
        self.library = abi.library()

    @contextlib.contextmanager
    def saver(self, **options):
        saver = ctypes.c_void_p()
        abi.call("cairnfs_saver_open", ctypes.byref(abi.sized(abi.SaverOptions, **options)), ctypes.byref(saver))
        try:
            yield saver
        finally:
            self.library.cairnfs_saver_close(saver)

    def start(self, saver, tensors, path, base=None, alignment=ALIGNMENT, streams=None):
        offset, segments = 0, []
        for name, memory in tensors.items():
            segments.append(
                abi.Segment(offset, memory.bytes, memory.pointer, abi.TENSOR, memory.device, name.encode()))
            offset += aligned(memory.bytes, alignment)
        request = abi.sized(abi.SaveRequest, path=os.fsencode(path), base=os.fsencode(base) if base else None,
                            file_bytes=offset, segments=(abi.Segment * len(segments))(*segments),
                            segment_count=len(segments), streams=abi.streams_of(streams or {}),
                            stream_count=len(streams or {}))
        save = ctypes.c_void_p()
        abi.call("cairnfs_save_start", saver, ctypes.byref(request), ctypes.byref(save))
        return save

    def wait_source(self, save):
        abi.call("cairnfs_save_wait_source", save, -1)

    def wait(self, save):
        result = abi.sized(abi.SaveResult)
        try:
            abi.call("cairnfs_save_wait", save, -1, ctypes.byref(result))
        finally:
            self.library.cairnfs_save_release(save)
        return result

    def save(self, saver, tensors, path, base=None):
        """The result, with `held_s`: how long a caller is held, by the clock that torch.save is measured with."""
        begin = time.monotonic()
        save = self.start(saver, tensors, path, base)
        with contextlib.suppress(abi.errors.Error):  # wait has it too
            self.wait_source(save)
        held_s = time.monotonic() - begin
        result = self.wait(save)
        result.held_s = held_s
        return result

    def load(self, tensors, path):
        """Reads what save wrote; how many seconds the call took, with a loader that was open before."""
        loader = ctypes.c_void_p()
        abi.call("cairnfs_loader_open", None, ctypes.byref(loader))
        offset, reads = 0, []
        for name, memory in tensors.items():
            reads.append(abi.Read(offset, memory.bytes, memory.pointer, memory.device, 0, name.encode()))
            offset += aligned(memory.bytes)
        request = abi.sized(abi.LoadRequest, path=os.fsencode(path), reads=(abi.Read * len(reads))(*reads),
                            read_count=len(reads))
        begin = time.monotonic()
        try:
            abi.call("cairnfs_load", loader, ctypes.byref(request))
            return time.monotonic() - begin
        finally:
            self.library.cairnfs_loader_close(loader)

    def fingerprint(self, memory, at=0, count=None):
        count = memory.bytes - at if count is None else count
        room = (count + BLOCK - 1) // BLOCK * abi.DIGEST_BYTES
        digests = ctypes.create_string_buffer(max(room, 1))
        abi.call("cairnfs_fingerprint", memory.pointer + at, count, memory.device, None, digests, room)
        return digests.raw[:room]
