"""Finds all problems of an identity."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence

from spliced_connector.errors import ProfileError
from spliced_connector.model.family import Decay, Family, Transition
from spliced_connector.model.identity import (
    MAX_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TOKENS,
    MAX_TOLERANCE,
    MAX_TP_SIZE,
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

MAX_NAME = 1 << 10  # bytes
MAX_ROW_ELEMENTS = 1 << 22  # keys and values of one token in one attention layer
MAX_STATE_ELEMENTS = 1 << 32  # state of one linear layer
MAX_CONV_KERNEL = 64
MAX_CONV_GROUPS = 8
MAX_PROBLEMS = 64


class Problems:
    """Collects all problems, each once, before reporting them."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        if len(self.texts) <= MAX_PROBLEMS and text not in self.texts:
            self.texts.append(text if len(self.texts) < MAX_PROBLEMS else "and more")

    def check(self, ok: bool, text: str) -> None:
        if not ok:
            self.add(text)

    def within(self, what: str, value: int, low: int, high: int) -> None:
        self.check(low <= value <= high, f"{what}: {value}, want {low} to {high}")

    def refuse(self, what: str) -> None:
        """Raises `ProfileError` with all problems, if there are any."""
        if self.texts:
            raise ProfileError(f"{what}: " + "; ".join(self.texts))


def validate(identity: Identity) -> None:
    """Raises `ProfileError` with every problem of `identity`."""
    ps = Problems()
    ps.check(identity.model != "", "model: no name")
    for field, text in (
        ("model", identity.model),
        ("adapter", identity.adapter),
        ("tokenizer", identity.tokenizer),
    ):
        n = len(text.encode("utf-8", "surrogateescape"))
        ps.check(n <= MAX_NAME, f"{field}: {n} bytes, at most {MAX_NAME}")
        shown = all(unicodedata.category(c) not in ("Cc", "Cs") for c in text)
        ps.check(shown, f"{field}: {text[:64]!r} has control characters, or is not UTF-8")
    ps.check(len(identity.weights) == 32, f"weights: digest of {len(identity.weights)} bytes")
    ps.check(any(identity.weights), "weights: digest unknown")
    ps.check(
        0 <= identity.tolerance <= MAX_TOLERANCE,  # also refuses NaN
        f"tolerance: {identity.tolerance}, want 0 to {MAX_TOLERANCE}",
    )
    ps.check(
        0 <= identity.row_tolerance <= MAX_TOLERANCE,
        f"row tolerance: {identity.row_tolerance}, want 0 to {MAX_TOLERANCE}",
    )
    ps.within("tp size", identity.tp_size, 1, MAX_TP_SIZE)
    ps.within("layers", len(identity.layers), 1, MAX_LAYERS)
    if identity.tp_size >= 1 and len(identity.layers) <= MAX_LAYERS:
        _layers(identity.layers, ps)
        _split(identity.layers, identity.tp_size, ps)
    ps.refuse("invalid profile")


def _layers(layers: Sequence[Layer], ps: Problems) -> None:
    """Adds a problem of several layers once."""
    indexes: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        found = Problems()
        _layer(layer, found)
        for text in found.texts:
            if text in indexes or len(indexes) <= MAX_PROBLEMS:
                indexes.setdefault(text, []).append(i)
    for text, (first, *others) in indexes.items():
        more = f" and {len(others)} more" if others else ""
        ps.add(f"layer {first}{more}: {text}")


def _split(layers: Sequence[Layer], tp: int, ps: Problems) -> None:
    """Checks that heads and channels can be divided among ranks."""
    uneven = Problems()
    for layer in layers:
        kv_heads, linear = layer.attention.kv_heads, layer.linear
        if layer.kind in (Kind.FULL, Kind.WINDOW):
            uneven.check(_splits(kv_heads, tp), f"{kv_heads} key-value heads")
        if layer.kind == Kind.LINEAR:
            uneven.check(_splits(linear.key_heads, tp), f"{linear.key_heads} key heads")
            uneven.check(linear.value_heads % tp == 0, f"{linear.value_heads} value heads")
        for n in linear.conv.channels if layer.kind in (Kind.LINEAR, Kind.CONV) else ():
            uneven.check(n % tp == 0, f"{n} convolution channels")
    if uneven.texts:
        ps.add(f"tp size: {tp} ranks cannot share {', '.join(uneven.texts)}")


def _splits(heads: int, ranks: int) -> bool:
    """Returns whether heads divide evenly over ranks, or are fewer than ranks and each is
    replicated the same number of times."""
    return heads < 1 or heads % ranks == 0 or ranks % heads == 0


def _layer(layer: Layer, ps: Problems) -> None:
    if layer.kind == Kind.LINEAR:
        _linear(layer.linear, ps)
    elif layer.kind == Kind.CONV:
        kernel = layer.linear.conv.kernel
        ps.within("convolution kernel", kernel, 2, MAX_CONV_KERNEL)  # 1 keeps no tail
        _conv(layer.linear.conv, ps)
    elif layer.kind != Kind.NONE:
        _attention(layer.attention, layer.kind, ps)


def _attention(a: Attention, kind: Kind, ps: Problems) -> None:
    ps.within("key-value heads", a.kv_heads, 1, MAX_HEADS)
    ps.within("value dim", a.value_dim, 1, MAX_DIM)
    ps.within("key dim", a.key_dim, 1, MAX_DIM)
    ps.check(
        a.kv_heads * (a.key_dim + a.value_dim) <= MAX_ROW_ELEMENTS,
        f"more than {MAX_ROW_ELEMENTS} elements a token",
    )
    ps.check(a.dtype != DType.NONE, "no element type")
    ps.check(a.keys in tuple(KeyMode), f"key storage {a.keys} is unknown")
    if kind == Kind.MLA:
        ps.check(a.kv_heads == 1, f"MLA has one latent row a token, not {a.kv_heads}")
    if kind == Kind.WINDOW:
        ps.within("window", a.window, 1, MAX_TOKENS)
    else:
        ps.check(a.window == 0, f"window {a.window} on a layer without one")
    _rope(a.rope, a.key_dim, ps)


def _linear(a: Linear, ps: Problems) -> None:
    form = a.family.transition
    ps.check(form != Transition.NONE, f"linear family {a.family} has no kernels")
    ps.within("key heads", a.key_heads, 1, MAX_HEADS)
    ps.within("value heads", a.value_heads, 1, MAX_HEADS)
    ps.within("key dim", a.key_dim, 1, MAX_DIM)
    ps.within("value dim", a.value_dim, 1, MAX_DIM)
    ps.check(
        a.value_heads * a.key_dim * max(a.key_dim, a.value_dim) <= MAX_STATE_ELEMENTS,
        f"more than {MAX_STATE_ELEMENTS} elements of state",
    )
    if a.key_heads >= 1:
        ps.check(
            a.value_heads % a.key_heads == 0,
            f"{a.value_heads} value heads are no multiple of {a.key_heads} key heads",
        )
    ps.check(a.state_dtype != DType.NONE, "no state type")
    ps.check(a.transition_dtype != DType.NONE, "no transition type")
    scalar = form == Transition.SCALAR
    ps.check(
        not scalar or a.transition_dtype == DType.F32,
        "scalar transitions are kept in F32",
    )
    ps.check(
        a.family != Family.MAMBA1 or a.value_dim == 1,
        f"Mamba1 heads are channels with value dim 1, not {a.value_dim}",
    )
    ps.check(
        a.rope.dims == 0 or scalar,
        "rope inside a linear layer commutes with scalar transitions only",
    )
    _rope(a.rope, a.key_dim, ps)
    _conv(a.conv, ps)
    slopes = a.value_heads if a.family.decay is Decay.FIXED else 0
    ps.check(
        len(a.slopes) == slopes,
        f"{len(a.slopes)} slopes for {a.value_heads} {a.family.name.lower()} value heads,"
        f" want {slopes}",
    )
    ps.check(_finite(a.slopes), "a slope is not a finite number")


def _conv(c: Conv, ps: Problems) -> None:
    if c.kernel == 0 and not c.channels:
        ps.check(c.dtype == DType.NONE, "convolution type without a convolution")
        return
    ps.within("convolution kernel", c.kernel, 1, MAX_CONV_KERNEL)
    ps.within("convolution groups", len(c.channels), 1, MAX_CONV_GROUPS)
    ps.check(c.dtype != DType.NONE, "no convolution type")
    for g, n in enumerate(c.channels):
        ps.within(f"convolution group {g}", n, 1, MAX_HEADS * 16)


def _rope(r: Rope, dim: int, ps: Problems) -> None:
    if r.dims == 0:
        plain = r.theta == 0 and not r.interleaved and not r.inv_freq
        ps.check(plain, "rope parameters without rotated dimensions")
        return
    ps.check(
        0 < r.dims <= dim and r.dims % 2 == 0,
        f"rope turns {r.dims} of {dim} dimensions, want an even number",
    )
    if r.inv_freq:
        ps.check(
            len(r.inv_freq) * 2 == r.dims,
            f"{len(r.inv_freq)} inverse frequencies for {r.dims} rotated dimensions",
        )
        ps.check(_finite(r.inv_freq), "an inverse frequency is not a finite number")
        ps.check(r.theta == 0, f"rope theta {r.theta:g} beside inverse frequencies")
        return
    ps.check(r.theta > 0 and math.isfinite(r.theta), f"rope theta {r.theta:g}")


def _finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))
