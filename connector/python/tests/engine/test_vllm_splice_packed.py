"""Mode splice on vLLM itself with segments that the daemon keeps in fewer bytes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

if importlib.util.find_spec("vllm") is not None:
    from engine.splice_requests import ask, ids_of, start, warm, worker
    from engine.vllm_harness import Engine, hybrid_model
    from running import Daemon
    from spliced_connector.model import divide


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("d"), "-arena=256MiB", "-prefill-speed=500")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory: Path = tmp_path_factory.mktemp("model")
    running = start(hybrid_model(directory), daemon.socket, tolerance=0.02)
    yield running
    running.close()


def test_packed_segments_are_spliced(engine: Engine, daemon: Daemon) -> None:
    ids, cuts = ids_of([0, 1, 2])
    replies = [ask(engine, ids, cuts) for _ in range(2)]
    captured = next(reply for reply in replies if reply.told.get("captured"))
    reply = warm(engine, [0, 1, 2])
    assert reply.told["way"] == "splice"
    assert float((reply.logprobs - captured.logprobs).abs().max()) > 0
    assert reply.near(captured.logprobs), "it used what it had captured, as it was"
    model = worker(engine)._session.model
    assert model.profile.identity.tolerance == 0.02
    pieces = divide(model.profile, model.salt or b"", ids, cuts, 8)
    for segment in model.acquire(pieces.keys):
        assert segment is not None
        transition, state = segment.errors
        assert 0 <= transition <= 0.02 * (1 + 1e-6), "0 where it has faded away"
        assert 0 < state <= 0.02 * (1 + 1e-6)
        plain = model.profile.segment_layout(segment.tokens)
        assert segment.layout.nbytes < 0.7 * plain.nbytes
        assert segment.release()
