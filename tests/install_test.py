#!/usr/bin/env python3
"""Installs a build into a folder of its own and looks at what lies there: install_test.py BUILD_DIRECTORY"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

BINARIES = {"cairnfs", "cairnfsd", "mount.cairnfs", "mount.fuse.cairnfs"}
EXPECTED = {"cairnfs.h", "client.h", "libcairnfs_client.so", "control.proto", "cairnfs.toml", "cairnfs.service", "cairnfs@.service",
            "cairnfs-join.service", "cairnfs.1", "cairnfsd.8", "mount.cairnfs.8", "cairnfs.toml.5", "without-root.conf"}
UNITS = ("cairnfs.service", "cairnfs@.service", "cairnfs-join.service")
PROGRAM = """
#include <cairnfs/cairnfs.h>
#include <stdio.h>
#include <sys/xattr.h>
int main(void) {
  char value[16] = CAIRNFS_DURABILITY_PENDING CAIRNFS_DURABILITY_LOCAL;
  enum cairnfs_exit_code code = CAIRNFS_EXIT_DONE;
  (void)getxattr("/", CAIRNFS_XATTR_DURABILITY, value, sizeof value);
  puts(CAIRNFS_XATTR_DURABILITY " " CAIRNFS_XATTR_UNIQUE_BYTES " " CAIRNFS_XATTR_CHUNKS);
  return code;
}
"""


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def files_below(root):
    return {os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names}


def one(files, *ends):
    found = [path for path in files if path.endswith(ends)]
    assert len(found) == 1, f"{ends}: {found}"
    return found[0]


def check_header(root, header):
    """In the oldest C that has its comments, with every warning."""
    assert header.endswith("/include/cairnfs/cairnfs.h"), header
    source, program = root + "/program.c", root + "/program"
    with open(source, "w", encoding="ascii") as file:
        file.write(PROGRAM)
    compiler = next((name for name in ("cc", "gcc", "clang-14") if shutil.which(name)), None)
    assert compiler, "there is no C compiler"
    run(compiler, "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", header[:-len("/cairnfs/cairnfs.h")],
        source, "-o", program)
    assert run(program) == "user.cairnfs.durability user.cairnfs.unique_bytes user.cairnfs.chunks\n"
    run("c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", header)


def check_units(files):
    for unit in ("cairnfs.service", "cairnfs@.service"):
        with open(one(files, "/system/" + unit), encoding="ascii") as file:
            lines = file.read().splitlines()
        start = next(line for line in lines if line.startswith("ExecStart="))
        assert start.split("=")[1].split()[0].endswith("/sbin/cairnfsd"), start
        for line in ("StartLimitIntervalSec=10min", "StartLimitBurst=20", "RestartPreventExitStatus=2 6 7 9"):
            assert line in lines, (unit, line)
        # systemd reads the limits there and nowhere else.
        assert lines.index("StartLimitBurst=20") < lines.index("[Service]"), unit


def check_joining(tree, files):
    """A host that boots before its cluster joins it later, and not for ever with a token that is no good. systemd loads
    the units, and finds what they name."""
    with open(one(files, "/system/cairnfs-join.service"), encoding="ascii") as file:
        lines = file.read().splitlines()
    for line in ("Restart=on-failure", "RestartPreventExitStatus=2 6 7 9", "StartLimitIntervalSec=0", "Type=oneshot",
                 "OnSuccess=cairnfs.service", "ConditionPathExists=!/etc/cairnfs/cairnfs.toml"):
        assert line in lines, line
    with open(one(files, "/system/cairnfs.service"), encoding="ascii") as file:
        assert "ConditionPathExists=|!/etc/cairnfs/join.token" in file.read().splitlines()
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze was not tried")
        return
    folder = tree + "/units"
    os.mkdir(folder)
    for unit in UNITS:
        with open(one(files, "/system/" + unit), encoding="ascii") as file:
            text = file.read()
        for program in ("cairnfsd", "cairnfs"):
            path = one(files, "bin/" + program)
            text = text.replace("=" + path[len(tree):] + " ", "=" + path + " ")
        with open(os.path.join(folder, unit), "w", encoding="ascii") as file:
            file.write(text)
    names = [os.path.join(folder, unit.replace("@", "@name")) for unit in UNITS]
    told = run("env", f"SYSTEMD_UNIT_PATH={folder}:", "systemd-analyze", "verify", "--man=no", *names)
    assert not [line for line in told.splitlines() if "cairnfs" in line], told


def check_hardening(build, files):
    """The programs are position-independent and bound as they start; optimised ones check their arrays."""
    listed = json.loads(run("meson", "introspect", "--buildoptions", build))
    options = {option["name"]: option["value"] for option in listed}
    is_checked = options["optimization"] not in ("0", "g") and options["b_sanitize"] == "none"
    for name in sorted(BINARIES):
        program = one(files, "bin/" + name)
        headers = run("readelf", "--wide", "--file-header", "--program-headers", "--dynamic", program)
        assert "DYN (" in headers and "GNU_RELRO" in headers, headers
        assert any(" Flags: " in line and " NOW" in line for line in headers.splitlines()), headers
        symbols = run("readelf", "--wide", "--dyn-syms", program)
        for check in ("__stack_chk_fail", "_chk@") if is_checked else ():
            assert check in symbols, f"{program} has no {check}"


def check_security(files):
    """What systemd says of the units' exposure, in tenths. Needs no running systemd."""
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze was not tried")
        return
    for unit in ("cairnfs.service", "cairnfs@.service"):
        run("systemd-analyze", "security", "--offline=true", "--threshold=50", one(files, "/system/" + unit))


def check_tmpfiles(root, config):
    """A data directory that was given to another user stays that user's at the next boot."""
    if os.geteuid() != 0 or not shutil.which("systemd-tmpfiles"):
        print("systemd-tmpfiles was not tried")
        return
    data = root + "/boot/var/lib/cairnfs"
    os.makedirs(root + "/boot")
    for owner in (0, 54321):
        if os.path.exists(data):
            os.chown(data, owner, owner)
        run("systemd-tmpfiles", "--create", "--root=" + root + "/boot", config)
        info = os.stat(data)
        assert (info.st_uid, info.st_gid, info.st_mode & 0o777) == (owner, owner, 0o711), info


def main():
    build = sys.argv[1]
    root = tempfile.mkdtemp(prefix="cairnfs-install-")
    try:
        tree = root + "/tree"
        run("meson", "install", "-C", build, "--no-rebuild", "--destdir", tree)
        files = files_below(tree)
        names = {os.path.basename(path) for path in files}
        assert EXPECTED | BINARIES <= names, (EXPECTED | BINARIES) - names
        assert one(files, "control.proto").endswith("/share/cairnfs/control.proto")
        check_header(root, one(files, "/cairnfs.h"))
        check_units(files)
        check_joining(tree, files)
        check_hardening(build, files)
        check_security(files)
        check_tmpfiles(root, one(files, "/tmpfiles.d/cairnfs.conf"))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
