"""Mode splice on vLLM itself with segments that the daemon keeps in fewer bytes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from running import StartDaemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

if importlib.util.find_spec("vllm") is not None:
    from engine.splice_requests import ask, ask_raw, ids_of, start, warm, worker
    from engine.vllm_harness import Engine, hybrid_model
    from spliced_connector.client import Match
    from spliced_connector.model import DEFAULT_TOLERANCE, divide


@pytest.fixture(params=[0.0, 0.02], ids=["states", "rows too"])
def engine(
    start_daemon: StartDaemon, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    daemon = start_daemon("-arena=256MiB", "-prefill-speed=5")
    own = {"tolerance": DEFAULT_TOLERANCE, "row_tolerance": request.param}
    with closing(start(hybrid_model(tmp_path), daemon.socket, **own)) as running:
        yield running


def test_packed_segments_are_spliced(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, cuts = ids_of([0, 1, 2])
    replies = [ask(engine, ids, cuts) for _ in range(2)]
    captured = next(reply for reply in replies if reply.told.get("captured"))
    reply = warm(engine, [0, 1, 2])
    assert reply.told["way"] == "splice"
    assert float((reply.logprobs - captured.logprobs).abs().max()) > 0
    assert reply.near(captured.logprobs), "it used what it had captured, as it was"
    model = worker(engine)._session.model
    assert model.profile.identity.tolerance == DEFAULT_TOLERANCE
    pieces = divide(model.profile, model.salt or b"", ids, cuts, 8)
    leading, *others = model.acquire(pieces.keys)
    assert leading is not None and leading.errors == (0.0, 0.0)
    assert leading.release()
    for segment in others:
        assert segment is not None
        transition, state = segment.errors
        assert 0 <= transition <= 0.02 * (1 + 1e-6), "0 where it has faded away"
        assert 0 < state <= 0.02 * (1 + 1e-6)
        plain = model.profile.segment_layout(segment.tokens)
        assert segment.layout.nbytes < 0.7 * plain.nbytes
        rows = [part.packed for part in segment.layout.parts if part.is_rows]
        assert rows and rows == [model.profile.identity.row_tolerance > 0] * len(rows)
        assert segment.release()
    own = ask(engine, ids, salt="own")
    exact = ask_raw(engine, ids, {"spliced": {"v": 1, "cuts": cuts, "max_error": 0}})
    reused = exact.told.get("reused", 0)
    assert isinstance(reused, int)
    assert reused <= cuts[1], "at most the leading one, which is as it was"
    assert exact.near(own.logprobs)
    assert engine.counts()["too_far_segments"] == 2
    # What a match said was of others.
    monkeypatch.setattr(Match, "within", lambda match, _: match.hits)
    late = ask_raw(engine, ids, {"spliced": {"v": 1, "cuts": cuts, "max_error": 0}})
    assert late.told["way"] == "recomputed"
    assert late.near(own.logprobs)
