package view

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/tiering/metric"
)

// Series of the requests that engines have reported since the start.

type servedTokensSeries struct {
	Tenant  string `label:"tenant"`
	Profile string `label:"profile"`
	From    string `label:"from"`
	Tokens  uint64 `prom:"served_tokens_total" help:"Prompt tokens of requests that engines reported as served, by source: engine (the engine's own cache), prefix (a checkpoint), segment, computed. The token hit ratio is prefix plus segment over all except engine; reports that could not be verified are not included."`
}

type servedUnverifiedSeries struct {
	Tenant   string `label:"tenant"`
	Profile  string `label:"profile"`
	Requests uint64 `prom:"served_unverified_total" help:"Reports of served requests that claim reuse of objects which the same connection had not looked up. No other series of served prompts includes them."`
	Tokens   uint64 `prom:"served_unverified_tokens_total" help:"Prompt tokens of the reports that could not be verified (served_unverified_total)."`
}

type servedMissedSeries struct {
	Tenant  string `label:"tenant"`
	Profile string `label:"profile"`
	Reason  string `label:"reason"`
	Tokens  uint64 `prom:"served_missed_tokens_total" help:"Prompt tokens that engines computed, by reason: unknown (never cached), evicted, pending, removed, refused, aborted, flag_only (cached as another kind), off (splicing is switched off), declined (cached, but the engine chose to compute), seam (next to reused tokens), new (never looked up)."`
}

type servedWaySeries struct {
	Tenant   string `label:"tenant"`
	Profile  string `label:"profile"`
	Way      string `label:"way"`
	Requests uint64 `prom:"served_requests_total" help:"Requests that engines reported as served, by way: recompute (nothing reused), prefix (continued from a checkpoint), splice (cached segments placed), replay (state rebuilt from buffered rows)."`
}

type servedTimeSeries struct {
	Tenant  string  `label:"tenant"`
	Profile string  `label:"profile"`
	Saved   float64 `prom:"served_saved_seconds_total" help:"Estimated seconds saved by reuse, over the requests that it made faster: estimated time to compute the prompt, minus the measured time to first token or the estimated time to compute the rest and wait."`
	Lost    float64 `prom:"served_lost_seconds_total" help:"Estimated seconds lost by reuse, over the requests that it made slower."`
	Guessed float64 `prom:"served_saved_guess_seconds" help:"Part of the seconds saved minus the seconds lost that is a guess, because no measured prefill or time to first token supports it."`
}

// newFirst creates the histogram of the times to first tokens.
func newFirst() *prometheus.HistogramVec {
	return metric.Durations{
		Name: "served_ttft_seconds", Help: "Seconds from a request's arrival at the engine to its first token, as reported by engines.",
	}.By("profile")
}

// Served observes the time to first token of a reported request.
func (v *exporter) Served(r *usage.Request) {
	if r.First <= 0 || r.Unverified {
		return
	}
	first := v.first.WithLabelValues(v.labels.profile(r.Who.Fingerprint))
	if e, ok := first.(prometheus.ExemplarObserver); ok && r.Parent.IsValid() {
		e.ObserveWithExemplar(r.First.Seconds(), prometheus.Labels{"trace_id": r.Parent.TraceID()})
		return
	}
	first.Observe(r.First.Seconds())
}

// eachOfServed calls f for the series of served prompts. It adds up sums that have equal labels.
func (v *exporter) eachOfServed(f func(any)) {
	var order [][2]string
	sums := map[[2]string]*usage.Sums{}
	for _, r := range v.o.Usage.Rows() {
		name, tenant := v.labels.profile(r.Fingerprint), v.tenantLabel(r.Tenant)
		of := [2]string{tenant, name}
		if sums[of] == nil {
			sums[of] = &usage.Sums{}
			order = append(order, of)
		}
		sums[of].Add(&r.Since)
	}
	for _, of := range order {
		s := sums[of]
		for from, tokens := range s.Sources {
			f(&servedTokensSeries{of[0], of[1], usage.From(from).String(), tokens})
		}
		s.Causes(func(c usage.Cause, tokens uint64) { f(&servedMissedSeries{of[0], of[1], c.String(), tokens}) })
		for way, n := range s.Ways[1:] {
			f(&servedWaySeries{of[0], of[1], wayNames[way+1], n})
		}
		f(&servedTimeSeries{of[0], of[1], s.Saved / 1e3, s.Lost / 1e3, s.Guessed / 1e3})
		f(&servedUnverifiedSeries{of[0], of[1], s.Unverified, s.UnverifiedTokens})
	}
}
