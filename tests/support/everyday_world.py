"""The mount that a script of everyday use works on, beside a tree of files to work with and a directory on ext4."""

import hashlib
import os
import random

from cairnfs_mount import Mount, Scratch, run_cases, seed_from_arguments

MIB = 1 << 20


class World:
    def __init__(self, scratch, mount, seed):
        self.scratch, self.mount, self.random = scratch, mount, random.Random(seed)
        self.plain = scratch.directory("plain")
        self.source = scratch.directory("source")
        self.make_tree(self.source, 150)

    def make_tree(self, root, count):
        """Files of odd sizes, links, an empty directory, odd names."""
        directories = [root]
        for name in ("a", "a/b", "empty", "with space", "\xfcml\xe4ut"):
            os.makedirs(os.path.join(root, name), exist_ok=True)
            directories.append(os.path.join(root, name))
        for i in range(count):
            directory = self.random.choice(directories)
            if directory.endswith("empty"):
                continue
            path = os.path.join(directory, f"file{i}")
            with open(path, "wb") as file:
                file.write(self.random.randbytes(int(2 ** self.random.uniform(0, 20))))
            os.chmod(path, self.random.choice([0o644, 0o600, 0o755, 0o440]))
            os.utime(path, (1600000000 + i, 1500000000 + i * 1000.5))
        os.symlink("a/b", os.path.join(root, "link"))
        os.symlink("nowhere", os.path.join(root, "dangling"))
        os.link(path, path + ".hard")

    def path(self, *names):
        return os.path.join(self.mount.path, *names)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def everything_after_a_remount(world):
    """What the other cases left is the same after a remount, bit for bit, and the check is clean."""
    before = {}
    for _ in range(2):
        found = {}
        for directory, _, files in os.walk(world.mount.path):
            for name in files:
                path = os.path.join(directory, name)
                info = os.lstat(path)
                if not os.path.islink(path):
                    found[path] = (digest(path), info.st_mode, info.st_mtime_ns, info.st_size, info.st_ino)
        assert not before or found == before, [path for path in found if found[path] != before.get(path)][:5]
        before = found
        world.mount.remount()
    world.mount.collect()
    report = world.mount.check()
    return f"{len(before)} files, {report['chunks']} chunks"


def run_everyday(cases):
    """The cases on one mount, and at the end what they left; the exit status."""
    seed = seed_from_arguments()
    with Scratch() as scratch:
        mount = Mount(scratch, "pool_size=256MiB,reserve=64MiB")
        status = run_cases([*cases, everything_after_a_remount], World(scratch, mount, seed))
        if status != 0:
            print(mount.log())
        return status
