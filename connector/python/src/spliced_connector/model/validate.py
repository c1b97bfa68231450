"""Finds all problems of an identity."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable

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

    def split(self, what: str, heads: int, tp: int) -> None:
        """Checks that heads can be divided evenly among ranks, or ranks evenly among heads."""
        if heads >= 1:
            self.check(heads % tp == 0 or tp % heads == 0, f"{what}: {heads} over {tp} ranks")

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
        for i, layer in enumerate(identity.layers):
            _layer(f"layer {i}", layer, identity.tp_size, ps)
    ps.refuse("invalid profile")


def _layer(at: str, layer: Layer, tp: int, ps: Problems) -> None:
    if layer.kind == Kind.LINEAR:
        _linear(at, layer.linear, tp, ps)
    elif layer.kind == Kind.CONV:
        kernel = layer.linear.conv.kernel
        ps.within(f"{at}: convolution kernel", kernel, 2, MAX_CONV_KERNEL)  # 1 keeps no tail
        _conv(at, layer.linear.conv, tp, ps)
    elif layer.kind != Kind.NONE:
        _attention(at, layer.attention, layer.kind, tp, ps)


def _attention(at: str, a: Attention, kind: Kind, tp: int, ps: Problems) -> None:
    ps.within(f"{at}: key-value heads", a.kv_heads, 1, MAX_HEADS)
    ps.within(f"{at}: value dim", a.value_dim, 1, MAX_DIM)
    ps.within(f"{at}: key dim", a.key_dim, 1, MAX_DIM)
    ps.check(
        a.kv_heads * (a.key_dim + a.value_dim) <= MAX_ROW_ELEMENTS,
        f"{at}: more than {MAX_ROW_ELEMENTS} elements a token",
    )
    ps.check(a.dtype != DType.NONE, f"{at}: no element type")
    ps.check(a.keys in tuple(KeyMode), f"{at}: key storage {a.keys} is unknown")
    if kind == Kind.MLA:
        ps.check(a.kv_heads == 1, f"{at}: MLA has one latent row a token, not {a.kv_heads}")
    else:
        ps.split(f"{at}: key-value heads", a.kv_heads, tp)
    if kind == Kind.WINDOW:
        ps.within(f"{at}: window", a.window, 1, MAX_TOKENS)
    else:
        ps.check(a.window == 0, f"{at}: window {a.window} on a layer without one")
    _rope(at, a.rope, a.key_dim, ps)


def _linear(at: str, a: Linear, tp: int, ps: Problems) -> None:
    form = a.family.transition
    ps.check(form != Transition.NONE, f"{at}: linear family {a.family} has no kernels")
    ps.within(f"{at}: key heads", a.key_heads, 1, MAX_HEADS)
    ps.within(f"{at}: value heads", a.value_heads, 1, MAX_HEADS)
    ps.within(f"{at}: key dim", a.key_dim, 1, MAX_DIM)
    ps.within(f"{at}: value dim", a.value_dim, 1, MAX_DIM)
    ps.check(
        a.value_heads * a.key_dim * max(a.key_dim, a.value_dim) <= MAX_STATE_ELEMENTS,
        f"{at}: more than {MAX_STATE_ELEMENTS} elements of state",
    )
    if a.key_heads >= 1:
        ps.check(
            a.value_heads % a.key_heads == 0,
            f"{at}: {a.value_heads} value heads are no multiple of {a.key_heads} key heads",
        )
    ps.split(f"{at}: key heads", a.key_heads, tp)
    ps.check(a.value_heads % tp == 0, f"{at}: {a.value_heads} value heads over {tp} ranks")
    ps.check(a.state_dtype != DType.NONE, f"{at}: no state type")
    ps.check(a.transition_dtype != DType.NONE, f"{at}: no transition type")
    scalar = form == Transition.SCALAR
    ps.check(
        not scalar or a.transition_dtype == DType.F32,
        f"{at}: scalar transitions are kept in F32",
    )
    ps.check(
        a.family != Family.MAMBA1 or a.value_dim == 1,
        f"{at}: Mamba1 heads are channels with value dim 1, not {a.value_dim}",
    )
    ps.check(
        a.rope.dims == 0 or scalar,
        f"{at}: rope inside a linear layer commutes with scalar transitions only",
    )
    _rope(at, a.rope, a.key_dim, ps)
    _conv(at, a.conv, tp, ps)
    slopes = a.value_heads if a.family.decay is Decay.FIXED else 0
    ps.check(
        len(a.slopes) == slopes,
        f"{at}: {len(a.slopes)} slopes for {a.value_heads} {a.family.name.lower()} value heads,"
        f" want {slopes}",
    )
    ps.check(_finite(a.slopes), f"{at}: a slope is not a finite number")


def _conv(at: str, c: Conv, tp: int, ps: Problems) -> None:
    if c.kernel == 0 and not c.channels:
        ps.check(c.dtype == DType.NONE, f"{at}: convolution type without a convolution")
        return
    ps.within(f"{at}: convolution kernel", c.kernel, 1, MAX_CONV_KERNEL)
    ps.within(f"{at}: convolution groups", len(c.channels), 1, MAX_CONV_GROUPS)
    ps.check(c.dtype != DType.NONE, f"{at}: no convolution type")
    for g, n in enumerate(c.channels):
        ps.within(f"{at}: convolution group {g}", n, 1, MAX_HEADS * 16)
        ps.check(n % tp == 0, f"{at}: convolution group {g} of {n} channels over {tp} ranks")


def _rope(at: str, r: Rope, dim: int, ps: Problems) -> None:
    if r.dims == 0:
        plain = r.theta == 0 and not r.interleaved and not r.inv_freq
        ps.check(plain, f"{at}: rope parameters without rotated dimensions")
        return
    ps.check(
        0 < r.dims <= dim and r.dims % 2 == 0,
        f"{at}: rope turns {r.dims} of {dim} dimensions, want an even number",
    )
    if r.inv_freq:
        ps.check(
            len(r.inv_freq) * 2 == r.dims,
            f"{at}: {len(r.inv_freq)} inverse frequencies for {r.dims} rotated dimensions",
        )
        ps.check(_finite(r.inv_freq), f"{at}: an inverse frequency is not a finite number")
        ps.check(r.theta == 0, f"{at}: rope theta {r.theta:g} beside inverse frequencies")
        return
    ps.check(r.theta > 0 and math.isfinite(r.theta), f"{at}: rope theta {r.theta:g}")


def _finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))
