"""What a file will hold: bytes of its own (headers), and tensors, each at an offset."""

import ctypes
import dataclasses

from . import _abi


@dataclasses.dataclass
class Layout:
    """`literals` are (offset, bytes); `tensors` are (offset, Array, name), the names unique. The rest is zeros."""

    file_bytes: int = 0
    literals: list = dataclasses.field(default_factory=list)
    tensors: list = dataclasses.field(default_factory=list)

    def segments(self):
        """The C array; it points into this layout, which must stay while it is used."""
        segments = (_abi.Segment * (len(self.literals) + len(self.tensors)))()
        for segment, (offset, data) in zip(segments, self.literals):
            segment.offset, segment.bytes, segment.kind, segment.device = offset, len(data), _abi.LITERAL, _abi.HOST
            segment.data = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)
        for i, (offset, array, name) in enumerate(self.tensors, len(self.literals)):
            segment = segments[i]
            segment.offset, segment.bytes, segment.kind, segment.device = offset, array.bytes, _abi.TENSOR, array.device
            segment.data, segment.name = array.data or None, name.encode("utf-8")
        return segments


def align(offset, alignment):
    return -(-offset // alignment) * alignment
