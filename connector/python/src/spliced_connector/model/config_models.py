"""Config readers of all known architectures, by model_type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spliced_connector.model.config_layers import (
    Types,
    attention,
    delta,
    layer_names,
    linear_layer,
)
from spliced_connector.model.config_mamba import (
    read_bamba,
    read_falcon_h1,
    read_granite_hybrid,
    read_jamba,
    read_mamba,
    read_mamba2,
    read_nemotron_h,
    read_zamba,
    read_zamba2,
)
from spliced_connector.model.family import Family
from spliced_connector.model.fields import Fields
from spliced_connector.model.identity import (
    Attention,
    Conv,
    DType,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Rope,
)


def read_qwen3_next(f: Fields, t: Types, n: int) -> list[Layer]:
    """Qwen3-Next and Qwen3.5: gated delta rule with one convolution over q, k and v, and gated
    full attention with partial rope."""
    key_heads, value_heads = f.number("linear_num_key_heads"), f.number("linear_num_value_heads")
    key_dim, value_dim = f.number("linear_key_head_dim"), f.number("linear_value_head_dim")
    linear = delta(
        t,
        Family.GDN,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        kernel=f.number("linear_conv_kernel_dim"),
    )
    dim = f.number_or("head_dim", 256)
    full = attention(f, t, dim, f.rope(dim, factor=0.25))
    if f.has("layer_types"):
        return f.layers_by_name("layer_types", n, layer_names(linear, full))
    interval = "full_attention_interval"
    return f.every_nth(n, interval, f.number_or(interval, 4), linear, full)


def read_kimi_linear(f: Fields, t: Types, n: int) -> list[Layer]:
    """Kimi-Linear: KDA with three convolutions, and MLA that usually has no positions.

    Published configs list the numbers of the KDA and of the MLA layers, counted from 1. Configs
    that transformers writes have a name for each layer; their MLA never has positions.
    """
    listed = f.section("linear_attn_config")
    names = ("num_heads", "head_dim", "short_conv_kernel_size")
    if listed is None:
        names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    heads, dim, kernel = ((listed or f).number(name) for name in names)
    linear = _kda(t, heads, dim, kernel)
    mla = _mla(f, t, turned=listed is not None and not f.flag("mla_use_nope", False))
    if listed is None:
        return f.layers_by_name("layer_types", n, layer_names(linear, mla))
    return _kimi_layers(listed, n, linear, mla)


def _mla(f: Fields, t: Types, *, turned: bool) -> Layer:
    """Returns a layer with latent attention. turned: rope rotates the whole shared key,
    interleaved."""
    dim, rank = f.number("qk_rope_head_dim"), f.number("kv_lora_rank")
    rope = replace(f.rope_over(dim), interleaved=True) if turned else Rope()
    return Layer(Kind.MLA, Attention(1, dim, rank, t.kv, KeyMode.AT_ZERO, rope))


def _kimi_layers(f: Fields, n: int, linear: Layer, mla: Layer) -> list[Layer]:
    kda, full = set(f.numbers("kda_layers")), set(f.numbers("full_attn_layers"))
    for i in range(1, n + 1):
        if (found := (i in kda) + (i in full)) != 1:
            f.problems.add(
                f"linear_attn_config: layer {i} is in {found} of kda_layers and full_attn_layers,"
                " want one"
            )
    return [linear if i in kda else mla for i in range(1, n + 1)]


def read_bailing_linear(f: Fields, t: Types, n: int) -> list[Layer]:
    """Ring and Ling linear models: Lightning attention with rope inside. The last layer of each
    group of layer_group_size is full attention."""
    dim = f.head_dim()
    return _bailing_layers(f, n, _turned(f, t, dim), attention(f, t, dim, f.rope(dim)))


def read_bailing_hybrid(f: Fields, t: Types, n: int) -> list[Layer]:
    """Ring and Ling from version 2.5 on, whose full layers are MLA.

    Linear layers are Lightning attention in version 2.5 and KDA in version 3. Published configs of
    version 3 are recognized by a field for its convolution. Configs that transformers writes have
    that field for both versions, so `architectures` must tell them apart. These configs also name
    each layer and have the head size in linear_head_dim.
    """
    heads, mla = f.number("num_attention_heads"), _mla(f, t, turned=True)
    dim = f.number_else("linear_head_dim", f.head_dim)
    if f.flag("use_mla_nope", False):
        f.problems.add(
            "use_mla_nope: set, and engines differ in what they keep of the shared key then"
        )
    classes = f.texts("architectures") if f.has("architectures") else []
    if f.has("short_conv_kernel_size") and "BailingMoeV2_5ForCausalLM" not in classes:
        kda = _kda(t, heads, dim, f.number("short_conv_kernel_size"))
        if f.has("layer_types"):
            return f.layers_by_name("layer_types", n, layer_names(kda, mla))
        return _bailing_layers(f, n, kda, mla)
    group = f.number("layer_group_size")
    if group > 0 and n % group:
        f.problems.add(
            f"layer_group_size: {group} of {n} layers, and engines differ in the layers behind the"
            " last group"
        )
    return _bailing_layers(f, n, _turned(f, t, dim), mla)


def _turned(f: Fields, t: Types, dim: int) -> Layer:
    rope = f.rope(dim) if f.flag("linear_rope", True) else Rope()
    return _lightning(t, f.number("num_attention_heads"), dim, rope)


def _bailing_layers(f: Fields, n: int, linear: Layer, full: Layer) -> list[Layer]:
    """Returns the layers in groups. All layers of an incomplete last group are full attention."""
    group = f.number("layer_group_size")
    layers = f.every_nth(n, "layer_group_size", group, linear, full)
    whole = n - n % max(group, 1)
    return [layer if i < whole else full for i, layer in enumerate(layers)]


def read_minimax(f: Fields, t: Types, n: int) -> list[Layer]:
    """MiniMax-Text-01 and M1: Lightning attention without rope, and full attention in listed
    layers.

    Configs that transformers writes name each layer. transformers applies rope to whole heads,
    regardless of rotary_dim.
    """
    named = f.has("layer_types")
    if named:
        f.values.pop("rotary_dim", None)
    dim = f.head_dim()
    linear = _lightning(t, f.number("num_attention_heads"), dim, Rope())
    full = attention(f, t, dim, f.rope(dim, theta=1e6))
    if named:
        return f.layers_by_name("layer_types", n, layer_names(linear, full))
    types = f.numbers("attn_type_list")
    if len(types) != n:
        f.problems.add(f"attn_type_list: {len(types)} entries for {n} layers")
        return []
    for i, kind in enumerate(types):
        if kind not in (0, 1):
            f.problems.add(f"attn_type_list: {kind} at layer {i}, want 0 or 1")
    return [full if kind else linear for kind in types]


def read_olmo_hybrid(f: Fields, t: Types, n: int) -> list[Layer]:
    """OLMo hybrids: gated delta rule, and attention with or without positions.

    A missing head count of linear layers defaults to the head count of attention.
    """
    key_heads, value_heads = (
        f.number_else(f"linear_num_{of}_heads", lambda: f.number("num_attention_heads"))
        for of in ("key", "value")
    )
    key_dim = f.number_else(
        "linear_key_head_dim", lambda: f.number("hidden_size") * 3 // (4 * max(key_heads, 1))
    )
    linear = delta(
        t,
        Family.GDN,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=f.number_or("linear_value_head_dim", 2 * key_dim),
        kernel=f.number_or("linear_conv_kernel_dim", 4),
    )
    dim = f.head_dim()
    full = attention(f, t, dim, _olmo_rope(f, dim))
    if f.has("layer_types"):
        return f.layers_by_name("layer_types", n, layer_names(linear, full))
    return f.every_nth(n, "layer_types", 4, linear, full)


def _olmo_rope(f: Fields, dim: int) -> Rope:
    """Returns the rope of OLMo hybrids. A rope_theta of None switches rope off.

    If rope_theta is absent, the usual base applies, also if rope_parameters is None.
    """
    nested = f.section("rope_parameters")
    for values in (nested.values if nested else {}, f.values):
        if "rope_theta" in values:
            return Rope() if values["rope_theta"] is None else f.rope(dim)
    return f.rope(dim)


def read_lfm2(f: Fields, t: Types, n: int) -> list[Layer]:
    """LFM2, dense or with experts: short convolutions, and attention."""
    channels = f.number_else("conv_dim", lambda: f.number("hidden_size"))
    conv = Layer(Kind.CONV, linear=Linear(conv=Conv(f.number("conv_L_cache"), (channels,), t.conv)))
    dim = f.head_dim()
    full = attention(f, t, dim, f.rope(dim, theta=1e6))
    if f.has("layer_types"):
        return f.layers_by_name("layer_types", n, {"conv": conv, "full_attention": full})
    return f.layers_at(n, "full_attn_idxs", conv, full)


def read_plain(f: Fields, t: Types, n: int) -> list[Layer]:
    """Models without linear layers.

    If sliding_window is set, some layers are window layers: those that layer_types names, or else
    those from max_window_layers on, or else all. The Qwen models ignore sliding_window unless
    use_sliding_window is set.
    """
    dim = f.head_dim()
    full = attention(f, t, dim, f.rope(dim))
    on = f.flag("use_sliding_window", not f.text("model_type").startswith("qwen"))
    if not f.has("sliding_window") or not on:
        return [full] * n
    rows = replace(full.attention, window=f.number("sliding_window"))
    window = Layer(Kind.WINDOW, rows)
    if f.has("layer_types"):
        kinds = {"full_attention": full, "sliding_attention": window}
        return f.layers_by_name("layer_types", n, kinds)
    whole = f.number_or("max_window_layers", 0)
    return [full if i < whole else window for i in range(n)]


def _kda(t: Types, heads: int, dim: int, kernel: int) -> Layer:
    return delta(
        t,
        Family.KDA,
        key_heads=heads,
        value_heads=heads,
        key_dim=dim,
        value_dim=dim,
        kernel=kernel,
    )


def _lightning(t: Types, heads: int, dim: int, rope: Rope) -> Layer:
    return linear_layer(
        Linear(Family.LIGHTNING, heads, heads, dim, dim, t.state, DType.F32, rope=rope)
    )


ARCHITECTURES: dict[str, Callable[[Fields, Types, int], list[Layer]]] = {
    "qwen3_next": read_qwen3_next,
    "qwen3_5": read_qwen3_next,
    "qwen3_5_text": read_qwen3_next,
    "qwen3_5_moe": read_qwen3_next,
    "qwen3_5_moe_text": read_qwen3_next,
    "kimi_linear": read_kimi_linear,
    "bailing_moe_linear": read_bailing_linear,
    "bailing_hybrid": read_bailing_hybrid,
    "minimax": read_minimax,
    "minimax_text_01": read_minimax,
    "minimax_m1": read_minimax,
    "nemotron_h": read_nemotron_h,
    "nemotron_h_puzzle": read_nemotron_h,
    "granitemoehybrid": read_granite_hybrid,
    "bamba": read_bamba,
    "falcon_h1": read_falcon_h1,
    "zamba2": read_zamba2,
    "mamba2": read_mamba2,
    "jamba": read_jamba,
    "zamba": read_zamba,
    "mamba": read_mamba,
    "falcon_mamba": read_mamba,
    "olmo_hybrid": read_olmo_hybrid,
    "lfm2": read_lfm2,
    "lfm2_moe": read_lfm2,
    "llama": read_plain,
    "mistral": read_plain,
    "qwen2": read_plain,
    "qwen3": read_plain,
}

WRAPPERS = frozenset(
    {
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "bailing_moe_v3_vl",
        "intern_s2_preview",
        "kimi_k3",
        "lfm2_vl",
        "minicpmv4_6",
        "minicpmv4_7",
        "nemotron_h_omni",
        "qwen3_5",
        "qwen3_5_moe",
    }
)
"""Types of multimodal models. Their configs nest the config of a text model, which has its own
type."""
