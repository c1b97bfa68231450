package radix

// newNode returns a node without parent, child or edge.
func (t *Tree) newNode() Node {
	n := t.free
	if n != None {
		t.free = t.at(n).chain
	} else {
		n = Node(t.given)
		if int(n)>>nodeBits == len(t.nodes) {
			t.nodes = append(t.nodes, new([pageSize]node))
		}
		t.given++
	}
	*t.at(n) = node{parent: None, chain: None, child: None, prev: None, next: None, at: noBlock}
	t.live++
	return n
}

func (t *Tree) freeNode(n Node) {
	*t.at(n) = node{parent: None, chain: t.free, child: None, prev: None, next: None, at: noBlock}
	t.free = n
	t.live--
}

// grow adds a leaf, the youngest child of parent.
func (t *Tree) grow(parent Node, symbols []uint32) Node {
	n := t.newNode()
	d, p := t.at(n), t.at(parent)
	d.parent, d.first = parent, symbols[0]
	d.end = p.end + uint32(len(symbols))
	d.at = t.edges.store(0, symbols)
	p.kids++
	if p.child == None {
		p.child, d.prev = n, n
	} else {
		first := t.at(p.child)
		last := first.prev
		t.at(last).next, d.prev, first.prev = n, last, n
	}
	t.reindex(n)
	return n
}

// split inserts a new node into the edge of c, after the first k symbols of the edge, and
// returns the new node.
func (t *Tree) split(c Node, k int) Node {
	u := t.newNode()
	d, up := t.at(c), t.at(u)
	t.unindex(c)
	up.parent, up.first = d.parent, d.first
	up.end = t.at(d.parent).end + uint32(k)
	up.at, up.skip = d.at, d.skip
	t.replaceSibling(c, u)
	d.at, d.skip = t.edges.cut(edge{d.at, int(d.skip), int(d.end - t.at(d.parent).end)}, k)
	d.first = t.edges.symbol(d.at, int(d.skip))
	d.parent, d.prev, d.next = u, c, None
	up.child, up.kids = c, 1
	t.reindex(u)
	t.reindex(c)
	return u
}

// replaceSibling puts the node n in the place of the node old among the siblings. The links
// of the node old are unchanged.
func (t *Tree) replaceSibling(old, n Node) {
	o, d := t.at(old), t.at(n)
	p := t.at(o.parent)
	d.prev, d.next = o.prev, o.next
	if o.prev == old { // an only child
		d.prev = n
	} else if p.child != old {
		t.at(o.prev).next = n
	}
	switch {
	case o.next != None:
		t.at(o.next).prev = n
	case p.child != old: // old was the last child; prev of the first child links to the last
		t.at(p.child).prev = n
	}
	if p.child == old {
		p.child = n
	}
}

// unlink removes n from the list of its siblings.
func (t *Tree) unlink(n Node) {
	d := t.at(n)
	p := t.at(d.parent)
	p.kids--
	switch {
	case d.prev == n: // an only child
		p.child = None
		return
	case p.child == n:
		p.child = d.next
	default:
		t.at(d.prev).next = d.next
	}
	if d.next != None {
		t.at(d.next).prev = d.prev
	} else {
		t.at(p.child).prev = d.prev
	}
}
