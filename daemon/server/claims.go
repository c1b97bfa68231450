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

// maxClaims is the largest number of grants in either half of a ledger, a power of two. A
// connection has two ledgers of two halves, which take at most about 800 KB. The number is a guess:
// a busy engine names fewer requests between a lookup and the first token.
const maxClaims = 4096

// claims records the hits of a connection's lookups that the client has not reported as reused.
// Reports of reuse without such a hit stay unverified.
type claims struct {
	sync.Mutex
	segments ledger // by the first 8 bytes of segment keys
	prefixes ledger // by the number of tokens of a prefix
	asked    int    // lookups for which no report has arrived
}

// grant counts the hits and reports of one object. A match and a following lease of the object are
// one hit.
type grant struct {
	tokens                uint32 // most tokens that a report may state
	matched, leased, used uint32
}

func (g *grant) left() bool { return g != nil && g.used < max(g.matched, g.leased) }

// ledger stores grants under nonzero numbers. Every match adds a grant for each of its hits, so the
// number of grants is bounded: when the newer half is full, the ledger drops the older half and
// reuses its memory.
type ledger struct{ now, old half }

// half is an open-addressed hash table. It has at least twice as many slots as grants.
type half struct {
	slots []slot // empty, or a power of two
	used  int
}

type slot struct {
	key uint64 // 0 = free
	grant
}

// claimsSeed, an odd number, makes the table positions of keys unpredictable, since clients choose
// some of the keys.
var claimsSeed = rand.Uint64() | 1

// find returns the slot of a key, or the free slot where the key belongs. The table always has a
// free slot.
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

// get returns the grant of a key; nil = none. The grant is valid until the next call of use.
func (l *ledger) get(key uint64) *grant {
	if g := l.now.get(key); g != nil {
		return g
	}
	return l.old.get(key)
}

// use returns the grant of a key and moves it to the newer half. A key without a grant gets an
// empty one. The result is valid until the next call of use.
func (l *ledger) use(key uint64) *grant {
	if g := l.now.get(key); g != nil {
		return g
	}
	return l.renew(key)
}

// renew is use for a key that is not in the newer half.
func (l *ledger) renew(key uint64) *grant {
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

// found returns the grant of a key, as use does, for a hit that saves a number of tokens.
func (l *ledger) found(key uint64, tokens uint32) *grant {
	g := l.use(key)
	g.tokens = max(g.tokens, tokens)
	return g
}

// segmentOf returns the number of a segment in a ledger. Two segments with the same number would
// share a grant; that is unlikely, since keys are digests.
func segmentOf(key *[32]byte) uint64 { return max(1, binary.LittleEndian.Uint64(key[:8])) }

// matched records the hits of a match, and the known segments in its reply.
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
		if tokens == 0 { // cached on another node, whose segment has an unknown length
			tokens = math.MaxUint32
		}
		key := &q.Keys[i]
		if row.Other {
			key = &q.Others[i]
		}
		c.segments.found(segmentOf(key), tokens).matched++
	}
	for i := range known.Keys {
		c.segments.found(segmentOf(&known.Keys[i]), known.Interiors[i]).matched++
	}
	if r.PrefixTokens > 0 {
		c.prefixes.found(uint64(r.PrefixTokens), r.PrefixTokens).matched++
	}
}

func (c *claims) askedLocked() { c.asked = min(c.asked+1, 1<<20) }

// leased records the segments that rows lease, one row per key.
func (c *claims) leased(keys [][32]byte, rows []tiering.Acquired) {
	c.Lock()
	defer c.Unlock()
	for i := range rows {
		if row := &rows[i]; row.Hit {
			c.askedLocked()
			c.segments.found(segmentOf(&keys[i]), uint32(row.Tokens)).leased++
		}
	}
}

// planned records the segments of a plan that other engines compute. The connection learns from its
// watch, not from a lookup, that they are ready, and the engine's workers lease them on other
// connections.
func (c *claims) planned(list []parallel.Segment) {
	c.Lock()
	defer c.Unlock()
	for i := range list {
		key := [32]byte(list[i].Key)
		c.segments.found(segmentOf(&key), uint32(list[i].Spec.Tokens)).matched++
	}
}

// loaded records a leased checkpoint.
func (c *claims) loaded(got *tiering.Loaded) {
	c.Lock()
	defer c.Unlock()
	c.askedLocked()
	c.prefixes.found(uint64(got.Tokens), uint32(got.Tokens)).leased++
}

// verify reports whether lookups of the connection cover all reuse in a report, and consumes the
// grants. It cannot verify the computed tokens. Waiting time in a report requires that there was a
// lookup.
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

// prefixLocked consumes the grant of the checkpoint with exactly that number of tokens. If there is
// none, it consumes the grant of the shortest longer checkpoint, since an engine may use only its
// beginning. It reports whether it found a grant.
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
