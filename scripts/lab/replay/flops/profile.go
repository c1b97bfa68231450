package flops

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Widths are sizes of a model that its profile lacks, since they do not affect
// what is cached. The zero value means unknown: the shape then has bytes only.
type Widths struct {
	Hidden      int // hidden_size
	QueryHeads  int // num_attention_heads; 0 = as many as the layer's key-value heads
	FeedForward int // intermediate width for one token, all its experts together
	MLPLayers   int // layers with an MLP; 0 = every layer
	Matrices    int // per MLP; 0 = 3, a gated one
}

// ReadWidths reads the widths from a Hugging Face config.json. It counts only the experts
// that one token uses. Missing values are zero.
func ReadWidths(configJSON []byte) (Widths, error) {
	type sizes struct {
		Type         string   `json:"model_type"`
		Layers       int      `json:"num_hidden_layers"`
		Hidden       int      `json:"hidden_size"`
		Heads        int      `json:"num_attention_heads"`
		Intermediate int      `json:"intermediate_size"`
		Expert       int      `json:"moe_intermediate_size"`
		Visited      int      `json:"num_experts_per_tok"`
		SharedWidth  int      `json:"shared_expert_intermediate_size"`
		Shared       int      `json:"n_shared_experts"`
		Pattern      string   `json:"hybrid_override_pattern"`
		Blocks       []string `json:"layers_block_type"`
	}
	var c struct {
		sizes
		Text *sizes `json:"text_config"`
		LLM  *sizes `json:"llm_config"`
	}
	if err := profile.DecodeConfig(configJSON, &c); err != nil {
		return Widths{}, fmt.Errorf("widths of a config: %w", err)
	}
	s := c.sizes
	if text := cmp.Or(c.Text, c.LLM); text != nil {
		s = *text
	}
	w := Widths{Hidden: s.Hidden, QueryHeads: s.Heads, FeedForward: s.Intermediate}
	switch {
	case s.Expert > 0:
		w.FeedForward = s.Expert*(s.Visited+s.Shared) + s.SharedWidth
	case s.Visited > 0:
		w.FeedForward = s.Intermediate * s.Visited
	}
	alone := strings.Count(s.Pattern, "-")
	for _, name := range s.Blocks {
		switch name {
		case "mlp":
			alone++
		case "hybrid":
			w.MLPLayers++ // in Zamba only layers with a shared block have an MLP
		}
	}
	switch {
	case alone > 0:
		w.MLPLayers, w.Matrices = alone, 2 // Nemotron-H has no gate
	case w.MLPLayers == 0:
		w.MLPLayers = s.Layers // one decoder layer may be two layers of the profile
	}
	if s.Type == "mamba" || s.Type == "falcon_mamba" {
		w.FeedForward = 0 // intermediate_size is the width of the mixer
	}
	return w, nil
}

// OfProfile returns the bytes and the work of a model over all ranks. If Widths.Hidden is
// zero, the work stays zero.
//
// A product with an a×b matrix counts as 2ab operations per token. Attention counts the
// whole square, see the package doc. A recurrent layer projects q, k, v, a gate and the
// output. It also does 6 operations per token and state element: decay, outer product and
// read-out. A convolution projects its input, two gates and the output.
func OfProfile(p *profile.Profile, w Widths) Shape {
	s := Shape{Shape: cost.FromProfile(p)}
	if w.Hidden > 0 {
		s.addWork(p, w)
	}
	return s
}

func (s *Shape) addWork(p *profile.Profile, w Widths) {
	d := float64(w.Hidden)
	for i := range p.Layers() {
		layer := p.Layer(i)
		a, l := &layer.Attention, &layer.Linear
		switch layer.Kind {
		case profile.KindFull:
			s.Attention.add(attentionWork(a, w))
		case profile.KindMLA:
			s.Attention.add(attentionWork(a, w))
		case profile.KindWindow:
			work := attentionWork(a, w)
			work.Window = a.Window
			s.Window.add(work)
		case profile.KindLinear:
			keys, values := float64(l.KeyHeads*l.KeyDim), float64(l.ValueHeads*l.ValueDim)
			s.Linear.add(Work{PerToken: 2*d*(2*keys+3*values) + 6*float64(l.ValueHeads*l.KeyDim*l.ValueDim)})
		case profile.KindConv:
			channels := 0
			for _, n := range l.Conv.Channels {
				channels += n
			}
			s.Linear.add(Work{PerToken: 2 * float64(channels) * (4*d + float64(l.Conv.Kernel))})
		}
	}
	layers, matrices := p.Layers(), 3
	if w.MLPLayers > 0 {
		layers = w.MLPLayers
	}
	if w.Matrices > 0 {
		matrices = w.Matrices
	}
	s.MLP = Work{PerToken: 2 * float64(matrices*layers) * d * float64(w.FeedForward)}
}

func attentionWork(a *profile.Attention, w Widths) Work {
	heads := float64(max(w.QueryHeads, a.KVHeads))
	key, value, kv, d := float64(a.KeyDim), float64(a.ValueDim), float64(a.KVHeads), float64(w.Hidden)
	return Work{
		PerToken:        2 * d * (heads*key + kv*(key+value) + heads*value),
		PerTokenSquared: 2 * heads * (key + value),
	}
}
