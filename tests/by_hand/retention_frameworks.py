#!/usr/bin/env python3
"""Jobs of real frameworks whose own retention is off: CairnFS keeps what the policy of their run says, and each goes on
from what `cairnfs latest` finds. Run as root.

    tests/by_hand/retention_frameworks.py [--environment DIR] [CASE...]

PyTorch, TensorFlow, Orbax and Lightning come from PyPI, into a new environment; --environment DIR keeps it for another
run. It is not among the tests that always run: the packages take gigabytes.
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import Mount, Scratch, option, run, run_cases
from cluster import wait_until
from runs import call

PACKAGES = ("tensorflow-cpu", "jax[cpu]", "orbax-checkpoint", "torch", "lightning", "numpy")
STEPS = 10
KEPT = (4, 8, 9, 10)  # by --keep-last 2 --keep-every 4

# Each program trains for some steps from the checkpoint at START (empty: from nothing), saves after each step, and
# removes nothing. It prints a digest of its state at its end, and, where it started from a checkpoint, of that first.
COMMON = """
import hashlib, json, os, sys
run, first, last, start = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
def tell(what, arrays):
    digest = hashlib.sha256()
    for array in arrays: digest.update(array.tobytes())
    print(what, digest.hexdigest(), flush=True)
"""

TORCH = COMMON + """
import torch
import torch.distributed.checkpoint as dcp
torch.manual_seed(1)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.Adam(model.parameters())
def arrays(): return [tensor.numpy() for _, tensor in sorted(model.state_dict().items())]
if start:
    state = torch.load(f"{start}/model.pt")
    model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
    sharded = {"model": {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}}
    dcp.load(sharded, checkpoint_id=f"{start}/sharded")
    assert all(torch.equal(sharded["model"][name], tensor) for name, tensor in model.state_dict().items())
    tell("start", arrays())
for step in range(first, last + 1):
    loss = model(torch.randn(8, 300)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    temporary = f"{run}/step-{step}.tmp"
    os.mkdir(temporary)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{temporary}/model.pt")
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{temporary}/sharded")
    with open(f"{temporary}/metrics.json", "w") as file: json.dump({"val_loss": abs(step - 3) + 0.5}, file)
    os.rename(temporary, f"{run}/step-{step}")
tell("end", arrays())
"""

TENSORFLOW = COMMON + """
import numpy, tensorflow as tf
tf.random.set_seed(1)
weights, step_of = tf.Variable(tf.random.normal((300, 300))), tf.Variable(0)
checkpoint = tf.train.Checkpoint(weights=weights, step=step_of)
if start:
    checkpoint.read(f"{start}/ckpt").assert_consumed()
    tell("start", [weights.numpy()])
for step in range(first, last + 1):
    weights.assign(weights * 0.9 + tf.random.normal((300, 300)))
    step_of.assign(step)
    temporary = f"{run}/step-{step}.tmp"
    os.mkdir(temporary)
    checkpoint.write(f"{temporary}/ckpt")
    os.rename(temporary, f"{run}/step-{step}")
tell("end", [weights.numpy()])
"""

# Orbax names the directory, and renames it when it is whole.
ORBAX = COMMON + """
import jax, jax.numpy as jnp, numpy
import orbax.checkpoint as ocp
manager = ocp.CheckpointManager(run, options=ocp.CheckpointManagerOptions(max_to_keep=None))
state = {"w": jnp.zeros((300, 300)), "b": jnp.zeros(300)}
def arrays(): return [numpy.asarray(state[name]) for name in sorted(state)]
if start:
    assert manager.latest_step() == int(os.path.basename(start)), (manager.latest_step(), start)
    state = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
    tell("start", arrays())
for step in range(first, last + 1):
    state = {"w": state["w"] + step, "b": state["b"] - jnp.arange(300.0)}
    manager.save(step, args=ocp.args.StandardSave(state))
manager.wait_until_finished()
tell("end", arrays())
"""

# Lightning writes each file in place, here into a directory for each step.
LIGHTNING = COMMON + """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(300, 300)
    def training_step(self, batch, _): return self.layer(batch[0]).square().mean()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
    def on_train_start(self):
        if start: tell("start", arrays(self))
def arrays(model): return [tensor.detach().numpy() for _, tensor in sorted(model.state_dict().items())]
lightning.seed_everything(1, verbose=False)
model = Model()
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 300)), batch_size=4)
keep = lightning.pytorch.callbacks.ModelCheckpoint(
    dirpath=run, filename="{step}/model", auto_insert_metric_name=False, save_top_k=-1, every_n_train_steps=1)
keep.FILE_EXTENSION = ".pt"
trainer = lightning.Trainer(max_steps=last, callbacks=[keep], logger=False, accelerator="cpu", devices=1,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(model, data, ckpt_path=f"{start}/model.pt" if start else None)
tell("end", arrays(model))
"""


class World:
    def __init__(self, scratch, environment):
        self.mount = Mount(scratch, options="pool_size=256MiB")
        self.environment = environment or os.path.join(scratch.path, "environment")
        self.python = os.path.join(self.environment, "bin", "python")
        if not os.path.exists(self.python):
            run(sys.executable, "-m", "venv", self.environment)
            run(self.python, "-m", "pip", "--disable-pip-version-check", "install", *PACKAGES, timeout=3600)

    def make_run(self, name, *policy):
        path = f"{self.mount.path}/{name}"
        os.mkdir(path)
        call("retain", path, "--keep-last", "2", "--keep-every", "4", *policy)
        return path

    def train(self, code, path, first, last, start=""):
        """The digests that the job told."""
        output = run(self.python, "-W", "ignore", "-c", code, path, str(first), str(last), start, timeout=600,
                     env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "2"})
        told = [line.split() for line in output.splitlines() if line.startswith(("start ", "end "))]
        return {what: digest for what, digest in told}


def steps_in(path, prefix):
    return sorted(int(name[len(prefix):]) for name in os.listdir(path)
                  if name.startswith(prefix) and name[len(prefix):].isdigit())


def wait_until_kept(path, prefix, wanted):
    wait_until(lambda: steps_in(path, prefix) == sorted(wanted), seconds=180,
               what=f"that {wanted} stay of {path}, not {steps_in(path, prefix)}")


def latest(path, match):
    return call("latest", path, "--match", match, "--verify").stdout.strip()


def goes_on_from_what_stays(world, name, code, prefix, policy=(), kept=KEPT):
    match = prefix + r"(\d+)"
    path = world.make_run(name, "--match", match, *policy)
    told = world.train(code, path, 1, STEPS)
    wait_until_kept(path, prefix, kept)
    again = world.train(code, path, STEPS + 1, STEPS + 2, latest(path, match))
    assert again["start"] == told["end"], (told, again)
    later = {step for step in kept if step % 4 == 0} | {step for step in kept if step < 4} | {STEPS + 1, STEPS + 2}
    wait_until_kept(path, prefix, later)
    return f"{sorted(later)} stay of {STEPS + 2}"


def torch_keeps_the_best_too(world):
    policy = ("--keep-best", "val_loss:min:1")
    return goes_on_from_what_stays(world, "torch", TORCH, "step-", policy, (3, *KEPT))


def tensorflow(world):
    return goes_on_from_what_stays(world, "tensorflow", TENSORFLOW, "step-")


def orbax(world):
    return goes_on_from_what_stays(world, "orbax", ORBAX, "")


def lightning_in_place(world):
    """What is written in place is left alone for an hour, as it may be unfinished."""
    path = world.make_run("lightning", "--match", r"(\d+)")
    told = world.train(LIGHTNING, path, 1, STEPS)
    call("retain", path, "--now")
    assert steps_in(path, "") == list(range(1, STEPS + 1)), steps_in(path, "")
    hours_ago = time.time() - 2 * 3600
    for step in steps_in(path, ""):
        for name in (*os.listdir(f"{path}/{step}"), ""):
            os.utime(f"{path}/{step}/{name}", (hours_ago + step, hours_ago + step))
    call("wait", path)
    plan = json.loads(call("retain", path, "--dry-run", "--json").stdout)
    goes = sorted(checkpoint["step"] for checkpoint in plan["checkpoints"] if checkpoint["goes"])
    call("wait", path)  # the look has changed times of access
    call("retain", path, "--now")
    assert steps_in(path, "") == list(KEPT) and goes == sorted(set(range(1, STEPS + 1)) - set(KEPT)), goes
    again = world.train(LIGHTNING, path, STEPS + 1, STEPS + 2, latest(path, r"(\d+)"))
    assert again["start"] == told["end"], (told, again)
    return f"{list(KEPT)} stay of {STEPS}"


def main():
    environment = option("--environment")
    with Scratch() as scratch:
        world = World(scratch, environment)
        status = run_cases([torch_keeps_the_best_too, tensorflow, orbax, lightning_in_place], world)
    sys.exit(status)


if __name__ == "__main__":
    main()
