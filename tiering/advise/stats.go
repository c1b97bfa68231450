package advise

import (
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/metric"
)

// Stats has counters since New, and the gauges Scopes, Nodes, Tokens and Bytes.
type Stats struct {
	Asked    uint64 `count:"advice_asked" prom:"advice_total" help:"Advice requests answered."`
	Recorded uint64 `count:"advice_recorded" prom:"advice_prompts_total,result=remembered" help:"Served prompts, by whether they were added to the tree of remembered prompts: remembered, or left_out (adding them would have taken too long)."`
	// Prompts left out because adding them or making room would have taken too long.
	NotRecorded uint64 `count:"advice_not_recorded" prom:"advice_prompts_total,result=left_out"`
	// Steps between nodes of the tree, under the lock.
	Steps   uint64 `count:"advice_steps"`
	Dropped uint64 `count:"advice_nodes_dropped" prom:"prompt_tree_dropped_total" help:"Nodes removed from the tree of remembered prompts to free memory."`
	// Tokens of the prompts in queries.
	Tokens     uint64 `count:"advice_tokens"`
	SeenTokens uint64 `count:"advice_seen_tokens" prom:"advice_tokens_total,seen=yes" help:"Tokens of prompts in advice requests, by whether the daemon had seen them before at the start of another prompt (yes or no)."`

	// The index of Positions is the Why of a position. The index of Checkpoints and Segments
	// is the reason for the advice. The reason shows whether the advice was to store the
	// object.
	// Positions are counted by why, Checkpoints and Segments by the reason of the verdict.
	Positions   [whys]uint64 `count:"advice_positions_{,branch,last,boundary,placed}" prom:"advice_positions_total,why=*" help:"Positions in prompts considered for a checkpoint, by why: branch (earlier prompts diverge there), last (last position that a repetition can use, or end of an answer), boundary (named by the application), placed (computed from where earlier prompts diverged)."`
	Checkpoints [cost.Reasons]uint64
	Segments    [cost.Reasons]uint64
	Ways        [cost.Ways]uint64 `count:"advice_way_{recompute,prefix,splice,replay}" prom:"advice_ways_total,way=*" help:"Advice requests, by the fastest predicted way to serve the prompt: recompute (reuse nothing), prefix (load a checkpoint), splice (place cached segments), replay (rebuild a state from buffered rows)."`

	// Measured prefills that were used.
	Samples uint64 `count:"advice_samples"`
	// Measured prefills dropped at a bound.
	SamplesDropped uint64 `count:"advice_samples_dropped"`
	Solved         uint64 `count:"advice_placements_solved" prom:"placement_solutions_total" help:"Computations of checkpoint positions from the depths at which earlier prompts diverged."`

	Scopes     int   `count:"advice_scopes" prom:"prompt_tree_scopes" help:"Pairs of profile and tenant whose prompts are remembered."`
	Nodes      int   `count:"advice_nodes" prom:"prompt_tree_nodes" help:"Nodes in the tree of remembered prompts: places where prompts diverge or end."`
	NodeTokens int64 `count:"advice_node_tokens" prom:"prompt_tree_tokens" help:"Tokens in the tree of remembered prompts. A prefix shared by several prompts counts once."`
	Bytes      int64 `count:"advice_bytes" prom:"prompt_tree_bytes" help:"Bytes of memory used by the tree of remembered prompts."`
}

// Stats returns a snapshot.
func (a *Advisor) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, t := a.mu.counts, a.mu.tree
	c.Steps, c.Dropped = t.steps, t.dropped
	c.Scopes, c.Nodes, c.NodeTokens, c.Bytes = len(a.mu.scopes), t.Len(), t.tokens, t.Bytes()
	return c
}

// countLocked counts one advice.
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
	metric.Each(c, f)
	eachReason("checkpoints", &c.Checkpoints, f)
	eachReason("segments", &c.Segments, f)
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
