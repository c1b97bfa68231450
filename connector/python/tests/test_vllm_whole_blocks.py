"""Prompts of whole blocks that are sent again, through vLLM's scheduler and a real daemon."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

import pytest

from client_samples import SMALL, Connect, fill
from running import StartDaemon
from spliced_connector.client import Accept, NewCheckpoint
from spliced_connector.errors import Code
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.prefix_scheduler import PrefixScheduler
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.settings import Settings
from test_vllm_prefix_scheduler import make_step
from test_vllm_splice_scheduler import ALIGNED, BLOCK, Asked

if TYPE_CHECKING:
    from vllm.v1.request import Request


def serve(scheduler: PrefixScheduler, ids: list[int], name: str) -> tuple[int, int]:
    """Computes a prompt block by block and stores what is wanted, with bytes that mean nothing.
    Tokens that the daemon had, and checkpoints that were stored."""
    request = cast("Request", Asked(name, ids, None))
    claimed, _ = scheduler.match(request, 0)
    assert claimed is not None
    scheduler.allocated(request, ((1,), (2,)), claimed)
    model, stored = scheduler._session.model, 0
    for at in range(claimed, len(ids), BLOCK):
        request.all_token_ids = list(ids)
        step = make_step(([1], [2]), **{name: (at, min(BLOCK, len(ids) - at))})
        plan = scheduler.plan(step)
        for save in plan.saves if plan else ():
            rows = save.tokens - save.parent_tokens
            parts = fill(model.profile.checkpoint_layout(rows), save.tokens)
            parent, begin = save.parent_hash, save.parent_tokens
            new = NewCheckpoint(save.hash, save.tokens, parent, begin, Accept.EXACT, parts)
            assert model.save([new]) == [Code.OK], "stored again"
            stored += 1
    scheduler.finished(request)
    return claimed, stored


@pytest.mark.parametrize("turns", [False, True])
def test_a_repeated_prompt_reuses_all_blocks_but_its_last(
    connect: Connect, start_daemon: StartDaemon, turns: bool
) -> None:
    client = connect(start_daemon("-prefill-speed=500").socket, timeout=10.0)
    model = client.model(SMALL, block_tokens=BLOCK)
    assert model.wait_attached(10)
    session = Session(Settings(weights="0" * 64), ALIGNED, model, EngineTally(), BLOCK)
    scheduler = PrefixScheduler(session, turns)
    rng = random.Random(3)
    for n in (BLOCK, 2 * BLOCK, 3 * BLOCK, 4 * BLOCK, 8 * BLOCK, 2 * BLOCK + 1, 4 * BLOCK - 1):
        ids = [rng.randrange(50_000) for _ in range(n)]
        served = [serve(scheduler, ids, f"r{n}-{i}") for i in range(3)]
        usable = (n - 1) // BLOCK * BLOCK
        assert [claimed for claimed, _ in served] == [0, usable, usable], n
        assert [stored for _, stored in served[1:]] == [0, 0], n
