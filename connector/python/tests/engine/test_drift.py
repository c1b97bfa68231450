"""The installed engines are those that the adapters were written against."""

from __future__ import annotations

import pytest

from spliced_connector import drift
from spliced_connector.recorded.targets import TARGETS

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("engine", sorted(TARGETS))
def test_installed_engine_has_not_drifted(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed here")
    status = drift.main([engine])
    assert status == 0, capsys.readouterr().out
