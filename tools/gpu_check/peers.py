"""What saves and loads are compared with: plain threads that write and read, torch.save, copies from pinned memory; and
what the directory lies on."""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import time

from .library import aligned

# As the client library: 4 threads, or the number of processors if that is less.
THREADS = min(4, os.cpu_count() or 1)
PIECE = 4 << 20


def _pieces(buffers):
    """(offset in the file, memoryview) of buffers that lie in the file as the library puts them."""
    offset = 0
    for buffer in buffers:
        for at in range(0, len(buffer), PIECE):
            yield offset + at, buffer[at : at + PIECE]
        offset += aligned(len(buffer))


def _write_piece(number, offset, view):
    while view:
        count = os.pwrite(number, view, offset)
        offset, view = offset + count, view[count:]


def plain_write(path, buffers):
    """Writes a file with THREADS threads and makes it durable under its name: (seconds until it was written, until it
    was durable)."""
    temporary = f"{path}.plain"
    begin = time.monotonic()
    number = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.ftruncate(number, sum(aligned(len(buffer)) for buffer in buffers))
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda piece: _write_piece(number, *piece), _pieces(buffers)))
        written = time.monotonic() - begin
        os.fsync(number)
    finally:
        os.close(number)
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)
    return written, time.monotonic() - begin


def _read_piece(number, offset, view):
    while view:
        count = os.preadv(number, [view], offset)
        assert count > 0, "the file is shorter than it was written"
        offset, view = offset + count, view[count:]


def plain_read(path, buffers):
    """Reads it with THREADS threads: seconds."""
    number = os.open(path, os.O_RDONLY)
    begin = time.monotonic()
    try:
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda piece: _read_piece(number, *piece), _pieces(buffers)))
        return time.monotonic() - begin
    finally:
        os.close(number)


def torch_save(path, tensors):
    """(seconds until torch.save returned, until the file was durable too)."""
    import torch
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    state = {name: memory.torch() for name, memory in tensors.items()}
    begin = time.monotonic()
    torch.save(state, path)
    returned = time.monotonic() - begin
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return returned, time.monotonic() - begin


def pinned_copies(device_tensor):
    """(bytes a second to the host, to the device) of one large copy from and to pinned memory."""
    import torch
    pinned = torch.empty(device_tensor.numel(), dtype=torch.uint8, pin_memory=True)
    rates = []
    for to, source in ((pinned, device_tensor), (device_tensor, pinned)):
        torch.cuda.synchronize()
        begin = time.monotonic()
        to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(device_tensor.numel() / (time.monotonic() - begin))
    return tuple(rates)


def has_torch():
    try:
        import torch
    except ImportError:
        return False
    return hasattr(torch, "frombuffer")


def why_torch_has_no_device():
    """What keeps torch from the GPU of this machine, as a torch without CUDA or a driver that is too old; or None."""
    import torch
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    try:
        torch.zeros(1, device="cuda:0")
    except Exception as error:
        return f"torch {torch.__version__} for CUDA {torch.version.cuda} cannot use it: {error}"
    return None


def forget(path):
    """Takes a file out of the caches, where that is allowed; else out of the page cache alone."""
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(number)
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1\n", encoding="ascii")


def mount_of(folder):
    """(mount point, type of the file system) that a folder lies on."""
    best = ("", "")
    folder = os.path.realpath(folder)
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split(" ")
            point = point.encode("utf-8").decode("unicode_escape")
            if os.path.commonpath((folder, point)) == point and len(point) >= len(best[0]):
                best = (point, kind)
    return best


def shares_extents(folder):
    """Whether copies of a file's bytes need no space there: on CairnFS, and where ioctl_ficlone(2) works."""
    if mount_of(folder)[1] == "fuse.cairnfs":
        return True
    source, copy = os.path.join(folder, "ficlone"), os.path.join(folder, "ficlone.copy")
    try:
        with open(source, "wb+") as one, open(copy, "wb") as other:
            one.write(bytes(4096))
            one.flush()
            fcntl.ioctl(other, 0x40049409, one.fileno())  # FICLONE
        return True
    except OSError:
        return False
    finally:
        for path in (source, copy):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def used_bytes(folder):
    """What files need: as `cairnfs status` says where it is at hand, else what is used of the disk."""
    program = shutil.which("cairnfs", path=os.environ.get("CAIRNFS_BIN_DIR", "") + ":" + os.environ.get("PATH", ""))
    point, kind = mount_of(folder)
    if program and kind == "fuse.cairnfs":
        return _settled(lambda: _live_bytes(program, point))
    os.sync()
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _live_bytes(program, point):
    shown = subprocess.run([program, "status", point, "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(shown)["live_bytes"]


def _settled(read):
    """What it reads for three seconds: files that were just removed count for a while yet."""
    value, since, end = read(), time.monotonic(), time.monotonic() + 60
    while time.monotonic() < min(since + 3, end):
        time.sleep(0.2)
        found = read()
        if found != value:
            value, since = found, time.monotonic()
    return value
