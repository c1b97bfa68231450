package cost

import (
	"bytes"
	"encoding/csv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/spliced-kv/spliced/policy/tracetest"
)

// Jamba 1.5 Mini on four A100, 639 lengths from 50 to 31,950 tokens, stalls of
// the first runs included. Least squares over all of them gives 17.8 ms and
// 0.053 ms a token.
func TestFitOfPrefillsMeasuredOnAGPU(t *testing.T) {
	lines, err := csv.NewReader(bytes.NewReader(tracetest.Read(t, "marconi_ttft_jamba15mini_a100x4.csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var samples []Sample
	for _, line := range lines[1:] {
		tokens, err := strconv.Atoi(line[0])
		if err != nil {
			t.Fatal(err)
		}
		ms, err := strconv.ParseFloat(line[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		samples = append(samples, Sample{End: tokens, Millis: ms})
	}
	rng := rand.New(rand.NewPCG(1, 9))
	rng.Shuffle(len(samples), func(i, j int) { samples[i], samples[j] = samples[j], samples[i] })
	fit := NewFit(Prefill{})
	var ahead []float64 // relative errors of what was predicted before it was measured
	for i, s := range samples {
		if i >= 50 {
			ahead = append(ahead, math.Abs(fit.Prefill().Millis(0, s.End)/s.Millis-1))
		}
		fit.Add(s)
	}
	slices.Sort(ahead)
	median, p90 := ahead[len(ahead)/2], ahead[len(ahead)*9/10]
	t.Logf("%+v: error of the next one %.3f in the median, %.3f at the 90th percentile", fit.Prefill(), median, p90)
	if median > 0.03 || p90 > 0.1 {
		t.Errorf("error of the next one %.3f in the median, %.3f at the 90th percentile, want .03 and .1", median, p90)
	}
	for _, n := range []int{2000, 8000, 30_000} {
		near(t, "predicted against the line", fit.Prefill().Millis(0, n), 17.814+0.052964*float64(n), 0.05*(17.814+0.052964*float64(n)))
	}
}
