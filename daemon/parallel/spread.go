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
	node    int // index of its node in the plan; -1 = the requesting engine
	engine  uint64
	prefill cost.Prefill
	queued  float64 // ms of work before it would start a new job
	pieces  bool
	local   bool // an engine of this node: nothing needs to be fetched
}

// link is the cost of fetching segments from a node, in ms. A fetch costs the field latency once,
// the field each for every segment, and the field perToken for every token.
type link struct{ latency, each, perToken float64 }

// spread assigns rows to engines. The first candidate is the requesting engine. If that engine does
// not support pieces, no segment is cut, since it needs results that are bit-identical to its own.
// The method plan is a pure function.
type spread struct {
	tokens     []int // of each row
	candidates []candidate
	links      []link  // of each node
	handOver   link    // cost of moving a first piece between two nodes
	extra      float64 // ms of other rows that the requesting engine computes first
}

// plan returns the assignment of rows and pieces, as schedule.Plan describes it, and the time in ms
// that the requesting engine would need alone. The result ok reports whether the plan saves enough
// time.
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

// lateAfter returns the time after which a row is late, given its expected time in ms.
func lateAfter(ms float64) time.Duration {
	return duration(max(patience*ms, ms+millis(leastPatience)))
}

// duration converts milliseconds to a Duration, saturated.
func duration(ms float64) time.Duration {
	return time.Duration(min(max(ms, 0), math.MaxInt64/2e6) * 1e6)
}
