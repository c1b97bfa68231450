"""Readers of the configs of known architectures, by model_type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spliced_connector.model.fields import Fields
from spliced_connector.model.identity import (
    Attention,
    Conv,
    DType,
    Family,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Rope,
)


@dataclass(frozen=True, slots=True)
class Types:
    """What a config does not say: element types and the number of ranks."""

    kv: DType
    conv: DType
    state: DType
    transition: DType
    tp_size: int

    def spread(self, heads: int) -> int:
        """Key heads or groups that the ranks hold together: fewer than ranks are replicated."""
        return max(heads, self.tp_size)


def read_qwen3_next(f: Fields, t: Types, n: int) -> list[Layer]:
    """Qwen3-Next and Qwen3.5: gated delta rule with one convolution over q, k and v, and gated
    full attention with partial rope."""
    key_heads, value_heads = f.number("linear_num_key_heads"), f.number("linear_num_value_heads")
    key_dim, value_dim = f.number("linear_key_head_dim"), f.number("linear_value_head_dim")
    keys = t.spread(key_heads) * key_dim
    channels = (keys, keys, value_heads * value_dim)
    conv = Conv(f.number("linear_conv_kernel_dim"), channels, t.conv)
    linear = _linear(
        Linear(Family.GDN, key_heads, value_heads, key_dim, value_dim, t.state, t.transition, conv)
    )
    dim = f.head_dim()
    full = attention(f, t, dim, f.rope(dim, factor=0.25))
    if f.has("layer_types"):
        return f.layers_by_name("layer_types", n, layer_names(linear, full))
    interval = "full_attention_interval"
    return f.every_nth(n, interval, f.number_or(interval, 4), linear, full)


def read_kimi_linear(f: Fields, t: Types, n: int) -> list[Layer]:
    """Kimi-Linear: KDA with three convolutions, and MLA that usually has no positions.

    The published files keep the linear layers apart, in lists that count from one; those that
    transformers writes have names by layer, and never positions.
    """
    listed = f.section("linear_attn_config")
    names = ("num_heads", "head_dim", "short_conv_kernel_size")
    if listed is None:
        names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    heads, dim, kernel = ((listed or f).number(name) for name in names)
    conv = Conv(kernel, (heads * dim,) * 3, t.conv)
    linear = _linear(Linear(Family.KDA, heads, heads, dim, dim, t.state, t.transition, conv))
    rope_dim, rank = f.number("qk_rope_head_dim"), f.number("kv_lora_rank")
    rope = Rope()
    if listed is not None and not f.flag("mla_use_nope", False):
        rope = replace(f.rope(rope_dim), interleaved=True)
    mla = Layer(Kind.MLA, Attention(1, rope_dim, rank, t.kv, KeyMode.AT_ZERO, rope))
    if listed is None:
        return f.layers_by_name("layer_types", n, layer_names(linear, mla))
    return _kimi_layers(listed, n, linear, mla)


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
    """Ring and Ling linear models: Lightning attention with rope inside, every
    layer_group_size-th layer full, and so is a last group that is not complete."""
    dim = f.head_dim()
    rope = f.rope(dim)
    turned = rope if f.flag("linear_rope", True) else Rope()
    linear = _lightning(t, f.number("num_attention_heads"), dim, turned)
    full = attention(f, t, dim, rope)
    group = f.number("layer_group_size")
    layers = f.every_nth(n, "layer_group_size", group, linear, full)
    whole = n - n % max(group, 1)
    return [layer if i < whole else full for i, layer in enumerate(layers)]


def read_minimax(f: Fields, t: Types, n: int) -> list[Layer]:
    """MiniMax-Text-01 and M1: Lightning attention without rope, and full attention as listed.

    Files of transformers name the layers; it turns whole heads, whatever rotary_dim says.
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


def read_nemotron_h(f: Fields, t: Types, n: int) -> list[Layer]:
    """Nemotron-H: M is Mamba2, * attention without positions, - and E layers without state.

    Files of transformers name the layers.
    """
    linear = _mamba2(
        t,
        heads=f.number("mamba_num_heads"),
        dim=f.number("mamba_head_dim"),
        state=f.number("ssm_state_size"),
        groups=f.number("n_groups"),
        kernel=f.number("conv_kernel"),
    )
    full = attention(f, t, f.number_or("attention_head_dim", 0) or f.head_dim(), Rope())
    if f.has("layers_block_type"):
        names = layer_names(linear, full) | {"mlp": Layer(), "moe": Layer()}
        return f.layers_by_name("layers_block_type", n, names)
    pattern = f.text("hybrid_override_pattern")
    if len(pattern) != n:
        f.problems.add(f"hybrid_override_pattern: {len(pattern)} letters for {n} layers")
        return []
    letters = {"M": linear, "*": full, "-": Layer(), "E": Layer()}
    for i, letter in enumerate(pattern):
        if letter not in letters:
            f.problems.add(f"hybrid_override_pattern: {letter!r} at layer {i}, want M, *, - or E")
    return [letters.get(letter, Layer()) for letter in pattern]


def read_granite_hybrid(f: Fields, t: Types, n: int) -> list[Layer]:
    """Granite 4 hybrids: Mamba2 and attention, usually without positions."""
    linear = _mamba2_of_fields(f, t)
    dim = f.head_dim()
    turned = f.text_or("position_embedding_type", "nope") == "rope"
    full = attention(f, t, dim, f.rope(dim) if turned else Rope())
    return f.layers_by_name("layer_types", n, layer_names(linear, full))


def read_bamba(f: Fields, t: Types, n: int) -> list[Layer]:
    """Bamba: Mamba2, and attention that turns half of each head."""
    linear = _mamba2_of_fields(f, t)
    dim = f.head_dim()
    full = attention(f, t, dim, f.rope(dim, factor=0.5))
    layers = [linear] * n
    for i in f.numbers("attn_layer_indices") if f.has("attn_layer_indices") else ():
        if not 0 <= i < n:
            f.problems.add(f"attn_layer_indices: {i}, want 0 to {n - 1}")
            return []
        layers[i] = full
    return layers


def read_jamba(f: Fields, t: Types, n: int) -> list[Layer]:
    """Jamba: Mamba1, a head for every channel, and attention without positions."""
    channels = f.number("hidden_size") * f.number("mamba_expand")
    state = f.number("mamba_d_state")
    conv = Conv(f.number("mamba_d_conv"), (channels,), t.conv)
    linear = _linear(
        Linear(Family.MAMBA1, channels, channels, state, 1, t.state, t.transition, conv)
    )
    full = attention(f, t, f.head_dim(), Rope())
    period, offset = f.number("attn_layer_period"), f.number("attn_layer_offset")
    if period < 1:
        f.problems.add(f"attn_layer_period: {period}, want at least 1")
        return []
    return [full if i % period == offset else linear for i in range(n)]


def read_plain(f: Fields, t: Types, n: int) -> list[Layer]:
    """Models without linear layers.

    sliding_window makes window layers of those that layer_types names, of those from
    max_window_layers on, or of all; the Qwen models have it off unless use_sliding_window is set.
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


def attention(f: Fields, t: Types, dim: int, rope: Rope) -> Layer:
    """Plain grouped-query attention."""
    heads = f.number_or("num_key_value_heads", 0) or f.number("num_attention_heads")
    return Layer(Kind.FULL, Attention(heads, dim, dim, t.kv, KeyMode.AT_ZERO, rope))


def layer_names(linear: Layer, full: Layer) -> dict[str, Layer]:
    """Names of layers in configs; the shorter ones are those of before transformers 5."""
    return {
        "linear_attention": linear,
        "mamba": linear,
        "full_attention": full,
        "attention": full,
    }


def _linear(linear: Linear) -> Layer:
    return Layer(Kind.LINEAR, linear=linear)


def _lightning(t: Types, heads: int, dim: int, rope: Rope) -> Layer:
    return _linear(Linear(Family.LIGHTNING, heads, heads, dim, dim, t.state, DType.F32, rope=rope))


def _mamba2_of_fields(f: Fields, t: Types) -> Layer:
    return _mamba2(
        t,
        heads=f.number("mamba_n_heads"),
        dim=f.number("mamba_d_head"),
        state=f.number("mamba_d_state"),
        groups=f.number("mamba_n_groups"),
        kernel=f.number("mamba_d_conv"),
    )


def _mamba2(t: Types, *, heads: int, dim: int, state: int, groups: int, kernel: int) -> Layer:
    """Mamba2 as keys and values: B is the key of size `state`, x the value of size `dim`, and the
    convolution runs over [x | B | C]."""
    inputs = t.spread(groups) * state
    conv = Conv(kernel, (heads * dim, inputs, inputs), t.conv)
    return _linear(Linear(Family.MAMBA2, groups, heads, state, dim, t.state, DType.F32, conv))


ARCHITECTURES: dict[str, Callable[[Fields, Types, int], list[Layer]]] = {
    "qwen3_next": read_qwen3_next,
    "qwen3_5": read_qwen3_next,
    "qwen3_5_text": read_qwen3_next,
    "qwen3_5_moe": read_qwen3_next,
    "qwen3_5_moe_text": read_qwen3_next,
    "kimi_linear": read_kimi_linear,
    "bailing_moe_linear": read_bailing_linear,
    "minimax": read_minimax,
    "minimax_text_01": read_minimax,
    "minimax_m1": read_minimax,
    "nemotron_h": read_nemotron_h,
    "granitemoehybrid": read_granite_hybrid,
    "bamba": read_bamba,
    "jamba": read_jamba,
    "llama": read_plain,
    "mistral": read_plain,
    "qwen2": read_plain,
    "qwen3": read_plain,
}
