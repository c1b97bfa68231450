package advise

import (
	"github.com/spliced-kv/spliced/policy/cost"
)

// Stats counts since New, apart from the gauges Scopes, Nodes, Tokens and
// Bytes.
type Stats struct {
	Asked       uint64 // advices given
	Recorded    uint64 // prompts put into the tree
	NotRecorded uint64 // left out, since it or making room would have taken too long
	Steps       uint64 // from node to node of the tree, while others wait
	Dropped     uint64 // nodes that left the tree
	Tokens      uint64 // of the prompts asked about
	SeenTokens  uint64 // of those, seen before

	// Positions by why, and verdicts by reason: whether that is one to admit is
	// the reason's to say.
	Positions   [whys]uint64
	Checkpoints [cost.Reasons]uint64
	Segments    [cost.Reasons]uint64
	Ways        [cost.Ways]uint64 // chosen, index way-1

	Samples        uint64 // measured prefills taken in
	SamplesDropped uint64 // over a bound
	Solved         uint64 // placements

	Scopes     int // pairs of profile and tenant
	Nodes      int
	NodeTokens int64 // on the edges of the tree
	Bytes      int64 // that the tree holds
}

// Stats takes a snapshot.
func (a *Advisor) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, t := a.mu.counts, a.mu.tree
	c.Steps, c.Dropped = t.steps, t.dropped
	c.Scopes, c.Nodes, c.NodeTokens, c.Bytes = len(a.mu.scopes), t.Len(), t.tokens, t.Bytes()
	return c
}

// countLocked counts an advice.
func (a *Advisor) countLocked(w *work, q *Query) {
	c := &a.mu.counts
	c.Asked++
	c.Tokens += uint64(len(q.Tokens))
	c.SeenTokens += uint64(w.seen)
	for i := range w.positions {
		c.Positions[w.positions[i].Why]++
		c.Checkpoints[w.positions[i].Reason]++
	}
	for i := range w.segments {
		if w.segments[i].Reason != cost.ReasonNone {
			c.Segments[w.segments[i].Reason]++
		}
	}
	if best := w.choice.Best; best > 0 {
		c.Ways[best-1]++
	}
}

// Each calls f with every counter and gauge, in a fixed order.
func (c *Stats) Each(f func(name string, value uint64)) {
	f("advice_asked", c.Asked)
	f("advice_recorded", c.Recorded)
	f("advice_not_recorded", c.NotRecorded)
	f("advice_steps", c.Steps)
	f("advice_tokens", c.Tokens)
	f("advice_seen_tokens", c.SeenTokens)
	for why := WhyBranch; why < whys; why++ {
		f("advice_positions_"+why.String(), c.Positions[why])
	}
	eachReason("checkpoints", &c.Checkpoints, f)
	eachReason("segments", &c.Segments, f)
	for way := cost.WayRecompute; way <= cost.Ways; way++ {
		f("advice_way_"+way.String(), c.Ways[way-1])
	}
	f("advice_samples", c.Samples)
	f("advice_samples_dropped", c.SamplesDropped)
	f("advice_placements_solved", c.Solved)
	f("advice_scopes", uint64(c.Scopes))
	f("advice_nodes", uint64(c.Nodes))
	f("advice_nodes_dropped", c.Dropped)
	f("advice_node_tokens", uint64(c.NodeTokens))
	f("advice_bytes", uint64(c.Bytes))
}

func eachReason(what string, counts *[cost.Reasons]uint64, f func(name string, value uint64)) {
	for r := range cost.Reason(cost.Reasons) {
		if counts[r] > 0 {
			verdict := "refused"
			if r.Admitted() {
				verdict = "admitted"
			}
			f("advice_"+what+"_"+verdict+"_"+r.Code(), counts[r])
		}
	}
}
