"""Packed parts, written one number at a time."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from spliced_connector.model import DType, Part, packed_rank

TYPES = {DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}
BITS = {2: 8, 3: 12, 4: 16}
"""Of the numbers of integer forms."""


@dataclass(frozen=True)
class Head:
    """One head of a packed part: its form, its bytes, and the numbers that are in them."""

    form: int
    raw: bytes
    numbers: Tensor


def single(x: float) -> float:
    """Rounded to F32."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def row(values: list[int], bits: int) -> bytes:
    """Integers of a row: a stream of bits, lowest first, up to a whole byte."""
    whole = sum((v & ((1 << bits) - 1)) << bits * i for i, v in enumerate(values))
    return whole.to_bytes(-(-bits * len(values) // 8), "little")


def head(rng: Random, form: int, dtype: DType, rows: int, cols: int) -> Head:
    """A head in some form, of numbers of any size."""
    if form == 1:
        return Head(form, b"", torch.zeros(rows, cols))
    if form == 0:
        written = torch.tensor([rng.gauss(0, 3) for _ in range(rows * cols)]).to(TYPES[dtype])
        raw = bytes(written.view(torch.uint8).numpy())
        return Head(form, raw, written.to(torch.float32).view(rows, cols))
    if (rank := packed_rank(form)) > 0:
        return _ranked(rng, form, rank, rows, cols)
    bits = BITS[form]
    most = (1 << bits - 1) - 1
    g = single(rng.gauss(0, 1))
    scales = [single(rng.gauss(0, 1) / most) for _ in range(rows)]
    q = [[rng.choice((rng.randint(-most, most), -most, most)) for _ in range(cols)] for _ in scales]
    raw = struct.pack(f"<f{rows}f", g, *scales) + b"".join(row(line, bits) for line in q)
    numbers = torch.empty(rows, cols)
    for i, line in enumerate(q):
        for j, v in enumerate(line):
            value = single(scales[i] * v)
            numbers[i, j] = single(value + g) if i == j else value
    return Head(form, raw, numbers)


def _ranked(rng: Random, form: int, rank: int, rows: int, cols: int) -> Head:
    q = [[rng.randint(-128, 127) for _ in range(cols + rows)] for _ in range(rank)]
    scales = [single(rng.gauss(0, 1) / 127) for _ in range(rank)]
    raw = b"".join(row(line[:cols], 8) for line in q) + b"".join(row(line[cols:], 8) for line in q)
    both = torch.tensor(q, dtype=torch.float64)
    left = both[:, cols:] * torch.tensor(scales, dtype=torch.float64)[:, None]
    numbers = (left.T @ both[:, :cols]).to(torch.float32)
    return Head(form, raw + struct.pack(f"<{rank}f", *scales), numbers)


def filled(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 64)


def join(heads: list[Head], errors: tuple[float, float] = (0.25, 8.0)) -> bytes:
    """The bytes of a packed part."""
    front = bytes(one.form for one in heads)
    front += b"".join(struct.pack(f"<{len(heads)}f", *[x] * len(heads)) for x in errors)
    return b"".join(map(filled, (front, *(one.raw for one in heads))))


def numbers(heads: list[Head]) -> Tensor:
    return torch.stack([one.numbers for one in heads])


def part(raw: bytes, dtype: DType, heads: list[Head]) -> Part:
    """What a layout says of it."""
    return Part("S", 0, 0, len(raw), dtype, (len(heads), *heads[0].numbers.shape), packed=True)


def packed(x: Tensor, dtype: DType, form: int) -> bytes:
    """A part [heads, rows, cols] with all of its heads in one form, as near as that comes."""
    heads = []
    for one in x.to(torch.float32):
        most = (1 << BITS[form] - 1) - 1 if form > 1 else 1
        peaks = one.abs().amax(1)
        scales = peaks / most
        q = torch.round(one / torch.where(scales > 0, scales, 1)[:, None]).to(torch.int64)
        raw = struct.pack(f"<f{len(scales)}f", 0.0, *scales.tolist())
        raw += b"".join(row(line, BITS[form]) for line in q.tolist())
        heads.append(Head(form, raw, one))
    return join(heads)
