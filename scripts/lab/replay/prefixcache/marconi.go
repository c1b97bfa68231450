package prefixcache

import (
	"math"

	"github.com/spliced-kv/spliced/policy/radix"
)

// Quirks are bugs of the simulator that Marconi's authors released. All of them are needed to
// reproduce its numbers. The zero value has no bugs.
type Quirks struct {
	// ParentMLP changes how the MLPs' work between a node's parent and the node is computed. The
	// correct value is the MLPs' work up to the node minus their work up to the parent. The bug
	// subtracts ParentMLP times the work of the attention layers up to the parent instead.
	// ParentMLP is the number of MLP layers per attention layer (7 in the paper's model); 0 = no
	// bug.
	ParentMLP float64
	// LastCandidate is a bug in the bytes that evicting a leaf frees: it counts the rows of the
	// last candidate in depth-first order instead of the leaf's rows.
	LastCandidate bool
	// WalkOn lets a lookup that ends inside an edge continue at the children below that
	// edge.
	WalkOn bool
}

// AsReleased returns the quirks of the released code for the paper's 7B model.
func AsReleased() Quirks { return Quirks{ParentMLP: 7, LastCandidate: true, WalkOn: true} }

// MarconiOptions sets the weight Alpha of Marconi's utility and how it is tuned.
type MarconiOptions struct {
	Alpha float64 // weight of efficiency relative to recency; with Bootstrap, the initial weight
	// Bootstrap tunes Alpha once (the simulator's V2). If the first eviction comes after n
	// requests, tuning runs after Bootstrap*n requests. It replays these requests with each
	// alpha of 0, 0.1 … 2, and selects the alpha that saved the most work over the last 500
	// requests. The paper uses 5; 0 = Alpha is not tuned (V3).
	Bootstrap int
	Quirks    Quirks
	// OwnBytes divides a node's savings by the bytes that its eviction frees, instead of by the
	// bytes of the state and rows of its whole prefix. This gives fewer hits.
	OwnBytes bool
	// LogRecency uses -log(age) as recency instead of 1/age. The distribution of 1/age is so skewed
	// that useful alphas would be smaller than the first step of the grid.
	LogRecency bool
}

const (
	tunedAlphas = 21  // 0 to 2 by 0.1
	tunedOver   = 500 // requests, the last ones of a replay
)

// Marconi evicts the node with the lowest utility among nodes with at most one child. Utility is
// recency + alpha × efficiency, each scaled to 0..1 over the candidates. Recency is 1/age by the
// simulator's clock. Efficiency is the work that a hit at the node saves compared with a hit at
// its parent, per byte of the node's state and of the rows of its whole prefix. Of nodes with
// equal utility, the first in depth-first order is evicted. A lookup counts as a use only of the
// node at which it ends.
type Marconi struct {
	released
	options    MarconiOptions
	efficiency []float64 // by node
	candidates []candidate
	log        history
	window     int // requests until tuning; 0 = unknown so far
	tuned      bool
}

type candidate struct {
	node                radix.Node
	recency, efficiency float64
}

// NewMarconi returns an empty cache.
func NewMarconi(c Config, o MarconiOptions) *Marconi {
	return &Marconi{
		released:   released{tree: newTree(c), used: make([]uint64, 1)},
		options:    o,
		efficiency: make([]float64, 1),
		log:        newHistory(),
	}
}

// Alpha returns the current weight, and whether it has been tuned.
func (c *Marconi) Alpha() (alpha float64, tuned bool) { return c.options.Alpha, c.tuned }

// Serve looks up a request's input, then caches its input and output.
func (c *Marconi) Serve(r Request) Hit { return c.serve(c, c.join(r), len(r.Input)) }

// next records requests until alpha is tuned, and tunes alpha at the end of the window.
func (c *Marconi) next(whole []uint32, input int) {
	if c.options.Bootstrap == 0 || c.tuned {
		return
	}
	c.log.add(whole, input)
	if c.stats.Requests == c.window {
		c.tune()
	}
}

func (c *Marconi) follow(p radix.Path, symbols []uint32) radix.Path {
	if !c.options.Quirks.WalkOn {
		return p
	}
	// This is the quirk WalkOn: symbols after the shared part of an edge are looked up below
	// that edge.
	for p.Into != radix.None && p.Matched < len(symbols) {
		n := c.Child(p.Into, symbols[p.Matched])
		if n == radix.None {
			break
		}
		m := c.Common(n, symbols[p.Matched:])
		if length := c.End(n) - c.Begin(n); m == length {
			p.Node, p.End, p.Depth = n, p.End+length, p.Depth+1
		}
		p.Into, p.Matched = n, p.Matched+m
	}
	return p
}

func (c *Marconi) touch(p radix.Path) { c.used[p.Node] = c.clock }

func (c *Marconi) touchInsert(in radix.Insertion) {
	c.efficiency = grown(grown(c.efficiency, in.Leaf), in.Branch)
	c.measure(in.Leaf)
	c.measure(in.Node)
	if in.Branch != radix.None {
		c.measure(in.Branch)
		c.measure(in.Into)
	}
}

// measure computes the efficiency of a node. It is called when a node is new, and when its
// parent or its children have changed.
func (c *Marconi) measure(n radix.Node) {
	if n == radix.Root {
		return
	}
	s, per := &c.Shape, c.symbolTokens()
	begin, end := c.Begin(n)*per, c.End(n)*per
	saved := s.FLOPs(end) - s.FLOPs(begin)
	if q := c.options.Quirks.ParentMLP; q > 0 {
		saved += s.MLP.FLOPs(begin) - q*s.Attention.FLOPs(begin)
	}
	bytes := s.PrefixBytes(end, 1)
	if c.options.OwnBytes {
		bytes = c.edgeBytes(n)
	}
	c.efficiency[n] = saved / float64(bytes)
}

func (c *Marconi) evict(bytes int64) {
	if c.window == 0 {
		c.window = c.options.Bootstrap * c.stats.Requests
	}
	for bytes > 0 && c.states() > 0 {
		c.collect()
		n := c.lowest()
		freed := c.edgeBytes(n)
		if last := c.candidates[len(c.candidates)-1].node; c.options.Quirks.LastCandidate && c.Children(n) == 0 {
			freed = c.bytes(1, c.End(last)-c.Begin(last))
		}
		bytes -= freed
		used, parent := c.used[n], c.Parent(n)
		if child := c.drop(n); child != radix.None {
			c.used[child] = max(c.used[child], used)
			c.measure(child)
		} else {
			c.measure(parent)
		}
	}
}

func (c *Marconi) collect() {
	c.candidates = c.candidates[:0]
	for n := c.after(radix.Root); n != radix.None; n = c.after(n) {
		if c.Children(n) <= 1 {
			c.candidates = append(c.candidates, candidate{n, c.recency(c.clock - c.used[n]), c.efficiency[n]})
		}
	}
}

func (c *Marconi) recency(age uint64) float64 {
	if c.options.LogRecency {
		return -math.Log(float64(age))
	}
	return 1 / float64(age)
}

// lowest returns the first candidate with the lowest utility.
func (c *Marconi) lowest() radix.Node {
	recency, efficiency := nothing(), nothing()
	for i := range c.candidates {
		recency.add(c.candidates[i].recency)
		efficiency.add(c.candidates[i].efficiency)
	}
	best, lowest := radix.None, math.Inf(1)
	for i := range c.candidates {
		u := c.options.Alpha*efficiency.scale(c.candidates[i].efficiency) + recency.scale(c.candidates[i].recency)
		if u < lowest {
			best, lowest = c.candidates[i].node, u
		}
	}
	return best
}

// span is the range of a score over the candidates.
type span struct{ low, high float64 }

func nothing() span { return span{math.Inf(1), math.Inf(-1)} }

func (s *span) add(x float64) { s.low, s.high = min(s.low, x), max(s.high, x) }

// scale returns x scaled to the range; 1 if the range is empty.
func (s *span) scale(x float64) float64 {
	if s.high <= s.low {
		return 1
	}
	return (x - s.low) / (s.high - s.low)
}
