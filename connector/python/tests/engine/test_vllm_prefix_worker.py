"""Mode prefix in a worker, without an engine: which blocks are touched, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from spliced_connector.client import Accept
from spliced_connector.model import (
    Attention,
    Conv,
    DType,
    Family,
    Identity,
    Kind,
    Layer,
    Linear,
    Profile,
)
from spliced_connector.serving.storing import Taken
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm import prefix as vllm_prefix
from spliced_connector.vllm.caches import Caches
from spliced_connector.vllm.plans import Blocks, LoadPlan, Outcome, PrefixPlan, SavePlan
from spliced_connector.vllm.prefix import PrefixWorker
from spliced_connector.vllm.settings import Settings
from spliced_connector.walk import part_bytes

pytestmark = pytest.mark.engine

BLOCK, TOKENS = 4, 8
LINEAR = Linear(Family.GDN, 1, 1, 4, 4, DType.F32, DType.F32, Conv(4, (4, 4, 4), DType.F32))
PROFILE = Profile(
    Identity(
        "m",
        b"w" * 32,
        (
            Layer(Kind.LINEAR, linear=LINEAR),
            Layer(Kind.FULL, attention=Attention(1, 4, 4, DType.F32)),
        ),
    )
)
GOOD: Blocks = ((0, 5), (2, 3))  # states: of the last token only


class States:
    parts = ("S", "conv")

    def __init__(self) -> None:
        self.written: list[int] = []

    def read(self, block: int) -> tuple[Tensor, Tensor]:
        return torch.full((1, 4, 4), float(block)), torch.zeros(3, 12)

    def write(self, block: int, state: Tensor, conv: Tensor) -> None:
        self.written.append(block)


class Rows:
    def __init__(self) -> None:
        self.written: list[tuple[int, ...]] = []

    def read(self, table: tuple[int, ...], begin: int, end: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(end - begin, 1, 4), torch.zeros(end - begin, 1, 4)

    def write(self, table: tuple[int, ...], begin: int, k: Tensor, v: Tensor) -> None:
        self.written.append(table)


class Checkpoint:
    tokens, kind, nodes = TOKENS, Accept.EXACT, ((0, TOKENS),)

    def __init__(self) -> None:
        self.layouts = (PROFILE.checkpoint_layout(TOKENS),)
        zeros = [torch.zeros(1, 4, 4), torch.zeros(3, 12)] + 2 * [torch.zeros(TOKENS, 1, 4)]
        self._parts = part_bytes(self.layouts[0], zeros)

    def part(self, node: int, i: int) -> memoryview:
        return self._parts[i]

    def release(self) -> bool:
        return True


@dataclass
class Model:
    """The client's: has a checkpoint, which takes `seconds` of the test's clock."""

    clock: Clock
    seconds: float = 0.0
    profile: Profile = PROFILE
    waits: list[float] = field(default_factory=list)

    def load(self, hash: bytes, wait: float) -> Checkpoint:
        self.waits.append(wait)
        self.clock.now += self.seconds
        return Checkpoint()


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


class Setup:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.model = Model(Clock(), seconds)
        monkeypatch.setattr(vllm_prefix, "time", self.model.clock)
        group = SimpleNamespace(block_tokens=BLOCK)
        self.tally = EngineTally()
        session: Any = SimpleNamespace(
            settings=Settings(weights="ab" * 32, load_ms=1000.0),
            engine=SimpleNamespace(groups=(group, group), identity=PROFILE.identity),
            model=self.model,
            tally=self.tally,
        )
        self.states, self.rows = States(), Rows()
        rows, states = cast(Any, {1: self.rows}), cast(Any, {0: self.states})
        caches = Caches(rows, states, {0: 0, 1: 1}, (BLOCK, BLOCK))
        self.worker = PrefixWorker(session, caches)
        self.taken: list[Taken] = []
        monkeypatch.setattr(self.worker._saver, "put", self.taken.append)

    def load(self, *blocks: Blocks) -> Outcome:
        loads = [LoadPlan(f"r{i}", b"h" * 32, TOKENS, 0, b) for i, b in enumerate(blocks)]
        return self.worker.load(PrefixPlan(loads=tuple(loads)))

    def save(self, blocks: Blocks, tokens: int = TOKENS) -> None:
        save = SavePlan("r", b"h" * 32, tokens, bytes(32), 0, blocks)
        self.worker.save(PrefixPlan(saves=(save,)))


def test_blocks_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch)
    assert setup.load(GOOD) == Outcome(frozenset({"r0"}), frozenset())
    assert (setup.states.written, setup.rows.written) == ([5], [(2, 3)])
    setup.save(GOOD)
    assert [taken.tokens for taken in setup.taken] == [TOKENS]
    assert setup.tally.snapshot().get("save_failures") is None


@pytest.mark.parametrize(
    "blocks",
    [
        ((0, 0), (2, 3)),  # the state's is the null block
        ((5,), (2, 3)),
        ((), (2, 3)),
        ((0, 5), (0, 3)),
        ((0, 5), (2, 0)),
        ((0, 5), (2,)),
    ],
)
def test_blocks_that_are_not_there(monkeypatch: pytest.MonkeyPatch, blocks: Blocks) -> None:
    setup = Setup(monkeypatch)
    setup.save(blocks)
    assert setup.taken == []
    assert setup.tally.snapshot()["save_failures"] == 1
    assert setup.load(blocks, GOOD) == Outcome(frozenset({"r0", "r1"}), frozenset({"r0"}))
    assert setup.states.written == [5]  # of the second request


def test_a_state_behind_a_part_of_a_block_is_in_that_block(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch)
    setup.save(((5, 6), (2, 3)), tokens=BLOCK - 1)
    setup.save(((5, 6), (2, 3)), tokens=BLOCK + 1)
    states = [taken.parts.arrived()[0] for taken in setup.taken]
    assert [float(state.flatten()[0]) for state in states] == [5.0, 6.0]


def test_all_loads_of_a_step_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, seconds=0.4)
    outcome = setup.load(GOOD, GOOD, GOOD, GOOD, GOOD)
    assert setup.model.waits == pytest.approx([1.0, 0.6, 0.2])
    assert outcome.failed == {"r3", "r4"}
    assert outcome.done == {f"r{i}" for i in range(5)}
    assert setup.load(GOOD).failed == frozenset()  # the next step has its own
