package index

import "slices"

// maxNewest is the most changes of one key that a lookup considers. It takes the newest.
const maxNewest = 32

// maxLooked is the number of entries of a key that Holders examines if dst is full by then.
// The remaining entries are only counted, because examining all entries of an object on all
// nodes would take microseconds.
const maxLooked = 32

// Holders fills dst with peers that are believed to have the object with this tag, and returns
// their number, which may exceed len(dst). Beyond len(dst) the number may be too high: it may
// include forgotten peers, and count a peer twice whose set is being read again. The order
// differs from node to node. Holders takes no lock, never waits and allocates nothing.
func (x *Index) Holders(tag uint64, dst []Node) int {
	key := keyOf(tag)
	b := x.hold(int(key >> innerBits))
	if b == nil {
		return 0
	}
	n := x.holders(b, uint32(key&(1<<innerBits-1)), dst)
	b.readers.Add(-1)
	return n
}

// Prefetch makes the processor load into its cache the memory that Holders will read for
// some tags. A single lookup waits for memory three times in sequence; Prefetch overlaps
// these waits for many tags.
func (x *Index) Prefetch(tags []uint64) {
	var blocks [32]*block
	var places [32]int
	for len(tags) > 0 {
		n := min(len(tags), len(blocks))
		sum := uint64(0)
		for i, tag := range tags[:n] {
			if blocks[i] = x.shards[keyOf(tag)>>innerBits].Load(); blocks[i] != nil {
				sum += uint64(blocks[i].changes.Load())
			}
		}
		for i, tag := range tags[:n] {
			blocks[i] = x.hold(int(keyOf(tag) >> innerBits))
		}
		for i, tag := range tags[:n] {
			if blocks[i] != nil {
				places[i] = int(blocks[i].starts[keyOf(tag)>>printBits&(buckets-1)]) * entrySize
			}
		}
		for i := range n {
			if b := blocks[i]; b != nil {
				sum += uint64(b.entries[places[i]])
				if far := places[i] + 64; far < len(b.entries) { // a bucket is about 72 bytes when the table is full
					sum += uint64(b.entries[far])
				}
			}
		}
		for i := range n {
			if blocks[i] != nil {
				blocks[i].readers.Add(-1)
			}
		}
		x.prefetched.Store(sum) // otherwise the compiler would remove the reads
		tags = tags[n:]
	}
}

// Lookup calls Holders for several tags. The holders of tags[i] are in
// dst[i*row:(i+1)*row], where row is len(dst)/len(tags), and counts[i] is their number.
// len(counts) must be len(tags).
func (x *Index) Lookup(tags []uint64, dst []Node, counts []int) {
	if len(tags) == 0 {
		return
	}
	row := len(dst) / len(tags)
	for i, tag := range tags {
		counts[i] = x.Holders(tag, dst[i*row:(i+1)*row])
	}
}

// NodeSet has a bit for each Node.
type NodeSet [MaxNodes / 64]uint64

// Add adds a node to the set.
func (s *NodeSet) Add(n Node) { s[n/64] |= 1 << (n % 64) }

// Has reports whether a node is in the set.
func (s *NodeSet) Has(n Node) bool { return s[n/64]>>(n%64)&1 == 1 }

// AllHolders sets dst to all peers that are believed to have the object with this tag, however
// many there are. (Holders is cheaper, for finding a few of them.) It reads every entry of the
// key, which takes about 10 ns each. It takes no lock, never waits and allocates nothing.
func (x *Index) AllHolders(tag uint64, dst *NodeSet) {
	*dst = NodeSet{}
	key := keyOf(tag)
	b := x.hold(int(key >> innerBits))
	if b == nil {
		return
	}
	x.allHolders(b, uint32(key&(1<<innerBits-1)), dst)
	b.readers.Add(-1)
}

func (x *Index) allHolders(b *block, inner uint32, dst *NodeSet) {
	var settled NodeSet // set numbers whose newest change was seen; a NodeSet has enough bits
	take := func(number uint16) {
		if node := x.owner[number].Load(); node != 0 {
			dst.Add(Node(node - 1))
		}
	}
	if b.marked(inner) {
		keys := b.keys[:b.changes.Load()]
		for i := len(keys) - 1; i >= 0; i-- {
			number := b.nums[:cap(b.nums)][i]
			if keys[i]>>1 != inner || settled.Has(Node(number)) {
				continue
			}
			settled.Add(Node(number))
			if keys[i]&1 == 1 {
				take(number)
			}
		}
	}
	for lo, hi := b.entriesOf(inner); lo < hi; lo++ {
		if number := uint16(b.at(lo) & (numbers - 1)); !settled.Has(Node(number)) {
			take(number)
		}
	}
}

// entriesOf returns the index range of a key's entries.
func (b *block) entriesOf(inner uint32) (lo, hi int) {
	first := inner & (1<<printBits - 1) << numberBits
	bucket := inner >> printBits
	end := int(b.starts[bucket+1])
	lo = b.find(int(b.starts[bucket]), end, first)
	return lo, b.find(lo, end, first+1<<numberBits)
}

// hold returns a shard's block; nil if the shard is empty. The block is not reused before
// the caller has decremented its readers.
//
// The writer first makes another block current, and then looks for readers of the former
// block. A reader that the writer does not see increments readers only after that. So this
// reader finds that its block is no longer current, and tries again without reading it.
func (x *Index) hold(shard int) *block {
	for {
		b := x.shards[shard].Load()
		if b == nil {
			return nil
		}
		b.readers.Add(1)
		if x.shards[shard].Load() == b {
			return b
		}
		b.readers.Add(-1)
	}
}

func (x *Index) holders(b *block, inner uint32, dst []Node) int {
	var places [maxNewest]uint16
	newest := places[:0]
	if b.marked(inner) {
		newest = b.changesOf(inner, newest)
	}
	lo, end := b.entriesOf(inner)
	n := 0
	take := func(number uint16) {
		node := x.owner[number].Load()
		if node == 0 || slices.Contains(dst[:min(n, len(dst))], Node(node-1)) {
			return
		}
		if n < len(dst) {
			dst[n] = Node(node - 1)
		}
		n++
	}
	// newest begins with the newest change. A change counts if no newer one has the same
	// number.
	for i, place := range newest {
		if b.keys[:cap(b.keys)][place]&1 == 1 && !b.about(newest[:i], b.nums[:cap(b.nums)][place]) {
			take(b.nums[:cap(b.nums)][place])
		}
	}
	for i := range end - lo {
		if i >= maxLooked && n >= len(dst) {
			return n + end - lo - i
		}
		at := lo + (i+int((x.seed^uint64(inner))%uint64(end-lo)))%(end-lo)
		if number := uint16(b.at(at) & (numbers - 1)); !b.about(newest, number) {
			take(number)
		}
	}
	return n
}

// changesOf appends the positions of the newest changes of a key to found, newest first,
// up to the capacity of found.
func (b *block) changesOf(inner uint32, found []uint16) []uint16 {
	keys := b.keys[:b.changes.Load()]
	for i := len(keys) - 1; i >= 0 && len(found) < cap(found); i-- {
		if keys[i]>>1 == inner {
			found = append(found, uint16(i))
		}
	}
	return found
}

// The method about reports whether one of the changes at the given places is about this set
// number.
func (b *block) about(places []uint16, number uint16) bool {
	for _, place := range places {
		if b.nums[:cap(b.nums)][place] == number {
			return true
		}
	}
	return false
}

// FalseHits returns the expected number of peers that seem to have an absent object,
// because they have another object with the same key.
func (s Stats) FalseHits() float64 { return float64(s.Keys) / keyEnd }
