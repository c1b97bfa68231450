package slab

// span is a run of granules of one slab.
type span struct {
	slab     uint32
	off, len int64 // in granules
}

func (s span) end() int64 { return s.off + s.len }

// byPlace orders spans by position. The spans of a tree never overlap, so their lengths
// do not matter.
func byPlace(a, b span) bool {
	if a.slab != b.slab {
		return a.slab < b.slab
	}
	return a.off < b.off
}

// byLength orders spans by length, and spans of equal length by position.
func byLength(a, b span) bool {
	if a.len != b.len {
		return a.len < b.len
	}
	return byPlace(a, b)
}

// tree is an ordered set of spans. It is a treap: its depth is logarithmic for any order
// of changes, and removing a span is as simple as inserting one. Links between nodes are
// indexes into one slice, not pointers, because a full disk tier may have millions of
// nodes and the garbage collector would scan all pointers.
type tree struct {
	less  func(a, b span) bool
	nodes []node // nodes[0] is the nil node
	root  uint32
	spare uint32 // first of the unused nodes, linked by left; 0 = none
	count int
	seed  uint32
}

type node struct {
	span
	left, right uint32
	priority    uint32 // Invariant: at least the priority of each child
}

func newTree(less func(a, b span) bool) *tree {
	return &tree{less: less, nodes: make([]node, 1), seed: 2463534242}
}

// insert adds a span that is not in the tree.
func (t *tree) insert(s span) {
	n := t.make(s)
	below, above := t.split(t.root, s)
	t.root = t.merge(t.merge(below, n), above)
	t.count++
}

// remove removes a span; false if it is not in the tree.
func (t *tree) remove(s span) bool {
	at := &t.root
	for *at != 0 {
		n := *at
		switch e := &t.nodes[n]; {
		case t.less(s, e.span):
			at = &e.left
		case t.less(e.span, s):
			at = &e.right
		default:
			*at = t.merge(e.left, e.right)
			t.nodes[n] = node{left: t.spare}
			t.spare = n
			t.count--
			return true
		}
	}
	return false
}

// ceiling returns the least span not below s.
func (t *tree) ceiling(s span) (found span, ok bool) {
	for n := t.root; n != 0; {
		e := &t.nodes[n]
		if t.less(e.span, s) {
			n = e.right
		} else {
			found, ok = e.span, true
			n = e.left
		}
	}
	return found, ok
}

// below returns the greatest span below s.
func (t *tree) below(s span) (found span, ok bool) {
	for n := t.root; n != 0; {
		e := &t.nodes[n]
		if t.less(e.span, s) {
			found, ok = e.span, true
			n = e.right
		} else {
			n = e.left
		}
	}
	return found, ok
}

// last returns the greatest span.
func (t *tree) last() (found span, ok bool) {
	for n := t.root; n != 0; n = t.nodes[n].right {
		found, ok = t.nodes[n].span, true
	}
	return found, ok
}

func (t *tree) make(s span) uint32 {
	// xorshift32 is random enough for priorities.
	t.seed ^= t.seed << 13
	t.seed ^= t.seed >> 17
	t.seed ^= t.seed << 5
	n := t.spare
	if n == 0 {
		n = uint32(len(t.nodes))
		t.nodes = append(t.nodes, node{})
	} else {
		t.spare = t.nodes[n].left
	}
	t.nodes[n] = node{span: s, priority: t.seed}
	return n
}

// split divides the subtree n into the spans below s and the remaining spans.
func (t *tree) split(n uint32, s span) (below, above uint32) {
	if n == 0 {
		return 0, 0
	}
	e := &t.nodes[n]
	if t.less(e.span, s) {
		e.right, above = t.split(e.right, s)
		return n, above
	}
	below, e.left = t.split(e.left, s)
	return below, n
}

// merge joins two subtrees; all of a is below all of b.
func (t *tree) merge(a, b uint32) uint32 {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	case t.nodes[a].priority > t.nodes[b].priority:
		t.nodes[a].right = t.merge(t.nodes[a].right, b)
		return a
	default:
		t.nodes[b].left = t.merge(a, t.nodes[b].left)
		return b
	}
}
