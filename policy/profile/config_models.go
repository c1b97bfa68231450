package profile

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// readLayers reads n decoder layers by the first row for modelType that applies.
func (f *fields) readLayers(rows []*modelRow, modelType string, o *ConfigOptions, n int) []Layer {
	for _, row := range rows {
		if !slices.Contains(row.Types, modelType) {
			continue
		}
		changed := f.changedBy(row)
		switch {
		case !changed.applies(row):
		case row.Like != "":
			return changed.readLayers(rows, row.Like, o, n)
		default:
			return changed.layersBy(row, o, n)
		}
	}
	return nil
}

// changedBy returns the fields with a row's changes.
func (f *fields) changedBy(row *modelRow) fields {
	out := *f
	out.values, out.defaults = maps.Clone(f.values), map[string]json.RawMessage{}
	maps.Copy(out.defaults, f.defaults)
	for _, name := range row.Ignores {
		delete(out.values, name)
	}
	for name, v := range row.Defaults {
		if !out.has(name) {
			out.values[name], out.defaults[name] = v, v
		}
	}
	for name, v := range row.Absent {
		if _, given := out.values[name]; !given {
			out.values[name], out.defaults[name] = v, v
		}
	}
	if row.Section != "" {
		section, _ := f.object(row.Section)
		for name, v := range section.values {
			out.values[row.Section+"."+name] = v
		}
	}
	return out
}

// applies returns whether a row's conditions hold.
func (f *fields) applies(row *modelRow) bool {
	if row.Section != "" && !f.has(row.Section) || row.Has != "" && !f.has(row.Has) || !f.haveValues(row.If) {
		return false
	}
	if row.UnlessClass != "" && f.has("architectures") {
		return !slices.Contains(f.texts("architectures"), row.UnlessClass)
	}
	return true
}

// haveValues returns whether flags and texts have the given values.
func (f *fields) haveValues(want map[string]any) bool {
	for name, v := range want {
		var got any
		if _, isText := v.(string); isText {
			got = f.text(name)
		} else {
			got = f.flag(name)
		}
		if got != v {
			return false
		}
	}
	return true
}

func (f *fields) layersBy(row *modelRow, o *ConfigOptions, n int) []Layer {
	for flag, why := range row.Refuses {
		if f.flag(flag) {
			f.problems.add("%s: %s", flag, why)
		}
	}
	kinds := map[string]Layer{}
	if row.Linear != nil {
		kinds["linear"] = f.linear(row.Linear, o)
	}
	if a := row.Attention; a != nil {
		full := f.attention(a, o)
		kinds["full"] = full
		if a.Window != "" {
			full.Kind, full.Attention.Window = KindWindow, f.number(a.Window)
			kinds["window"] = full
		}
	}
	rule := slices.IndexFunc(row.Layers, func(r layerRule) bool { return f.has(cmp.Or(r.Names, r.At)) })
	if rule < 0 {
		rule = len(row.Layers) - 1
	}
	var layers []Layer
	for _, names := range f.kinds(&row.Layers[rule], n) {
		for _, name := range strings.Fields(names) {
			layers = append(layers, kinds[name])
		}
	}
	return layers
}

// size reads a size, see modelRow.
func (f *fields) size(text string) int {
	options := strings.Split(text, " | ")
	last := len(options) - 1
	for _, name := range options[:last] {
		if n := f.numberOr(name, 0); n != 0 {
			return n
		}
	}
	n, divide := 1, false
	for _, term := range strings.Fields(options[last]) {
		switch {
		case term == "*" || term == "/":
			divide = term == "/"
		case divide:
			n /= max(f.term(term), 1)
		default:
			n *= f.term(term)
		}
	}
	for _, name := range options[:last] {
		f.assume(name, n)
	}
	return n
}

func (f *fields) term(text string) int {
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	if text == "attention_dim" {
		return f.headDim()
	}
	return f.number(text)
}

// linear reads a linear layer in terms of keys and values. In Mamba2, B is the key, x is the
// value, and the convolution runs over [x | B | C]. In Mamba1, every channel is a head with
// a value of size 1. A delta rule has a convolution over q, k and v.
func (f *fields) linear(row *linearRow, o *ConfigOptions) Layer {
	conv := Conv{DType: o.ConvDType}
	if row.Family == "" {
		conv.Kernel, conv.Channels = f.size(row.Kernel), []int{f.size(row.Channels)}
		return Layer{Kind: KindConv, Linear: Linear{Conv: conv}}
	}
	read := func(name, text string) int {
		n := f.size(text)
		f.values[name] = json.RawMessage(strconv.Itoa(n)) // for sizes that depend on it
		return n
	}
	l := Linear{Family: familyNamed(row.Family), StateDType: o.StateDType, TransitionDType: o.TransitionDType}
	l.ValueHeads = read("value_heads", row.ValueHeads)
	l.KeyHeads = read("key_heads", cmp.Or(row.KeyHeads, "value_heads"))
	l.KeyDim = read("key_dim", row.KeyDim)
	l.ValueDim = f.valueDim(row, l.ValueHeads)
	l.Rope = f.ropeBy(row.Rope, l.KeyDim)
	if l.Family.Transition() == Scalar {
		l.TransitionDType = F32
	}
	if row.Kernel == "" {
		return Layer{Kind: KindLinear, Linear: l}
	}
	// If there are fewer key heads or groups than ranks, each rank has a copy of one.
	keys, values := max(l.KeyHeads, o.TPSize)*l.KeyDim, l.ValueHeads*l.ValueDim
	switch l.Family {
	case Mamba1:
		conv.Channels = []int{values}
	case Mamba2:
		conv.Channels = []int{values, keys, keys}
	default:
		conv.Channels = []int{keys, keys, values}
	}
	conv.Kernel = f.size(row.Kernel)
	l.Conv = conv
	return Layer{Kind: KindLinear, Linear: l}
}

func (f *fields) valueDim(row *linearRow, heads int) int {
	if row.Channels == "" {
		return f.size(cmp.Or(row.ValueDim, "key_dim"))
	}
	if v, given := f.values[row.ValueDim]; given && string(v) != `"auto"` {
		return f.number(row.ValueDim)
	}
	channels := f.size(row.Channels)
	if heads < 1 || channels%heads != 0 {
		f.problems.add("%s: not a number, and %d channels over %d heads do not give one", row.ValueDim, channels, heads)
		return 1
	}
	f.assume(row.ValueDim, channels/heads)
	return channels / heads
}

func familyNamed(name string) Family {
	return Family(slices.IndexFunc(families[:], func(f familyRow) bool { return f.name == name }))
}

// attention reads latent or grouped-query attention.
func (f *fields) attention(row *attentionRow, o *ConfigOptions) Layer {
	a := Attention{DType: o.KVDType, Keys: AtZero}
	if row.Latent {
		a.KVHeads, a.KeyDim, a.ValueDim = 1, f.number("qk_rope_head_dim"), f.number("kv_lora_rank")
		if row.Rope != nil && f.haveValues(row.Rope.If) {
			a.Rope = f.ropeOver(a.KeyDim)
			a.Rope.Interleaved = true
		}
		return Layer{Kind: KindMLA, Attention: a}
	}
	a.KeyDim = f.size(cmp.Or(row.Dim, "attention_dim"))
	a.ValueDim = a.KeyDim
	a.Rope = f.ropeBy(row.Rope, a.KeyDim)
	a.KVHeads = f.size("num_key_value_heads | num_attention_heads")
	f.checkQueryGroups(a.KVHeads)
	return Layer{Kind: KindFull, Attention: a}
}

// checkQueryGroups refuses attention heads that cannot be divided among the key-value heads.
func (f *fields) checkQueryGroups(kvHeads int) {
	heads := f.numberOr("num_attention_heads", 0)
	if kvHeads < 1 || heads%kvHeads == 0 {
		return
	}
	missing := ""
	if _, isDefault := f.defaults["num_key_value_heads"]; isDefault {
		missing = "missing, and the default "
	}
	f.problems.add("num_key_value_heads: %s%d does not divide num_attention_heads, which is %d", missing, kvHeads, heads)
}

func (f *fields) ropeBy(row *ropeRow, dim int) Rope {
	if row == nil || !f.haveValues(row.If) {
		return Rope{}
	}
	if row.OffIfNull != "" {
		v := f.values[row.OffIfNull]
		if p, _ := f.object("rope_parameters"); p.values[row.OffIfNull] != nil {
			v = p.values[row.OffIfNull]
		}
		if string(v) == "null" {
			return Rope{}
		}
	}
	if row.Dims != "" {
		dim = f.numberOr(row.Dims, dim)
		f.assume(row.Dims, dim)
	}
	return f.rope(dim)
}

// kinds returns the names of kinds for each of n decoder layers.
func (f *fields) kinds(r *layerRule, n int) []string {
	switch {
	case r.Names != "":
		return f.named(r.Names, f.texts(r.Names), r.Of, n)
	case r.Letters != "":
		return f.named(r.Letters, strings.Split(f.text(r.Letters), ""), r.Of, n)
	case r.Numbers != "":
		var texts []string
		for _, v := range f.numbers(r.Numbers) {
			texts = append(texts, strconv.Itoa(v))
		}
		return f.named(r.Numbers, texts, r.Of, n)
	case r.Every != "":
		return f.everyNth(r, n)
	case r.OneOf != nil:
		return f.oneOf(r.OneOf, n)
	case r.Until != "":
		full := min(max(f.number(r.Until), 0), n)
		return slices.Concat(slices.Repeat([]string{"full"}, full), slices.Repeat([]string{"window"}, n-full))
	case r.At != "":
		return f.at(r.At, n)
	}
	return slices.Repeat([]string{r.Each}, n)
}

func (f *fields) named(field string, texts []string, of map[string]string, n int) []string {
	if len(texts) != n {
		f.problems.add("%s: %d entries for %d layers", field, len(texts), n)
		return nil
	}
	if of == nil {
		of = layerNames
	}
	out := make([]string, n)
	for i, text := range texts {
		kind, known := of[text]
		if !known {
			f.problems.add("%s: %q at layer %d is not known, want one of %q", field, text, i, slices.Sorted(maps.Keys(of)))
		}
		out[i] = kind
	}
	return out
}

func (f *fields) everyNth(r *layerRule, n int) []string {
	group := f.size(r.Every)
	if group < 1 {
		f.problems.add("%s: %d, want at least 1", r.Every, group)
		return nil
	}
	offset, whole := group-1, n-n%group
	if r.Offset != "" {
		offset = f.number(r.Offset)
	}
	if r.Rest == "refused" && whole < n {
		f.problems.add("%s: %d of %d layers, and engines differ in the layers behind the last group", r.Every, group, n)
	}
	out := slices.Repeat([]string{"linear"}, n)
	for i := range out {
		if i%group == offset || i >= whole && r.Rest == "full" {
			out[i] = "full"
		}
	}
	return out
}

func (f *fields) oneOf(lists map[string]string, n int) []string {
	out := make([]string, n)
	for _, kind := range slices.Sorted(maps.Keys(lists)) {
		for _, i := range f.numbers(lists[kind]) {
			switch {
			case i < 1 || i > n:
				f.problems.add("%s: layer %d, want 1 to %d", lists[kind], i, n)
			case !slices.Contains(strings.Fields(out[i-1]), kind):
				out[i-1] += kind + " "
			}
		}
	}
	for i, kinds := range out {
		if count := len(strings.Fields(kinds)); count != 1 {
			f.problems.add("%s: layer %d is in %d of them, want one", strings.Join(slices.Sorted(maps.Values(lists)), ", "), i+1, count)
		}
	}
	return out
}

func (f *fields) at(field string, n int) []string {
	out := slices.Repeat([]string{"linear"}, n)
	for _, i := range f.numbers(field) {
		if i < 0 || i >= n {
			f.problems.add("%s: layer %d, want 0 to %d", field, i, n-1)
			return nil
		}
		out[i] = "full"
	}
	return out
}
