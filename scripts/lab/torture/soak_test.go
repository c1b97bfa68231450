package torture

import (
	"math"
	"testing"
)

func TestWhatFailsASoak(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *SoakReport)
		want   string // in what is wrong; empty = nothing is
	}{
		"nothing":            {func(*SoakReport) {}, ""},
		"wrong bytes":        {func(r *SoakReport) { r.Corrupt = 1 }, "1 reads had other bytes"},
		"a lie":              {func(r *SoakReport) { r.Believed = 2 }, "2 of 9 lies were believed"},
		"nothing read":       {func(r *SoakReport) { r.Read = 0 }, "nothing is proved"},
		"memory rises":       {func(r *SoakReport) { r.Slopes[0].Verdict = rises }, "memory rises by 3 %"},
		"in a run too short": {func(r *SoakReport) { r.Slopes[0].Verdict, r.Judged = rises, false }, ""},
		"it cannot be told":  {func(r *SoakReport) { r.Slopes[0].Verdict = open }, ""},
	} {
		r := SoakReport{Read: 5, Lies: 9, Judged: true, Slopes: []Slope{{Name: "memory", Unit: "bytes", Samples: 20, Mean: 1000, Low: 30, PerHour: 40, High: 50, Bound: 2, Verdict: flat}}}
		c.change(&r)
		mustFail(t, name, r.Failures(), r.Print, c.want)
	}
}

// What a daemon grows by while it warms up is no slope.
func TestSlopesAreOfTheLastPart(t *testing.T) {
	r := SoakReport{Seconds: 1000}
	for i := range 100 {
		s := Sample{Seconds: float64(i) * 10, RSS: 1000, Private: 500, Descriptors: 40, Goroutines: 20, Latency: map[string]float64{"match_p50": 100}}
		if s.Seconds < 600 {
			s.RSS, s.Latency = s.Seconds, nil
		}
		r.Samples = append(r.Samples, s)
	}
	r.fit(2)
	verdicts := map[string]string{}
	for _, s := range r.Slopes {
		verdicts[s.Name] = s.Verdict
	}
	if s := r.Slopes[0]; s.Name != "memory" || s.Samples != 33 || math.Abs(s.Mean-1000) > 1e-6 || s.Verdict != flat {
		t.Errorf("%+v", s)
	}
	if verdicts["match p50"] != flat || verdicts["acquire p99"] != short || len(verdicts) != 10 {
		t.Errorf("%v", verdicts)
	}
}
