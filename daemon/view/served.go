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
	Tokens  uint64 `prom:"served_tokens_total" help:"Tokens of prompts that engines served, by source: engine (its own cache), prefix (a checkpoint), segment, computed. The token hit ratio is prefix and segment over all but engine. Prompts of clients that do not report are not in it, nor reports that are not verified."`
}

type servedUnverifiedSeries struct {
	Tenant   string `label:"tenant"`
	Profile  string `label:"profile"`
	Requests uint64 `prom:"served_unverified_total" help:"Reports that claim reuse of objects that their connection had not looked up. They are in no other series of served prompts."`
	Tokens   uint64 `prom:"served_unverified_tokens_total" help:"Tokens of their prompts."`
}

type servedMissedSeries struct {
	Tenant  string `label:"tenant"`
	Profile string `label:"profile"`
	Reason  string `label:"reason"`
	Tokens  uint64 `prom:"served_missed_tokens_total" help:"Computed tokens of prompts that engines served, by reason: unknown (never seen), evicted, pending, removed, refused, aborted, flag_only (held as another kind), off (switched off), declined (held, computing was chosen), seam (beside reused ones), new (never looked up)."`
}

type servedWaySeries struct {
	Tenant   string `label:"tenant"`
	Profile  string `label:"profile"`
	Way      string `label:"way"`
	Requests uint64 `prom:"served_requests_total" help:"Prompts that engines served, by way."`
}

type servedTimeSeries struct {
	Tenant  string  `label:"tenant"`
	Profile string  `label:"profile"`
	Saved   float64 `prom:"served_saved_seconds_total" help:"Estimated time saved by reuse, for prompts that it made faster: the time to compute them, from measured times to first token or prefills, less the time computed and waited."`
	Lost    float64 `prom:"served_lost_seconds_total" help:"Estimated time lost by reuse, for prompts that it made slower."`
	Guessed float64 `prom:"served_saved_guess_seconds" help:"Part of saved less lost that no measured time supports."`
}

// newFirst creates the histogram of the times to first tokens.
func newFirst() *prometheus.HistogramVec {
	return metric.Durations{
		Name: "served_ttft_seconds", Help: "Time from a request's arrival to its first token, as reported by engines.",
	}.By("profile")
}

// Served observes the time to first token of a reported request.
func (v *View) Served(r *usage.Request) {
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
func (v *View) eachOfServed(f func(any)) {
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
