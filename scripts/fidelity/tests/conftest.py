"""Models that the tests measure: the trained one, and one of Mamba2 layers with random weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(scope="session", params=["trained", "mamba"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model."""
    pytest.importorskip("torch")
    from questions import TINYHYBRID

    if request.param == "trained":
        return TINYHYBRID / "model"
    import mamba2
    from model import Model, initialise, sampled
    from train import write_model

    net, folder = Model(mamba2.Config()), tmp_path_factory.mktemp("mamba")
    initialise(net, 3, sampled)
    write_model(net, folder)
    return folder
