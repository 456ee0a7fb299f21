#!/usr/bin/env python3
"""Files that appear whole, on one host: errors, formats that are cut short, wrong values, a stranger who takes all that he
can, and real torch. Run as root."""

import errno
import io
import os
import signal
import struct
import subprocess
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from atomic_run import COMPLETE, FILES, PATTERNS, PYTHON, Run, STRANGER, error_of, others, rewrite, write
from cairnfs_mount import Skip, run_cases
from cluster import wait_until


def an_error_leaves_the_old_file():
    with Run() as run:
        rewrite(run.model, "old")
        new = write(run.model, "new")
        assert error_of(os.pwrite, new, b"x", (1 << 63) - 2) == errno.EFBIG
        assert error_of(os.close, new) == errno.EFBIG
        assert others(run.model) == "old" and "a write failed" in run.mount.log()
        # Whatever call was to change its bytes.
        for change in (lambda file: os.posix_fallocate(file, (1 << 63) - 10, 5),
                       lambda file: os.ftruncate(file, (1 << 63) - 2)):
            new = write(run.model, "new")
            refused = error_of(change, new)
            assert refused != 0 and error_of(os.close, new) == refused, refused
            assert others(run.model) == "old"
        rewrite(run.model, "next")
        assert others(run.model) == "next"


def archive(size=100_000):
    with io.BytesIO() as memory:
        with zipfile.ZipFile(memory, "w") as file:
            file.writestr("data", b"z" * size)
        return memory.getvalue()


def safetensors(header, body):
    return struct.pack("<Q", len(header)) + header + body


def what_is_cut_short_is_refused():
    with Run() as run:
        tensors = run.path + "/model.safetensors"
        whole = safetensors(b'{"__metadata__":{"a":"b"},"w":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}', b"123456789")

        def put(path, data):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for at in range(0, len(data), 1 << 16):
                os.write(descriptor, data[at:at + (1 << 16)])
            return error_of(os.close, descriptor)

        assert put(run.model, archive()[:-30]) == 0  # nobody asked for more
        os.setxattr(run.path, COMPLETE, b"1")
        reasons = set()
        huge = [struct.pack("<Q", length) + b"{}" for length in (1 << 63, (1 << 64) - 1, 100_000_001, 3)]
        deep = safetensors(b'{"w":' + b"[" * 1_000_000, b"")
        for path, good, wrong in [
                (run.model, archive(), [archive()[:-30], archive()[:1000], b"PK\3\4"]),
                (tensors, whole, [whole[:-1], whole[:20], whole[:3], b"", deep, safetensors(b"[]", b""),
                                  safetensors(b'{"w":{"data_offsets":[0,-1]}}', b""),
                                  safetensors(b'{"w":{"data_offsets":[0,18446744073709551615]}}', b"12"), *huge])]:
            assert put(path, good) == 0
            with open(path, "rb") as file:
                assert file.read() == good
            for data in wrong:
                assert put(path, data) == errno.EIO, (path, data[:80])
                with open(path, "rb") as file:
                    assert file.read() == good
                said = [line for line in run.mount.log().splitlines() if "keeps what it had" in line][-1]
                assert os.path.basename(path) in said, said
                reasons.add(said.rsplit(": ", 1)[1])
        assert {"its safetensors header is no JSON", "its safetensors header would have more than 100 MB",
                "it is cut short"} <= reasons, reasons
        assert put(run.path + "/plain.pt", b"of no known format") == 0
        # What torch.save writes is never empty: a new one that is gets no name.
        for data in b"", b"abc":
            assert put(run.path + "/new.pt", data) == errno.EIO and others(run.path + "/new.pt") is None
        os.mkdir(run.path + "/drafts")
        os.setxattr(run.path + "/drafts", COMPLETE, b"0")
        assert put(run.path + "/drafts/model.safetensors", b"short") == 0


def wrong_values_are_refused():
    with Run() as run:
        for value, text in [(b"a/b", "slash"), (b"[a", "["), (b"{a,b}", "brace"), (b"x" * 300, "255"),
                            (b" ".join(b"a%d" % number for number in range(17)), "16"), (b"a" * 60_000, "bytes")]:
            assert error_of(os.setxattr, run.path, FILES, value) == errno.EINVAL, value[:50]
            assert text in run.mount.log().rsplit("cannot set", 1)[1], (text, run.mount.log()[-500:])
        for value in b"", b"2", b"yes":
            assert error_of(os.setxattr, run.path, COMPLETE, value) == errno.EINVAL
        assert os.getxattr(run.path, FILES) == PATTERNS
        rewrite(run.path + "/file", "")
        assert error_of(os.setxattr, run.path + "/file", FILES, b"*") == errno.ENOTDIR
        assert error_of(os.setxattr, run.path, FILES, b"*", os.XATTR_CREATE) == errno.EEXIST
        assert error_of(os.setxattr, run.path, COMPLETE, b"1", os.XATTR_REPLACE) == errno.ENODATA
        assert error_of(os.removexattr, run.path, COMPLETE) == errno.ENODATA
        # Another user, also one who may write to the directory.
        os.chmod(run.path, 0o777)
        code = f"""import os, sys
for call in (lambda: os.setxattr(sys.argv[1], {FILES!r}, b"*"), lambda: os.removexattr(sys.argv[1], {FILES!r})):
    try: call()
    except OSError as error: assert error.errno == {errno.EPERM}, error
    else: sys.exit("allowed")
"""
        by = dict(user=STRANGER, group=STRANGER, extra_groups=[])
        subprocess.run([PYTHON, "-c", code, run.path], check=True, **by)
        os.chown(run.path, STRANGER, STRANGER)
        subprocess.run(["setfattr", "-n", FILES, "-v", "*.pt", run.path], check=True, **by)
        # No names: the directories above do not count either. And the root of the filesystem.
        os.setxattr(run.mount.path, FILES, b"*.pt")
        os.setxattr(run.path, FILES, b"")
        plain = write(run.model, "plain")
        assert others(run.model) == "plain"
        os.close(plain)
        os.removexattr(run.path, FILES)
        for path in run.model, run.mount.path + "/top.pt":
            before = others(path)
            new = write(path, "whole")
            assert others(path) == before
            os.close(new)
            assert others(path) == "whole"
        run.mount.remount()
        assert os.getxattr(run.mount.path, FILES) == b"*.pt"


def one_user_leaves_room_for_others():
    """A stranger keeps as many open as he can."""
    with Run() as run:
        os.chmod(run.path, 0o777)
        code = """import errno, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (9000, 9000))
os.setgid(%d); os.setuid(%d)
try:
    for number in range(8500): os.open(f"{sys.argv[1]}/{number}.pt", os.O_WRONLY | os.O_CREAT)
except OSError as error: print(number, error.errno, flush=True)
sys.stdin.readline()
""" % (STRANGER, STRANGER)
        stranger = subprocess.Popen([PYTHON, "-c", code, run.path], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)
        count, code = map(int, stranger.stdout.readline().split())
        assert code == errno.EBUSY and 1000 < count < 8000, (count, code)
        new = write(run.model, "root's")
        assert others(run.model) is None
        os.close(new)
        assert others(run.model) == "root's"
        stranger.kill()
        stranger.communicate()
        wait_until(lambda: run.mount.status()["open_files"] == 0, what="all are dropped")
        assert os.listdir(run.path) == ["model.pt"]
        return f"{count} files"


def torch_saves_onto_its_name():
    if subprocess.run([PYTHON, "-c", "import torch"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip("python3-torch is not installed")
    with Run() as run:
        os.setxattr(run.path, COMPLETE, b"1")
        code = """
import os, subprocess, sys, torch
path = sys.argv[1]
model = torch.nn.Linear(300, 300)
for step in range(4):
    with torch.no_grad(): model.weight.fill_(step)
    with open(path, "wb") if step % 2 else open(os.devnull) as file:
        torch.save(model.state_dict(), file if step % 2 else path)
        look = "import sys, torch; print(int(torch.load(sys.argv[1])['weight'][0][0]))"
        seen = subprocess.run([sys.executable, "-c", look, path], capture_output=True, text=True)
        assert seen.stdout == f"{step - step % 2}\\n", seen
class Fails:
    def __reduce__(self): os.kill(os.getpid(), 9)
torch.save([model.state_dict(), Fails()], path)
"""
        done = subprocess.run([PYTHON, "-c", code, run.model], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done
        look = "import sys, torch; print(int(torch.load(sys.argv[1])['weight'][0][0]))"
        seen = subprocess.run([PYTHON, "-c", look, run.model], capture_output=True, text=True, check=True)
        assert seen.stdout == "3\n", seen
        # As TensorFlow does it: data under other names, then the index in place of the old one, and its list of states.
        prefix = run.path + "/ckpt-1"
        for number in range(3):
            rewrite(prefix + ".data-00000-of-00001.tempstate", f"data {number}")
            os.rename(prefix + ".data-00000-of-00001.tempstate", prefix + ".data-00000-of-00001")
            index = write(prefix + ".index", f"index {number}")
            assert others(prefix + ".index") == (f"index {number - 1}" if number else None)
            os.close(index)
            assert others(prefix + ".index") == f"index {number}"


CASES = (an_error_leaves_the_old_file, what_is_cut_short_is_refused, wrong_values_are_refused,
         one_user_leaves_room_for_others, torch_saves_onto_its_name)


if __name__ == "__main__":
    sys.exit(run_cases(CASES))
