// Package index finds values by 32-byte key. It is a hash table in shards, each of which grows
// separately. Ascending shards have ascending keys. It has no lock; its owner guards it.
package index

import (
	"bytes"
	"hash/maphash"
	"slices"
)

// Shards is the number of shards. A key's leading bits choose its shard. A listing can
// therefore walk the shards in order and release its lock in between.
const Shards = 1 << shardBits

const (
	shardBits = 12
	minSlots  = 8
)

// Map finds values by key. A hit takes two dependent cache misses and no allocation. Growing
// and shrinking copy one shard, never all: about 1/4096 of the keys, since keys are hashes.
//
// Inside a shard a seeded hash chooses the slot. Clients choose checkpoint hashes, and could
// otherwise make them collide.
type Map[V any] struct {
	seed   maphash.Seed
	n      int
	shards [Shards]shard[V]
}

// shard is a hash table with open addressing and linear probing. len(slots) is a power of two.
// At most 3/4 of the slots are in use, and more than 3/16 if there are more than minSlots.
type shard[V any] struct {
	slots []slot[V]
	n     int
}

type slot[V any] struct {
	key [32]byte
	v   *V // nil = empty
}

// New returns an empty map.
func New[V any]() *Map[V] {
	return &Map[V]{seed: maphash.MakeSeed()}
}

// Shard returns the number of a key's shard.
func Shard(key *[32]byte) int {
	return (int(key[0])<<8 | int(key[1])) >> (16 - shardBits)
}

func (m *Map[V]) home(key *[32]byte, mask int) int {
	return int(maphash.Bytes(m.seed, key[:])) & mask
}

// Len returns the number of keys.
func (m *Map[V]) Len() int { return m.n }

// Find returns a key's value; nil if the key is absent.
func (m *Map[V]) Find(key *[32]byte) *V {
	sh := &m.shards[Shard(key)]
	if sh.n == 0 {
		return nil
	}
	mask := len(sh.slots) - 1
	for i := m.home(key, mask); ; i = (i + 1) & mask {
		s := &sh.slots[i]
		if s.v == nil {
			return nil
		}
		if s.key == *key {
			return s.v
		}
	}
}

// Put adds or replaces a key's value, which is not nil.
func (m *Map[V]) Put(key *[32]byte, v *V) {
	sh := &m.shards[Shard(key)]
	if 4*(sh.n+1) > 3*len(sh.slots) {
		m.resize(sh, max(minSlots, 2*len(sh.slots)))
	}
	if m.set(sh, key, v) {
		sh.n++
		m.n++
	}
}

// set adds or replaces a key's value and reports whether the key is new.
func (m *Map[V]) set(sh *shard[V], key *[32]byte, v *V) bool {
	mask := len(sh.slots) - 1
	for i := m.home(key, mask); ; i = (i + 1) & mask {
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

// resize moves a shard's values to a table of another size.
func (m *Map[V]) resize(sh *shard[V], slots int) {
	old := sh.slots
	sh.slots = make([]slot[V], slots)
	for i := range old {
		if old[i].v != nil {
			m.set(sh, &old[i].key, old[i].v)
		}
	}
}

// Remove removes a key, if present, and closes the gap.
func (m *Map[V]) Remove(key *[32]byte) {
	sh := &m.shards[Shard(key)]
	if sh.n == 0 {
		return
	}
	mask := len(sh.slots) - 1
	i := m.home(key, mask)
	for sh.slots[i].v != nil && sh.slots[i].key != *key {
		i = (i + 1) & mask
	}
	if sh.slots[i].v == nil {
		return
	}
	// Go through the slots after the gap up to the next empty one. Move a value into the
	// gap unless its home slot lies after the gap.
	gap := i
	for j := (gap + 1) & mask; sh.slots[j].v != nil; j = (j + 1) & mask {
		home := m.home(&sh.slots[j].key, mask)
		if (j-home)&mask >= (j-gap)&mask {
			sh.slots[gap] = sh.slots[j]
			gap = j
		}
	}
	sh.slots[gap] = slot[V]{}
	sh.n--
	m.n--
	// The number of keys in a shard varies around its mean. Without shrinking, each shard
	// would keep the largest table that it ever had, and churn alone would double the map
	// in time.
	if len(sh.slots) > minSlots && 16*sh.n <= 3*len(sh.slots) {
		m.resize(sh, len(sh.slots)/2)
	}
}

// Sorted lists the values of one shard whose keys are greater than the key after (nil = all)
// in ascending order of key.
func (m *Map[V]) Sorted(shard int, after *[32]byte) []*V {
	sh := &m.shards[shard]
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
