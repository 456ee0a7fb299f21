"""Saving: what is refused, what fails, and what is said of it."""

import ctypes
import multiprocessing
import os
import stat
import struct
import subprocess
import sys
from unittest import mock

import numpy

import cairnfs
from cairnfs import _dlpack, errors
from support import Case, read_plain, unmapped_array

MIB = 1 << 20


def _producer(struct_of_c, name):
    """An object whose __dlpack__ gives a capsule of that name around the struct."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    producer = mock.Mock(spec=("__dlpack__", "__dlpack_device__"))
    producer.__dlpack__ = lambda **_: make(ctypes.addressof(struct_of_c), name, None)
    producer.__dlpack_device__ = lambda: (1, 0)
    return producer


class ErrorTest(Case):
    def setUp(self):
        super().setUp()
        self.saver = cairnfs.Saver()
        self.addCleanup(self.saver.close)
        self.good = {"a": self.array((1000,))}

    def refuse(self, kind, words, state, path=None, **options):
        """The save raises this, and leaves the folder as it was."""
        before = sorted(os.listdir(self.folder))
        with self.assert_raises(kind, *words):
            self.saver.save(state, path or self.path("state"), **options)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_tensors_that_cannot_be_saved(self):
        array = self.array((10, 10), "float32")
        good = self.array((7,))
        self.refuse(errors.InvalidError, ["'bad'", "not contiguous", "(10, 10)"], {"good": good, "bad": array.T})
        self.refuse(errors.InvalidError, ["'bad'", "not contiguous"], {"good": good, "bad": array[::2]})
        self.refuse(errors.InvalidError, ["'bad'", "list"], {"bad": [1, 2]})
        self.refuse(errors.InvalidError, ["'bad'", "float64"], {"bad": numpy.float64(1)})
        self.refuse(errors.DtypeError, ["'bad'", "object"], {"bad": numpy.array([None])})
        self.refuse(errors.DtypeError, ["'bad'", "byte order"], {"bad": numpy.arange(3, dtype=">i4")})
        self.refuse(errors.DtypeError, ["'bad'", "complex128"], {"bad": numpy.zeros(3, "complex128")})
        self.refuse(errors.DtypeError, ["'bad'"], {"bad": numpy.zeros(3, "S5")})
        self.refuse(errors.DtypeError, ["'bad'"], {"bad": numpy.zeros(3, "datetime64[s]")})

    def test_views_that_overlap(self):
        array = self.array((100,))
        words = ["'head'", "'tail'", "overlap"]
        self.refuse(errors.InvalidError, words, {"head": array[:60], "tail": array[59:]})
        self.refuse(errors.InvalidError, ["overlap"], {"whole": array, "again": array})
        self.refuse(
            errors.InvalidError, ["'c'", "'all'"], {"all": array, "b": array[90:90], "c": array[90:], "d": array[95:]}
        )
        self.saver.save({"head": array[:60], "tail": array[60:], "none": array[30:30]}, self.path("state"))

    def test_memory_that_was_freed(self):
        gone = unmapped_array(3 << 20)
        self.refuse(errors.PointerError, ["'gone'"], {"a": self.array((3,)), "gone": gone})
        self.refuse(errors.PointerError, ["'gone'"], {"gone": gone[(1 << 20) + 5 :]})
        self.saver.save(self.good, self.path("state"))

    def test_no_room(self):
        """The limit on a file's size stands for a full disk: the error says so, nothing is left, the base is whole."""
        self.saver.save(self.good, self.path("base"))
        with open(self.path("base"), "rb") as file:
            before = file.read()
        code = (
            "import resource, sys, numpy, cairnfs\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))\n"
            "saver = cairnfs.Saver()\n"
            "future = saver.save_async({'a': numpy.ones(8 << 20, 'uint8')}, sys.argv[1])\n"
            "try:\n"
            "    future.result()\n"
            "except cairnfs.errors.NoSpaceError as error:\n"
            "    print(error)\n"
        )
        command = [sys.executable, "-c", code, self.path("base")]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        self.assertIn(self.path("base"), done.stdout)
        self.assertEqual(os.listdir(self.folder), ["base"])
        with open(self.path("base"), "rb") as file:
            self.assertEqual(file.read(), before)

    def test_a_ring_that_cannot_be_had(self):
        with cairnfs.Saver(ring_bytes=1 << 60) as saver, self.assert_raises(errors.NoMemoryError, "ring", 1 << 60):
            saver.save(self.good, self.path("state"))
        self.assertEqual(os.listdir(self.folder), [])

    def test_ranks_of_a_host_share_what_a_ring_may_take(self):
        code = (
            "import sys, cairnfs, numpy\n"
            "print(cairnfs.Saver().save({'a': numpy.zeros(5)}, sys.argv[1]).ring_bytes)\n"
        )
        taken = {}
        for ranks in ("1", "1000000", "no number"):
            done = subprocess.run([sys.executable, "-c", code, self.path(ranks)], check=True, capture_output=True,
                                  text=True, timeout=120, env={**os.environ, "LOCAL_WORLD_SIZE": ranks})
            taken[ranks] = int(done.stdout)
        self.assertLess(taken["1000000"], taken["1"])
        self.assertEqual(taken["no number"], taken["1"])

    def test_names_and_metadata(self):
        for name in ("", "a\0b", 5, None, b"a", "\ud800"):
            self.refuse(errors.InvalidError, ["no name of a tensor"], {name: self.array((3,))})
        self.refuse(errors.InvalidError, ["__metadata__"], {"__metadata__": self.array((3,))})
        self.refuse(errors.InvalidError, ["metadata 'step': 5"], self.good, metadata={"step": 5})

    def test_paths(self):
        self.refuse(FileNotFoundError, ["missing"], self.good, self.path("missing/state"))
        os.mkdir(self.path("folder"))
        for path in ("folder", "folder/."):
            self.refuse(IsADirectoryError, ["folder", "directory"], self.good, self.path(path))
            self.refuse(errors.FileError, ["folder", "directory"], self.good, self.path(path))
        self.refuse(errors.FileError, ["xyz", "name"], self.good, self.path("xyz" * 86))
        os.mkfifo(self.path("pipe"))
        self.refuse(OSError, ["pipe", "no regular file"], self.good, self.path("pipe"))
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("pipe")).st_mode))
        self.refuse(errors.InvalidError, ["path"], self.good, "a\0b")
        self.refuse(errors.InvalidError, ["path"], self.good, 5)
        self.refuse(errors.InvalidError, ["base"], self.good, base=5)

    def test_an_absolute_path_where_the_current_directory_is_gone(self):
        here = os.getcwd()
        os.mkdir(self.path("gone"))
        os.chdir(self.path("gone"))
        try:
            os.rmdir(self.path("gone"))
            self.saver.save({"a": self.array((5,))}, self.path("file"))
            with self.assert_raises(errors.NotFoundError, "relative", "current directory"):
                self.saver.save({"a": self.array((5,))}, "relative")
        finally:
            os.chdir(here)

    def test_arguments_that_are_wrong(self):
        class Broken:
            def __dlpack__(self, **_):
                raise KeyError("broken")

            def __dlpack_device__(self):
                return (1, 0)

        array = self.array((5,))
        for tensors, path, metadata in (
            ([array], "file", None),
            ({"a": Broken()}, "file", None),
            ({"a": array}, "\ud800", None),
            ({"a": array}, "file", {"key": "\ud800"}),
            ({"a": array}, "file", ["key"]),
        ):
            with self.assert_raises(errors.InvalidError):
                self.saver.save(tensors, self.path(path), metadata=metadata)

    def test_a_masked_array(self):
        masked = numpy.ma.masked_array(self.array((5,)), mask=[1, 0, 0, 0, 1])
        with self.assert_raises(errors.InvalidError, "'m'", "masked"):
            self.saver.save({"m": masked}, self.path("file"))

    def test_a_version_of_dlpack_that_is_not_known(self):
        new = ctypes.create_string_buffer(200)
        struct.pack_into("<II", new, 0, 2, 7)
        of_new = _producer(new, b"dltensor_versioned")
        with self.assert_raises(errors.InvalidError, "'new'", "2.7"):
            self.saver.save({"new": of_new}, self.path("file"))

    def test_dlpack_that_names_no_memory(self):
        memory = self.array((4,), "float32")

        def refuse(kind, *words, shape=(4,), data=memory.ctypes.data, begin=0, device=(1, 0)):
            lengths = (ctypes.c_int64 * len(shape))(*shape)
            tensor = _dlpack._Tensor(data, *device, len(shape), 2, 32, 1, lengths, None, begin)
            self.refuse(kind, ["'odd'", *words], {"odd": _producer(tensor, b"dltensor")})

        refuse(errors.PointerError, "NULL", data=None)
        refuse(errors.PointerError, "not mapped", data=4096)
        refuse(errors.PointerError, "not mapped", shape=(1 << 60,))
        refuse(errors.InvalidError, "shape", shape=(1 << 31, 1 << 31))  # 2^64 bytes
        refuse(errors.InvalidError, "shape", shape=(1 << 61, 8))
        refuse(errors.InvalidError, "shape", shape=(-4,))
        refuse(errors.InvalidError, "shape", shape=(-2, -2))
        refuse(errors.InvalidError, "address", begin=(1 << 64) - 4096)
        refuse(errors.InvalidError, "-1", device=(2, -1))

    def test_a_future_has_any_error(self):
        with mock.patch("cairnfs.saver._result_of", side_effect=ZeroDivisionError("odd")):
            future = self.saver.save_async(self.good, self.path("file"))
            with self.assertRaises(ZeroDivisionError):
                future.result(60)
        with self.assert_raises(errors.Error, "before failed", "odd"):
            self.saver.save(self.good, self.path("file"))
        self.saver.save(self.good, self.path("file"))

    def test_options(self):
        for options in (
            {"writers": -1},
            {"writers": 257},
            {"writers": 1 << 40},
            {"writers": "4"},
            {"ring_bytes": 5},
            {"ring_bytes": -1},
            {"copies_in_flight": 65},
            {"snapshot": "host"},
        ):
            with self.assert_raises(errors.InvalidError):
                cairnfs.Saver(**options)

    def test_an_error_of_save_async_is_raised_twice_and_then_forgotten(self):
        self.saver.save(self.good, self.path("old"))
        future = self.saver.save_async(self.good, self.path("missing/state"))
        with self.assert_raises(errors.NotFoundError, "missing"):
            future.result()
        self.refuse(errors.NotFoundError, ["before failed", "missing"], self.good)
        self.saver.save(self.good, self.path("state"))
        self.assert_same(read_plain(self.path("state"))[0], self.good)

    def test_an_error_that_nobody_has_seen_is_raised_at_the_end(self):
        with self.assert_raises(errors.NotFoundError, "before failed", "missing"):
            with cairnfs.Saver() as saver:
                saver.save_async(self.good, self.path("missing/state"))
        saver = cairnfs.Saver()
        saver.save_async(self.good, self.path("missing/state"))
        with self.assert_raises(errors.NotFoundError, "missing"):
            saver.close()
        saver.close()
        for ask in (lambda future: future.exception(), lambda future: self.assertRaises(OSError, future.result)):
            with cairnfs.Saver() as saver:
                ask(saver.save_async(self.good, self.path("missing/state")))
        with self.assertRaises(ZeroDivisionError):
            with cairnfs.Saver() as saver:
                saver.save_async(self.good, self.path("missing/state"))
                raise ZeroDivisionError

    def test_an_error_of_save_is_raised_once(self):
        self.refuse(errors.NotFoundError, ["missing"], self.good, self.path("missing/state"))
        self.saver.save(self.good, self.path("state"))

    def test_a_save_that_failed_is_no_base(self):
        state = {"a": self.array((3 * MIB,))}
        self.saver.save(state, self.path("1"))
        other = {"a": self.array((3 * MIB,))}
        self.refuse(errors.NotFoundError, [], other, self.path("missing/2"), base=self.path("1"))
        self.saver.save(other, self.path("3"), base=self.path("1"))
        self.assert_same(read_plain(self.path("3"))[0], other)

    def test_closed(self):
        with cairnfs.Saver() as saver:
            future = saver.save_async(self.good, self.path("state"))
        self.assertTrue(future.done())
        with self.assert_raises(errors.InvalidError, "closed"):
            saver.save(self.good, self.path("state"))
        saver.close()

    def test_a_child_of_fork_leaves_the_saver_alone(self):
        self.saver.save(self.good, self.path("state"))

        def child():
            try:
                self.saver.save(self.good, self.path("child"))
            except errors.InvalidError:
                self.saver.close()
                with cairnfs.Saver() as own:
                    own.save(self.good, self.path("own"))
                os._exit(0)  # pylint: disable=protected-access
            os._exit(1)  # pylint: disable=protected-access

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)
        self.assertEqual(process.exitcode, 0)
        self.assert_same(read_plain(self.path("own"))[0], self.good)
        self.saver.save(self.good, self.path("state"), base=self.path("state"))

    def test_the_interpreter_ends_after_the_file_is_durable(self):
        code = (
            "import sys, numpy, cairnfs\n"
            "saver = cairnfs.Saver()\n"
            "saver.save_async({'a': numpy.arange(1 << 20)}, sys.argv[1])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, self.path("state")], check=False, capture_output=True, timeout=120
        )
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assert_same(read_plain(self.path("state"))[0], {"a": numpy.arange(1 << 20)})


class TorchVersionTest(Case):
    def test_an_old_torch_is_named(self):
        with open(self.path("torch.py"), "w", encoding="ascii") as file:
            file.write("__version__ = '1.13.0a0'\n")
        code = f"import sys; sys.path.insert(0, {self.folder!r}); import cairnfs.torch"
        done = subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.PIPE, text=True)
        self.assertIn("ImportError: cairnfs.torch needs torch 2.6 or newer; this is 1.13.0a0", done.stderr)
