package parallel

import (
	"math"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/schedule"
)

// candidate is an engine that a plan may use, with the values from its node's offer.
type candidate struct {
	node    int // among the plan's nodes; -1 = the requesting engine
	engine  uint64
	prefill cost.Prefill
	queued  float64 // ms
	pieces  bool
	local   bool // nothing needs to be fetched
}

// link is the cost of fetching segments from a node, in ms: initial latency, per segment,
// and per token.
type link struct{ latency, each, perToken float64 }

// spread assigns rows to engines. The first candidate is the requesting engine. If that
// does not support pieces, no segment is cut: it needs bit-identical results to its own.
// The function is pure.
type spread struct {
	tokens     []int // of each row
	candidates []candidate
	links      []link  // of each node
	handOver   link    // of a first piece between two nodes
	extra      float64 // ms of other work of the requesting engine
}

// plan returns the assignment, with rows and pieces as in schedule.Plan, and the time that
// the requesting engine would need alone. ok means that the plan is worthwhile.
func (s *spread) plan() (p schedule.Plan, alone float64, ok bool) {
	team := schedule.Team{Cutting: schedule.Cutting{
		HandOver: s.handOver.latency + s.handOver.each, HandOverPerToken: s.handOver.perToken, MinTokens: pieceLeast, GrainTokens: pieceGrain,
	}}
	for i, c := range s.candidates {
		w := schedule.Worker{Prefill: c.prefill, Queue: c.queued, Pieces: c.pieces && s.candidates[0].pieces}
		if i == 0 {
			w.Queue += s.extra
		}
		if !c.local {
			w.Fetch, w.FetchEach, w.FetchPerToken = s.links[c.node].latency, s.links[c.node].each, s.links[c.node].perToken
		}
		team.Workers = append(team.Workers, w)
	}
	p, alone = team.Best(s.tokens), team.Alone(s.tokens)
	helped := slices.ContainsFunc(p.Workers[1:], func(l []schedule.Piece) bool { return len(l) > 0 })
	return p, alone, helped && p.TTFT < (1-leastGain)*alone
}

// lateAfter returns the time after which a row with an expected time in ms is late.
func lateAfter(ms float64) time.Duration {
	return duration(max(patience*ms, ms+millis(leastPatience)))
}

// duration converts milliseconds, saturated.
func duration(ms float64) time.Duration {
	return time.Duration(min(max(ms, 0), math.MaxInt64/2e6) * 1e6)
}
