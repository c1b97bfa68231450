package replay

import (
	"math"
	"slices"

	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// Report is a finished replay.
type Report struct {
	Trace   string
	Info    trace.Info
	Model   Model
	Options Options
	NoCache Percentiles
	Runs    []Result
	Seconds float64
}

// Result is one policy at one capacity, as printed in JSON.
type Result struct {
	Trace              string       `json:"trace"`
	Format             trace.Format `json:"format"`
	Policy             string       `json:"policy"`
	CapacityBytes      int64        `json:"capacity_bytes"`        // -1 = unlimited
	Checkpoints        int          `json:"checkpoints,omitempty"` // overlap depths: maximum states per prompt
	Requests           int          `json:"requests"`
	InputTokens        int64        `json:"input_tokens"`
	HitTokens          int64        `json:"hit_tokens"`
	TokenHitRate       float64      `json:"token_hit_rate"`
	Bound              *float64     `json:"token_hit_rate_bound,omitempty"` // upper bound for every policy
	SavedOfHits        *float64     `json:"saved_of_overlap,omitempty"`     // overlap depths: of the tokens shared with an earlier prompt
	StatesPerPrompt    *float64     `json:"states_per_prompt,omitempty"`
	Evictions          int64        `json:"evictions"`
	Refused            int64        `json:"refused"`
	UsedBytes          int64        `json:"used_bytes"`
	PeakBytes          int64        `json:"peak_bytes"`
	Alpha              *float64     `json:"alpha,omitempty"` // marconi: the weight at the end
	TTFT               Percentiles  `json:"ttft_ms"`
	TTFTNoCache        Percentiles  `json:"ttft_no_cache_ms"`
	EdgeSteps          int64        `json:"edge_steps"`
	EdgeStepsPerSecond float64      `json:"edge_steps_per_second"` // on one core
	SymbolsPerSecond   float64      `json:"symbols_per_second"`    // tokens or blocks of prompts and answers
	Seconds            float64      `json:"seconds"`               // CPU seconds of the simulation alone
}

// Percentiles are modelled milliseconds to the first token.
type Percentiles struct {
	P5  float64 `json:"p5"`
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

// percentiles interpolate linearly between the two nearest values. It sorts.
func percentiles(values []float32) Percentiles {
	if len(values) == 0 {
		return Percentiles{}
	}
	slices.Sort(values)
	at := func(q float64) float64 {
		place := q * float64(len(values)-1)
		low := int(math.Floor(place))
		high := min(low+1, len(values)-1)
		a, b := float64(values[low]), float64(values[high])
		return a + (b-a)*(place-float64(low))
	}
	return Percentiles{at(0.05), at(0.5), at(0.95)}
}

func (o *Options) report(in *trace.Reader, runs []*run) *Report {
	out := &Report{Trace: in.File(), Info: in.Info(), Model: o.Model, Options: *o}
	for _, r := range runs {
		res := r.result()
		res.Trace, res.Format = out.Trace, out.Info.Format
		out.NoCache = res.TTFTNoCache
		out.Runs = append(out.Runs, res)
	}
	return out
}

func (r *run) result() Result {
	c := r.sim.totals()
	out := Result{
		Policy: r.policy, CapacityBytes: r.capacity, Checkpoints: r.checkpoints,
		Requests: r.requests, InputTokens: r.input, HitTokens: r.hit, TokenHitRate: ratio(r.hit, r.input),
		Evictions: c.Evictions, Refused: c.Refused, UsedBytes: c.UsedBytes, PeakBytes: c.PeakBytes, Alpha: c.Alpha,
		TTFT: percentiles(r.ttft), TTFTNoCache: percentiles(r.cold),
		EdgeSteps: c.Steps, Seconds: r.busy.Seconds(),
	}
	if r.capacity == Unlimited {
		out.CapacityBytes = -1
	}
	if s := r.busy.Seconds(); s > 0 {
		out.EdgeStepsPerSecond, out.SymbolsPerSecond = float64(c.Steps)/s, float64(r.symbols)/s
	}
	if d, ok := r.sim.(*placement); ok {
		saved, states := ratio(r.hit, d.overlap), ratio(c.States, int64(r.requests))
		out.SavedOfHits, out.StatesPerPrompt = &saved, &states
	}
	return out
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
