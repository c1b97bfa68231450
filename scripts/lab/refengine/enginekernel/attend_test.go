package enginekernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// attended is a random case of Attend and what it has to give, in float64.
type attended struct {
	Attention
	heads int
	runs  []Run
	q     Queries
	ldo   int
	keys  [][]float64 // of a position and head, turned to it
	vals  [][]float64
	at    []int
}

func randomAttended(r *rand.Rand, dt kernel.DType) *attended {
	c := &attended{heads: 1 + r.IntN(3)}
	c.Group, c.KeyDim, c.ValueDim, c.Type = 1+r.IntN(4), 2*(1+r.IntN(40)), 1+r.IntN(70), dt
	dims := 2 * r.IntN(c.KeyDim/2+1)
	interleaved := r.IntN(2) == 0
	pos := r.IntN(5)
	for range r.IntN(7) {
		pos += r.IntN(3) * 5
		run := c.randomRun(r, pos, [...]int{0, 1, 3, 16, 100, 300}[r.IntN(6)])
		if r.IntN(2) == 0 {
			run.Turn = randomTurn(r, dims, interleaved)
		}
		c.remember(&run)
		c.runs = append(c.runs, run)
		pos += run.Rows
	}
	c.q = Queries{LD: c.Group*c.KeyDim + r.IntN(5), Rows: 1 + r.IntN(5), Begin: max(0, pos-r.IntN(40))}
	c.q.Q = make([]float32, c.q.Rows*c.q.LD)
	for i := range c.q.Q {
		c.q.Q[i] = float32(r.NormFloat64())
	}
	c.ldo = c.Group*c.ValueDim + r.IntN(4)
	return c
}

func (c *attended) randomRun(r *rand.Rand, begin, rows int) Run {
	size := c.Type.Size()
	pad := size * r.IntN(3)
	run := Run{Begin: begin, Rows: rows, KStride: c.heads*c.KeyDim*size + pad, VStride: c.heads*c.ValueDim*size + pad}
	fill := func(bytes int) []byte {
		x := make([]float32, bytes/size)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		b := make([]byte, bytes)
		kernel.FromF32(b, x, c.Type)
		return b
	}
	run.K, run.V = fill(rows*run.KStride), fill(rows*run.VStride)
	return run
}

// remember keeps the keys of a run, turned one by one.
func (c *attended) remember(run *Run) {
	size := c.Type.Size()
	row := func(b []byte, n int) []float64 {
		x := make([]float32, n)
		kernel.ToF32(x, b, c.Type)
		out := make([]float64, n)
		for i, v := range x {
			out[i] = float64(v)
		}
		return out
	}
	for i := range run.Rows {
		k := row(run.K[i*run.KStride:][:c.heads*c.KeyDim*size], c.heads*c.KeyDim)
		for h := range c.heads {
			x := k[h*c.KeyDim:]
			for p := range run.Turn.Dims / 2 {
				a, b := pair(p, run.Turn.Dims, run.Turn.Interleaved)
				cos, sin := float64(run.Turn.Cos[p]), float64(run.Turn.Sin[p])
				x[a], x[b] = x[a]*cos-x[b]*sin, x[b]*cos+x[a]*sin
			}
		}
		c.keys = append(c.keys, k)
		c.vals = append(c.vals, row(run.V[i*run.VStride:][:c.heads*c.ValueDim*size], c.heads*c.ValueDim))
		c.at = append(c.at, run.Begin+i)
	}
}

// want is the output of one query head.
func (c *attended) want(row, group, head int) []float64 {
	q := c.q.Q[row*c.q.LD+group*c.KeyDim:][:c.KeyDim]
	out, sum := make([]float64, c.ValueDim), 0.0
	for i, at := range c.at {
		if at > c.q.Begin+row {
			continue
		}
		score := 0.0
		for j, x := range q {
			score += float64(x) * c.keys[i][head*c.KeyDim+j]
		}
		e := math.Exp(score)
		sum += e
		for j := range out {
			out[j] += e * c.vals[i][head*c.ValueDim+j]
		}
	}
	for j := range out {
		if sum > 0 {
			out[j] /= sum
		}
	}
	return out
}

// Outputs are within 2e-5 of float64: scores reach 40 here, and an error of one in a
// million of a score is one of as many in a weight.
func TestAttentionReadsRowsWhereTheyLie(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, dt := range []kernel.DType{kernel.F32, kernel.F16, kernel.BF16} {
			for seed := range uint64(60) {
				t.Run(fmt.Sprintf("%s/%d", typeNames[dt], seed), func(t *testing.T) {
					c := randomAttended(rand.New(rand.NewPCG(seed, 7)), dt)
					for head := range c.heads {
						out := make([]float32, c.q.Rows*c.ldo)
						for i := range out {
							out[i] = 9
						}
						c.Attend(out, c.ldo, c.q, c.runs, head, nil)
						for row := range c.q.Rows {
							for g := range c.Group {
								for j, want := range c.want(row, g, head) {
									if got := float64(out[row*c.ldo+g*c.ValueDim+j]); math.Abs(got-want) > 2e-5 || got != got {
										t.Fatalf("row %d, head %d of group %d, number %d: %g, want %g", row, g, head, j, got, want)
									}
								}
							}
							for j, x := range out[row*c.ldo+c.Group*c.ValueDim : (row+1)*c.ldo] {
								if x != 9 {
									t.Fatalf("row %d: number %d behind the output was written", row, j)
								}
							}
						}
					}
				})
			}
		}
	})
}

// A row's output does not depend on the rows that it is computed with, nor on scratch
// memory that was used before.
func TestAttentionOfARowIsItsOwn(t *testing.T) {
	var sc AttendScratch
	for seed := range uint64(40) {
		c := randomAttended(rand.New(rand.NewPCG(seed, 11)), kernel.BF16)
		all := make([]float32, c.q.Rows*c.ldo)
		c.Attend(all, c.ldo, c.q, c.runs, 0, &sc)
		for row := range c.q.Rows {
			one := make([]float32, c.ldo)
			c.Attend(one, c.ldo, Queries{c.q.Q[row*c.q.LD:], c.q.LD, 1, c.q.Begin + row}, c.runs, 0, &sc)
			for j, x := range one[:c.Group*c.ValueDim] {
				if math.Float32bits(x) != math.Float32bits(all[row*c.ldo+j]) {
					t.Fatalf("seed %d, row %d: number %d is %g alone, %g among %d", seed, row, j, x, all[row*c.ldo+j], c.q.Rows)
				}
			}
		}
	}
}

func TestAttentionRefusesWrongSizes(t *testing.T) {
	a := Attention{Group: 1, KeyDim: 4, ValueDim: 4, Type: kernel.F32}
	b := make([]byte, 64)
	run := Run{K: b, V: b, KStride: 16, VStride: 16, Rows: 4}
	q, out := Queries{Q: make([]float32, 4), LD: 4, Rows: 1}, make([]float32, 4)
	later := run
	later.Begin = 3
	for what, f := range map[string]func(){
		"rows beyond the bytes": func() { r := run; r.Rows = 5; a.Attend(out, 4, q, []Run{r}, 0, nil) },
		"a head beyond the row": func() { a.Attend(out, 4, q, []Run{run}, 1, nil) },
		"runs that overlap":     func() { a.Attend(out, 4, q, []Run{run, later}, 0, nil) },
		"short outputs":         func() { a.Attend(out[:3], 4, q, []Run{run}, 0, nil) },
		"a turn without angles": func() { r := run; r.Turn.Dims = 4; a.Attend(out, 4, q, []Run{r}, 0, nil) },
		"no type":               func() { a := a; a.Type = 0; a.Attend(out, 4, q, []Run{run}, 0, nil) },
	} {
		wantPanic(t, what, f)
	}
}
