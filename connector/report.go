package connector

import (
	"context"
	"math"

	"github.com/spliced-kv/spliced/connector/wire"
)

// Report has the results of a canary since its last report. A canary is an engine that
// recomputes some reused segments and compares the results.
type Report struct {
	Compared int
	Failed   int     // comparisons that differed by more than Bound
	Worst    float64 // largest difference; +Inf if a result was NaN or infinite
	Bound    float64
	// Off switches the profile off for splicing, for this tenant, until an operator switches it
	// on again. While it is off, lookups of its segments are misses.
	Off  bool
	Text string // what was wrong, for operators; at most wire.MaxErrorText bytes
	// Losses has counts for each of the wire.LossWays ways of splicing; nil = none. Compared
	// includes these comparisons. The client does not send Losses to a daemon without the feature.
	Losses []LossCounts
}

// LossCounts counts requests that were both spliced and computed in full. Compared is the number
// of these requests, and Changed the number of those in which the two first tokens differed.
type LossCounts struct{ Compared, Changed uint32 }

// Report sends a report to the daemon. It returns whether the profile is switched off, by
// this report or earlier.
func (m *Model) Report(ctx context.Context, q *Report) (off bool, err error) {
	switch {
	case q.Compared < 0 || q.Compared > math.MaxUint32 || q.Failed < 0 || q.Failed > q.Compared:
		return false, invalid("report: %d of %d comparisons failed", q.Failed, q.Compared)
	case !(q.Worst >= 0) || !(q.Bound >= 0) || math.IsInf(q.Bound, 1):
		return false, invalid("report: worst %v, bound %v", q.Worst, q.Bound)
	case len(q.Text) > wire.MaxErrorText:
		return false, invalid("report: text of %d bytes, at most %d", len(q.Text), wire.MaxErrorText)
	case q.Losses != nil && len(q.Losses) != wire.LossWays:
		return false, invalid("report: losses of %d ways, want %d", len(q.Losses), wire.LossWays)
	}
	r, k, err := m.begin(ctx, wire.OpReport, m.client.opt.Timeouts.Lookup)
	if err != nil {
		return false, err
	}
	defer r.end(k)
	request := &wire.ReportRequest{
		Profile: r.profile, Compared: uint32(q.Compared), Failed: uint32(q.Failed),
		Worst: q.Worst, Bound: q.Bound, Off: flag(q.Off), Text: q.Text,
	}
	if r.a.HasLosses && q.Losses != nil {
		request.Losses = wire.ReportLosses{Present: true}
		for _, l := range q.Losses {
			request.Losses.Compared = append(request.Losses.Compared, l.Compared)
			request.Losses.Changed = append(request.Losses.Changed, l.Changed)
		}
	}
	var reply wire.ReportReply
	if err := r.ask(ctx, k, request, &reply); err != nil {
		return false, err
	}
	return reply.Off == 1, nil
}
