"""The engine's own kernels for CPUs, used between the projections of a walk.

The cores of mixers read metadata that exists only in the engine's forward pass. The operators that
they call take plain tensors, so walks can call them too: the causal convolution, the chunked gated
delta rule and paged attention, in bfloat16 with states in float32. They round as the engine does.
The state after a segment can be computed row by row with these operators, or at once from the
segment's (T, S). Both results are equally far from the exact state (4e-3 of its norm, measured for
random rows).

A walk may run after the engine has planned a step and before the step's attention. That is safe:
the engine's attention has one scratch memory per process, which every call looks up, which only
grows, and which keeps no data between calls (read in csrc/cpu of releases near 0.32).

`cpu_kernels` compares every operator with torch, on the shapes of the model, and returns None if
one is missing or gives other results. Processors without x86's bfloat16 instructions use torch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from spliced_connector.model import Kind
from spliced_connector.walk import (
    Architecture,
    Batch,
    LinearRows,
    Rows,
    Scan,
    Sight,
    attend,
    causal_convolution,
    chunk_length,
    ranges,
)

log = logging.getLogger("spliced")

PAGE = 32
"""Rows of a page of keys and values: the size that the engine's attention reads fastest."""


FAR = 0.02
"""Relative error above which two results count as different. Correct results differ by 0.006."""


@dataclass(frozen=True)
class DeltaSizes:
    """One gated delta layer. taps: the convolution's weights, packed for its operator."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: Tensor
    a_log: Tensor
    dt_bias: Tensor


@dataclass(frozen=True)
class AttentionSizes:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float


class CpuKernels:
    """Implements `walk.base.Kernels`. layers: the sizes of each layer, by its number."""

    def __init__(self, ops: Any, layers: Mapping[int, DeltaSizes | AttentionSizes]) -> None:
        self._ops = ops
        self._layers = layers

    def convolve(self, layer: int, inputs: Tensor, lefts: Tensor, batch: Batch) -> Tensor:
        at = batch.once("sequences", lambda: _Sequences(batch))
        # A single row of a wider tensor counts as contiguous, but has the stride of the wider rows.
        packed = inputs.reshape(-1).view(inputs.shape)
        out: Tensor = self._ops.causal_conv1d_fwd_cpu(
            x=packed.t(),
            weight=self._delta(layer).taps,
            bias=None,
            conv_states=lefts.transpose(1, 2),  # the new tails are written here
            query_start_loc=at.starts,
            cache_indices=at.numbers,
            has_initial_state=at.continued,
            silu_activation=True,
            is_weight_packed=True,
        )
        return out.t()

    def recurrence(self, layer: int, conv_out: Tensor, rows: LinearRows, batch: Batch) -> _Scan:
        d = self._delta(layer)
        _, b, a = rows.rest
        decay, beta = self._ops.fused_gdn_gating_cpu(
            A_log=d.a_log, a=a.contiguous(), b=b.contiguous(), dt_bias=d.dt_bias
        )
        return _Scan(self._ops, d, conv_out, decay, beta, batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        d = self._layers[layer]
        if not isinstance(d, AttentionSizes):
            raise TypeError(f"layer {layer} has no attention")
        pages = batch.once(("pages", d), lambda: _Pages(self._ops, d, q.dtype, batch))
        return pages.attend(q, k, v)

    def _delta(self, layer: int) -> DeltaSizes:
        d = self._layers[layer]
        if not isinstance(d, DeltaSizes):
            raise TypeError(f"layer {layer} is not a linear layer")
        return d


class _Sequences:
    """The sequences of a batch, as the convolution takes them."""

    def __init__(self, batch: Batch) -> None:
        n = len(batch.lengths)
        self.starts = torch.tensor([0, *batch.lengths]).cumsum(0, dtype=torch.int32)
        self.numbers = torch.arange(n, dtype=torch.int32)
        self.continued = torch.ones(n, dtype=torch.bool)


class _Parts:
    """The parts of a batch. Each is a separate call of the recurrence."""

    def __init__(self, batch: Batch) -> None:
        ends = torch.tensor([0, *batch.parts]).cumsum(0).tolist()
        self.rows = [slice(a, b) for a, b in pairwise(ends)]
        self.starts = [torch.tensor([0, n], dtype=torch.int32) for n in batch.parts]
        self.number = torch.zeros(1, dtype=torch.int32)


class _Scan:
    """Implements `walk.base.Recurrence` with the engine's chunked kernel."""

    def __init__(
        self, ops: Any, d: DeltaSizes, conv_out: Tensor, decay: Tensor, beta: Tensor, batch: Batch
    ) -> None:
        self._ops, self._d = ops, d
        self._parts = batch.once("parts", lambda: _Parts(batch))
        keys = d.key_heads * d.key_dim
        q, k, v = conv_out.split([keys, keys, conv_out.shape[1] - 2 * keys], dim=1)
        self._q = q.unflatten(1, (d.key_heads, d.key_dim))[None]
        self._k = k.unflatten(1, (d.key_heads, d.key_dim))[None]
        self._v = v.unflatten(1, (d.value_heads, d.value_dim))[None]
        self._decay, self._beta = decay, beta
        self._outputs: list[Tensor | None] = [None] * len(batch.parts)

    def advance(self, run: int, state: Tensor) -> Tensor:
        self._outputs[run] = self._move(run, self._v[:, self._parts.rows[run]], state)
        return state

    def transition(self, run: int) -> Tensor:
        """Returns the transition T: the state after the run if the state before it is the identity
        matrix and all values are zero."""
        d, rows = self._d, self._parts.rows[run]
        one = torch.eye(d.key_dim).expand(d.value_heads, -1, -1).contiguous()
        nothing = self._v.new_zeros(d.key_dim)
        nothing = nothing.expand(1, rows.stop - rows.start, d.value_heads, -1)
        self._move(run, nothing, one)
        return one

    def outputs(self) -> Tensor:
        done = [x for x in self._outputs if x is not None]
        if len(done) < len(self._outputs):
            raise RuntimeError("outputs of a run that no state was moved over")
        return torch.cat(done) if len(done) > 1 else done[0]

    def _move(self, run: int, values: Tensor, state: Tensor) -> Tensor:
        """Replaces the state by the state after the rows of a run, in place. The given values
        replace the run's values. Returns the outputs."""
        rows = self._parts.rows[run]
        out, _ = self._ops.chunk_gated_delta_rule_cpu(
            query=self._q[:, rows],
            key=self._k[:, rows],
            value=values,
            g=self._decay[:, rows],
            beta=self._beta[:, rows],
            initial_state=state[None],
            output_final_state=True,
            cu_seqlens=self._parts.starts[run],
            head_first=False,
            use_qk_l2norm_in_kernel=True,
            initial_state_indices=self._parts.number,
        )
        first: Tensor = out[0]
        return first


class _Pages:
    """Pages of keys and values, which each layer of a walk fills anew, and a table for each
    sequence with the pages of the keys that its rows attend to.

    The keys of all sequences begin at the same key, or they are contiguous in the order of the
    sequences.
    """

    def __init__(self, ops: Any, d: AttentionSizes, dtype: torch.dtype, batch: Batch) -> None:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        self._ops, self._d = ops, d
        self._isa = _get_attn_isa(dtype, PAGE, d.head_dim)
        ends: dict[int, int] = {}  # end of the keys, by their begin
        for s in batch.sights:
            ends[s.begin] = max(s.end, ends.get(s.begin, 0))
        first: dict[int, int] = {}  # first page of the keys, by their begin
        slots: list[int] = []
        pages = 0
        for begin, end in ends.items():
            first[begin] = pages
            slots.extend(range(pages * PAGE, pages * PAGE + end - begin))
            pages += -(-(end - begin) // PAGE)
        self._slots = torch.tensor(slots)
        # A table may be longer than its sequence; the excess entries are never read.
        tables = [[min(first[s.begin] + i, pages - 1) for i in range(pages)] for s in batch.sights]
        self._tables = torch.tensor(tables, dtype=torch.int32)
        self._starts = torch.tensor([0, *batch.lengths]).cumsum(0, dtype=torch.int32)
        self._seen = torch.tensor([s.end - s.begin for s in batch.sights], dtype=torch.int32)
        # Rows after a sequence in its last page have no effect, provided that they are not NaN.
        cache = torch.zeros((pages, d.kv_heads, 2 * PAGE, d.head_dim), dtype=dtype)
        self._keys, self._values = cache.chunk(2, dim=2)
        self._plan = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(batch.sights),
            num_heads=d.heads,
            num_kv_heads=d.kv_heads,
            head_dim=d.head_dim,
            seq_lens=self._seen,
            dtype=dtype,
            query_start_loc=self._starts,
            causal=True,
            sliding_window_size=-1,
            isa=self._isa,
            enable_kv_split=False,
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = len(self._slots)  # rows after them are never read
        self._ops.cpu_attn_reshape_and_cache(
            k[:n], v[:n], self._keys, self._values, self._slots, self._isa
        )
        out = torch.empty_like(q)
        self._ops.cpu_attention_with_kv_cache(
            query=q,
            key_cache=self._keys,
            value_cache=self._values,
            output=out,
            query_start_loc=self._starts,
            seq_lens=self._seen,
            scale=self._d.scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=self._tables,
            softcap=0.0,
            scheduler_metadata=self._plan,
            s_aux=None,
        )
        return out


def cpu_kernels(
    arch: Architecture, layers: Mapping[int, DeltaSizes | AttentionSizes]
) -> CpuKernels | None:
    """Returns kernels for a model, None if torch must be used.

    arch: the model without kernels, on a CPU. layers: sizes by layer, with unpacked taps.
    """
    if arch.dtype != torch.bfloat16 or not torch.cpu._is_avx512_bf16_supported():
        return None
    try:
        from vllm import _custom_ops as ops

        packed = {i: _packed(ops, d) for i, d in layers.items()}
        kernels = CpuKernels(ops, packed)
        for kind, check in ((Kind.LINEAR, _delta_error), (Kind.FULL, _attention_error)):
            some = [i for i in layers if arch.layers[i] is kind][:1]
            error = max((check(arch, kernels, i, layers[i]) for i in some), default=0.0)
            if not error < FAR:
                raise ValueError(f"layers of kind {kind.name} differ from torch by {error:.3g}")
    except Exception as err:
        # An operator is missing, takes other arguments or refuses these shapes.
        log.info("walks do not use the engine's kernels for CPUs: %s", err)
        return None
    return kernels


def _packed(ops: Any, d: DeltaSizes | AttentionSizes) -> DeltaSizes | AttentionSizes:
    if isinstance(d, AttentionSizes):
        return d
    return replace(d, taps=ops.causal_conv1d_weight_pack(d.taps.contiguous()))


def _delta_error(arch: Architecture, kernels: CpuKernels, layer: int, d: object) -> float:
    """Returns the largest error of a gated delta layer compared with torch, over two runs."""
    if not isinstance(d, DeltaSizes):
        raise TypeError(f"layer {layer} is not a linear layer")
    draw = _Draw(arch.dtype)
    rows = _rows(arch, Sight(0, 70, 0, 70), Sight(70, 79, 70, 79))
    channels, kernel = d.taps.shape
    inputs, lefts = draw(79, channels), draw(2, kernel - 1, channels)
    lines = zip(lefts, inputs.split(list(rows.lengths)), strict=True)
    conv_out = torch.cat([causal_convolution(torch.cat(line), d.taps, None) for line in lines])
    errors = [_error(kernels.convolve(layer, inputs, lefts.clone(), rows), conv_out)]
    z, b, a = (draw(79, d.value_heads) for _ in range(3))
    per_head = LinearRows(inputs, (z, b, a - 8))  # little decay, so that T does not vanish
    ours = kernels.recurrence(layer, conv_out, per_head, rows)
    steps = arch.steps(layer, conv_out, per_head, rows.positions)
    scan = Scan(steps, rows.runs(chunk_length(steps)))
    state = draw(d.value_heads, d.key_dim, d.value_dim).float()
    for run in range(2):
        errors.append(_error(ours.advance(run, state.clone()), scan.advance(run, state)))
        errors.append(_error(ours.transition(run), scan.transition(run)))
    errors.append(_error(ours.outputs(), scan.outputs()))
    return max(errors)


def _attention_error(arch: Architecture, kernels: CpuKernels, layer: int, d: object) -> float:
    """Returns the largest error of an attention layer compared with torch, for rows of one sequence
    and for separate sequences."""
    if not isinstance(d, AttentionSizes):
        raise TypeError(f"layer {layer} has no attention")
    draw = _Draw(arch.dtype)
    errors = []
    for sights in (
        (Sight(0, 5, 0, 20), Sight(5, 14, 0, 75)),
        (Sight(0, 40, 0, 40), Sight(40, 75, 40, 75)),
    ):
        rows = _rows(arch, *sights)
        q = draw(rows.count, d.heads, d.head_dim)
        k, v = draw(75, d.kv_heads, d.head_dim), draw(75, d.kv_heads, d.head_dim)
        want = attend(q, k, v, rows.blocks(0), d.scale)
        errors.append(_error(kernels.attend(layer, q, k, v, rows), want))
    return max(errors)


class _Draw:
    """Returns random rows, which are the same in each run."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self._dtype)


def _rows(arch: Architecture, *sights: Sight) -> Rows:
    positions = ranges([(s.position, s.end) for s in sights], torch.device("cpu"))
    return Rows(arch, torch.zeros_like(positions), sights, positions)


def _error(got: Tensor, want: Tensor) -> float:
    """Returns the error relative to the norms; infinite for NaN."""
    error = float((got.float() - want.float()).norm() / want.float().norm())
    return error if math.isfinite(error) else math.inf
