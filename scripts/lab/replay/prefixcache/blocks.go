package prefixcache

import "slices"

// BlockOptions sets the granularity of a block cache.
type BlockOptions struct {
	Symbols int // symbols per block; 0 = 32
	States  int // states per block, if a symbol stands for several blocks of tokens; 0 = 1
}

// Blocks is vLLM's prefix cache with a state for every block: vLLM+ in Marconi's evaluation,
// with the rules of Marconi's simulator. It is a tree of blocks. The last block of a sequence
// may be short; a longer sequence fills it up. Blocks evicts the least recently used block
// without children.
//
// As in the simulator, the estimate of the space for an insert is one block too low, so the
// cached bytes may exceed the capacity.
type Blocks struct {
	Config
	options BlockOptions
	stats   Stats
	nodes   []blockNode // nodes[0] is the root
	free    []int32
	full    map[blockKey]int32
	symbols int
	path    []int32 // of the continuing walk
	whole   []uint32
}

// blockNode is a block. All blocks are in a ring through the root, in order of their last use.
// Of blocks with the same last use, the deepest comes first.
//
// Invariant: a block's children come before it in the ring, so the first block is a leaf.
type blockNode struct {
	symbols      []uint32
	parent       int32
	child, last  int32 // 0 = none
	prev, next   int32 // siblings, 0 = none
	older, newer int32 // in the ring
	partial      int32 // children that are short
}

// blockKey identifies a full block below its parent. Two blocks may have the same key, so
// symbols are compared. The map has only the older of two such blocks; the younger is found by
// walking the siblings.
type blockKey struct {
	parent int32
	hash   uint64
}

// NewBlocks returns an empty cache.
func NewBlocks(c Config, o BlockOptions) *Blocks {
	if o.Symbols == 0 {
		o.Symbols = 32
	}
	o.States = max(o.States, 1)
	return &Blocks{Config: c, options: o, nodes: make([]blockNode, 1), full: map[blockKey]int32{}}
}

// Stats implements Cache.
func (b *Blocks) Stats() Stats {
	s := b.stats
	s.Bytes, s.States = b.held(), b.states()
	return s
}

func (b *Blocks) states() int { return (len(b.nodes) - len(b.free) - 1) * b.options.States }

func (b *Blocks) held() int64 { return b.bytes(b.states(), b.symbols) }

// Serve looks up a request's input, then caches its input and output.
func (b *Blocks) Serve(r Request) Hit {
	hit, blocks := b.match(r.Input)
	h := b.stats.serve(b.Config, len(r.Input), hit, blocks)
	b.whole = append(append(b.whole[:0], r.Input...), r.Output...)
	b.insert(b.whole)
	return h
}

// match returns the number of cached symbols and of the blocks that hold them. If several short
// blocks match, it uses the oldest, not the longest.
func (b *Blocks) match(symbols []uint32) (hit, blocks int) {
	n, size := int32(0), b.options.Symbols
	for len(symbols) >= size {
		c := b.fullChild(n, symbols[:size])
		if c == 0 {
			break
		}
		b.path = append(b.path, c)
		n, symbols = c, symbols[size:]
		hit, blocks = hit+size, blocks+1
	}
	b.use()
	if b.nodes[n].partial > 0 {
		for c := b.nodes[n].child; c != 0; c = b.nodes[c].next {
			if held := b.nodes[c].symbols; len(held) < size && hasFront(symbols, held) {
				return hit + len(held), blocks + 1
			}
		}
	}
	return hit, blocks
}

func (b *Blocks) insert(symbols []uint32) {
	_, blocks := b.match(symbols)
	size := b.options.Symbols
	extra := len(symbols) - size*(blocks+1)
	need := float64(extra)/float64(size)*float64(b.options.States)*float64(b.Shape.CheckpointBytes()) +
		float64(extra*b.symbolTokens())*float64(b.Shape.KVBytes)
	if over := float64(b.held()) + need - float64(b.CapacityBytes); over > 0 {
		b.evict(over)
	}
	b.add(symbols)
	b.stats.PeakBytes = max(b.stats.PeakBytes, b.held())
}

func (b *Blocks) add(symbols []uint32) {
	n, size := int32(0), b.options.Symbols
	for len(symbols) > 0 {
		take := min(size, len(symbols))
		if c := b.extended(n, symbols); c != 0 {
			n, take = c, len(b.nodes[c].symbols)
			b.path = append(b.path, c)
			b.stats.Steps++
		} else if n == 0 || len(b.nodes[n].symbols) == size {
			n = b.newBlock(n, symbols[:take])
			b.path = append(b.path, n)
		} else {
			take = min(size-len(b.nodes[n].symbols), len(symbols))
			b.fill(n, symbols[:take])
		}
		symbols = symbols[take:]
	}
	b.use()
}

// use makes the blocks of the path the most recent ones, children before their parents.
func (b *Blocks) use() {
	for i := len(b.path) - 1; i >= 0; i-- {
		n := b.path[i]
		b.leave(n)
		root := &b.nodes[0]
		b.nodes[n].older, b.nodes[n].newer = root.older, 0
		b.nodes[root.older].newer = n
		root.older = n
	}
	b.path = b.path[:0]
}

// leave removes a block from the ring.
func (b *Blocks) leave(n int32) {
	d := &b.nodes[n]
	b.nodes[d.older].newer = d.newer
	b.nodes[d.newer].older = d.older
}

// extended returns the child of block n that a sequence extends: all symbols of the child are a
// prefix of symbols. It returns 0 if there is no such child, or if another child shares a longer
// prefix.
func (b *Blocks) extended(n int32, symbols []uint32) int32 {
	size := b.options.Symbols
	if len(symbols) >= size {
		if c := b.fullChild(n, symbols[:size]); c != 0 {
			return c
		}
	}
	if b.nodes[n].partial == 0 {
		return 0
	}
	best, most := int32(0), 0
	for c := b.nodes[n].child; c != 0; c = b.nodes[c].next {
		held := b.nodes[c].symbols
		shared := commonFront(held, symbols)
		switch {
		case shared > most && shared == len(held):
			best, most = c, shared
		case shared > most:
			best, most = 0, shared
		case shared == most && shared == len(held) && shared > 0:
			best = c
		}
	}
	return best
}

func (b *Blocks) newBlock(parent int32, symbols []uint32) int32 {
	var n int32
	if len(b.free) > 0 {
		n, b.free = b.free[len(b.free)-1], b.free[:len(b.free)-1]
	} else {
		n = int32(len(b.nodes))
		b.nodes = append(b.nodes, blockNode{})
	}
	d := &b.nodes[n]
	*d = blockNode{symbols: append(d.symbols[:0], symbols...), parent: parent, older: n, newer: n}
	b.symbols += len(symbols)
	b.link(n)
	return n
}

// fill appends symbols to a short block. The block then becomes the youngest of its siblings.
func (b *Blocks) fill(n int32, symbols []uint32) {
	b.unlink(n)
	d := &b.nodes[n]
	d.symbols = append(d.symbols, symbols...)
	b.symbols += len(symbols)
	b.link(n)
}

// link makes a block the youngest child of its parent.
func (b *Blocks) link(n int32) {
	d := &b.nodes[n]
	p := &b.nodes[d.parent]
	d.prev, d.next = p.last, 0
	if p.last != 0 {
		b.nodes[p.last].next = n
	} else {
		p.child = n
	}
	p.last = n
	if len(d.symbols) < b.options.Symbols {
		p.partial++
		return
	}
	if key := b.key(d.parent, d.symbols); b.full[key] == 0 {
		b.full[key] = n
	}
}

func (b *Blocks) unlink(n int32) {
	d := &b.nodes[n]
	p := &b.nodes[d.parent]
	if d.prev != 0 {
		b.nodes[d.prev].next = d.next
	} else {
		p.child = d.next
	}
	if d.next != 0 {
		b.nodes[d.next].prev = d.prev
	} else {
		p.last = d.prev
	}
	if len(d.symbols) < b.options.Symbols {
		p.partial--
		return
	}
	if key := b.key(d.parent, d.symbols); b.full[key] == n {
		delete(b.full, key)
	}
}

func (b *Blocks) key(parent int32, symbols []uint32) blockKey {
	return blockKey{parent, running(0, symbols)}
}

func (b *Blocks) fullChild(n int32, symbols []uint32) int32 {
	c := b.full[b.key(n, symbols)]
	if c == 0 || slices.Equal(b.nodes[c].symbols, symbols) {
		return c
	}
	for c = b.nodes[n].child; c != 0 && !slices.Equal(b.nodes[c].symbols, symbols); {
		c = b.nodes[c].next
	}
	return c
}

func (b *Blocks) evict(bytes float64) {
	for bytes > 0 && b.nodes[0].newer != 0 {
		n := b.nodes[0].newer
		d := &b.nodes[n]
		bytes -= float64(b.bytes(b.options.States, len(d.symbols)))
		b.symbols -= len(d.symbols)
		b.leave(n)
		b.unlink(n)
		b.free = append(b.free, n)
		b.stats.Evictions++
	}
}

func commonFront(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func hasFront(symbols, front []uint32) bool { return commonFront(symbols, front) == len(front) }
