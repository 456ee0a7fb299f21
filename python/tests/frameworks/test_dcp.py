"""cairnfs.torch.dcp against torch.distributed.checkpoint's own files, alone and on several ranks."""

import os

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import cairnfs
import cairnfs.torch.dcp
from torch_support import DEVICES, Case, difference, model_and_optimizer, random_tensor

RANKS = 2


class DcpCase(Case):
    def state(self, device="cpu"):
        model, optimizer = model_and_optimizer(device)
        whole = random_tensor(self.random, (100, 30), device=device)
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "view": whole[10:20],
            "column": whole[:, 3],
            "turned": whole.T,
            "half": random_tensor(self.random, (999,), torch.bfloat16, device),
            "empty": torch.empty(0, 4, device=device),
            "scalar": torch.tensor(2.5, device=device),
            "object": {"step": 5, "name": "größe"},
        }

    def blank(self, state):
        """The same state with other values."""
        if isinstance(state, torch.Tensor):
            return torch.zeros_like(state)
        if isinstance(state, dict):
            return {key: self.blank(value) for key, value in state.items()}
        if isinstance(state, (list, tuple)):
            return type(state)(self.blank(value) for value in state)
        return state if isinstance(state, (str, bool, type(None))) else type(state)(0)

    def assert_loads(self, folder, expected, reader):
        found = self.blank(expected)
        dcp.load(found, checkpoint_id=self.path(folder), storage_reader=reader)
        self.assertIsNone(difference(_plain(found), _plain(expected)))


def _plain(state):
    """With plain dicts, and tensors as dense as they can be: strides are the target's."""
    if isinstance(state, torch.Tensor):
        return state.detach().contiguous()
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return [_plain(value) for value in state] if isinstance(state, (list, tuple)) else state


class OneProcessTest(DcpCase):
    def test_both_readers_read_both_writers(self):
        for device in DEVICES:
            state, writer = self.state(device), cairnfs.torch.dcp.Writer()
            dcp.save(state, checkpoint_id=self.path("ours"), storage_writer=writer)
            dcp.save(state, checkpoint_id=self.path("plain"))
            for folder in ("ours", "plain"):
                self.assert_loads(folder, state, None)
                self.assert_loads(folder, state, cairnfs.torch.dcp.Reader())
            with cairnfs.Loader() as loader:
                self.assert_loads("ours", state, cairnfs.torch.dcp.Reader(loader=loader))
            self.assertEqual(sorted(os.listdir(self.path("ours"))), [".metadata", "__0_0.distcp"])

    def test_a_pipe_is_refused_at_once(self):
        state = self.state()
        for name in (".metadata", "__0_0.distcp"):
            dcp.save(state, checkpoint_id=self.path(name), storage_writer=cairnfs.torch.dcp.Writer())
            os.unlink(os.path.join(self.path(name), name))
            os.mkfifo(os.path.join(self.path(name), name))
            with self.assertRaisesRegex(CheckpointException, "no regular file"):
                dcp.load(self.blank(state), checkpoint_id=self.path(name), storage_reader=cairnfs.torch.dcp.Reader())

    def test_what_did_not_change_comes_from_the_checkpoint_before(self):
        state, writer = self.state(), cairnfs.torch.dcp.Writer()
        for step in range(4):
            temporary, final = self.path("step.tmp"), self.path(f"step-{step}")
            state["object"]["step"] = 10**step
            state["half"][step] = 1
            dcp.save(state, checkpoint_id=temporary, storage_writer=writer)
            os.rename(temporary, final)
            writer.base = final
            (result,) = writer.results.values()
            if step > 0:
                self.assertEqual((result.base_use, result.blocks_changed), ("used", 1))
            self.assert_loads(f"step-{step}", state, None)

    def test_views_that_conjugate_or_negate(self):
        """In the checkpoint, as the target, and both."""
        for device in DEVICES:
            x = torch.complex(torch.arange(12.0, device=device), torch.arange(5.0, 17.0, device=device)).reshape(3, 4)
            kinds = {
                "plain": lambda t: t,
                "conj": lambda t: t.conj(),
                "neg": torch._neg_view,
                "both": lambda t: torch._neg_view(t.conj()),
            }
            state = {f"{saved} {target}": kind(x.clone()) for saved, kind in kinds.items() for target in kinds}
            dcp.save(state, checkpoint_id=self.path("ours"), storage_writer=cairnfs.torch.dcp.Writer())
            dcp.save(state, checkpoint_id=self.path("plain"))
            for folder in ("ours", "plain"):
                found = {name: kinds[name.split(" ")[1]](torch.zeros_like(x)) for name in state}
                dcp.load(found, checkpoint_id=self.path(folder), storage_reader=cairnfs.torch.dcp.Reader())
                for name, tensor in state.items():
                    self.assertTrue(torch.equal(found[name], tensor), (folder, name))

    def test_the_same_directory_again(self):
        state, writer = self.state(), cairnfs.torch.dcp.Writer()
        for _ in range(2):
            state["model"]["1.weight"][0, 0] += 1
            dcp.save(state, checkpoint_id=self.path("c"), storage_writer=writer)
            self.assert_loads("c", state, None)

    def test_async_save(self):
        state, writer = self.state(), cairnfs.torch.dcp.Writer()
        torch.distributed.init_process_group("gloo", init_method=f"file://{self.path('meeting')}", rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        for step in range(2):
            future = dcp.async_save(state, checkpoint_id=self.path(f"{step}"), storage_writer=writer)
            future.result()
            self.assert_loads(f"{step}", state, None)
        (result,) = writer.results.values()
        self.assertEqual((result.base_use, result.blocks_changed), ("used", 0))

    def test_bad_input(self):
        state = self.state()
        dcp.save(state, checkpoint_id=self.path("c"), storage_writer=cairnfs.torch.dcp.Writer())
        os.truncate(self.path("c/__0_0.distcp"), 1000)
        with self.assertRaises(CheckpointException) as raised:
            dcp.load(self.blank(state), checkpoint_id=self.path("c"), storage_reader=cairnfs.torch.dcp.Reader())
        self.assertIn("__0_0.distcp", str(raised.exception))
        os.unlink(self.path("c/__0_0.distcp"))
        with self.assertRaises(CheckpointException) as raised:
            dcp.load(self.blank(state), checkpoint_id=self.path("c"), storage_reader=cairnfs.torch.dcp.Reader())
        self.assertIn("__0_0.distcp", str(raised.exception))
        with self.assert_raises(CheckpointException, "writers"):
            dcp.save(
                state, checkpoint_id=self.path("d"), storage_writer=cairnfs.torch.dcp.Writer(saver={"writers": -1})
            )


def expected_of(rows):
    return torch.arange(rows * 3000, dtype=torch.float32).reshape(rows, 3000)


def save_on_rank(rank, folder):
    """Two checkpoints of a state that lies on all ranks."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = distribute_tensor(expected_of(1001), mesh, [Shard(0)])
    columns = distribute_tensor(expected_of(7), mesh, [Shard(1)])
    copies = distribute_tensor(expected_of(5), mesh, [Replicate()])
    writer = cairnfs.torch.dcp.Writer()
    for step in range(2):
        state = {"rows": rows, "columns": columns, "copies": copies, "step": step}
        dcp.save(state, checkpoint_id=f"{folder}/step-{step}", storage_writer=writer)
    (result,) = writer.results.values()
    assert (result.base_use, result.blocks_changed) == ("used", 0), result
    # Loaded again with other shards than it was saved with.
    state = {"rows": distribute_tensor(torch.zeros(1001, 3000), mesh, [Shard(1)]),
             "columns": distribute_tensor(torch.zeros(7, 3000), mesh, [Shard(0)]),
             "copies": distribute_tensor(torch.zeros(5, 3000), mesh, [Shard(0)])}  # fmt: skip
    dcp.load(state, checkpoint_id=f"{folder}/step-1", storage_reader=cairnfs.torch.dcp.Reader())
    assert torch.equal(state["rows"].full_tensor(), expected_of(1001))
    assert torch.equal(state["columns"].full_tensor(), expected_of(7))
    assert torch.equal(state["copies"].full_tensor(), expected_of(5))
    torch.distributed.destroy_process_group()


class RanksTest(DcpCase):
    def test_shards(self):
        torch.multiprocessing.spawn(save_on_rank, (self.folder,), RANKS)
        for reader in (None, cairnfs.torch.dcp.Reader()):
            state = {
                "rows": torch.zeros(1001, 3000),
                "columns": torch.zeros(7, 3000),
                "copies": torch.zeros(5, 3000),
                "step": 0,
            }
            dcp.load(state, checkpoint_id=self.path("step-1"), storage_reader=reader)
            for name, rows in (("rows", 1001), ("columns", 7), ("copies", 5)):
                self.assertTrue(torch.equal(state[name], expected_of(rows)), name)
            self.assertEqual(state["step"], 1)
