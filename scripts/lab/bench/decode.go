package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// decodeSections returns the sections of the suite decode. It measures the gain of storing rows
// of recent tokens next to recurrent states (the paper KVBuffer), in kernels on states larger
// than any cache, and in the reference engine.
func decodeSections() []section {
	return []section{{"forms", formRows}, {"verify", verifyRows}, {"engine", engineRows}}
}

// Heads of Qwen3-Next: states of 128 by 128 in F32, rows in F16, two value heads per key
// head, a decay per token and the delta rule.
const (
	decodeDim   = 128
	decodeHeads = 2
	decodeState = decodeHeads * decodeDim * decodeDim
	decodeBytes = 64 << 20 // size of all states; also the size of states written per draft when verifying
)

// decoding is a set of requests that decode together. Each request is a group: the states of one
// key head.
type decoding struct {
	states []float32
	groups int
	input  []enginekernel.Input
	out    []float32
	sc     *enginekernel.BufferScratch
	memory []byte // as large as the states
	sum    uint64
}

func newDecoding(s *session) *decoding {
	groups := decodeBytes / (4 * decodeState)
	if s.effort == 0 {
		groups /= 32
	}
	r := rand.New(rand.NewPCG(3, 4))
	numbers := func(n int, scale float32) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = scale * (r.Float32() - 0.5)
		}
		return out
	}
	d := &decoding{
		states: numbers(groups*decodeState, 1), groups: groups, sc: new(enginekernel.BufferScratch),
		out: make([]float32, 8*decodeHeads*decodeDim), memory: filled(int64(4 * groups * decodeState)),
	}
	for range 8 {
		d.input = append(d.input, enginekernel.Input{
			Q: numbers(decodeDim, 0.2), K: numbers(decodeDim, 0.2), V: numbers(decodeHeads*decodeDim, 1),
			G: []float32{0.99, 0.98}, Beta: []float32{0.5, 0.6},
		})
	}
	return d
}

func (d *decoding) state(group int) []float32 { return d.states[group*decodeState:][:decodeState] }

func (d *decoding) buffers(capacity int) []*enginekernel.Buffer {
	out := make([]*enginekernel.Buffer, d.groups)
	for i := range out {
		out[i] = enginekernel.NewBuffer(decodeDim, decodeDim, decodeHeads, capacity, kernel.F16, kernel.Scalar, true)
	}
	return out
}

// read reads as many bytes as the states have, at full speed, by computing their digest.
func (d *decoding) read() { d.sum ^= gpuipc.DigestBytes(d.memory) }

// form is one way to decode. A call of run decodes tokens of all groups. For each group, tokens
// is the number of tokens that the call decodes, and bytes the number of bytes that it moves.
type form struct {
	name   string
	run    func()
	tokens int
	bytes  int
	bar    bar
}

// measure runs forms alternately with a read of the states. For each form it adds a row with the
// time per token and value head; the row's limit is the time to read the bytes that the form
// moves. It returns the nanoseconds of each form.
func (d *decoding) measure(s *session, forms []form) ([]float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	figures := []func() ([]float64, error){threadNanos(d.read)}
	for i := range forms {
		forms[i].run() // first touches of pages
		figures = append(figures, threadNanos(forms[i].run))
	}
	sample, err := alternate(s.rounds(15), figures...)
	if err != nil {
		return nil, err
	}
	byteNanos := median(sample[0]) / float64(4*len(d.states))
	nanos := make([]float64, len(forms))
	for i, f := range forms {
		per := float64(d.groups * decodeHeads * f.tokens)
		nanos[i] = median(sample[i+1]) / per
		moved := float64(d.groups*f.bytes) / per
		s.add(row("decode/"+f.name, "ns", nanos[i], moved*byteNanos, f.bar), row("decode/"+f.name+" bytes", "B", moved, 0, bar{}))
	}
	return nanos, nil
}

func threadNanos(f func()) func() ([]float64, error) {
	return func() ([]float64, error) {
		seconds, err := machine.ThreadSeconds(f)
		return []float64{1e9 * seconds}, err
	}
}

// chunkwise is a form that decodes until each buffer is full, and flushes each buffer once.
func (d *decoding) chunkwise(name string, capacity int) form {
	buffers := d.buffers(capacity)
	f := form{name: name, tokens: capacity, run: func() {
		for i := range capacity {
			for g, b := range buffers {
				b.Decode(d.state(g), d.input[i%8:][:1], d.out[:decodeHeads*decodeDim], i == capacity-1, d.sc)
			}
		}
	}}
	b := *buffers[0]
	for b.N = 0; b.N < capacity; b.N++ {
		f.bytes += b.Traffic(1, true, b.N == capacity-1).Moved()
	}
	return f
}

// alone is a form that decodes one token without a recurrent state: the buffers hold only the
// rows of the given number of earlier tokens.
func (d *decoding) alone(tokens int) form {
	buffers := d.buffers(tokens + 1)
	for _, b := range buffers {
		for b.N < tokens {
			n := min(8, tokens-b.N)
			b.Decode(nil, d.input[:n], d.out[:n*decodeHeads*decodeDim], false, d.sc)
		}
	}
	return form{
		name: fmt.Sprintf("rows alone, %d tokens", tokens), tokens: 1, bytes: buffers[0].Traffic(1, false, false).Moved(),
		run: func() {
			for _, b := range buffers {
				b.Decode(nil, d.input[:1], d.out[:decodeHeads*decodeDim], false, d.sc)
				b.Keep(tokens)
			}
		},
	}
}

// formRows measures decoding token by token.
func formRows(_ context.Context, s *session) error {
	d := newDecoding(s)
	forms := []form{d.chunkwise("recurrent", 1)}
	capacities := []int{4, 8, 16, 18, 32}
	for _, c := range capacities {
		forms = append(forms, d.chunkwise(fmt.Sprintf("chunkwise, %d rows", c), c))
	}
	for _, n := range []int{16, 48, 96, 144} {
		forms = append(forms, d.alone(n))
	}
	nanos, err := d.measure(s, forms)
	if err != nil {
		return err
	}
	head := profile.RowBytes{State: 4 * decodeDim * decodeDim, Row: 2*(decodeDim/decodeHeads+decodeDim) + 4}
	for i, c := range capacities {
		// The limit is the gain if only bytes took time (Eq. 6).
		s.add(row(fmt.Sprintf("decode/chunkwise, %d rows, of recurrent", c), "x", nanos[0]/nanos[i+1], 2*float64(head.State)/head.Step(c), bar{}))
	}
	s.report.Notes = append(s.report.Notes, fmt.Sprintf(
		"decode: one core, %d MiB of states; time for each token and value head, in processor time. Limits are a read of as many bytes in the same rounds. "+
			"By bytes the buffer of fewest has %d rows, and rows alone are cheaper up to %d tokens. KVBuffer saves up to 45 %% on a GPU.",
		d.groups*decodeState*4>>20, head.Flush(), head.Alone()))
	return nil
}

// verifyRows measures the verification of m drafts that are all accepted, in three ways: with a
// state after each draft, as engines store them; with rows and an immediate update of the state
// (KVBuffer §3.3); and with rows that stay in a buffer of 16.
func verifyRows(_ context.Context, s *session) error {
	d := newDecoding(s)
	for _, m := range []int{1, 2, 4, 8} {
		forms := []form{d.stateEach(m), d.verified(m, m), d.verified(m, 16)}
		nanos, err := d.measure(s, forms)
		if err != nil {
			return err
		}
		// Eq. 9: (m+1)d over 3d+2m.
		s.add(row(fmt.Sprintf("decode/verify %d, rows and an update, of a state each", m), "x", nanos[0]/nanos[1], float64((m+1)*decodeDim)/float64(3*decodeDim+2*m), bar{}),
			row(fmt.Sprintf("decode/verify %d, rows that stay, of a state each", m), "x", nanos[0]/nanos[2], 0, bar{}))
	}
	s.report.Notes = append(s.report.Notes, "decode: limits of verifying against a state each are the paper's by bytes (Eq. 9); it measured 1.63 times for four drafts.")
	return nil
}

// stateEach writes a state after every draft.
func (d *decoding) stateEach(m int) form {
	one := d.buffers(1)
	temporary := make([]float32, m*len(d.states))
	return form{
		name: fmt.Sprintf("verify %d, a state each", m), tokens: m, bytes: 4*decodeState*(m+1) + m*one[0].Traffic(1, false, false).Moved(),
		run: func() {
			for g, b := range one {
				from := d.state(g)
				for i := range m {
					to := temporary[(g*m+i)*decodeState:][:decodeState]
					copy(to, from)
					b.Decode(to, d.input[i:i+1], d.out[:decodeHeads*decodeDim], true, d.sc)
					from = to
				}
			}
		},
	}
}

// verified is a form that stores drafts as rows, and applies the rows to the states once the
// buffer of capacity rows is full.
func (d *decoding) verified(m, capacity int) form {
	buffers := d.buffers(max(m, capacity))
	times := max(1, capacity/m)
	f := form{name: fmt.Sprintf("verify %d, rows that stay", m), tokens: m * times, run: func() {
		for i := range times {
			for g, b := range buffers {
				b.Decode(d.state(g), d.input[:m], d.out[:m*decodeHeads*decodeDim], false, d.sc)
				if i == times-1 {
					b.Flush(d.state(g), d.sc)
				}
			}
		}
	}}
	if capacity == m {
		f.name = fmt.Sprintf("verify %d, rows and an update", m)
	}
	b := *buffers[0]
	for b.N = 0; b.N < m*times; b.N += m {
		f.bytes += b.Traffic(m, true, b.N+m == m*times).Moved()
	}
	return f
}

// engineRows measures the reference engine: generating tokens with states that are updated at
// every token, generating tokens with rows next to the states, and verifying drafts.
func engineRows(_ context.Context, s *session) error {
	m, err := decodeModel(s)
	if err != nil {
		return err
	}
	tokens := 32
	if s.effort == 0 {
		tokens = 4
	}
	begin := m.NewState()
	prompt := make([]uint32, 200)
	for i := range prompt {
		prompt[i] = uint32(i * 7 % 250)
	}
	logits, err := m.Prefill(begin, prompt)
	if err != nil {
		return err
	}
	perToken := func(generate func(st *refengine.State[float32]) error) func() ([]float64, error) {
		return func() ([]float64, error) {
			st := begin.Clone()
			seconds, err := timed(func() error { return generate(st) })
			return []float64{1e6 * seconds / float64(tokens)}, err
		}
	}
	figures := []func() ([]float64, error){perToken(func(st *refengine.State[float32]) error {
		next := logits
		for range tokens {
			if next, err = m.Prefill(st, []uint32{refengine.Greedy(next)}); err != nil {
				return err
			}
		}
		return nil
	})}
	names := []string{"a state a token"}
	for _, rows := range []int{1, 4, 8, m.Profile().RowBytes().Flush()} {
		names = append(names, fmt.Sprintf("rows, %d", rows))
		figures = append(figures, perToken(func(st *refengine.State[float32]) error {
			_, err := refengine.NewDecoder(m, st, refengine.DecoderOptions{Rows: rows}).Generate(logits, tokens)
			return err
		}))
	}
	names = append(names, "drafts, 4 of 4 accepted")
	figures = append(figures, perToken(func(st *refengine.State[float32]) error { return acceptAll(m, st, tokens) }))
	sample, err := alternate(s.rounds(15), figures...)
	if err != nil {
		return err
	}
	for i, name := range names {
		s.add(row("decode/engine "+name, "µs", median(sample[i]), 0, bar{}))
		if i > 1 { // compare with "rows, 1", which uses the same kernels
			s.add(row("decode/engine "+name+", of rows, 1", "x", median(sample[1])/median(sample[i]), 0, bar{}))
		}
	}
	s.report.Notes = append(s.report.Notes, "decode/engine: a model of 8 layers in the reference engine, wall time a token. With a state a token the recurrence is plain Go; "+
		"all others use the kernels, whose recurrent form is that of 1 row.")
	return nil
}

// acceptAll verifies drafts four at a time.
func acceptAll(m *refengine.Model[float32], st *refengine.State[float32], tokens int) error {
	d := refengine.NewDecoder(m, st, refengine.DecoderOptions{})
	for at := 0; at < tokens; at += 4 {
		if _, err := d.Verify([]uint32{1, 2, 3, 4}, nil); err != nil {
			return err
		}
		if err := d.Accept([]int{0, 1, 2, 3}); err != nil {
			return err
		}
	}
	return nil
}

// decodeModel returns a model with the head sizes of Qwen3-Next, but fewer heads.
func decodeModel(s *session) (*refengine.Model[float32], error) {
	c := modelfile.Config{
		Name: "decode", Vocab: 260, Dim: 256, Hidden: 512, Eps: 1e-6, Storage: modelfile.Exact(),
		Linear: modelfile.LinearConfig{Family: profile.GDN, KeyHeads: 8, ValueHeads: 16, KeyDim: decodeDim, ValueDim: decodeDim, Kernel: 4},
		Attention: modelfile.AttentionConfig{
			Heads: 2, KVHeads: 1, HeadDim: 64, Gate: true, Rope: profile.Rope{Dims: 16, Theta: 1e6},
		},
	}
	layers := 8
	if s.effort == 0 {
		layers = 2
	}
	for i := range layers {
		kind := profile.KindLinear
		if i%4 == 3 {
			kind = profile.KindFull
		}
		c.Layers = append(c.Layers, kind)
	}
	began := time.Now()
	w, err := modelfile.Seeded(c, 1)
	if err != nil {
		return nil, err
	}
	s.progress("model of %d layers in %.1f s", layers, time.Since(began).Seconds())
	return refengine.New[float32](w)
}
