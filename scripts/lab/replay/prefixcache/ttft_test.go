package prefixcache

import (
	"math"
	"slices"
)

// TTFT models the time to first token of requests as that of computing what the
// cache did not hold: Fixed + PerToken × (input - hit), in milliseconds, the
// method of Marconi's evaluation. It remembers one number a request.
type TTFT struct {
	Fixed, PerToken float64
	StepTokens      int // what is to be computed counts as the first multiple of it above; 0 = as it is
	samples         []float64
	sorted          bool
}

// NewTTFT has the line fitted to the measurements that Marconi's authors
// released, Jamba 1.5 Mini on four A100 of 40 GB, taken every 50 tokens.
func NewTTFT() *TTFT { return &TTFT{Fixed: 17.814, PerToken: 0.052964, StepTokens: 50} }

// Add notes a request.
func (t *TTFT) Add(h Hit) {
	tokens := h.Input - h.Tokens
	if t.StepTokens > 0 {
		tokens = (tokens/t.StepTokens + 1) * t.StepTokens
	}
	t.samples = append(t.samples, t.Fixed+t.PerToken*float64(tokens))
	t.sorted = false
}

// Percentile is the time in milliseconds that p percent of the requests stay
// below, interpolated linearly; NaN without requests.
func (t *TTFT) Percentile(p float64) float64 {
	if len(t.samples) == 0 {
		return math.NaN()
	}
	if !t.sorted {
		slices.Sort(t.samples)
		t.sorted = true
	}
	at := min(max(p, 0), 100) / 100 * float64(len(t.samples)-1)
	low := int(at)
	high := min(low+1, len(t.samples)-1)
	return t.samples[low] + (t.samples[high]-t.samples[low])*(at-float64(low))
}
