// Package radix is a compact radix tree over sequences of uint32 symbols (token
// ids, or hashes of blocks of tokens). It remembers which prefixes were seen and
// where they part; what hangs on a node (a state, a time, a value) is its
// owner's: nodes are small dense numbers, so owners keep slices of their own
// beside the tree, indexed by Node, or use the one word of Value.
//
// Siblings keep the order in which they came; a node that takes another's place
// (by a split or a merge) takes its place in that order, so that a walk in
// depth-first order is reproducible.
//
// Memory: a node takes 48 bytes and 4 of the index, an edge 64 bytes for every 15
// symbols begun; measured 116 bytes a node at 10^6 nodes with edges of up to 15
// symbols. What is freed is used again by the tree and never given back below its
// peak. Nothing is moved when the tree grows and the index grows by one bucket at
// a time, so no single call is slow.
//
// A Tree has no lock and is not safe for concurrent use.
package radix

import "fmt"

// Node names a node of one tree. Numbers are dense from 0 and used again after
// Remove and Merge.
type Node int32

// The nodes that are always there, and what stands for none.
const (
	Root Node = 0  // the empty prefix; never removed
	None Node = -1 // no node
)

const (
	nodeBits = 10
	pageSize = 1 << nodeBits
)

type node struct {
	value      uint64
	parent     Node
	chain      Node // next in the same bucket of the index; next free node
	child      Node // first child
	prev, next Node // siblings; prev of the first is the last
	kids       int32
	at         int32  // block in which the edge begins
	first      uint32 // first symbol of the edge
	end        uint32 // symbols from the root
	skip       uint8  // symbols of block at that are not the edge's
}

// Tree is a radix tree; New makes one.
type Tree struct {
	nodes []*[pageSize]node
	given int32 // nodes ever given, free ones included
	free  Node
	live  int

	edges edges
	index index
}

// New makes an empty tree.
func New() *Tree {
	t := &Tree{free: None}
	t.newNode()
	return t
}

// Path is how far a sequence follows the tree.
type Path struct {
	Node    Node // deepest node whose whole prefix begins the sequence
	End     int  // symbols up to Node
	Depth   int  // edges up to Node
	Matched int  // symbols shared with any prefix of the tree; End when the walk ended at Node
	Into    Node // the child of Node inside whose edge the walk ended; None when it ended at Node
}

// Insertion is what an insert did, or would do.
type Insertion struct {
	Path
	Leaf   Node // node of the whole sequence; None from Probe when it would be made
	Branch Node // node made by splitting the edge of Into, at Matched; None without one, and from Probe
	Splits bool // an edge is split
	Grows  int  // symbols added below Matched
}

func (t *Tree) at(n Node) *node { return &t.nodes[n>>nodeBits][n&(pageSize-1)] }

// Len is the number of nodes, the root included.
func (t *Tree) Len() int { return t.live }

// Limit is above every Node in use: the length of a slice indexed by Node.
func (t *Tree) Limit() int { return int(t.given) }

// Bytes is the memory that the tree holds.
func (t *Tree) Bytes() int64 {
	return int64(len(t.nodes))*pageSize*48 + t.edges.bytes() + t.index.bytes()
}

// Parent is None for the root.
func (t *Tree) Parent(n Node) Node { return t.at(n).parent }

// Begin is the number of symbols from the root to where the edge of n begins.
func (t *Tree) Begin(n Node) int {
	if n == Root {
		return 0
	}
	return int(t.at(t.at(n).parent).end)
}

// End is the number of symbols from the root to n.
func (t *Tree) End(n Node) int { return int(t.at(n).end) }

// Children is the number of children of n.
func (t *Tree) Children(n Node) int { return int(t.at(n).kids) }

// FirstChild is the oldest child of n, or None.
func (t *Tree) FirstChild(n Node) Node { return t.at(n).child }

// NextSibling is the child of the same parent that came after n, or None.
func (t *Tree) NextSibling(n Node) Node { return t.at(n).next }

// Value is the owner's word of n; 0 in a new node.
func (t *Tree) Value(n Node) uint64 { return t.at(n).value }

// SetValue sets the owner's word of n.
func (t *Tree) SetValue(n Node, v uint64) { t.at(n).value = v }

// Child is the child of n whose edge begins with a symbol, or None.
func (t *Tree) Child(n Node, symbol uint32) Node {
	return t.lookup(n, symbol)
}

// Common is how many symbols the edge of n shares with the front of symbols.
func (t *Tree) Common(n Node, symbols []uint32) int {
	d := t.at(n)
	return t.edges.common(d.at, int(d.skip), t.edgeLen(n), symbols)
}

// Match follows symbols from the root.
func (t *Tree) Match(symbols []uint32) Path { return t.Extend(Path{}, symbols) }

// Extend is Match of symbols of which p is the match of a front, the tree not
// having changed since: it goes on where that ended.
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

// Probe tells what Insert would do, and changes nothing.
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

// Insert adds a sequence. Its leaf is the node of the whole sequence: a new one,
// one that was there, or the branch itself when the sequence ends inside an edge.
func (t *Tree) Insert(symbols []uint32) Insertion {
	return t.InsertAt(t.Match(symbols), symbols)
}

// InsertAt is Insert with the path that Match (or Probe) found for the same
// symbols, valid for as long as the tree has not changed since.
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

// Merge removes n, which has exactly one child, and answers that child: it takes
// the place of n and its edge, and keeps its number and its value.
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

// Remove drops a leaf.
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
