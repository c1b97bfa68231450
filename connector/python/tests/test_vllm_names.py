"""Which layer of a profile an engine's cache is of, by the names that vLLM gives."""

from __future__ import annotations

import pytest

from spliced_connector.errors import ProfileError
from spliced_connector.vllm.layout.names import place

ZAMBA2 = {
    "model_type": "zamba2",
    "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"],
    "num_mem_blocks": 2,
}


def test_names_count_decoder_layers() -> None:
    config = {"model_type": "qwen3_next"}
    assert place("model.layers.3.linear_attn", True, config) == 3
    assert place("language_model.model.layers.7.self_attn.attn", False, config) == 7


def test_falcon_h1_has_two_layers_in_each() -> None:
    config = {"model_type": "falcon_h1", "num_hidden_layers": 3}
    states = [place(f"model.{n}.mixer", True, config) for n in (3, 4, 5)]
    rows = [place(f"model.layers.{n}.attn", False, config) for n in range(3)]
    assert (states, rows) == ([0, 2, 4], [1, 3, 5])


def test_zamba2_counts_attention_by_shared_block() -> None:
    """Layers of the profile: 0 linear, 1 and 2 a pair, 3 linear, 4 and 5 a pair, 6 and 7 a pair.
    The first block of weights serves the first and the third pair."""
    states = [place(f"{n}.mixer", True, ZAMBA2) for n in range(3, 8)]
    rows = [place(f"model.attn.{n}", False, ZAMBA2) for n in range(3)]
    assert (states, rows) == ([0, 2, 3, 5, 7], [1, 6, 4])


@pytest.mark.parametrize(
    ("name", "config", "why"),
    [
        ("model.attn", {}, "cannot determine its number"),
        ("model.layers.1.blocks.2.attn", {}, "cannot determine its number"),
        ("model.0.mixer", {"model_type": "falcon_h1"}, "num_hidden_layers"),
        ("model.attn.0", {"model_type": "zamba2"}, "num_mem_blocks"),
        ("model.attn.3", ZAMBA2, "belongs to no layer"),
    ],
)
def test_what_cannot_be_told_is_refused(name: str, config: dict[str, object], why: str) -> None:
    with pytest.raises(ProfileError, match=why):
        place(name, states="mixer" in name, config=config)
