package replay

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// segmentPool is a pool of segments that any prompt may use at any position. A request first
// looks up all its segments and then publishes the missing ones. During this time its segments
// cannot be evicted, as if they were leased.
type segmentPool struct {
	shape    cost.Shape
	prefill  cost.Prefill
	capacity int64
	system   int // tokens of a leading segment that every prompt has
	seam     int // tokens recomputed on either side of a segment
	order    policy.Eviction
	held     map[uint32]policy.ID // by segment
	what     map[policy.ID]uint32
	bytes    map[uint32]int64
	inUse    map[policy.ID]bool
	given    policy.ID
	began    bool // the leading segment was seen
	counts   Counts
}

func newSegmentPool(empty func() policy.Eviction, o *Options, capacity int64) *segmentPool {
	return &segmentPool{
		shape: o.Model.Shape.Shape, prefill: o.Model.Prefill, capacity: capacity, system: o.System, seam: o.Seam, order: empty(),
		held: map[uint32]policy.ID{}, what: map[policy.ID]uint32{}, bytes: map[uint32]int64{}, inUse: map[policy.ID]bool{},
	}
}

func (p *segmentPool) serve(r *trace.Request, now time.Time) (input, hit int) {
	clear(p.inUse)
	input = r.InputTokens + p.system
	if p.began {
		hit = p.system
	}
	p.began = true
	var missing []trace.Piece
	for _, s := range r.Pieces {
		p.counts.Steps++
		if id, ok := p.held[s.ID]; ok {
			p.order.Touch(id, now)
			p.inUse[id] = true
			hit += max(s.Tokens-2*p.seam, 0)
		} else if s.Tokens > 2*p.seam { // a shorter segment has no interior
			missing = append(missing, s)
		}
	}
	for _, s := range missing {
		if _, twice := p.held[s.ID]; !twice {
			p.publish(s, now)
		}
	}
	return input, hit
}

// publish adds a segment. If the segments of the current request leave no room, it counts a
// refusal.
func (p *segmentPool) publish(s trace.Piece, now time.Time) {
	bytes := p.shape.SegmentTotalBytes(s.Tokens - 2*p.seam)
	for p.counts.UsedBytes+bytes > p.capacity {
		id, ok := p.order.Victim(func(id policy.ID) bool { return !p.inUse[id] })
		if !ok {
			p.counts.Refused++
			return
		}
		p.evict(id)
	}
	p.given++
	id := p.given
	p.order.Insert(id, policy.Item{
		Bytes: bytes, Tokens: s.Tokens, Key: uint64(s.ID) + 1, Saved: p.prefill.Marginal(0, s.Tokens-2*p.seam),
	}, now)
	p.held[s.ID], p.what[id], p.bytes[s.ID], p.inUse[id] = id, s.ID, bytes, true
	p.counts.UsedBytes += bytes
	p.counts.PeakBytes = max(p.counts.PeakBytes, p.counts.UsedBytes)
	p.counts.Admitted++
}

func (p *segmentPool) evict(id policy.ID) {
	s := p.what[id]
	p.order.Remove(id)
	p.counts.UsedBytes -= p.bytes[s]
	p.counts.Evictions++
	delete(p.held, s)
	delete(p.what, id)
	delete(p.bytes, s)
}

func (p *segmentPool) totals() Counts { return p.counts }

// frontCache simulates plain prefix caching of lists of segments, with unlimited room. A hit is
// the longest run of segments from the start of the list that an earlier request also had at its
// start.
type frontCache struct {
	system int
	next   map[[2]uint32]uint32 // node and segment -> node
	counts Counts
}

// maxFronts bounds the number of entries in the table. When it is full, new entries are not
// added.
const maxFronts = 1 << 24

func (p *frontCache) serve(r *trace.Request, _ time.Time) (input, hit int) {
	if p.next == nil {
		p.next = map[[2]uint32]uint32{}
	} else {
		hit = p.system
	}
	at, known := uint32(0), true
	for _, s := range r.Pieces {
		p.counts.Steps++
		to, ok := p.next[[2]uint32{at, s.ID}]
		if known = known && ok; known {
			hit += s.Tokens
		}
		if !ok {
			if len(p.next) == maxFronts {
				p.counts.Refused++
				break
			}
			to = uint32(len(p.next) + 1)
			p.next[[2]uint32{at, s.ID}] = to
		}
		at = to
	}
	return r.InputTokens + p.system, hit
}

func (p *frontCache) totals() Counts { return p.counts }

// segmentSimulation returns the pool of a policy by name.
func segmentSimulation(name string, o *Options, capacity int64) (simulation, error) {
	if name == PolicyPrefix {
		return &frontCache{system: o.System}, nil
	}
	empty, ok := policy.Named(name)
	if !ok {
		return nil, fmt.Errorf("policy %q for segments, want some of %s: %w", name, strings.Join(SegmentPolicies(), ", "), ErrPolicy)
	}
	if capacity == Unlimited {
		capacity = math.MaxInt64
	}
	return newSegmentPool(empty, o, capacity), nil
}
