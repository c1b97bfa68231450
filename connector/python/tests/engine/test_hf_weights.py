"""Weights that change in a running model: nothing of the old ones is served for the new ones, and
nothing of the new ones is stored under the old name."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, engine, far, own, tokens
from engine.hybrids import qwen35
from running import Daemon
from spliced_connector.hf.adapter import Mode

pytestmark = pytest.mark.engine

IDS = tokens(200)


def last_norm(model: PreTrainedModel) -> nn.Parameter:
    weight: nn.Parameter = model.model.layers[-1].post_attention_layernorm.weight
    return weight


def optimizer_step(model: PreTrainedModel) -> None:
    weight = last_norm(model)
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.5).step()


def averaged(model: PreTrainedModel) -> None:
    last_norm(model).data.copy_(last_norm(model).data + 0.5)


def merged(model: PreTrainedModel) -> None:
    """An adapter of rank 1, as PEFT does it."""
    weight = model.model.layers[1].mlp.up_proj.weight
    weight.data += torch.outer(torch.ones(weight.shape[0]), torch.full((weight.shape[1],), 0.1))


def one_element(model: PreTrainedModel) -> None:
    model.model.layers[1].mlp.up_proj.weight.data[-1, -1] += 5.0


def another_tensor(model: PreTrainedModel) -> None:
    last_norm(model).data = last_norm(model).data + 0.5


def other_parameter(model: PreTrainedModel) -> None:
    layer = model.model.layers[-1].post_attention_layernorm
    layer.weight = nn.Parameter(layer.weight.data + 0.5)


def loaded(model: PreTrainedModel) -> None:
    model.load_state_dict(qwen35(seed=3).state_dict())


def assigned(model: PreTrainedModel) -> None:
    model.load_state_dict(qwen35(seed=3).state_dict(), assign=True)


def other_type(model: PreTrainedModel) -> None:
    model.to(torch.bfloat16).to(torch.float32)


def other_module(model: PreTrainedModel) -> None:
    model.lm_head = copy.deepcopy(model.lm_head)
    with torch.no_grad():
        model.lm_head.weight.add_(0.1)


def with_a_bias(model: PreTrainedModel) -> None:
    projection = model.model.layers[1].mlp.up_proj
    projection.bias = nn.Parameter(torch.full((projection.out_features,), 0.5))


def other_layer(model: PreTrainedModel) -> None:
    model.model.layers[0] = qwen35(seed=3).model.layers[0]


CHANGES: list[Callable[[PreTrainedModel], None]] = [
    optimizer_step, averaged, merged, one_element, another_tensor, other_parameter, loaded,
    assigned, other_type, other_module, with_a_bias, other_layer,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_weights_share_nothing(
    change: Callable[[PreTrainedModel], None], connect: Connect, daemon: Daemon
) -> None:
    model = qwen35()
    e = engine(model, connect, daemon)
    e.prefill(IDS, CUTS, "splice")
    e.prefill(IDS, (), "prefix")
    held = e.prefill(IDS, (), "prefix").reused
    assert held >= 160
    before = len(daemon.checkpoints())

    change(model)
    ways: list[tuple[list[int], Mode]] = [([], "prefix"), (CUTS, "splice")]
    for cuts, mode in ways:
        done = e.prefill(IDS, cuts, mode)
        assert done.reused == 0
        assert far(done.logits, own(model, IDS)) <= 1e-5
        assert done.trouble.startswith("inert: ")
        e.generate(IDS, cuts, mode, max_new_tokens=4, do_sample=False)
    assert "load the model again" in e.inert
    assert len(daemon.checkpoints()) == before
    with e.worker() as worker:
        assert worker.step() == 0

    other = qwen35()  # what the name stands for
    again = engine(other, connect, daemon).prefill(IDS, (), "prefix")
    assert again.reused == held
    assert far(again.logits, own(other, IDS)) <= 1e-4


def test_a_change_between_computing_and_storing_is_noticed(
    connect: Connect, daemon: Daemon
) -> None:
    model = qwen35()
    e = engine(model, connect, daemon)
    done = e.prefill(IDS, (), "prefix", keep=False)
    averaged(model)
    assert e.store(done) == []
    assert "weight" in e.inert


def test_a_change_amid_an_answer_is_noticed(connect: Connect, daemon: Daemon) -> None:
    model = qwen35()
    e = engine(model, connect, daemon)

    class Training:
        def put(self, _: object) -> None:
            averaged(model)

        def end(self) -> None: ...

    e.generate(IDS, (), "prefix", max_new_tokens=4, do_sample=False, streamer=Training())
    assert "weight" in e.inert
    assert daemon.checkpoints() == []


def test_what_leaves_weights_alone_is_no_change(connect: Connect, daemon: Daemon) -> None:
    model = qwen35()
    e = engine(model, connect, daemon)
    e.prefill(IDS, (), "prefix")
    model.requires_grad_(False)
    model.train().eval()
    model.set_attn_implementation("eager")
    model.generate(torch.tensor([IDS]), max_new_tokens=2, do_sample=False)
    assert e.prefill(IDS, (), "prefix").reused >= 160
    assert e.inert == ""
