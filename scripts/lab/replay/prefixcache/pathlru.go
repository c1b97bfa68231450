package prefixcache

import (
	"container/heap"

	"github.com/spliced-kv/spliced/policy/radix"
)

// PathLRU is SGLang's policy with states at branches and ends (SGLang+, the simulator's V1). A
// lookup counts as a use of every node on its path, and the least recently used leaf is evicted.
type PathLRU struct{ released }

// NewPathLRU returns an empty cache.
func NewPathLRU(c Config) *PathLRU {
	return &PathLRU{released{tree: newTree(c), used: make([]uint64, 1)}}
}

// Serve looks up a request's input, then caches its input and output.
func (c *PathLRU) Serve(r Request) Hit { return c.serve(c, c.join(r), len(r.Input)) }

func (c *PathLRU) follow(p radix.Path, _ []uint32) radix.Path { return p }

func (c *PathLRU) next([]uint32, int) {}

// touch records a use of all nodes on the path and, if the path ends inside an edge, of the node
// at the end of that edge.
func (c *PathLRU) touch(p radix.Path) {
	if p.Into != radix.None {
		c.used[p.Into] = c.clock
	}
	c.touchUp(p.Node)
}

func (c *PathLRU) touchInsert(in radix.Insertion) { c.touchUp(in.Leaf) }

func (c *PathLRU) touchUp(n radix.Node) {
	for ; n != radix.None; n = c.Parent(n) {
		c.used[n] = c.clock
	}
}

func (c *PathLRU) evict(bytes int64) {
	leaves := oldest{used: c.used}
	for n := c.after(radix.Root); n != radix.None; n = c.after(n) {
		if c.Children(n) == 0 {
			leaves.nodes = append(leaves.nodes, n)
		}
	}
	heap.Init(&leaves)
	for bytes > 0 && leaves.Len() > 0 {
		n := heap.Pop(&leaves).(radix.Node)
		parent := c.Parent(n)
		bytes -= c.edgeBytes(n)
		c.drop(n)
		if parent != radix.Root && c.Children(parent) == 0 {
			heap.Push(&leaves, parent)
		}
	}
}

// oldest is a heap of nodes, the least recently used first.
type oldest struct {
	nodes []radix.Node
	used  []uint64
}

func (o *oldest) Len() int           { return len(o.nodes) }
func (o *oldest) Less(i, j int) bool { return o.used[o.nodes[i]] < o.used[o.nodes[j]] }
func (o *oldest) Swap(i, j int)      { o.nodes[i], o.nodes[j] = o.nodes[j], o.nodes[i] }
func (o *oldest) Push(x any)         { o.nodes = append(o.nodes, x.(radix.Node)) }
func (o *oldest) Pop() any {
	n := o.nodes[len(o.nodes)-1]
	o.nodes = o.nodes[:len(o.nodes)-1]
	return n
}
