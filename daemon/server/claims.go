package server

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/parallel"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// maxClaims bounds the entries in either half of a ledger, a power of two: two ledgers of
// two halves take at most about 800 KB per connection. A guess: a busy engine names fewer
// requests between lookup and first token.
const maxClaims = 4096

// claims records the hits of a connection's lookups that were not reported as reused yet.
// Reports of anything else stay unverified.
type claims struct {
	sync.Mutex
	segments ledger // by the first bytes of their keys
	prefixes ledger // by tokens
	asked    int    // lookups not named by a report yet
}

// grant counts the hits and reports of one object. A match followed by a lease is one hit.
type grant struct {
	tokens                uint32 // upper bound
	matched, leased, used uint32
}

func (g *grant) left() bool { return g != nil && g.used < max(g.matched, g.leased) }

// ledger stores grants by nonzero numbers. At its bound, it drops the older half and reuses
// the memory: every match calls it, for each of its hits.
type ledger struct{ now, old half }

// half is an open-addressed hash table of at least twice as many slots as grants.
type half struct {
	slots []slot // none, or a power of two
	used  int
}

type slot struct {
	key uint64 // 0 = free
	grant
}

// claimsSeed makes the places of keys unpredictable, since clients choose some of them. It is
// odd.
var claimsSeed = rand.Uint64() | 1

// find returns the slot of a key, or the free slot where it belongs. There is one.
func (h *half) find(key uint64) *slot {
	mask := uint64(len(h.slots) - 1)
	for i := bits.ReverseBytes64(key * claimsSeed); ; i++ {
		if s := &h.slots[i&mask]; s.key == key || s.key == 0 {
			return s
		}
	}
}

// get returns the grant of a key; nil = none.
func (h *half) get(key uint64) *grant {
	if h.used == 0 {
		return nil
	}
	if s := h.find(key); s.key != 0 {
		return &s.grant
	}
	return nil
}

// add returns the grant of a key that has none yet.
func (h *half) add(key uint64) *grant {
	if 2*(h.used+1) > len(h.slots) {
		old := h.slots
		h.slots = make([]slot, max(64, 2*len(old)))
		for i := range old {
			if old[i].key != 0 {
				*h.find(old[i].key) = old[i]
			}
		}
	}
	h.used++
	s := h.find(key)
	s.key = key
	return &s.grant
}

// get returns the grant of a key; nil = none. The result is valid until the next use.
func (l *ledger) get(key uint64) *grant {
	if g := l.now.get(key); g != nil {
		return g
	}
	return l.old.get(key)
}

// use returns the grant of a key and moves it to the newer half. The result is valid until
// the next use.
func (l *ledger) use(key uint64) *grant {
	if g := l.now.get(key); g != nil {
		return g
	}
	var g grant
	if old := l.old.get(key); old != nil {
		g = *old
	}
	if l.now.used >= maxClaims {
		l.old, l.now = l.now, l.old
		clear(l.now.slots)
		l.now.used = 0
	}
	added := l.now.add(key)
	*added = g
	return added
}

func (l *ledger) found(key uint64, tokens uint32, leased bool) {
	g := l.use(key)
	g.tokens = max(g.tokens, tokens)
	if leased {
		g.leased++
	} else {
		g.matched++
	}
}

// segmentOf returns the number of a segment. Two with one number share a grant; keys are
// digests.
func segmentOf(key *[32]byte) uint64 { return max(1, binary.LittleEndian.Uint64(key[:8])) }

// matched records the hits of a match and the known segments in its reply.
func (c *claims) matched(q *tiering.MatchQuery, r *tiering.MatchResult, known *wire.MatchKnown) {
	c.Lock()
	defer c.Unlock()
	c.askedLocked()
	for i := range r.Segments {
		row := &r.Segments[i]
		if row.Status != tier.StatusHit {
			continue
		}
		tokens := row.Tokens
		if tokens == 0 { // cached on another node, length unknown
			tokens = math.MaxUint32
		}
		key := &q.Keys[i]
		if row.Other {
			key = &q.Others[i]
		}
		c.segments.found(segmentOf(key), tokens, false)
	}
	for i := range known.Keys {
		c.segments.found(segmentOf(&known.Keys[i]), known.Interiors[i], false)
	}
	if r.PrefixTokens > 0 {
		c.prefixes.found(uint64(r.PrefixTokens), r.PrefixTokens, false)
	}
}

func (c *claims) askedLocked() { c.asked = min(c.asked+1, 1<<20) }

// leased records a leased segment.
func (c *claims) leased(key *[32]byte, row *tiering.Acquired) {
	c.Lock()
	defer c.Unlock()
	c.askedLocked()
	c.segments.found(segmentOf(key), uint32(row.Tokens), true)
}

// planned records the segments of a plan that other workers compute: the connection learns
// from its watch that they are ready, and its workers lease them on separate connections.
func (c *claims) planned(list []parallel.Segment) {
	c.Lock()
	defer c.Unlock()
	for i := range list {
		key := [32]byte(list[i].Key)
		c.segments.found(segmentOf(&key), uint32(list[i].Spec.Tokens), false)
	}
}

// loaded records a leased checkpoint.
func (c *claims) loaded(got *tiering.Loaded) {
	c.Lock()
	defer c.Unlock()
	c.askedLocked()
	c.prefixes.found(uint64(got.Tokens), uint32(got.Tokens), true)
}

// verify reports whether lookups of the connection cover all reuse in a report, and consumes
// their grants. Computed tokens cannot be verified; waiting time requires a lookup.
func (c *claims) verify(m *wire.ServedRequest) bool {
	c.Lock()
	defer c.Unlock()
	ok := true
	for i := range m.Keys {
		if m.Reused[i] == 0 {
			continue
		}
		key := segmentOf(&m.Keys[i])
		if g := c.segments.get(key); !g.left() || m.Reused[i] > g.tokens {
			ok = false
			continue
		}
		c.segments.use(key).used++
	}
	if m.Prefix > 0 {
		ok = c.prefixLocked(m.Engine+m.Prefix) && ok
	}
	if m.WaitMicros > 0 && c.asked == 0 {
		ok = false
	}
	c.asked = max(0, c.asked-1)
	return ok
}

// prefixLocked consumes the grant of a checkpoint with exactly that many tokens, or else of
// the shortest longer one: an engine may use only the beginning.
func (c *claims) prefixLocked(tokens uint32) bool {
	best := uint64(tokens)
	if g := c.prefixes.get(best); !g.left() {
		best = 0
		for _, half := range []*half{&c.prefixes.now, &c.prefixes.old} {
			for i := range half.slots {
				n := half.slots[i].key
				if n > uint64(tokens) && (best == 0 || n < best) && c.prefixes.get(n).left() {
					best = n
				}
			}
		}
		if best == 0 {
			return false
		}
	}
	c.prefixes.use(best).used++
	return true
}
