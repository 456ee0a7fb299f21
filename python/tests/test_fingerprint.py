"""Fingerprints against the published vectors of BLAKE3 (test_vectors.json of BLAKE3-team/BLAKE3)."""

import numpy

import cairnfs
from cairnfs import errors
from support import Case

VECTORS = {  # by the length of the input, whose byte i is i % 251
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}


class FingerprintTest(Case):
    def test_published_vectors(self):
        for length, expected in VECTORS.items():
            data = numpy.resize(numpy.arange(251, dtype=numpy.uint8), length)
            self.assertEqual(cairnfs.fingerprint(data).tobytes().hex(), expected, length)

    def test_blocks(self):
        data = self.array(((3 << 20) + 5,))
        found = cairnfs.fingerprint(data)
        self.assertEqual(found.shape, (4, 32))
        for i in range(4):
            block = data[i << 20 : (i + 1) << 20]
            self.assertEqual(found[i].tobytes(), cairnfs.fingerprint(block).tobytes())
        self.assertEqual(cairnfs.fingerprint(self.array((0,))).shape, (0, 32))

    def test_bad_input(self):
        with self.assert_raises(errors.InvalidError, "contiguous"):
            cairnfs.fingerprint(self.array((4, 4)).T)

    def test_build(self):
        self.assertRegex(cairnfs.build(), "^(host|cuda [0-9]+[.][0-9]+)$")
        self.assertGreaterEqual(cairnfs.device_count(), 0)
