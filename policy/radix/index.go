package radix

// index finds the child of a node by its first symbol. It is a linear hash table that grows
// by one bucket for every node. The nodes of a bucket form a list through their chain
// fields.
type index struct {
	pages []*[pageSize]Node
	count uint32 // buckets
	mask  uint32 // 2^k-1 with 2^(k-1) < count <= 2^k
	held  uint32 // nodes in the index
}

func (x *index) bytes() int64 { return int64(len(x.pages)) * pageSize * 4 }

func (x *index) bucket(h uint32) *Node {
	b := h & x.mask
	if b >= x.count {
		b &= x.mask >> 1
	}
	return &x.pages[b>>nodeBits][b&(pageSize-1)]
}

func hash(parent Node, symbol uint32) uint32 {
	h := (uint64(uint32(parent))<<32 | uint64(symbol)) * 0x9e3779b97f4a7c15
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	return uint32(h >> 32)
}

func (t *Tree) lookup(parent Node, symbol uint32) Node {
	if t.index.count == 0 {
		return None
	}
	n := *t.index.bucket(hash(parent, symbol))
	for n != None {
		d := t.at(n)
		if d.parent == parent && d.first == symbol {
			return n
		}
		n = d.chain
	}
	return None
}

// reindex adds n to the index, under its parent and first symbol.
func (t *Tree) reindex(n Node) {
	if t.index.held == t.index.count {
		t.addBucket()
	}
	t.index.held++
	d := t.at(n)
	b := t.index.bucket(hash(d.parent, d.first))
	d.chain, *b = *b, n
}

// unindex removes n from the index. The node n must still have the parent and first symbol
// with which it was added.
func (t *Tree) unindex(n Node) {
	t.index.held--
	d := t.at(n)
	at := t.index.bucket(hash(d.parent, d.first))
	for *at != n {
		at = &t.at(*at).chain
	}
	*at, d.chain = d.chain, None
}

// addBucket splits one bucket in two.
func (t *Tree) addBucket() {
	x := &t.index
	b := x.count
	if b&(pageSize-1) == 0 {
		x.pages = append(x.pages, new([pageSize]Node))
	}
	if b > x.mask {
		x.mask = x.mask<<1 | 1
	}
	fresh := &x.pages[b>>nodeBits][b&(pageSize-1)]
	*fresh = None
	x.count++
	if b == 0 {
		return
	}
	from := b & (x.mask >> 1)
	at := &x.pages[from>>nodeBits][from&(pageSize-1)]
	for *at != None {
		n := *at
		d := t.at(n)
		if hash(d.parent, d.first)&x.mask != b {
			at = &d.chain
			continue
		}
		*at = d.chain
		d.chain, *fresh = *fresh, n
	}
}
