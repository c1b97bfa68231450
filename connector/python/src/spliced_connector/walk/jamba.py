"""Jamba: Mamba1 and attention without positions.

Every channel of a Mamba1 mixer is a head of its own, with a state of N numbers that decay each
at their own rate, A[channel, i] * dt[channel]. B and C are common to all channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spliced_connector.profile import Conv, DType, Family, Linear
from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture, LinearRows, Steps
from spliced_connector.walk.blocks import AttentionMixer, Blocks, LinearMixer, batched, pre_norm
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    child,
    conv_weight,
    float_dtype,
    layers,
    maybe_child,
    number,
    plain_weight,
    require_silu,
    tensor,
)


@dataclass(frozen=True)
class Mamba1:
    """A Mamba1 mixer with norms on dt, B and C: rank numbers for dt, state numbers each."""

    module: nn.Module
    rank: int
    state: int

    def describe(self, conv: DType, state: DType, transition: DType) -> Linear:
        taps = conv_weight(child(self.module, "conv1d"))[0]
        channels, kernel = taps.shape
        return Linear(
            family=Family.MAMBA1,
            key_heads=channels,
            value_heads=channels,
            key_dim=self.state,
            value_dim=1,
            state_dtype=state,
            transition_dtype=transition,
            conv=Conv(kernel=kernel, channels=(channels,), dtype=conv),
        )

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        conv, gate = child(self.module, "in_proj")(x).chunk(2, dim=-1)
        return LinearRows(conv, (gate,))

    def conv_weight(self) -> tuple[Tensor, Tensor | None]:
        return conv_weight(child(self.module, "conv1d"))

    def steps(self, conv_out: Tensor | None, rows: LinearRows, positions: Tensor) -> Steps:
        if conv_out is None:
            raise ValueError("a Mamba1 mixer needs its convolution's output")
        read = child(self.module, "x_proj")(conv_out)
        dt, b, c = read.split([self.rank, self.state, self.state], dim=-1)
        b = child(self.module, "b_layernorm")(b).float()
        c = child(self.module, "c_layernorm")(c).float()
        step = self._step(child(self.module, "dt_layernorm")(dt))
        x = conv_out.float()
        decay = -torch.exp(tensor(self.module, "A_log").float()) * step[..., None]
        return Steps(
            q=c[:, None],
            k=b[:, None],
            v=(x * step)[..., None],
            decay=decay,
            skip=(x * tensor(self.module, "D").float())[..., None],
        )

    def _step(self, dt: Tensor) -> Tensor:
        """The time step of every channel. The bias is added in float32, as the engine does."""
        wide = functional.linear(dt, plain_weight(self.module, "dt_proj"))
        return functional.softplus(wide + tensor(child(self.module, "dt_proj"), "bias").float())

    def out(self, o: Tensor, rows: LinearRows) -> Tensor:
        gate = rows.rest[0]
        gated = o.flatten(-2) * functional.silu(gate)
        y: Tensor = child(self.module, "out_proj")(gated.to(gate.dtype))
        return y


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """The walk over a `JambaForCausalLM`."""
    require_silu(config)
    body = child(model, "model")
    rank, state = number(config, "mamba_dt_rank"), number(config, "mamba_d_state")

    def mixer(layer: nn.Module) -> tuple[AttentionMixer | None, LinearMixer | None]:
        mamba = maybe_child(layer, "mamba")
        if mamba is not None:
            return None, Mamba1(mamba, rank, state)
        return grouped(config, child(layer, "self_attn"), None), None

    blocks = [
        pre_norm(
            i,
            mixer(at),
            child(at, "input_layernorm"),
            child(at, "pre_ff_layernorm"),
            batched(child(at, "feed_forward")),
        )
        for i, at in enumerate(layers(body))
    ]
    embedding, norm = child(body, "embed_tokens"), child(body, "final_layernorm")
    head = child(model, "lm_head")
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)
