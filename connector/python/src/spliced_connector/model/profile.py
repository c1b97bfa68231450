"""A validated identity and its derived values: fingerprint, geometry, sizes and layouts."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from spliced_connector.errors import ProfileError
from spliced_connector.model import canonical
from spliced_connector.model.family import Decay, Family, Transition
from spliced_connector.model.identity import (
    MAX_CANONICAL_BYTES,
    MAX_TOKENS,
    Attention,
    Conv,
    DType,
    Identity,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Role,
    Rope,
    SegmentSpec,
)
from spliced_connector.model.layout import ALL_LAYERS, PART_ALIGN, Layout, LayoutBuilder, Part
from spliced_connector.model.packed import packed_layout
from spliced_connector.model.validate import validate

__all__ = [
    "ALL_LAYERS",
    "MAX_TOKENS",
    "PART_ALIGN",
    "Attention",
    "Conv",
    "DType",
    "Family",
    "Identity",
    "KeyMode",
    "Kind",
    "Layer",
    "Layout",
    "Linear",
    "Part",
    "Profile",
    "Role",
    "Rope",
    "SegmentSpec",
    "Transition",
]

_LAYOUTS_MOST = 256  # a guess; the cache is cleared when it is full


class Profile:
    """A validated identity. It is immutable, so several threads may use it.

    The constructor raises `ProfileError` with every problem of the identity. All sizes are of one
    rank.
    """

    def __init__(self, identity: Identity) -> None:
        identity = replace(
            identity,
            layers=tuple(_plain(layer) for layer in identity.layers),
            tolerance=identity.tolerance + 0.0,  # turns -0.0 into 0.0
            row_tolerance=identity.row_tolerance + 0.0,
        )
        validate(identity)
        self.identity = identity
        self.canonical = canonical.encode(identity)
        """The bytes that are hashed and sent to the daemon."""
        if len(self.canonical) > MAX_CANONICAL_BYTES:
            raise ProfileError(
                f"canonical bytes: {len(self.canonical)}, at most {MAX_CANONICAL_BYTES}"
            )
        self.fingerprint = hashlib.sha256(self.canonical).digest()
        kinds = [layer.kind for layer in identity.layers]
        self.linear_layers = tuple(i for i, kind in enumerate(kinds) if kind == Kind.LINEAR)
        self.conv_layers = tuple(i for i, kind in enumerate(kinds) if kind == Kind.CONV)
        self.attention_layers = tuple(i for i, kind in enumerate(kinds) if kind.attends)
        self.min_head = max(layer.linear.conv.rows for layer in identity.layers)
        """Number of earlier tokens that the convolutions read. At least this number of tokens at
        the start of a MID segment is not stored."""
        self._segments: dict[int, Layout] = {}  # layouts by interior tokens

    def head_exclusion(self, w: int) -> int:
        """Returns how many leading tokens of a MID segment are not part of its interior, at seam
        width `w`."""
        return max(w, self.min_head)

    def first_spec(self, tokens: int) -> SegmentSpec:
        """Returns the geometry of a leading segment, which is stored whole."""
        return SegmentSpec(Role.FIRST, 0, 0, tokens)

    def mid_spec(self, tokens: int, w: int, tail: int | None = None) -> SegmentSpec | None:
        """Returns the geometry of a segment that does not lead its prompt. Its interior leaves out
        w tokens at both ends; if `tail` is given, it leaves out `tail` tokens at the end instead.
        None: no useful interior is left."""
        left_out = w if tail is None else tail
        spec = SegmentSpec(Role.MID, self.head_exclusion(w), left_out, tokens)
        return spec if self.spec_problem(spec) is None else None

    def spec_problem(self, spec: SegmentSpec) -> str | None:
        """Returns why segments of this geometry cannot be stored, None if they can."""
        if spec.primer and (len(spec.primer) != 32 or not any(spec.primer)):
            return f"primer digest of {len(spec.primer)} bytes, want 32 that are not all zero"
        if spec.primer and spec.role == Role.FIRST:
            return f"first segment after primer {spec.primer[:8].hex()}: only others have one"
        if not 1 <= spec.tokens <= MAX_TOKENS:
            return f"segment of {spec.tokens} tokens, want 1 to {MAX_TOKENS}"
        low = 1
        if spec.role == Role.FIRST:
            if spec.head or spec.tail:
                return f"first segment with {spec.head} and {spec.tail} tokens excluded"
        elif spec.role == Role.MID:
            low = max(1, self.min_head)
            if not (self.min_head <= spec.head <= MAX_TOKENS and 0 <= spec.tail <= MAX_TOKENS):
                return (
                    f"segment with {spec.head} head and {spec.tail} tail tokens excluded,"
                    f" want a head of at least {self.min_head}"
                )
        else:
            return f"segment role {spec.role} is unknown"
        if spec.interior[1] < low:
            return (
                f"segment of {spec.tokens} tokens has an interior of {spec.interior[1]},"
                f" want at least {low}"
            )
        return None

    def rank_heads(self, layer: int) -> tuple[int, int]:
        """Returns one rank's number of key heads and number of value heads in a linear layer."""
        a = self.identity.layers[layer].linear
        tp = self.identity.tp_size
        return max(1, a.key_heads // tp), a.value_heads // tp

    def rank_kv_heads(self, layer: int) -> int:
        """Returns one rank's number of key-value heads in an attention layer. If there are fewer
        heads than ranks, heads are replicated."""
        return max(1, self.identity.layers[layer].attention.kv_heads // self.identity.tp_size)

    def rank_conv_channels(self, layer: int) -> int:
        """Returns a layer's convolution channels of one rank, over all groups."""
        channels = self.identity.layers[layer].linear.conv.channels
        return sum(n // self.identity.tp_size for n in channels)

    def share(self, rank: int) -> Identity:
        """Returns the identity of a model that consists of one rank's heads and channels only."""
        layers = tuple(self._share(i, rank) for i in range(len(self.identity.layers)))
        return replace(self.identity, layers=layers, tp_size=1)

    def _share(self, layer: int, rank: int) -> Layer:
        at, tp = self.identity.layers[layer], self.identity.tp_size
        if at.kind in (Kind.FULL, Kind.WINDOW, Kind.MLA):
            return replace(at, attention=replace(at.attention, kv_heads=self.rank_kv_heads(layer)))
        keys, values = self.rank_heads(layer)
        whole = at.linear
        conv = replace(whole.conv, channels=tuple(n // tp for n in whole.conv.channels))
        linear = replace(
            whole,
            key_heads=keys if whole.key_heads else 0,
            value_heads=values,
            conv=conv,
            slopes=whole.slopes[rank * values : (rank + 1) * values],
        )
        return replace(at, linear=linear)

    def rope(self, layer: int) -> Rope:
        """Returns the rotary embedding of a layer of any kind."""
        at = self.identity.layers[layer]
        return at.linear.rope if at.kind == Kind.LINEAR else at.attention.rope

    def segment_layout(self, spec: SegmentSpec | int) -> Layout:
        """Returns the layout of a segment with this geometry, or with this number of interior
        tokens.

        It has T, S and convolution tail of every linear layer, the tail of every stand-alone
        convolution, and K and V of every attention layer. Cached, because engines use few lengths.
        """
        rows = spec.interior[1] if isinstance(spec, SegmentSpec) else spec
        layout = self._segments.get(rows)
        if layout is None:
            if len(self._segments) >= _LAYOUTS_MOST:
                self._segments = {}
            layout = self._segments[rows] = self._segment_layout(rows)
        return layout

    def _segment_layout(self, rows: int) -> Layout:
        b = LayoutBuilder()
        for i, layer in enumerate(self.identity.layers):
            if layer.kind == Kind.LINEAR:
                self._transition(b, i, layer.linear.transition_dtype)
                self._state(b, i, layer.linear.state_dtype)
                self._conv(b, i)
            elif layer.kind == Kind.CONV:
                self._conv(b, i)
            elif layer.kind.attends:
                self._rows(b, i, rows)
        return b.build()

    def packs(self, part: Part) -> bool:
        """Returns whether the tolerances allow a part of a segment to be packed."""
        if part.is_rows:
            return self.identity.row_tolerance > 0
        family = self.identity.layers[part.layer].linear.family
        states = part.kind == "S" or (part.kind == "T" and family.transition == Transition.DENSE)
        return states and self.identity.tolerance > 0

    def packed_layout(self, spec: SegmentSpec | int, packed: bytes) -> Layout:
        """Returns the layout of a segment with packed parts. `packed` describes them, as in
        `packed.py`; b"" = no part is packed. Raises ValueError for impossible lengths."""
        plain = self.segment_layout(spec)
        if not packed:
            return plain
        if self.identity.most_error == 0:
            raise ValueError(f"packed parts of {len(packed)} bytes without a tolerance")
        return packed_layout(plain, tuple(map(self.packs, plain.parts)), packed)

    def checkpoint_layout(self, rows: int) -> Layout:
        """Returns the layout of a checkpoint that adds `rows` rows to its parent; its states are
        F32."""
        b = LayoutBuilder()
        for i, layer in enumerate(self.identity.layers):
            if layer.kind == Kind.LINEAR:
                self._state(b, i, DType.F32)
                self._conv(b, i)
            elif layer.kind == Kind.CONV:
                self._conv(b, i)
            elif layer.kind.attends:
                self._rows(b, i, rows)
        return b.build()

    def buffer_layout(self, rows: int) -> Layout:
        """Returns the layout of buffer rows: the inputs that advance the states of all linear
        layers by `rows` tokens.

        It has no parts for stand-alone convolutions.
        """
        b = LayoutBuilder()
        for i in self.linear_layers:
            self._buffer(b, i, max(rows, 0))
        return b.build()

    def _buffer(self, b: LayoutBuilder, i: int, rows: int) -> None:
        a = self.identity.layers[i].linear
        keys, values = self.rank_heads(i)
        decays = (a.key_dim,) if a.family.decay is Decay.PER_KEY else ()
        b.add(i, "T", DType.F32, rows, values, *decays)
        if a.conv.rows:
            b.add(i, "conv", a.conv.dtype, rows, self.rank_conv_channels(i))
        b.add(i, "K", DType.F32, rows, keys, a.key_dim)
        b.add(i, "V", DType.F32, rows, values, a.value_dim)

    @property
    def keeps_rows(self) -> bool:
        """Returns whether rows alone advance all states: there are linear layers, and no
        stand-alone convolutions."""
        return bool(self.linear_layers) and not self.conv_layers

    def edge_layout(self, rows: int) -> Layout:
        """Returns the layout of a checkpoint that is stored as rows after its parent: the parts of
        `buffer_layout`, and K and V of every attention layer."""
        b = LayoutBuilder()
        for i, layer in enumerate(self.identity.layers):
            if layer.kind == Kind.LINEAR:
                self._buffer(b, i, rows)
            elif layer.kind.attends:
                self._rows(b, i, rows)
        return b.build()

    def seam_layout(self, layer: int = ALL_LAYERS) -> Layout:
        """Returns the layout of an input of compose: (T, S) of a recomputed span, in F32."""
        b = LayoutBuilder()
        for i in self.linear_layers:
            if layer in (ALL_LAYERS, i):
                self._transition(b, i, DType.F32)
                self._state(b, i, DType.F32)
        return b.build()

    def states_layout(self, layer: int, spans: int) -> Layout:
        """Returns the layout of a result of compose: for each layer the F32 state before each of
        `spans` recomputed spans, then the final state."""
        b = LayoutBuilder()
        for i in self.linear_layers:
            if layer in (ALL_LAYERS, i):
                for _ in range(spans + 1):
                    self._state(b, i, DType.F32)
        return b.build()

    def rows_layout(self, layer: int, rows: int) -> Layout:
        """Returns the layout of a result of rotate: K and V of `rows` rows."""
        b = LayoutBuilder()
        for i in self.attention_layers:
            if layer in (ALL_LAYERS, i):
                self._rows(b, i, rows)
        return b.build()

    def segment_bytes(self, interior: int) -> int:
        return self.segment_layout(interior).nbytes

    def checkpoint_bytes(self, rows: int) -> int:
        return self.checkpoint_layout(rows).nbytes

    def _transition(self, b: LayoutBuilder, i: int, dtype: DType) -> None:
        a = self.identity.layers[i].linear
        heads = self.rank_heads(i)[1]
        match a.family.transition:
            case Transition.SCALAR:
                b.add(i, "T", DType.F32, heads)
            case Transition.DIAGONAL:
                b.add(i, "T", dtype, heads, a.key_dim)
            case _:
                b.add(i, "T", dtype, heads, a.key_dim, a.key_dim)

    def _state(self, b: LayoutBuilder, i: int, dtype: DType) -> None:
        a = self.identity.layers[i].linear
        b.add(i, "S", dtype, self.rank_heads(i)[1], a.key_dim, a.value_dim)

    def _conv(self, b: LayoutBuilder, i: int) -> None:
        c = self.identity.layers[i].linear.conv
        if c.rows:
            b.add(i, "conv", c.dtype, c.rows, self.rank_conv_channels(i))

    def _rows(self, b: LayoutBuilder, i: int, rows: int) -> None:
        a = self.identity.layers[i].attention
        heads, rows = self.rank_kv_heads(i), max(rows, 0)
        b.add(i, "K", a.dtype, rows, heads, a.key_dim)
        b.add(i, "V", a.dtype, rows, heads, a.value_dim)


def _plain(layer: Layer) -> Layer:
    """Clears fields that the kind does not use, so that equal bytes mean equal identities."""
    if layer.kind == Kind.LINEAR:
        return replace(layer, attention=Attention())
    if layer.kind == Kind.CONV:
        return Layer(Kind.CONV, linear=Linear(conv=layer.linear.conv))
    if layer.kind == Kind.NONE:
        return Layer()
    return replace(layer, linear=Linear())
