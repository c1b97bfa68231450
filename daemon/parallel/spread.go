package parallel

import (
	"math"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/schedule"
)

// candidate is an engine that a plan may use, and what its node has said.
type candidate struct {
	node    int // of the plan's nodes; -1 = the engine that asks
	engine  uint64
	prefill cost.Prefill
	queued  float64 // ms
	pieces  bool
	local   bool // nothing has to be brought here
}

// link is what bringing segments from a node takes, in ms: until one begins to come, for
// each one, and for each token.
type link struct{ latency, each, perToken float64 }

// spread gives rows to engines. The first candidate is the engine that asks; where that does
// no pieces, no segment is cut: it wants what it would compute itself, bit for bit. It is pure.
type spread struct {
	tokens     []int // of each row
	candidates []candidate
	links      []link  // of each node
	handOver   link    // of a first piece, from one node to another
	extra      float64 // ms that the asking engine computes besides
}

// plan is who computes what, with rows and pieces as of schedule.Plan, and how long all
// of it would take the engine that asks alone. ok: it is worth it.
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

// lateAfter is when a row that is expected after some milliseconds is late.
func lateAfter(ms float64) time.Duration {
	return duration(max(patience*ms, ms+millis(leastPatience)))
}

// duration is milliseconds, cut to what fits.
func duration(ms float64) time.Duration {
	return time.Duration(min(max(ms, 0), math.MaxInt64/2e6) * 1e6)
}
