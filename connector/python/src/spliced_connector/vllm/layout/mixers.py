"""Runs recurrent layers of vLLM's models on chosen inputs.

The layer's own forward core runs on the layer's device, with metadata for one request that the
engine's own builder makes. A stand-in object for the layer replaces only its caches and the
projections around the core. A new kind of layer needs a function and an entry in `MIXERS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spliced_connector.model import Family

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_LAYERS = "vllm.model_executor.layers.mamba"


@dataclass(frozen=True)
class Span:
    """Tokens [begin, begin + len(inputs)) of a request whose state is in block `block`.

    inputs: [tokens, channels], the inputs of the layer's convolution. If the layer has no
    convolution, its queries, keys and values.
    """

    inputs: Tensor
    begin: int
    block: int


@dataclass(frozen=True)
class Mixer:
    """How to run one class of layers."""

    family: Family  # NONE: the layer is a convolution only
    run: Callable[[Any, Tensor], Tensor]
    """Runs the core: maps a stand-in for the layer and inputs to the core's output per token."""
    values_last: bool = False
    """True: inputs are queries, keys, values in this order. False: inputs begin with values."""


class StandIn:
    """Acts as a layer with other caches; further attributes may be replaced."""

    def __init__(self, module: Any, cache: Tensor | tuple[Tensor, ...]) -> None:
        self.kv_cache = cache
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if inspect.isfunction(inspect.getattr_static(type(self._module), name, None)):
            return MethodType(getattr(type(self._module), name), self)
        return getattr(self._module, name)


def mixer_of(module: object) -> Mixer | None:
    """Returns the mixer for a layer's exact class, None for unknown classes. A subclass of a known
    class is unknown."""
    kind = type(module)
    return MIXERS.get(f"{kind.__module__}.{kind.__qualname__}")


def run(module: Any, config: VllmConfig, caches: tuple[Tensor, ...], span: Span) -> Tensor:
    """Runs a layer's core on a span of tokens, with caches of at least two blocks. Returns the
    core's output.

    Raises errors of the engine.
    """
    from vllm.forward_context import get_forward_context, set_forward_context

    known = mixer_of(module)
    if known is None:
        raise TypeError(f"{type(module).__name__} is not known")
    name = str(module.prefix)
    stand_in = StandIn(module, caches)
    metadata = {name: metadata_of(module, config, span)}
    with (
        torch.inference_mode(),
        set_forward_context(metadata, config, num_tokens=len(span.inputs)),
    ):
        get_forward_context().no_compile_layers = {name: stand_in}
        return known.run(stand_in, span.inputs)


def metadata_of(module: Any, config: VllmConfig, span: Span) -> object:
    from vllm.v1.attention.backend import CommonAttentionMetadata

    device, n = span.inputs.device, len(span.inputs)
    spec = module.get_kv_cache_spec(config)
    builder = module.get_attn_backend().get_builder_cls()
    starts = torch.tensor([0, n], dtype=torch.int32)
    lengths = torch.tensor([span.begin + n], dtype=torch.int32)
    blocks = -(-int(lengths) // spec.block_size) + spec.num_speculative_blocks
    common = CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(device),
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=1,
        num_actual_tokens=n,
        max_query_len=n,
        max_seq_len=int(lengths),
        block_table_tensor=torch.full((1, blocks), span.block, dtype=torch.int32, device=device),
        slot_mapping=torch.zeros(n, dtype=torch.int64, device=device),
        is_prefilling=torch.tensor([True]),
    )
    return builder(spec, [str(module.prefix)], config, device).build(0, common)


def _gated_delta(layer: Any, inputs: Tensor) -> Tensor:
    """Qwen3-Next, Qwen3.5 and OLMo."""
    path = getattr(getattr(layer, "_forward_method", None), "__name__", "")
    if path not in ("", "forward_cpu", "forward_cuda", "forward_hip"):
        raise TypeError(f"a core of its own in {path}")
    heads = layer.num_v_heads // layer.tp_size
    gates = inputs.new_zeros(len(inputs), heads)
    out = inputs.new_zeros(len(inputs), heads, layer.head_v_dim)
    if inputs.device.type == "cpu" and getattr(layer, "gdn_decode_kernel", "") == "CPU":
        from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import cpu_gdn_attention_core

        cpu_gdn_attention_core(inputs, gates, gates, out, layer.prefix)
    else:
        layer._forward_core(mixed_qkv=inputs, b=gates, a=gates, core_attn_out=out)
    return out


def _mamba2(layer: Any, inputs: Tensor) -> Tensor:
    n = len(inputs)
    gate = inputs.new_zeros(n, layer.tped_intermediate_size)
    steps = inputs.new_zeros(n, layer.tped_dt_size)
    out = inputs.new_zeros(n, layer.tped_intermediate_size)
    layer.conv_ssm_forward(torch.cat((gate, inputs, steps), dim=1), out)
    return out


def _mamba1(layer: Any, inputs: Tensor) -> Tensor:
    """Replaces keys and time steps, which the model computes from the values, by constants. So a
    value changes only its own channel."""
    width = layer.time_step_rank + 2 * layer.ssm_state_size
    ramp = torch.arange(1, width + 1, device=inputs.device).to(inputs.dtype) / width
    layer.in_proj = lambda _: (torch.cat((inputs, torch.ones_like(inputs)), dim=1),)
    layer.x_proj = lambda x: (ramp.expand(len(x), width).contiguous(),)
    layer.out_proj = lambda x: (x,)
    out = torch.zeros_like(inputs)
    layer.forward_impl(inputs, out)
    return out


def _kimi_delta(layer: Any, inputs: Tensor) -> Tensor:
    """Kimi-Linear and Kimi-K3."""
    n, heads = len(inputs), layer.local_num_heads
    gates = inputs.new_zeros(1, n, heads, layer.head_dim)
    layer.o_norm = lambda out, _: out
    out = torch.zeros_like(gates)
    layer._forward(mixed_qkv=inputs, g1=gates, g2=gates[0], beta=gates[..., 0], core_attn_out=out)
    return out[0]


def _bailing_delta(layer: Any, inputs: Tensor) -> Tensor:
    """Ring and Ling 3, which convolve queries, keys and values separately."""
    n, heads = len(inputs), layer.local_num_heads
    decays = inputs.new_zeros((1, n, heads, layer.head_dim), dtype=torch.float32)
    out = inputs.new_zeros(decays.shape)
    q, k, v = inputs.chunk(3, dim=1)
    layer._forward(
        q_proj_states=q,
        k_proj_states=k,
        v_proj_states=v,
        g1=decays,
        beta=torch.full_like(decays[..., 0], 0.5),
        core_attn_out=out,
    )
    return out[0]


def _lightning(layer: Any, inputs: Tensor) -> Tensor:
    """Ring and Ling 2.5."""
    layer.query_key_value = lambda _: (inputs, None)
    layer.use_qk_norm = layer.linear_rope = layer.linear_silu = False
    layer.g_proj = lambda x: (torch.ones_like(x), None)
    layer.g_norm = lambda x, *_: x
    layer.dense = lambda x: (x, None)
    out = inputs.new_zeros(len(inputs), layer.tp_heads * layer.head_dim)
    layer._forward(out.clone(), out, torch.arange(len(inputs), device=inputs.device))
    return out


def _short_conv(layer: Any, inputs: Tensor) -> Tensor:
    ones = torch.ones_like(inputs)
    layer.in_proj = lambda _: (torch.cat((ones, ones, inputs), dim=1), None)
    layer.out_proj = lambda x: (x, None)
    out = torch.zeros_like(inputs)
    if inputs.device.type == "cpu":
        layer.forward_native(inputs, out)
    else:
        layer.forward_cuda(inputs, out)
    return out


MIXERS = {
    f"{_LAYERS}.gdn.qwen_gdn_linear_attn.QwenGatedDeltaNetAttention": Mixer(
        Family.GDN, _gated_delta, values_last=True
    ),
    f"{_LAYERS}.gdn.olmo_gdn_linear_attn.OlmoHybridGatedDeltaNetAttention": Mixer(
        Family.GDN, _gated_delta, values_last=True
    ),
    f"{_LAYERS}.mamba_mixer2.MambaMixer2": Mixer(Family.MAMBA2, _mamba2),
    f"{_LAYERS}.mamba_mixer.MambaMixer": Mixer(Family.MAMBA1, _mamba1),
    f"{_LAYERS}.gdn.kimi_gdn_linear_attn.KimiGatedDeltaNetAttention": Mixer(
        Family.KDA, _kimi_delta, values_last=True
    ),
    "vllm.models.kimi_k3.nvidia.kda.KimiK3DeltaAttention": Mixer(
        Family.KDA, _kimi_delta, values_last=True
    ),
    "vllm.models.kimi_k3.amd.kda.KimiK3DeltaAttention": Mixer(
        Family.KDA, _kimi_delta, values_last=True
    ),
    "vllm.model_executor.models.bailing_moe_v3.BailingMoeV3KimiDeltaAttention": Mixer(
        Family.KDA, _bailing_delta, values_last=True
    ),
    f"{_LAYERS}.linear.bailing_linear_attn.BailingMoELinearAttention": Mixer(
        Family.LIGHTNING, _lightning, values_last=True
    ),
    f"{_LAYERS}.short_conv.ShortConv": Mixer(Family.NONE, _short_conv),
}
"""The known classes, by full name."""
