"""The rows about frameworks: torch.save and safetensors, the framework's own time included."""

import contextlib
import os
import shutil
import subprocess

from machine import GIB, MIB, CannotRun, Usage, settle
from measuring import Row, take_turns
from saving import add_cpu
from subjects import Cairn

# Serves saves until its input ends, so that the import and the making of the model are not timed.
# One line in: FORMAT DIRECTORY COMMIT, or "change" for other data. One line out: seconds.
SERVER = """
import os, sys, time, torch
total = int(sys.argv[1])
torch.set_num_threads(os.cpu_count())
state = {f"layers.{i}.weight": torch.randn(16 << 18) * 0.02 for i in range(max(1, total // (16 << 20)))}
def change():
    for tensor in state.values():
        tensor.view(torch.int32).bitwise_xor_(int.from_bytes(os.urandom(3), "little") | 1)
def sync(path, flags):
    fd = os.open(path, flags)
    os.fsync(fd)
    os.close(fd)
for line in sys.stdin:
    kind, *words = line.rstrip("\\n").split("\\t")
    if kind == "change":
        change()
        os.sync()
        print(0, flush=True)
        continue
    directory, commit = words
    begin = time.monotonic()
    os.mkdir(directory + ".tmp")
    path = directory + ".tmp/model"
    if kind == "torch":
        torch.save(state, path)
    else:
        from safetensors.torch import save_file
        save_file(state, path)
    if commit == "syncs":
        sync(path, os.O_RDONLY)
    os.rename(directory + ".tmp", directory)
    if commit == "syncs":
        sync(os.path.dirname(directory), os.O_RDONLY | os.O_DIRECTORY)
    print(time.monotonic() - begin, flush=True)
"""


class Framework:
    """A Python process that holds a state dict and saves it."""

    def __init__(self, bench, size):
        environment = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count())}
        self.process = subprocess.Popen([bench.framework_python(), "-c", SERVER, str(size)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment,
                                        start_new_session=True)
        bench.scratch.on_exit(self.process.kill)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Its memory is free again when this returns."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(60)
        self.process.kill()
        self.process.wait()

    def _ask(self, *words):
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise CannotRun(f"{words[0]} failed in the framework; see the messages above")
        return float(line)

    def change(self):
        """Other data in every tensor: nothing of it has been saved before."""
        self._ask("change")

    def save(self, kind, directory, commit):
        """Saves the state as DIRECTORY/model, by "torch" or "safetensors"; the seconds that it took."""
        return self._ask(kind, directory, commit)


def framework_rows(bench):
    size = min(bench.size, 2 * GIB)
    rows = []
    with Cairn(bench, "frameworks", free_segments_max=2 * size + GIB) as cairn, Framework(bench, size) as framework:
        for kind in ("torch", "safetensors"):
            row = Row(f"{'torch.save' if kind == 'torch' else kind} of {size // MIB} MiB, end to end")
            rows.append(row)

            def cairn_turn(kind=kind):
                framework.change()
                with Usage(cairn.pid) as usage:
                    seconds = framework.save(kind, cairn.path + "/step", "rename")
                cairn.remove("step")
                return {"total_s": seconds, "daemon_s": usage.daemon_s, "system_s": usage.system_s}

            def plain_turn(kind=kind):
                path = bench.plain("step")
                framework.change()
                bench.warm_free_memory(size)
                with Usage() as usage:
                    seconds = framework.save(kind, path, "syncs")
                shutil.rmtree(path)
                settle()
                return {"total_s": seconds, "system_s": usage.system_s}

            series = take_turns(bench.rounds, {bench.file_system: plain_turn, "CairnFS": cairn_turn})
            for who in ("CairnFS", bench.file_system):
                row.figure(who, series.rates(who, size), "B/s")
            row.ratio(f"vs {bench.file_system} with fsync", "CairnFS", bench.file_system, at_least=1.2)
            for who in ("CairnFS", bench.file_system):
                add_cpu(row, series, who, size)
    return rows
