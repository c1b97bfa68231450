"""vLLM's attention on a CPU, for batches in which some requests have shared pages.

vLLM's kernel reads one block table per request, in which row n is token n. It also returns no sum
of weights, so partial results could not be combined. So the kernel computes the requests without
shared pages, and torch computes the requests with shared pages (`attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention import selector
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import FullAttentionSpec

from spliced_connector.model import Rope
from spliced_connector.vllm.pages.attention import Query, Rows, attend, attend_each
from spliced_connector.vllm.pages.manager import SharedPagesSpec
from spliced_connector.vllm.pages.placed import Placed
from spliced_connector.vllm.pages.plans import PagePlan, Span, spans_of
from spliced_connector.walk import Turns

if TYPE_CHECKING:
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.kv_cache_interface import AttentionSpec

ReadRows = Callable[[int, int, int], Rows]
"""Returns keys and values of rows [begin, end) of a layer's block."""


def install() -> None:
    """Makes vLLM build its attention layers on a CPU with the backend below.

    It replaces the backend CPU_ATTN, because vLLM does not accept CUSTOM on CPUs.
    """
    register_backend(AttentionBackendEnum.CPU_ATTN, _name())
    _forget()


def withdraw() -> None:
    """Makes vLLM use its own backend again, because another engine of the process may not need
    ours."""
    if AttentionBackendEnum.CPU_ATTN.get_path() == _name():
        AttentionBackendEnum.CPU_ATTN.clear_override()
        _forget()


def _name() -> str:
    return f"{__name__}.{SharedPagesBackend.__qualname__}"


def _forget() -> None:
    """Clears vLLM's cached choice of a backend, which another engine of the process may have
    made."""
    forget = getattr(getattr(selector, "_cached_get_attn_backend", None), "cache_clear", None)
    if forget is not None:
        forget()


@dataclass(frozen=True, slots=True)
class LayerPages:
    """What a layer needs for requests with shared pages."""

    placed: Placed
    rope: Rope
    rows: ReadRows


@dataclass(slots=True)
class PagedRows:
    """One request with shared pages in a step: its queries [begin, end) of the batch, and the
    positions of all rows that they see, in the kernel's blocks."""

    begin: int
    end: int
    plan: PagePlan
    shared: list[tuple[int, Span]]  # each with the number of its run
    own: list[Span]
    turns: dict[Rope, Turns | None] = field(default_factory=dict)

    def back(self, rope: Rope) -> Turns | None:
        """Returns the rotations of the queries that fit the keys of each run."""
        if rope not in self.turns:
            distances = [run.wanted.turn for run in self.plan.runs]
            self.turns[rope] = Turns.back(rope, distances)
        return self.turns[rope]


@dataclass
class PagedMetadata(CPUAttentionMetadata):  # type: ignore[misc]
    """vLLM's metadata, in which requests with shared pages seem to see only the rows of this
    step."""

    paged: tuple[PagedRows, ...] = ()


class SharedPagesBackend(CPUAttentionBackend):  # type: ignore[misc]
    """vLLM's backend, with our spec, builder and implementation."""

    forward_includes_kv_cache_update = True
    """`forward` also stores new rows, because slots of requests with shared pages differ from the
    engine's."""

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        return SharedPagesSpec.of(spec) if type(spec) is FullAttentionSpec else spec

    @staticmethod
    def get_impl_cls() -> type[SharedPagesImpl]:
        return SharedPagesImpl

    @staticmethod
    def get_builder_cls() -> type[SharedPagesBuilder]:
        return SharedPagesBuilder


class SharedPagesBuilder(CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """Tells the layers which requests of a step have shared pages."""

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CPUAttentionMetadata:
        common = common_attn_metadata
        pages = self._pages()
        plans = {} if pages is None else pages.placed.plans(common.num_reqs)
        if pages is None or not plans:
            return super().build(common_prefix_len, common, fast_build)
        starts = common.query_start_loc_cpu.tolist()
        lengths = common.seq_lens.tolist()
        seen, slots = common.seq_lens.clone(), common.slot_mapping.clone()
        paged, size = [], self.block_size
        for i, plan in plans.items():
            begin, end = starts[i], starts[i + 1]
            table = common.block_table_tensor[i]
            last = lengths[i] - plan.shared  # private rows, including those of this step
            rows = torch.arange(last - (end - begin), last)
            slots[begin:end] = table[rows // size].long() * size + rows % size
            seen[i] = end - begin
            shared = list(plan.spans(pages.placed.block_tokens, size))
            own = [(int(table[block]), a, b) for block, a, b in spans_of(0, last, size)]
            paged.append(PagedRows(begin, end, plan, shared, own))
        common = common.replace(seq_lens=seen, slot_mapping=slots)
        made = super().build(common_prefix_len, common, fast_build)
        values = {f.name: getattr(made, f.name) for f in fields(made)}
        return PagedMetadata(**values, paged=tuple(paged))

    def _pages(self) -> LayerPages | None:
        layers = self.vllm_config.compilation_config.static_forward_context
        first = layers.get(self.layer_names[0])
        impl = first.impl if isinstance(first, Attention) else None
        return impl.pages if isinstance(impl, SharedPagesImpl) else None


class SharedPagesImpl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """Attention that also serves requests with shared pages. Without `pages` it does the same as
    vLLM's."""

    pages: LayerPages | None = None

    def trouble(self) -> str:
        """Returns why the layer cannot have shared pages, "" if it can."""
        given = (
            (self.alibi_slopes is not None, "ALiBi"),
            (self.sliding_window != -1, "a sliding window"),
            (bool(self.logits_soft_cap), "capped logits"),
            (self.sinks is not None, "attention sinks"),
            (self.is_fp8_kv_cache, "a quantised cache"),
            (self.kv_sharing_target_layer_name is not None, "the rows of another layer"),
        )
        return next((what for is_so, what in given if is_so), "")

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: Tensor,
        *args: Any,
        **options: Any,
    ) -> Tensor:
        meta = attn_metadata
        if meta is not None and self.kv_sharing_target_layer_name is None and key is not None:
            self.do_kv_cache_update(layer, key, value, kv_cache, meta.slot_mapping)
        super().forward(layer, query, key, value, kv_cache, meta, output, *args, **options)
        if isinstance(meta, PagedMetadata) and self.pages is not None:
            self._attend(query, output, meta.paged, self.pages)
        return output

    def _attend(
        self, query: Tensor, output: Tensor, paged: Sequence[PagedRows], pages: LayerPages
    ) -> None:
        rows, rope = pages.rows, pages.rope
        single = [one for one in paged if one.end - one.begin == 1]
        for one in paged:
            if one.end - one.begin > 1:
                shared = [(run, rows(*span)) for run, span in one.shared]
                own = [rows(*span) for span in one.own]
                q = query[one.begin : one.end]
                output[one.begin : one.end] = attend(q, shared, own, one.back(rope), self.scale)
        if single:
            queries = [
                Query(
                    query[one.begin],
                    [*one.shared, *((-1, span) for span in one.own)],
                    one.back(rope),
                )
                for one in single
            ]
            for one, out in zip(single, attend_each(queries, rows, self.scale), strict=True):
                output[one.begin] = out
