package find

import (
	"cmp"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Scope is whose segments are found: those of one tenant and profile.
type Scope struct {
	Tenant  tier.TenantID
	Profile profile.Fingerprint
}

// Index is the hashes of all held segments. The zero value is empty.
type Index struct {
	mu     sync.RWMutex
	scopes map[Scope]*scope
}

// scope is the segments of one tenant and profile, some 100 bytes of the heap for each.
//
// Both maps count segments by themselves: a client that knows the salt can make segments
// of which a hash is the same and the other is not.
//
// Invariant: a lead has the lengths of all segments with that lead, counted, and is in
// its shard's filter.
type scope struct {
	shards [shards]shard
	wholes map[uint64]int32 // how many hold a segment, by SegmentHash.Whole
}

// shard is some of the leads: a filter that grows is made anew of those of its shard, 100
// µs of 100,000 in all.
type shard struct {
	filter filter
	leads  map[uint64][]length // descending
}

const shards = 64

func (sc *scope) shard(lead uint64) *shard { return &sc.shards[lead>>58] }

// length is that of so many held segments with the same lead.
type length struct{ tokens, segments int32 }

// Add notes that somebody holds a segment. What has no hash is not found.
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

// Remove notes that somebody who added a segment does not hold it any more.
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

// Len is how many different segments are held.
func (x *Index) Len() (n int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, sc := range x.scopes {
		n += len(sc.wholes)
	}
	return n
}
