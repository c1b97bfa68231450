"""Config readers of state-space models, and of hybrids with such layers."""

from __future__ import annotations

from collections.abc import Callable

from spliced_connector.model.config_layers import Types, attention, layer_names, mamba1, mamba2
from spliced_connector.model.fields import MUST_SAY, Fields, cut_off
from spliced_connector.model.identity import Layer, Rope


def read_nemotron_h(f: Fields, t: Types, n: int) -> list[Layer]:
    """Nemotron-H. In `hybrid_override_pattern` M is a Mamba2 layer, * is attention without
    positions, - and E are layers without state.

    Configs that transformers writes have the layers' names instead.
    """
    linear = mamba2(
        t,
        heads=f.number("mamba_num_heads"),
        dim=f.number("mamba_head_dim"),
        state=f.number("ssm_state_size"),
        groups=f.number("n_groups"),
        kernel=f.number("conv_kernel"),
    )
    full = attention(
        f, t, f.number_else("attention_head_dim", lambda: f.number_or("head_dim", 128)), Rope()
    )
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
    linear = _mamba2_of_fields(f, t, _expanded)
    dim = f.head_dim()
    turned = f.text_or("position_embedding_type", "nope") == "rope"
    full = attention(f, t, dim, f.rope(dim) if turned else Rope())
    return f.layers_by_name("layer_types", n, layer_names(linear, full))


def read_bamba(f: Fields, t: Types, n: int) -> list[Layer]:
    """Bamba: Mamba2, and attention with rope on half of each head.

    transformers reads a share other than half only from rope_parameters, not from a top-level
    field.
    """
    linear = _mamba2_of_fields(f, t, _expanded)
    dim = f.head_dim()
    nested = f.section("rope_parameters")
    share = 0.5 if nested is None else nested.real_or("partial_rotary_factor", 0.5)
    full = attention(f, t, dim, f.rope_over(cut_off(dim * share)))
    if not f.has("attn_layer_indices"):
        return [linear] * n
    return f.layers_at(n, "attn_layer_indices", linear, full)


def read_jamba(f: Fields, t: Types, n: int) -> list[Layer]:
    """Jamba: Mamba1, a head for every channel, and attention without positions."""
    channels = f.number("hidden_size") * f.number("mamba_expand")
    state, kernel = f.number("mamba_d_state"), f.number("mamba_d_conv")
    linear = mamba1(t, channels=channels, state=state, kernel=kernel)
    full = attention(f, t, f.head_dim(), Rope())
    period, offset = f.number("attn_layer_period"), f.number("attn_layer_offset")
    if period < 1:
        f.problems.add(f"attn_layer_period: {period}, want at least 1")
        return []
    return [full if i % period == offset else linear for i in range(n)]


def read_mamba(f: Fields, t: Types, n: int) -> list[Layer]:
    """Mamba and Falcon-Mamba, which have no attention."""
    channels = f.number_else(
        "intermediate_size", lambda: f.number("expand") * f.number("hidden_size")
    )
    state, kernel = f.number("state_size"), f.number("conv_kernel")
    return [mamba1(t, channels=channels, state=state, kernel=kernel)] * n


def read_mamba2(f: Fields, t: Types, n: int) -> list[Layer]:
    """Mamba2, which has no attention."""
    linear = mamba2(
        t,
        heads=f.number("num_heads"),
        dim=f.number("head_dim"),
        state=f.number("state_size"),
        groups=f.number("n_groups"),
        kernel=f.number("conv_kernel"),
    )
    return [linear] * n


def read_falcon_h1(f: Fields, t: Types, n: int) -> list[Layer]:
    """Falcon-H1: each decoder layer has Mamba2 and attention side by side. It becomes two layers of
    the profile, in this order.

    The config must have rope_theta, because engines differ in the default.
    """
    dim = f.head_dim()
    full = attention(f, t, dim, f.rope(f.number_or("attn_rotary_emb", dim), theta=MUST_SAY))
    return [_mamba2_of_fields(f, t, _falcon_channels), full] * n


def read_zamba(f: Fields, t: Types, n: int) -> list[Layer]:
    """Zamba: all layers are Mamba1, some of them after an attention block."""
    channels = f.number("mamba_expand") * f.number("hidden_size")
    state, kernel = f.number("mamba_d_state"), f.number("mamba_d_conv")
    return _after_shared(f, t, n, mamba1(t, channels=channels, state=state, kernel=kernel))


def read_zamba2(f: Fields, t: Types, n: int) -> list[Layer]:
    """Zamba2: like Zamba, with Mamba2."""
    heads = f.number("n_mamba_heads")
    dim = f.number_else(
        "mamba_headdim",
        lambda: f.number("mamba_expand") * f.number("hidden_size") // max(heads, 1),
    )
    linear = mamba2(
        t,
        heads=heads,
        dim=dim,
        state=f.number("mamba_d_state"),
        groups=f.number("mamba_ngroups"),
        kernel=f.number("mamba_d_conv"),
    )
    return _after_shared(f, t, n, linear)


def _after_shared(f: Fields, t: Types, n: int, linear: Layer) -> list[Layer]:
    """Returns `n` linear layers, some of them after an attention block.

    The attention blocks share their weights but not their keys and values. So a layer after such a
    block becomes two layers of the profile, attention first. The block's input rows are twice as
    wide as the hidden size.
    """
    dim = f.number_else(
        "attention_head_dim",
        lambda: 2 * f.number("hidden_size") // max(f.number("num_attention_heads"), 1),
    )
    full = attention(f, t, dim, f.rope(dim) if f.flag("use_mem_rope", False) else Rope())
    names = {"linear_attention": linear, "mamba": linear, "hybrid": full}
    layers: list[Layer] = []
    for layer in f.layers_by_name("layers_block_type", n, names):
        layers += [full, linear] if layer == full else [linear]
    return layers


def _mamba2_of_fields(f: Fields, t: Types, channels: Callable[[Fields], int]) -> Layer:
    """Reads a Mamba2 layer from the fields that Granite, Bamba and Falcon-H1 have.

    If the head size is "auto", the default, it is the number of channels divided by the heads.
    `channels` returns the number of channels.
    """
    heads = f.number("mamba_n_heads")
    if f.values.get("mamba_d_head", "auto") != "auto":
        dim = f.number("mamba_d_head")
    else:
        dim = _share(f, channels(f), heads)
    return mamba2(
        t,
        heads=heads,
        dim=dim,
        state=f.number("mamba_d_state"),
        groups=f.number("mamba_n_groups"),
        kernel=f.number("mamba_d_conv"),
    )


def _share(f: Fields, channels: int, heads: int) -> int:
    if heads >= 1 and channels % heads == 0:
        return channels // heads
    f.problems.add(
        f"mamba_d_head: not a number, and {channels} channels over {heads} heads do not give one"
    )
    return 1


def _expanded(f: Fields) -> int:
    """Returns the number of Mamba2 channels, over all heads."""
    return f.number_or("mamba_expand", 2) * f.number("hidden_size")


def _falcon_channels(f: Fields) -> int:
    """Returns the number of Mamba2 channels of Falcon-H1, which mamba_d_ssm has. None stands for
    the expanded size, a missing field for the default of the config's class, 1024."""
    if "mamba_d_ssm" not in f.values:
        return 1024
    return f.number_else("mamba_d_ssm", lambda: _expanded(f))
