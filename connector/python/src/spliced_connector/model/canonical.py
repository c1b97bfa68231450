"""Canonical bytes of an identity, little-endian.

    "SPLPROF" u8 version: 3 with a row tolerance, else 2 with a tolerance, else 1
    version 2: f64 tolerance
    version 3: f64 tolerance, f64 row tolerance
    str model | 32 B weights | str adapter | str tokenizer | u32 tp size | u32 layers
    per layer: u8 kind, then
      full, MLA, window: u32 kv heads, key dim, value dim, window | u8 dtype, u8 key mode | rope
      linear: u8 family | u32 key heads, value heads, key dim, value dim
              | u8 state, u8 transition dtype | conv | rope | u32 slopes, slopes x f64
      convolution alone: conv
    conv: u32 kernel | u8 groups, groups x u32 | u8 dtype
    rope: u32 dims | f64 theta | u8 interleaved | u32 n, n x f64
    str:  u32 length | bytes

Two identities are equal exactly if their canonical bytes are equal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from spliced_connector.errors import ProfileError
from spliced_connector.model.family import Family
from spliced_connector.model.identity import (
    MAX_CANONICAL_BYTES,
    MAX_LAYERS,
    Attention,
    Conv,
    DType,
    Identity,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Rope,
)

MAGIC = b"SPLPROF"
EXACT = 1
STATES = 2
ROWS = 3


def encode(identity: Identity) -> bytes:
    """Returns the canonical bytes of a valid identity."""
    out = bytearray(MAGIC)
    if identity.row_tolerance:
        out += struct.pack("<B2d", ROWS, identity.tolerance, identity.row_tolerance)
    elif identity.tolerance:
        out += struct.pack("<Bd", STATES, identity.tolerance)
    else:
        out.append(EXACT)
    _text(out, identity.model)
    out += identity.weights
    _text(out, identity.adapter)
    _text(out, identity.tokenizer)
    out += struct.pack("<II", identity.tp_size, len(identity.layers))
    for layer in identity.layers:
        out.append(layer.kind)
        if layer.kind == Kind.LINEAR:
            _linear(out, layer.linear)
        elif layer.kind == Kind.CONV:
            _conv(out, layer.linear.conv)
        elif layer.kind != Kind.NONE:
            _attention(out, layer.attention)
    return bytes(out)


def _attention(out: bytearray, a: Attention) -> None:
    out += struct.pack("<4I", a.kv_heads, a.key_dim, a.value_dim, a.window)
    out += bytes((a.dtype, a.keys))
    _rope(out, a.rope)


def _linear(out: bytearray, a: Linear) -> None:
    out.append(a.family)
    out += struct.pack("<4I", a.key_heads, a.value_heads, a.key_dim, a.value_dim)
    out += bytes((a.state_dtype, a.transition_dtype))
    _conv(out, a.conv)
    _rope(out, a.rope)
    _floats(out, a.slopes)


def _conv(out: bytearray, c: Conv) -> None:
    out += struct.pack(f"<IB{len(c.channels)}IB", c.kernel, len(c.channels), *c.channels, c.dtype)


def _rope(out: bytearray, r: Rope) -> None:
    out += struct.pack("<IdB", r.dims, r.theta, r.interleaved)
    _floats(out, r.inv_freq)


def _text(out: bytearray, text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    out += struct.pack("<I", len(raw)) + raw


def _floats(out: bytearray, values: Sequence[float]) -> None:
    out += struct.pack(f"<I{len(values)}d", len(values), *values)


def parse(canonical: bytes) -> Identity:
    """Returns the identity with these canonical bytes. `Profile` checks whether it is valid.

    Raises `ProfileError` for an unknown version or number and for excess bytes.
    """
    if len(canonical) > MAX_CANONICAL_BYTES:
        raise ProfileError(f"canonical bytes: {len(canonical)}, at most {MAX_CANONICAL_BYTES}")
    reader = _Reader(canonical)
    try:
        identity = reader.identity()
    except (struct.error, ValueError) as err:
        raise ProfileError(f"canonical bytes, offset {reader.offset}: {err}") from err
    if reader.offset != len(canonical):
        raise ProfileError(
            f"canonical bytes: {len(canonical) - reader.offset} behind the last layer"
        )
    return identity


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.offset = 0

    def take(self, n: int) -> bytes:
        if n > len(self.raw) - self.offset:
            raise ValueError(f"ends {n - (len(self.raw) - self.offset)} bytes early")
        self.offset += n
        return self.raw[self.offset - n : self.offset]

    def byte(self) -> int:
        return self.take(1)[0]

    def int(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def text(self) -> str:
        return self.take(self.int()).decode("utf-8", "surrogateescape")

    def floats(self) -> tuple[float, ...]:
        n = self.int()
        return struct.unpack(f"<{n}d", self.take(8 * n))

    def identity(self) -> Identity:
        if self.take(len(MAGIC)) != MAGIC:
            raise ValueError("not a profile")
        tolerance = row_tolerance = 0.0
        version = self.byte()
        if version == ROWS:
            tolerance, row_tolerance = struct.unpack("<2d", self.take(16))
        elif version == STATES:
            (tolerance,) = struct.unpack("<d", self.take(8))
        elif version != EXACT:
            raise ValueError(f"version {version}, want {EXACT} to {ROWS}")
        if version != EXACT and (row_tolerance if version == ROWS else tolerance) == 0:
            raise ValueError(f"version {version} without its tolerance")
        model, weights = self.text(), self.take(32)
        adapter, tokenizer, tp_size, n = self.text(), self.text(), self.int(), self.int()
        if n > MAX_LAYERS:
            raise ValueError(f"{n} layers, at most {MAX_LAYERS}")
        layers = tuple(self.layer() for _ in range(n))
        return Identity(
            model, weights, layers, adapter, tokenizer, tp_size, tolerance, row_tolerance
        )

    def layer(self) -> Layer:
        kind = Kind(self.byte())
        if kind == Kind.NONE:
            return Layer()
        if kind == Kind.LINEAR:
            return Layer(kind, linear=self.linear())
        if kind == Kind.CONV:
            return Layer(kind, linear=Linear(conv=self.conv()))
        kv_heads, key_dim, value_dim, window = (self.int() for _ in range(4))
        dtype, keys = DType(self.byte()), KeyMode(self.byte())
        rope = self.rope()
        return Layer(kind, Attention(kv_heads, key_dim, value_dim, dtype, keys, rope, window))

    def linear(self) -> Linear:
        family = Family(self.byte())
        key_heads, value_heads, key_dim, value_dim = (self.int() for _ in range(4))
        state, transition = DType(self.byte()), DType(self.byte())
        conv, rope = self.conv(), self.rope()
        return Linear(
            family, key_heads, value_heads, key_dim, value_dim, state, transition, conv, rope,
            self.floats(),
        )  # fmt: skip

    def conv(self) -> Conv:
        kernel, groups = self.int(), self.byte()
        return Conv(kernel, tuple(self.int() for _ in range(groups)), DType(self.byte()))

    def rope(self) -> Rope:
        dims, (theta,) = self.int(), struct.unpack("<d", self.take(8))
        flag = self.byte()
        if flag > 1:
            raise ValueError(f"flag {flag}, want 0 or 1")
        return Rope(dims, theta, bool(flag), self.floats())
