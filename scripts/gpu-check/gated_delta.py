"""Compares a transition and an end-state of an external gated delta rule with ours.

Flash Linear Attention's Triton kernels run a segment twice: from a zero state, which gives S, and
from the identity with values of zero, which gives T. `spliced_connector.walk.families` computes
both in float64 on the CPU, by another algorithm.
"""

from __future__ import annotations

import argparse
import sys

import fla_kernels
import rows
import torch_speed

TOKENS = 512
BOUND = 5e-3
"""Permitted relative error in norm. It is this large because FLA's kernels multiply bf16 or TF32
numbers."""


def relative(got: object, want: object) -> float:
    """Returns the norm of the difference, relative to the norm of the wanted values."""
    import torch

    a, b = torch.as_tensor(got).double().cpu(), torch.as_tensor(want).double().cpu()
    return float((a - b).norm() / b.norm())


def check(seed: int, heads: int, dim: int) -> None:
    """Prints the rows for S and T. This also compiles the kernels that `speed` times."""
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    from spliced_connector.walk import Steps
    from spliced_connector.walk.families import end_state, transition

    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(TOKENS, heads, dim), dim=-1) for _ in range(2))
    v = normal(TOKENS, heads, dim)
    beta = normal(TOKENS, heads).sigmoid()
    decay = -0.002 * normal(TOKENS, heads).abs()
    # Both sides get the same numbers, which bf16 can represent.
    q, k, v = (x.bfloat16().double() for x in (q, k, v))
    beta, decay = beta.float().double(), decay.float().double()
    steps = Steps(q=q, k=k, v=v, decay=decay, beta=beta)

    def theirs(values: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        on = [x[None].bfloat16().cuda() for x in (q, k, values)]
        small = [x[None].float().cuda() for x in (decay, beta)]
        _, end = chunk_gated_delta_rule(
            *on, *small, scale=1.0, output_final_state=True,
            initial_state=None if state is None else state[None].float().cuda(),
        )  # fmt: skip
        return end[0]

    one = torch.eye(dim, dtype=torch.float64).expand(heads, dim, dim).contiguous()
    title = f"FLA's gated delta rule, {TOKENS} tokens"
    got = theirs(v, None)
    rows.at_most(f"{title}: S, from zero", relative(got, end_state(steps)), "relative", BOUND)
    got = theirs(torch.zeros_like(v), one)
    named = f"{title}: T, from the identity"
    rows.at_most(named, relative(got, transition(steps)), "relative", BOUND)


def speed(z: torch_speed.Shape) -> None:
    """Times FLA's chunked kernel on a segment in one layer. Composing a cached segment saves this
    computation."""
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    shape = (1, z.tokens, z.heads, z.dim)
    q, k = (torch.nn.functional.normalize(torch.randn(shape, device="cuda"), dim=-1) for _ in "qk")
    small = torch.rand(shape[:3], device="cuda")
    on = [x.bfloat16() for x in (q, k, torch.randn(shape, device="cuda"))]

    def run() -> None:
        chunk_gated_delta_rule(*on, -0.1 * small, small, scale=1.0, output_final_state=True)

    shape_of = f"{z.tokens} tokens, {z.heads} heads {z.dim}x{z.dim}, one layer"
    title = f"FLA's gated delta rule, not tuned, {shape_of}"
    rows.figure(title, torch_speed.Clock("cuda", z.rounds).median(run) * 1e6, "us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="")
    parser.add_argument("--device", required=True)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--numbers", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", required=True, help="as of torch_speed.py")
    args, _ = parser.parse_known_args()
    rows.watch(lambda at: rows.holds("FLA's gated delta rule: in time", f"stopped at {at}"))
    try:
        import torch

        fla_kernels.quicken()
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # noqa: F401
    except Exception as err:  # its import fails in many ways without a GPU
        rows.cannot_run(f"no FLA with Triton: {type(err).__name__}: {err}")
    if not torch.cuda.is_available():
        rows.cannot_run(f"torch {torch.__version__} finds no CUDA")
    z = torch_speed.Shape(*map(int, args.shape.split(",")))
    with torch.no_grad():
        check(args.seed, z.heads, z.dim)
        speed(z)
    return 0


if __name__ == "__main__":
    sys.exit(main())
