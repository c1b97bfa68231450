package torture

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestStudent(t *testing.T) {
	for v, want := range map[float64]float64{1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042, 1000: 1.962} {
		if got := student(v); math.Abs(got-want) > 0.01*want {
			t.Errorf("%g degrees: %g, want %g", v, got, want)
		}
	}
}

// line is n samples 10 s apart that rise by percent of 1000 in an hour, with noise.
func line(n int, percent, noise float64) (hours, y []float64) {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range n {
		h := float64(i) / 360
		hours = append(hours, h)
		y = append(y, 1000+10*percent*h+noise*rng.NormFloat64())
	}
	return hours, y
}

func TestVerdictsOnSlopes(t *testing.T) {
	for name, c := range map[string]struct {
		n              int
		percent, noise float64
		want           string
	}{
		"constant":                {20, 0, 0, flat},
		"an hour of noise":        {360, 0, 5, flat},
		"an hour that rises":      {360, 20, 5, rises},
		"rises less than allowed": {360, 1, 0.5, flat},
		"falls":                   {360, -20, 5, flat},
		"a minute of noise":       {9, 0, 50, open},
		"few samples":             {7, 500, 0, short},
	} {
		s := slopeOf2(c.n, c.percent, c.noise)
		if s.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", name, s, c.want)
		}
		if c.noise > 0 && c.want != short && (s.Low > 10*c.percent || s.High < 10*c.percent) {
			t.Errorf("%s: %g is not in [%g, %g]", name, 10*c.percent, s.Low, s.High)
		}
	}
	if s := slopeOf(nil, nil, 2); s.Verdict != short {
		t.Errorf("%+v", s)
	}
}

func slopeOf2(n int, percent, noise float64) Slope {
	hours, y := line(n, percent, noise)
	return slopeOf(hours, y, 2)
}

// Samples that resemble their neighbours prove less.
func TestSlowWavesWidenTheInterval(t *testing.T) {
	hours, noisy := line(120, 0, 10)
	_, wavy := line(120, 0, 0)
	for i := range wavy {
		wavy[i] += 14 * math.Sin(float64(i)/10)
	}
	a, b := slopeOf(hours, noisy, 2), slopeOf(hours, wavy, 2)
	if b.High-b.Low < 2*(a.High-a.Low) {
		t.Errorf("waves %+v, noise %+v", b, a)
	}
}
