package buffer

import (
	"math"
	"testing"
)

// near holds to the digits that a reference number is given with.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance || math.IsNaN(got) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Table 1 in elements: key and value of F16 are 2 bytes, states 4.
func TestFormsMoveWhatTable1Says(t *testing.T) {
	const d, L, C = 128, 1000, 16
	g := Paper(d)
	near(t, "state over row", g.State()/g.Row(), d, 0)
	p := g.Parallel(L)
	near(t, "parallel stored", p.Stored, 2*2*L*d, 0)
	near(t, "parallel read", p.Read, 2*2*L*d, 0)
	near(t, "parallel written", p.Written, 2*2*d, 0)
	r := g.Recurrent()
	near(t, "recurrent", r.Stored+r.Read+r.Written, 3*4*d*d, 0)
	c := g.Chunkwise(C)
	near(t, "chunkwise stored", c.Stored, 4*d*d+2*2*C*d, 0)
	near(t, "chunkwise read", c.Read, 4*d*d+2*C*d, 0)
	near(t, "chunkwise written", c.Written, 4*d*d/C+2*2*d, 0)
	near(t, "moved but for the own row", c.Moved()-g.Row(), g.Step(C), 1e-9)
	near(t, "flush", g.Flush(C), 8*d*d+4*C*d, 0)
	near(t, "flush intensity", g.FlushIntensity(C), float64(C*d)/float64(4*d+2*C), 1e-12)
}

func TestStepsOfAHeadOf128(t *testing.T) {
	g := Paper(128)
	shared := g
	shared.ValuesPerKey = 2
	for _, row := range []struct {
		c                       int
		bytes, speedup, cut, of float64
		flush                   float64
	}{
		{2, 98816, 1.3264, 24.61, 1.3281, 132096},
		{4, 82944, 1.5802, 36.72, 1.5851, 133120},
		{8, 75776, 1.7297, 42.19, 1.7415, 135168},
		{16, 73728, 1.7778, 43.75, 1.8028, 139264},
		{32, 75776, 1.7297, 42.19, 1.7778, 147456},
		{64, 82944, 1.5802, 36.72, 1.6623, 163840},
	} {
		near(t, "bytes", g.Step(row.c), row.bytes, 0)
		near(t, "speedup", g.Speedup(row.c), row.speedup, 5e-5)
		near(t, "cut", 100*(1-1/g.Speedup(row.c)), row.cut, 5e-3)
		near(t, "speedup of shared keys", shared.Speedup(row.c), row.of, 5e-5)
		near(t, "flush", g.Flush(row.c), row.flush, 0)
	}
	near(t, "cut of shared keys at 16", 100*(1-1/shared.Speedup(16)), 44.53, 5e-3)
}

func TestBestCapacity(t *testing.T) {
	for _, row := range []struct {
		d                int
		optimum, speedup float64
		best             int
	}{{64, 11.31, 1.69956, 11}, {128, 16, 16.0 / 9, 16}, {256, 22.63, 1.83758, 23}} {
		g := Paper(row.d)
		near(t, "optimum", g.Optimum(), row.optimum, 5e-3)
		near(t, "speedup", g.Recurrent().Moved()/g.step(g.Optimum()), row.speedup, 5e-6)
		near(t, "speedup in closed form", g.Recurrent().Moved()/g.step(g.Optimum()), 2/(1+math.Sqrt(2/float64(row.d))), 1e-12)
		if got := g.Best(); got != row.best {
			t.Errorf("d=%d: best capacity %d, want %d", row.d, got, row.best)
		}
	}
	for _, g := range []Geometry{Paper(1), Paper(48), {KeyDim: 16, ValueDim: 1, StateBytes: 4, VectorBytes: 4, ExtraBytes: 64}, {KeyDim: 100, ValueDim: 300, StateBytes: 2, VectorBytes: 4, ValuesPerKey: 4}} {
		best := g.Best()
		for c := 1; c < 200; c++ {
			if g.Step(c) < g.Step(best) {
				t.Errorf("%+v: %v bytes at %d, %v at %d, called the best", g, g.Step(c), c, g.Step(best), best)
			}
		}
	}
}

// Keys that two value heads share move the optimum up, to fewer bytes.
func TestSharedKeysWantALargerBuffer(t *testing.T) {
	g := Paper(128)
	g.ValuesPerKey = 2
	near(t, "row", g.Row(), 3*128, 0)
	near(t, "optimum", g.Optimum(), 18.5, 0.05)
	near(t, "bytes", g.step(g.Optimum()), 72630, 1)
	near(t, "bytes at the best", g.Step(g.Best()), 72633, 0.5)
	near(t, "cut", 100*(1-1/g.Speedup(g.Best())), 44.6, 0.05)
	if b := g.Best(); b != 18 && b != 19 {
		t.Errorf("best capacity %d", b)
	}
}

func TestFlushThatReadsAgain(t *testing.T) {
	g := Paper(128)
	near(t, "speedup", g.SpeedupWithFlush(16), 1.6732, 5e-5)
	near(t, "optimum", g.OptimumWithFlush(), 2*math.Sqrt(128), 1e-12)
	for c := 1; c < 100; c++ {
		if near := 22; g.StepWithFlush(c) < g.StepWithFlush(near) && g.StepWithFlush(c) < g.StepWithFlush(near+1) {
			t.Errorf("%v bytes at %d", g.StepWithFlush(c), c)
		}
	}
}

// What the kernels move is what Eq. 6 charges and half a row: they write their
// row, and read one row less on average.
func TestCountedBytesAreThoseOfEquation6(t *testing.T) {
	g := Paper(128)
	near(t, "counted", g.Counted(16), 73984, 0)
	for c := 1; c < 100; c++ {
		near(t, "counted less Eq. 6", g.Counted(c)-g.Step(c), g.Row()/2, 1e-9)
	}
}

func TestADecayPerTokenChangesLittle(t *testing.T) {
	for _, extra := range []int{2, 4} {
		g := Paper(128)
		g.ExtraBytes = extra
		if change := math.Abs(g.Speedup(16)/Paper(128).Speedup(16) - 1); change == 0 || change >= 0.01 {
			t.Errorf("%d bytes more change the speedup by %v", extra, change)
		}
		if change := math.Abs(g.VerifySpeedup(4)/Paper(128).VerifySpeedup(4) - 1); change == 0 || change >= 0.01 {
			t.Errorf("%d bytes more change verification by %v", extra, change)
		}
		if change := math.Abs(g.RowsOnlySpeedup(96, 16)/Paper(128).RowsOnlySpeedup(96, 16) - 1); change == 0 || change >= 0.01 {
			t.Errorf("%d bytes more change rows only by %v", extra, change)
		}
	}
}

func TestVerifyingDrafts(t *testing.T) {
	g := Paper(128)
	for _, row := range []struct {
		m               int
		speedup, memory float64
	}{
		{1, 0.6632, 1.98}, {2, 0.9897, 2.95}, {3, 1.3128, 3.91}, {4, 1.6327, 4.85},
		{6, 2.2626, 6.69}, {8, 2.8800, 8.47}, {16, 5.2308, 15.11},
	} {
		m := float64(row.m)
		near(t, "speedup", g.VerifySpeedup(row.m), row.speedup, 5e-5)
		near(t, "speedup in closed form", g.VerifySpeedup(row.m), (m+1)*128/(3*128+2*m), 1e-12)
		near(t, "memory", g.DraftMemory(row.m), row.memory, 5e-3)
		near(t, "memory in closed form", g.DraftMemory(row.m), (m+1)*128/(128+m), 1e-12)
		if deferred := g.VerifyDeferred(row.m, 16); deferred >= g.VerifyBuffered(row.m) {
			t.Errorf("%d drafts: %v bytes deferred, %v with an update each", row.m, deferred, g.VerifyBuffered(row.m))
		}
	}
	near(t, "limit for wide heads", Paper(1<<20).VerifySpeedup(4), 5.0/3, 1e-4)
	near(t, "four drafts, a state each", g.VerifyRecurrent(4), 327680, 0)
	near(t, "four drafts, updated at once", g.VerifyBuffered(4), 200704, 0)
	near(t, "four drafts, left in a buffer of 16", g.VerifyDeferred(4, 16), 88064, 0)
	// Qwen3-Next has 36 linear layers of 48; the paper's 384 MB are for all 48.
	const heads = 32
	near(t, "2 MB a layer", heads*g.State(), 2<<20, 0)
	near(t, "states of four drafts, MB", 4*36*heads*g.State()/(1<<20), 288, 0)
	near(t, "the same for every layer", 4*48*heads*g.State()/(1<<20), 384, 0)
}

func TestRowsAloneAreCheaperForShortContexts(t *testing.T) {
	g := Paper(128)
	for _, row := range []struct {
		tokens  int
		speedup float64
	}{{16, 9}, {32, 4.5}, {64, 2.25}, {96, 1.5}, {128, 1.125}, {144, 1}, {160, 0.9}} {
		near(t, "speedup", g.RowsOnlySpeedup(row.tokens, 16), row.speedup, 1e-12)
		near(t, "against recurrent", g.Recurrent().Moved()/g.Parallel(row.tokens).Read, 2*128/float64(row.tokens), 1e-12)
	}
	if g.BreakEven() != 144 || g.StorageBreakEven() != 128 {
		t.Errorf("break-even at %d tokens, of storage at %d", g.BreakEven(), g.StorageBreakEven())
	}
	for tokens, want := range map[int]Form{1: RowsOnly, 144: RowsOnly, 145: Chunkwise, 1 << 20: Chunkwise} {
		if f, c := g.Choose(tokens); f != want || f == Chunkwise && c != 16 {
			t.Errorf("%d tokens: form %d with %d rows, want %d", tokens, f, c, want)
		}
	}
	// A state of four numbers is cheaper to move than a row beside it.
	tiny := Geometry{KeyDim: 2, ValueDim: 2, StateBytes: 4, VectorBytes: 4, ExtraBytes: 64}
	if f, _ := tiny.Choose(100); f != Recurrent {
		t.Errorf("form %d for rows larger than the state", f)
	}
}

func TestGeometriesWithoutBytesAreRefused(t *testing.T) {
	if err := Paper(128).Validate(); err != nil {
		t.Error(err)
	}
	for _, spoil := range []func(*Geometry){
		func(g *Geometry) { g.KeyDim = 0 }, func(g *Geometry) { g.ValueDim = -1 }, func(g *Geometry) { g.StateBytes = 0 },
		func(g *Geometry) { g.VectorBytes = 0 }, func(g *Geometry) { g.ExtraBytes = -1 }, func(g *Geometry) { g.ValuesPerKey = -1 },
	} {
		g := Paper(128)
		if spoil(&g); g.Validate() == nil {
			t.Errorf("%+v is accepted", g)
		}
	}
}
