package refengine

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// ErrInvalid is wrapped by every error about a model or a request that can never be valid.
var ErrInvalid = modelfile.ErrInvalid

// Model is a set of weights in the memory layout for computing in F.
type Model[F Float] struct {
	cfg      modelfile.Config
	prof     *profile.Profile
	layers   []layer[F]
	embed    []F // [Vocab, Dim]
	norm     []F // [Dim]
	head     []F // [Dim, Vocab]
	attnRope *turns[F]
	linRope  *turns[F]
	workers  int
	spare    sync.Pool // *workspace[F]

	attending sync.Pool // *enginekernel.AttendScratch
}

// layer is one decoder layer; exactly one of linear and attn is set. Projections
// are [in, out].
type layer[F Float] struct {
	normIn, normMLP []F
	linear          *linear[F]
	attn            *attention[F]
	gateUp          []F // [Dim, 2*Hidden], gate then up
	down            []F // [Hidden, Dim]
}

// linear holds a linear-attention layer. Columns of the input projection are
// q | k | v | z | beta | gate, heads in order.
type linear[F Float] struct {
	in    []F // [Dim, cols]
	cols  int
	conv  []F       // [Kernel, channels]
	rate  []float64 // exp(A_log) per value head
	bias  []float64 // dt_bias
	fixed []F       // exp(-slope) per value head
	norm  []F       // [ValueDim]
	out   []F       // [ValueHeads*ValueDim, Dim]
}

// attention holds a full-attention layer. Columns of the input projection are
// q | k | v | gate.
type attention[F Float] struct {
	in           []F // [Dim, cols]
	cols         int
	normQ, normK []F // [HeadDim]
	out          []F // [Heads*HeadDim, Dim]
}

// New lays weights out for computing.
func New[F Float](w *modelfile.Weights) (*Model[F], error) {
	c := w.Config
	if err := w.Validate(); err != nil {
		return nil, err
	}
	prof, err := profile.New(w.Identity())
	if err != nil {
		return nil, err
	}
	m := &Model[F]{
		cfg:     c,
		prof:    prof,
		embed:   convert[F](w.Data("model.embed_tokens.weight")),
		norm:    centred[F](w.Data("model.norm.weight")),
		head:    transposed[F](w.Data("lm_head.weight"), c.Vocab, c.Dim),
		workers: runtime.GOMAXPROCS(0),
	}
	m.linRope, m.attnRope = newTurns[F](profile.Rope{}, nil), newTurns[F](profile.Rope{}, nil)
	m.spare.New = func() any { return new(workspace[F]) }
	m.attending.New = func() any { return new(enginekernel.AttendScratch) }
	for i, kind := range c.Layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		l := layer[F]{
			normIn:  centred[F](w.Data(p + "input_layernorm.weight")),
			normMLP: centred[F](w.Data(p + "post_attention_layernorm.weight")),
			gateUp: besides(c.Dim, part[F]{w.Data(p + "mlp.gate_proj.weight"), identityRows(c.Hidden)},
				part[F]{w.Data(p + "mlp.up_proj.weight"), identityRows(c.Hidden)}),
			down: transposed[F](w.Data(p+"mlp.down_proj.weight"), c.Dim, c.Hidden),
		}
		if kind == profile.KindLinear {
			l.linear = buildLinear[F](w, p+"linear_attn.")
			m.linRope = newTurns[F](c.Linear.Rope, prof.InvFreq(i))
		} else {
			l.attn = buildAttention[F](w, p+"self_attn.")
			m.attnRope = newTurns[F](c.Attention.Rope, prof.InvFreq(i))
		}
		m.layers = append(m.layers, l)
	}
	return m, nil
}

// Config returns the model's shape.
func (m *Model[F]) Config() modelfile.Config { return m.cfg }

// Profile describes the model's reusable state.
func (m *Model[F]) Profile() *profile.Profile { return m.prof }

func buildLinear[F Float](w *modelfile.Weights, p string) *linear[F] {
	c := w.Config
	l := c.Linear
	out := &linear[F]{
		in:   besides(c.Dim, inputParts[F](w, p)...),
		cols: l.ConvChannels() + l.ValueHeads*l.ValueDim + l.Betas() + l.Gates(),
		norm: convert[F](w.Data(p + "norm.weight")),
		out:  transposed[F](w.Data(p+"out_proj.weight"), c.Dim, l.ValueHeads*l.ValueDim),
	}
	if l.Gates() > 0 {
		for _, x := range w.Data(p + "A_log") {
			out.rate = append(out.rate, math.Exp(float64(x)))
		}
		out.bias = convert[float64](w.Data(p + "dt_bias"))
	}
	if l.Slopes() {
		for _, s := range w.Data(p + "slopes") {
			out.fixed = append(out.fixed, F(math.Exp(-float64(s))))
		}
	}
	if l.Kernel > 0 {
		out.conv = transposed[F](w.Data(p+"conv1d.weight"), l.ConvChannels(), l.Kernel)
	}
	return out
}

// inputParts returns the rows of a layer's input projection, in the order of columns.
func inputParts[F Float](w *modelfile.Weights, p string) []part[F] {
	l := w.Config.Linear
	var parts []part[F]
	add := func(name string, rows []int) {
		if len(rows) > 0 {
			parts = append(parts, part[F]{w.Data(p + name + ".weight"), rows})
		}
	}
	q, k, v, z, b, a := projectionRows(l)
	if l.Separate {
		add("in_proj_qkv", identityRows(l.ConvChannels()))
		add("in_proj_z", identityRows(len(z)))
	} else {
		for _, rows := range [][]int{q, k, v, z} {
			add("in_proj_qkvz", rows)
		}
	}
	if l.Family == profile.GDN && !l.Separate {
		add("in_proj_ba", b)
		add("in_proj_ba", a)
	} else {
		add("in_proj_b", identityRows(l.Betas()))
		add("in_proj_a", identityRows(l.Gates()))
	}
	return parts
}

// projectionRows lists the rows of the file's tensors in head order: q, k, v and z are rows of
// in_proj_qkvz, and b and a rows of in_proj_ba. In the file, rows are grouped by key head.
func projectionRows(c modelfile.LinearConfig) (q, k, v, z, b, a []int) {
	perKey := c.ValueHeads / c.KeyHeads
	width := perKey * c.ValueDim
	run := func(list []int, start, n int) []int {
		for i := range n {
			list = append(list, start+i)
		}
		return list
	}
	for h := range c.KeyHeads {
		at := h * (2*c.KeyDim + 2*width)
		q = run(q, at, c.KeyDim)
		k = run(k, at+c.KeyDim, c.KeyDim)
		v = run(v, at+2*c.KeyDim, width)
		z = run(z, at+2*c.KeyDim+width, width)
		b = run(b, h*2*perKey, perKey)
		a = run(a, h*2*perKey+perKey, perKey)
	}
	return q, k, v, z, b, a
}

func buildAttention[F Float](w *modelfile.Weights, p string) *attention[F] {
	c, a := w.Config, w.Config.Attention
	qg := w.Data(p + "q_proj.weight")
	queries, gates := identityRows(a.Heads*a.HeadDim), []int(nil)
	if a.Gate {
		queries = queries[:0]
		for h := range a.Heads {
			for i := range a.HeadDim {
				queries = append(queries, 2*h*a.HeadDim+i)
				gates = append(gates, (2*h+1)*a.HeadDim+i)
			}
		}
	}
	kv := identityRows(a.KVHeads * a.HeadDim)
	return &attention[F]{
		in: besides(c.Dim, part[F]{qg, queries}, part[F]{w.Data(p + "k_proj.weight"), kv},
			part[F]{w.Data(p + "v_proj.weight"), kv}, part[F]{qg, gates}),
		cols:  len(queries) + 2*len(kv) + len(gates),
		normQ: centred[F](w.Data(p + "q_norm.weight")),
		normK: centred[F](w.Data(p + "k_norm.weight")),
		out:   transposed[F](w.Data(p+"o_proj.weight"), c.Dim, a.Heads*a.HeadDim),
	}
}

func convert[F Float](x []float32) []F {
	out := make([]F, len(x))
	for i, v := range x {
		out[i] = F(v)
	}
	return out
}

// centred converts a norm weight stored as an offset from one into a factor.
func centred[F Float](x []float32) []F {
	out := convert[F](x)
	for i := range out {
		out[i]++
	}
	return out
}

func transposed[F Float](x []float32, rows, cols int) []F {
	out := make([]F, len(x))
	for r := range rows {
		for c := range cols {
			out[c*rows+r] = F(x[r*cols+c])
		}
	}
	return out
}

// part is a selection of rows of a tensor [out, in] of the file.
type part[F Float] struct {
	data []float32
	rows []int
}

// besides returns a matrix [in, number of rows] whose columns are the rows of all parts, in
// order.
func besides[F Float](in int, parts ...part[F]) []F {
	cols := 0
	for _, p := range parts {
		cols += len(p.rows)
	}
	out := make([]F, in*cols)
	at := 0
	for _, p := range parts {
		for _, r := range p.rows {
			for i := range in {
				out[i*cols+at] = F(p.data[r*in+i])
			}
			at++
		}
	}
	return out
}

func identityRows(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
