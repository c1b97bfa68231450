// Package radix is a compact radix tree over sequences of uint32 symbols (token
// ids, or hashes of blocks of tokens). It remembers which prefixes were seen
// and where they branch. Nodes are small dense numbers, so owners keep their
// data (a state, a time, a value) in slices indexed by Node, or in the one word
// of Value.
//
// Siblings keep their order of insertion. A node that replaces another (by a
// split or a merge) takes its place in that order, so that a depth-first walk
// is reproducible.
//
// Memory: a node takes 48 bytes, and 4 bytes of the index. An edge takes 64 bytes for every
// 15 symbols or fewer. At 10^6 nodes with edges of up to 15 symbols, 116 bytes per node
// were measured. The tree reuses freed memory and never shrinks. When it grows, it moves
// nothing, and the index grows by one bucket at a time, so no single call is slow.
//
// A Tree has no lock and is not safe for concurrent use.
package radix

import "fmt"

// Node is a node of one tree. Numbers are dense from 0 and reused after Remove
// and Merge.
type Node int32

// The fixed nodes.
const (
	Root Node = 0  // the empty prefix; never removed
	None Node = -1 // no node
)

const (
	nodeBits = 10
	pageSize = 1 << nodeBits
)

// node is 48 bytes long.
type node struct {
	value      uint64
	parent     Node
	chain      Node // next node in the same bucket of the index, or the next free node
	child      Node // first child
	prev, next Node // siblings; prev of the first child is the last child
	kids       int32
	at         int32  // first block of the edge
	first      uint32 // first symbol of the edge
	end        uint32 // number of symbols from the root
	skip       uint8  // symbols before the edge in its first block
}

// Tree is a radix tree; New makes one.
type Tree struct {
	nodes []*[pageSize]node
	given int32 // nodes ever allocated, free ones included
	free  Node  // first free node, None = there is none
	live  int

	edges edges
	index index
}

// New returns an empty tree.
func New() *Tree {
	t := &Tree{free: None}
	t.newNode()
	return t
}

// Path is the result of matching a sequence against the tree.
type Path struct {
	Node    Node // deepest node whose symbols, from the root, are a prefix of the sequence
	End     int  // symbols from the root to Node
	Depth   int  // edges from the root to Node
	Matched int  // length of the longest prefix of the sequence that is in the tree; End if the walk ended at Node
	Into    Node // the child of Node in whose edge the walk ended; None if it ended at Node
}

// Insertion is the result of an insert, or the result that Probe predicts.
type Insertion struct {
	Path
	Leaf   Node // node of the whole sequence; None if Probe found no such node
	Branch Node // node made by splitting the edge of Into, at Matched; None without a split, and always from Probe
	Splits bool // the insert splits an edge
	Grows  int  // symbols added below Matched
}

func (t *Tree) at(n Node) *node { return &t.nodes[n>>nodeBits][n&(pageSize-1)] }

// Len returns the number of nodes, including the root.
func (t *Tree) Len() int { return t.live }

// Limit returns a number above every Node in use: the length of a slice indexed
// by Node.
func (t *Tree) Limit() int { return int(t.given) }

// Bytes returns the memory of the tree in bytes.
func (t *Tree) Bytes() int64 {
	return int64(len(t.nodes))*pageSize*48 + t.edges.bytes() + t.index.bytes()
}

// Parent returns the parent of n, None for the root.
func (t *Tree) Parent(n Node) Node { return t.at(n).parent }

// Begin returns the number of symbols from the root to the start of the edge of
// n.
func (t *Tree) Begin(n Node) int {
	if n == Root {
		return 0
	}
	return int(t.at(t.at(n).parent).end)
}

// End returns the number of symbols from the root to n.
func (t *Tree) End(n Node) int { return int(t.at(n).end) }

// Children returns the number of children of n.
func (t *Tree) Children(n Node) int { return int(t.at(n).kids) }

// FirstChild returns the oldest child of n, or None.
func (t *Tree) FirstChild(n Node) Node { return t.at(n).child }

// NextSibling returns the next younger child of the same parent, or None.
func (t *Tree) NextSibling(n Node) Node { return t.at(n).next }

// Value returns the owner's word of n; 0 for a new node.
func (t *Tree) Value(n Node) uint64 { return t.at(n).value }

// SetValue sets the owner's word of n.
func (t *Tree) SetValue(n Node, v uint64) { t.at(n).value = v }

// Child returns the child of n whose edge starts with a symbol, or None.
func (t *Tree) Child(n Node, symbol uint32) Node {
	return t.lookup(n, symbol)
}

// Common returns the number of symbols that the edge of n shares with the start
// of symbols.
func (t *Tree) Common(n Node, symbols []uint32) int {
	d := t.at(n)
	return t.edges.common(d.at, int(d.skip), t.edgeLen(n), symbols)
}

// Match follows symbols from the root.
func (t *Tree) Match(symbols []uint32) Path { return t.Extend(Path{}, symbols) }

// Extend returns the same Path as Match for symbols. p must be the match of a prefix of
// symbols in the unchanged tree; Extend continues from p.
func (t *Tree) Extend(p Path, symbols []uint32) Path {
	p.Into = None
	for p.End < len(symbols) {
		c := t.lookup(p.Node, symbols[p.End])
		if c == None {
			break
		}
		d := t.at(c)
		length := int(d.end) - p.End
		m := t.edges.common(d.at, int(d.skip), length, symbols[p.End:])
		if m < length {
			p.Into, p.Matched = c, p.End+m
			return p
		}
		p.Node, p.End = c, int(d.end)
		p.Depth++
	}
	p.Matched = p.End
	return p
}

// Probe returns what Insert would do, and does not change the tree.
func (t *Tree) Probe(symbols []uint32) Insertion {
	in := plan(t.Match(symbols), symbols)
	if !in.Splits && in.Grows == 0 {
		in.Leaf = in.Node
	}
	return in
}

func plan(p Path, symbols []uint32) Insertion {
	return Insertion{Path: p, Leaf: None, Branch: None, Splits: p.Into != None, Grows: len(symbols) - p.Matched}
}

// Insert adds a sequence. The Leaf in the result is the node of the whole sequence: a new
// one, an existing one, or the branch if the sequence ends inside an edge.
func (t *Tree) Insert(symbols []uint32) Insertion {
	return t.InsertAt(t.Match(symbols), symbols)
}

// InsertAt does Insert with the path that Match (or Probe) returned for the
// same symbols in the unchanged tree.
func (t *Tree) InsertAt(p Path, symbols []uint32) Insertion {
	in := plan(p, symbols)
	in.Leaf = p.Node
	if in.Splits {
		in.Branch = t.split(p.Into, p.Matched-p.End)
		in.Leaf = in.Branch
	}
	if in.Grows > 0 {
		in.Leaf = t.grow(in.Leaf, symbols[p.Matched:])
	}
	return in
}

// Merge removes n, which must have exactly one child, and returns that child.
// The child takes the place and the edge of n, and keeps its number and value.
func (t *Tree) Merge(n Node) Node {
	d := t.at(n)
	if n == Root || d.kids != 1 {
		panic(fmt.Sprintf("radix: merge of node %d with %d children", n, d.kids))
	}
	child := d.child
	c := t.at(child)
	t.unindex(n)
	t.unindex(child)
	c.at, c.skip = t.edges.join(
		edge{d.at, int(d.skip), t.edgeLen(n)},
		edge{c.at, int(c.skip), int(c.end - d.end)})
	c.parent, c.first = d.parent, d.first
	t.replaceSibling(n, child)
	t.reindex(child)
	t.freeNode(n)
	return child
}

// Remove removes a leaf.
func (t *Tree) Remove(n Node) {
	d := t.at(n)
	if n == Root || d.kids != 0 {
		panic(fmt.Sprintf("radix: removal of node %d with %d children", n, d.kids))
	}
	t.unindex(n)
	t.unlink(n)
	t.edges.release(edge{d.at, int(d.skip), t.edgeLen(n)})
	t.freeNode(n)
}

// AppendPrefix appends the symbols from the root to n.
func (t *Tree) AppendPrefix(to []uint32, n Node) []uint32 {
	begin := len(to)
	to = append(to, make([]uint32, t.End(n))...)
	for ; n != Root; n = t.Parent(n) {
		d := t.at(n)
		t.edges.read(edge{d.at, int(d.skip), t.edgeLen(n)}, to[begin+t.Begin(n):])
	}
	return to
}

// AppendEdge appends the symbols from the parent of n to n.
func (t *Tree) AppendEdge(to []uint32, n Node) []uint32 {
	if n == Root {
		return to
	}
	begin, length := len(to), t.edgeLen(n)
	to = append(to, make([]uint32, length)...)
	d := t.at(n)
	t.edges.read(edge{d.at, int(d.skip), length}, to[begin:])
	return to
}

func (t *Tree) edgeLen(n Node) int { return t.End(n) - t.Begin(n) }
