package find

import (
	"cmp"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Scope selects the segments of one tenant and profile.
type Scope struct {
	Tenant  tier.TenantID
	Profile profile.Fingerprint
}

// Index has the hashes of all cached segments. The zero value is empty.
type Index struct {
	mu     sync.RWMutex
	scopes map[Scope]*scope
}

// scope has the hashes of the segments of one tenant and profile, about 100 bytes of heap
// per segment.
//
// The maps leads and wholes count segments independently. A client that knows the salt can
// create segments that agree in one hash and differ in the other.
//
// Invariant: the entry of a lead counts all segments with that lead, by length. Every lead
// is in the filter of its shard.
type scope struct {
	shards [shards]shard
	wholes map[uint64]int32 // number of tiers with a segment, by SegmentHash.Whole
}

// shard has a part of the leads. A filter that grows is rebuilt from the leads of its
// shard only; for all shards of 100,000 segments that takes 100 µs together.
type shard struct {
	filter filter
	leads  map[uint64][]length // lengths in descending order
}

const shards = 64

func (sc *scope) shard(lead uint64) *shard { return &sc.shards[lead>>58] }

// length counts the cached segments that have the same lead and length.
type length struct{ tokens, segments int32 }

// Add records that one more tier has a segment. A segment without a hash cannot be found.
func (x *Index) Add(at Scope, h profile.SegmentHash, tokens int) {
	if h == (profile.SegmentHash{}) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	sc := x.scopes[at]
	if sc == nil {
		if x.scopes == nil {
			x.scopes = map[Scope]*scope{}
		}
		sc = &scope{wholes: map[uint64]int32{}}
		for i := range sc.shards {
			sc.shards[i] = shard{newFilter(0), map[uint64][]length{}}
		}
		x.scopes[at] = sc
	}
	sc.wholes[h.Whole]++
	sh := sc.shard(h.Lead)
	lengths, known := sh.leads[h.Lead]
	i, found := slices.BinarySearchFunc(lengths, int32(tokens), descending)
	if !found {
		lengths = slices.Insert(lengths, i, length{tokens: int32(tokens)})
		sh.leads[h.Lead] = lengths
	}
	if !known {
		sh.see(h.Lead)
	}
	lengths[i].segments++
}

// Remove records that one of the tiers that added a segment no longer has it.
func (x *Index) Remove(at Scope, h profile.SegmentHash, tokens int) {
	if h == (profile.SegmentHash{}) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	sc := x.scopes[at]
	if sc == nil || sc.wholes[h.Whole] == 0 {
		panic("find: a segment is removed that was not added")
	}
	if sc.wholes[h.Whole]--; sc.wholes[h.Whole] == 0 {
		delete(sc.wholes, h.Whole)
	}
	sh := sc.shard(h.Lead)
	lengths := sh.leads[h.Lead]
	i, found := slices.BinarySearchFunc(lengths, int32(tokens), descending)
	if !found {
		panic("find: a segment is removed that has another lead or length than any that was added")
	}
	if lengths[i].segments--; lengths[i].segments > 0 {
		return
	}
	if len(lengths) > 1 {
		sh.leads[h.Lead] = slices.Delete(lengths, i, i+1)
		return
	}
	delete(sh.leads, h.Lead)
	if len(sc.wholes) == 0 {
		delete(x.scopes, at)
	}
}

func descending(l length, tokens int32) int { return cmp.Compare(tokens, l.tokens) }

// Len returns the number of different segments.
func (x *Index) Len() (n int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, sc := range x.scopes {
		n += len(sc.wholes)
	}
	return n
}
