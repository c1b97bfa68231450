package advise

import "github.com/spliced-kv/spliced/policy/radix"

// tree holds the recorded prompts, within bounds (room.go). Guarded by the advisor's lock.
//
// Invariant: the size of the tree does not exceed the field most, and the field owned counts
// each node for its tenant.
type tree struct {
	*radix.Tree
	most    room
	hand    radix.Node // the next node that drop examines
	tokens  int64      // symbols on all edges
	owned   []owned    // by owner
	steps   uint64     // steps from node to node so far
	dropped uint64     // nodes dropped so far
}

func newTree(nodes int, bytes int64, owners int) *tree {
	return &tree{Tree: radix.New(), most: room{nodes, bytes}, owned: make([]owned, owners)}
}

// seen is the value that the tree has for a node.
//
//	 0      32     35     38     39      64
//	+-------+------+------+------+-------+
//	| count | heat | mark | came | owner |
//	+-------+------+------+------+-------+
//
// count is the number of recorded prompts that begin with the node's prefix. heat is the
// number of visits by drop that the node survives. mark is the origin of the checkpoint that
// was considered at the node (0 = none). came says whether a later prompt reached that
// checkpoint. owner is the index of the tenant.
type seen uint64

const (
	heatShift  = 32
	heatMost   = 7
	markShift  = 35
	cameBit    = seen(1) << 38
	ownerShift = 39
)

func (v seen) count() uint32 { return uint32(v) }
func (v seen) heat() uint64  { return uint64(v) >> heatShift & heatMost }
func (v seen) owner() int    { return int(v >> ownerShift) }
func (v seen) mark() origin  { return origin(v >> markShift & 7) }

func (v seen) passed() seen {
	if v.count() != 1<<32-1 {
		v++
	}
	if v.heat() < heatMost {
		v += 1 << heatShift
	}
	return v
}

func (v seen) marked(c origin) seen { return v&^(7<<markShift|cameBit) | seen(c)<<markShift }

// unmarked returns the value of a new node that splits the edge to a node with value v.
func (v seen) unmarked() seen { return v.marked(originNone) }

func (t *tree) value(n radix.Node) seen       { return seen(t.Value(n)) }
func (t *tree) setValue(n radix.Node, v seen) { t.SetValue(n, uint64(v)) }
func (t *tree) depth(n radix.Node) int        { return t.End(n) - 1 } // in tokens, without the scope's symbol

// up returns the parent of n and counts the step.
func (t *tree) up(n radix.Node) radix.Node {
	t.steps++
	return t.Parent(n)
}

// promptMost is the maximum number of tokens of a recorded prompt, and pathMost is the
// maximum number of nodes on its path. matchSymbols is the number of symbols matched between
// two checks of these bounds. Together they bound every walk along a prompt to a few
// milliseconds, whatever the shape of the tree. A conversation adds a few nodes per turn.
const (
	promptMost   = 1 << 20
	pathMost     = 1 << 12
	matchSymbols = 1 << 10
)

// match follows a prompt from the root. The result whole is true if match reached the end of
// the prompt or the place where the prompt leaves the tree. If whole is false, the prompt
// exceeds a bound, and the tokens after the bound count as new.
func (t *tree) match(symbols []uint32) (p radix.Path, whole bool) {
	p = radix.Path{Into: radix.None}
	for n := 0; n < len(symbols); {
		if p.Depth >= pathMost || n >= promptMost {
			return p, false
		}
		n += matchSymbols
		if p.Into != radix.None {
			n = t.End(p.Into) // the edge is compared a second time, never more often
		}
		n = min(n, len(symbols), promptMost)
		before := p.Depth
		p = t.Extend(p, symbols[:n])
		t.steps += uint64(p.Depth - before + 1)
		if p.Matched < n {
			break
		}
	}
	return p, true
}

// list sets w.steps to the nodes of the path that are deeper than the depth base, deepest
// first.
func (t *tree) list(w *work, base int) {
	p := &w.path
	w.steps = w.steps[:0]
	leaves := p.Matched < len(w.symbols) // the prompt continues beyond the tree
	if p.Into != radix.None {
		w.steps = append(w.steps, step{p.Matched - 1, t.value(p.Into).count(), leaves})
	}
	for n := p.Node; n != radix.Root && t.depth(n) > base; n = t.up(n) {
		kids := t.Children(n)
		if n == p.Node && p.Into == radix.None && leaves {
			kids++
		}
		w.steps = append(w.steps, step{t.depth(n), t.value(n).count(), kids > 1})
	}
}

// record adds a prompt and its candidate positions to the tree. It does not count the prompt
// at nodes up to the depth own, where an earlier query of the same request has counted it.
func (t *tree) record(sc *scope, w *work, own int) {
	t.returned(sc, w.path, own)
	nodes := t.Len()
	in := t.InsertAt(w.path, w.symbols)
	t.tokens += int64(in.Grows)
	if in.Grows > 0 {
		t.setValue(in.Leaf, seen(sc.owner)<<ownerShift)
	}
	if in.Branch != radix.None {
		t.setValue(in.Branch, t.value(w.path.Into).unmarked())
	}
	t.mark(sc, in.Leaf, w)
	t.owned[sc.owner].add(t.Len()-nodes, int64(in.Grows))
	for n := in.Leaf; n != radix.Root && t.depth(n) > own; n = t.up(n) {
		t.setValue(n, t.value(n).passed())
	}
}

// returned counts a reuse of the deepest marked checkpoint on the path of a prompt, once
// per checkpoint. Only that checkpoint would have served the prompt.
func (t *tree) returned(sc *scope, p radix.Path, own int) {
	for n := p.Node; n != radix.Root && t.depth(n) > own; n = t.up(n) {
		v := t.value(n)
		if v.mark() == originNone {
			continue
		}
		if v&cameBit == 0 {
			sc.returns[v.mark()].came()
			t.setValue(n, v|cameBit)
		}
		return
	}
}

// mark makes sure that each candidate position has a node above the node leaf, and sets the
// node's origin. It goes from the root down, since splitting an edge takes time proportional
// to the length of the part before the split.
func (t *tree) mark(sc *scope, leaf radix.Node, w *work) {
	if len(w.marks) == 0 {
		return
	}
	w.nodes = w.nodes[:0]
	for n := leaf; n != radix.Root && t.End(n) > w.marks[0].at; n = t.up(n) {
		w.nodes = append(w.nodes, n)
	}
	next := len(w.nodes) - 1
	for i := range w.marks {
		end := w.marks[i].at + 1
		for t.End(w.nodes[next]) < end {
			next--
		}
		n := w.nodes[next]
		if up := t.Parent(n); t.End(n) > end {
			v := t.value(n).unmarked()
			n = t.InsertAt(radix.Path{Node: up, End: t.End(up), Matched: end, Into: n}, w.symbols[:end]).Branch
			t.setValue(n, v)
		}
		if v := t.value(n); v.mark() == originNone {
			t.setValue(n, v.marked(w.marks[i].origin))
			sc.returns[w.marks[i].origin].advised()
		}
	}
}
