package gpuipc

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Packed parts are composed as the numbers that they stand for are, over more steps than
// are moved at once; heads that forget do so whatever was before, and a state before a step
// is that one even where a later step forgets it.
func TestPackedPartsAreComposed(t *testing.T) {
	rng, ctx := rand.New(rand.NewPCG(5, 6)), context.Background()
	d := testDevice(t, 2)
	region := testRegion(t, d, 128<<20, ClientReads)
	for _, c := range []struct{ heads, dk, dv, steps, before int }{{4, 128, 128, 7, -1}, {4, 128, 128, 7, 4}, {3, 64, 96, 5, 0}, {2, 33, 40, 3, 2}} {
		end := int64(0)
		at := func(b []byte) Ref {
			r := region.Slice(end, int64(len(b)))
			must(t, d.Store(ctx, r, b))
			end += int64(len(b)+4095) &^ 4095
			return r
		}
		start := make([]byte, c.heads*c.dk*c.dv*4)
		from := make([]float32, c.heads*c.dk*c.dv)
		for i := range from {
			from[i] = float32(rng.NormFloat64())
		}
		from[1] = float32(math.NaN()) // of a head that forgets it
		kernel.FromF32(start, from, kernel.F32)
		var jobs [2]ComposeJob
		for i := range jobs {
			jobs[i] = ComposeJob{Transition: kernel.Dense, Heads: c.heads, DK: c.dk, DV: c.dv, From: at(start), Out: at(start)}
		}
		var p Packer
		forgot := 0
		for i := range c.steps {
			tr, s := make([]float32, c.heads*c.dk*c.dk), make([]float32, c.heads*c.dk*c.dv)
			for k := range tr {
				if tr[k] = float32(rng.NormFloat64()) / 16; (k/(c.dk*c.dk)+i)%4 == 0 {
					tr[k] /= 1e6
				}
			}
			for h := range c.heads {
				noise(rng, s[h*c.dk*c.dv:][:c.dk*c.dv], c.dv, h%2 == 1)
			}
			var steps [2]ComposeStep
			for k, part := range [2][]float32{tr, s} {
				cols, of, typ := c.dk, PackTransitions, kernel.F16
				if k == 1 {
					cols, of, typ = c.dv, PackStates, kernel.F32
				}
				_, packed := packedPart(&p, part, PackJob{Type: typ, Heads: c.heads, Rows: c.dk, Cols: cols, Of: of, Tolerance: 0.02})
				wide := make([]float32, len(part))
				must(t, kernel.PartToF32(wide, packed, typ, true, [3]int{c.heads, c.dk, cols}))
				plain := make([]byte, 4*len(part))
				kernel.FromF32(plain, wide, kernel.F32)
				if k == 0 {
					for h := range c.heads {
						if kernel.Form(packed[h]) == kernel.FormZero {
							forgot++
						}
					}
					steps[0].T, steps[0].TType, steps[0].TPacked = at(packed), typ, true
					steps[1].T, steps[1].TType = at(plain), kernel.F32
				} else {
					steps[0].S, steps[0].SType, steps[0].SPacked = at(packed), typ, true
					steps[1].S, steps[1].SType = at(plain), kernel.F32
				}
			}
			for k := range steps {
				if i == c.before {
					steps[k].Before = at(start)
				}
				jobs[k].Steps = append(jobs[k].Steps, steps[k])
			}
		}
		if forgot == 0 {
			t.Fatalf("%v: no head forgets", c)
		}
		var out, before [2][]float32
		for k := range jobs {
			must(t, d.Compose(ctx, &jobs[k]))
			read := func(r Ref) []float32 {
				b, x := make([]byte, len(start)), make([]float32, len(from))
				must(t, d.Load(ctx, b, r))
				kernel.ToF32(x, b, kernel.F32)
				return x
			}
			out[k] = read(jobs[k].Out)
			if c.before >= 0 {
				before[k] = read(jobs[k].Steps[c.before].Before)
			}
		}
		if err := errors.Join(same(out[0], out[1], c.dk*c.dv), same(before[0], before[1], c.dk*c.dv)); err != nil {
			t.Errorf("%v: %v", c, err)
		}
		if x := out[0][1]; x != x {
			t.Errorf("%v: a number that was forgotten is there", c)
		}
	}
}

// packedPart is a part of some numbers as it is written, and packed by a job of all but Src.
func packedPart(p *Packer, x []float32, job PackJob) (raw, packed []byte) {
	raw = make([]byte, len(x)*job.Type.Size())
	kernel.FromF32(raw, x, job.Type)
	job.Src, packed = [][]byte{raw}, make([]byte, 2*len(raw))
	n, _ := p.Pack(packed, &job)
	return raw, packed[:n]
}

// same compares numbers, but for those that a first head that forgot NaN has where the other
// multiplied it by zero.
func same(got, want []float32, head int) error {
	for i, v := range want {
		if got[i] != v && !(v != v && i < head) {
			return errors.New("other numbers")
		}
	}
	return nil
}
