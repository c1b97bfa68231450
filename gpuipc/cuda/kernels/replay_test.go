package kernels

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// replayCase is one job and its memory.
type replayCase struct {
	ReplayJob
	from, decay, k, u, out []float32
}

func (c *replayCase) String() string {
	return fmt.Sprintf("%d heads of [%d, %d], %d of keys, %d rows, per key %v, from %d, u %d, out %d behind 16",
		c.Heads, c.DK, c.DV, c.KeyHeads, c.Rows, c.PerKey, c.From%16, c.U%16, c.Out%16)
}

// newReplayCase fills in memory, each tensor up to three numbers off 16 bytes with odd.
func newReplayCase(tb testing.TB, r *rand.Rand, a ReplayJob, from, odd bool) *replayCase {
	c := &replayCase{ReplayJob: a}
	decays := 1
	if a.PerKey {
		decays = a.DK
	}
	c.decay, c.Decay = tensor(tb, r, a.Rows*a.Heads*decays, odd)
	c.k, c.K = tensor(tb, r, a.Rows*a.KeyHeads*a.DK, odd)
	c.u, c.U = tensor(tb, r, a.Rows*a.Heads*a.DV, odd)
	c.out, c.Out = tensor(tb, r, a.Heads*a.DK*a.DV, odd)
	if from {
		c.from, c.From = tensor(tb, r, a.Heads*a.DK*a.DV, odd)
	}
	return c
}

func tensor(tb testing.TB, r *rand.Rand, n int, odd bool) ([]float32, uint64) {
	off := 0
	if odd {
		off = 4 * r.IntN(4)
	}
	b := memory(tb, 4*n, off)
	v := f32s(b)
	for i := range v {
		v[i] = float32(r.NormFloat64())
		if r.IntN(200) == 0 {
			v[i] = []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.NaN()), 1e-44, 3e38}[r.IntN(6)]
		}
	}
	return v, address(b)
}

// onHost is the states that the host's kernel reaches.
func (c *replayCase) onHost() []float32 {
	states := make([]float32, c.Heads*c.DK*c.DV)
	copy(states, c.from)
	decays := 1
	if c.PerKey {
		decays = c.DK
	}
	for h := range c.Heads {
		rows := kernel.Rows{N: c.Rows, PerKey: c.PerKey, KStep: c.KeyHeads * c.DK, UStep: c.Heads * c.DV, GStep: c.Heads * decays}
		if c.Rows > 0 {
			rows.K, rows.U, rows.G = c.k[h/(c.Heads/c.KeyHeads)*c.DK:], c.u[h*c.DV:], c.decay[h*decays:]
		}
		kernel.Replay(c.DK, c.DV, states[h*c.DK*c.DV:][:c.DK*c.DV], rows)
	}
	return states
}

func runReplays(tb testing.TB, e *emulation, cases ...*replayCase) {
	tb.Helper()
	var jobs []ReplayJob
	var want [][]float32
	for _, c := range cases {
		jobs = append(jobs, c.ReplayJob)
		want = append(want, c.onHost())
	}
	launches, err := Replay(jobs)
	if len(launches) > 1 {
		tb.Fatalf("%d launches", len(launches))
	}
	e.runAll(tb, launches, err)
	for i, c := range cases {
		for j, w := range want[i] {
			if g := c.out[j]; math.Float32bits(g) != math.Float32bits(w) && (g == g || w == w) {
				tb.Fatalf("%v: number %d is %v, want %v", c, j, g, w)
			}
		}
	}
}

func TestReplayHasTheBitsOfTheHost(t *testing.T) {
	e, r := emulated(t), seeded(t)
	for _, size := range [][2]int{{1, 1}, {1, 4}, {5, 3}, {16, 8}, {33, 36}, {64, 128}, {30, 1}, {128, 17}, {3, 700}} {
		for _, rows := range []int{0, 1, 2, 7, 20} {
			var cases []*replayCase
			for i := range 4 {
				a := ReplayJob{KeyHeads: 1 + r.IntN(3), DK: size[0], DV: size[1], Rows: rows, PerKey: i%2 == 1}
				a.Heads = a.KeyHeads * (1 + r.IntN(3))
				cases = append(cases, newReplayCase(t, r, a, r.IntN(3) > 0, i >= 2))
			}
			runReplays(t, e, cases...)
		}
	}
}

func TestReplayInPlaceFlushes(t *testing.T) {
	e, r := emulated(t), seeded(t)
	for range 8 {
		a := ReplayJob{Heads: 4, KeyHeads: 2, DK: 1 + r.IntN(70), DV: 1 + r.IntN(70), Rows: 1 + r.IntN(16), PerKey: r.IntN(2) == 0}
		c := newReplayCase(t, r, a, true, false)
		c.Out, c.out = c.From, c.from
		runReplays(t, e, c)
	}
}

func TestReplayRefusesWhatCannotRun(t *testing.T) {
	good := ReplayJob{Heads: 4, KeyHeads: 2, DK: 8, DV: 8, Rows: 1, Decay: 4, K: 8, U: 16, Out: 32}
	if _, err := Replay([]ReplayJob{good}); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(a *ReplayJob){
		"no heads":      func(a *ReplayJob) { a.Heads = 0 },
		"no key heads":  func(a *ReplayJob) { a.KeyHeads = 0 },
		"uneven heads":  func(a *ReplayJob) { a.KeyHeads = 3 },
		"no keys":       func(a *ReplayJob) { a.DK = 0 },
		"negative":      func(a *ReplayJob) { a.DV = -1 },
		"negative rows": func(a *ReplayJob) { a.Rows = -1 },
		"no out":        func(a *ReplayJob) { a.Out = 0 },
		"no decay":      func(a *ReplayJob) { a.Decay = 0 },
		"odd from":      func(a *ReplayJob) { a.From = 2 },
		"too large":     func(a *ReplayJob) { a.Heads, a.DK, a.DV = 1<<20, 1<<20, 1<<20 },
	} {
		a := good
		spoil(&a)
		if _, err := Replay([]ReplayJob{good, a}); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l, err := Replay(nil); err != nil || len(l) != 0 {
		t.Error("jobs out of nothing", l, err)
	}
}
