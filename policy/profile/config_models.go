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
	full := f.attention(o, dim, f.rope(dim))
	if f.has("layer_types") {
		return f.layersByName(n, map[string]Layer{"linear_attention": linear, "full_attention": full})
	}
	return f.everyNth(n, "full_attention_interval", f.numberOr("full_attention_interval", 4), linear, full)
}

// readKimiLinear reads Kimi-Linear: KDA with three convolutions, and MLA that
// usually has no positions. Its layer lists count from one.
func readKimiLinear(f *fields, o *ConfigOptions, n int) []Layer {
	c, ok := f.object("linear_attn_config")
	if !ok {
		f.problems.add("linear_attn_config: missing")
		return nil
	}
	heads, dim := c.number("num_heads"), c.number("head_dim")
	linear := Layer{Kind: KindLinear, Linear: Linear{
		Family: KDA, KeyHeads: heads, ValueHeads: heads, KeyDim: dim, ValueDim: dim,
		StateDType: o.StateDType, TransitionDType: o.TransitionDType,
		Conv: Conv{
			Kernel: c.number("short_conv_kernel_size"), Channels: []int{heads * dim, heads * dim, heads * dim}, DType: o.ConvDType,
		},
	}}
	mla := Layer{Kind: KindMLA, Attention: Attention{
		KVHeads: 1, KeyDim: f.number("qk_rope_head_dim"), ValueDim: f.number("kv_lora_rank"), DType: o.KVDType, Keys: AtZero,
	}}
	if !f.flag("mla_use_nope", false) {
		mla.Attention.Rope = f.rope(mla.Attention.KeyDim)
		mla.Attention.Rope.Interleaved = true
	}
	kda, full := c.numbers("kda_layers"), c.numbers("full_attn_layers")
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

// readMiniMaxM1 reads MiniMax-M1: Lightning attention without rope, and full
// attention as listed.
func readMiniMaxM1(f *fields, o *ConfigOptions, n int) []Layer {
	dim := f.headDim()
	linear := lightning(o, f.number("num_attention_heads"), dim)
	full := f.attention(o, dim, f.rope(dim))
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
// - a layer without state.
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
		case '-':
		default:
			f.problems.add("hybrid_override_pattern: %q at layer %d, want M, * or -", c, i)
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
	return f.layersByName(n, map[string]Layer{"mamba": linear, "attention": f.attention(o, dim, rope)})
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
		return f.layersByName(n, map[string]Layer{"full_attention": full, "sliding_attention": window})
	}
	layers := slices.Repeat([]Layer{window}, n)
	for i := range min(n, f.numberOr("max_window_layers", 0)) {
		layers[i] = full
	}
	return layers
}

func (f *fields) layersByName(n int, kinds map[string]Layer) []Layer {
	names := f.texts("layer_types")
	if len(names) != n {
		f.problems.add("layer_types: %d entries for %d layers", len(names), n)
		return nil
	}
	layers := make([]Layer, n)
	for i, name := range names {
		l, known := kinds[name]
		if !known {
			f.problems.add("layer_types: %q at layer %d is not known", name, i)
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
