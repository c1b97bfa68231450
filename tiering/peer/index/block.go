package index

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
)

// A key has 34 bits: 12 bits choose a shard, 10 bits a bucket in it, and 12 bits are the
// fingerprint. An entry has 3 bytes: the fingerprint and the 12-bit number of the set.
// Together, shard, bucket and entry determine the whole key and the number. So the index
// recognizes an entry that is added or removed twice.
//
//	key    | shard 12 | bucket 10 | fingerprint 12 |
//	entry                         | fingerprint 12 | number 12 |
const (
	shardBits  = 12
	bucketBits = 10
	printBits  = 12
	numberBits = 12
	shards     = 1 << shardBits
	buckets    = 1 << bucketBits
	numbers    = 1 << numberBits
	entryBits  = printBits + numberBits
	entrySize  = entryBits / 8
	innerBits  = bucketBits + printBits // bits of a key within its shard

	// maxBlock is the most entries of a shard, since bucket starts have 16 bits.
	maxBlock = 1<<16 - 1
)

// block is the content of a shard: sorted entries, and the changes since they were sorted.
// Readers hold a block during a lookup (Index.hold). The writer appends changes to the current
// block of a shard. It reuses the memory of a former block only when no reader holds it.
//
// Invariant: starts and entries do not change while the block is current.
type block struct {
	readers atomic.Int32
	changes atomic.Int32 // number of valid changes
	// marks has a bit for each value of the lower 9 bits of a key. It is set if there is
	// a change of a key with these bits.
	marks   [8]atomic.Uint64
	starts  [buckets + 1]uint16 // index of the first entry of each bucket
	entries []byte              // 3 bytes each, and one byte more so that 4 bytes can be read at each entry
	keys    []uint32            // by change: key within the shard <<1 | 1 if added
	nums    []uint16            // by change: number of its set
	memory  memory              // memory of entries
}

func (b *block) len() int { return int(b.starts[buckets]) }

// at returns entry i.
func (b *block) at(i int) uint32 {
	return binary.LittleEndian.Uint32(b.entries[i*entrySize:]) & (1<<entryBits - 1)
}

// find returns the index of the first entry in [lo,hi) that is not below e.
func (b *block) find(lo, hi int, e uint32) int {
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if b.at(mid) < e {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// change appends a change; false = there is no room.
func (b *block) change(inner uint32, number uint16, added uint32) bool {
	n := int(b.changes.Load())
	if n == cap(b.keys) {
		return false
	}
	b.keys[:cap(b.keys)][n], b.nums[:cap(b.nums)][n] = inner<<1|added, number
	b.marks[inner>>6&7].Or(1 << (inner & 63))
	b.changes.Store(int32(n + 1))
	return true
}

// marked reports whether there may be a change of a key.
func (b *block) marked(inner uint32) bool {
	return b.marks[inner>>6&7].Load()&(1<<(inner&63)) != 0
}

// bytes returns the memory size of the block.
func (b *block) bytes() int64 {
	const fixed = 4 + 4 + 8*8 + 2*(buckets+1) + 3*24
	return fixed + int64(cap(b.entries)) + 4*int64(cap(b.keys)) + 2*int64(cap(b.nums))
}

// room returns how many changes a block of n entries has room for. With more room,
// readers scan more changes; with less, the writer merges and copies entries more often.
func room(n int) int { return max(32, min(n/64, 256)) }

// merger merges the changes of blocks into their entries. Only the writer uses it.
type merger struct {
	ops     []uint64 // from the highest bits: inner<<numberBits|number, position of the change, 1 if added
	spare   []*block // former blocks, to be reused when no reader holds them
	cleaned block    // a block without the dropped entries
}

const opPlaceBits = 10

// maxSpare is the most spare blocks; blocks that readers hold may exceed it.
const maxSpare = 32

// merge returns a block with the entries that old has after its changes are applied, but
// without the entries of the numbers in drop. It calls count for each entry that it adds
// (by = 1) or removes (by = -1). If count returns false for an added entry, the entry is
// left out.
func (m *merger) merge(old *block, drop *[numbers]bool, count func(number uint16, by int) bool) *block {
	m.sort(old)
	base := old
	if drop != nil {
		base = m.clean(old, drop, count)
	}
	b := m.take(base.len() + len(m.ops))
	out := b.entries[:0]
	bucket, shift, done := 0, 0, 0 // b.starts are set up to bucket; entries of base are copied up to done; shift is added minus removed entries
	reach := func(to int) {
		for ; bucket < to; bucket++ {
			b.starts[bucket+1] = uint16(int(base.starts[bucket+1]) + shift)
		}
	}
	b.starts[0] = 0
	for _, op := range m.ops {
		added := op&1 != 0
		full := op >> (opPlaceBits + 1)
		number := uint16(full & (numbers - 1))
		in, e := int(full>>entryBits), uint32(full&(1<<entryBits-1))
		reach(in)
		at := base.find(max(done, int(base.starts[in])), int(base.starts[in+1]), e)
		found := at < int(base.starts[in+1]) && base.at(at) == e
		if found == added || drop != nil && drop[number] {
			continue
		}
		out = append(out, base.entries[done*entrySize:at*entrySize]...)
		done = at
		if !added {
			count(number, -1)
			done, shift = at+1, shift-1
		} else if base.len()+shift < maxBlock && count(number, 1) {
			out = append(out, byte(e), byte(e>>8), byte(e>>16))
			shift++
		}
	}
	reach(buckets)
	out = append(out, base.entries[done*entrySize:base.len()*entrySize]...)
	b.entries = append(out, 0)
	return b
}

// sort stores the last change of each entry in m.ops, sorted by entry.
func (m *merger) sort(old *block) {
	m.ops = m.ops[:0]
	for i := range int(old.changes.Load()) {
		key := uint64(old.keys[:cap(old.keys)][i])
		full := key>>1<<numberBits | uint64(old.nums[:cap(old.nums)][i])
		m.ops = append(m.ops, full<<(opPlaceBits+1)|uint64(i)<<1|key&1)
	}
	slices.Sort(m.ops)
	kept := m.ops[:0]
	for i, op := range m.ops {
		if i+1 == len(m.ops) || m.ops[i+1]>>(opPlaceBits+1) != op>>(opPlaceBits+1) {
			kept = append(kept, op)
		}
	}
	m.ops = kept
}

// clean copies a block without the dropped entries.
func (m *merger) clean(old *block, drop *[numbers]bool, count func(uint16, int) bool) *block {
	c := &m.cleaned
	c.entries = c.entries[:0]
	for in := range buckets {
		for i := int(old.starts[in]); i < int(old.starts[in+1]); i++ {
			e := old.at(i)
			if number := uint16(e & (numbers - 1)); drop[number] {
				count(number, -1)
				continue
			}
			c.entries = append(c.entries, byte(e), byte(e>>8), byte(e>>16))
		}
		c.starts[in+1] = uint16(len(c.entries) / entrySize)
	}
	c.entries = append(c.entries, 0)
	return c
}

// take returns a block with room for n entries, a spare one if possible. No reader holds it.
func (m *merger) take(n int) *block {
	size, changes := n*entrySize+1, room(n)
	for i, b := range m.spare {
		if cap(b.entries) >= size && cap(b.entries) <= size+size/16+256 && cap(b.keys) >= changes && b.readers.Load() == 0 {
			m.spare = slices.Delete(m.spare, i, i+1)
			b.changes.Store(0)
			for w := range b.marks {
				b.marks[w].Store(0)
			}
			return b
		}
	}
	b := &block{keys: make([]uint32, 0, changes), nums: make([]uint16, 0, changes)}
	b.entries = b.memory.allocate(b, size+size/64)
	return b
}

// The method give adds a former block to the spare blocks. If there are too many spare
// blocks, it frees the oldest one that no reader holds.
func (m *merger) give(b *block) {
	m.spare = append(m.spare, b)
	if len(m.spare) <= maxSpare {
		return
	}
	for i, old := range m.spare {
		if old.readers.Load() == 0 {
			m.spare = slices.Delete(m.spare, i, i+1)
			old.memory.free()
			return
		}
	}
}
