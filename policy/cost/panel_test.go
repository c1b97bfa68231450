package cost

import (
	"testing"
	"time"
)

// timesPrior brings n samples of one source on a computer so many times slower than the prior.
func timesPrior(p *Panel, at time.Time, source uint64, times float64, n int) {
	for i := range n {
		length := []int{100, 1000, 4096, 20_000}[i%4]
		p.Add(at, Sample{End: length, Millis: times * DefaultPrefill.Millis(0, length), Source: source})
	}
}

func slower(p *Panel) float64 { return p.Prefill().Millis(0, 4096) / DefaultPrefill.Millis(0, 4096) }

func TestNoSourceOutvotesTheOthers(t *testing.T) {
	type claim struct {
		source uint64
		times  float64
		n      int
	}
	start := time.Unix(1e9, 0)
	for name, row := range map[string]struct {
		claims []claim
		want   float64
	}{
		"nobody":                          {nil, 1},
		"one":                             {[]claim{{1, 50, 20}}, 50},
		"two that disagree":               {[]claim{{1, 3, 8}, {2, 0.001, 3000}}, 1},
		"two that agree":                  {[]claim{{1, 3, 20}, {2, 3, 20}}, 3},
		"a flood and two who agree":       {[]claim{{9, 0.001, 3000}, {1, 3, 20}, {2, 4, 20}}, 3},
		"a flood before few samples":      {[]claim{{9, 0.001, 3000}, {1, 3, 8}, {2, 3, 8}}, 3},
		"a flood of slow ones":            {[]claim{{1, 3, 20}, {2, 3, 20}, {9, 1e6, 3000}}, 3},
		"one source that comes and goes":  {[]claim{{9, 0.001, 50}, {1, 3, 20}, {9, 0.001, 50}, {2, 3, 20}, {9, 0.001, 50}}, 3},
		"a fourth who agrees with nobody": {[]claim{{1, 3, 20}, {2, 3, 20}, {3, 3, 20}, {9, 1e6, 3000}}, 3},
	} {
		p := NewPanel(Prefill{}, Prefill{})
		for _, c := range row.claims {
			timesPrior(p, start, c.source, c.times, c.n)
		}
		if got := slower(p); got < 0.98*row.want || got > 1.02*row.want {
			t.Errorf("%s: %.4f times the prior, want %.4f", name, got, row.want)
		}
	}
}

func TestOthersLeavesOneSourceOut(t *testing.T) {
	p := NewPanel(Prefill{}, Prefill{})
	timesPrior(p, time.Unix(1e9, 0), 1, 50, 20)
	if got, n := p.Others(1); n != 0 || got != DefaultPrefill {
		t.Errorf("without others: %+v of %d samples", got, n)
	}
	timesPrior(p, time.Unix(1e9, 0), 2, 3, 12)
	got, n := p.Others(1)
	if times := got.Millis(0, 4096) / DefaultPrefill.Millis(0, 4096); n != 12 || times < 2.9 || times > 3.1 {
		t.Errorf("%v times the prior of %d samples, want 3 of 12", times, n)
	}
	if p.Samples() != 32 {
		t.Errorf("%d samples are left", p.Samples())
	}
}

func TestALoneSourceIsHeldToWhatComputersCanDo(t *testing.T) {
	floor := PrefillFloor(Shape{KVBytes: 64 << 10})
	p := NewPanel(Prefill{}, floor)
	for range 3000 {
		if p.Add(time.Time{}, Sample{End: 4096, Millis: 1e-3, Source: 1}) {
			t.Fatal("a microsecond for 4,096 tokens is taken")
		}
	}
	if got := p.Prefill(); got != DefaultPrefill {
		t.Errorf("%+v", got)
	}
	for range 3000 {
		p.Add(time.Time{}, Sample{End: 4096, Millis: 1.01 * floor.Millis(0, 4096), Source: 1})
	}
	if got := p.Prefill().Millis(0, 4096); got < floor.Millis(0, 4096) {
		t.Errorf("%v ms, faster than anything", got)
	}
}

func TestSilentSourcesLoseTheirVoteAndTheirPlace(t *testing.T) {
	p, at := NewPanel(Prefill{}, Prefill{}), time.Unix(1e9, 0)
	timesPrior(p, at, 1, 100, 20)
	timesPrior(p, at.Add(panelMemory), 2, 3, 20)
	if got := slower(p); got < 2.9 || got > 3.1 {
		t.Errorf("with one of before: %v times the prior", got)
	}
	timesPrior(p, at.Add(panelMemory+time.Second), 2, 3, 20)
	if n := len(p.votes()); n != 1 {
		t.Errorf("%d vote", n)
	}
	for i := range uint64(100) {
		timesPrior(p, at.Add(time.Hour+time.Duration(i)*time.Second), 10+i, 3, 4)
	}
	if n := len(p.voters); n != panelSources {
		t.Errorf("%d sources are held", n)
	}
}

// A prediction that stands on nobody's samples is not counted as measured.
func TestSilentSourcesHaveNoSamples(t *testing.T) {
	p, start := NewPanel(Prefill{}, Prefill{}), time.Unix(1e9, 0)
	timesPrior(p, start, 1, 3, 20)
	timesPrior(p, start.Add(panelMemory+time.Second), 2, 3, 1)
	if got, n := p.Others(2); n != 0 || got != DefaultPrefill {
		t.Errorf("%+v of %d samples, want the prior of none", got, n)
	}
}
