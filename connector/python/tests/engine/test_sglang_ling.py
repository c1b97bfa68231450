"""SGLang's Ling 2.5 on a CPU: Lightning attention that turns its keys, and latent attention.

Triton's interpreter runs the Lightning kernels themselves; `sglang_kernels` says what is stood in
for. What the engine says is compared with a model of the same weights that shares nothing with it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

if not find_spec("sglang") or not find_spec("triton"):
    pytest.skip("SGLang is not installed: `make test-sglang`", allow_module_level=True)

from engine.ling_model import ling
from engine.sglang_harness import SEAM, Answer, Engine
from running import Daemon
from spliced_connector.model import Profile, choose, divide, make_plan
from spliced_connector.walk import (
    Context,
    Naming,
    architecture,
    capture,
    families,
    prefill,
    splice,
)

TOKENS, SEGMENT = 4, 150
LIKE = 0.05
"""Of log-probabilities: the engine computes in bfloat16, the model in float32."""


def draw(seed: int, n: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, 500) for _ in range(n)]


ORDERS = [(0, 1, 2), (2, 0, 1), (3, 2, 0)]
SEGMENTS = [draw(seed, SEGMENT) for seed in range(1, 5)]
QUERY = draw(9, 12)


def prompt(order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Segments in some order and a question, and where the segments lie."""
    ids = [token for i in order for token in SEGMENTS[i]]
    return [*ids, *QUERY], list(range(0, len(ids) + 1, SEGMENT))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(
        tmp_path_factory.mktemp("d"), "-arena=256MiB", "-private=512MiB", "-prefill-speed=500"
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ling")


@pytest.fixture(scope="module")
def model(directory: Path) -> nn.Module:
    return ling(directory)


@pytest.fixture(scope="module")
def engine(
    daemon: Daemon, model: nn.Module, directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    settings = {"socket": daemon.socket, "mode": "splice", "measured": False, "canary_share": 0.0}
    running = start(tmp_path_factory.mktemp("e"), settings, directory)
    yield running
    running.close()


def start(place: Path, settings: dict[str, object], model: Path) -> Engine:
    return Engine(place, settings, model, skip_tokenizer_init=True)


def distance(answer: Answer, said: Tensor) -> float:
    """Of an answer's log-probabilities from those [tokens, vocabulary] of the model."""
    picked = zip(answer.tokens, answer.logprobs, strict=True)
    return max(abs(float(row[token]) - p) for row, (token, p) in zip(said, picked, strict=True))


def computed(model: nn.Module, ids: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """What the model says in front of each token of an answer."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([[*ids, *tokens[:-1]]])).logits[0]
    return logits[len(ids) - 1 :].log_softmax(-1)


def walked(model: nn.Module, order: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """The same behind segments that were captured alone and spliced."""
    arch = architecture(model, Naming(b"\x07" * 32))
    profile = Profile(arch.identity)
    ids, cuts = prompt(order)
    cut = divide(profile, b"", ids, cuts, SEAM)
    plan = make_plan(cut, 0, choose(cut, 0, [True] * len(order), [False] * len(order)))
    segments = {}
    for piece in cut.pieces:
        assert piece.spec is not None
        segments[piece.index] = capture(arch, ids[piece.start : piece.end], piece.spec)
    context = Context(arch, len(ids) + len(tokens), torch.device("cpu"))
    h = splice(arch, ids, plan.spans, segments, context)
    assert h is not None
    rows = [h[-1:]]
    for i in range(1, len(tokens)):
        rows.append(prefill(arch, [*ids, *tokens[:i]], context))
    return arch.logits(torch.cat(rows)).log_softmax(-1)


@pytest.mark.parametrize("n", [40, 130, 300])
def test_its_answers_are_those_of_the_model(engine: Engine, model: nn.Module, n: int) -> None:
    ids = draw(n, n)
    answer = engine.ask(ids, tokens=TOKENS, logprobs=True)
    assert answer.cached == 0
    assert distance(answer, computed(model, ids, answer.tokens)) < LIKE


@pytest.mark.parametrize("order", ORDERS)
def test_a_splice_is_that_of_the_model(
    engine: Engine, daemon: Daemon, model: nn.Module, order: Sequence[int]
) -> None:
    """In the order in which segments were captured and in others, and tokens behind it."""
    answer = engine.spliced(daemon, *prompt(order), TOKENS)
    # The first segment may be a prefix that is held by then.
    assert answer.told["reused"] >= 2 * (SEGMENT - 2 * SEAM)
    assert answer.cached == answer.told["tokens"] == 3 * SEGMENT - SEAM
    said = walked(model, order, answer.tokens)
    assert distance(answer, said) < LIKE
    assert int(said[0].argmax()) == answer.tokens[0]


def farthest(engine: Engine, daemon: Daemon, model: nn.Module) -> float:
    """The largest distance of a splice in any order."""
    answers = [engine.spliced(daemon, *prompt(order), TOKENS) for order in ORDERS]
    return max(
        distance(answer, walked(model, order, answer.tokens))
        for order, answer in zip(ORDERS, answers, strict=True)
    )


def test_states_that_are_not_turned_show(
    engine: Engine, daemon: Daemon, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "rotate_state", lambda state, *_: state)
    assert farthest(engine, daemon, model) > 3 * LIKE


def test_other_slopes_show(engine: Engine, daemon: Daemon, model: nn.Module) -> None:
    mixers = [layer.attention for layer in model.model.layers]
    slopes = [at.slope for at in mixers if hasattr(at, "slope")]
    for slope in slopes:
        slope.div_(4)
    try:
        assert farthest(engine, daemon, model) > 3 * LIKE
    finally:
        for slope in slopes:
            slope.mul_(4)


def test_an_exact_prefix_comes_back_after_a_restart(
    engine: Engine, model: nn.Module, daemon: Daemon, directory: Path, tmp_path: Path
) -> None:
    turn = draw(51, 384)  # the state behind a prompt is kept, whatever the daemon expects of it
    engine.ask(turn, tokens=TOKENS)
    ids = [*turn, *draw(52, 50)]
    want = engine.ask(ids, tokens=TOKENS, logprobs=True)
    other = start(tmp_path, {"socket": daemon.socket, "mode": "prefix"}, directory)
    try:
        answer = other.ask(ids, tokens=TOKENS, logprobs=True)
        assert answer.told["way"] == "prefix", answer.told
        assert answer.cached == answer.told["tokens"]
        assert answer.cached == len(turn)
        assert answer.tokens == want.tokens
        assert distance(answer, computed(model, ids, answer.tokens)) < LIKE
    finally:
        other.close()
