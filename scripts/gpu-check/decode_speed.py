"""Times of torch and FLA for the operations of our decoding kernels.

The numbers are shown next to our kernels' numbers for the same shapes. They are for attention of
one token over contiguous keys and values (torch's `scaled_dot_product_attention`, which reads no
pages), and for one token of FLA's recurrent gated delta rule, which reads and writes a state.
"""

from __future__ import annotations

import sys

import rows
import torch_speed

SEGMENTS, QUERIES = 4, 8
"""Segments of a request, and query heads per key head, as in the report's rows of our kernels."""


def attention(clock: torch_speed.Clock, device: str, z: torch_speed.Shape, copied: float) -> None:
    """Times one token of several requests over their own keys and values."""
    import torch

    requests, dim = max(2, z.layers // 2), torch_speed.ATTENTION["dim"]
    heads, tokens = torch_speed.ATTENTION["heads"], SEGMENTS * z.tokens
    k, v = (torch.randn(requests, heads, tokens, dim, device=device).bfloat16() for _ in "kv")
    q = torch.randn(requests, heads * QUERIES, 1, dim, device=device).bfloat16()

    def run() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    title = f"attention of a token by torch, {requests} requests over {tokens} tokens"
    rows.rate(title, 2 * k.nbytes / clock.median(run) / 1e9, copied)


def recurrent(clock: torch_speed.Clock, z: torch_speed.Shape, tokens: int, copied: float) -> None:
    """Times FLA on `tokens` tokens of one layer, for `z.layers` requests at once."""
    import torch
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    def some(heads: int) -> torch.Tensor:
        return torch.randn(z.layers, tokens, heads, z.dim, device="cuda").bfloat16()

    keys = max(1, z.heads // 2)
    q, k = (torch.nn.functional.normalize(some(keys), dim=-1) for _ in "qk")
    v = some(z.heads)
    small = torch.rand(z.layers, tokens, z.heads, device="cuda")
    state = torch.zeros(z.layers, z.heads, z.dim, z.dim, device="cuda")

    def run() -> None:
        fused_recurrent_gated_delta_rule(
            q=q, k=k, v=v, g=-0.1 * small, beta=small, scale=1.0,
            initial_state=state, output_final_state=True,
        )  # fmt: skip

    took = clock.median(run)
    shape = f"{z.layers} requests, {z.heads} heads {z.dim}x{z.dim}"
    title = f"decode by FLA's recurrent form, {tokens} at once, {shape}"
    rows.figure(f"{title}: time", took * 1e6, "us")
    rows.rate(title, 2 * state.nbytes / took / 1e9, copied)


def main() -> int:
    device, z = torch_speed.asked(__doc__)
    import torch

    clock = torch_speed.Clock(device, z.rounds)
    with torch.no_grad():
        source = torch.empty(1 << 28 if device == "cuda" else 1 << 20, dtype=torch.uint8)
        source = source.to(device)
        target = torch.empty_like(source)
        copied = 2 * source.nbytes / clock.median(lambda: target.copy_(source)) / 1e9
        attention(clock, device, z, copied)
        try:
            for tokens in (1, 5):
                recurrent(clock, z, tokens, copied)
        except Exception as err:  # its import fails in many ways without a GPU
            rows.skip("decode by FLA", f"no FLA with Triton: {type(err).__name__}: {err}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
