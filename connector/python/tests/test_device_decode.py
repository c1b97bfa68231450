"""An engine decodes with the daemon's kernels: rows beside a state, and attention in place."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence

import pytest

from client_samples import Connect
from gpu_samples import Memory, attached, memory_of, stream_of
from running import StartDaemon
from spliced_connector.client import DeviceMemory
from spliced_connector.gpu import (
    AttendJob,
    AttendRows,
    AttendRun,
    BufferJob,
    BufferRows,
    Launch,
    attend_launches,
    attend_scratch,
    buffer_launches,
    turn_by,
)
from spliced_connector.model import DType

DK, DV, CAPACITY = 6, 8, 4
Row = list[float]


class Tape:
    """Memory of the engine that is given out in pieces."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._used = memory, 0

    def put(self, values: Sequence[float]) -> int:
        """Numbers behind those before; where they lie."""
        at = self._used
        self.set(at, values)
        self._used += -(-4 * len(values) // 16) * 16
        return self._memory.address + at

    def set(self, offset: int, values: Sequence[float]) -> None:
        """Numbers at an offset."""
        self._memory.write(struct.pack(f"<{len(values)}f", *values), offset)

    def offset(self, address: int) -> int:
        """Of something that was put."""
        return address - self._memory.address

    def get(self, address: int, n: int) -> Row:
        """Numbers, once all that is queued has run."""
        return list(struct.unpack_from(f"<{n}f", self._memory.read(), self.offset(address)))


def launch(device: DeviceMemory, launches: Sequence[Launch]) -> None:
    """Run them and wait."""
    with stream_of(device) as stream:
        device.kernels.launch(stream, launches)


def decode(state: list[Row], q: Row, k: Row, v: Row, g: float, beta: float) -> Row:
    """One step of the gated delta rule (KVBuffer Eq. 11 and 12); the state moves."""
    for row in state:
        row[:] = [g * x for x in row]
    taken = [sum(k[i] * state[i][j] for i in range(DK)) for j in range(DV)]
    for i in range(DK):
        for j in range(DV):
            state[i][j] += k[i] * beta * (v[j] - taken[j])
    return [sum(q[i] * state[i][j] for i in range(DK)) for j in range(DV)]


def test_tokens_are_decoded_beside_a_state_that_is_written_when_the_buffer_is_full(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    device = attached(connect_gpu(start_gpu_daemon().socket))
    draw = random.Random(17)

    def some(n: int) -> Row:
        return [draw.gauss(0, 0.5) for _ in range(n)]

    state = [some(DV) for _ in range(DK)]
    with memory_of(device, 1 << 12) as memory:
        tape = Tape(memory)
        origin = tape.put([x for row in state for x in row])
        k, u, g = (tape.put([0.0] * CAPACITY * n) for n in (DK, DV, 1))
        places = [tape.put([0.0] * n) for n in (DK, DK, DV, 1, 1, DV)]
        q, new_k, v, new_g, beta, outputs = places
        new = BufferRows(1, DType.F32, q, new_k, v, new_g, beta, 0, outputs)
        pending = 0
        for _ in range(3 * CAPACITY - 1):
            row = some(DK), some(DK), some(DV)
            decay, strength = draw.uniform(0.8, 1), draw.random()
            for place, values in zip(places, (*row, [decay], [strength]), strict=False):
                tape.set(tape.offset(place), values)
            full = pending + 1 == CAPACITY
            job = BufferJob(
                1, 1, DK, DV, DType.F32, False, True, CAPACITY, pending, k, u, g,
                origin, origin if full else 0, new,
            )  # fmt: skip
            want = decode(state, *row, decay, strength)
            launch(device, buffer_launches([job]))
            assert tape.get(new.outputs, DV) == pytest.approx(want, abs=1e-5)
            pending = 0 if full else pending + 1
            if full:
                moved = [x for row in state for x in row]
                assert tape.get(origin, DK * DV) == pytest.approx(moved, abs=1e-5)
        assert pending == CAPACITY - 1


def turned(vector: Row, position: int, freq: tuple[float, ...]) -> Row:
    """Halves of its leading dimensions, turned to a position."""
    out, half = list(vector), len(freq)
    for i, f in enumerate(freq):
        cos, sin = math.cos(position * f), math.sin(position * f)
        x, y = vector[i], vector[i + half]
        out[i], out[i + half] = x * cos - y * sin, y * cos + x * sin
    return out


def test_one_copy_of_keys_serves_requests_that_have_it_at_different_places(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    device = attached(connect_gpu(start_gpu_daemon().socket))
    draw = random.Random(23)
    dim, rows, block, freq = 8, 21, 4, (1.0, 0.1)
    keys, values = ([[draw.gauss(0, 1) for _ in range(dim)] for _ in range(rows)] for _ in "kv")
    query = [draw.gauss(0, 1) for _ in range(dim)]
    table = (4, 0, 5, 2, 1, 3)

    def paged(of: list[Row]) -> Row:
        flat = [0.0] * len(table) * block * dim
        for i, row in enumerate(of):
            at = (table[i // block] * block + i % block) * dim
            flat[at : at + dim] = row
        return flat

    with memory_of(device, 1 << 14) as memory:
        tape = Tape(memory)
        lie = AttendRows(0, 4 * block * dim, 4 * dim, 4 * dim)
        at_zero = [turned(key, i, freq) for i, key in enumerate(keys)]
        k, v = (
            AttendRows(tape.put(paged(of)), lie.block_stride, lie.row_stride, lie.head_stride)
            for of in (at_zero, values)
        )
        starts, jobs = (0, 9, 1500), []
        for start in starts:
            turn = turn_by(start, 2 * len(freq), False, freq)
            run = AttendRun(rows, start, k, v, table, block, 0, turn)
            q, out = tape.put(turned(query, start + rows, freq)), tape.put([0.0] * dim)
            job = AttendJob(
                1, 1, 1, dim, dim, start + rows, DType.F32, DType.F32, dim**-0.5, q, out, [run]
            )
            jobs.append(job)
        scratch = tape.put([0.0] * (attend_scratch(jobs) // 4))
        launch(device, attend_launches(jobs, scratch))
        for job in jobs:
            # Only distances count: what one place gives is what every place gives.
            own = turned(query, rows, freq)
            weights = [
                math.exp(sum(x * y for x, y in zip(own, key, strict=True)) * dim**-0.5)
                for key in at_zero
            ]
            want = [
                sum(w * value[j] for w, value in zip(weights, values, strict=True)) / sum(weights)
                for j in range(dim)
            ]
            assert tape.get(job.out, dim) == pytest.approx(want, abs=1e-4)
