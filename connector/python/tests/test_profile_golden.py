"""Identities, layouts and keys, against what the Go side wrote down."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from spliced_connector import from_config
from spliced_connector.errors import ProfileError
from spliced_connector.model import (
    ALL_LAYERS,
    PART_ALIGN,
    Family,
    Layout,
    Profile,
    Role,
    SegmentSpec,
    canonical,
    prefix_hashes,
    primer_digest,
    segment_key,
)

DATA = Path(__file__).parents[3] / "policy/profile/testdata"
KEYS = json.loads((DATA / "golden.json").read_text())
LAYOUTS = json.loads((DATA / "layouts.json").read_text())


def profile_of(golden: dict[str, Any]) -> Profile:
    return Profile(canonical.parse(bytes.fromhex(golden["canonical"])))


def layout_of(profile: Profile, of: str, rows: int, packed: str = "") -> Layout:
    match of:
        case "packed":
            return profile.packed_layout(rows, bytes.fromhex(packed))
        case "segment":
            return profile.segment_layout(rows)
        case "checkpoint":
            return profile.checkpoint_layout(rows)
        case "buffer":
            return profile.buffer_layout(rows)
        case "seam":
            return profile.seam_layout()
        case "states":
            return profile.states_layout(ALL_LAYERS, rows)
        case "rows":
            return profile.rows_layout(ALL_LAYERS, rows)
    raise ValueError(of)


def written(layout: Layout) -> list[str]:
    out = []
    for p in layout.parts:
        shape = "x".join(map(str, (*p.shape, 1, 1)[:3]))
        dtype = p.dtype.name.lower()
        packed = " packed" if p.packed else ""
        out.append(f"{p.layer} {p.kind} {dtype} {shape} {p.offset} {p.nbytes}{packed}")
    return out


@pytest.mark.parametrize(
    "golden",
    LAYOUTS["profiles"],
    ids=[f"{i}-{g['name']}" for i, g in enumerate(LAYOUTS["profiles"])],
)
def test_layouts_are_those_of_the_daemon(golden: dict[str, Any]) -> None:
    profile = profile_of(golden)
    assert profile.canonical.hex() == golden["canonical"]
    assert profile.fingerprint.hex() == golden["fingerprint"]
    assert profile.head_exclusion(0) == golden["min_head"]
    assert {g["of"] for g in golden["layouts"]} >= {"segment", "checkpoint", "buffer", "seam"}
    for want in golden["layouts"]:
        layout = layout_of(profile, want["of"], want["rows"], want.get("packed", ""))
        assert (written(layout), layout.nbytes) == (want["parts"], want["bytes"]), want["of"]
        assert layout.errors == tuple(want.get("errors", (0.0, 0.0)))
        assert layout.nbytes % PART_ALIGN == 0


def test_a_packed_segment_is_among_them() -> None:
    packed = {g["name"] for g in LAYOUTS["profiles"] for one in g["layouts"] if "packed" in one}
    assert packed == {g["name"] for g in LAYOUTS["profiles"] if profile_of(g).identity.tolerance}
    assert packed


def test_every_family_has_golden_layouts() -> None:
    seen = {
        layer.linear.family
        for golden in LAYOUTS["profiles"]
        for layer in profile_of(golden).identity.layers
    }
    assert seen == set(Family)


@pytest.mark.parametrize("name", sorted(LAYOUTS["configs"]))
def test_configs_name_the_models_that_the_daemon_names(name: str) -> None:
    config = json.loads((DATA / "config" / name).read_text())
    weights = b"\x01" + bytes(31)
    identity = from_config(config, weights, slopes=lambda layer, heads: [0.01] * heads)
    assert Profile(identity).fingerprint.hex() == LAYOUTS["configs"][name]


def read_shape(text: str) -> str:
    """The fingerprint that a config gives, or the fields that are refused."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError:
        config = None
    if not isinstance(config, dict):
        return "refused: not an object of JSON"
    try:
        return Profile(from_config(config, b"\x01" + bytes(31))).fingerprint.hex()
    except ProfileError as err:
        _, _, problems = err.text.partition(": ")
        return "refused: " + ", ".join(sorted(set(re.findall(r"(?:^|; )(\w+)", problems))))


def test_shapes_of_configs_are_read_as_by_the_daemon() -> None:
    """Both readers refuse the same fields, and name the same models."""
    lines = (DATA / "shapes.txt").read_text().splitlines()
    read = {name: read_shape(text) for name, _, text in (line.partition(": ") for line in lines)}
    assert read == json.loads((DATA / "shapes.json").read_text())


def test_the_table_of_models_is_that_of_the_daemon() -> None:
    ours = resources.files("spliced_connector.model").joinpath("models.json").read_text()
    assert ours == (DATA.parent / "models.json").read_text(), "run `go generate ./policy/profile`"


def test_segment_keys_are_those_of_the_daemon() -> None:
    profile = profile_of(KEYS)
    assert profile.fingerprint.hex() == KEYS["fingerprint"]
    for golden in KEYS["segments"]:
        tokens = golden["tokens"]
        primer = primer_digest(golden["primer_tokens"]) if "primer" in golden else b""
        assert primer.hex() == golden.get("primer", "")
        spec = SegmentSpec(
            Role(golden["role"]), golden["head"], golden["tail"], len(tokens), primer
        )
        want = profile.first_spec(3) if spec.role == Role.FIRST else profile.mid_spec(20, 8)
        assert replace(spec, primer=b"") == want
        assert profile.spec_problem(spec) is None
        salt = bytes.fromhex(golden["salt"])
        assert segment_key(profile, salt, spec, tokens).hex() == golden["key"]


def test_prefix_hashes_are_those_of_the_daemon() -> None:
    profile = profile_of(KEYS)
    for golden in KEYS["prefixes"]:
        hashes = prefix_hashes(
            profile,
            bytes.fromhex(golden["salt"]),
            golden["block_tokens"],
            golden["tokens"],
            golden["positions"],
        )
        assert [h.hex() for h in hashes] == golden["hashes"]
