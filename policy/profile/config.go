package profile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ConfigOptions has what a Hugging Face config.json lacks. Zero values mean the
// default next to each field.
type ConfigOptions struct {
	Model           string   // default: the config's model_type
	Weights         [32]byte // required by New
	TPSize          int      // default 1
	KVDType         DType    // default BF16
	ConvDType       DType    // default BF16
	StateDType      DType    // default F32
	TransitionDType DType    // default F16; scalar transitions are always F32
	// Slopes gives the decay exponents of a Lightning layer as the engine uses them, one
	// per head. There is no default, because engines derive them by different formulas.
	// Sizes do not depend on them.
	Slopes func(layer, heads int) []float64
}

// FromConfig reads the Hugging Face config.json of a known architecture. Errors
// wrap ErrInvalid and name every missing or unusable field.
func FromConfig(configJSON []byte, o ConfigOptions) (Identity, error) {
	id, _, err := ReadConfig(configJSON, o)
	return id, err
}

// ReadConfig is FromConfig, and also returns notes for people.
func ReadConfig(configJSON []byte, o ConfigOptions) (Identity, ConfigNotes, error) {
	f := fields{problems: &problems{}, lookups: newLookups()}
	if err := DecodeConfig(configJSON, &f.values); err != nil {
		return Identity{}, ConfigNotes{}, fmt.Errorf("config: %w: %w", ErrInvalid, err)
	}
	f.lookups.open("", f.values)
	modelType := f.text("model_type")
	o.fill(modelType)
	id := Identity{Model: o.Model, Weights: o.Weights, TPSize: o.TPSize}
	table := readModels()
	if slices.Contains(table.Wrappers, modelType) {
		f, modelType = f.textModel(modelType)
	}
	types := table.types()
	known := slices.Contains(types, modelType)
	if !known && len(*f.problems) == 0 {
		f.problems.add("model_type %q is not known, want one of %q", modelType, types)
	}
	if known {
		before := len(*f.problems)
		switch n := f.layers(); {
		case len(*f.problems) > before: // missing or not a number: reported already
		case n < 1 || n > MaxLayers:
			f.problems.add("num_hidden_layers: %d, want 1 to %d", n, MaxLayers)
		default:
			id.Layers = f.readLayers(table.Models, modelType, &o, n)
			o.addSlopes(id.Layers, f.problems)
		}
	}
	if len(*f.problems) > 0 {
		return Identity{}, ConfigNotes{}, fmt.Errorf("config: %w: %w", ErrInvalid, errors.Join(*f.problems...))
	}
	return id, f.lookups.notes(), nil
}

func (o *ConfigOptions) fill(modelType string) {
	o.Model = cmp.Or(o.Model, modelType)
	o.TPSize = max(o.TPSize, 1)
	setDefault(&o.KVDType, BF16)
	setDefault(&o.ConvDType, BF16)
	setDefault(&o.StateDType, F32)
	setDefault(&o.TransitionDType, F16)
}

func (o *ConfigOptions) addSlopes(layers []Layer, ps *problems) {
	for i := range layers {
		l := &layers[i].Linear
		if l.Family != Lightning || l.ValueHeads < 1 || l.ValueHeads > MaxHeads {
			continue
		}
		if o.Slopes == nil {
			ps.add("decay slopes: not in the config, they have to be given")
			return
		}
		l.Slopes = o.Slopes(i, l.ValueHeads)
	}
}

func setDefault(d *DType, v DType) {
	if *d == 0 {
		*d = v
	}
}

// fields reads named JSON values. It records a problem for each value that is missing or
// has another type.
type fields struct {
	values   map[string]json.RawMessage
	defaults map[string]json.RawMessage // those of values that are not from the config
	problems *problems
	lookups  *lookups
	prefix   string // of the names in lookups
}

func (f *fields) has(name string) bool {
	v, ok := f.values[name]
	_, isDefault := f.defaults[name]
	found := ok && string(v) != "null"
	f.lookups.lookup(f.prefix+name, found && !isDefault)
	return found
}

// assume records the value that is used for a field unless the config has it.
func (f *fields) assume(name string, v any) {
	if !f.has(name) {
		f.lookups.assume(f.prefix+name, v)
	}
}

func (f *fields) read(name string, into any) bool {
	if !f.has(name) {
		f.problems.add("%s: missing", name)
		return false
	}
	if err := json.Unmarshal(f.values[name], into); err != nil {
		f.problems.add("%s: %w", name, err)
		return false
	}
	if v, isDefault := f.defaults[name]; isDefault {
		f.lookups.assume(f.prefix+name, v)
	}
	return true
}

func (f *fields) text(name string) (v string)     { f.read(name, &v); return v }
func (f *fields) number(name string) (v int)      { f.read(name, &v); return v }
func (f *fields) numbers(name string) (v []int)   { f.read(name, &v); return v }
func (f *fields) texts(name string) (v []string)  { f.read(name, &v); return v }
func (f *fields) real(name string) (v float64)    { f.read(name, &v); return v }
func (f *fields) numberOr(name string, v int) int { f.optional(name, &v); return v }

func (f *fields) flag(name string) (v bool) {
	f.optional(name, &v)
	f.assume(name, v)
	return v
}

func (f *fields) optional(name string, into any) {
	if f.has(name) {
		f.read(name, into)
	}
}

func (f *fields) object(name string) (fields, bool) {
	o := fields{problems: f.problems}
	if !f.has(name) {
		return o, false
	}
	if !f.read(name, &o.values) {
		return o, false
	}
	if _, isFloat := o.values[floatTag]; isFloat {
		f.problems.add("%s: a number, want an object", name)
		return o, false
	}
	o.lookups, o.prefix = f.lookups, f.prefix+name+"."
	o.lookups.open(o.prefix, o.values)
	return o, true
}

// textModel returns the config of the text model inside a wrapper's config, and the text
// model's type. If the text model's config has no type, or if the wrapper has no such
// config, the type is the wrapper's own.
func (f *fields) textModel(modelType string) (fields, string) {
	for _, name := range []string{"text_config", "llm_config"} {
		if text, nested := f.object(name); nested {
			text.optional("model_type", &modelType)
			return text, modelType
		}
	}
	return *f, modelType
}

// layers returns the number of decoder layers. In files of Nemotron-H that transformers 5
// wrote, this is only the length of a list.
func (f *fields) layers() int {
	if !f.has("num_hidden_layers") && f.has("layers_block_type") {
		return len(f.texts("layers_block_type"))
	}
	return f.number("num_hidden_layers")
}

// headDim returns head_dim or, if it is missing, the hidden size divided by the number of
// heads.
func (f *fields) headDim() int {
	if f.has("head_dim") {
		return f.number("head_dim")
	}
	hidden, heads := f.number("hidden_size"), f.number("num_attention_heads")
	if heads < 1 || hidden%heads != 0 {
		f.problems.add("head_dim: missing, and hidden_size %d over %d heads does not tell", hidden, heads)
		return 1
	}
	f.assume("head_dim", hidden/heads)
	return hidden / heads
}

// mustSay is the default of a rope base that a config must have.
const mustSay = 0

// rope reads a rotary embedding in the order of NeoX. It rotates a share of the dim
// dimensions of a head, by default all. The values come from rope_parameters or from the
// older top-level fields.
func (f *fields) rope(dim int) Rope {
	dims := int(float64(dim) * f.ropeReal("partial_rotary_factor", 1)) // truncated, as engines do
	return f.ropeOver(f.numberOr("rotary_dim", dims))
}

// ropeOver returns rope over dims dimensions. It ignores the share in the config.
func (f *fields) ropeOver(dims int) Rope {
	r := Rope{Dims: dims, Theta: f.ropeReal("rope_theta", 1e4)}
	if r.Theta == mustSay {
		f.problems.add("rope_theta: missing")
	}
	if r.Dims < 0 || r.Dims > MaxDim {
		f.problems.add("rope turns %d dimensions, want 0 to %d", r.Dims, MaxDim)
		return Rope{}
	}
	src := fields{values: f.values, problems: f.problems} // no lookups: files have their type in an object
	for _, name := range []string{"rope_parameters", "rope_scaling"} {
		if nested, has := f.object(name); has {
			src = nested
		}
	}
	src.scale(&r)
	return r
}

// ropeReal returns a value of rope_parameters or, if it is not there, of the older
// top-level field. v is the default.
func (f *fields) ropeReal(name string, v float64) float64 {
	if p, nested := f.object("rope_parameters"); nested && p.has(name) {
		return p.real(name)
	}
	f.optional(name, &v)
	f.assume(name, v)
	return v
}

// scale applies a rope scaling. It supports only scalings that change nothing but
// frequencies.
func (f *fields) scale(r *Rope) {
	kind := "default"
	f.optional("type", &kind)
	f.optional("rope_type", &kind)
	switch kind {
	case "default":
	case "linear":
		factor := f.real("factor")
		f.rescale(r, func(freq float64) float64 { return freq / factor })
	case "llama3":
		factor, low, high := f.real("factor"), f.real("low_freq_factor"), f.real("high_freq_factor")
		context := f.real("original_max_position_embeddings")
		f.rescale(r, func(freq float64) float64 { return llama3Frequency(freq, factor, low, high, context) })
	default:
		f.problems.add("rope scaling %q is not supported, want default, linear or llama3", kind)
	}
}

// rescale passes each frequency through the function turn and stores the results in
// Rope.InvFreq, rounded to F32 as engines do. Unrounded results would differ between
// libraries in the last bits of a power, but an identity must be the same everywhere.
func (f *fields) rescale(r *Rope, turn func(float64) float64) {
	if len(*f.problems) > 0 {
		return // the factor may be missing
	}
	r.InvFreq = make([]float64, r.Dims/2)
	for i := range r.InvFreq {
		freq := float64(float32(turn(math.Pow(r.Theta, -2*float64(i)/float64(r.Dims)))))
		if math.IsInf(freq, 0) || math.IsNaN(freq) {
			f.problems.add("rope scaling: frequency %d is %g", i, freq)
			return
		}
		r.InvFreq[i] = freq
	}
	r.Theta = 0
}

// llama3Frequency keeps the frequencies of short wavelengths, divides those of long
// wavelengths by the factor, and interpolates in between.
func llama3Frequency(freq, factor, low, high, context float64) float64 {
	turns := context * freq / (2 * math.Pi)
	switch {
	case turns < low:
		return freq / factor
	case turns > high:
		return freq
	}
	blend := (turns - low) / (high - low)
	return (1-blend)*freq/factor + blend*freq
}
