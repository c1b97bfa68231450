package replay

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/replay/flops"
)

// Model has what a replay needs to know about a language model: the bytes of its state, the work
// of a prefill, and the time of a prefill.
type Model struct {
	Name    string
	Shape   flops.Shape
	Prefill cost.Prefill
	Fit     string // source of Prefill, for display
	Step    int    // tokens to compute are rounded up to a multiple; 0 = no rounding

	measured bool // Prefill was set, and hits are valued by it
}

// SetPrefill sets the cost of computing, by which hits are valued.
func (m *Model) SetPrefill(p cost.Prefill) {
	m.Prefill, m.Fit, m.Step, m.measured = p, "as given", 0, true
}

// ttft returns the modelled milliseconds to the first token of a prompt. input is the number of
// tokens of the prompt, and hit is the number of its leading tokens that are cached. The number
// of computed tokens is rounded up to a multiple of Step.
func (m *Model) ttft(input, hit int) float64 {
	hit = min(hit, input)
	if m.Step > 0 {
		input = hit + ((input-hit)/m.Step+1)*m.Step
	}
	return m.Prefill.Fixed + m.Prefill.Marginal(hit, input)
}

// Preset returns a model by name.
func Preset(name string) (Model, bool) {
	switch name {
	case PresetMarconi:
		return Model{
			Name: "Marconi's 7B hybrid: 24 SSM, 4 attention and 28 MLP layers", Shape: flops.MarconiHybrid7B(flops.ScanCode),
			// The fit is least squares over the paper's published measurements of prefills,
			// which are 50 tokens apart. Like the paper, Step rounds up to the next measurement.
			Prefill: cost.Prefill{Fixed: 17.814, PerToken: 0.052964}, Step: 50,
			Fit: "linear fit of Jamba-1.5-Mini on four A100 (Marconi's artifact)",
		}, true
	case PresetGDN:
		return gdn40(), true
	}
	return Model{}, false
}

// Names of presets. The first is the default for prompts, the second for segments.
const (
	PresetMarconi = "marconi-7b"
	PresetGDN     = "gdn-40l"
)

// gdn40 returns a model of 30 gated-delta-rule layers (32 value heads, 128×128) and 10 attention
// layers with two key-value heads of 256, with transitions in 16 bits and states in 32 bits. It
// is the usual example for the storage of position-independent segments.
func gdn40() Model {
	const linear, heads, dim, attention, rowBytes = 30, 32, 128, 10, 2048
	const t, s = linear * heads * dim * dim * 2, linear * heads * dim * dim * 4
	return Model{
		Name:    "40 layers: 30 gated delta rule (32 heads of 128×128), 10 attention",
		Shape:   flops.Shape{Shape: cost.Shape{KVBytes: attention * rowBytes, StateBytes: s, SegmentBytes: t + s}},
		Prefill: cost.DefaultPrefill, Fit: "a guess: -prefill gives your own",
	}
}

// FromConfig reads a Hugging Face config.json.
func FromConfig(text []byte, o profile.ConfigOptions) (Model, error) {
	id, err := profile.FromConfig(text, o)
	if err != nil {
		return Model{}, err
	}
	p, err := profile.New(id)
	if err != nil {
		return Model{}, err
	}
	widths, err := flops.ReadWidths(text)
	if err != nil {
		return Model{}, err
	}
	m := Model{Name: fmt.Sprintf("%s, %d layers", id.Model, p.Layers()), Shape: flops.OfProfile(p, widths)}
	const flopsPerSecond, fixedMillis = 300e12, 10
	if m.Prefill = m.Shape.Prior(flopsPerSecond, fixedMillis); m.Prefill.IsZero() {
		m.Prefill, m.Fit = cost.DefaultPrefill, "a guess: -prefill gives your own"
	} else {
		m.Fit = "work of the model at 300 TFLOP/s, a guess: -prefill gives your own"
	}
	return m, nil
}
