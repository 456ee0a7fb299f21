"""cairnfs.torch against torch.save and torch.load, and against safetensors."""

import collections
import io
import multiprocessing
import os
import subprocess
import sys
import unittest
import zipfile
from unittest import mock

import torch

try:
    import safetensors.torch
except ImportError:  # tools/gpu-check needs torch alone
    safetensors = None

import cairnfs
import cairnfs.torch
from cairnfs import errors
from torch_support import DEVICES, DTYPES, Case, damaged, difference, model_and_optimizer, random_tensor


def records(file):
    """{name: bytes} of a zip file, without what is random. The CRC of storages is not looked at."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            with archive.open(info) as record:
                record._expected_crc = None  # pylint: disable=protected-access
                if not info.filename.endswith("serialization_id"):
                    found[info.filename] = record.read()
    return found


class TorchCase(Case):
    def setUp(self):
        super().setUp()
        self.saver = cairnfs.torch.Saver()
        self.addCleanup(self.saver.close)

    def tensor(self, *shape, dtype=torch.float32, device="cpu"):
        return random_tensor(self.random, shape, dtype, device)

    def assert_state(self, found, expected):
        self.assertIsNone(difference(found, expected))

    def state(self, device="cpu"):
        """What a training state may hold, and then some."""
        model, optimizer = model_and_optimizer(device)
        shared = self.tensor(1000, device=device)
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "parameter": model[1].weight,
            "views": [shared[3:], shared[:10], shared.view(10, 100)[:, 5], (shared, shared.view(100, 10).T)],
            "dtypes": {str(dtype): self.tensor(3, 5, dtype=dtype, device=device) for dtype in DTYPES},
            "ordered": collections.OrderedDict(
                [("b", self.tensor(device=device)), ("a", torch.empty(0, 4, device=device))]
            ),
            "sparse": torch.eye(5, device=device).to_sparse(),
            "numbers": (1, 2.5, None, True, "text", b"bytes", {3: "three"}),
            7: self.tensor(1 << 20, dtype=torch.uint8, device=device),
        }


class SaveTest(TorchCase):
    def test_plain_torch_load_reads_it(self):
        for device in DEVICES:
            state, path = self.state(device), self.path("state.pt")
            self.saver.save(state, path)
            for options in ({"weights_only": True}, {"weights_only": False}, {"weights_only": True, "mmap": True}):
                self.assert_state(torch.load(path, **options), state)
            views = torch.load(path)["views"]
            self.assertEqual(views[0].untyped_storage().data_ptr(), views[3][0].untyped_storage().data_ptr())

    def test_a_process_without_this_package_reads_it(self):
        self.saver.save({"a": torch.arange(100000)}, self.path("state.pt"))
        code = (
            "import sys, torch\n"
            "assert torch.equal(torch.load(sys.argv[1])['a'], torch.arange(100000))\n"
            "assert 'cairnfs' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code, self.path("state.pt")], check=True)

    def test_every_byte_but_those_of_crcs_is_that_of_torch_save(self):
        for obj in (
            self.state(),
            torch.ones(3),
            [],
            {"n": 1},
            torch.nn.Linear(3, 4),
            [self.tensor(3) for _ in range(25)],
        ):
            plain, path = io.BytesIO(), self.path("state.pt")
            torch.save(obj, plain)
            self.saver.save(obj, path)
            with open(path, "rb") as file:
                self.assertEqual(records(file), records(plain))
            self.assertEqual(os.path.getsize(path), len(plain.getvalue()))

    def test_what_did_not_change_comes_from_the_base(self):
        state = self.state()
        self.saver.save(state, self.path("1.pt"))
        result = self.saver.save(state, self.path("2.pt"), base=self.path("1.pt"))
        self.assertEqual((result.base_use, result.blocks_changed), ("used", 0))
        state["model"]["1.weight"][0, 0] += 1  # the storage of state["parameter"] too
        result = self.saver.save(state, self.path("3.pt"), base=self.path("2.pt"))
        self.assertEqual((result.base_use, result.blocks_changed), ("used", 1))
        self.assert_state(torch.load(self.path("3.pt")), state)

    def test_tensors_are_known_by_their_path(self):
        """One more in front gives every record another number and another offset."""
        state = {"model": {f"{i}": self.tensor(300000) for i in range(12)}}
        self.saver.save(state, self.path("1.pt"))
        state = {"first": self.tensor(1000), "model": {**state["model"], "5": self.tensor(3)}}
        result = self.saver.save(state, self.path("2.pt"), base=self.path("1.pt"))
        self.assertEqual((result.base_use, result.blocks_changed), ("used", 2))
        self.assert_state(torch.load(self.path("2.pt")), state)

    @unittest.skipIf(torch.__version__.startswith("2.6."), "torch 2.6 aligns to 64 alone")
    def test_alignment(self):
        from torch.utils.serialization import config  # pylint: disable=import-outside-toplevel

        self.addCleanup(setattr, config.save, "storage_alignment", config.save.storage_alignment)
        config.save.storage_alignment = 4096
        state = [self.tensor(5000), self.tensor(3), self.tensor(1 << 20)]
        self.saver.save(state, self.path("state.pt"))
        with open(self.path("state.pt"), "rb") as file:
            found, _ = cairnfs.torch._zip.records("state.pt", file)  # pylint: disable=protected-access
        self.assertEqual([record.offset % 4096 for record in found.values()], [0, 0, 0])
        self.assert_state(torch.load(self.path("state.pt")), state)

    def test_names_that_meet(self):
        state = {
            "a.b": self.tensor(3),
            "a": {"b": self.tensor(4), "": self.tensor(5)},
            "": self.tensor(6),
            "\ud800\0": self.tensor(2),
        }
        state[1], state["1"] = self.tensor(7), self.tensor(8)
        for _ in range(2):
            self.saver.save(state, self.path("state.pt"), base=self.saver.last_path)
            self.assert_state(torch.load(self.path("state.pt"), weights_only=False), state)

    def test_random_changes_upon_a_base(self):
        state, last = {"w": [self.tensor(self.random.randrange(1 << 20)) for _ in range(14)], "step": 0}, None
        for step in range(30):
            state["step"] = 10**step
            for tensor in self.random.sample(state["w"], 3):
                if tensor.numel():
                    tensor[self.random.randrange(tensor.numel())] = step
            if step % 7 == 3:
                state["w"].insert(self.random.randrange(10), self.tensor(self.random.randrange(300000)))
            path = self.path(f"step-{step % 3}.pt")
            self.saver.save(state, path, base=last)
            self.assert_state(torch.load(path), state)
            last = path

    def test_save_async(self):
        for device in DEVICES:
            state = {"a": self.tensor(3 << 20, device=device)}
            expected = {"a": state["a"].clone()}
            future = self.saver.save_async(state, self.path("state.pt"))
            state["a"].zero_()
            future.result()
            self.assert_state(torch.load(self.path("state.pt")), expected)
        with self.assert_raises(errors.NotFoundError, "missing"):
            self.saver.save_async(state, self.path("missing/state.pt")).result()
        with self.assert_raises(errors.NotFoundError, "before failed", "missing"):
            self.saver.save(state, self.path("state.pt"))

    def test_functions_of_the_module_after_a_fork(self):
        cairnfs.torch.save([5], self.path("parent.pt"))
        path = self.path("child.pt")
        child = multiprocessing.get_context("fork").Process(target=cairnfs.torch.save, args=([6], path))
        child.start()
        child.join(60)
        self.assertEqual((child.exitcode, torch.load(path)), (0, [6]))

    def test_no_device_memory_is_tried_once_more(self):
        state, start, failures, needed = {"a": self.tensor(50)}, cairnfs._abi.call, [], []

        def full(name, *arguments):
            if name == "cairnfs_save_start":
                needed.append(arguments[1]._obj.needs_snapshot)
                if failures:
                    raise failures.pop()
            return start(name, *arguments)

        with mock.patch("cairnfs._abi.call", full), mock.patch("torch.cuda.empty_cache") as empty_cache:
            self.saver.save(state, self.path("state.pt"))
            failures[:] = [errors.from_code(7, "full")]
            self.saver.save(state, self.path("state.pt"))
            self.assertEqual(empty_cache.call_count, 1)
            self.saver.save(state, self.path("state.pt"))
            # A snapshot is worth torch's cache once.
            self.assertEqual(needed, [1, 1, 0, 0])
            failures[:] = [errors.from_code(7, "full"), errors.from_code(7, "full")]
            with self.assert_raises(errors.NoDeviceMemoryError, "full"):
                self.saver.save(state, self.path("state.pt"))
        self.assert_state(torch.load(self.path("state.pt")), state)

    def test_functions_of_the_module(self):
        state = {"a": self.tensor(2 << 20)}
        cairnfs.torch.save(state, self.path("1.pt"))
        result = cairnfs.torch.save_async(state, self.path("2.pt"), base=self.path("1.pt")).result()
        self.assertEqual(result.blocks_changed, 0)
        self.assert_state(torch.load(self.path("2.pt")), state)

    def test_bad_input(self):
        with self.assert_raises(errors.InvalidError, "pickle", self.path("state.pt")):
            self.saver.save({"f": lambda: 0}, self.path("state.pt"))
        if hasattr(torch, "_empty_affine_quantized"):
            quantized = torch._empty_affine_quantized([2], scale=1, zero_point=0, dtype=torch.qint8)
            with self.assert_raises(errors.InvalidError, "'a.0'", "quantized", self.path("state.pt")):
                self.saver.save({"a": [quantized]}, self.path("state.pt"))
            holder = torch.nn.Module()
            holder.inner = quantized
            with self.assert_raises(errors.Error, self.path("state.pt")):
                self.saver.save(holder, self.path("state.pt"))
        self.assertEqual(os.listdir(self.folder), [])


class SafetensorsTest(TorchCase):
    @unittest.skipIf(safetensors is None, "needs safetensors")
    def test_safetensors_reads_it(self):
        for device in DEVICES:
            state = {str(dtype): self.tensor(7, 11, dtype=dtype, device=device) for dtype in DTYPES}
            state.update(
                {"big": self.tensor(3, 1 << 20, device=device), "empty": torch.empty(0, 3), "scalar": torch.tensor(3.5)}
            )
            self.saver.save_safetensors(state, self.path("s"), metadata={"format": "pt"})
            found = safetensors.torch.load_file(self.path("s"))
            self.assert_state(dict(sorted(found.items())), {name: t.cpu() for name, t in sorted(state.items())})
            with safetensors.safe_open(self.path("s"), "pt") as file:
                self.assertEqual(file.metadata(), {"format": "pt"})

    @unittest.skipIf(safetensors is None, "needs safetensors")
    def test_what_safetensors_wrote_is_read(self):
        state = {str(dtype): self.tensor(7, 11, dtype=dtype) for dtype in DTYPES}
        safetensors.torch.save_file(state, self.path("s"))
        self.assert_state(dict(sorted(cairnfs.torch.load(self.path("s")).items())), dict(sorted(state.items())))

    def test_dlpack(self):
        """Tensors through cairnfs.Saver, which does not know torch."""
        for device in DEVICES:
            state = {
                "plain": self.tensor(300, 7, device=device),
                "ones": self.tensor(1, 300, 1, 7, 1, device=device),
                "half": self.tensor(33, dtype=torch.bfloat16, device=device),
                "empty": torch.empty(0, 3, device=device),
            }
            with cairnfs.Saver() as saver:
                saver.save(state, self.path("s"))
                with self.assert_raises(errors.InvalidError, "'turned'", "not contiguous"):
                    saver.save({"turned": state["plain"].T}, self.path("s"))
                with self.assert_raises(errors.InvalidError, "'grown'", "grad"):
                    saver.save({"grown": state["plain"].clone().requires_grad_()}, self.path("s"))
            found = cairnfs.torch.load(self.path("s"), device)
            self.assert_state(dict(sorted(found.items())), dict(sorted(state.items())))
            into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            cairnfs.load(self.path("s"), out=into)
            self.assert_state(into, state)

    def test_reuse(self):
        state = {"a": self.tensor(1 << 20), "b": self.tensor(1 << 20)}
        self.saver.save_safetensors(state, self.path("1"))
        state["b"][5] = 0
        future = self.saver.save_safetensors_async(state, self.path("2"), base=self.path("1"))
        self.assertEqual(future.result().blocks_changed, 1)
        self.assert_state(dict(sorted(cairnfs.torch.load(self.path("2")).items())), state)

    def test_bad_input(self):
        def refuse(kind, tensors, *words):
            with self.assert_raises(kind, *words):
                self.saver.save_safetensors(tensors, self.path("bad"))
            self.assertEqual(os.listdir(self.folder), [])

        square = self.tensor(10, 10)
        refuse(errors.InvalidError, {"x": square.T}, "'x'", "not contiguous", "(10, 10)")
        refuse(errors.InvalidError, {"x": square[:5], "y": square[4:]}, "'x'", "'y'", "overlap")
        refuse(errors.InvalidError, {"x": torch.empty(3, device="meta")}, "'x'", "meta")
        refuse(errors.InvalidError, {"x": torch.eye(3).to_sparse()}, "'x'", "sparse")
        refuse(errors.DtypeError, {"x": torch.zeros(3, dtype=torch.complex128)}, "'x'", "complex128")
        refuse(errors.InvalidError, {"x": [1]}, "'x'", "list")
        refuse(errors.InvalidError, {"x": self.tensor(4, dtype=torch.complex64).conj()}, "'x'", "conj")
        refuse(errors.InvalidError, {"": square}, "name")
        if hasattr(torch, "_empty_affine_quantized"):
            quantized = torch._empty_affine_quantized([2], scale=1, zero_point=0, dtype=torch.qint8)
            refuse(errors.InvalidError, {"x": quantized}, "'x'", "quantized")
        for size in (0, 3):
            freed = self.tensor(10)
            freed.untyped_storage().resize_(size)
            refuse(errors.InvalidError, {"x": freed}, "'x'", "storage", size)


class LoadTest(TorchCase):
    def test_the_object(self):
        for device in DEVICES:
            state = self.state()
            torch.save(state, self.path("plain.pt"))
            self.saver.save(state, self.path("ours.pt"))
            for name in ("plain.pt", "ours.pt"):
                found = cairnfs.torch.load(self.path(name), device)
                expected = torch.load(self.path(name), map_location=device)
                self.assert_state(found, expected)
                self.assertEqual(str(found[7].device), device)
                views = found["views"]
                self.assertEqual(views[0].untyped_storage().data_ptr(), views[3][0].untyped_storage().data_ptr())

    def test_of_a_module(self):
        model, _ = model_and_optimizer()
        torch.save(model, self.path("model.pt"))
        found = cairnfs.torch.load(self.path("model.pt"), weights_only=False)
        self.assert_state(found.state_dict(), model.state_dict())
        with self.assert_raises(errors.FormatError, "weights_only"):
            cairnfs.torch.load(self.path("model.pt"))

    def test_names_and_slices(self):
        state = self.state()
        del state["sparse"]
        self.saver.save(state, self.path("state.pt"))
        self.saver.save_safetensors({"w": state["parameter"], "k": state["model"]["2.bias"]}, self.path("s"))
        for device in DEVICES:
            weight = state["parameter"].detach().to(device)
            names = ["model.1.weight", "views.0", "optimizer.state.1.exp_avg"]
            slices = {"model.1.weight": (slice(5, 900), slice(10, 90))}
            found = cairnfs.torch.load(self.path("state.pt"), device, names, slices)
            self.assert_state(found["model.1.weight"], weight[5:900, 10:90].contiguous())
            self.assert_state(found["views.0"], state["views"][0].to(device))
            self.assert_state(found["optimizer.state.1.exp_avg"], state["optimizer"]["state"][1]["exp_avg"].to(device))
            self.assert_state(cairnfs.torch.load(self.path("s"), device, slices={"w": slice(3, 5)}), {"w": weight[3:5]})
        with self.assert_raises(errors.MissingTensorError, "'model.9'"):
            cairnfs.torch.load(self.path("state.pt"), names=["model.9"])
        with self.assert_raises(errors.InvalidError, "mps"):
            cairnfs.torch.load(self.path("s"), "mps")

    def test_views_that_conjugate_or_negate_by_name(self):
        """The bits that torch keeps beside the bytes count, whoever wrote the file."""
        for device in DEVICES:
            x = self.tensor(40, 60, dtype=torch.complex64, device=device)
            x = torch.complex(x.real.nan_to_num(1, 2, 3), x.imag.nan_to_num(4, 5, 6))
            state = {"x": x, "conj": x.conj(), "neg": torch._neg_view(x), "imag": x.clone().conj()[0, 0].imag,
                     "real": torch._neg_view(x.real.contiguous()), "both": torch._neg_view(x.conj())}  # fmt: skip
            for save in (torch.save, self.saver.save):
                save(state, self.path("state.pt"))
                found = cairnfs.torch.load(self.path("state.pt"), device, names=list(state))
                for name, tensor in state.items():
                    expected = tensor.resolve_conj().resolve_neg()
                    self.assertFalse(found[name].is_conj() or found[name].is_neg(), name)
                    self.assertTrue(torch.equal(found[name], expected), name)
                    if tensor.dim() == 2:
                        for cut in ((slice(3, 9),), (slice(3, 9), slice(1, 5))):
                            part = cairnfs.torch.load(self.path("state.pt"), device, slices={name: cut})[name]
                            self.assertTrue(torch.equal(part, expected[cut]), (name, cut))

    def test_dtypes_that_safetensors_lacks_by_name(self):
        state = {"c": self.tensor(7, 5, dtype=torch.complex128), "h": self.tensor(7, dtype=torch.complex32)}
        torch.save(state, self.path("state.pt"))
        self.assert_state(cairnfs.torch.load(self.path("state.pt"), names=["c", "h"]), state)
        part = cairnfs.torch.load(self.path("state.pt"), slices={"c": (slice(2, 4), slice(1, 3))})
        self.assert_state(part["c"], state["c"][2:4, 1:3].contiguous())

    def test_names_that_more_than_one_tensor_has(self):
        state = {"a.b": self.tensor(3), "a": {"b": self.tensor(4)}, 0: self.tensor(5), "0": self.tensor(6),
                 "c": self.tensor(7), "d": torch.eye(3)[:, 1]}  # fmt: skip
        self.saver.save(state, self.path("state.pt"))
        self.assert_state(cairnfs.torch.load(self.path("state.pt"), names=iter(["c"])), {"c": state["c"]})
        for name in ("a.b", "0"):
            with self.assert_raises(errors.InvalidError, self.path("state.pt"), "more than one", f"'{name}'"):
                cairnfs.torch.load(self.path("state.pt"), names=["c", name])
            with self.assert_raises(errors.InvalidError, "more than one", f"'{name}'"):
                cairnfs.torch.load(self.path("state.pt"), slices={name: slice(0, 1)})
        with self.assert_raises(errors.InvalidError, "'d'", "contiguous", "whole"):
            cairnfs.torch.load(self.path("state.pt"), names=["d"])

    def test_files_that_are_damaged(self):
        state = {"a": self.tensor(500), "b": [self.tensor(2, 3)]}
        self.saver.save(state, self.path("whole.pt"))
        with open(self.path("whole.pt"), "rb") as file:
            data = file.read()
        for size in range(0, len(data)):
            with open(self.path("cut.pt"), "wb") as file:
                file.write(data[:size])
            with self.assert_raises(errors.Error, self.path("cut.pt")):
                cairnfs.torch.load(self.path("cut.pt"))
        with zipfile.ZipFile(self.path("other.pt"), "w") as archive:
            archive.writestr("hello", b"text")
        with self.assert_raises(errors.FormatError, "not of torch.save"):
            cairnfs.torch.load(self.path("other.pt"))
        torch.save(state, self.path("legacy.pt"), _use_new_zipfile_serialization=False)
        for load in (cairnfs.torch.load, cairnfs.load):
            with self.assert_raises(errors.FormatError, "legacy.pt", "old format", "torch.load"):
                load(self.path("legacy.pt"))

    def test_a_pipe_is_refused_at_once(self):
        os.mkfifo(self.path("pipe"))
        with self.assert_raises(errors.FileError, self.path("pipe"), "no regular file"):
            cairnfs.torch.load(self.path("pipe"))

    def test_fingerprints_agree(self):
        tensor = self.tensor(1 << 20)
        expected = cairnfs.fingerprint(tensor.numpy())
        for device in DEVICES:
            self.assertEqual(cairnfs.torch.fingerprint(tensor.to(device)).tobytes(), expected.tobytes())

    def test_random_damage(self):
        """Nothing but an error of the package, or a state, comes of any file."""
        self.saver.save({"a": self.tensor(50), "b": [self.tensor(2, 3), 5]}, self.path("whole.pt"))
        with open(self.path("whole.pt"), "rb") as file:
            data = file.read()
        with cairnfs.Loader() as loader:
            for made in damaged(self.random, data, 2000):
                with open(self.path("bad.pt"), "wb") as file:
                    file.write(made)
                for options in ({}, {"names": ["a"]}):
                    try:
                        cairnfs.torch.load(self.path("bad.pt"), loader=loader, **options)
                    except errors.Error:
                        pass

    def test_a_record_that_ends_after_the_file(self):
        self.saver.save({"a": self.tensor(50)}, self.path("whole.pt"))
        with open(self.path("whole.pt"), "rb") as file:
            data = file.read()
        size, at = (200).to_bytes(4, "little"), 0
        large = (1 << 31).to_bytes(4, "little")
        with open(self.path("bad.pt"), "wb") as file:
            at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"/data/0"))
            file.write(data[:at] + data[at:].replace(size, large))
        with self.assert_raises(errors.TruncatedError, self.path("bad.pt"), "data/0"):
            cairnfs.torch.load(self.path("bad.pt"))

    def test_names_of_tensors_that_share_a_storage(self):
        """Storages of one size follow one that is met twice: none is taken for another."""
        shared = self.tensor(50)
        state = {"a": shared, "b": shared[10:], "c": self.tensor(50), "d": self.tensor(50)}
        self.saver.save(state, self.path("state.pt"))
        self.assert_state(cairnfs.torch.load(self.path("state.pt"), names=list(state)), state)
