"""Every recurrent model of transformers has a walk, or a reason why it has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from spliced_connector.walk.registry import ARCHITECTURES, REFUSED

pytestmark = pytest.mark.engine

_STATES = re.compile(r"recurrent_state|ssm_state|conv_state|slope_rate|mlstm|LinearAttention")
"""What the code of models that keep something else than rows speaks of."""


def recurrent_folders() -> set[str]:
    root = Path(transformers.__file__).parent / "models"
    files = root.glob("*/modeling_*.py")
    return {path.parent.name for path in files if _STATES.search(path.read_text())}


def test_every_recurrent_model_has_a_walk_or_a_reason() -> None:
    told = set(ARCHITECTURES) | set(REFUSED)
    types: dict[str, set[str]] = {}
    for kind, config in CONFIG_MAPPING_NAMES.items():
        made = getattr(transformers, config, None)
        if made is not None:
            types.setdefault(made.__module__.split(".")[2], set()).add(kind)
    folders = recurrent_folders()
    assert {"mamba", "qwen3_next", "zamba2", "rwkv", "lfm2"} <= folders
    missing = {folder for folder in folders if not types.get(folder, set()) & told}
    assert missing == set()
