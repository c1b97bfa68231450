package gpuipctest

import (
	"math"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// replayCase is a job, and the same in plain numbers.
type replayCase struct {
	job               gpuipc.ReplayJob
	from, decay, k, u []float32
}

func (r *rig) randomReplay() *replayCase {
	r.Helper()
	c := &replayCase{}
	j := &c.job
	j.KeyHeads = 1 + r.rng.IntN(4)
	j.Heads = j.KeyHeads * (1 + r.rng.IntN(3))
	j.DK, j.DV, j.Rows, j.PerKey = 1+r.rng.IntN(24), 1+r.rng.IntN(40), r.rng.IntN(9), r.rng.IntN(2) == 0
	n := j.Heads * j.DK * j.DV
	if r.rng.IntN(4) > 0 {
		j.From, c.from = r.tensor(n, kernel.F32, 1)
	} else {
		c.from = make([]float32, n)
	}
	decays := j.Heads
	if j.PerKey {
		decays *= j.DK
	}
	j.Decay, c.decay = r.tensor(j.Rows*decays, kernel.F32, 1)
	j.K, c.k = r.tensor(j.Rows*j.KeyHeads*j.DK, kernel.F32, 1)
	j.U, c.u = r.tensor(j.Rows*j.Heads*j.DV, kernel.F32, 1)
	j.Out = r.object(int64(n)*4, 4)
	return c
}

// The method want returns the states after all rows, computed in float64.
func (c *replayCase) want() []float64 {
	j := &c.job
	state := make([]float64, len(c.from))
	for i, v := range c.from {
		state[i] = float64(v)
	}
	for row := range j.Rows {
		for head := range j.Heads {
			key := head / (j.Heads / j.KeyHeads)
			for i := range j.DK {
				g := float64(0)
				if j.PerKey {
					g = float64(c.decay[(row*j.Heads+head)*j.DK+i])
				} else {
					g = float64(c.decay[row*j.Heads+head])
				}
				k := float64(c.k[(row*j.KeyHeads+key)*j.DK+i])
				for col := range j.DV {
					at := (head*j.DK+i)*j.DV + col
					state[at] = g*state[at] + k*float64(c.u[(row*j.Heads+head)*j.DV+col])
				}
			}
		}
	}
	return state
}

func testReplay(r *rig) {
	r.fresh(1 << 20)
	for range r.rounds(200) {
		r.next = 0
		c := r.randomReplay()
		if !c.job.From.Absent() && r.rng.IntN(3) == 0 {
			c.job.Out = c.job.From
		}
		if err := r.dev.Replay(r.Context(), &c.job); err != nil {
			r.Fatal(err)
		}
		r.near("out", c.job.Out, c.want())
		r.check("replay")
	}
}

func testBadReplay(r *rig) {
	r.fresh(1 << 20)
	good := func() *gpuipc.ReplayJob {
		r.next = 0
		j := &gpuipc.ReplayJob{Heads: 2, KeyHeads: 1, DK: 4, DV: 6, Rows: 3}
		j.From, _ = r.tensor(48, kernel.F32, 1)
		j.Decay, _ = r.tensor(6, kernel.F32, 1)
		j.K, _ = r.tensor(12, kernel.F32, 1)
		j.U, _ = r.tensor(36, kernel.F32, 1)
		j.Out = r.object(192, 4)
		return j
	}
	if err := r.dev.Replay(r.Context(), good()); err != nil {
		r.Fatal(err)
	}
	copy(r.expected, r.get(r.whole()))
	size := r.region.Bytes()
	for name, spoil := range map[string]func(j *gpuipc.ReplayJob){
		"no heads":             func(j *gpuipc.ReplayJob) { j.Heads = 0 },
		"no key heads":         func(j *gpuipc.ReplayJob) { j.KeyHeads = 0 },
		"uneven heads":         func(j *gpuipc.ReplayJob) { j.Heads, j.KeyHeads = 3, 2 },
		"negative dk":          func(j *gpuipc.ReplayJob) { j.DK = -4 },
		"huge dv":              func(j *gpuipc.ReplayJob) { j.DV = math.MaxInt },
		"negative rows":        func(j *gpuipc.ReplayJob) { j.Rows = -1 },
		"huge rows":            func(j *gpuipc.ReplayJob) { j.Rows = math.MaxInt },
		"more rows":            func(j *gpuipc.ReplayJob) { j.Rows = 4 },
		"fewer rows":           func(j *gpuipc.ReplayJob) { j.Rows = 2 },
		"decays per key":       func(j *gpuipc.ReplayJob) { j.PerKey = true },
		"short from":           func(j *gpuipc.ReplayJob) { j.From = j.From.Slice(0, 188) },
		"no out":               func(j *gpuipc.ReplayJob) { j.Out = gpuipc.Ref{} },
		"out past the end":     func(j *gpuipc.ReplayJob) { j.Out = r.at(size-188, 192) },
		"misaligned out":       func(j *gpuipc.ReplayJob) { j.Out = r.at(size-194, 192) },
		"misaligned keys":      func(j *gpuipc.ReplayJob) { j.K = r.at(size-50, 48) },
		"no keys":              func(j *gpuipc.ReplayJob) { j.K = gpuipc.Ref{} },
		"short values":         func(j *gpuipc.ReplayJob) { j.U = j.U.Slice(0, 140) },
		"out partly over from": func(j *gpuipc.ReplayJob) { j.From = r.at(size-256, 192); j.Out = r.at(size-252, 192) },
		"out over values":      func(j *gpuipc.ReplayJob) { j.Out = r.at(size-192, 192); j.U = r.at(size-144, 144) },
	} {
		j := good()
		spoil(j)
		r.refuses(name, r.dev.Replay(r.Context(), j))
	}
}
