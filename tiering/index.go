package tiering

import (
	"bytes"
	"hash/maphash"
	"slices"
)

// Keys are spread over shards by their leading bits, so that walking the shards
// in order walks the keys in order, and a listing can let go of the lock between
// shards. Inside a shard a seeded hash places them: checkpoint hashes come from
// clients, who could otherwise choose them to collide.
const (
	shardBits  = 12
	shardCount = 1 << shardBits
	minSlots   = 8
)

// index finds values by 32-byte key: two dependent cache misses for a hit, no
// allocation. Growth copies one shard (keys are hashes: 1/4096 of them), never
// all. It is guarded by its owner's lock.
type index[V any] struct {
	seed   maphash.Seed
	n      int
	shards [shardCount]shard[V]
}

// shard is open addressing with linear probing; len(slots) is a power of two, at
// most 3/4 full.
type shard[V any] struct {
	slots []slot[V]
	n     int
}

type slot[V any] struct {
	key [32]byte
	v   *V // nil = empty
}

func newIndex[V any]() *index[V] {
	return &index[V]{seed: maphash.MakeSeed()}
}

func shardOf(key *[32]byte) int {
	return (int(key[0])<<8 | int(key[1])) >> (16 - shardBits)
}

func (x *index[V]) home(key *[32]byte, mask int) int {
	return int(maphash.Bytes(x.seed, key[:])) & mask
}

// find answers nil when the key is not held.
func (x *index[V]) find(key *[32]byte) *V {
	sh := &x.shards[shardOf(key)]
	if sh.n == 0 {
		return nil
	}
	mask := len(sh.slots) - 1
	for i := x.home(key, mask); ; i = (i + 1) & mask {
		s := &sh.slots[i]
		if s.v == nil {
			return nil
		}
		if s.key == *key {
			return s.v
		}
	}
}

// put adds or replaces.
func (x *index[V]) put(key *[32]byte, v *V) {
	sh := &x.shards[shardOf(key)]
	if 4*(sh.n+1) > 3*len(sh.slots) {
		x.grow(sh)
	}
	if x.place(sh, key, v) {
		sh.n++
		x.n++
	}
}

// place reports whether the key is new.
func (x *index[V]) place(sh *shard[V], key *[32]byte, v *V) bool {
	mask := len(sh.slots) - 1
	for i := x.home(key, mask); ; i = (i + 1) & mask {
		s := &sh.slots[i]
		if s.v == nil {
			s.key, s.v = *key, v
			return true
		}
		if s.key == *key {
			s.v = v
			return false
		}
	}
}

func (x *index[V]) grow(sh *shard[V]) {
	old := sh.slots
	sh.slots = make([]slot[V], max(minSlots, 2*len(old)))
	for i := range old {
		if old[i].v != nil {
			x.place(sh, &old[i].key, old[i].v)
		}
	}
}

// remove forgets a key, if held, and closes the gap it leaves.
func (x *index[V]) remove(key *[32]byte) {
	sh := &x.shards[shardOf(key)]
	if sh.n == 0 {
		return
	}
	mask := len(sh.slots) - 1
	i := x.home(key, mask)
	for sh.slots[i].v != nil && sh.slots[i].key != *key {
		i = (i + 1) & mask
	}
	if sh.slots[i].v == nil {
		return
	}
	// Pull back every later slot of the run whose home is not after the gap.
	gap := i
	for j := (gap + 1) & mask; sh.slots[j].v != nil; j = (j + 1) & mask {
		home := x.home(&sh.slots[j].key, mask)
		if (j-home)&mask >= (j-gap)&mask {
			sh.slots[gap] = sh.slots[j]
			gap = j
		}
	}
	sh.slots[gap] = slot[V]{}
	sh.n--
	x.n--
}

// sorted lists the values of one shard whose keys are greater than after (nil =
// all) in ascending order of key.
func (x *index[V]) sorted(shard int, after *[32]byte) []*V {
	sh := &x.shards[shard]
	if sh.n == 0 {
		return nil
	}
	var found []*slot[V]
	for i := range sh.slots {
		if s := &sh.slots[i]; s.v != nil && (after == nil || bytes.Compare(s.key[:], after[:]) > 0) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *slot[V]) int { return bytes.Compare(a.key[:], b.key[:]) })
	values := make([]*V, len(found))
	for i, s := range found {
		values[i] = s.v
	}
	return values
}
