"""What of an engine's memory is copied when, and that a walk needs no other device than its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from engine import hybrids
from engine.walk_models import TINY
from spliced_connector.client import NewCheckpoint
from spliced_connector.errors import Code
from spliced_connector.model import Choice, DType, Profile, Role, SegmentSpec, divide, make_plan
from spliced_connector.serving.storing import Saver, Taken
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.caches import RowPages
from spliced_connector.vllm.layout.rows import FoundRows
from spliced_connector.vllm.layout.states import StateOrder, StatePages
from spliced_connector.walk import (
    Captured,
    Context,
    Copies,
    Naming,
    SegmentLayer,
    architecture,
    capture,
    moved,
    splice,
)

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")
JUNK = 77.0


class Late:
    """A stream that does nothing until somebody waits for it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []
        self.said: list[str] = []

    def host(self, like: Tensor) -> Tensor:
        return torch.full_like(like, JUNK, device=CPU)

    def device(self, like: Tensor) -> Tensor:
        return torch.full_like(like, JUNK)

    def follow(self) -> None:
        self.said.append("follow")

    def copy(self, to: Tensor, source: Tensor) -> None:
        self.said.append("copy")
        self.work.append(lambda: to.copy_(source))

    def moment(self) -> Late:
        return self

    def synchronize(self) -> None:
        self.said.append("wait")
        for work in self.work:
            work()
        self.work.clear()

    def precede(self, made: Sequence[Tensor]) -> None:
        self.said.append("precede")
        self.synchronize()


def test_what_leaves_is_read_only_when_it_has_arrived() -> None:
    stream = Late()
    leaving = Copies(CPU, stream).to_host([torch.ones(3), torch.full((2,), 2.0)])
    assert stream.said == ["follow", "copy", "copy"]
    assert [x.tolist() for x in leaving.arrived()] == [[1.0] * 3, [2.0] * 2]
    assert [x.tolist() for x in leaving.arrived()] == [[1.0] * 3, [2.0] * 2]
    assert stream.said.count("wait") == 1


def test_what_comes_is_there_before_the_engine_uses_it_and_read_before_it_is_given_back() -> None:
    stream, memory = Late(), torch.ones(3)
    copies = Copies(CPU, stream)
    (made,) = copies.to_device([memory])
    assert stream.said == ["copy", "precede", "wait"]
    memory.fill_(JUNK)
    assert made.tolist() == [1.0] * 3


def test_on_a_cpu_nothing_is_copied() -> None:
    given = torch.ones(3)
    copies = Copies(CPU)
    assert copies.to_device([given])[0] is given
    assert copies.to_host([given]).arrived()[0] is given


def test_checkpoints_are_waited_for_by_the_thread_that_stores_them() -> None:
    stored: list[NewCheckpoint] = []
    waited: list[str] = []

    class Waited(Late):
        def synchronize(self) -> None:
            waited.append(threading.current_thread().name)
            super().synchronize()

    def save(new: Sequence[NewCheckpoint]) -> list[Code]:
        stored.extend(new)
        return [Code.OK]

    saver = Saver(cast(Any, SimpleNamespace(save=save)), EngineTally(), 64)
    leaving = Copies(CPU, Waited()).to_host([torch.arange(4, dtype=torch.float32)])
    assert waited == []
    saver.put(Taken(b"h" * 32, 4, bytes(32), 0, leaving))
    assert saver.drain(10)
    saver.close()
    assert waited == ["spliced-saver"]
    part = stored[0].parts[0]
    assert isinstance(part, memoryview)
    assert part.cast("f").tolist() == [0, 1, 2, 3]


# Tensors of the device "meta" have no values: an operation that needs one on the host, or memory of
# another device, raises. So a walk over them shows what a GPU would be waited for.

META = torch.device("meta")
MODELS: dict[str, Callable[[], Any]] = {
    "qwen3_5": hybrids.qwen35,
    **{
        name: TINY[name].build
        for name in ("llama", "bamba", "falcon", "zamba2", "zamba", "mamba", "mamba2", "olmo")
    },
}


def tensors(*layers: Any) -> list[Tensor]:
    names = ("transition", "state", "conv", "k", "v")
    found = [getattr(layer, name, None) for layer in layers for name in names]
    return [x for x in found if isinstance(x, Tensor)]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_walk_needs_no_other_device_and_no_value(name: str) -> None:
    model, naming = MODELS[name](), Naming(b"\1" * 32, transition=DType.F32)
    profile = Profile(architecture(model, naming).identity)
    prompt = divide(profile, b"", [t % 90 for t in range(130)], [0, 40, 80, 120], 4)
    plan = make_plan(prompt, 0, [Choice.HIT if p.spec else Choice.CONTEXT for p in prompt.pieces])
    arch = architecture(model.to(META), naming)
    with torch.inference_mode():
        ids = torch.zeros(130, dtype=torch.int64, device=META)
        segments = {
            piece.index: capture(arch, ids[piece.start : piece.end], piece.spec)
            for piece in prompt.pieces
            if piece.spec is not None
        }
        context = Context(arch, 130, META)
        hidden = splice(arch, ids, plan.spans, segments, context)
    assert hidden is not None
    assert context.tokens == plan.spans[-1].end
    made = tensors(*context.layers, *(at for s in segments.values() for at in s.layers))
    assert {x.device.type for x in (hidden, *made)} == {"meta"}


def test_pages_are_read_and_written_where_they_are() -> None:
    written: list[Tensor] = []

    class Impl:
        def do_kv_cache_update(self, _module: object, *given: Tensor) -> None:
            written.extend(given)

    block, heads, dim = 4, 1, 8
    places = torch.arange(2 * block * heads * dim).view(2, block, heads, dim)
    cache = torch.zeros(6, heads, block, 2 * dim, device=META)
    rows = RowPages(SimpleNamespace(impl=Impl()), FoundRows(cache, 0, *places), block)
    k, v = rows.read((3, 1), 2, 7)
    assert (k.shape, v.shape) == ((5, heads, dim), (5, heads, dim))
    rows.write((3, 1), 2, k, v)
    states = StatePages(
        torch.zeros(3, 3, 16, device=META),
        torch.zeros(3, 2, 8, 4, device=META),
        StateOrder(key_major=True, conv_dim_first=False),
    )
    state, tail = states.read(1)
    states.write(2, state, tail)
    assert {x.device.type for x in (k, v, state, tail, *written)} == {"meta"}


def test_segments_come_to_the_device_of_the_engine() -> None:
    stream = Late()
    given = Captured(
        SegmentSpec(Role.FIRST, 0, 0, 2),
        (SegmentLayer(transition=torch.ones(1), state=torch.ones(1, 2, 2)), SegmentLayer()),
    )
    found = moved(given, Copies(CPU, stream))
    assert stream.said.count("copy") == 2
    assert found.spec == given.spec
    assert [x.tolist() for x in tensors(*found.layers)] == [
        x.tolist() for x in tensors(*given.layers)
    ]
    assert found.layers[1] == SegmentLayer()
