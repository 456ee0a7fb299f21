"""Fingerprints: the BLAKE3-256 of each MiB of a tensor, computed where it lies."""

import numpy

from . import _abi
from ._arrays import describe


def digests_of(array, stream=None):
    """As fingerprint, of an _arrays.Array; `stream` is a cudaStream_t as a number."""
    digests = numpy.empty((-(-array.bytes // _abi.BLOCK_BYTES), _abi.DIGEST_BYTES), numpy.uint8)
    _abi.call(
        "cairnfs_fingerprint",
        array.data or None,
        array.bytes,
        array.device,
        stream,
        digests.ctypes.data,
        digests.nbytes,
    )
    return digests


def fingerprint(tensor):
    """A numpy array of uint8, shape (blocks, 32): the BLAKE3-256 of each block of 1 MiB of a numpy array or a DLPack
    object; the last block may be shorter, and a tensor without bytes has none."""
    return digests_of(describe("tensor", tensor))
