"""Prefixes of a hybrid model, stored and loaded by vLLM itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine.vllm_harness import Engine, Setup, elsewhere, hybrid_model, prompt
from running import Daemon
from spliced_connector.client import Client, Options
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.model import weights_digest
from spliced_connector.walk import Naming

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

BLOCK = 256
SHARED = prompt(3 * BLOCK, seed=1)
PROMPTS = [prompt(900 + 50 * i, seed=10 + i, prefix=SHARED) for i in range(3)]
LONG = prompt(1300, seed=2)

Reference = dict[int, list[int]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def daemon(directory: Path) -> Iterator[Daemon]:
    """Not running yet."""
    made = Daemon(directory, "-prefill-speed=500", disk=True)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cold(directory: Path, daemon: Daemon) -> Iterator[Engine]:
    """An engine that has found no daemon so far."""
    model = hybrid_model(directory / "model")
    running = Engine(Setup(model, daemon.socket))
    yield running
    running.close()


@pytest.fixture(scope="module")
def reference(cold: Engine) -> Reference:
    """Tokens without any reuse, by prompt length."""
    answers = [cold.ask(p)[0] for p in (PROMPTS[0], LONG)]
    cold.settle()
    answers += [cold.ask(PROMPTS[1])[0]]
    cold.settle()
    answers += [cold.ask(PROMPTS[2])[0]]
    cold.settle()
    assert [a.cached for a in answers] == [0, 0, 0, 0]
    lengths = [len(p) for p in (PROMPTS[0], LONG, PROMPTS[1], PROMPTS[2])]
    return dict(zip(lengths, (a.tokens for a in answers), strict=True))


@pytest.fixture(scope="module")
def engine(cold: Engine, reference: Reference, daemon: Daemon, directory: Path) -> Engine:
    """The daemon has come, and another engine has served the first prompt; its process is gone."""
    daemon.start()
    (answer,) = elsewhere(Setup(cold.setup.model, daemon.socket), [PROMPTS[0]], directory)
    assert answer.cached == 0
    assert answer.tokens == reference[len(PROMPTS[0])]
    cold.wait_attached()
    return cold


def test_engine_without_a_daemon_answers(cold: Engine, reference: Reference) -> None:
    """And does so in the same way for all that come."""
    counts = cold.counts()
    assert "inert" not in counts
    assert counts.get("matched_tokens", 0) == counts.get("saves", 0) == 0
    assert len({tuple(tokens) for tokens in reference.values()}) == len(reference)


def test_prompt_of_an_engine_that_is_gone_is_reused(
    engine: Engine, reference: Reference, daemon: Daemon
) -> None:
    before = engine.counts().get("loaded_tokens", 0)
    (answer,) = engine.ask(PROMPTS[0])
    assert answer.tokens == reference[len(PROMPTS[0])]
    assert answer.cached == 3 * BLOCK
    assert engine.counts()["loaded_tokens"] - before == 3 * BLOCK
    said = daemon.request(way="prefix", prompt_tokens=len(PROMPTS[0]))
    assert (said["engine_tokens"], said["prefix_tokens"]) == (0, 3 * BLOCK)
    assert said["ttft_ms"] > 0
    # The engine whose process is gone told of it too.
    gone = daemon.request(way="recompute", prompt_tokens=len(PROMPTS[0]))
    assert (gone["computed_tokens"], gone["prefix_reason"]) == (len(PROMPTS[0]), "unknown")


def test_partial_prefix_is_reused_at_its_checkpoint(engine: Engine, reference: Reference) -> None:
    engine.settle()
    (answer,) = engine.ask(PROMPTS[1])
    assert answer.tokens == reference[len(PROMPTS[1])]
    assert answer.cached == 3 * BLOCK


def test_every_advised_checkpoint_is_stored_and_reused(
    engine: Engine, reference: Reference
) -> None:
    before = engine.counts()
    (cold,) = engine.ask(LONG)
    assert (cold.cached, cold.tokens) == (0, reference[len(LONG)])
    engine.settle()
    counts = engine.counts()
    stored = counts["saves"] - before.get("saves", 0)
    assert stored >= 3  # the daemon's first advice for a prompt: placed ones and the last
    assert counts.get("save_failures", 0) == before.get("save_failures", 0)
    reused = set()
    for blocks in range(1, len(LONG) // BLOCK + 1):
        other = prompt(blocks * BLOCK + 40, seed=50 + blocks, prefix=LONG[: blocks * BLOCK])
        (answer,) = engine.ask(other, tokens=1)
        reused.add(answer.cached)
        engine.settle()
    assert len(reused - {0}) >= stored
    (warm,) = engine.ask(LONG)
    assert warm.cached == len(LONG) // BLOCK * BLOCK
    assert warm.tokens == cold.tokens
    assert warm.logprobs == cold.logprobs


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_repeated_prompt_of_whole_blocks_reuses_all_but_its_last(
    engine: Engine, blocks: int
) -> None:
    """The engine computes the last token at least, and so a block; it is not stored again."""
    ids = prompt(blocks * BLOCK, seed=70 + blocks)
    (cold,) = engine.ask(ids)
    engine.settle()
    stored = engine.counts()["saves"]
    for _ in range(2):
        (warm,) = engine.ask(ids)
        assert warm.cached == (blocks - 1) * BLOCK
        assert warm.tokens == cold.tokens
        engine.settle()
    assert engine.counts()["saves"] == stored


def test_requests_of_one_batch(engine: Engine, reference: Reference) -> None:
    engine.settle()
    answers = engine.ask(PROMPTS[2], PROMPTS[0], LONG)
    wanted = [reference[len(p)] for p in (PROMPTS[2], PROMPTS[0], LONG)]
    assert [a.tokens for a in answers] == wanted
    assert all(a.cached >= 3 * BLOCK for a in answers)


def test_loads_of_states_matter(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the state the answer is another: what the tests above compare tells."""
    from spliced_connector.vllm.caches import StatePages

    engine.settle()
    (right,) = engine.ask(LONG)
    engine.settle()
    monkeypatch.setattr(StatePages, "write", lambda *_: None)
    (wrong,) = engine.ask(LONG)
    assert wrong.cached == right.cached
    assert wrong.logprobs != right.logprobs
    engine.settle()


def test_salts_do_not_share(engine: Engine) -> None:
    salted = prompt(700, seed=7)
    engine.ask(salted, tokens=1, cache_salt="one")
    engine.settle()
    assert engine.ask(salted, tokens=1)[0].cached == 0
    engine.settle()
    assert engine.ask(salted, tokens=1, cache_salt="two")[0].cached == 0
    engine.settle()
    assert engine.ask(salted, tokens=1, cache_salt="one")[0].cached == 2 * BLOCK
    engine.settle()


def test_survives_a_restart_of_the_daemon(
    engine: Engine, daemon: Daemon, reference: Reference
) -> None:
    engine.settle()
    daemon.stop()
    (alone,) = engine.ask(PROMPTS[0])
    assert (alone.cached, alone.tokens) == (0, reference[len(PROMPTS[0])])
    engine.settle()
    daemon.start()
    engine.wait_attached()
    (again,) = engine.ask(PROMPTS[0])
    assert again.tokens == alone.tokens
    assert again.cached == 3 * BLOCK


def test_transformers_and_vllm_use_each_others_checkpoints(engine: Engine, daemon: Daemon) -> None:
    """Two implementations of the same layers: neither state, tail nor key may lie otherwise."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(engine.setup.model, dtype=torch.bfloat16)
    with closing(Client(Options(socket=daemon.socket))) as client:
        other = SplicedTransformers(
            model.eval(),
            client,
            Naming(weights_digest(engine.setup.model)),
            HFSettings(block_tokens=BLOCK, keep_all=True),
        )
        assert client.wait_attached(10)
        theirs, ours = prompt(800, seed=30), prompt(800, seed=31)
        (right,) = engine.ask(theirs, tokens=1, cache_salt="not shared")
        stored = other.prefill(theirs, mode="prefix")
        assert stored.reused == 0
        engine.settle()
        (answer,) = engine.ask(theirs, tokens=1)
        assert answer.cached >= 2 * BLOCK
        assert answer.tokens == right.tokens
        assert answer.logprobs == pytest.approx(right.logprobs, abs=0.05)

        (first,) = engine.ask(ours, tokens=1)
        assert first.cached == 0
        engine.settle()
        reused = other.prefill(ours, mode="prefix")
        assert reused.reused >= 2 * BLOCK
        assert int(reused.logits.argmax()) == first.tokens[0]
