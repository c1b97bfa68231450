"""Kimi-Linear: layers with KDA (Kimi delta attention), which has a separate decay for every key
channel, and layers with MLA (multi-head latent attention) without positions."""

from __future__ import annotations

from torch import Tensor, nn

from spliced_connector.model import Family
from spliced_connector.walk.attention import Latent
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import AttentionMixer, Blocks, LinearMixer, batched, pre_norm
from spliced_connector.walk.delta import Delta, DeltaSizes
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    UnsupportedError,
    child,
    float_dtype,
    layers,
    names,
    number,
    real,
    require_silu,
)


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `KimiLinearForCausalLM`."""
    require_silu(config)
    body = child(model, "model")
    types = names(config, "layer_types")
    blocks = [
        pre_norm(
            i,
            _mixer(i, kind, child(at, "self_attn"), config),
            child(at, "input_layernorm"),
            child(at, "post_attention_layernorm"),
            batched(child(at, "mlp")),
        )
        for i, (kind, at) in enumerate(zip(types, layers(body), strict=True))
    ]
    embedding, norm, head = (
        child(body, "embed_tokens"),
        child(body, "norm"),
        child(model, "lm_head"),
    )
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)


def _mixer(
    i: int, kind: str, module: nn.Module, config: object
) -> tuple[AttentionMixer | None, LinearMixer | None]:
    if kind == "linear_attention":
        return None, _delta(module, config)
    if kind != "full_attention":
        raise UnsupportedError(f"layer {i} is of type {kind!r}, want linear or full attention")
    return Latent(
        module=module,
        heads=number(config, "num_attention_heads"),
        rank=number(config, "kv_lora_rank"),
        nope=number(config, "qk_nope_head_dim"),
        key=number(config, "qk_rope_head_dim"),
        value=number(config, "v_head_dim"),
        scale=real(module, "scaling"),
    ), None


def _delta(module: nn.Module, config: object) -> Delta:
    heads, dim = number(config, "linear_num_heads"), number(config, "linear_head_dim")
    forget, low, high = (child(module, name) for name in ("forget_gate", "g_a_proj", "g_b_proj"))
    write = child(module, "b_proj")

    def gate(x: Tensor) -> Tensor:
        y: Tensor = high(low(x))
        return y

    return Delta(
        module=module,
        family=Family.KDA,
        sizes=DeltaSizes(heads, heads, dim, dim),
        forget=batched(forget),
        write=lambda x: write(x).sigmoid(),
        gate=gate,
    )
