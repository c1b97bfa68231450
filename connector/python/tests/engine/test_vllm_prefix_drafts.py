"""Mode prefix beside drafts: what is stored lies behind tokens that stay, and rows of a model that
drafts are restored with the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest
import torch

from engine import align_kernels
from engine.vllm_harness import VOCABULARY, Answer, Engine, Setup, hybrid_model, prompt
from running import Daemon
from spliced_connector.serving.storing import Taken
from spliced_connector.vllm.plans import SavePlan
from spliced_connector.vllm.prefix import PrefixWorker

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

BLOCK = 256
DRAFTS = 3
ANSWER = 40

FAR = 0.1
"""Error of a state, relative to its size; decoding and prefill differ by up to 0.05."""

NEAR = 0.1
"""Log-probabilities of two right answers: the engine computes in bf16, and the kernels that it
takes depend on how many drafts there are."""


class Oracle:
    """Drafts what is known to come and, at three of four places, goes wrong behind it.

    The engine builds it from its name; it has no rows and no weights.
    """

    known: ClassVar[list[list[int]]] = []
    """Prompts with their answers."""

    def __init__(self, _config: object) -> None:
        pass

    def load_model(self, _model: object) -> None:
        pass

    def propose(
        self, sampled: list[list[int]], lengths: Sequence[int], ids: object, **_: object
    ) -> list[list[int]]:
        return [
            self._draft([int(token) for token in ids[i, : lengths[i]]]) if new else []  # type: ignore[index]
            for i, new in enumerate(sampled)
        ]

    def _draft(self, ids: list[int]) -> list[int]:
        n = len(ids)
        coming = next((all_[n : n + DRAFTS] for all_ in self.known if all_[:n] == ids), [])
        coming += [0] * (DRAFTS - len(coming))
        right = n * n // 7 % (DRAFTS + 1)
        return coming[:right] + [(token + 1) % VOCABULARY for token in coming[right:]]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("drafts")
    align_kernels.register()
    daemon = Daemon(directory, "-prefill-speed=500")
    daemon.start()
    options: dict[str, object] = {
        "speculative_config": {
            "method": "custom_class",
            "model": f"{__name__}.Oracle",
            "num_speculative_tokens": DRAFTS,
        },
        "disable_log_stats": False,
    }
    engine = Engine(Setup(hybrid_model(directory / "model"), daemon.socket, {}, options))
    yield engine
    engine.close()
    daemon.stop()


def counted(engine: Engine, name: str) -> int:
    """One of the engine's counts of drafts."""
    return sum(m.value for m in engine.llm.get_metrics() if m.name == f"vllm:spec_decode_{name}")


def computed(engine: Engine, ids: list[int], tokens: int) -> Answer:
    """What the engine says when it has nothing of the prompt."""
    (answer,) = engine.ask(ids, tokens=tokens, cache_salt=f"alone {len(ids)} {ids[-1]}")
    engine.settle()
    assert answer.cached == 0
    return answer


def near(one: Answer, other: Answer) -> bool:
    """The same, but for a place where two tokens are as good as each other: there they part."""
    pairs = list(zip(one.tokens, other.tokens, strict=True))
    part = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    far = [abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)]
    return max(far[: part + 1]) < NEAR


def states_of(engine: Engine, taken: Taken) -> list[torch.Tensor]:
    """States and tails of a checkpoint, layer by layer."""
    worker = engine.worker._mode
    assert isinstance(worker, PrefixWorker)
    layout = worker._profile.checkpoint_layout(taken.tokens - taken.parent_tokens)
    pairs = zip(layout.parts, taken.parts.arrived(), strict=True)
    return [x.float() for part, x in pairs if part.kind in ("S", "conv")]


def test_states_behind_answers_are_those_of_a_prefill(
    hybrid: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer's first block ends behind another number of accepted drafts each time."""
    engine, cached = hybrid, set()
    worker = engine.worker._mode
    assert isinstance(worker, PrefixWorker)
    taken: list[Taken] = []
    take = worker._take

    def keep(plan: SavePlan) -> Taken:
        taken.append(take(plan))
        return taken[-1]

    monkeypatch.setattr(worker, "_take", keep)
    for before in range(5, 5 + 2 * (DRAFTS + 1)):
        first = prompt(2 * BLOCK - before, seed=before)
        right = computed(engine, first, ANSWER)
        Oracle.known.append(first + right.tokens)
        accepted = counted(engine, "num_accepted_tokens")
        (answer,) = engine.ask(first, tokens=ANSWER)
        engine.settle()
        assert near(answer, right)
        assert counted(engine, "num_accepted_tokens") > accepted + ANSWER // 4
        behind = [one for one in taken if one.tokens == 2 * BLOCK]
        again = [*first, *answer.tokens, *prompt(20, seed=90 + before)]
        (turn,) = engine.ask(again, tokens=ANSWER)
        engine.settle()
        assert near(turn, computed(engine, again, ANSWER))
        cached.add(turn.cached)
        # The last is that of the whole prompt, which was computed without drafts. Of states that
        # are some tokens behind or ahead the error is above 1.
        for one in behind:
            pairs = zip(states_of(engine, one), states_of(engine, taken[-1]), strict=True)
            assert all((a - b).norm() < FAR * b.norm() for a, b in pairs)
        taken.clear()
    assert cached == {BLOCK, 2 * BLOCK}
    assert "save_failures" not in engine.counts()


def test_a_prompt_is_loaded_beside_drafts(hybrid: Engine) -> None:
    engine, asked = hybrid, prompt(700, seed=3)
    (cold,) = engine.ask(asked, tokens=ANSWER)
    engine.settle()
    Oracle.known.append(asked + cold.tokens)
    (warm,) = engine.ask(asked, tokens=ANSWER)
    engine.settle()
    assert (cold.cached, warm.cached) == (0, 2 * BLOCK)
    assert near(warm, cold)
