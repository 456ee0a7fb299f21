"""Memory of a device that is not there: what the library says, with CUDA in it or not, with a driver or not."""

import os

import numpy

import cairnfs
from cairnfs import _dlpack, errors
from support import Case


class OfDevice:
    """An array that says it lies on a CUDA device. Its memory is the host's."""

    def __init__(self, array, number):
        self.capsule, tensor, _ = _dlpack.open_capsule(array)
        tensor.device_type, tensor.device_id = _dlpack.CUDA, number

    def __dlpack_device__(self):
        return (_dlpack.CUDA, 0)

    def __dlpack__(self, **_):
        return self.capsule


class DevicesTest(Case):
    def setUp(self):
        super().setUp()
        self.number = cairnfs.device_count()  # the first that is not there
        self.of_host = self.array((5000,), "float32")
        self.of_device = OfDevice(self.of_host.copy(), self.number)
        count = "built without CUDA" if cairnfs.build() == "host" else f"there are {self.number} CUDA devices"
        self.words = (f"device {self.number}", count)

    def test_saving(self):
        for snapshot in ("none", "device"):
            with cairnfs.Saver(snapshot=snapshot) as saver:
                with self.assert_raises(errors.NoDeviceError, *self.words):
                    saver.save({"host": self.of_host, "absent": self.of_device}, self.path("state"))
                self.assertEqual(os.listdir(self.folder), [])
                saver.save({"host": self.of_host}, self.path("state"))  # it still saves
            self.assert_same(cairnfs.load(self.path("state")), {"host": self.of_host})
            os.unlink(self.path("state"))

    def test_loading(self):
        with cairnfs.Saver() as saver:
            saver.save({"absent": self.of_host}, self.path("state"))
        with self.assert_raises(errors.NoDeviceError, *self.words):
            cairnfs.load(self.path("state"), out={"absent": self.of_device})

    def test_fingerprints(self):
        with self.assert_raises(errors.NoDeviceError, *self.words):
            cairnfs.fingerprint(self.of_device)
        self.assertEqual(cairnfs.fingerprint(self.of_host).dtype, numpy.uint8)
