package cost

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestLinkIsMeasured(t *testing.T) {
	want := Bandwidth(0.4, 2e9)
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 6))
		var a Averages
		for i := range 200 {
			bytes := int64(1+rng.IntN(64)) << 20
			ms := want.Millis(bytes) * (1 + 0.1*(2*rng.Float64()-1))
			if i%23 == 5 {
				ms *= 30 // a stall
			}
			a.Add(Link{}, bytes, ms)
		}
		got := a.Link(Link{})
		for _, bytes := range []int64{8 << 20, 32 << 20, 64 << 20} {
			if r := got.Millis(bytes) / want.Millis(bytes); r < 0.8 || r > 1.6 {
				t.Errorf("seed %d: %d bytes %v ms, want %v", seed, bytes, got.Millis(bytes), want.Millis(bytes))
			}
		}
	}
}

func TestLinkOfLittle(t *testing.T) {
	prior := Bandwidth(1, 1e9)
	var a Averages
	if got := a.Link(prior); got != prior {
		t.Errorf("unmeasured: %+v, want the prior", got)
	}
	for range 10 {
		a.Add(prior, 1<<20, 2*prior.Millis(1<<20)) // of one size only
	}
	for _, bytes := range []int64{0, 1 << 20, 1 << 30} {
		near(t, "one size", a.Link(prior).Millis(bytes), 2*prior.Millis(bytes), 1e-6*prior.Millis(bytes))
	}
	a.Add(prior, -1, 5)
	a.Add(prior, 1<<20, math.NaN())
	a.Add(prior, 1<<20, -1)
	if a.Samples() != 10 {
		t.Errorf("%d samples, want 10: the rest is nonsense", a.Samples())
	}
}

func TestOneStallPricesNothingOut(t *testing.T) {
	prior := Bandwidth(1, 1e9)
	for before := range 20 {
		var a Averages
		for range before {
			a.Add(prior, 4<<20, prior.Millis(4<<20))
		}
		a.Add(prior, 4<<20, 1e6)
		if by := a.Link(prior).Millis(4<<20) / prior.Millis(4<<20); by > linkCap+1e-9 {
			t.Errorf("after %d jobs a stall makes the next one look %.1f times as long", before, by)
		}
	}
}

func TestWhatIsSlowIsFoundToBe(t *testing.T) {
	prior, slow := Bandwidth(1, 1e9), Bandwidth(100, 1e7)
	var a Averages
	for n := 1; ; n++ {
		a.Add(prior, 4<<20, slow.Millis(4<<20))
		if a.Link(prior).Millis(4<<20) > 0.9*slow.Millis(4<<20) {
			break
		}
		if n == 24 {
			t.Fatalf("after %d jobs at a hundredth of the speed: %v ms, want %v", n, a.Link(prior).Millis(4<<20), slow.Millis(4<<20))
		}
	}
}

func TestForgettingEndsAtThePrior(t *testing.T) {
	prior, slow := Bandwidth(1, 1e9), Bandwidth(20, 1e8)
	var a Averages
	for i := range 200 {
		bytes := int64(1+i%7) << 20
		a.Add(prior, bytes, slow.Millis(bytes))
	}
	last := slow.Millis(3 << 20)
	near(t, "measured", a.Link(prior).Millis(3<<20), last, 0.01*last)
	for range 5 {
		a.Forget(prior)
		now := a.Link(prior).Millis(3 << 20)
		if now >= last || now < prior.Millis(3<<20)-1e-9 {
			t.Fatalf("%v ms after %v: no step back to %v", now, last, prior.Millis(3<<20))
		}
		last = now
	}
	if got := a.Link(prior); got != prior || a.Samples() != 0 {
		t.Errorf("%+v with %d samples, want the prior", got, a.Samples())
	}
	a.Add(prior, 3<<20, slow.Millis(3<<20))
	near(t, "found again", a.Link(prior).Millis(3<<20), slow.Millis(3<<20), 0.01*slow.Millis(3<<20))
}

func TestWhatIsFastIsNotForgotten(t *testing.T) {
	prior, fast := Bandwidth(1, 1e9), Bandwidth(0.1, 5e9)
	var a Averages
	for i := range 40 {
		bytes := int64(1+i%7) << 20
		a.Add(prior, bytes, fast.Millis(bytes))
	}
	want := a.Link(prior)
	for range 20 {
		a.Forget(prior)
	}
	if got := a.Link(prior); got != want || a.Samples() != linkKeep {
		t.Errorf("%+v with %d samples, want %+v: nobody would try it again", got, a.Samples(), want)
	}
}

func TestLinkIsNeverNegative(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var a Averages
		for range 1 + rng.IntN(30) {
			a.Add(Bandwidth(1, 1e9), int64(rng.IntN(1<<(1+rng.IntN(30)))), math.Exp(12*rng.Float64()-6))
		}
		if l := a.Link(Bandwidth(1, 1e9)); l.Fixed < 0 || l.PerByte < 0 || math.IsNaN(l.Fixed+l.PerByte) {
			t.Fatalf("seed %d: %+v", seed, l)
		}
	}
}

func TestLinkFollowsASlowerTier(t *testing.T) {
	var a Averages
	fast, slow := Bandwidth(0, 4e9), Bandwidth(0, 1e9)
	for _, l := range []Link{fast, slow} {
		for i := range 100 {
			bytes := int64(1+i%10) << 22
			a.Add(Link{}, bytes, l.Millis(bytes))
		}
	}
	near(t, "40 MiB", a.Link(Link{}).Millis(40<<20), slow.Millis(40<<20), 0.02*slow.Millis(40<<20))
}

// model has round figures: 0.1 ms a token, 1 KiB of rows a token, checkpoints
// of 1 MiB; DRAM 0.1 ms/MiB, disk 1 ms and 1 ms/MiB, publication 1 ms/MiB.
func model() *Model {
	m := New(Options{Shape: Shape{KVBytes: 1 << 10, StateBytes: 1 << 20}, Prefill: Prefill{Fixed: 10, PerToken: 0.1}})
	const mib = 1 << 20
	m.SetLink(JobLoadHBM, Link{PerByte: 0.01 / mib})
	m.SetLink(JobLoadDRAM, Link{PerByte: 0.1 / mib})
	m.SetLink(JobLoadDisk, Link{Fixed: 1, PerByte: 1.0 / mib})
	m.SetLink(JobCompose, Link{Fixed: 1, PerByte: 1.0 / mib})
	m.SetLink(JobRotate, Link{PerByte: 1.0 / mib})
	m.SetLink(JobReplay, Link{Fixed: 2})
	m.SetLink(JobPublish, Link{PerByte: 1.0 / mib})
	return m
}

func TestSavedIsAgainstTheTierBelow(t *testing.T) {
	m := model()
	const mib = 1 << 20
	for _, c := range []struct {
		name string
		held Held
		want float64
	}{
		{"computing 1,000 tokens", Held{End: 1000, Bytes: 2 * mib, In: TierDRAM}, 100 - 0.2},
		{"what it extends is there", Held{Begin: 900, End: 1000, Bytes: 2 * mib, In: TierDRAM}, 10 - 0.2},
		{"disk has it", Held{End: 1000, Bytes: 2 * mib, In: TierDRAM, Below: TierDisk}, 3 - 0.2},
		{"disk has it, but computing is faster", Held{End: 20, Bytes: 2 * mib, In: TierDRAM, Below: TierDisk}, 2 - 0.2},
		{"DRAM has it", Held{End: 1000, Bytes: 2 * mib, In: TierHBM, Below: TierDRAM}, 0.2 - 0.02},
		{"too short", Held{End: 1, Bytes: 2 * mib, In: TierDRAM}, 0},
		{"nowhere", Held{End: 1000, Bytes: 2 * mib}, 0},
		{"no tokens", Held{Begin: 7, End: 7, Bytes: mib, In: TierDRAM}, 0},
	} {
		near(t, c.name, m.Saved(c.held), c.want, 1e-9)
	}
	near(t, "density", m.Density(Held{End: 1000, Bytes: 2 * mib, In: TierDRAM}), 49.9, 1e-9)
	if PerMiB(5, 0) != 0 {
		t.Error("no bytes have a density")
	}
}

func TestModelLearns(t *testing.T) {
	m := model()
	for range 20 {
		if !m.Measured(Sample{End: 2000, Millis: 420}) {
			t.Fatal("a sample is refused")
		}
		m.Did(JobLoadDisk, 4<<20, 20)
		m.Did(jobs, 1, 1)
	}
	near(t, "prefill", m.Prefill().Millis(0, 2000), 420, 5)
	ms, ok := m.LoadMillis(TierDisk, 4<<20)
	near(t, "disk", ms, 20, 0.1)
	if _, held := m.LoadMillis(TierNone, 1); !ok || held || m.prefill.Samples() != 20 || m.Link(jobs) != (Link{}) {
		t.Errorf("load known %v, of nowhere %v, %d samples", ok, held, m.prefill.Samples())
	}
}

// What is admitted without being expected again costs at most 1 % of what it
// took to compute, whatever the model.
func TestColdPromptsCostAtMostOnePercent(t *testing.T) {
	admitted := 0
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 8))
		m := New(Options{
			Shape:   Shape{KVBytes: int64(rng.IntN(1 << 17)), StateBytes: int64(rng.IntN(1 << 28))},
			Prefill: Prefill{Fixed: 10, PerToken: math.Exp(6*rng.Float64() - 6), PerTokenSquared: 1e-6 * rng.Float64()},
		})
		m.SetLink(JobPublish, Bandwidth(rng.Float64(), math.Exp(6*rng.Float64()+19)))
		end := 1 + rng.IntN(200_000)
		c := Candidate{Held: Held{End: end, Bytes: m.Shape.PrefixBytes(end, 1), In: TierDRAM}}
		if rng.IntN(2) == 0 {
			c.Begin = rng.IntN(end)
		}
		if ok, why := m.Admit(c); ok {
			admitted++
			if spent, all := m.Link(JobPublish).Millis(c.Bytes), m.Prefill().Marginal(c.Begin, c.End); why != ReasonCheap || spent > 0.01*all {
				t.Fatalf("seed %d: %s costs %v ms of %v", seed, why, spent, all)
			}
		}
	}
	if admitted < 50 {
		t.Errorf("%d of 5,000 admitted", admitted)
	}
}
