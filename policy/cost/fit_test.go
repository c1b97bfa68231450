package cost

import (
	"math"
	"math/rand/v2"
	"testing"
)

// truth is what a made-up device takes.
var truth = Prefill{Fixed: 12, PerToken: 0.07, PerTokenSquared: 6e-7}

func draw(rng *rand.Rand, p Prefill, noise float64) Sample {
	end := 1 << (5 + rng.IntN(12))
	end += rng.IntN(end)
	begin := 0
	if rng.IntN(3) == 0 {
		begin = rng.IntN(end)
	}
	return Sample{Begin: begin, End: end, Millis: p.Millis(begin, end) * (1 + noise*(2*rng.Float64()-1))}
}

// worst is the largest relative error over prompts and continuations.
func worst(got, want Prefill) float64 {
	bad := 0.0
	for _, c := range [][2]int{{0, 32}, {0, 1000}, {0, 8000}, {0, 60_000}, {0, 130_000}, {30_000, 30_100}, {50_000, 60_000}} {
		bad = max(bad, math.Abs(got.Millis(c[0], c[1])/want.Millis(c[0], c[1])-1))
	}
	return bad
}

func TestFitFindsWhatADeviceTakes(t *testing.T) {
	for _, c := range []struct {
		name            string
		noise, outliers float64
		samples         int
		within          float64
	}{
		{"exact", 0, 0, 60, 0.01},
		{"noisy", 0.1, 0, 300, 0.05},
		{"a fifth stalls", 0.05, 0.2, 300, 0.07},
		{"a third stalls", 0.02, 0.33, 300, 0.10},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(10) {
				rng := rand.New(rand.NewPCG(seed, 1))
				f := NewFit(Prefill{})
				for range c.samples {
					s := draw(rng, truth, c.noise)
					if rng.Float64() < c.outliers {
						s.Millis *= 3 + 20*rng.Float64()
					}
					f.Add(s)
				}
				if bad := worst(f.Prefill(), truth); bad > c.within {
					t.Errorf("seed %d: off by %.3f, want %v: %+v", seed, bad, c.within, f.Prefill())
				}
			}
		})
	}
}

func TestFitOfFewSamples(t *testing.T) {
	f := NewFit(Prefill{})
	if got := f.Prefill(); got != DefaultPrefill {
		t.Errorf("of none: %+v, want the default", got)
	}
	prior := Prefill{Fixed: 5, PerToken: 0.1, PerTokenSquared: 1e-6}
	if got := NewFit(prior).Prefill(); got != prior {
		t.Errorf("of none: %+v, want the prior", got)
	}
	// One sample scales the prior, at every length.
	f = NewFit(prior)
	f.Add(Sample{End: 4000, Millis: 3 * prior.Millis(0, 4000)})
	if bad := worst(f.Prefill(), prior.scaled(3)); bad > 0.01 {
		t.Errorf("of one: off by %v from three times the prior: %+v", bad, f.Prefill())
	}
	// Two that agree with each other keep what they say.
	f.Add(Sample{End: 1000, Millis: 3 * prior.Millis(0, 1000)})
	for _, n := range []int{1000, 4000} {
		if got, want := f.Prefill().Millis(0, n), 3*prior.Millis(0, n); math.Abs(got/want-1) > 0.02 {
			t.Errorf("of two: %d tokens %v ms, want %v", n, got, want)
		}
	}
	// Two that contradict each other give something between them.
	f = NewFit(prior)
	f.Add(Sample{End: 4000, Millis: 100})
	f.Add(Sample{End: 4000, Millis: 900})
	if got := f.Prefill().Millis(0, 4000); got < 99 || got > 901 {
		t.Errorf("of two that differ: %v ms, want 100 to 900", got)
	}
}

func TestFitForgets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	f := NewFit(Prefill{})
	for range 500 {
		f.Add(draw(rng, truth, 0.05))
	}
	slow := truth.scaled(2.5)
	for range 500 {
		f.Add(draw(rng, slow, 0.05))
	}
	if bad := worst(f.Prefill(), slow); bad > 0.1 {
		t.Errorf("500 samples after a change: off by %.3f", bad)
	}
}

// What long prompts cost is not forgotten over a day of short ones.
func TestFitKeepsEverySize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	f := NewFit(Prefill{})
	for range 100 {
		f.Add(draw(rng, truth, 0.02))
	}
	for range 20_000 {
		n := 100 + rng.IntN(300)
		f.Add(Sample{End: n, Millis: truth.Millis(0, n) * (1 + 0.1*rng.Float64())})
	}
	if got, want := f.Prefill().Millis(0, 100_000), truth.Millis(0, 100_000); math.Abs(got/want-1) > 0.15 {
		t.Errorf("100,000 tokens: %v ms, want %v", got, want)
	}
	if most := fitClasses * fitClasses * fitKeep; len(f.held) > most {
		t.Errorf("%d samples held, at most %d", len(f.held), most)
	}
	if f.Samples() != 20_100 {
		t.Errorf("%d samples counted", f.Samples())
	}
}

func TestFitIgnoresNonsense(t *testing.T) {
	f := NewFit(Prefill{})
	for _, s := range []Sample{
		{End: 10, Millis: 0}, {End: 10, Millis: -1}, {End: 10, Millis: math.NaN()}, {End: 10, Millis: math.Inf(1)},
		{End: 10, Millis: 1e-200}, {Begin: 10, End: 10, Millis: 1}, {Begin: -1, End: 10, Millis: 1}, {End: math.MaxInt, Millis: 1},
	} {
		if f.Add(s) {
			t.Errorf("%+v is taken", s)
		}
	}
	if f.Prefill() != DefaultPrefill || f.Samples() != 0 {
		t.Errorf("%+v after nonsense", f.Prefill())
	}
}

// Whatever comes, a longer run is predicted to take longer and nothing is below
// zero.
func TestFitStaysSane(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 4))
		f := NewFit(Prefill{})
		for range rng.IntN(40) {
			end := 1 + rng.IntN(1<<(1+rng.IntN(20)))
			f.Add(Sample{Begin: rng.IntN(end), End: end, Millis: math.Exp(20*rng.Float64() - 8)})
		}
		p := f.Prefill()
		if min(p.Fixed, p.PerToken, p.PerTokenSquared) < 0 || math.IsNaN(p.Fixed+p.PerToken+p.PerTokenSquared) || p.IsZero() {
			t.Fatalf("seed %d: %+v", seed, p)
		}
		for last, n := 0.0, 1; n < 1<<20; n *= 2 {
			ms := p.Millis(0, n)
			if ms < last || ms <= 0 {
				t.Fatalf("seed %d: %d tokens %v ms, half of them %v", seed, n, ms, last)
			}
			last = ms
		}
	}
}

func TestMillisOfPartsAddUp(t *testing.T) {
	whole := truth.Millis(0, 9000)
	parts := truth.Millis(0, 4000) + truth.Marginal(4000, 9000)
	near(t, "parts", parts, whole, 1e-9)
	if truth.Millis(5, 5) != 0 || truth.Millis(6, 5) != 0 || truth.Marginal(9, 3) != 0 {
		t.Error("no tokens take time")
	}
}

// A clock that steps, or a client that measures something else.
func TestFitWithstandsAFewAbsurdSamples(t *testing.T) {
	honest := Prefill{Fixed: 8, PerToken: 0.05, PerTokenSquared: 1e-7}
	for _, lie := range []Sample{
		{End: 1 << 20, Millis: 0.001}, {End: 1000, Millis: 1e-6}, {End: 64, Millis: 1e9}, {End: 4000, Millis: 1e12}, {Begin: 1 << 20, End: 1<<20 + 1, Millis: 1e15},
	} {
		f := NewFit(Prefill{})
		for i := range 40 {
			for _, n := range []int{500, 1000, 4000} {
				f.Add(Sample{End: n + i, Millis: honest.Millis(0, n+i)})
			}
		}
		for i := range 3 {
			s := lie
			s.End += i
			f.Add(s)
		}
		for _, n := range []int{500, 1000, 4000} {
			if got, want := f.Prefill().Millis(0, n), honest.Millis(0, n); got < want/1.5 || got > want*1.5 {
				t.Errorf("after three of %v: %v ms for %d tokens, want about %v", lie, got, n, want)
			}
		}
	}
}
