"""Byte layouts of segments, checkpoints and buffers of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spliced_connector.model.identity import DType

PART_ALIGN = 64
"""Alignment of every part, in bytes: a cache line and the widest vector."""

ALL_LAYERS = -1
"""As the `layer` argument: all layers at once."""


def aligned(nbytes: int) -> int:
    """Rounds up to a multiple of PART_ALIGN."""
    return -(-nbytes // PART_ALIGN) * PART_ALIGN


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of an object, at an offset in the bytes of one rank's share."""

    kind: str  # "T", "S", "conv", "K" or "V"
    layer: int
    offset: int  # bytes, a multiple of PART_ALIGN
    nbytes: int
    dtype: DType
    shape: tuple[int, ...]
    packed: bool = False
    """The part is stored packed, in fewer bytes. dtype and shape are the original ones."""

    @property
    def is_rows(self) -> bool:
        """Returns whether the part holds keys or values."""
        return self.kind in ("K", "V")

    @property
    def packed_shape(self) -> tuple[int, int, int]:
        """The shape [heads, rows, cols] that packing uses. A part of keys or values is packed as a
        single head, with one row for each pair of a token and a head."""
        heads, rows, cols = self.shape
        return (1, heads * rows, cols) if self.is_rows else (heads, rows, cols)

    @property
    def number(self) -> int:
        """Returns the protocol's number of the kind, counted from 1."""
        return PART_KINDS.index(self.kind) + 1


PART_KINDS = ("T", "S", "conv", "K", "V")


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of one rank's share of an object, ordered by layer and kind, without overlaps."""

    parts: tuple[Part, ...]
    nbytes: int  # a multiple of PART_ALIGN
    errors: tuple[float, float] = (0.0, 0.0)
    """Maximum errors of packed parts. The first is for T: the largest bound on the spectral norm of
    a head's difference. The second is for S, keys and values: the largest Frobenius norm of a
    difference, divided by the Frobenius norm of the original."""

    def within(self, most: float) -> bool:
        """Returns whether the errors of packed parts are at most `most`. A small excess is allowed,
        because errors were rounded up."""
        return max(self.errors) <= most * (1 + 1e-6)

    def find(self, layer: int, kind: str) -> int | None:
        """Returns the index of the first part of this layer and kind."""
        for i, part in enumerate(self.parts):
            if part.layer == layer and part.kind == kind:
                return i
        return None


class LayoutBuilder:
    """Places parts one after another."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._end = 0

    def add(self, layer: int, kind: str, dtype: DType, *shape: int) -> None:
        nbytes = dtype.size
        for n in shape:
            nbytes *= n
        self._place(Part(kind, layer, self._end, nbytes, dtype, shape))

    def put(self, part: Part) -> None:
        """Places a part of another layout at the end of this one."""
        self._place(replace(part, offset=self._end))

    def _place(self, part: Part) -> None:
        self._parts.append(part)
        self._end += aligned(part.nbytes)

    def build(self, errors: tuple[float, float] = (0.0, 0.0)) -> Layout:
        return Layout(tuple(self._parts), self._end, errors)
