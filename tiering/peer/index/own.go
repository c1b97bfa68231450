package index

import (
	"slices"
	"sync"
)

const (
	// maxOwn is the most keys of a node's own set, with 4 bytes each.
	maxOwn = 1 << 22
	// The log keeps the last changes of the set, 8 bytes each: at least a quarter as many as
	// the set has keys, within minLog and maxLog, and at most twice that number. A peer that
	// has missed more changes than the log keeps reads the whole set, which takes few bytes
	// more than the changes would.
	minLog = 1 << 12
	maxLog = 1 << 17
	// maxMessageKeys is the most keys in one delta, with 2 to 5 bytes each.
	maxMessageKeys = 1 << 15
	// MaxDelta is the most bytes of a delta.
	MaxDelta = 128 << 10
)

// Own is the set of this node's objects. Its methods may be called concurrently. They
// wait for each other at most as long as it takes to copy maxMessageKeys keys.
type Own struct {
	incarnation uint64
	mu          sync.Mutex
	keys        set
	log         []uint64 // key<<1 | 1 if added; the last change led to version
	version     uint64
	refused     uint64
}

// NewOwn returns an empty set. The incarnation must differ from those of this node's
// earlier sets and must not be 0. The start time in nanoseconds is suitable.
func NewOwn(incarnation uint64) *Own {
	if incarnation == 0 {
		panic("index: incarnation 0")
	}
	return &Own{incarnation: incarnation}
}

// Incarnation distinguishes this set from earlier ones of the node.
func (o *Own) Incarnation() uint64 { return o.incarnation }

// Version returns the number of changes so far. Nodes exchange it in gossip.
func (o *Own) Version() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.version
}

// Has reports whether the set has the object with this tag.
func (o *Own) Has(tag uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys.has(keyOf(tag))
}

// Len returns the number of keys.
func (o *Own) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys.n
}

// Bytes returns the memory size of the set and its log.
func (o *Own) Bytes() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := int64(24*len(o.keys.rows) + 8*cap(o.log))
	for _, row := range o.keys.rows {
		n += 4 * int64(cap(row))
	}
	return n
}

// Refused counts tags for which the set had no room.
func (o *Own) Refused() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refused
}

// Add adds the object with this tag. Adding it again changes nothing. Two tags with the
// same upper 34 bits count as one. Among 10^5 tags, one in three nodes has such a pair.
func (o *Own) Add(tag uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys.n >= maxOwn {
		o.refused++
		return
	}
	if o.keys.add(keyOf(tag)) {
		o.noteLocked(keyOf(tag)<<1 | 1)
	}
}

// Remove removes the object with this tag.
func (o *Own) Remove(tag uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys.remove(keyOf(tag)) {
		o.noteLocked(keyOf(tag) << 1)
	}
}

func (o *Own) noteLocked(change uint64) {
	if keep := max(minLog, min(o.keys.n/4, maxLog)); len(o.log) >= 2*keep {
		o.log = append(o.log[:0], o.log[len(o.log)-keep:]...)
	}
	o.log = append(o.log, change)
	o.version++
}

// Delta appends the answer to a peer that has reached the position from. The answer has at
// most MaxDelta bytes. It has the next changes, each key once with its last change, or a
// piece of the whole set.
func (o *Own) Delta(dst []byte, from Position) []byte {
	m := o.take(from)
	if m.kind == kindChanges {
		m.rows = lastOfEach(m.rows)
	}
	return m.appendTo(dst)
}

// take returns the message for a peer at a position. It copies the rows under the lock;
// the caller sorts and encodes them without it.
func (o *Own) take(from Position) message {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.version - uint64(len(o.log)) // the oldest version from which the log continues
	known := from.Incarnation == o.incarnation && from.Version >= first && from.Version <= o.version && from.Cursor < keyEnd
	if known && from.Cursor == 0 {
		rows := o.log[from.Version-first:]
		rows = rows[:min(len(rows), maxMessageKeys)]
		m := message{kind: kindChanges, from: from, end: from.Version + uint64(len(rows)), rows: slices.Clone(rows)}
		m.more = m.end < o.version
		return m
	}
	if !known {
		from = Position{Incarnation: o.incarnation, Version: o.version}
	}
	m := message{kind: kindPiece, from: from}
	m.rows, m.end = o.keys.from(from.Cursor, maxMessageKeys)
	m.more = m.end < keyEnd || o.version > from.Version
	return m
}

// lastOfEach sorts changes by key and keeps only the last change of each key.
func lastOfEach(changes []uint64) []uint64 {
	const seqBits = 28
	for i, c := range changes {
		changes[i] = c>>1<<(seqBits+1) | uint64(i)<<1 | c&1
	}
	slices.Sort(changes)
	kept := changes[:0]
	for i, c := range changes {
		if i+1 == len(changes) || changes[i+1]>>(seqBits+1) != c>>(seqBits+1) {
			kept = append(kept, c>>(seqBits+1)<<1|c&1)
		}
	}
	return kept
}

// set is a set of keys. The upper bits of a key choose a row; each row has the lower bits
// of its keys, sorted.
type set struct {
	rows [1 << setRowBits][]uint32
	n    int
}

const (
	setRowBits = 10
	setLowBits = keyBits - setRowBits
)

func split(key uint64) (row int, low uint32) {
	return int(key >> setLowBits), uint32(key & (1<<setLowBits - 1))
}

func (s *set) add(key uint64) bool {
	row, low := split(key)
	i, found := slices.BinarySearch(s.rows[row], low)
	if found {
		return false
	}
	s.rows[row] = slices.Insert(s.rows[row], i, low)
	s.n++
	return true
}

func (s *set) remove(key uint64) bool {
	row, low := split(key)
	i, found := slices.BinarySearch(s.rows[row], low)
	if !found {
		return false
	}
	s.rows[row] = slices.Delete(s.rows[row], i, i+1)
	s.n--
	return true
}

// The method has reports whether the set has the key.
func (s *set) has(key uint64) bool {
	row, low := split(key)
	_, found := slices.BinarySearch(s.rows[row], low)
	return found
}

// The method from returns up to limit keys, in order, beginning with the first key that is
// not below cursor. The result next is the key after them; keyEnd means that there is none.
func (s *set) from(cursor uint64, limit int) (keys []uint64, next uint64) {
	keys = make([]uint64, 0, min(limit, s.n))
	row, low := split(cursor)
	for ; row < len(s.rows); row, low = row+1, 0 {
		i, _ := slices.BinarySearch(s.rows[row], low)
		for _, k := range s.rows[row][i:] {
			if len(keys) == limit {
				return keys, uint64(row)<<setLowBits | uint64(k)
			}
			keys = append(keys, uint64(row)<<setLowBits|uint64(k))
		}
	}
	return keys, keyEnd
}
