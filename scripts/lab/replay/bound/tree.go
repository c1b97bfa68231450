package bound

// tree is a radix tree of all sequences that records when each edge was last passed.
// Nothing is ever removed.
type tree struct {
	nodes []node
	child map[branch]int32
}

type node struct {
	edge []uint32
	pass int32 // the last request along the whole edge
}

type branch struct {
	node   int32
	symbol uint32
}

func newTree() tree { return tree{nodes: make([]node, 1), child: map[branch]int32{}} }

// pass follows a sequence through the tree, and calls tell for each run of its symbols that
// earlier sequences had, in order. since is the last request that had the run, and symbols the
// length of the run. end means that the run ends at a node of the tree.
func (t *tree) pass(symbols []uint32, tell func(since int32, symbols int, end bool)) {
	at := int32(0)
	for len(symbols) > 0 {
		next, ok := t.child[branch{at, symbols[0]}]
		if !ok {
			return
		}
		edge := t.nodes[next].edge
		n := common(edge, symbols)
		tell(t.nodes[next].pass, n, n == len(edge))
		if n < len(edge) {
			return
		}
		at, symbols = next, symbols[n:]
	}
}

// insert adds the sequence that consists of input and output to the tree. The parameter now is
// the number of the request; insert records it at each edge that the sequence passes.
func (t *tree) insert(input, output []uint32, now int32) {
	symbols := input
	if len(output) > 0 {
		symbols = append(append(make([]uint32, 0, len(input)+len(output)), input...), output...)
	}
	at := int32(0)
	for len(symbols) > 0 {
		key := branch{at, symbols[0]}
		next, ok := t.child[key]
		if !ok {
			t.child[key] = t.add(node{symbols, now})
			return
		}
		if n := common(t.nodes[next].edge, symbols); n < len(t.nodes[next].edge) {
			next = t.split(key, next, n)
		}
		t.nodes[next].pass = now
		at, symbols = next, symbols[len(t.nodes[next].edge):]
	}
}

func (t *tree) add(n node) int32 {
	t.nodes = append(t.nodes, n)
	return int32(len(t.nodes) - 1)
}

// split inserts a node after n symbols of an edge.
func (t *tree) split(key branch, below int32, n int) int32 {
	old := t.nodes[below]
	above := t.add(node{old.edge[:n], old.pass})
	t.child[key] = above
	t.nodes[below].edge = old.edge[n:]
	t.child[branch{above, old.edge[n]}] = below
	return above
}

func common(a, b []uint32) int {
	n := min(len(a), len(b))
	for i, x := range a[:n] {
		if x != b[i] {
			return i
		}
	}
	return n
}
