"""Loading: whole files, tensors and slices alone, and files that are damaged."""

import json
import os
import struct

import numpy

import cairnfs
from cairnfs import errors
from support import DTYPES, Case, damaged, unmapped_array


class LoadTest(Case):
    def setUp(self):
        super().setUp()
        self.saver = cairnfs.Saver()
        self.addCleanup(self.saver.close)
        self.state = {dtype: self.array((self.random.randrange(1, 50), 33), dtype) for dtype in DTYPES}
        self.state["big"] = self.array((3, 700, 1111), "float32")
        self.state["tall"] = self.array((3, 4, 5, 2500), "float32")  # cut into long runs
        self.state["deep"] = self.array((5, 6, 7, 8), "int16")
        self.state["scalar"], self.state["empty"] = self.array((), "float64"), self.array((4, 0), "int8")
        self.saver.save(self.state, self.path("state"))

    def test_all(self):
        self.assert_same(cairnfs.load(self.path("state")), self.state)
        with cairnfs.Loader(readers=2) as loader:
            for _ in range(2):
                self.assert_same(cairnfs.load(self.path("state"), loader=loader), self.state)

    def test_names(self):
        found = cairnfs.load(self.path("state"), names=["big", "scalar"])
        self.assert_same(found, {"big": self.state["big"], "scalar": self.state["scalar"]})

    def test_slices(self):
        for _ in range(200):
            name = self.random.choice([name for name, array in self.state.items() if array.ndim])
            shape, cut = self.state[name].shape, []
            for length in shape[: self.random.randrange(len(shape) + 1)]:
                begin = self.random.randrange(length + 1)
                cut.append(
                    self.random.choice(
                        [slice(None), slice(begin, self.random.randrange(begin, length + 1)), slice(begin, None)]
                    )
                )
            cut = tuple(cut)
            found = cairnfs.load(self.path("state"), slices={name: cut})
            self.assert_same(found, {name: self.state[name][cut]})

    def test_a_slice_of_many_runs(self):
        cut = (slice(1, 3), slice(1, 4), slice(2, 4))
        self.assert_same(cairnfs.load(self.path("state"), slices={"tall": cut}), {"tall": self.state["tall"][cut]})

    def test_slices_and_names(self):
        found = cairnfs.load(self.path("state"), names=["big", "deep"], slices={"big": slice(1, 2)})
        self.assert_same(found, {"big": self.state["big"][1:2], "deep": self.state["deep"]})
        for cut in (slice(0, 4), slice(-1, None), slice(0, 3, 2), 1, (slice(None),) * 4, slice(2, 1)):
            with self.assert_raises(errors.InvalidError, "'big'"):
                cairnfs.load(self.path("state"), slices={"big": cut})
        with self.assert_raises(errors.InvalidError, "'deep'"):
            cairnfs.load(self.path("state"), names=["big"], slices={"deep": slice(1)})

    def test_out(self):
        out = {"big": numpy.zeros_like(self.state["big"]), "int8": numpy.zeros_like(self.state["int8"])}
        found = cairnfs.load(self.path("state"), out=out)
        self.assertIs(found["big"], out["big"])
        self.assert_same(found, {"big": self.state["big"], "int8": self.state["int8"]})
        row = numpy.zeros((1, 700, 1111), "float32")
        cairnfs.load(self.path("state"), slices={"big": slice(2, 3)}, out={"big": row})
        self.assertEqual(row.tobytes(), self.state["big"][2:3].tobytes())

    def test_out_that_does_not_fit(self):
        def refuse(kind, out, *words):
            with self.assert_raises(kind, *words):
                cairnfs.load(self.path("state"), out=out)

        big = numpy.zeros_like(self.state["big"])
        refuse(errors.DtypeError, {"big": big.view("int32")}, "'big'", "F32", "I32")
        refuse(errors.InvalidError, {"big": big.reshape(-1)}, "'big'", "(3, 700, 1111)")
        refuse(errors.InvalidError, {"deep": numpy.zeros((8, 7, 6, 5), "int16").T}, "'deep'", "contiguous")
        read_only = big.copy()
        read_only.flags.writeable = False
        refuse(errors.InvalidError, {"big": read_only}, "'big'", "read-only")
        refuse(errors.MissingTensorError, {"absent": big}, "'absent'")
        rows = numpy.zeros((60, 33), "int8")
        refuse(
            errors.InvalidError,
            {"int8": rows[: self.state["int8"].shape[0]], "uint8": rows.view("uint8")[: self.state["uint8"].shape[0]]},
            "overlap",
        )
        self.assertFalse(big.any())

    def test_out_that_was_freed(self):
        gone = unmapped_array(self.state["uint8"].nbytes).reshape(self.state["uint8"].shape)
        with self.assert_raises(errors.PointerError, "'uint8'"):
            cairnfs.load(self.path("state"), out={"uint8": gone})

    def test_a_tensor_that_is_not_there(self):
        with self.assert_raises(KeyError, self.path("state"), "'absent'"):
            cairnfs.load(self.path("state"), names=["big", "absent"])
        with self.assert_raises(errors.MissingTensorError, "'absent'"):
            cairnfs.load(self.path("state"), slices={"absent": slice(1)})

    def test_a_file_that_is_replaced_meanwhile_is_not_mixed(self):
        """The header of one file is never used for the bytes of another."""
        with open(self.path("state"), "rb") as file:
            self.saver.save({"other": self.array((9,))}, self.path("state"))
            entries, _ = cairnfs.safetensors.read_header("state", file)
            found = numpy.zeros_like(self.state["big"])
            wanted = cairnfs.loader.Range(entries["big"].offset, found.nbytes, found.ctypes.data, -1, "big")
            with cairnfs.Loader() as loader:
                loader.read("state", file, [wanted])
        self.assertEqual(found.tobytes(), self.state["big"].tobytes())

    def test_devices(self):
        with self.assert_raises(errors.InvalidError, "cuda:0", "cairnfs.torch.load"):
            cairnfs.load(self.path("state"), "cuda:0")


class DamageTest(Case):
    def test_cut_short_anywhere(self):
        with cairnfs.Saver() as saver:
            saver.save({"a": self.array((50,)), "b": self.array((3, 5), "int64")}, self.path("whole"))
        with open(self.path("whole"), "rb") as file:
            data = file.read()
        for size in (*range(0, 200), *range(4000, len(data))):
            with open(self.path("cut"), "wb") as file:
                file.write(data[:size])
            with self.assert_raises(errors.Error, self.path("cut")) as _:
                cairnfs.load(self.path("cut"))

    def test_cut_short_while_it_is_read(self):
        """The header is whole, and its tensors end after the file."""
        with cairnfs.Saver() as saver:
            saver.save({"a": self.array((5 << 20,))}, self.path("state"))
        with open(self.path("state"), "rb") as file:
            entries, _ = cairnfs.safetensors.read_header("state", file)
            os.truncate(self.path("state"), 3 << 20)
            found = numpy.zeros(5 << 20, numpy.uint8)
            wanted = cairnfs.loader.Range(entries["a"].offset, found.nbytes, found.ctypes.data, -1, "a")
            with cairnfs.Loader() as loader, self.assert_raises(errors.TruncatedError, self.path("state")):
                loader.read(self.path("state"), file, [wanted])

    def write(self, header, body=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        with open(self.path("bad"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + body)

    def test_no_checkpoint(self):
        for data in (b"", b"PK\x03\x04", b"hello, world", bytes(100), b"\xff" * 100, b"\x80\x02}q\x00."):
            with open(self.path("bad"), "wb") as file:
                file.write(data)
            with self.assert_raises(errors.FormatError, self.path("bad")):
                cairnfs.load(self.path("bad"))
        with self.assert_raises(FileNotFoundError, "absent"):
            cairnfs.load(self.path("absent"))
        with self.assert_raises(OSError, self.folder, "directory"):
            cairnfs.load(self.folder)

    def test_a_pipe_is_refused_at_once(self):
        os.mkfifo(self.path("pipe"))
        for path in (self.path("pipe"), "/dev/null"):
            with self.assert_raises(errors.FileError, path, "no regular file"):
                cairnfs.load(path)

    def test_headers_that_are_wrong(self):
        good = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
        self.write({"a": good}, b"1234")
        self.assertEqual(cairnfs.load(self.path("bad"))["a"].tobytes(), b"1234")
        for change, kind in (
            ({"dtype": "X9"}, errors.DtypeError),
            ({"dtype": 5}, errors.Error),
            ({"dtype": ["U8"]}, errors.Error),
            ({"shape": [5]}, errors.FormatError),
            ({"shape": [-4]}, errors.FormatError),
            ({"shape": ["4"]}, errors.FormatError),
            ({"shape": 4}, errors.FormatError),
            ({"shape": [1 << 62, 1 << 62]}, errors.FormatError),
            ({"data_offsets": [4, 0]}, errors.FormatError),
            ({"data_offsets": [0, 5]}, errors.FormatError),
            ({"data_offsets": [1, 5]}, errors.TruncatedError),
            ({"data_offsets": [-1, 3]}, errors.FormatError),
            ({"data_offsets": None}, errors.FormatError),
            ({"data_offsets": [0, 2, 4]}, errors.FormatError),
        ):
            self.write({"a": {**good, **change}}, b"1234")
            with self.assert_raises(kind, self.path("bad")):
                cairnfs.load(self.path("bad"))
        for header in (b"{", b"[]", b"{}}", b"{\xff}", b'{"a":5}', b'{"__metadata__":5,"a":[]}', b"{" * 100000):
            self.write(header)
            with self.assert_raises(errors.FormatError, self.path("bad")):
                cairnfs.load(self.path("bad"))

    def test_shapes_that_no_array_has(self):
        good = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
        for shape in ([0, 1 << 62, 1 << 62], [0, 1 << 70], [1] * 99 + [0], [1 << 62] * 300, [True, 0]):
            self.write({"a": {**good, "shape": shape}})
            with self.assert_raises(errors.FormatError, self.path("bad"), "'a'"):
                cairnfs.load(self.path("bad"))

    def test_random_damage(self):
        """Nothing but an error of the package, or a tensor, comes of any file."""
        with cairnfs.Saver() as saver:
            state = {"a": self.array((50,)), "b": self.array((3, 5), "int64")}
            saver.save(state, self.path("whole"), metadata={"k": "v"})
        with open(self.path("whole"), "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            text, body = file.read(length).rstrip(), file.read()
        data = struct.pack("<Q", len(text)) + text + body
        with cairnfs.Loader() as loader:
            for made in damaged(self.random, data, 4000):
                with open(self.path("bad"), "wb") as file:
                    file.write(made)
                try:
                    cairnfs.load(self.path("bad"), loader=loader)
                except errors.Error:
                    pass

    def test_arguments_that_are_wrong(self):
        with cairnfs.Saver() as saver:
            saver.save({"a": self.array((50,))}, self.path("whole"))
        for options in (
            {"slices": {"a": slice(0.5, 2)}},
            {"slices": {"a": slice("0", None)}},
            {"slices": ["a"]},
            {"names": "a"},
            {"names": 5},
            {"out": [self.array((50,))]},
        ):
            with self.assert_raises(errors.InvalidError):
                cairnfs.load(self.path("whole"), **options)
        for path in ("\ud800", "", "a\0b", 5, None):
            with self.assert_raises(errors.InvalidError):
                cairnfs.load(path)
