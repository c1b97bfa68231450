package simulate

import (
	"cmp"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/peer/index"
)

// figures are the measurements of one part of a run.
type figures struct {
	since      time.Duration
	errors     int
	visible    histogram // time until one node knows a new segment
	everywhere histogram // time until the last of the sampled nodes knows it
	held       answers   // lookups of segments that a node has
	recent     answers   // lookups of segments that a node has and that were added in the last minute
	absent     answers   // lookups of segments that never existed
	departed   answers   // lookups of segments that were removed everywhere in the last minute
	indexBytes int64     // the largest size of an index
}

// answers counts the results of lookups.
type answers struct {
	asked int64
	hits  int64 // the index named a node that has the segment
	lost  int64 // some node has the segment, but the index named none of those
	named int64 // the index named at least one node
	vain  int64 // the index named nodes, but none of them has the segment
}

// candidates is the maximum number of nodes that an index names as holders.
const candidates = 4

// look looks up a tag in a reader's index and counts the result in a. oracle says whether some
// node really has the segment.
func (c *cluster) look(r *reader, a *answers, tag uint64, oracle bool) {
	var dst [candidates]index.Node
	n := min(r.index.Holders(tag, dst[:]), len(dst))
	hit := false
	for _, node := range dst[:n] {
		hit = hit || c.holds(node, tag)
	}
	a.asked++
	switch {
	case hit:
		a.hits++
	case oracle:
		a.lost++
	}
	if n > 0 {
		a.named++
		if !hit {
			a.vain++
		}
	}
}

// questions looks up some tags of each kind in every steady reader.
func (c *cluster) questions(n int) {
	for _, r := range c.readers {
		if !r.steady {
			continue
		}
		for i := range n {
			if tag, ok := c.anyHeld(r.id, false); ok {
				c.look(r, &c.figures.held, tag, true)
			}
			if tag, ok := c.anyHeld(r.id, true); ok {
				c.look(r, &c.figures.recent, tag, true)
			}
			c.look(r, &c.figures.absent, c.rand.Uint64(), false)
			if i%10 > 0 {
				continue
			}
			if c.goneAt == 0 {
				continue
			}
			if d := c.gone[c.rand.IntN(min(c.goneAt, len(c.gone)))]; c.now-d.at < time.Minute && !c.heldSomewhere(d.tag) {
				c.look(r, &c.figures.departed, d.tag, false)
			}
		}
	}
}

// anyHeld picks a segment that a node other than the asking one has and can send.
func (c *cluster) anyHeld(asks int, recent bool) (uint64, bool) {
	for range 20 {
		p := c.rand.IntN(len(c.nodes))
		n := &c.nodes[p]
		if p == asks || n.down || len(n.held) == 0 {
			continue
		}
		tag := c.tagOf(n.held[c.rand.IntN(len(n.held))])
		if recent {
			ch, ok := n.lately(c.now-time.Minute, c.rand)
			if !ok || !n.own.Has(ch.tag) {
				continue
			}
			tag = ch.tag
		}
		if c.nodes[asks].own.Has(tag) {
			continue
		}
		return tag, true
	}
	return 0, false
}

// lately picks one of a node's changes since a time; false if it is a removal or there is none.
func (n *node) lately(since time.Duration, r *rand.Rand) (change, bool) {
	first, _ := slices.BinarySearchFunc(n.changed, since, func(ch change, t time.Duration) int { return cmp.Compare(ch.at, t) })
	if first == len(n.changed) {
		return change{}, false
	}
	ch := n.changed[first+r.IntN(len(n.changed)-first)]
	return ch, ch.added
}

// heldSomewhere reports whether any node has the segment. It asks the oracle about all nodes,
// because a sample could miss the only copy.
func (c *cluster) heldSomewhere(tag uint64) bool {
	for i := range c.nodes {
		if c.holds(index.Node(i), tag) {
			return true
		}
	}
	return false
}

// histogram counts durations in buckets whose width is 1/16 of the duration.
type histogram struct {
	buckets [64 * 16]int64
	n       int64
	max     time.Duration
}

func (h *histogram) add(d time.Duration) {
	h.n++
	h.max = max(h.max, d)
	h.buckets[bucketOf(d)]++
}

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 16 {
		return int(v)
	}
	e := bits.Len64(v) - 5
	return (e+1)*16 + int(v>>e&15)
}

// at returns the upper end of the bucket with the quantile q.
func (h *histogram) at(q float64) time.Duration {
	want, sum := int64(math.Ceil(q*float64(h.n))), int64(0)
	for i, n := range h.buckets {
		if sum += n; sum >= want && n > 0 {
			if i < 16 {
				return time.Duration(i)
			}
			e := i/16 - 1
			return min(time.Duration((uint64(16+i%16)+1)<<e), h.max)
		}
	}
	return 0
}
