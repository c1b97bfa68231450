package profile

import "slices"

// readNemotronH reads Nemotron-H. In its pattern, M is Mamba2, * is attention without
// positions, and - and E are layers without state. Files that transformers wrote name the
// layers.
func readNemotronH(f *fields, o *ConfigOptions, n int) []Layer {
	linear := mamba2(o, mamba2Sizes{
		heads: f.number("mamba_num_heads"), dim: f.number("mamba_head_dim"), state: f.number("ssm_state_size"),
		groups: f.number("n_groups"), kernel: f.number("conv_kernel"),
	})
	dim := f.numberElse("attention_head_dim", func() int { return f.numberOr("head_dim", 128) })
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

// readGraniteHybrid reads Granite 4 hybrids. They have Mamba2, and attention that is
// usually without positions.
func readGraniteHybrid(f *fields, o *ConfigOptions, n int) []Layer {
	linear := f.mamba2(o, f.expanded)
	dim := f.headDim()
	var rope Rope
	position := "nope"
	if f.optional("position_embedding_type", &position); position == "rope" {
		rope = f.rope(dim)
	}
	return f.layersByName("layer_types", n, layerNames(linear, f.attention(o, dim, rope)))
}

// readBamba reads Bamba: Mamba2, and attention that rotates half of each head. A config can
// give another share, but only in rope_parameters, as in transformers.
func readBamba(f *fields, o *ConfigOptions, n int) []Layer {
	linear := f.mamba2(o, f.expanded)
	dim, share := f.headDim(), 0.5
	if p, nested := f.object("rope_parameters"); nested {
		p.optional("partial_rotary_factor", &share)
	}
	full := f.attention(o, dim, f.ropeOver(int(float64(dim)*share), 1e4))
	if !f.has("attn_layer_indices") {
		return slices.Repeat([]Layer{linear}, n)
	}
	return f.layersAt(n, "attn_layer_indices", linear, full)
}

// spread returns the number of key heads or groups over all ranks together. If there are
// fewer heads than ranks, each rank has a copy of one.
func (o *ConfigOptions) spread(heads int) int { return max(heads, o.TPSize) }

// mamba2 reads the sizes by the names in Granite, Bamba and Falcon-H1. The default head
// size is "auto": all channels divided by the number of heads.
func (f *fields) mamba2(o *ConfigOptions, channels func() int) Layer {
	heads, dim := f.number("mamba_n_heads"), 1
	if v, given := f.values["mamba_d_head"]; given && string(v) != `"auto"` {
		dim = f.number("mamba_d_head")
	} else if all := channels(); heads < 1 || all%heads != 0 {
		f.problems.add("mamba_d_head: not a number, and %d channels over %d heads do not give one", all, heads)
	} else {
		dim = all / heads
	}
	return mamba2(o, mamba2Sizes{
		heads: heads, dim: dim, state: f.number("mamba_d_state"),
		groups: f.number("mamba_n_groups"), kernel: f.number("mamba_d_conv"),
	})
}

// expanded returns the channels of Mamba2 over all heads.
func (f *fields) expanded() int { return f.numberOr("mamba_expand", 2) * f.number("hidden_size") }

// falconChannels returns mamba_d_ssm. In Falcon-H1, null means the expanded size, and a
// missing field means the default of its configuration class.
func (f *fields) falconChannels() int {
	if _, given := f.values["mamba_d_ssm"]; !given {
		return 1024
	}
	return f.numberElse("mamba_d_ssm", f.expanded)
}

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
	linear := mamba1(o, channels, f.number("mamba_d_state"), f.number("mamba_d_conv"))
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

// mamba1 maps Mamba1 onto keys and values: every channel is a head with a value of size
// one.
func mamba1(o *ConfigOptions, channels, state, kernel int) Layer {
	return Layer{Kind: KindLinear, Linear: Linear{
		Family: Mamba1, KeyHeads: channels, ValueHeads: channels, KeyDim: state, ValueDim: 1,
		StateDType: o.StateDType, TransitionDType: o.TransitionDType,
		Conv: Conv{Kernel: kernel, Channels: []int{channels}, DType: o.ConvDType},
	}}
}

// readMamba reads Mamba and Falcon-Mamba, which have no attention.
func readMamba(f *fields, o *ConfigOptions, n int) []Layer {
	channels := f.numberElse("intermediate_size", func() int { return f.number("expand") * f.number("hidden_size") })
	return slices.Repeat([]Layer{mamba1(o, channels, f.number("state_size"), f.number("conv_kernel"))}, n)
}

// readMamba2 reads Mamba2, which has no attention.
func readMamba2(f *fields, o *ConfigOptions, n int) []Layer {
	return slices.Repeat([]Layer{mamba2(o, mamba2Sizes{
		heads: f.number("num_heads"), dim: f.number("head_dim"), state: f.number("state_size"),
		groups: f.number("n_groups"), kernel: f.number("conv_kernel"),
	})}, n)
}

// readFalconH1 reads Falcon-H1. It runs Mamba2 and attention in parallel, so that each
// decoder layer is two layers of the profile, Mamba2 first. The config must have a rope
// base, because engines have different defaults.
func readFalconH1(f *fields, o *ConfigOptions, n int) []Layer {
	dim := f.headDim()
	full := f.attention(o, dim, f.ropeOr(f.numberOr("attn_rotary_emb", dim), mustSay, 1))
	return slices.Repeat([]Layer{f.mamba2(o, f.falconChannels), full}, n)
}

// readZamba reads Zamba: every layer has Mamba1, and some have an attention block before
// it.
func readZamba(f *fields, o *ConfigOptions, n int) []Layer {
	channels := f.number("mamba_expand") * f.number("hidden_size")
	return f.behindShared(o, n, mamba1(o, channels, f.number("mamba_d_state"), f.number("mamba_d_conv")))
}

// readZamba2 reads Zamba2, which is Zamba with Mamba2.
func readZamba2(f *fields, o *ConfigOptions, n int) []Layer {
	heads := f.number("n_mamba_heads")
	dim := f.numberElse("mamba_headdim", func() int { return f.number("mamba_expand") * f.number("hidden_size") / max(heads, 1) })
	return f.behindShared(o, n, mamba2(o, mamba2Sizes{
		heads: heads, dim: dim, state: f.number("mamba_d_state"), groups: f.number("mamba_ngroups"), kernel: f.number("mamba_d_conv"),
	}))
}

// behindShared reads which linear layers follow an attention block. Attention blocks share
// their weights but not their keys, so a linear layer with a block before it becomes two
// layers of the profile, attention first. An attention block reads rows twice as wide as
// the hidden size.
func (f *fields) behindShared(o *ConfigOptions, n int, linear Layer) []Layer {
	dim := f.numberElse("attention_head_dim", func() int { return 2 * f.number("hidden_size") / max(f.number("num_attention_heads"), 1) })
	var rope Rope
	if f.flag("use_mem_rope", false) {
		rope = f.rope(dim)
	}
	full := f.attention(o, dim, rope)
	var layers []Layer
	for _, l := range f.layersByName("layers_block_type", n, map[string]Layer{"linear_attention": linear, "mamba": linear, "hybrid": full}) {
		if l.Kind == KindFull {
			layers = append(layers, full)
		}
		layers = append(layers, linear)
	}
	return layers
}
