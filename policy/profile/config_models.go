package profile

import (
	"slices"
	"strings"
)

// readQwen3Next reads Qwen3-Next and Qwen3.5. They have the gated delta rule after one
// convolution over q, k and v, and gated full attention with partial rope.
func readQwen3Next(f *fields, o *ConfigOptions, n int) []Layer {
	kh, vh := f.number("linear_num_key_heads"), f.number("linear_num_value_heads")
	dk, dv := f.number("linear_key_head_dim"), f.number("linear_value_head_dim")
	linear := delta(o, GDN, kh, vh, dk, dv, f.number("linear_conv_kernel_dim"))
	dim := f.numberOr("head_dim", 256)
	full := f.attention(o, dim, f.ropeOr(dim, 1e4, 0.25))
	if f.has("layer_types") {
		return f.layersByName("layer_types", n, layerNames(linear, full))
	}
	return f.everyNth(n, "full_attention_interval", f.numberOr("full_attention_interval", 4), linear, full)
}

// delta returns a layer with a delta rule after convolutions over q, k and v.
func delta(o *ConfigOptions, family Family, keyHeads, valueHeads, keyDim, valueDim, kernel int) Layer {
	keys := o.spread(keyHeads) * keyDim
	return Layer{Kind: KindLinear, Linear: Linear{
		Family: family, KeyHeads: keyHeads, ValueHeads: valueHeads, KeyDim: keyDim, ValueDim: valueDim,
		StateDType: o.StateDType, TransitionDType: o.TransitionDType,
		Conv: Conv{Kernel: kernel, Channels: []int{keys, keys, valueHeads * valueDim}, DType: o.ConvDType},
	}}
}

// readKimiLinear reads Kimi-Linear. It has KDA with three convolutions, and MLA, usually
// without positions. The published files list the linear and the full layers, counting from
// one. Files that transformers wrote name each layer instead, and their MLA never has
// positions.
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
	linear := delta(o, KDA, heads, heads, dim, dim, size("short_conv_kernel_size"))
	mla := f.mla(o, listed && !f.flag("mla_use_nope", false))
	if !listed {
		return f.layersByName("layer_types", n, layerNames(linear, mla))
	}
	return c.kimiLayers(n, linear, mla)
}

// mla reads latent attention. If the parameter turned is true, rope rotates the whole
// shared key in interleaved pairs; otherwise there is no rope.
func (f *fields) mla(o *ConfigOptions, turned bool) Layer {
	a := Attention{KVHeads: 1, KeyDim: f.number("qk_rope_head_dim"), ValueDim: f.number("kv_lora_rank"), DType: o.KVDType, Keys: AtZero}
	if turned {
		a.Rope = f.ropeOver(a.KeyDim, 1e4)
		a.Rope.Interleaved = true
	}
	return Layer{Kind: KindMLA, Attention: a}
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

// readBailingLinear reads Ring and Ling linear models. They have Lightning attention with
// rope inside, and every layer_group_size-th layer is full attention.
func readBailingLinear(f *fields, o *ConfigOptions, n int) []Layer {
	dim := f.headDim()
	return f.bailingLayers(n, f.turnedLightning(o, dim), f.attention(o, dim, f.rope(dim)))
}

// readBailingHybrid reads Ring and Ling since version 2.5, whose full layers are MLA. The
// linear layers are Lightning attention in version 2.5 and KDA in version 3. A file with a
// convolution is of version 3. Files that transformers writes are an exception: it has a
// class for version 3 only, so its files always have a convolution. In them, the field
// architectures tells version 2.5 apart. These files also name the layers and have the head
// size as linear_head_dim.
func readBailingHybrid(f *fields, o *ConfigOptions, n int) []Layer {
	heads, mla := f.number("num_attention_heads"), f.mla(o, true)
	dim := f.numberElse("linear_head_dim", f.headDim)
	if f.flag("use_mla_nope", false) {
		f.problems.add("use_mla_nope: set, and engines differ in what they keep of the shared key then")
	}
	if f.has("short_conv_kernel_size") && !(f.has("architectures") && slices.Contains(f.texts("architectures"), "BailingMoeV2_5ForCausalLM")) {
		kda := delta(o, KDA, heads, heads, dim, dim, f.number("short_conv_kernel_size"))
		if f.has("layer_types") {
			return f.layersByName("layer_types", n, layerNames(kda, mla))
		}
		return f.bailingLayers(n, kda, mla)
	}
	group := f.number("layer_group_size")
	if group > 0 && n%group != 0 {
		f.problems.add("layer_group_size: %d of %d layers, and engines differ in the layers behind the last group", group, n)
	}
	return f.bailingLayers(n, f.turnedLightning(o, dim), mla)
}

func (f *fields) turnedLightning(o *ConfigOptions, dim int) Layer {
	linear := lightning(o, f.number("num_attention_heads"), dim)
	if f.flag("linear_rope", true) {
		linear.Linear.Rope = f.rope(dim)
	}
	return linear
}

func (f *fields) bailingLayers(n int, linear, full Layer) []Layer {
	group := f.number("layer_group_size")
	layers := f.everyNth(n, "layer_group_size", group, linear, full)
	for i := n - n%max(group, 1); i < len(layers); i++ {
		layers[i] = full // an incomplete last group is full attention
	}
	return layers
}

// readMiniMax reads MiniMax-Text-01 and M1. They have Lightning attention without rope, and
// full attention in the layers where attn_type_list has a 1. Files that transformers wrote
// name the layers in layer_types instead. transformers ignores rotary_dim and rotates whole
// heads.
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

// readOlmoHybrid reads OLMo hybrids: gated delta rule, and attention with or without
// positions. Missing sizes of the linear layers follow from those of attention.
func readOlmoHybrid(f *fields, o *ConfigOptions, n int) []Layer {
	heads := func() int { return f.number("num_attention_heads") }
	kh, vh := f.numberElse("linear_num_key_heads", heads), f.numberElse("linear_num_value_heads", heads)
	dk := f.numberElse("linear_key_head_dim", func() int { return f.number("hidden_size") * 3 / (4 * max(kh, 1)) })
	dv := f.numberOr("linear_value_head_dim", 2*dk)
	linear := delta(o, GDN, kh, vh, dk, dv, f.numberOr("linear_conv_kernel_dim", 4))
	dim := f.headDim()
	full := f.attention(o, dim, f.olmoRope(dim))
	if f.has("layer_types") {
		return f.layersByName("layer_types", n, layerNames(linear, full))
	}
	return f.everyNth(n, "layer_types", 4, linear, full)
}

// olmoRope reads a rope that is off if its base is null. If the config has no base, the
// usual base applies, also if rope_parameters is null.
func (f *fields) olmoRope(dim int) Rope {
	base := f.values["rope_theta"]
	if p, nested := f.object("rope_parameters"); nested {
		if v, given := p.values["rope_theta"]; given {
			base = v
		}
	}
	if string(base) == "null" {
		return Rope{}
	}
	return f.rope(dim)
}

// readLfm2 reads LFM2, dense or with experts: short convolutions, and attention.
func readLfm2(f *fields, o *ConfigOptions, n int) []Layer {
	channels := f.numberElse("conv_dim", func() int { return f.number("hidden_size") })
	conv := Layer{Kind: KindConv, Linear: Linear{Conv: Conv{
		Kernel: f.number("conv_L_cache"), Channels: []int{channels}, DType: o.ConvDType,
	}}}
	dim := f.headDim()
	full := f.attention(o, dim, f.ropeOr(dim, 1e6, 1))
	if f.has("layer_types") {
		return f.layersByName("layer_types", n, map[string]Layer{"conv": conv, "full_attention": full})
	}
	return f.layersAt(n, "full_attn_idxs", conv, full)
}

// readPlain reads models without linear layers. A model with sliding_window has window
// layers, unless use_sliding_window is false. The default of use_sliding_window is false
// for Qwen models and true for others. layer_types names the window layers. Without
// layer_types, the window layers are all layers from number max_window_layers on (default
// 0).
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

// layerNames maps the names in configs to layers. The shorter names are older than
// transformers 5.
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

// everyNth returns layers in groups of n: the last of each group is full, the others are
// linear.
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

// layersAt returns layers that are full at the listed indexes and linear elsewhere.
func (f *fields) layersAt(layers int, field string, linear, full Layer) []Layer {
	out := slices.Repeat([]Layer{linear}, layers)
	for _, i := range f.numbers(field) {
		if i < 0 || i >= layers {
			f.problems.add("%s: %d, want 0 to %d", field, i, layers-1)
			return nil
		}
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
