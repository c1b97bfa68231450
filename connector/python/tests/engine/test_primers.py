"""What settings call a primer, as token ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from engine.walk_models import TINY
from spliced_connector.model import (
    Attention,
    DType,
    Family,
    Identity,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Role,
    SegmentSpec,
    primer_digest,
)
from spliced_connector.serving.primers import MAX_PRIMER, Primers, lead_of, primer_ids
from spliced_connector.walk import Naming, architecture

pytestmark = pytest.mark.engine

ATTENTION = Attention(2, 8, 8, DType.BF16)
LAYERS = (
    Layer(Kind.LINEAR, linear=Linear(Family.GDN, 2, 4, 8, 8, DType.F32, DType.F16)),
    Layer(Kind.FULL, attention=ATTENTION),
)
MODEL = Identity("m", b"\x01" * 32, LAYERS)


class Words:
    """A tokenizer that numbers words by their length."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [len(word) for word in text.split()]


WORDS = cast(Any, Words())


def test_a_passage_is_tokens_a_file_or_the_default(tmp_path: Path) -> None:
    text = tmp_path / "primer.txt"
    text.write_text("one two three")
    assert primer_ids("", None, MODEL, 9) == ()
    assert primer_ids((5, 6), None, MODEL, 7) == (5, 6)
    assert primer_ids(str(text), WORDS, MODEL, 99) == (3, 3, 5)
    assert 300 <= len(primer_ids("default", WORDS, MODEL, 99)) <= 600


def test_what_cannot_be_a_primer_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    odd = tmp_path / "odd.txt"
    odd.write_bytes(b"\xff")
    elsewhere = replace(ATTENTION, keys=KeyMode.UNROTATED)
    other = replace(MODEL, layers=(LAYERS[0], Layer(Kind.FULL, attention=elsewhere)))
    for passage, tokenizer, identity, complaint in (
        ("default", None, MODEL, "no tokenizer"),
        (str(tmp_path / "none.txt"), WORDS, MODEL, "No such file"),
        (str(odd), WORDS, MODEL, "decode"),
        (str(empty), WORDS, MODEL, "0 tokens, want 1"),
        ((1,) * (MAX_PRIMER + 1), None, MODEL, f"{MAX_PRIMER + 1} tokens"),
        ((1, 2), None, other, "not with this model: layer 1"),
        ((1, 50), None, MODEL, "token 50, the model has 50"),
    ):
        with pytest.raises(ValueError, match=complaint):
            primer_ids(passage, tokenizer, identity, 50)


def test_only_the_engines_own_primer_is_known() -> None:
    arch, device = cast(Any, None), torch.device("cpu")
    primers, none = Primers(arch, device, (5, 6)), Primers(arch, device)
    plain = SegmentSpec(Role.MID, 8, 8, 100)
    own = replace(plain, primer=primer_digest((5, 6)))
    other = replace(plain, primer=primer_digest((6, 5)))
    assert [primers.knows(spec) for spec in (plain, own, other)] == [True, True, False]
    assert [none.knows(spec) for spec in (plain, own, other)] == [True, False, False]
    assert (primers.digests, none.digests) == ((own.primer,), ())
    assert primers.of(plain) is None
    assert [primers.made(spec) for spec in (plain, own, other)] == [True, False, False]
    assert [primers.keys(spec) for spec in (plain, own)] == [100, 102]
    with pytest.raises(ValueError, match="not the engine's"):
        primers.of(other)
    lead = lead_of((5, 6), 100)
    assert lead is not None
    assert (lead.digest, lead.begin) == (own.primer, 100)
    assert lead_of((), 100) is None


def test_the_primer_is_computed_where_the_model_is() -> None:
    meta = torch.device("meta")  # refuses tensors of the CPU, as a GPU does
    arch = architecture(TINY["olmo"].build().to(meta), Naming(weights=b"\x05" * 32))
    ids = tuple(range(3, 40))
    spec = SegmentSpec(Role.MID, 8, 8, 100, primer_digest(ids))
    primer = Primers(arch, meta, ids).of(spec)
    assert primer is not None
    kept = [x for at in primer.layers for x in (at.state, at.conv, at.k, at.v) if x is not None]
    assert {x.device for x in kept} == {meta}
