"""Weights that change in a running model, by all the ways in which they are written."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from spliced_connector.serving.parameters import Parameters

pytestmark = pytest.mark.engine

WIDE = 700_000  # bfloat16 values: more than one block, and a part of one


class Layer(nn.Module):  # type: ignore[misc]
    """Parameters of several sizes, and a buffer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(7))
        self.wide = nn.Parameter(torch.arange(WIDE).bfloat16())
        self.none = nn.Parameter(torch.empty(0))
        self.register_parameter("bias", None)
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("cache", torch.ones(3), persistent=False)

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        for name, value in weights.items():
            getattr(self, name).data.copy_(value)


class Model(nn.Module):  # type: ignore[misc]
    """Two layers, and one parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.tied = self.layers[0].norm

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.layers[1].load_weights(weights)


def raw(parameter: torch.Tensor, at: int, value: float) -> int:
    """As another process writes: neither version nor address change."""
    flat = torch.empty(0, dtype=parameter.dtype).set_(parameter.untyped_storage())
    flat[at] = value
    return at


def last(model: Model) -> Layer:
    layer = model.layers[1]
    assert isinstance(layer, Layer)
    return layer


WRITES: dict[str, Callable[[Model], object]] = {
    "copy_": lambda m: last(m).norm.detach().copy_(torch.zeros(7)),
    "a new tensor as data": lambda m: setattr(last(m).norm, "data", torch.ones(7)),
    "a new parameter": lambda m: setattr(last(m), "norm", nn.Parameter(torch.ones(7))),
    "a parameter taken away": lambda m: setattr(last(m), "norm", None),
}


@pytest.mark.parametrize("way", WRITES)
def test_writes_that_leave_a_trace_are_noticed_at_once(way: str) -> None:
    model = Model()
    watched = Parameters(model)
    assert watched.changed() == ""
    with torch.no_grad():
        WRITES[way](model)
    why = watched.changed()
    assert "layers.1.norm" in why
    assert watched.changed() == why


BYTES: dict[str, Callable[[Model], object]] = {
    "data.copy_, as loaders do": lambda m: last(m).norm.data.copy_(torch.zeros(7)),
    "one value of a wide one": lambda m: raw(last(m).wide, 5, 77.0),
    "the last value of a wide one": lambda m: raw(last(m).wide, WIDE - 1, 77.0),
    "two values that change places": lambda m: (
        raw(last(m).wide, 0, 4.0), raw(last(m).wide, 4, 0.0),
    ),
    "two rows that change places": lambda m: last(m).wide.data[: 2 * 512].copy_(
        torch.cat([torch.arange(512, 1024), torch.arange(512)]).bfloat16()
    ),
    "a buffer": lambda m: last(m).scale.fill_(2),
}  # fmt: skip


@pytest.mark.parametrize("way", BYTES)
def test_bytes_that_change_are_noticed_in_doubt(way: str) -> None:
    model = Model()
    watched = Parameters(model)
    watched.doubt()
    assert watched.changed() == "", "in doubt the same bytes are the same weights"
    BYTES[way](model)
    watched.doubt()
    assert "layers.1." in watched.changed()


@pytest.mark.parametrize("way", BYTES)
def test_bytes_that_change_are_noticed_in_turn(way: str) -> None:
    model = Model()
    watched = Parameters(model)
    assert [watched.changed() for _ in range(20)] == [""] * 20
    BYTES[way](model)
    assert any("layers.1." in watched.changed() for _ in range(8))


def test_loading_is_doubt() -> None:
    model = Model()
    watched = Parameters(model)
    model.load_weights({"norm": torch.ones(7)})
    assert watched.changed() == "", "the same weights were loaded"
    model.load_weights({"norm": torch.zeros(7)})
    assert "layers.1.norm" in watched.changed()


def test_a_copy_of_a_watched_model_loads_into_itself() -> None:
    model = Model()
    watch = Parameters(model)
    copied = copy.deepcopy(model)
    copied.load_weights({"norm": torch.zeros(7)})
    watch.doubt()
    assert not watch.changed()
    assert not last(copied).norm.any()


class Watched(Layer):
    """Compared while it loads, as by another thread."""

    watch: Parameters

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        assert not self.watch.changed(), "nothing is written yet"
        super().load_weights(weights)


def test_loading_that_is_compared_meanwhile_stays_in_doubt() -> None:
    layer = Watched()
    layer.watch = Parameters(layer)
    layer.load_weights({"norm": torch.zeros(7)})
    assert "norm" in layer.watch.changed()


def test_loading_that_fails_half_way_is_doubt() -> None:
    model = Model()
    watched = Parameters(model)
    with pytest.raises(AttributeError):
        last(model).load_weights({"norm": torch.zeros(7), "missing": torch.zeros(1)})
    assert "layers.1.norm" in watched.changed()


def test_several_models_and_several_watches() -> None:
    model, drafter = Model(), Model()
    first, second = Parameters(model), Parameters(model, drafter)
    drafter.load_weights({"norm": torch.zeros(7)})
    assert first.changed() == ""
    assert "layers.1.norm" in second.changed()
    del second
    gc.collect()
    third = Parameters(model)
    model.load_weights({"norm": torch.zeros(7)})
    assert first.changed() == third.changed() != ""


def test_buffers_that_may_change_are_ignored() -> None:
    model = Model()
    watched = Parameters(model)
    last(model).cache.fill_(2)
    model.register_buffer("later", torch.ones(3))
    watched.doubt()
    assert watched.changed() == ""


def test_parameters_made_for_inference_have_no_version() -> None:
    with torch.inference_mode():
        model = Model()
        watched = Parameters(model)
        assert watched.changed() == ""
        last(model).norm.copy_(torch.zeros(7))
        watched.doubt()
        assert "layers.1.norm" in watched.changed()


def test_a_replaced_parameter_is_freed() -> None:
    model = Model()
    watched = Parameters(model)
    old = weakref.ref(last(model).wide)
    last(model).wide = nn.Parameter(torch.zeros(8))
    gc.collect()
    assert old() is None
    assert watched.changed()


def test_what_cannot_be_read_cannot_be_watched() -> None:
    with pytest.raises(ValueError, match=r"parameter 0\.weight cannot be watched"):
        Parameters(nn.Sequential(nn.Linear(3, 3, device="meta")))


def test_what_cannot_be_read_any_more_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    watched = Parameters(model)

    def fail(_tensor: torch.Tensor) -> int:
        raise RuntimeError("released")

    monkeypatch.setattr(torch.Tensor, "data_ptr", fail)
    assert "released" in watched.changed()


@pytest.mark.parametrize("at", [0, 3, 4097, WIDE - 1])
def test_the_sign_of_any_number_counts(at: int) -> None:
    """Of every fourth one it is the highest bit of a word."""
    model = Model()
    wide = last(model).wide
    with torch.no_grad():
        wide[at] += 1  # no number is zero
    watched = Parameters(model)
    assert not watched.changed()
    raw(wide, at, -wide[at].item())
    watched.doubt()
    assert "wide" in watched.changed()
