package server

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/parallel"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// maxClaims bounds the entries in either half of a ledger: two ledgers of two halves take
// at most about 600 KB per connection. A guess: a busy engine names fewer requests between
// lookup and first token.
const maxClaims = 4096

// claims records the hits of a connection's lookups that were not reported as reused yet.
// Reports of anything else stay unverified.
type claims struct {
	sync.Mutex
	segments ledger[uint64] // by the first bytes of their keys, which are digests
	prefixes ledger[uint32] // by tokens
	asked    int            // lookups not named by a report yet
}

// grant counts the hits and reports of one object. A match followed by a lease is one hit.
type grant struct {
	tokens                uint32 // upper bound
	matched, leased, used uint32
}

func (g *grant) left() bool { return g != nil && g.used < max(g.matched, g.leased) }

// ledger stores grants. At its bound, it drops the older half and reuses the memory: every
// match calls it.
type ledger[K comparable] struct{ now, old half[K] }

type half[K comparable] struct {
	at     map[K]uint16 // index into grants
	grants []grant
}

func (h *half[K]) get(k K) *grant {
	if i, ok := h.at[k]; ok {
		return &h.grants[i]
	}
	return nil
}

// get returns the grant of k; nil = none. The result is valid until the next use.
func (l *ledger[K]) get(k K) *grant {
	if g := l.now.get(k); g != nil {
		return g
	}
	return l.old.get(k)
}

// use returns the grant of k and moves it to the newer half. The result is valid until the
// next use.
func (l *ledger[K]) use(k K) *grant {
	if g := l.now.get(k); g != nil {
		return g
	}
	var g grant
	if old := l.old.get(k); old != nil {
		g = *old
	}
	if len(l.now.grants) >= maxClaims {
		l.old, l.now = l.now, l.old
		clear(l.now.at)
		l.now.grants = l.now.grants[:0]
	}
	h := &l.now
	if h.at == nil {
		h.at = map[K]uint16{}
	}
	h.at[k] = uint16(len(h.grants))
	h.grants = append(h.grants, g)
	return &h.grants[len(h.grants)-1]
}

func found[K comparable](l *ledger[K], k K, tokens uint32, leased bool) {
	g := l.use(k)
	g.tokens = max(g.tokens, tokens)
	if leased {
		g.leased++
	} else {
		g.matched++
	}
}

func segmentOf(key *[32]byte) uint64 { return binary.LittleEndian.Uint64(key[:8]) }

// matched records the hits of a match.
func (c *claims) matched(q *tiering.MatchQuery, r *tiering.MatchResult, out *wire.MatchReply) {
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
		found(&c.segments, segmentOf(key), tokens, false)
	}
	for i := range out.Known.Keys {
		found(&c.segments, segmentOf(&out.Known.Keys[i]), out.Known.Interiors[i], false)
	}
	if r.PrefixTokens > 0 {
		found(&c.prefixes, r.PrefixTokens, r.PrefixTokens, false)
	}
}

func (c *claims) askedLocked() { c.asked = min(c.asked+1, 1<<20) }

// leased records a leased segment.
func (c *claims) leased(key *[32]byte, row *tiering.Acquired) {
	c.Lock()
	defer c.Unlock()
	c.askedLocked()
	found(&c.segments, segmentOf(key), uint32(row.Tokens), true)
}

// planned records the segments of a plan that other workers compute: the connection learns
// from its watch that they are ready, and its workers lease them on separate connections.
func (c *claims) planned(list []parallel.Segment) {
	c.Lock()
	defer c.Unlock()
	for i := range list {
		key := [32]byte(list[i].Key)
		found(&c.segments, segmentOf(&key), uint32(list[i].Spec.Tokens), false)
	}
}

// loaded records a leased checkpoint.
func (c *claims) loaded(got *tiering.Loaded) {
	c.Lock()
	defer c.Unlock()
	c.askedLocked()
	found(&c.prefixes, uint32(got.Tokens), uint32(got.Tokens), true)
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
	if g := c.prefixes.get(tokens); !g.left() {
		best := uint32(0)
		for _, half := range []*half[uint32]{&c.prefixes.now, &c.prefixes.old} {
			for n := range half.at {
				if n > tokens && (best == 0 || n < best) && c.prefixes.get(n).left() {
					best = n
				}
			}
		}
		if tokens = best; best == 0 {
			return false
		}
	}
	c.prefixes.use(tokens).used++
	return true
}
