package prefixcache

import "github.com/spliced-kv/spliced/policy/radix"

// tree is the radix tree of a cache with a state at every node. It counts the cached bytes.
type tree struct {
	Config
	*radix.Tree
	stats   Stats
	symbols int // rows cached
	whole   []uint32
}

func newTree(c Config) tree { return tree{Config: c, Tree: radix.New()} }

func (t *tree) Stats() Stats {
	s := t.stats
	s.Bytes, s.States = t.held(), t.states()
	return s
}

func (t *tree) states() int { return t.Len() - 1 }

func (t *tree) held() int64 { return t.bytes(t.states(), t.symbols) }

// join returns input and output in one slice, valid until the next call.
func (t *tree) join(r Request) []uint32 {
	t.whole = append(append(t.whole[:0], r.Input...), r.Output...)
	return t.whole
}

// lookup looks up a request's input and counts the request.
func (t *tree) lookup(input []uint32) (radix.Path, Hit) {
	p := t.Match(input)
	return p, t.stats.serve(t.Config, len(input), p.End, p.Depth)
}

// keep inserts a sequence and counts its bytes.
func (t *tree) keep(p radix.Path, sequence []uint32) radix.Insertion {
	in := t.InsertAt(p, sequence)
	t.symbols += in.Grows
	t.stats.Steps += int64(p.Depth)
	t.stats.PeakBytes = max(t.stats.PeakBytes, t.held())
	return in
}

// drop evicts a node with at most one child. It returns the child, which takes over the node's
// edge, or None.
func (t *tree) drop(n radix.Node) radix.Node {
	t.stats.Evictions++
	if t.Children(n) == 1 {
		return t.Merge(n)
	}
	t.symbols -= t.End(n) - t.Begin(n)
	t.Remove(n)
	return radix.None
}

// edgeBytes returns the bytes freed by a node's eviction: its state, and for a leaf the
// rows of its edge.
func (t *tree) edgeBytes(n radix.Node) int64 {
	if t.Children(n) > 0 {
		return t.bytes(1, 0)
	}
	return t.bytes(1, t.End(n)-t.Begin(n))
}

// after returns the node that follows n in depth-first order; None at the end.
func (t *tree) after(n radix.Node) radix.Node {
	if c := t.FirstChild(n); c != radix.None {
		return c
	}
	for n != radix.None {
		if s := t.NextSibling(n); s != radix.None {
			return s
		}
		n = t.Parent(n)
	}
	return radix.None
}

// grown returns s, long enough for node n.
func grown[T any](s []T, n radix.Node) []T {
	if int(n) < len(s) {
		return s
	}
	return append(s, make([]T, int(n)+1-len(s))...)
}
