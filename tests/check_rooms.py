#!/usr/bin/env python3
"""Checks what docs/architecture.md promises about the shape of the tree.

Run from anywhere; exit code 1 and one line per problem when something is wrong:
  - a room (src/ROOM) includes only rooms above it in the list;
  - a foreign header is included in one room only;
  - no file names a path of some machine;
  - nothing takes the time, or sleeps, but by src/base/clock.h;
  - the pages on configuration name every key with its default;
  - the table of metrics names every metric with its type, and whether it is of a cluster's hosts, runs or quotas alone;
  - every tests/**/*_test.cc is named in a meson.build.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ["base", "io", "chunking", "kv", "store", "rpc", "admission", "kvnet", "cluster", "meta", "coherence", "retention", "fs", "fuse", "control", "daemon", "client"]
FORBIDDEN = {("control", "fuse")} | {  # above in the list, and still not its business
    ("retention", room) for room in ROOMS if room not in ("base", "retention")
} | {
    ("client", room) for room in ROOMS if room not in ("base", "chunking", "client")
}
FOREIGN = {  # include prefix -> the folders that may use it
    "spdlog/": {"src/base"},
    "liburing": {"src/io", "benchmarks/floor"},
    "llvm-c/": {"src/chunking"},
    "blake3.h": {"src/chunking"},
    "rocksdb/": {"src/kv"},
    "zstd.h": {"src/meta"},
    "fuse_lowlevel.h": {"src/fuse", "benchmarks/floor"},
    "fuse.h": {"src/fuse"},
    "fuse3/": {"src/fuse"},
    "linux/fuse.h": {"src/fuse", "benchmarks/floor"},
    "openssl/": {"src/admission"},
    "curl/": {"src/kvnet"},
    "grpcpp/": {"src/rpc", "src/kvnet", "src/cluster", "src/control"},
    "google/protobuf/": {"src/kvnet", "src/cluster", "src/control", "tools"},
    "prometheus/": {"src/control"},
    "microhttpd.h": {"src/control"},
    "toml++/": {"src/daemon"},
    "systemd/": {"src/daemon"},
    "cuda": {"src/client"},
    "CLI/": {"tools", "benchmarks/floor", "benchmarks/index"},
    "re2/": {"src/retention"},
    "nlohmann/": {"src/retention", "src/fs", "tools"},
}
# What takes the time, sleeps or waits past the clock.
DIRECT_TIME = re.compile(
    r"(steady|system|high_resolution)_clock::now|\bclock_gettime\(|\bgettimeofday\(|\bstd::time\(|"
    r"this_thread::sleep|\b(u|nano)sleep\(|\.wait_(for|until)\("
)
OUTSIDE_CLOCK = {  # the clock itself
    "src/base/clock.cc",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# Written so that this file does not match itself.
MACHINE_PATHS = re.compile("|".join("/" + part for part in ("home/[a-z]", "root/", "work/(main|shared)", "tmp/build-")))


def sources(folder, suffixes=None):
    """The files below the folder with one of these suffixes; without any, all of them."""
    for path in sorted((ROOT / folder).rglob("*")):
        if path.is_file() and (suffixes is None or path.suffix in suffixes) and "__pycache__" not in path.parts:
            yield path


def check_includes(problems):
    for top in ("src", "tools", "benchmarks"):
        for path in sources(top, {".cc", ".h", ".cu"}):
            relative = path.relative_to(ROOT)
            room = "tools" if top == "tools" else relative.parts[1]
            home = "tools" if top == "tools" else f"{top}/{room}"
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                header = match.group(1)
                where = f"{relative}:{number}"
                for prefix, homes in FOREIGN.items():
                    if header.startswith(prefix) and home not in homes:
                        problems.append(f"{where}: {header} may be included only in {', '.join(sorted(homes))}")
                other = header.split("/")[0]
                if top == "src" and '"' in line and other in ROOMS and room in ROOMS:
                    if ROOMS.index(other) > ROOMS.index(room) or (room, other) in FORBIDDEN:
                        problems.append(f"{where}: room {room} may not use room {other}")
            if top == "src" and room not in ROOMS and relative.name != "meson.build":
                problems.append(f"{relative}: src/{room} is no room of docs/architecture.md")


def check_machine_paths(problems):
    paths = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # of a worktree
    for top in ("src", "include", "tools", "tests", "benchmarks", "systemd", "docs", ".ci"):
        paths += sources(top)
    for path in paths:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATHS.search(line):
                problems.append(f"{path.relative_to(ROOT)}:{number}: names a path of one machine")


def check_clock(problems):
    for top in ("src", "tools"):
        for path in sources(top, {".cc", ".h"}):
            relative = str(path.relative_to(ROOT))
            if relative in OUTSIDE_CLOCK:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if DIRECT_TIME.search(line):
                    problems.append(f"{relative}:{number}: takes the time past base/clock.h")


def check_registered(problems):
    builds = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("meson.build"))
    for path in sources("tests", {".cc"}):
        # Some lists name the tests without their ending or beginning: 'store_basic' or 'basic' for store_basic_test.cc.
        name = path.stem.removesuffix("_test")
        names = (path.name, f"'{path.stem}'", f"'{name}'", f"'{name.split('_')[-1]}'")
        if path.stem.endswith("_test") and not any(name in builds for name in names):
            problems.append(f"{path.relative_to(ROOT)}: not registered in any tests/**/meson.build")


def check_config_keys(problems):
    """The key tables of the pages name the keys that there are, with the defaults of the annotated configuration."""
    keys = re.findall(r'^ +\{"(\w+)",(?:$| Kind)', (ROOT / "src/daemon/config_keys.cc").read_text(), re.M)
    annotated = (ROOT / "systemd/cairnfs.toml").read_text()
    defaults = dict(re.findall(r"^#? ?(\w+) = (.+?)(?: +#.*)?$", annotated, re.M))
    operating = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", (ROOT / "docs/operating.md").read_text(), re.M))
    manual = (ROOT / "docs/man/cairnfs.toml.5").read_text().replace(r"\(dq", '"')
    manual = dict(re.findall(r'^\.BR (\w+) " \(default (.*)\)"$', manual, re.M))
    for page, table in (("docs/operating.md", operating), ("docs/man/cairnfs.toml.5", manual)):
        for key in keys:
            if key not in table:
                problems.append(f"{page}: does not name the key {key}")
            elif table[key] != defaults.get(key, "").strip():
                problems.append(f"{page}: {key} has the default {table[key]}, but systemd/cairnfs.toml says {defaults.get(key)}")
        for key in set(table) - set(keys):
            problems.append(f"{page}: there is no key {key}")


def check_metrics(problems):
    """The table of metrics names those that control.proto marks as such."""
    proto = (ROOT / "src/control/control.proto").read_text()
    metrics = {}  # name -> type, place
    for message, body in re.findall(r"^message (\w+) \{$(.*?)^\}$", proto, re.M | re.S):
        for of, field, options in re.findall(r"^ +(?:optional )?(\w+) (\w+) = \d+ \[\(metric\) = \{(.*?)\}\];", body, re.M | re.S):
            named = re.search(r'\bname: "(\w+)"', options)
            name = "cairnfs_" + (named[1] if named else field)
            kind = "histogram" if of == "Durations" else "counter" if name.endswith("_total") else "gauge"
            metrics[name] = (kind, {"ClusterActivity": "cluster", "Run": "run", "Quota": "quota"}.get(message, "all"))
    page = (ROOT / "docs/operating.md").read_text()
    rows = re.findall(r"^\| `(cairnfs_\w+)` \| (\w+) \| [^|]+ \| (\w+) \| ", page, re.M)
    table = {name: (kind, where) for name, kind, where in rows}
    for name in metrics:
        if name not in table:
            problems.append(f"docs/operating.md: does not name the metric {name}")
        elif table[name] != metrics[name]:
            problems.append(f"docs/operating.md: {name} is listed as {table[name]}, but is {metrics[name]}")
    for name in set(re.findall(r"`(cairnfs_\w+)", page)) - set(metrics):
        problems.append(f"docs/operating.md: there is no metric {name}")


def main():
    problems = []
    check_config_keys(problems)
    check_metrics(problems)
    check_includes(problems)
    check_machine_paths(problems)
    check_clock(problems)
    check_registered(problems)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
