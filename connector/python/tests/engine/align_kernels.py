"""Two Triton kernels of vLLM, for engines without Triton.

With drafts beside recurrent states at block boundaries vLLM 0.32 copies states by two kernels that
it has for Triton alone: its CPU backend ends at the first of them. `register` gives it these,
by the registry that vLLM itself puts the others of its CPU backend into.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any


def register() -> None:
    from vllm.triton_utils.dispatcher import register_kernels

    module = "vllm.v1.worker.mamba_utils."
    register_kernels(
        {
            module + "postprocess_mamba_fused_kernel": _after,
            module + "precopy_mamba_align_fused_kernel": _before,
        }
    )


def _before(*values: Any, **more: Any) -> None:
    """Moves each request's state to the block that its next tokens are computed in."""
    given = _named(_BEFORE, values, more)
    for request in range(given["num_reqs"]):
        source = int(given["src_col_ptr"][request])
        if source >= 0:
            to, bias = int(given["state_idx_ptr"][request]), int(given["token_bias_ptr"][request])
            _copy(given, request, source, to, bias)


def _after(*values: Any, **more: Any) -> None:
    """Keeps the state behind a block's last token, where a step's accepted tokens have reached
    it."""
    given = _named(_AFTER, values, more)
    block = given["block_size"]
    for request in range(given["num_reqs"]):
        accepted = int(given["num_accepted_tokens_ptr"][request])
        source = int(given["mamba_state_idx_ptr"][request])
        running = (
            int(given["num_computed_tokens_ptr"][request])
            + int(given["num_scheduled_tokens_ptr"][request])
            - int(given["num_draft_tokens_ptr"][request])
        )
        boundary = (running + accepted - 1) // block * block
        if boundary < running:
            continue
        to, bias = boundary // block - 1, boundary - running
        if source == to:
            given["num_accepted_tokens_out_ptr"][request] = 1
        if source != to or bias:
            _copy(given, request, source, to, bias)


_STATES = (
    "block_table_ptrs_ptr",
    "block_table_stride_req",
    "state_base_addrs_ptr",
    "state_block_strides_ptr",
    "state_elem_sizes_ptr",
    "state_inner_sizes_ptr",
    "state_conv_widths_ptr",
    "state_group_indices_ptr",
    "state_dim_row_count_ptr",
    "state_dim_row_stride_ptr",
)
_BEFORE = (
    "state_idx_ptr",
    "src_col_ptr",
    "token_bias_ptr",
    *_STATES,
    "idx_mapping_ptr",
    "num_reqs",
)
_AFTER = (
    "num_accepted_tokens_ptr",
    "mamba_state_idx_ptr",
    "num_scheduled_tokens_ptr",
    "num_computed_tokens_ptr",
    "num_draft_tokens_ptr",
    *_STATES,
    "num_accepted_tokens_out_ptr",
    "idx_mapping_ptr",
    "num_reqs",
)


def _named(names: tuple[str, ...], values: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(names, values, strict=True)) | more


def _copy(given: Mapping[str, Any], request: int, source: int, to: int, bias: int) -> None:
    """From one of a request's blocks to another, as far on as there are accepted drafts.

    A convolution's inputs lie in one block, and move; states lie in a block for each draft.
    """
    if given["CONV_STATE_DIM_FIRST"]:
        raise NotImplementedError("tails with the channels first")
    for state in range(len(given["state_base_addrs_ptr"])):
        table = int(given["block_table_ptrs_ptr"][int(given["state_group_indices_ptr"][state])])
        row = ctypes.cast(table, ctypes.POINTER(ctypes.c_int32))
        first = request * int(given["block_table_stride_req"])
        width = int(given["state_conv_widths_ptr"][state])
        element = int(given["state_inner_sizes_ptr"][state]) * int(
            given["state_elem_sizes_ptr"][state]
        )
        base = int(given["state_base_addrs_ptr"][state]) % 2**64
        stride = int(given["state_block_strides_ptr"][state])
        target = base + row[first + to] * stride
        if width:
            begin = base + row[first + source] * stride + bias * element
            ctypes.memmove(target, begin, (width - bias) * element)
        else:
            ctypes.memmove(target, base + row[first + source + bias] * stride, element)
