"""Requests that name their segments, to a vLLM in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from engine.vllm_harness import VOCABULARY, Engine, Setup, prompt
from spliced_connector.vllm import plugin as vllm_plugin
from spliced_connector.vllm.splice import SpliceWorker
from spliced_connector.vllm.splice_scheduler import SpliceScheduler

if TYPE_CHECKING:
    from vllm import RequestOutput

_NUMBERS = count()

SEGMENT = 160
SEGMENTS = [prompt(SEGMENT, seed=100 + i) for i in range(8)]
QUERY = prompt(12, seed=99)

NEAR = 0.15
"""Log-probabilities of two right answers may differ by so much: the engine computes in bf16. The
largest difference seen between the engine and the walk was 0.05, at a spread of 0.9."""


@dataclass(frozen=True)
class Reply:
    """What came back. logprobs [vocabulary] are those of the first token."""

    tokens: list[int]
    logprobs: Tensor
    told: dict[str, object]
    cached: int

    def near(self, other: Tensor) -> bool:
        return bool((self.logprobs - other).abs().max() < NEAR)


def start(
    model: str,
    socket: str,
    caching: bool = False,
    options: dict[str, object] | None = None,
    **connector: object,
) -> Engine:
    """An engine in mode splice. The plugin is registered here as its entry point would be.

    caching: the engine's own prefix caching, too. Segments stay as they were written unless a
    tolerance is given, and torch puts them in place, so that one that is reused answers as the one
    that captured it, bit for bit.
    """
    vllm_plugin.register()
    return Engine(
        Setup(
            model,
            socket,
            {
                "mode": "splice",
                "stall_ms": 10_000.0,
                "load_ms": 5_000.0,
                "measured": False,
                "tolerance": 0.0,
                "compute": "engine",
            }
            | connector,
            {"enable_prefix_caching": caching, "max_logprobs": -1} | (options or {}),
        )
    )


def ids_of(order: Sequence[int], query: Sequence[int] = QUERY) -> tuple[list[int], list[int]]:
    """A prompt of segments, and its cuts."""
    ids: list[int] = []
    cuts = [0]
    for i in order:
        ids += SEGMENTS[i]
        cuts.append(len(ids))
    return ids + list(query), cuts


def ask(
    engine: Engine,
    ids: Sequence[int],
    cuts: Sequence[int] | None = None,
    salt: str = "",
    stops: Sequence[int] = (),
) -> Reply:
    """Answers one prompt; without cuts it is nobody's but the engine's. One with a salt that no
    other has is computed in full. stops: tokens that end a turn."""
    said = None if cuts is None else {"spliced": {"v": 1, "cuts": list(cuts)}}
    return ask_raw(engine, ids, said, salt, stops)


def ask_raw(
    engine: Engine,
    ids: Sequence[int],
    params: object,
    salt: str = "",
    stops: Sequence[int] = (),
) -> Reply:
    from vllm import SamplingParams

    extra = None if params is None else {"kv_transfer_params": params}
    sampling = SamplingParams(
        max_tokens=4,
        detokenize=False,
        temperature=0,
        ignore_eos=True,
        logprobs=-1,
        stop_token_ids=list(stops),
        extra_args=extra,
    )
    given = {"prompt_token_ids": list(ids)} | ({"cache_salt": salt} if salt else {})
    name = f"asked {next(_NUMBERS)}"
    engine.llm.llm_engine.add_request(name, given, sampling)
    return reply_of(_stepped(engine, name))


def reply_of(output: RequestOutput) -> Reply:
    """What an engine says at the end of a request that asked for all log-probabilities."""
    said = output.outputs[0]
    rows = said.logprobs[0]
    told = dict((output.kv_transfer_params or {}).get("spliced", {}))
    told.pop("decided_micros", None)  # another one each time
    return Reply(
        list(said.token_ids),
        torch.tensor([rows[i].logprob for i in range(VOCABULARY)]),
        told,
        output.num_cached_tokens or 0,
    )


def _stepped(engine: Engine, name: str) -> RequestOutput:
    """Steps to the end of a request."""
    while True:
        for output in engine.llm.llm_engine.step():
            if output.request_id == name and output.finished:
                return cast("RequestOutput", output)


@contextmanager
def another_runs(engine: Engine, tokens: int = 400) -> Iterator[None]:
    """A request that generates all the while, and so many tokens at most."""
    from vllm import SamplingParams

    llm = engine.llm.llm_engine
    name = f"another {next(_NUMBERS)}"
    sampling = SamplingParams(max_tokens=tokens, detokenize=False, ignore_eos=True)
    llm.add_request(name, {"prompt_token_ids": [1, 2, 3]}, sampling)
    llm.step()
    yield
    assert any(r.request_id.startswith(name) for r in engine.core.scheduler.running)
    llm.abort_request([name])
    llm.step()


def warm(engine: Engine, order: Sequence[int], times: int = 3) -> Reply:
    """Asks until all segments are held, and once more."""
    ids, cuts = ids_of(order)
    for _ in range(times):
        reply = ask(engine, ids, cuts)
        assert engine.worker.drain(30)
        if reply.told.get("way") == "splice" and not reply.told["captured"]:
            return reply
    raise AssertionError(f"not spliced after {times} requests: {reply.told}, {engine.counts()}")


def worker(engine: Engine) -> SpliceWorker:
    return cast(SpliceWorker, engine.worker._mode)


def scheduler(engine: Engine) -> SpliceScheduler:
    return cast(SpliceScheduler, engine.scheduler._mode)


@contextmanager
def changed(half: SpliceWorker | SpliceScheduler, **values: float) -> Iterator[None]:
    """Other settings for a while. They are frozen for everybody else."""
    settings = half._session.settings
    before = {name: getattr(settings, name) for name in values}
    for name, value in values.items():
        object.__setattr__(settings, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(settings, name, value)
