package profile

import (
	"slices"
	"strings"
)

// readQwen3Next reads Qwen3-Next and Qwen3.5: gated delta rule with one
// convolution over q, k and v, and gated full attention with partial rope.
func readQwen3Next(f *fields, o *ConfigOptions, n int) []Layer {
	kh, vh := f.number("linear_num_key_heads"), f.number("linear_num_value_heads")
	dk, dv := f.number("linear_key_head_dim"), f.number("linear_value_head_dim")
	linear := Layer{Kind: KindLinear, Linear: Linear{
		Family: GDN, KeyHeads: kh, ValueHeads: vh, KeyDim: dk, ValueDim: dv,
		StateDType: o.StateDType, TransitionDType: o.TransitionDType,
		Conv: Conv{Kernel: f.number("linear_conv_kernel_dim"), Channels: []int{o.spread(kh) * dk, o.spread(kh) * dk, vh * dv}, DType: o.ConvDType},
	}}
	dim := f.headDim()
	full := f.attention(o, dim, f.ropeOr(dim, 1e4, 0.25))
	if f.has("layer_types") {
		return f.layersByName("layer_types", n, layerNames(linear, full))
	}
	return f.everyNth(n, "full_attention_interval", f.numberOr("full_attention_interval", 4), linear, full)
}

// readKimiLinear reads Kimi-Linear: KDA with three convolutions, and MLA that
// usually has no positions. The published files keep the linear layers apart, in
// lists that count from one; those that transformers writes have names by layer,
// and never positions.
func readKimiLinear(f *fields, o *ConfigOptions, n int) []Layer {
	c, listed := f.object("linear_attn_config")
	sizes := map[string]string{"num_heads": "linear_num_heads", "head_dim": "linear_head_dim", "short_conv_kernel_size": "linear_conv_kernel_dim"}
	size := func(name string) int {
		if listed {
			return c.number(name)
		}
		return f.number(sizes[name])
	}
	heads, dim := size("num_heads"), size("head_dim")
	linear := Layer{Kind: KindLinear, Linear: Linear{
		Family: KDA, KeyHeads: heads, ValueHeads: heads, KeyDim: dim, ValueDim: dim,
		StateDType: o.StateDType, TransitionDType: o.TransitionDType,
		Conv: Conv{
			Kernel: size("short_conv_kernel_size"), Channels: []int{heads * dim, heads * dim, heads * dim}, DType: o.ConvDType,
		},
	}}
	mla := Layer{Kind: KindMLA, Attention: Attention{
		KVHeads: 1, KeyDim: f.number("qk_rope_head_dim"), ValueDim: f.number("kv_lora_rank"), DType: o.KVDType, Keys: AtZero,
	}}
	if listed && !f.flag("mla_use_nope", false) {
		mla.Attention.Rope = f.rope(mla.Attention.KeyDim)
		mla.Attention.Rope.Interleaved = true
	}
	if !listed {
		return f.layersByName("layer_types", n, layerNames(linear, mla))
	}
	return c.kimiLayers(n, linear, mla)
}

func (f *fields) kimiLayers(n int, linear, mla Layer) []Layer {
	kda, full := f.numbers("kda_layers"), f.numbers("full_attn_layers")
	layers := make([]Layer, n)
	for i := range layers {
		switch isLinear, isFull := slices.Contains(kda, i+1), slices.Contains(full, i+1); {
		case isLinear && !isFull:
			layers[i] = linear
		case isFull && !isLinear:
			layers[i] = mla
		default:
			f.problems.add("linear_attn_config: layer %d is in %d of kda_layers and full_attn_layers, want one", i+1, count(isLinear, isFull))
		}
	}
	return layers
}

// readBailingLinear reads Ring and Ling linear models: Lightning attention with
// rope inside, every layer_group_size-th layer full.
func readBailingLinear(f *fields, o *ConfigOptions, n int) []Layer {
	dim := f.headDim()
	rope := f.rope(dim)
	linear := lightning(o, f.number("num_attention_heads"), dim)
	if f.flag("linear_rope", true) {
		linear.Linear.Rope = rope
	}
	full := f.attention(o, dim, rope)
	group := f.number("layer_group_size")
	layers := f.everyNth(n, "layer_group_size", group, linear, full)
	for i := n - n%max(group, 1); i < len(layers); i++ {
		layers[i] = full // a last group that is not complete is full attention
	}
	return layers
}

// readMiniMax reads MiniMax-Text-01 and M1: Lightning attention without rope,
// and full attention as listed. Files of transformers name the layers; it turns
// whole heads, whatever rotary_dim says.
func readMiniMax(f *fields, o *ConfigOptions, n int) []Layer {
	if f.has("layer_types") {
		delete(f.values, "rotary_dim")
	}
	dim := f.headDim()
	linear := lightning(o, f.number("num_attention_heads"), dim)
	full := f.attention(o, dim, f.ropeOr(dim, 1e6, 1))
	if f.has("layer_types") {
		return f.layersByName("layer_types", n, layerNames(linear, full))
	}
	types := f.numbers("attn_type_list")
	if len(types) != n {
		f.problems.add("attn_type_list: %d entries for %d layers", len(types), n)
		return nil
	}
	layers := make([]Layer, n)
	for i, t := range types {
		switch t {
		case 0:
			layers[i] = linear
		case 1:
			layers[i] = full
		default:
			f.problems.add("attn_type_list: %d at layer %d, want 0 or 1", t, i)
		}
	}
	return layers
}

func lightning(o *ConfigOptions, heads, dim int) Layer {
	return Layer{Kind: KindLinear, Linear: Linear{
		Family: Lightning, KeyHeads: heads, ValueHeads: heads, KeyDim: dim, ValueDim: dim, StateDType: o.StateDType, TransitionDType: F32,
	}}
}

// readNemotronH reads Nemotron-H: M is Mamba2, * attention without positions,
// - and E layers without state. Files of transformers name the layers.
func readNemotronH(f *fields, o *ConfigOptions, n int) []Layer {
	linear := mamba2(o, mamba2Sizes{
		heads: f.number("mamba_num_heads"), dim: f.number("mamba_head_dim"), state: f.number("ssm_state_size"),
		groups: f.number("n_groups"), kernel: f.number("conv_kernel"),
	})
	dim := f.numberOr("attention_head_dim", 0)
	if dim == 0 {
		dim = f.headDim()
	}
	full := f.attention(o, dim, Rope{})
	if f.has("layers_block_type") {
		names := layerNames(linear, full)
		names["mlp"], names["moe"] = Layer{}, Layer{}
		return f.layersByName("layers_block_type", n, names)
	}
	pattern := f.text("hybrid_override_pattern")
	if len(pattern) != n {
		f.problems.add("hybrid_override_pattern: %d letters for %d layers", len(pattern), n)
		return nil
	}
	layers := make([]Layer, n)
	for i, c := range pattern {
		switch c {
		case 'M':
			layers[i] = linear
		case '*':
			layers[i] = full
		case '-', 'E':
		default:
			f.problems.add("hybrid_override_pattern: %q at layer %d, want M, *, - or E", c, i)
		}
	}
	return layers
}

// readGraniteHybrid reads Granite 4 hybrids: Mamba2 and attention, usually
// without positions.
func readGraniteHybrid(f *fields, o *ConfigOptions, n int) []Layer {
	linear := mamba2(o, mamba2Sizes{
		heads: f.number("mamba_n_heads"), dim: f.number("mamba_d_head"), state: f.number("mamba_d_state"),
		groups: f.number("mamba_n_groups"), kernel: f.number("mamba_d_conv"),
	})
	dim := f.headDim()
	var rope Rope
	position := "nope"
	if f.optional("position_embedding_type", &position); position == "rope" {
		rope = f.rope(dim)
	}
	return f.layersByName("layer_types", n, layerNames(linear, f.attention(o, dim, rope)))
}

// readBamba reads Bamba: Mamba2, and attention that turns half of each head.
func readBamba(f *fields, o *ConfigOptions, n int) []Layer {
	linear := mamba2(o, mamba2Sizes{
		heads: f.number("mamba_n_heads"), dim: f.number("mamba_d_head"), state: f.number("mamba_d_state"),
		groups: f.number("mamba_n_groups"), kernel: f.number("mamba_d_conv"),
	})
	dim := f.headDim()
	full := f.attention(o, dim, f.ropeOr(dim, 1e4, 0.5))
	layers := slices.Repeat([]Layer{linear}, n)
	var indices []int
	f.optional("attn_layer_indices", &indices)
	for _, i := range indices {
		if i < 0 || i >= n {
			f.problems.add("attn_layer_indices: %d, want 0 to %d", i, n-1)
			return nil
		}
		layers[i] = full
	}
	return layers
}

// spread is how many key heads or groups the ranks hold together: fewer than
// ranks are replicated.
func (o *ConfigOptions) spread(heads int) int { return max(heads, o.TPSize) }

type mamba2Sizes struct{ heads, dim, state, groups, kernel int }

// mamba2 maps Mamba2 onto keys and values: B is the key of size state, x the
// value of size dim, and the convolution runs over [x | B | C].
func mamba2(o *ConfigOptions, s mamba2Sizes) Layer {
	return Layer{Kind: KindLinear, Linear: Linear{
		Family: Mamba2, KeyHeads: s.groups, ValueHeads: s.heads, KeyDim: s.state, ValueDim: s.dim,
		StateDType: o.StateDType, TransitionDType: F32,
		Conv: Conv{Kernel: s.kernel, Channels: []int{s.heads * s.dim, o.spread(s.groups) * s.state, o.spread(s.groups) * s.state}, DType: o.ConvDType},
	}}
}

// readJamba reads Jamba: Mamba1, a head for every channel, and attention
// without positions.
func readJamba(f *fields, o *ConfigOptions, n int) []Layer {
	channels := f.number("hidden_size") * f.number("mamba_expand")
	linear := Layer{Kind: KindLinear, Linear: Linear{
		Family: Mamba1, KeyHeads: channels, ValueHeads: channels, KeyDim: f.number("mamba_d_state"), ValueDim: 1,
		StateDType: o.StateDType, TransitionDType: o.TransitionDType,
		Conv: Conv{Kernel: f.number("mamba_d_conv"), Channels: []int{channels}, DType: o.ConvDType},
	}}
	full := f.attention(o, f.headDim(), Rope{})
	period, offset := f.number("attn_layer_period"), f.number("attn_layer_offset")
	if period < 1 {
		f.problems.add("attn_layer_period: %d, want at least 1", period)
		return nil
	}
	layers := make([]Layer, n)
	for i := range layers {
		layers[i] = linear
		if i%period == offset {
			layers[i] = full
		}
	}
	return layers
}

// readPlain reads models without linear layers. sliding_window makes window
// layers of those that layer_types names, of those from max_window_layers on, or
// of all; the Qwen models have it off unless use_sliding_window is set.
func readPlain(f *fields, o *ConfigOptions, n int) []Layer {
	dim := f.headDim()
	full := f.attention(o, dim, f.rope(dim))
	isOn := f.flag("use_sliding_window", !strings.HasPrefix(f.text("model_type"), "qwen"))
	if !f.has("sliding_window") || !isOn {
		return slices.Repeat([]Layer{full}, n)
	}
	window := full
	window.Kind, window.Attention.Window = KindWindow, f.number("sliding_window")
	if f.has("layer_types") {
		return f.layersByName("layer_types", n, map[string]Layer{"full_attention": full, "sliding_attention": window})
	}
	layers := slices.Repeat([]Layer{window}, n)
	for i := range min(n, f.numberOr("max_window_layers", 0)) {
		layers[i] = full
	}
	return layers
}

// layerNames are the names of layers that configs use; the shorter ones are
// those of before transformers 5.
func layerNames(linear, full Layer) map[string]Layer {
	return map[string]Layer{"linear_attention": linear, "mamba": linear, "full_attention": full, "attention": full}
}

func (f *fields) layersByName(field string, n int, kinds map[string]Layer) []Layer {
	names := f.texts(field)
	if len(names) != n {
		f.problems.add("%s: %d entries for %d layers", field, len(names), n)
		return nil
	}
	layers := make([]Layer, n)
	for i, name := range names {
		l, known := kinds[name]
		if !known {
			f.problems.add("%s: %q at layer %d is not known", field, name, i)
		}
		layers[i] = l
	}
	return layers
}

// everyNth makes the last layer of each group of n full, the others linear.
func (f *fields) everyNth(layers int, field string, n int, linear, full Layer) []Layer {
	if n < 1 {
		f.problems.add("%s: %d, want at least 1", field, n)
		return nil
	}
	out := slices.Repeat([]Layer{linear}, layers)
	for i := n - 1; i < layers; i += n {
		out[i] = full
	}
	return out
}

func count(flags ...bool) (n int) {
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}
