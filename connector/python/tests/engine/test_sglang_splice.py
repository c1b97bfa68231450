"""SGLang itself, on a CPU, with `--radix-cache-backend spliced` and a daemon.

Kernels that a CPU lacks are stood in for, see `sglang_kernels`; all else is the engine's. The model
is the trained one of scripts/tinyhybrid, prompts are its questions.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import pytest
import torch

if not find_spec("sglang") or not find_spec("triton"):
    pytest.skip("SGLang is not installed: `make test-sglang`", allow_module_level=True)

from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.sglang_harness import MODEL, Engine
from running import Daemon
from spliced_connector.client import Client, Options
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.model import primer_digest, weights_digest
from spliced_connector.walk import Naming

TOKENS = 8
NEAR = 0.15
"""Of log-probabilities of the same token: two engines round otherwise in bfloat16."""

Question = tuple[list[int], list[int]]
"""A prompt and its cuts."""


def questions() -> list[Question]:
    found = []
    for line in (MODEL / "questions.jsonl").read_text().splitlines():
        parts: list[list[int]] = json.loads(line)["segments"]
        cuts = [0]
        for part in parts[:-1]:
            cuts.append(cuts[-1] + len(part))
        found.append(([token for part in parts for token in part], cuts[1:]))
    return found


QUESTIONS = questions()


def draw(seed: int, n: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, 600) for _ in range(n)]


PRIMER = draw(90, 300)
PRIMED_AFTER = 1500  # beyond the prompts of all tests but one


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(
        tmp_path_factory.mktemp("d"), "-arena=256MiB", "-private=512MiB", "-prefill-speed=5"
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    settings: dict[str, object] = {
        "socket": daemon.socket,
        "mode": "splice",
        "find": ["known", "chunks"],
        "measured": False,
        "compute": "daemon",
        "canary_share": 0.0,
        "chunk_mean": 128,
        "chunk_most": 256,
        "primer": PRIMER,
        "primer_after": PRIMED_AFTER,
    }
    running = Engine(tmp_path_factory.mktemp("e"), settings)
    yield running
    running.close()


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    found: torch.nn.Module = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    return found.eval()


CLEAR = 0.75
"""Least distance between the logits of the first and the second choice. Kernels that round
differently deviate by steps of bfloat16, 0.125 at 20; on some random prompts both are equal."""


def alone(model: torch.nn.Module, ids: Sequence[int], tokens: int = TOKENS) -> list[int]:
    """What the model says without any cache of ours, to a prompt to which its answer is clear."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor([list(ids)]),
            do_sample=False,
            max_new_tokens=tokens,
            output_scores=True,
            return_dict_in_generate=True,
        )
    best = torch.cat(out.scores).float().topk(2).values
    assert (best[:, 0] - best[:, 1]).min() >= CLEAR, "choose another prompt: its answer is a tie"
    found: list[int] = out.sequences[0, len(ids) :].tolist()
    return found


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 120.0
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def asked_for(daemon: Daemon, operation: str) -> int:
    """How often the daemon was asked for an operation."""
    metrics, op = daemon.metrics().items(), f'op="{operation}"'
    return int(sum(n for name, n in metrics if "requests_total" in name and op in name))


NONE: dict[str, object] = {"find": []}


def test_its_tokens_are_those_of_transformers(engine: Engine, model: torch.nn.Module) -> None:
    prompts = [ids for ids, _ in QUESTIONS[:6]] + [draw(seed, 200) for seed in (1, 7, 27)]
    asked = [engine.begin(ids, tokens=TOKENS, said=NONE) for ids in prompts]
    for ids, number in zip(prompts, asked, strict=True):
        answer = engine.take(number)
        assert answer.tokens == alone(model, ids)
        assert answer.told["way"] == "engine"


def test_a_splice_is_that_of_the_library(
    engine: Engine, model: torch.nn.Module, daemon: Daemon
) -> None:
    """The daemon composes for the engine, torch for the library."""
    client = Client(Options(socket=daemon.socket, name="test"))
    assert client.wait_attached(5.0)
    # The engine does not follow measured times, so the library must not either.
    settings = HFSettings(keep_all=True)
    library = SplicedTransformers(model, client, Naming(weights_digest(MODEL)), settings)
    try:
        for ids, cuts in QUESTIONS[20:24]:
            answer = engine.spliced(daemon, ids, cuts)
            assert answer.told["way"] == "splice"
            assert int(answer.told["reused"]) > 0
            assert answer.cached == answer.told["tokens"]
            first = library.prefill(ids, cuts, mode="splice")
            want = torch.log_softmax(first.logits.float(), -1)
            assert int(want.argmax()) == answer.tokens[0]
            assert abs(float(want.max()) - answer.logprobs[0]) < NEAR
            assert first.reused > 0, "it finds what SGLang has captured"
            assert first.captured == 0
        assert library.composed.daemon == 0
        assert asked_for(daemon, "compose") > 0
        assert asked_for(daemon, "rotate") > 0
    finally:
        client.close()


def test_segments_further_on_are_captured_after_the_primer(
    engine: Engine, model: torch.nn.Module, daemon: Daemon
) -> None:
    """The library finds what SGLang has captured, and answers the same."""
    cuts = [0, 700, 1400, 1600, 1800]
    ids = draw(91, cuts[-1] + 20)
    client = Client(Options(socket=daemon.socket, name="test"))
    assert client.wait_attached(5.0)
    primed = HFSettings(keep_all=True, primer=tuple(PRIMER), primer_after=PRIMED_AFTER)
    library = SplicedTransformers(model, client, Naming(weights_digest(MODEL)), primed)
    try:
        answer = engine.spliced(daemon, ids, cuts)
        digest = primer_digest(PRIMER).hex()
        primers = [s.get("primer") for s in daemon.segments() if s["tokens"] in (200, 700)]
        assert (primers.count(digest), primers.count(None)) == (1, 3)
        first = library.prefill(ids, cuts, mode="splice")
        assert first.captured == 0
        want = torch.log_softmax(first.logits.float(), -1)
        assert int(want.argmax()) == answer.tokens[0]
        assert abs(float(want.max()) - answer.logprobs[0]) < NEAR
    finally:
        client.close()


def test_segments_are_reused_in_any_order(engine: Engine, daemon: Daemon) -> None:
    parts = [draw(seed, 150) for seed in (11, 12, 13)]
    query = draw(14, 20)
    first = engine.spliced(daemon, [*parts[0], *parts[1], *parts[2], *query], [0, 150, 300, 450])
    assert first.told["way"] == "splice"
    ids = [*parts[2], *parts[0], *parts[1], *query]
    answer = engine.spliced(daemon, ids, [0, 150, 300, 450])
    assert answer.told["reused"] == 150 + 134 + 134  # w at each join, none at the front
    assert answer.told["walked"] == 24
    said = daemon.request(prompt_tokens=len(ids), way="splice", reused_tokens=418)
    assert said["model"] and said["ttft_ms"] > said["wait_ms"] > 0
    assert said["seam_tokens"] == 32  # what follows the last segment is not walked
    assert said["bytes"] > 418 * 2
    assert {span.get("tier") for span in said["spans"] if span["from"] == "segment"} == {"dram"}
    # What the engine's own tree has of a prompt is the engine's.
    whole = draw(15, 300)
    for _ in range(2):
        engine.ask(whole, said=NONE)
    said = daemon.request(prompt_tokens=300, way="recompute", engine_tokens=lambda n: n > 0)
    assert said["computed_tokens"] == 300 - said["engine_tokens"]


def test_requests_at_once_publish_their_segments_once(engine: Engine, daemon: Daemon) -> None:
    # The daemon wants what it has not seen once it knows that such comes back.
    engine.spliced(daemon, *QUESTIONS[11])
    told: list[dict[str, Any]] = []
    for seed in range(500, 600, 10):
        parts = [draw(seed + i, 400) for i in range(2)]
        prompts = [[*parts[0], *parts[1], *draw(seed + i, 15)] for i in range(2, 6)]
        before = asked_for(daemon, "reserve")
        asked = [engine.begin(ids, [0, 400, 800]) for ids in prompts]
        told = [engine.take(number).told for number in asked]
        engine.ask(draw(seed + 6, 300), said=NONE)  # publishing goes on meanwhile
        if all(one["way"] == "splice" for one in told):
            break
        # One came late, while the segments were being published: it was computed.
    else:
        pytest.fail(f"not all are spliced: {told}")
    # Whoever was to capture them too took what the first one had captured.
    assert any(one["captured"] == 2 for one in told)
    until(lambda: asked_for(daemon, "reserve") >= before + 2)
    assert asked_for(daemon, "reserve") == before + 2, told


def test_chunks_are_found_by_the_server(engine: Engine) -> None:
    text = draw(31, 700)
    engine.ask([*draw(32, 40), *text, *draw(33, 20)])
    # Another beginning each time: the engine's own cache has the prompt after one request.
    seeds = count(1000)
    until(
        lambda: (
            engine.ask([*draw(next(seeds), 90), *text, *draw(35, 20)]).told.get("reused", 0) > 200
        )
    )
    answer = engine.ask([*draw(36, 66), *text, *draw(37, 20)])
    assert answer.told["way"] == "splice"
    assert answer.told["found"]


def test_a_request_may_refuse_what_is_off(
    engine: Engine, model: torch.nn.Module, daemon: Daemon
) -> None:
    cuts = [0, 200, 400, 600]
    ids = [*draw(61, 200), *draw(62, 200), *draw(63, 200), 5, 6, 7]
    assert engine.spliced(daemon, ids, cuts).told["reused"] > 500
    daemon.forget_checkpoints()
    refusing = engine.ask(ids, cuts, TOKENS, said={"max_error": 0})
    assert refusing.told.get("reused", 0) <= 200, "the leading one, which is as it was written"
    assert refusing.tokens == alone(model, ids)
    wrong = engine.ask(ids, cuts, 1, said={"max_error": 2})
    assert wrong.told["trouble"] == "spliced.max_error: 2, want 0 to 1"


def test_a_conversation_goes_on_behind_its_spliced_turn(engine: Engine, daemon: Daemon) -> None:
    """The next turn begins with the prompt, and with a token that ends an answer."""
    end = 1
    cuts = [0, 200, 400, 600]
    ids = [*draw(41, 200), *draw(42, 200), *draw(43, 200), end, 400, 401]
    first = engine.spliced(daemon, ids, cuts)
    said = list(takewhile(lambda token: token != end, first.tokens))
    answer = [*ids, *said, end, 400, 401]
    # Behind what was answered, if that ended a turn: a state is kept there.
    want = len(ids) if len(said) == len(first.tokens) else len(ids) + len(said)

    def continued() -> bool:
        engine.flush()
        told = engine.ask(answer, cuts).told
        return told["way"] == "splice" and told.get("prefix") == want

    until(continued)


def test_an_exact_prefix_comes_back_after_a_restart(
    engine: Engine, model: torch.nn.Module, daemon: Daemon, tmp_path: Path
) -> None:
    turn = draw(475, 384)  # the state behind a prompt is kept, whatever the daemon expects of it
    assert engine.ask(turn, tokens=TOKENS, said=NONE).tokens == alone(model, turn)
    ids = [*turn, *draw(57, 50)]
    want = alone(model, ids)
    other = Engine(tmp_path, {"socket": daemon.socket, "mode": "prefix"})
    try:
        answer = other.ask(ids, tokens=TOKENS)
        assert answer.told["way"] == "prefix", answer.told
        assert answer.cached == answer.told["tokens"]
        assert answer.cached == len(turn)
        assert answer.tokens == want
        said = daemon.request(way="prefix", prefix_tokens=len(turn))
        assert (said["engine_tokens"], said["computed_tokens"]) == (0, 50)
        assert said["ttft_ms"] > 0
        longer = [*ids, *draw(101, 50)]
        assert other.ask(longer, tokens=TOKENS).tokens == alone(model, longer)
    finally:
        other.close()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"cuts": [0, 90, 80]}, "they have to ascend"),
        ({"cuts": [0, 9999]}, "want 0 to"),
        ({"cuts": [0, 100], "size": 3}, "unknown size"),
        ({"find": ["templates"]}, "this server has"),
    ],
)
def test_what_cannot_be_right_is_told(engine: Engine, said: dict[str, object], text: str) -> None:
    answer = engine.ask(draw(61, 400), said=said)
    assert answer.told["way"] == "engine"
    assert text in str(answer.told["trouble"])
    assert len(answer.tokens) == TOKENS


def test_requests_that_end_early_leave_nothing(engine: Engine) -> None:
    """The engine checks its own pools: a slot that is lost would end it."""
    for i in range(6):
        ids = [*draw(100 + i, 400), *draw(200 + i, 400), *draw(300 + i, 20)]
        number = engine.begin(ids, [0, 400, 800], 200, ignore_eos=True)
        time.sleep(0.03 * i)
        engine.abort(number)
        engine.take(number)
    assert engine.ask(draw(71, 300), said=NONE).told["way"] == "engine"
    time.sleep(1.0)  # idle: where it checks
    assert not engine.ended


def test_an_engine_serves_without_its_daemon(
    engine: Engine, model: torch.nn.Module, daemon: Daemon
) -> None:
    ids, cuts = QUESTIONS[7]
    engine.spliced(daemon, ids, cuts)
    want = alone(model, ids)
    daemon.kill()
    began = time.monotonic()
    answer = engine.ask(ids, cuts, TOKENS)
    assert time.monotonic() - began < 30
    assert answer.told["way"] == "engine"
    assert answer.tokens == want
    daemon.start()
    assert engine.spliced(daemon, *QUESTIONS[9]).told["reused"]


def test_a_daemon_that_stalls_is_waited_for_in_vain(
    engine: Engine, model: torch.nn.Module, daemon: Daemon
) -> None:
    ids, cuts = QUESTIONS[8]
    engine.spliced(daemon, ids, cuts)
    daemon.pause()
    try:
        began = time.monotonic()
        answer = engine.ask(ids, cuts, TOKENS)
        assert time.monotonic() - began < 10
    finally:
        daemon.resume()
    assert answer.told["way"] in ("engine", "recomputed")
    assert answer.tokens == alone(model, ids)
    assert engine.spliced(daemon, *QUESTIONS[10]).told["reused"]


def test_requests_keep_running_beside_captures(engine: Engine) -> None:
    """A long answer is decoded while others' segments are captured."""
    running = engine.begin(draw(81, 100), tokens=150, said=NONE, ignore_eos=True)
    asked = [
        engine.begin([*draw(90 + i, 300), *draw(95 + i, 300), 5, 6, 7], [0, 300, 600])
        for i in range(4)
    ]
    assert all(engine.take(number).told["way"] == "splice" for number in asked)
    assert len(engine.take(running).tokens) == 150


def test_weights_that_are_loaded_end_the_reuse(
    engine: Engine, daemon: Daemon, tmp_path: Path
) -> None:
    """The last test: nothing is reused in this engine any more."""
    ids, cuts = QUESTIONS[17]
    before = engine.spliced(daemon, ids, cuts)
    other = tmp_path / "model"
    shutil.copytree(MODEL, other)
    weights = load_file(MODEL / "model.safetensors")
    for name, weight in weights.items():
        if "down_proj" in name:
            weights[name] = weight.flip(0).contiguous()
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    changed = AutoModelForCausalLM.from_pretrained(other, dtype=torch.bfloat16).eval()
    held = daemon.checkpoints()
    assert engine.load(other)
    answer = engine.ask(ids, cuts, TOKENS)
    assert (answer.cached, answer.told) == (0, {})
    assert answer.tokens[0] == alone(changed, ids, 1)[0] != before.tokens[0]
    engine.ask(draw(111, 400))
    assert daemon.checkpoints() == held
