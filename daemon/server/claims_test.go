package server

import (
	"encoding/binary"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// hits returns keys from a number on, and a match that has found all of them.
func hits(from, n int) ([][32]byte, *tiering.MatchResult) {
	keys, r := make([][32]byte, n), &tiering.MatchResult{Segments: make([]tiering.SegmentStatus, n)}
	for i := range keys {
		binary.LittleEndian.PutUint64(keys[i][:], uint64(from+i)*0x9e3779b97f4a7c15)
		r.Segments[i].Status, r.Segments[i].Tokens = tier.StatusHit, 64
	}
	return keys, r
}

// reports returns whether a report of the reuse of one key is verified.
func reports(c *claims, key [32]byte) bool {
	return c.verify(&wire.ServedRequest{Keys: [][32]byte{key}, Reused: []uint32{64}})
}

func TestClaimsForgetTheOldest(t *testing.T) {
	var c claims
	var known wire.MatchKnown
	first, r := hits(0, 1)
	c.matched(&tiering.MatchQuery{Keys: first}, r, &known)
	c.matched(&tiering.MatchQuery{Keys: first}, r, &known)
	for round := range 4 { // each drops the older half
		if !reports(&c, first[0]) {
			t.Errorf("round %d: a reused segment is not verified", round)
		}
		keys, all := hits(1+round*maxClaims, maxClaims)
		c.matched(&tiering.MatchQuery{Keys: first}, r, &known)
		c.matched(&tiering.MatchQuery{Keys: keys}, all, &known)
	}
	old, _ := hits(2, 1)
	if reports(&c, old[0]) {
		t.Error("what was found two halves ago is verified")
	}
	if n := c.segments.now.used + c.segments.old.used; n > 2*maxClaims {
		t.Errorf("%d grants", n)
	}
}

// One object has as many reports as it was found, however many that are.
func TestClaimsOfOneObjectAddUp(t *testing.T) {
	var c claims
	key, r := hits(0, 1)
	r.PrefixTokens = 30
	const n = 5000
	for range n {
		c.matched(&tiering.MatchQuery{Keys: key}, r, &wire.MatchKnown{})
	}
	m := &wire.ServedRequest{Prefix: 30, WaitMicros: 2000, Keys: key, Reused: []uint32{64}}
	for i := range n {
		if !c.verify(m) {
			t.Fatalf("report %d is not verified", i)
		}
	}
	if c.verify(m) {
		t.Error("one report more than lookups is verified")
	}
}

func TestClaimsAllocateNothing(t *testing.T) {
	var c claims
	var known wire.MatchKnown
	var parts [16][][32]byte
	var r *tiering.MatchResult
	for i := range parts {
		parts[i], r = hits(i*1024, 1024)
	}
	round := func() {
		for _, keys := range parts {
			c.matched(&tiering.MatchQuery{Keys: keys}, r, &known)
		}
	}
	round()
	if n := testing.AllocsPerRun(10, round); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
