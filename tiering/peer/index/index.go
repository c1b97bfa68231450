package index

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Config configures an Index. The zero value is a good default.
type Config struct {
	// MaxKeys is the most entries of the table, with 26 bits each; 0 = 2^27, about 415
	// MiB. A node gets at most an eighth of them, or an even share in clusters of fewer
	// than eight. Further entries are left out, as if the node did not have the objects.
	MaxKeys int
	// Seed should differ between nodes, so that they choose different holders of objects
	// that many nodes have.
	Seed uint64
}

// sweepShards is the number of shards from which one Apply removes the entries of dropped
// sets. It takes about 1 ms.
const sweepShards = 16

// minSkewed is the number of entries up to which a shard is not checked for sets with too
// many entries in it.
const minSkewed = 4096

// maxRetiring is the most dropped sets of one peer that are not swept yet.
const maxRetiring = 2

// Index holds the learned sets of all peers.
type Index struct {
	maxKeys int
	seed    uint64
	shards  [shards]atomic.Pointer[block]
	// owner[number] is the set's Node + 1, or 0 if the entries of that number do not count.
	owner [numbers]atomic.Uint32
	// prefetched stores a sum of the bytes that Prefetch has read.
	prefetched atomic.Uint64

	mu struct {
		sync.Mutex
		peers   map[Node]*peer
		state   [numbers]numberState
		counts  [numbers]int32 // entries in blocks by number, without the blocks' changes
		pending [numbers]int32 // net number of entries that these changes add, by number
		added   int64          // the same in total
		from    [numbers]Node  // present or last owner
		keys    int64
		refused uint64
		dropped [numbers]bool // numbers that the current sweep drops
		sweep   int           // next shard to sweep; the value shards = no sweep is running
		retired int           // numbers that wait for the next sweep
		next    uint16        // where the search for a free number starts
		merger  merger
		here    [numbers]int32 // scratch of dropLocked
		skewed  [numbers]bool  // scratch of dropLocked
		rows    []uint64
	}
}

// numberState is the state of a set number: free -> live -> retired -> swept -> free. A
// number stands for one set: the set of a peer in one incarnation. If the set is read again
// from its beginning, it gets another number. A dropped set has no entries left when a
// sweep has passed all shards.
type numberState uint8

const (
	numberFree    numberState = iota
	numberLive                // its entries count
	numberRetired             // its entries do not count, the next sweep removes them
	numberSwept               // its entries do not count, the current sweep removes them
)

// peer is the state of one peer. While a new set is read, the previous complete set stays.
type peer struct {
	position Position
	current  int // number of the complete set, -1 if none
	coming   int // number of the set that is being read, -1 if none
	retiring int
}

// New returns an empty index. It takes 32 KiB, and 2 KiB for each of its 4,096 shards once
// the shard is used.
func New(c Config) *Index {
	x := &Index{maxKeys: c.MaxKeys, seed: c.Seed}
	if x.maxKeys <= 0 {
		x.maxKeys = 1 << 27
	}
	x.mu.peers = map[Node]*peer{}
	x.mu.sweep = shards
	return x
}

// Position returns how much of a peer's set is known. It is the next request to the peer.
func (x *Index) Position(n Node) Position {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.mu.peers[n]; p != nil {
		return p.position
	}
	return Position{}
}

// Complete reports whether a peer's set has been read completely, in its present or an
// earlier incarnation.
func (x *Index) Complete(n Node) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.mu.peers[n]
	return p != nil && p.current >= 0
}

// Names returns the number of known objects of a peer. While its first set is being read,
// these are the objects read so far.
func (x *Index) Names(n Node) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.mu.peers[n]
	if p == nil {
		return 0
	}
	number := p.current
	if number < 0 {
		number = p.coming
	}
	if number < 0 {
		return 0
	}
	return max(0, int64(x.mu.counts[number])+int64(x.mu.pending[number]))
}

// Apply applies a peer's answer. The result more is true if the peer has more to send, so
// that the caller asks again at once. If the error is ErrInvalid, ErrGap or ErrBusy,
// nothing is applied.
func (x *Index) Apply(n Node, delta []byte) (more bool, err error) {
	if n >= MaxNodes {
		return false, fmt.Errorf("node %d of %d: %w", n, MaxNodes, ErrInvalid)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m, err := parse(delta, x.mu.rows[:0])
	if err != nil {
		return false, err
	}
	x.mu.rows = m.rows
	x.sweepLocked(sweepShards)
	p := x.mu.peers[n]
	if p == nil {
		p = &peer{current: -1, coming: -1}
	}
	number, err := x.followLocked(n, p, &m)
	if err != nil {
		return false, err
	}
	x.mu.peers[n] = p
	tail := m.changeBits()
	for _, row := range m.rows {
		added := uint32(1)
		if tail == 1 {
			added = uint32(row & 1)
		}
		x.changeLocked(row>>tail, uint16(number), added)
	}
	p.position = m.then()
	if m.kind == kindPiece && m.end == keyEnd {
		x.retireLocked(p, p.current)
		p.current, p.coming = p.coming, -1
	}
	return m.more, nil
}

// followLocked returns the number of the set that a message is about. A message with the
// beginning of a set gets a new number.
func (x *Index) followLocked(n Node, p *peer, m *message) (int, error) {
	switch {
	case m.kind == kindPiece && m.from.Cursor == 0:
		number, err := x.numberLocked(n, p)
		if err != nil {
			return 0, err
		}
		x.retireLocked(p, p.coming)
		p.coming = number
		return number, nil
	case m.from != p.position:
		return 0, fmt.Errorf("node %d at %v, delta from %v: %w", n, p.position, m.from, ErrGap)
	case m.kind == kindPiece:
		return p.coming, nil
	}
	return p.current, nil
}

// Forget drops the state of a peer. Its Node may be reassigned at once.
func (x *Index) Forget(n Node) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.mu.peers[n]; p != nil {
		x.retireLocked(p, p.current)
		x.retireLocked(p, p.coming)
		delete(x.mu.peers, n)
	}
}

// numberLocked assigns a free number to a new set of a peer.
func (x *Index) numberLocked(n Node, p *peer) (int, error) {
	if p.retiring >= maxRetiring {
		return 0, ErrBusy
	}
	for range numbers {
		number := int(x.mu.next)
		x.mu.next = (x.mu.next + 1) % numbers
		if x.mu.state[number] == numberFree {
			x.mu.state[number] = numberLive
			x.mu.from[number] = n
			x.owner[number].Store(uint32(n) + 1)
			return number, nil
		}
	}
	return 0, ErrBusy
}

func (x *Index) retireLocked(p *peer, number int) {
	if number < 0 {
		return
	}
	x.owner[number].Store(0)
	x.mu.state[number] = numberRetired
	x.mu.retired++
	p.retiring++
}

// changeLocked records a change of one key of one set.
func (x *Index) changeLocked(key uint64, number uint16, added uint32) {
	shard, inner := int(key>>innerBits), uint32(key&(1<<innerBits-1))
	b := x.shards[shard].Load()
	if b == nil {
		b = x.mu.merger.take(0)
		clear(b.starts[:])
		b.entries = append(b.entries[:0], 0)
		x.shards[shard].Store(b)
	}
	if !b.change(inner, number, added) {
		x.mergeLocked(shard)
		x.shards[shard].Load().change(inner, number, added)
	}
	x.pendLocked(number, added, 1)
}

// pendLocked counts a change that is not merged into its block yet (by = 1), or undoes
// that (by = -1).
func (x *Index) pendLocked(number uint16, added uint32, by int32) {
	if added == 0 {
		by = -by
	}
	x.mu.pending[number] += by
	x.mu.added += int64(by)
}

// mergeLocked merges the changes of a shard into its sorted entries.
func (x *Index) mergeLocked(shard int) {
	old := x.shards[shard].Load()
	if old == nil {
		return
	}
	for i := range int(old.changes.Load()) {
		x.pendLocked(old.nums[:cap(old.nums)][i], old.keys[:cap(old.keys)][i]&1, -1)
	}
	x.shards[shard].Store(x.mu.merger.merge(old, x.dropLocked(old), x.countLocked))
	x.mu.merger.give(old)
}

// dropLocked returns the set numbers whose entries a merge removes from a shard; nil =
// none. Numbers that are being swept are always among them. If the shard has more than
// twice its share of entries, numbers with too many entries in this shard are added. Tags
// are evenly distributed, so only a lying node has too many; it could otherwise fill a few
// shards and leave other nodes no room there.
func (x *Index) dropLocked(b *block) *[numbers]bool {
	drop := &x.mu.dropped
	if x.mu.sweep == shards {
		drop = nil
	}
	if b.len() <= max(minSkewed, int(2*x.mu.keys/shards)) {
		return drop
	}
	here := &x.mu.here
	clear(here[:])
	for i := range b.len() {
		here[b.at(i)&(numbers-1)]++
	}
	skewed := false
	for number, n := range here {
		here[number] = 0
		if n > 64+8*x.mu.counts[number]/shards {
			here[number], skewed = 1, true
			x.mu.refused += uint64(n)
		}
	}
	if !skewed {
		return drop
	}
	x.mu.skewed = x.mu.dropped
	for number, n := range here {
		if n > 0 {
			x.mu.skewed[number] = true
		}
	}
	return &x.mu.skewed
}

// countLocked counts an entry that is added (by = 1) or removed (by = -1). It returns
// false, and counts nothing, if there is no room to add it.
func (x *Index) countLocked(number uint16, by int) bool {
	if by > 0 {
		share := max(x.maxKeys/8, x.maxKeys/max(len(x.mu.peers), 1))
		if x.mu.keys >= int64(x.maxKeys) || int(x.mu.counts[number]) >= share {
			x.mu.refused++
			return false
		}
	}
	x.mu.counts[number] += int32(by)
	x.mu.keys += int64(by)
	return true
}

// Sweep removes the entries of dropped sets from up to n shards, and reports whether shards
// are left. Each Apply does some of this, so Sweep is only needed while no peer is asked.
func (x *Index) Sweep(n int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sweepLocked(n)
}

func (x *Index) sweepLocked(n int) bool {
	if x.mu.sweep == shards && x.mu.retired > 0 {
		for number, state := range x.mu.state {
			if state == numberRetired {
				x.mu.state[number], x.mu.dropped[number] = numberSwept, true
			}
		}
		x.mu.retired, x.mu.sweep = 0, 0
	}
	for ; n > 0 && x.mu.sweep < shards; n-- {
		x.mergeLocked(x.mu.sweep)
		if x.mu.sweep++; x.mu.sweep == shards {
			x.sweptLocked()
		}
	}
	return x.mu.sweep < shards || x.mu.retired > 0
}

// sweptLocked frees the numbers whose entries the finished sweep has removed.
func (x *Index) sweptLocked() {
	clear(x.mu.dropped[:])
	for number, state := range x.mu.state {
		if state == numberSwept {
			x.mu.state[number] = numberFree
			if p := x.mu.peers[x.mu.from[number]]; p != nil && p.retiring > 0 {
				p.retiring--
			}
		}
	}
}

// Stats describes the contents of an index.
type Stats struct {
	Peers    int    // number of peers of which anything is known
	Complete int    // number of peers whose sets have been read completely
	Keys     int64  // entries
	Refused  uint64 // entries left out for lack of room
	Bytes    int64  // memory size
}

// Stats returns a snapshot. It reads every shard, which takes tens of microseconds.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Stats{Peers: len(x.mu.peers), Keys: max(0, x.mu.keys+x.mu.added), Refused: x.mu.refused, Bytes: 8*shards + (4+1+4+2+1+4+1)*numbers}
	for _, p := range x.mu.peers {
		if p.current >= 0 {
			s.Complete++
		}
	}
	for i := range x.shards {
		if b := x.shards[i].Load(); b != nil {
			s.Bytes += b.bytes()
		}
	}
	for _, b := range x.mu.merger.spare {
		s.Bytes += b.bytes()
	}
	s.Bytes += int64(cap(x.mu.rows))*8 + int64(cap(x.mu.merger.cleaned.entries))
	return s
}
