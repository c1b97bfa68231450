"""What makes an identity, and what an identity makes."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest

from spliced_connector.errors import Code, ProfileError
from spliced_connector.model import (
    Attention,
    Conv,
    DType,
    Family,
    Identity,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Profile,
    Role,
    Rope,
    SegmentSpec,
    canonical,
)

GDN = Linear(Family.GDN, 2, 4, 16, 8, DType.F32, DType.F16, Conv(4, (32, 32, 32), DType.F32))
FULL = Attention(2, 16, 16, DType.BF16, KeyMode.AT_ZERO, Rope(8, 1e4))
LAYERS = (Layer(Kind.LINEAR, linear=GDN), Layer(Kind.FULL, FULL), Layer())
TINY = Identity("tiny", b"\x01" * 32, LAYERS)


def with_linear(linear: Linear) -> Identity:
    return replace(TINY, layers=(Layer(Kind.LINEAR, linear=linear),))


def with_attention(attention: Attention, kind: Kind = Kind.FULL) -> Identity:
    return replace(TINY, layers=(Layer(kind, attention),))


def test_canonical_bytes_are_read_back() -> None:
    profile = Profile(TINY)
    assert canonical.parse(profile.canonical) == TINY
    for n in range(len(profile.canonical)):
        with pytest.raises(ProfileError):
            canonical.parse(profile.canonical[:n])
    for bad in (profile.canonical + b"\0", b"X" + profile.canonical[1:], bytes(97 << 10)):
        with pytest.raises(ProfileError):
            canonical.parse(bad)


def test_what_a_kind_does_not_use_does_not_count() -> None:
    odd = tuple(replace(layer, attention=FULL, linear=GDN) for layer in LAYERS)
    short = Layer(Kind.CONV, linear=Linear(conv=GDN.conv))
    profile = Profile(replace(TINY, layers=(*odd, replace(short, attention=FULL, linear=GDN))))
    plain = replace(TINY, layers=(*LAYERS, short))
    assert profile.fingerprint == Profile(plain).fingerprint
    assert profile.identity == plain == canonical.parse(profile.canonical)
    assert (profile.linear_layers, profile.attention_layers) == ((0,), (1,))
    assert profile.conv_layers == (len(LAYERS),)


@pytest.mark.parametrize(
    "other",
    [
        replace(TINY, model="tina"),
        replace(TINY, weights=b"\x02" * 32),
        replace(TINY, adapter="lora"),
        replace(TINY, tokenizer="bytes"),
        replace(TINY, tp_size=2),
        replace(TINY, tolerance=0.02),
        replace(TINY, layers=LAYERS[::-1]),
        with_linear(replace(GDN, transition_dtype=DType.F32)),
        with_linear(replace(GDN, conv=replace(GDN.conv, channels=(96,)))),
        with_attention(replace(FULL, rope=Rope(8, 1e6))),
        with_attention(replace(FULL, rope=Rope(8, 1e4, interleaved=True))),
        with_attention(replace(FULL, rope=Rope(8, inv_freq=(1, 0.1, 0.01, 0.001)))),
        with_attention(replace(FULL, window=8), Kind.WINDOW),
    ],
)
def test_everything_that_defines_values_changes_the_fingerprint(other: Identity) -> None:
    plain = (TINY, with_linear(GDN), with_attention(FULL))
    assert Profile(other).fingerprint not in {Profile(base).fingerprint for base in plain}


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        (replace(TINY, model=""), "model: no name"),
        (
            replace(TINY, model="a\udcff"),
            "model: 'a\\udcff' has control characters, or is not UTF-8",
        ),
        (replace(TINY, adapter="\x1b]0;x\a"), "adapter: '\\x1b]0;x\\x07' has control characters"),
        (replace(TINY, model="é" * 600), "model: 1200 bytes, at most 1024"),
        (replace(TINY, weights=bytes(32)), "weights: digest unknown"),
        (replace(TINY, weights=b"short"), "weights: digest of 5 bytes"),
        (replace(TINY, tp_size=0), "tp size: 0, want 1 to 1024"),
        (replace(TINY, tp_size=3), "tp size: 3 ranks cannot share 2 key heads, 4 value heads"),
        (replace(TINY, layers=()), "layers: 0, want 1 to 4096"),
        (replace(TINY, tolerance=-0.01), "tolerance: -0.01, want 0 to 0.05"),
        (replace(TINY, tolerance=0.051), "tolerance: 0.051, want 0 to 0.05"),
        (replace(TINY, tolerance=float("nan")), "tolerance: nan, want 0 to 0.05"),
        (with_linear(replace(GDN, family=Family.NONE)), "has no kernels"),
        (with_linear(replace(GDN, value_heads=5)), "5 value heads are no multiple of 2"),
        (with_linear(replace(GDN, family=Family.MAMBA2)), "scalar transitions are kept in F32"),
        (with_linear(replace(GDN, family=Family.MAMBA1)), "with value dim 1, not 8"),
        (with_linear(replace(GDN, rope=Rope(8, 1e4))), "commutes with scalar transitions only"),
        (with_linear(replace(GDN, slopes=(0.5,))), "1 slopes for 4 gdn value heads, want 0"),
        (with_linear(replace(GDN, conv=Conv(0, (), DType.F32))), "type without a convolution"),
        (with_linear(replace(GDN, conv=Conv(99, (32,), DType.F32))), "kernel: 99, want 1 to 64"),
        (replace(TINY, layers=(Layer(Kind.CONV),)), "convolution kernel: 0, want 2 to 64"),
        (
            replace(TINY, layers=(Layer(Kind.CONV, linear=Linear(conv=Conv(1, (8,), DType.F32))),)),
            "convolution kernel: 1, want 2 to 64",
        ),
        (with_linear(replace(GDN, state_dtype=DType.NONE)), "no state type"),
        (with_attention(replace(FULL, rope=Rope(18, 1e4))), "rope turns 18 of 16"),
        (with_attention(replace(FULL, rope=Rope(8, float("nan")))), "rope theta nan"),
        (with_attention(replace(FULL, rope=Rope(8, 1e4, inv_freq=(1,) * 4))), "beside inverse"),
        (with_attention(replace(FULL, rope=Rope(8, inv_freq=(1,)))), "1 inverse frequencies"),
        (with_attention(FULL, Kind.MLA), "MLA has one latent row a token, not 2"),
        (with_attention(FULL, Kind.WINDOW), "window: 0, want 1"),
        (with_attention(replace(FULL, window=5)), "window 5 on a layer without one"),
        (with_attention(replace(FULL, kv_heads=0, dtype=DType.NONE)), "no element type"),
    ],
)
def test_identities_that_are_refused(identity: Identity, text: str) -> None:
    with pytest.raises(ProfileError) as caught:
        Profile(identity)
    assert text in str(caught.value)
    assert caught.value.code == Code.INVALID


def test_all_problems_are_listed_up_to_a_bound() -> None:
    broken = [
        Layer(Kind.LINEAR, linear=replace(GDN, key_heads=-i, state_dtype=DType.NONE))
        for i in range(100)
    ]
    with pytest.raises(ProfileError) as caught:
        Profile(replace(TINY, layers=tuple(broken)))
    text = str(caught.value)
    assert "layer 0: key heads: 0" in text
    assert "layer 0 and 99 more: no state type" in text
    assert text.endswith("and more")
    assert text.count(";") == 64


def test_canonical_bytes_with_a_tolerance_are_read_back() -> None:
    packing = Profile(replace(TINY, tolerance=0.02))
    plain = Profile(TINY).canonical
    assert canonical.parse(packing.canonical) == packing.identity
    assert packing.canonical == b"SPLPROF\x02" + struct.pack("<d", 0.02) + plain[8:]
    for n in range(len(packing.canonical)):
        with pytest.raises(ProfileError):
            canonical.parse(packing.canonical[:n])
    for tolerance in (0.0, -0.0):
        assert Profile(replace(TINY, tolerance=tolerance)).canonical == plain
        with pytest.raises(ProfileError, match="version 2 without its tolerance"):
            canonical.parse(b"SPLPROF\x02" + struct.pack("<d", tolerance) + plain[8:])
    with pytest.raises(ProfileError, match="version 4, want 1 to 3"):
        canonical.parse(b"SPLPROF\x04" + plain[8:])


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_canonical_bytes_with_a_row_tolerance_are_read_back(tolerance: float) -> None:
    rows = Profile(replace(TINY, tolerance=tolerance, row_tolerance=0.01))
    plain = Profile(TINY).canonical
    assert canonical.parse(rows.canonical) == rows.identity
    assert rows.canonical == b"SPLPROF\x03" + struct.pack("<2d", tolerance, 0.01) + plain[8:]
    with pytest.raises(ProfileError, match="version 3 without its tolerance"):
        canonical.parse(b"SPLPROF\x03" + struct.pack("<2d", 0.02, 0.0) + plain[8:])
    for bad in (-0.01, 0.06, math.nan):
        with pytest.raises(ProfileError, match="row tolerance"):
            Profile(replace(TINY, row_tolerance=bad))


def test_packed_keys_and_values_are_one_head_of_many_rows() -> None:
    profile = Profile(replace(TINY, row_tolerance=0.01))
    plain = profile.segment_layout(5)
    kinds = [part.kind for part in plain.parts if profile.packs(part)]
    assert kinds and set(kinds) == {"K", "V"}
    layout = profile.packed_layout(5, packed(*[1] * len(kinds), errors=(0.0, 0.005)))
    assert [p.packed for p in layout.parts] == [p.is_rows for p in plain.parts]
    for part, was in zip(layout.parts, plain.parts, strict=True):
        tokens, heads, dim = (*was.shape, 1)[:3]
        assert part.nbytes == (64 if part.packed else was.nbytes)
        if part.packed:
            assert part.packed_shape == (1, tokens * heads, dim)
    most = 1 + -(-max(p.nbytes for p in plain.parts if p.is_rows) // 64)
    with pytest.raises(ValueError, match="want at most"):
        profile.packed_layout(5, packed(*[most + 1] * len(kinds)))


# T of TINY's linear layer is [4, 16, 16] in F16, S [4, 16, 8] in F32: 2048 bytes each in plain
# heads, behind a header of 64.
MOST = (33, 33)
PACKING = Profile(replace(TINY, tolerance=0.02))


def packed(*lengths: int, errors: tuple[float, float] = (0.01, 0.02)) -> bytes:
    return struct.pack("<2f", *errors) + bytes(lengths)


def test_packed_parts_are_as_long_as_is_said_and_others_follow_them() -> None:
    plain = PACKING.segment_layout(5)
    assert PACKING.packed_layout(5, b"") is plain
    assert PACKING.packed_layout(PACKING.first_spec(5), packed(*MOST)).nbytes > plain.nbytes
    layout = PACKING.packed_layout(5, packed(2, 1, errors=(0.25, 0.5)))
    assert layout.errors == (0.25, 0.5)
    assert [p.packed for p in layout.parts] == [p.kind in "TS" for p in plain.parts]
    at = 0
    for part, was in zip(layout.parts, plain.parts, strict=True):
        nbytes = {"T": 128, "S": 64}.get(part.kind, was.nbytes)
        assert part == replace(was, offset=at, nbytes=nbytes, packed=part.kind in "TS")
        at += -(-nbytes // 64) * 64
    assert layout.nbytes == at
    some = PACKING.packed_layout(5, packed(0, 1))
    assert [p.kind for p in some.parts if p.packed] == ["S"]
    assert some.parts[0] == plain.parts[0]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (packed()[:7], "7 bytes, want 8"),
        (packed(), "does not end"),
        (packed(1), "does not end"),
        (packed(1, 0x80), "does not end"),
        (packed(0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 1), "does not end, or is too long"),
        (packed(1, MOST[1] + 1), "part S of layer 0: 2176 bytes, want at most 2112"),
        (packed(MOST[0] + 1, 1), "part T of layer 0: 2176 bytes, want at most 2112"),
        (packed(0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 1), "want at most 2112"),
        (packed(0x81, 0, 1), "not in canonical form"),
        (packed(1, 1, 1), "1 bytes behind the last"),
        (packed(1, 1, errors=(float("nan"), 0.0)), "errors of nan"),
        (packed(1, 1, errors=(0.0, float("inf"))), "and inf"),
        (packed(1, 1, errors=(-1.0, 0.0)), "errors of -1.0"),
    ],
)
def test_what_no_packed_segment_has_is_refused(said: bytes, text: str) -> None:
    with pytest.raises(ValueError, match="packed part") as caught:
        PACKING.packed_layout(5, said)
    assert text in str(caught.value)


def test_only_a_profile_with_a_tolerance_packs() -> None:
    with pytest.raises(ValueError, match="without a tolerance"):
        Profile(TINY).packed_layout(5, packed(1, 1))
    scalar = replace(GDN, family=Family.MAMBA2, transition_dtype=DType.F32)
    profile = Profile(replace(with_linear(scalar), tolerance=0.02))
    assert [p.kind for p in profile.packed_layout(5, packed(1)).parts if p.packed] == ["S"]


def test_mid_segments_need_an_interior() -> None:
    profile = Profile(TINY)  # convolution kernel 4
    for tokens, w, interior in (
        (512, 8, (8, 496)),
        (512, 0, (3, 509)),  # the convolution still looks back three tokens
        (19, 8, (8, 3)),
        (18, 8, None),  # two tokens cannot give a tail of three inputs
        (6, 0, (3, 3)),
        (5, 0, None),
        (0, 0, None),
    ):
        spec = profile.mid_spec(tokens, w)
        assert (spec and spec.interior) == interior


@pytest.mark.parametrize(
    "spec",
    [
        SegmentSpec(Role.FIRST, 1, 0, 10),
        SegmentSpec(Role.FIRST, 0, 0, 0),
        SegmentSpec(Role.FIRST, 0, 0, (1 << 24) + 1),
        SegmentSpec(Role.MID, 2, 0, 100),
        SegmentSpec(Role.MID, 8, -1, 100),
        SegmentSpec(0, 0, 0, 10),  # type: ignore[arg-type]
        SegmentSpec(Role.FIRST, 0, 0, 10, b"\x01" * 32),
        SegmentSpec(Role.MID, 8, 8, 100, b"\x01" * 31),
        SegmentSpec(Role.MID, 8, 8, 100, bytes(32)),
    ],
)
def test_geometries_that_are_refused(spec: SegmentSpec) -> None:
    assert Profile(TINY).spec_problem(spec)


def test_sizes_follow_from_layouts() -> None:
    profile = Profile(TINY)
    spec = profile.mid_spec(40, 8)
    assert spec is not None
    layout = profile.segment_layout(spec)
    assert layout == profile.segment_layout(24)
    assert layout.nbytes == profile.segment_bytes(24)
    assert profile.checkpoint_bytes(3) == profile.checkpoint_layout(3).nbytes
    keys = layout.find(1, "K")
    assert keys is not None
    assert (layout.parts[keys].shape, layout.parts[keys].number) == ((24, 2, 16), 4)
    assert layout.find(2, "K") is None


def test_frequencies_are_those_of_the_rope() -> None:
    profile = Profile(TINY)
    assert profile.rope(0).frequencies == ()
    assert profile.rope(1).frequencies == pytest.approx((1, 0.1, 0.01, 0.001), rel=1e-12)
    assert profile.rope(1).theta == 1e4
    given = Profile(with_attention(replace(FULL, rope=Rope(8, inv_freq=(4, 3, 2, 1)))))
    assert given.rope(0).frequencies == (4, 3, 2, 1)


def test_a_rank_keeps_its_share() -> None:
    whole = Profile(replace(TINY, tp_size=2))
    spec = SegmentSpec(Role.MID, 11, 8, 200)
    for rank in range(2):
        share = Profile(whole.share(rank))
        assert share.identity.tp_size == 1
        assert share.segment_layout(spec) == whole.segment_layout(spec)
        assert share.checkpoint_layout(64) == whole.checkpoint_layout(64)
    assert Profile(TINY).share(0) == TINY


def test_a_rank_has_the_slopes_of_its_heads() -> None:
    slopes = (0.1, 0.2, 0.3, 0.4)
    heads = Linear(Family.LIGHTNING, 4, 4, 8, 8, DType.F32, DType.F32, slopes=slopes)
    whole = Profile(replace(TINY, layers=(Layer(Kind.LINEAR, linear=heads),), tp_size=2))
    assert [whole.share(rank).layers[0].linear.slopes for rank in range(2)] == [
        (0.1, 0.2),
        (0.3, 0.4),
    ]
