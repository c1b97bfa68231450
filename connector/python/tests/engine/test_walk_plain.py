"""Models whose values have more in them than weights and config are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from engine.hybrids import qwen35
from engine.walk_models import TINY
from spliced_connector.walk import Naming, UnsupportedError, altered, architecture

pytestmark = pytest.mark.engine

NAMING = Naming(b"\x03" * 32)


class LowRank(nn.Module):  # type: ignore[misc]
    """An adapter around a projection, whose weight it answers with as if it were its own."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Scaled(nn.Module):  # type: ignore[misc]
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


class Packed(nn.Parameter):  # type: ignore[misc]
    """As quantisers keep weights: a tensor that says it is of floating point."""


def _adapter(model: nn.Module) -> None:
    at = model.model.layers[3].self_attn
    at.v_proj = LowRank(at.v_proj)


def _sequence(model: nn.Module) -> None:
    at = model.model.layers[3].mlp
    at.up_proj = nn.Sequential(at.up_proj, nn.Linear(48, 48))


def _hook(model: nn.Module) -> None:
    model.model.layers[0].register_forward_hook(lambda module, given, out: out)


def _pre_hook(model: nn.Module) -> None:
    model.model.layers[0].mlp.register_forward_pre_hook(lambda module, given: None)


def _forward(model: nn.Module) -> None:
    model.lm_head.forward = model.lm_head.forward


def _parametrized(model: nn.Module) -> None:
    parametrize.register_parametrization(model.model.layers[0].mlp.up_proj, "weight", Scaled())


def _integers(model: nn.Module) -> None:
    at = model.model.layers[0].mlp.up_proj
    at.weight = nn.Parameter(at.weight.to(torch.int8), requires_grad=False)


def _packed(model: nn.Module) -> None:
    at = model.model.layers[0].mlp.up_proj
    at.weight = Packed(at.weight.detach())


def _named(**values: object) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for name, value in values.items():
            setattr(model, name, value)

    return change


def _stored_quantised(model: nn.Module) -> None:
    model.config.quantization_config = {"quant_method": "fp8"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_adapter, r"layers\.3\.self_attn\.v_proj is a .*LowRank"),
        (_sequence, r"layers\.3\.mlp\.up_proj is a Sequential"),
        (_hook, r"layers\.0 has forward hooks"),
        (_pre_hook, r"layers\.0\.mlp has forward hooks"),
        (_forward, "lm_head has another forward"),
        (_parametrized, r"layers\.0\.mlp\.up_proj is a .*ParametrizedLinear"),
        (_integers, "keeps weight in torch.int8"),
        (_packed, "keeps weight as a Packed"),
        (_named(_hf_peft_config_loaded=True), "adapters"),
        (_named(peft_config={"default": SimpleNamespace()}), "adapters"),
        (_named(hf_quantizer=SimpleNamespace()), "hf_quantizer"),
        (_stored_quantised, "quantization_config"),
    ],
)
def test_what_changes_values_is_refused(change: Callable[[nn.Module], None], text: str) -> None:
    model = qwen35()
    architecture(model, NAMING)
    change(model)
    with pytest.raises(UnsupportedError, match=text):
        architecture(model, NAMING)


@pytest.mark.parametrize("name", sorted(TINY))
def test_models_as_their_classes_make_them_are_plain(name: str) -> None:
    assert altered(TINY[name].build()) == ""


def test_looking_at_outputs_changes_nothing() -> None:
    model = qwen35()
    with torch.no_grad():
        model(torch.arange(4)[None], output_hidden_states=True)
    assert altered(model) == ""
