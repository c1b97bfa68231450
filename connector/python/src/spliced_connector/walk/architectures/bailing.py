"""Ling 3 (its classes are called Bailing): layers with KDA (Kimi delta attention), and layers with
MLA (multi-head latent attention), which has positions and an output gate per head."""

from __future__ import annotations

from torch import nn

from spliced_connector.model import Family
from spliced_connector.walk.architectures import ring
from spliced_connector.walk.attention import Latent, head_gate
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import AttentionMixer, Blocks, LinearMixer, batched, pre_norm
from spliced_connector.walk.delta import Delta, DeltaSizes
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    UnsupportedError,
    child,
    float_dtype,
    layers,
    maybe_child,
    names,
    number,
    real,
    require_silu,
)
from spliced_connector.walk.rope import latent_rope_of, turn_of


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `BailingHybridForCausalLM`, or a Ling 2.5 of the same model_type."""
    body = child(model, "model")
    if maybe_child(body, "word_embeddings") is not None:
        return ring.build(model, config, naming)
    require_silu(config)
    rotary = child(body, "rotary_emb")
    blocks = [
        pre_norm(
            i,
            _mixer(i, kind, child(at, "self_attn"), rotary, config),
            child(at, "input_layernorm"),
            child(at, "post_attention_layernorm"),
            batched(child(at, "mlp")),
        )
        for i, (kind, at) in enumerate(zip(names(config, "layer_types"), layers(body), strict=True))
    ]
    embedding, norm, head = (
        child(body, "embed_tokens"),
        child(body, "norm"),
        child(model, "lm_head"),
    )
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)


def _mixer(
    i: int, kind: str, module: nn.Module, rotary: nn.Module, config: object
) -> tuple[AttentionMixer | None, LinearMixer | None]:
    if kind == "linear_attention":
        return None, _delta(module, config)
    if kind != "full_attention":
        raise UnsupportedError(f"layer {i} is of type {kind!r}, want linear or full attention")
    return _latent(module, rotary, config), None


def _latent(module: nn.Module, rotary: nn.Module, config: object) -> Latent:
    key, heads = number(config, "qk_rope_head_dim"), number(config, "num_attention_heads")
    return Latent(
        module=module,
        heads=heads,
        rank=number(config, "kv_lora_rank"),
        nope=number(config, "qk_nope_head_dim"),
        key=key,
        value=number(config, "v_head_dim"),
        scale=real(module, "scaling"),
        rope=latent_rope_of(config, key),
        turn=turn_of(rotary, interleaved=True),
        gate=head_gate(module, heads),
    )


def _delta(module: nn.Module, config: object) -> Delta:
    heads, dim = number(config, "linear_num_heads"), number(config, "linear_head_dim")
    write = child(module, "b_proj")
    return Delta(
        module=module,
        family=Family.KDA,
        sizes=DeltaSizes(heads, heads, dim, dim),
        forget=batched(child(module, "forget_gate")),
        write=lambda x: write(x).sigmoid(),
        gate=child(module, "g_proj"),
    )
