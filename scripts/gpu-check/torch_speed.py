"""Times of torch for the operations of our kernels: compositions, rotations, and a plain copy.

The numbers are shown next to our kernels' numbers for the same shapes: the bytes that must be read
and written, divided by the device's time. torch composes with a conversion of T to float32 and one
`baddbmm` per segment. It rotates with the usual arithmetic on halves and one `index_copy_`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import rows

ATTENTION = {"layers": 10, "heads": 2, "dim": 256}
"""The attention layers of a 35B-A3B hybrid, as in the report's rows of our kernels."""


@dataclass(frozen=True)
class Shape:
    """Sizes, as in the check's other parts."""

    layers: int
    heads: int
    dim: int
    segments: int
    tokens: int
    rounds: int


class Clock:
    """A timer of work on the current stream."""

    def __init__(self, device: str, rounds: int) -> None:
        self._gpu, self._rounds = device == "cuda", rounds

    def median(self, run: Callable[[], object]) -> float:
        """Returns seconds of one run, after two that do not count."""
        run(), run()
        return statistics.median(self._once(run) for _ in range(self._rounds))

    def _once(self, run: Callable[[], object]) -> float:
        import torch

        if not self._gpu:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def check(device: str, z: Shape) -> None:
    """Prints the rows."""
    import torch

    clock = Clock(device, z.rounds)
    per = z.layers * z.heads * z.dim * z.dim
    source = torch.empty(max(per * 6, 1 << 20), dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / clock.median(lambda: target.copy_(source)) / 1e9
    rows.rate("plain copy by torch, read and written", copied, copied)

    for name, t_shape in (("dense", (z.dim, z.dim)), ("diagonal", (z.dim, 1)), ("scalar", (1, 1))):
        kind = torch.float16 if name == "dense" else torch.float32
        batch = (z.layers * z.heads,)
        ts = [torch.randn(*batch, *t_shape, device=device).mul_(0.05).to(kind) for _ in range(2)]
        ends = [torch.randn(*batch, z.dim, z.dim, device=device) for _ in range(2)]
        state = torch.zeros(*batch, z.dim, z.dim, device=device)

        def compose(
            ts: list[torch.Tensor] = ts,
            ends: list[torch.Tensor] = ends,
            state: torch.Tensor = state,
        ) -> torch.Tensor:
            moved = state
            for i in range(z.segments):
                t, s = ts[i % 2], ends[i % 2]
                if t.shape[-2:] == (z.dim, z.dim):
                    moved = torch.baddbmm(s, t.float(), moved)
                else:
                    moved = torch.addcmul(s, t, moved)
            return moved

        nbytes = z.segments * (ts[0].nbytes + ends[0].nbytes) + 2 * state.nbytes
        title = (
            f"compose {name} by torch, {z.layers} layers, {z.heads} heads, {z.segments} segments"
        )
        rows.rate(title, nbytes / clock.median(compose) / 1e9, copied)

    tokens, half = z.segments * z.tokens, ATTENTION["dim"] // 2
    keys = torch.randn(tokens, ATTENTION["heads"], 2 * half, device=device).bfloat16()
    into = torch.zeros(tokens + 1, *keys.shape[1:], device=device, dtype=keys.dtype)
    order = torch.randperm(tokens, device=device)
    cos, sin = (torch.rand(1, 1, half, device=device) for _ in range(2))

    def rotate() -> None:
        for _ in range(ATTENTION["layers"]):
            a, b = keys[..., :half].float(), keys[..., half:].float()
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
            into.index_copy_(0, order, turned.to(keys.dtype))

    nbytes = 2 * ATTENTION["layers"] * keys.nbytes
    title = f"rotate into rows by torch, {ATTENTION['layers']} layers, {tokens} tokens"
    rows.rate(title, nbytes / clock.median(rotate) / 1e9, copied)


def asked(description: str | None) -> tuple[str, Shape]:
    """Returns the device and the shape of the command line; ends the process without a device."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shape", required=True, help="layers,heads,dim,segments,tokens,rounds")
    args, _ = parser.parse_known_args()
    device = os.environ.get("GPU_CHECK_TORCH", "cuda")
    try:
        import torch
    except ImportError as err:
        rows.cannot_run(f"no torch: {err}")
    if device == "cuda" and not torch.cuda.is_available():
        rows.cannot_run(f"torch {torch.__version__} finds no CUDA")
    return device, Shape(*map(int, args.shape.split(",")))


def main() -> int:
    device, shape = asked(__doc__)
    import torch

    with torch.no_grad():
        check(device, shape)
    return 0


if __name__ == "__main__":
    sys.exit(main())
