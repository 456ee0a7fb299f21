"""What a tree of files is, to be compared with what it is elsewhere: every byte and attribute of it but access times."""

import hashlib
import os
import random
import stat

MIB = 1 << 20


def make_tree(root, seed):
    """A tree of everything that there is: contents small and large, holes, attributes, links, times, modes, names."""
    rng = random.Random(seed)

    def write(*names, content=b""):
        path = os.path.join(root, *names)
        with open(path, "wb") as file:
            file.write(content)
        return path

    for folder in ("run", "run/step-1", "run/step-2", "empty", "deep"):
        os.mkdir(os.path.join(root, folder))
    deep = os.path.join(root, "deep")
    for level in range(20):
        deep = os.path.join(deep, f"level {level}")
        os.mkdir(deep)
    write(os.path.relpath(deep, root), "at the end", content=b"deep")
    for step in (1, 2):
        for rank in range(4):
            write(f"run/step-{step}", f"rank-{rank}", content=rng.randbytes(rng.randrange(100_000, 5 * MIB)))
    large = write("large", content=rng.randbytes(70 * MIB))
    with open(large, "r+b") as file:
        for _ in range(60):
            file.seek(rng.randrange(70 * MIB))
            file.write(rng.randbytes(rng.randrange(1, 30_000)))
    write("nothing")
    write("few", content=b"a few bytes")
    for number in range(50):
        write("run", f"small-{number}", content=rng.randbytes(rng.randrange(0, 3000)))
    with open(write("sparse"), "r+b") as file:
        file.seek(100 * MIB)
        file.write(b"in the middle")
        file.truncate(300 * MIB)
    os.link(large, os.path.join(root, "run/a second name of large"))
    os.link(large, os.path.join(root, "deep/a third"))
    os.symlink("run/step-1/rank-0", os.path.join(root, "a link"))
    os.symlink("nowhere", os.path.join(root, "run/dangling"))
    os.mkfifo(os.path.join(root, "pipe"))
    odd = write(os.fsdecode(b"odd \xff\n name"), content=b"odd")
    os.setxattr(odd, "user.one", b"\x00\xffvalue")
    os.setxattr(os.path.join(root, "run"), "user.of-a-directory", b"v" * 5000)
    os.chmod(large, 0o640)
    os.chmod(os.path.join(root, "empty"), 0o1777)
    os.chown(odd, 1234, 5678)
    os.utime(os.path.join(root, "few"), ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
    os.utime(os.path.join(root, "a link"), ns=(7, 1_400_000_000_000_000_001), follow_symlinks=False)
    os.utime(os.path.join(root, "run"), ns=(11, 1_300_000_000_111_111_111))
    for path in (root, os.path.join(root, "run")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def manifest(root):
    """path -> what it is."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in folders + names:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            one = [info.st_ino, info.st_mode, info.st_uid, info.st_gid, info.st_nlink, info.st_mtime_ns, info.st_ctime_ns]
            if stat.S_ISLNK(info.st_mode):
                one.append(os.readlink(path))
            elif stat.S_ISREG(info.st_mode):
                digest = hashlib.sha256()
                with open(path, "rb") as file:
                    while block := file.read(4 * MIB):
                        digest.update(block)
                one += [info.st_size, info.st_blocks, digest.hexdigest()]
            if not stat.S_ISLNK(info.st_mode):
                one += [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))
                        if not name.startswith("user.cairnfs.")]
            found[os.path.relpath(path, root)] = one
    return found


def assert_same(expected, root):
    seen = manifest(root)
    assert sorted(seen) == sorted(expected), sorted(set(seen) ^ set(expected))[:10]
    for path, one in expected.items():
        assert seen[path] == one, (root, path, one, seen[path])
