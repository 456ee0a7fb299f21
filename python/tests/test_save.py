"""Saving: the files, reuse from the base, futures."""

import gc
import os
import stat
import subprocess
import sys
import weakref
from unittest import mock

import numpy

import cairnfs
from cairnfs import errors
from support import DTYPES, Case, read_plain

MIB = 1 << 20


class SaveTest(Case):
    def setUp(self):
        super().setUp()
        self.saver = cairnfs.Saver()
        self.addCleanup(self.saver.close)

    def test_every_dtype_and_shape(self):
        state = {f"{dtype} {shape}": self.array(shape, dtype)
                 for dtype in DTYPES for shape in ((), (0,), (3,), (2, 0, 4), (5, 7), (1, 4096))}  # fmt: skip
        state["größe.層"] = self.array((3, MIB + 1))
        result = self.saver.save(state, self.path("state"), metadata={"format": "np", "schritt": "ü"})
        found, metadata = read_plain(self.path("state"))
        self.assert_same(found, state)
        self.assertEqual(metadata, {"format": "np", "schritt": "ü"})
        self.assertEqual((result.base_use, result.file_bytes), ("not asked", os.path.getsize(self.path("state"))))
        self.assertEqual(os.listdir(self.folder), ["state"])

    def test_no_tensor_at_all(self):
        self.saver.save({}, self.path("state"))
        self.assertEqual(read_plain(self.path("state")), ({}, {}))

    def test_dlpack_objects(self):
        class Foreign:
            """An array of a library that is not numpy."""

            def __init__(self, array):
                self.array = array

            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

        array = self.array((300, 1001), "float32")
        state = {"whole": array, "rows": array.copy()[10:20], "ones": array.copy().reshape(1, 300, 1, 1001, 1)}
        self.saver.save({name: Foreign(each) for name, each in state.items()}, self.path("state"))
        self.assert_same(read_plain(self.path("state"))[0], state)
        with self.assert_raises(errors.InvalidError, "'cut'", "not contiguous"):
            self.saver.save({"cut": Foreign(array[:, 1:])}, self.path("state"))

    def test_random_changes_upon_a_base(self):
        """Each file is what was saved, whatever changed: values, shapes, names, order; and what did not is reused."""
        state = {f"t{i}": self.array((self.random.randrange(3 * MIB),)) for i in range(6)}
        before, last = {}, None
        for step in range(40):
            if step % 10 == 5:
                state[f"t{step}"] = self.array((self.random.randrange(2 * MIB),))
                del state[self.random.choice([name for name in state if name != f"t{step}"])]
            for name in self.random.sample(list(state), 2):
                if state[name].size:
                    state[name] = state[name].copy()
                    state[name][self.random.randrange(state[name].size)] ^= 1 + self.random.randrange(255)
            path = self.path(f"step-{step % 3}")
            result = self.saver.save(state, path, base=last)
            self.assert_same(read_plain(path)[0], state)
            if last is not None:
                same = sum(array[i : i + MIB].tobytes() == before[name][i : i + MIB].tobytes()
                           for name, array in state.items() if name in before
                           for i in range(0, array.size, MIB))  # fmt: skip
                if result.base_use == "used":
                    self.assertEqual(result.blocks - result.blocks_changed, same)
                else:
                    self.assertEqual((result.bytes_reused, result.base_text != ""), (0, True))
            before, last = {name: array.copy() for name, array in state.items()}, path
            self.assertEqual(self.saver.last_path, path)

    def test_the_whole_is_written_where_the_base_is_gone_or_changed(self):
        state = {"a": self.array((3 * MIB,))}
        self.saver.save(state, self.path("1"))
        os.unlink(self.path("1"))
        self.assertEqual(self.saver.save(state, self.path("2"), base=self.path("1")).bytes_reused, 0)
        with open(self.path("2"), "r+b") as file:
            file.seek(2 * MIB)
            file.write(b"other bytes")
        result = self.saver.save(state, self.path("3"), base=self.path("2"))
        self.assertEqual(result.bytes_reused, 0)
        self.assert_same(read_plain(self.path("3"))[0], state)

    def test_every_name_that_a_file_may_have(self):
        for name in ("n" * 255, "n" * 240, "ü" * 127, "a" + "層" * 84):
            self.saver.save({"a": self.array((9,))}, self.path(name))
            self.saver.save({"a": self.array((9,))}, self.path(name))
            self.assertEqual(os.listdir(self.folder), [name])
            os.unlink(self.path(name))

    def test_a_file_that_is_replaced_keeps_its_mode(self):
        old_umask = os.umask(0o022)
        self.addCleanup(os.umask, old_umask)

        def mode_after_a_save(**options):
            self.saver.save({"a": self.array((9,))}, self.path("state"), **options)
            return stat.S_IMODE(os.stat(self.path("state")).st_mode)

        self.assertEqual(mode_after_a_save(), 0o644)
        for mode in (0o600, 0o666, 0o400, 0o751):
            os.chmod(self.path("state"), mode)
            self.assertEqual(mode_after_a_save(), mode)
        self.assertEqual(mode_after_a_save(mode=0o660), 0o640)  # as asked for, before the umask
        os.chmod(self.path("state"), 0o4755)
        self.assertEqual(mode_after_a_save(), 0o755)
        # Through a link, as torch.save writes through it.
        os.rename(self.path("state"), self.path("target"))
        os.chmod(self.path("target"), 0o600)
        os.symlink("target", self.path("state"))
        self.assertEqual(mode_after_a_save(), 0o600)

    def test_a_mode_is_not_widened_by_another_group(self):
        self.saver.save({"a": self.array((9,))}, self.path("state"))
        if os.geteuid() != 0:
            self.skipTest("needs root")
        os.chown(self.path("state"), -1, 12345)
        os.chmod(self.path("state"), 0o664)
        self.saver.save({"a": self.array((9,))}, self.path("state"))
        found = os.stat(self.path("state"))
        self.assertEqual((found.st_gid, stat.S_IMODE(found.st_mode)), (12345, 0o664))
        code = (
            "import os, sys, numpy, cairnfs\n"
            "os.umask(0o022)\n"
            "os.setgroups([])\n"
            "os.setgid(54321)\n"
            "os.setuid(54321)\n"
            "cairnfs.Saver().save({'a': numpy.zeros(5)}, 'state')\n"
        )
        os.chmod(self.folder, 0o777)
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=self.folder)
        found = os.stat(self.path("state"))
        self.assertEqual((found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)), (54321, 54321, 0o644))
        # Whoever made the other file does not say who may write to this one.
        os.chmod(self.path("state"), 0o666)
        self.saver.save({"a": self.array((9,))}, self.path("state"))
        found = os.stat(self.path("state"))
        self.assertEqual((found.st_uid, stat.S_IMODE(found.st_mode)), (0, 0o644))

    def test_a_relative_path_and_a_pathlike(self):
        here = os.getcwd()
        os.chdir(self.folder)
        try:
            future = self.saver.save_async({"a": self.array((9,))}, "state")
        finally:
            os.chdir(here)
        self.assertEqual(future.result().path, self.path("state"))

    def test_the_source_may_change_after_save_async(self):
        state = {"a": self.array((5 * MIB,)), "b": self.array((77,), "int32")}
        expected = {name: array.copy() for name, array in state.items()}
        future = self.saver.save_async(state, self.path("state"))
        for array in state.values():
            array.view(numpy.uint8)[:] = 0
        future.result()
        self.assert_same(read_plain(self.path("state"))[0], expected)
        self.assertFalse(future.cancel())

    def test_memory_is_kept_until_the_source_is_free(self):
        """Nobody but the saver has these arrays."""
        expected = self.array((4 * MIB,))
        futures = [self.saver.save_async({"a": expected.copy()}, self.path(str(i))) for i in range(3)]
        for i, future in enumerate(futures):
            future.result()
            self.assert_same(read_plain(self.path(str(i)))[0], {"a": expected})


class InterruptTest(Case):
    """Ctrl-C comes where it does most harm: the library reads tensors that the caller does not hold any more."""

    def setUp(self):
        super().setUp()
        self.saver = cairnfs.Saver()
        self.addCleanup(self.saver.close)
        self.expected = self.array((4 * MIB,))

    def save_and_interrupt(self, where):
        """Begins a save that `where`, a patch, interrupts; a weak reference to its only tensor."""
        tensor = self.expected.copy()
        reference = weakref.ref(tensor)
        with where, self.assertRaises(KeyboardInterrupt):
            self.saver.save_async({"a": tensor}, self.path("1"))
        return reference

    def assert_saved(self, reference):
        """The next save waits for that one, and the memory is given back."""
        self.saver.save({"a": self.expected}, self.path("2"))
        for name in "12":
            self.assert_same(read_plain(self.path(name))[0], {"a": self.expected})
        self.assertIsNone(reference())

    def test_right_after_the_start(self):
        call = cairnfs.saver._abi.call

        def interrupted(name, *arguments):
            call(name, *arguments)
            if name == "cairnfs_save_start":
                raise KeyboardInterrupt

        self.assert_saved(self.save_and_interrupt(mock.patch("cairnfs.saver._abi.call", interrupted)))

    def test_before_a_thread_follows_the_save(self):
        no_thread = mock.patch("threading.Thread.start", side_effect=KeyboardInterrupt)
        reference = self.save_and_interrupt(no_thread)
        gc.collect()
        self.assertIsNotNone(reference())
        self.assert_saved(reference)

    def test_of_a_saver_that_nobody_holds(self):
        no_thread = mock.patch("threading.Thread.start", side_effect=KeyboardInterrupt)
        kept, self.saver = self.saver, cairnfs.Saver()
        reference = self.save_and_interrupt(no_thread)
        self.saver = kept  # the other one waits for its save, and goes
        self.assert_same(read_plain(self.path("1"))[0], {"a": self.expected})
        self.assertIsNone(reference())

    def test_before_the_start(self):
        reference = self.save_and_interrupt(mock.patch("cairnfs.saver._abi.call", side_effect=KeyboardInterrupt))
        self.assertIsNone(reference())
        self.assertEqual(os.listdir(self.folder), [])
        self.saver.save({"a": self.expected}, self.path("1"))
