"""The Mamba2 mixer of transformers' hybrid models.

In the terms of linear attention, B is the key, C the query, dt*x the value and A*dt the logarithm
of the decay, one number per head (HYPIC Table 1). D*x bypasses the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spliced_connector.model import Conv, DType, Family, Linear
from spliced_connector.walk.base import LinearRows, Steps
from spliced_connector.walk.reading import (
    UnsupportedError,
    child,
    conv_weight,
    maybe_child,
    number,
    require_silu,
    tensor,
)


@dataclass(frozen=True)
class Mamba2Sizes:
    """Sizes of a mixer: `heads` heads of `dim` values, `groups` groups of `state` keys."""

    heads: int
    dim: int
    groups: int
    state: int

    @property
    def inner(self) -> int:
        return self.heads * self.dim

    @property
    def channels(self) -> tuple[int, int, int]:
        """Convolution channels of x, B and C."""
        keys = self.groups * self.state
        return self.inner, keys, keys


def sizes_of(config: object) -> Mamba2Sizes:
    """Returns the sizes from a config with the field names of Granite, Bamba and Falcon-H1."""
    require_silu(config)
    return Mamba2Sizes(
        heads=number(config, "mamba_n_heads"),
        dim=number(config, "mamba_d_head"),
        groups=number(config, "mamba_n_groups"),
        state=number(config, "mamba_d_state"),
    )


@dataclass(frozen=True)
class Mamba2:
    """One Mamba2 mixer: in_proj, conv1d, A_log, D, dt_bias, norm, out_proj.

    The factor `before` scales the mixer's input, and `spread` has a factor for each column of the
    projection (both for Falcon-H1). The function `gate` combines the recurrence's outputs and the
    gate, both [n, inner].
    """

    module: nn.Module
    sizes: Mamba2Sizes
    gate: Callable[[Tensor, Tensor], Tensor]
    before: float = 1.0
    spread: Tensor | None = None

    def describe(self, conv: DType, state: DType, transition: DType) -> Linear:
        s = self.sizes
        kernel = conv_weight(child(self.module, "conv1d"))[0].shape[1]
        return Linear(
            family=Family.MAMBA2,
            key_heads=s.groups,
            value_heads=s.heads,
            key_dim=s.state,
            value_dim=s.dim,
            state_dtype=state,
            transition_dtype=DType.F32,
            conv=Conv(kernel=kernel, channels=s.channels, dtype=conv),
        )

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        projected: Tensor = child(self.module, "in_proj")(x * self.before)
        if self.spread is not None:
            projected = projected * self.spread
        s = self.sizes
        gate, conv, dt = projected.split([s.inner, sum(s.channels), s.heads], dim=-1)
        return LinearRows(conv, (gate, dt))

    def conv_weight(self) -> tuple[Tensor, Tensor | None]:
        return conv_weight(child(self.module, "conv1d"))

    def steps(self, conv_out: Tensor | None, rows: LinearRows, positions: Tensor) -> Steps:
        if conv_out is None:
            raise ValueError("a Mamba2 mixer needs its convolution's output")
        s, (_, dt) = self.sizes, rows.rest
        x, b, c = conv_out.float().split(list(s.channels), dim=-1)
        x = x.unflatten(-1, (s.heads, s.dim))
        step = functional.softplus(dt + tensor(self.module, "dt_bias").to(dt.dtype))
        step = step.clamp(*step_limits(self.module)).float()
        return Steps(
            q=c.unflatten(-1, (s.groups, s.state)),
            k=b.unflatten(-1, (s.groups, s.state)),
            v=x * step[..., None],
            decay=-torch.exp(tensor(self.module, "A_log").float()) * step,
            beta=None,
            skip=tensor(self.module, "D")[:, None] * x,
        )

    def out(self, o: Tensor, rows: LinearRows) -> Tensor:
        gated = self.gate(o.flatten(-2), rows.rest[0])
        y: Tensor = child(self.module, "out_proj")(gated.to(rows.rest[0].dtype))
        return y


def step_limits(module: nn.Module) -> tuple[float, float]:
    """Returns the bounds that a mixer applies to its time steps."""
    value = getattr(module, "time_step_limit", None)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UnsupportedError(f"time_step_limit is {value!r}, want two numbers")
    return float(value[0]), float(value[1])


def gated_norm(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the mixer's own gated norm, or SiLU gating if it has none."""
    norm = maybe_child(module, "norm")
    if norm is None or isinstance(norm, nn.Identity):
        return lambda o, gate: o * functional.silu(gate)
    return lambda o, gate: norm(o, gate)
