"""What the halves of the adapter for vLLM begin with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_samples import SMALL
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm import session as sessions
from spliced_connector.vllm.settings import Settings
from spliced_connector.vllm.support import Engine, Group


def test_only_the_half_that_asks_reads_measured_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = (Group(0, False, (1,), ("a",), 128),)
    engine = Engine("0", SMALL, groups, "none", False, False, True, 4096)
    config = cast(Any, SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 100)))
    client = cast(Any, SimpleNamespace(model=lambda *_, **__: SimpleNamespace()))
    settings = Settings.read({"weights": "0" * 64, "mode": "splice", "fidelity": "/nowhere"})
    session = sessions.join(client, settings, engine, EngineTally(), config)
    monkeypatch.setattr(sessions, "weights_of", lambda *_: bytes(32))
    with pytest.raises(ValueError, match=r"fidelity: .*nowhere"):
        sessions.losses_of(session, config)
