package modelfile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Tensor is one named weight in Hugging Face layout: projections are
// [out, in], row-major.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

// Weights is the set of tensors of one model. Names and shapes follow Qwen3-Next (see tensors).
// The values are float32, also for a float64 model.
type Weights struct {
	Config  Config
	tensors []Tensor
	index   map[string]int
}

// role selects the distribution of a seeded tensor.
type role uint8

const (
	roleProjection role = iota // normal, 1/sqrt(fan in)
	roleOutput                 // the same, scaled for the depth of the residual stream
	roleEmbedding              // normal, 1
	roleCentred                // norm weight stored as an offset from one
	roleScale                  // norm weight stored as it is
	roleConv                   // normal, 1/sqrt(kernel)
	roleGate                   // projection of the decay gate, small: decays stay in their range
	roleRate                   // A_log: zero, the rate is in dt_bias
	roleBias                   // dt_bias: sets each head's typical decay
	roleSlope                  // fixed decay exponents
)

type spec struct {
	name  string
	shape []int
	role  role
}

// tensors lists the model's tensors in file order. The names follow Qwen3-Next with dense
// MLPs. As in Qwen3-Next, the rows of in_proj_qkvz and in_proj_ba are grouped by key head. For
// each key head, in_proj_qkvz has the rows of q, of k, and of v and z of the value heads that
// share this key head; in_proj_ba has the rows of b, then of a. With LinearConfig.Separate,
// in_proj_qkv, in_proj_z, in_proj_b and in_proj_a of Qwen3.5 replace these two tensors. All
// families except GDN use the separate in_proj_b and in_proj_a. Fixed decays are in
// linear_attn.slopes.
func (c Config) tensors() []spec {
	list := []spec{{"model.embed_tokens.weight", []int{c.Vocab, c.Dim}, roleEmbedding}}
	for i, kind := range c.Layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		list = append(list, spec{p + "input_layernorm.weight", []int{c.Dim}, roleCentred})
		if kind == profile.KindLinear {
			list = append(list, c.linearTensors(p+"linear_attn.")...)
		} else {
			list = append(list, c.attentionTensors(p+"self_attn.")...)
		}
		list = append(list,
			spec{p + "post_attention_layernorm.weight", []int{c.Dim}, roleCentred},
			spec{p + "mlp.gate_proj.weight", []int{c.Hidden, c.Dim}, roleProjection},
			spec{p + "mlp.up_proj.weight", []int{c.Hidden, c.Dim}, roleProjection},
			spec{p + "mlp.down_proj.weight", []int{c.Dim, c.Hidden}, roleOutput})
	}
	return append(list,
		spec{"model.norm.weight", []int{c.Dim}, roleCentred},
		spec{"lm_head.weight", []int{c.Vocab, c.Dim}, roleProjection})
}

func (c Config) linearTensors(p string) []spec {
	l := c.Linear
	values := l.ValueHeads * l.ValueDim
	var list []spec
	if l.Separate {
		list = append(list, spec{p + "in_proj_qkv.weight", []int{l.ConvChannels(), c.Dim}, roleProjection},
			spec{p + "in_proj_z.weight", []int{values, c.Dim}, roleProjection})
	} else {
		list = append(list, spec{p + "in_proj_qkvz.weight", []int{2*l.KeyHeads*l.KeyDim + 2*values, c.Dim}, roleProjection})
	}
	switch {
	case l.Family == profile.GDN && !l.Separate:
		list = append(list, spec{p + "in_proj_ba.weight", []int{2 * l.ValueHeads, c.Dim}, roleGate})
	default:
		if n := l.Betas(); n > 0 {
			list = append(list, spec{p + "in_proj_b.weight", []int{n, c.Dim}, roleProjection})
		}
		if n := l.Gates(); n > 0 {
			list = append(list, spec{p + "in_proj_a.weight", []int{n, c.Dim}, roleGate})
		}
	}
	if n := l.Gates(); n > 0 {
		list = append(list, spec{p + "dt_bias", []int{n}, roleBias}, spec{p + "A_log", []int{l.ValueHeads}, roleRate})
	}
	if l.Slopes() {
		list = append(list, spec{p + "slopes", []int{l.ValueHeads}, roleSlope})
	}
	if l.Kernel > 0 {
		list = append(list, spec{p + "conv1d.weight", []int{l.ConvChannels(), 1, l.Kernel}, roleConv})
	}
	return append(list,
		spec{p + "norm.weight", []int{l.ValueDim}, roleScale},
		spec{p + "out_proj.weight", []int{c.Dim, values}, roleOutput})
}

func (c Config) attentionTensors(p string) []spec {
	a := c.Attention
	queries := a.Heads * a.HeadDim
	if a.Gate {
		queries *= 2 // per head: query, then gate
	}
	return []spec{
		{p + "q_proj.weight", []int{queries, c.Dim}, roleProjection},
		{p + "k_proj.weight", []int{a.KVHeads * a.HeadDim, c.Dim}, roleProjection},
		{p + "v_proj.weight", []int{a.KVHeads * a.HeadDim, c.Dim}, roleProjection},
		{p + "q_norm.weight", []int{a.HeadDim}, roleCentred},
		{p + "k_norm.weight", []int{a.HeadDim}, roleCentred},
		{p + "o_proj.weight", []int{c.Dim, a.Heads * a.HeadDim}, roleOutput},
	}
}

func newWeights(c Config, n int) *Weights {
	return &Weights{Config: c, tensors: make([]Tensor, 0, n), index: make(map[string]int, n)}
}

func (w *Weights) add(t Tensor) {
	w.index[t.Name] = len(w.tensors)
	w.tensors = append(w.tensors, t)
}

// Tensors lists all tensors in file order. They must not be changed.
func (w *Weights) Tensors() []Tensor { return w.tensors }

// Validate checks the configuration and that no tensor is missing.
func (w *Weights) Validate() error {
	if err := w.Config.Validate(); err != nil {
		return err
	}
	for _, s := range w.Config.tensors() {
		if _, ok := w.index[s.name]; !ok {
			return fmt.Errorf("model %q has no tensor %s: %w", w.Config.Name, s.name, ErrInvalid)
		}
	}
	return nil
}

// Identity returns the identity of the state of a model with these weights.
func (w *Weights) Identity() profile.Identity { return w.Config.identity(w.Digest(), w.slopes()) }

// Data returns the values of a tensor, which must exist.
func (w *Weights) Data(name string) []float32 { return w.tensors[w.index[name]].Data }

// Seeded draws weights from a seed. Every tensor has its own random stream, so adding a layer
// does not change the tensors of other layers. Decays per token are between 0.9 and 0.999.
func Seeded(c Config, seed uint64) (*Weights, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	specs := c.tensors()
	w := newWeights(c, len(specs))
	for _, s := range specs {
		h := fnv.New64a()
		h.Write([]byte(s.name))
		rng := rand.New(rand.NewPCG(seed, h.Sum64()))
		w.add(Tensor{Name: s.name, Shape: s.shape, Data: s.draw(rng, len(c.Layers))})
	}
	return w, nil
}

func (s spec) draw(rng *rand.Rand, layers int) []float32 {
	n := 1
	for _, d := range s.shape {
		n *= d
	}
	out := make([]float32, n)
	mean, dev := 0.0, 1.0
	fanIn := float64(s.shape[len(s.shape)-1])
	switch s.role {
	case roleProjection, roleConv:
		dev = 1 / math.Sqrt(fanIn)
	case roleOutput:
		dev = 1 / math.Sqrt(fanIn*2*float64(layers))
	case roleGate:
		dev = 0.25 / math.Sqrt(fanIn)
	case roleCentred:
		dev = 0.1
	case roleScale:
		mean, dev = 1, 0.1
	case roleRate:
		dev = 0
	case roleBias, roleSlope:
		return s.drawDecays(rng, out)
	}
	for i := range out {
		out[i] = float32(mean + dev*rng.NormFloat64())
	}
	return out
}

// drawDecays draws typical decay exponents between 0.003 and 0.035 per token. At four standard
// deviations, the gate changes an exponent by a factor e^±1. A decay, exp(-exponent), therefore
// stays between 0.9 and 0.999.
func (s spec) drawDecays(rng *rand.Rand, out []float32) []float32 {
	for i := range out {
		x := math.Exp(math.Log(0.003) + rng.Float64()*math.Log(0.035/0.003))
		if s.role == roleBias {
			x = math.Log(math.Expm1(x)) // softplus of this is the exponent
		}
		out[i] = float32(x)
	}
	return out
}

// Digest returns the SHA-256 over names, shapes and float32 values of all tensors in file
// order, and the norms' epsilon. A model read from a file has the same digest as the model
// from which it was written.
func (w *Weights) Digest() [32]byte {
	h := sha256.New()
	var b [8]byte
	number := func(v uint64) {
		binary.LittleEndian.PutUint64(b[:], v)
		h.Write(b[:])
	}
	number(math.Float64bits(w.Config.Eps))
	buf := make([]byte, 0, 1<<16)
	for _, t := range w.tensors {
		number(uint64(len(t.Name)))
		h.Write([]byte(t.Name))
		number(uint64(len(t.Shape)))
		for _, d := range t.Shape {
			number(uint64(d))
		}
		buf = buf[:0]
		for _, v := range t.Data {
			buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
			if len(buf) == cap(buf) {
				h.Write(buf)
				buf = buf[:0]
			}
		}
		h.Write(buf)
	}
	return [32]byte(h.Sum(nil))
}

// slopes returns the fixed decay exponents of each layer; nil for attention layers, and for all
// layers if decays depend on the token.
func (w *Weights) slopes() [][]float64 {
	out := make([][]float64, len(w.Config.Layers))
	if !w.Config.Linear.Slopes() {
		return out
	}
	for i, kind := range w.Config.Layers {
		if kind == profile.KindLinear {
			for _, s := range w.Data(fmt.Sprintf("model.layers.%d.linear_attn.slopes", i)) {
				out[i] = append(out[i], float64(s))
			}
		}
	}
	return out
}
