"""The fidelity command with a tiny model: exact where a splice is exact, off where it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from engine.hybrids import VOCABULARY, qwen35
from spliced_connector.fidelity.__main__ import main
from spliced_connector.fidelity.loading import Loaded
from spliced_connector.fidelity.measure import Meter
from spliced_connector.fidelity.prompts import Sample
from spliced_connector.fidelity.ways import (
    FULL,
    PREFIX,
    TODAY,
    Kind,
    Reading,
    Way,
    ways_of,
)
from spliced_connector.model import LAST_SEGMENT, weights_digest
from spliced_connector.walk import Naming, architecture, make_primer

pytestmark = pytest.mark.engine

DEFAULT = Way(Kind.SPLICE, "default")
LAST = replace(TODAY, refresh=LAST_SEGMENT)
ROUNDING = 1e-4
"""Of log p, in float32."""


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35()


def tokens(n: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCABULARY, (n,), generator=generator).tolist())


def meter(model: PreTrainedModel, primer: tuple[int, ...] = (), primer_after: int = 32) -> Meter:
    arch = architecture(model, Naming(bytes(range(32))))
    loaded = Loaded(arch, torch.device("cpu"), frozenset(), 0, VOCABULARY)
    primers = {"default": make_primer(arch, primer)} if primer else {}
    return Meter(loaded, seam=4, answer=6, primers=primers, primer_after=primer_after)


def off(one: Reading, other: Reading) -> float:
    """The largest |delta log p|."""
    return max(abs(a - b) for a, b in zip(one.log_p, other.log_p, strict=True))


def test_a_leading_segment_alone_is_exact(model: PreTrainedModel) -> None:
    sample = Sample(1, tokens(90, 1), (0, 70))
    found = meter(model, tokens(40, 2)).measure(sample, ways_of(["default"], [LAST_SEGMENT]))
    assert set(found.readings) == set(ways_of(["default"], [LAST_SEGMENT]))
    full = found.readings[FULL]
    for reading in found.readings.values():
        assert off(reading, full) < ROUNDING and reading.top == full.top
    assert (found.tokens, found.segments, found.primed, len(found.answer)) == (90, 1, 0, 6)
    assert found.readings[TODAY].computed == found.readings[PREFIX].computed == 20
    assert full.computed == found.readings[LAST].computed == 90


def test_a_segment_behind_others_is_off_unless_it_is_computed_in_context(
    model: PreTrainedModel,
) -> None:
    sample = Sample(1, tokens(120, 3), (50, 100))
    readings = meter(model).measure(sample, ways_of([], [LAST_SEGMENT])).readings
    assert off(readings[TODAY], readings[FULL]) > 100 * ROUNDING
    assert off(readings[LAST], readings[FULL]) < ROUNDING
    assert off(readings[PREFIX], readings[FULL]) < ROUNDING
    assert readings[TODAY].computed == 120 - 42
    assert (readings[LAST].computed, readings[PREFIX].computed) == (120, 70)


def test_a_share_is_rounded_up_to_whole_segments(model: PreTrainedModel) -> None:
    sample = Sample(1, tokens(140, 11), (0, 40, 80, 120))
    ways = ways_of([], [0.15, 0.3, 0.5, 0.9])
    readings = meter(model).measure(sample, ways).readings
    computed = [readings[way].computed for way in ways[2:]]
    assert computed == [36, 68, 68, 100, 140]  # the second and third segment have seams of 8
    assert readings[ways[3]] == readings[ways[4]]
    assert off(readings[ways[-1]], readings[FULL]) < ROUNDING


def test_a_primer_that_is_what_stands_before_makes_a_segment_exact(model: PreTrainedModel) -> None:
    before = tokens(50, 4)
    sample = Sample(1, (*before, *tokens(70, 5)), (50, 100))
    found = meter(model, before).measure(sample, (FULL, TODAY, DEFAULT))
    assert off(found.readings[TODAY], found.readings[FULL]) > 100 * ROUNDING
    assert off(found.readings[DEFAULT], found.readings[FULL]) < ROUNDING
    assert found.primed == 1


def test_segments_near_the_beginning_have_no_primer(model: PreTrainedModel) -> None:
    sample = Sample(1, tokens(140, 6), (0, 30, 60, 90, 120))
    primer = tokens(40, 7)
    late = meter(model, primer, primer_after=91).measure(sample, (FULL, TODAY, DEFAULT))
    assert (late.segments, late.primed) == (4, 0)
    assert late.readings[DEFAULT] == late.readings[TODAY]
    some = meter(model, primer, primer_after=60).measure(sample, (FULL, TODAY, DEFAULT))
    assert some.primed == 2
    assert some.readings[TODAY] == late.readings[TODAY]
    assert off(some.readings[DEFAULT], some.readings[TODAY]) > 10 * ROUNDING


def test_the_answer_is_the_models_own(model: PreTrainedModel) -> None:
    sample = Sample(1, tokens(80, 8), (0, 30, 60))
    found = meter(model).measure(sample, (FULL,))
    ids = torch.tensor([sample.ids])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=6, do_sample=False)
        logits = model(out).logits[0, 79:-1]
    assert found.answer == found.readings[FULL].top == tuple(out[0, 80:].tolist())
    right = torch.log_softmax(logits, -1).gather(1, out[0, 80:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.readings[FULL].log_p), right, atol=1e-4, rtol=0)


def test_an_answer_ends_with_an_end(model: PreTrainedModel) -> None:
    sample = Sample(1, tokens(80, 8), (0, 30, 60))
    one = meter(model)
    whole = one.measure(sample, (FULL,)).answer
    end = next(i for i in range(1, 6) if whole[i] not in whole[:i])
    ending = replace(one.model, ends=frozenset({whole[end]}))
    assert replace(one, model=ending).measure(sample, (FULL,)).answer == whole[: end + 1]


def test_prompts_that_cannot_be_measured_say_why(model: PreTrainedModel) -> None:
    one = meter(model)
    assert one.unusable(Sample(1, tokens(50, 9), (0, 30))) == ""
    assert one.unusable(Sample(1, tokens(50, 9), ())) == "no segments"
    short = Sample(1, tokens(50, 9), (20, 28, 36))
    assert one.unusable(short) == "no segment is longer than its seams of 4 tokens"
    narrow = replace(one, model=replace(one.model, longest=55))
    assert narrow.unusable(Sample(1, tokens(50, 9), (0, 30))) == "longer than the model's 55 tokens"


@pytest.fixture(scope="module")
def directory(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with a tokenizer of words, each for its id."""
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(path)
    return path


def text(ids: tuple[int, ...]) -> str:
    return "".join(f"w{i} " for i in ids)


def test_the_command_recommends_the_primer_that_fits(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tokens(40, 10)
    primer, prompts, out = (tmp_path / name for name in ("primer.txt", "prompts.jsonl", "out.json"))
    primer.write_text(text(before))
    pieces = [[before, tokens(40, 20 + i), tokens(10, 50 + i)] for i in range(21)]
    records: list[object] = [{"segments": list(map(text, some))} for some in pieces]
    flat = [token for piece in pieces[0] for token in piece]
    records[1] = {"ids": flat, "cuts": [0, 40, 80]}  # as the first one
    records.insert(2, {"ids": flat, "cuts": []})
    prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
    asked = [str(directory), str(prompts), "--questions", "20", "--answer-tokens", "3"]
    asked += ["--primer-after", "40", "--seam", "4", "--primer", "default", "--primer", str(primer)]
    assert main([*asked, "--json", str(out)]) == 0
    shown, progress = capsys.readouterr()
    lines = shown.splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ")] == [
        "way",
        "full prefill",
        "prefix reuse",
        "spliced, no primer",
        "spliced, primer default",
        f"spliced, primer {primer}",
    ]
    assert "Skipped: 1 prompt: no segments" in lines
    settings = {"primer": str(primer), "primer_after": 40, "seam_tokens": 4}
    assert f"Recommended settings: {json.dumps(settings)}" in lines
    assert "3 of 20 prompts in " in progress
    written = json.loads(out.read_text())
    assert written["recommended"] == f"spliced, primer {primer}"
    assert written["settings"] == settings
    assert written["weights"] == weights_digest(directory).hex()
    assert written["primers"][str(primer)]["tokens"] == 40
    first, second = written["prompts"][:2]
    assert [first.pop("line"), second.pop("line")] == [1, 2]
    assert first == second
    assert len(written["prompts"]) == 20 and written["skipped"][0]["line"] == 3


def test_the_command_says_what_is_wrong(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"

    def said(*options: str, model: Path = directory) -> str:
        assert main([str(model), str(prompts), *options]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "No such file" in said()
    prompts.write_text('{"ids": [1, 2, 128], "cuts": [0, 1]}\n')
    assert said() == f"fidelity: {prompts}:1: ids[2]: 128, want 0 to 127"
    prompts.write_text('{"text": "w1 w2"}\n')
    assert "there is no chat template" in said()
    assert said("--find", "chunks") == "fidelity: Skipped: 1 prompt: no segments"
    assert said("--device", "meta:x").startswith("fidelity: device meta:x: ")
    assert "nowhere.txt" in said("--primer", str(tmp_path / "nowhere.txt"))
    assert said("--find", "chunks", model=tmp_path).startswith("fidelity: ")
    assert "does not exist" in said("--json", str(tmp_path / "none" / "out.json"))
    prompts.write_text("")
    assert said() == f"fidelity: {prompts} has no prompts"
