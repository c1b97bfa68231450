package prefixcache

import (
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/radix"
)

// Options configures the cache that New returns.
type Options struct {
	Config
	// Saved returns the milliseconds saved by a hit on the tokens [begin, end) of a prompt.
	// nil = the work of Shape at 10^12 FLOPs per millisecond.
	Saved func(begin, end int) float64
	// Item describes a node to the policy. nil = use Saved, as described at Policy.
	Item func(Place) policy.Item
	// OnEvict is called before each eviction of a node. May be nil.
	OnEvict func(Place)
}

// Place is the description of a node for policies.
type Place struct {
	Begin, End int // tokens of its edge, from the root
	Children   int
	Bytes      int64  // freed by its eviction
	Key        uint64 // identifies its prefix
	Extends    policy.ID
}

// flopsPerMilli converts work to time if there are no measurements. It has the order of
// magnitude of one accelerator. Its value does not matter, because policies only compare values
// with each other.
const flopsPerMilli = 1e12

// Policy is a radix tree of states from which a policy.Eviction evicts. The policy knows every
// node. Nodes with two or more children, and the node at which the current request ends, are
// suspended: they cannot be evicted.
//
// For a node, Item.Saved is the saving of a hit at the node compared with a hit at its parent.
// Item.Extends names the parent, and Item.Key identifies the node's prefix. When neighbouring
// nodes are added or removed, these values change, and Update passes the new values to the
// policy.
type Policy struct {
	tree
	options Options
	policy  policy.Eviction
	nodes   []held
	serial  uint32
	serving radix.Node // may not be evicted; Root = none
	now     time.Time
}

type held struct {
	id     policy.ID // low half: the node
	prefix uint64    // running hash of the symbols up to the node
}

// New returns an empty cache.
func New(o Options, p policy.Eviction) *Policy {
	if o.Saved == nil {
		shape := o.Shape
		o.Saved = func(begin, end int) float64 { return (shape.FLOPs(end) - shape.FLOPs(begin)) / flopsPerMilli }
	}
	if o.Item == nil {
		saved := o.Saved
		o.Item = func(p Place) policy.Item {
			return policy.Item{Bytes: p.Bytes, Tokens: p.End - p.Begin, Key: p.Key, Saved: saved(p.Begin, p.End), Extends: p.Extends}
		}
	}
	return &Policy{tree: newTree(o.Config), options: o, policy: p, nodes: make([]held, 1)}
}

// Serve looks up a request's input, then caches its input and output.
func (c *Policy) Serve(r Request) Hit {
	c.now = r.At
	p, hit := c.lookup(r.Input)
	c.touch(p.Node)
	whole := c.join(r)
	q := c.Extend(p, whole)
	if q.Node != p.Node {
		c.touch(q.Node)
	}
	c.insert(q, whole)
	return hit
}

func (c *Policy) touch(n radix.Node) {
	if n != radix.Root {
		c.policy.Touch(c.nodes[n].id, c.now)
	}
}

// insert makes room for a sequence whose cached path is p, and caches it. It caches nothing if
// the sequence does not fit into the capacity together with the node that it extends.
func (c *Policy) insert(p radix.Path, whole []uint32) {
	end := p.Node
	if c.least(p, len(whole)) > c.CapacityBytes {
		c.stats.Refused++
		return
	}
	c.serving = end
	c.suspend(end)
	defer func() {
		c.serving = radix.Root
		c.refresh(end)
	}()
	for c.held()+c.need(p, len(whole)) > c.CapacityBytes {
		id, ok := c.policy.Victim(always)
		if !ok {
			c.stats.Refused++
			return
		}
		p = c.evict(radix.Node(uint32(id)), p)
	}
	in := c.keep(p, whole)
	if in.Branch != radix.None {
		c.add(in.Branch, whole)
		c.update(in.Into)
	}
	if in.Grows > 0 {
		c.add(in.Leaf, whole)
	}
	if in.Branch != radix.None {
		c.refresh(in.Branch)
	}
}

func always(policy.ID) bool { return true }

// need returns the bytes for caching a sequence of n symbols.
func (c *Policy) need(p radix.Path, n int) int64 {
	states := 0
	if p.Into != radix.None {
		states++
	}
	if n > p.Matched {
		states++
	}
	return c.bytes(states, n-p.Matched)
}

// least returns the bytes that are needed for the path and the sequence if all other nodes are
// evicted.
func (c *Policy) least(p radix.Path, n int) int64 {
	states := 0
	if p.End > 0 {
		states++
	}
	if n > p.End {
		states++
	}
	return c.bytes(states, n)
}

// evict drops a node and updates the policy about the node's neighbours. It returns p as it is
// after the change. p must not end at the node, but may end inside the node's edge.
func (c *Policy) evict(n radix.Node, p radix.Path) radix.Path {
	if c.options.OnEvict != nil {
		c.options.OnEvict(c.place(n))
	}
	parent := c.Parent(n)
	c.policy.Remove(c.nodes[n].id)
	child := c.drop(n)
	if child != radix.None {
		c.update(child)
	} else {
		c.update(parent)
		c.resume(parent)
	}
	if n == p.Into {
		if p.Into = child; child == radix.None {
			p.Matched = p.End
		}
	}
	return p
}

// add adds a new node to the policy. The node is on the path of the sequence whole.
func (c *Policy) add(n radix.Node, whole []uint32) {
	c.nodes = grown(c.nodes, n)
	c.serial++
	c.nodes[n] = held{
		id:     policy.ID(c.serial)<<32 | policy.ID(uint32(n)),
		prefix: running(c.nodes[c.Parent(n)].prefix, whole[c.Begin(n):c.End(n)]),
	}
	c.policy.Insert(c.nodes[n].id, c.item(n), c.now)
}

func (c *Policy) update(n radix.Node) {
	if n != radix.Root {
		c.policy.Update(c.nodes[n].id, c.item(n))
	}
}

func (c *Policy) suspend(n radix.Node) {
	if n != radix.Root {
		c.policy.Suspend(c.nodes[n].id)
	}
}

// resume makes a node evictable again, unless another reason forbids it.
func (c *Policy) resume(n radix.Node) {
	if n != radix.Root && n != c.serving && c.Children(n) <= 1 {
		c.policy.Resume(c.nodes[n].id)
	}
}

// refresh updates the policy about a node whose children may have changed.
func (c *Policy) refresh(n radix.Node) {
	c.update(n)
	c.resume(n)
	if c.Children(n) > 1 {
		c.suspend(n)
	}
}

func (c *Policy) place(n radix.Node) Place {
	end := c.End(n) * c.symbolTokens()
	return Place{
		Begin:    c.Begin(n) * c.symbolTokens(),
		End:      end,
		Children: c.Children(n),
		Bytes:    c.edgeBytes(n),
		Key:      mix(c.nodes[n].prefix, uint64(end)),
		Extends:  c.nodes[c.Parent(n)].id, // 0 at the root
	}
}

func (c *Policy) item(n radix.Node) policy.Item { return c.options.Item(c.place(n)) }

// running continues the hash h of a sequence with further symbols. The hash is a polynomial in k
// modulo 2^64; the loop handles four symbols per step.
func running(h uint64, symbols []uint32) uint64 {
	const (
		k  = 0xd1342543de82ef95
		k2 = k * k & (1<<64 - 1)
		k3 = k2 * k & (1<<64 - 1)
		k4 = k3 * k & (1<<64 - 1)
	)
	for ; len(symbols) >= 4; symbols = symbols[4:] {
		a, b, c, d := uint64(symbols[0]), uint64(symbols[1]), uint64(symbols[2]), uint64(symbols[3])
		h = h*k4 + (a+1)*k3 + (b+1)*k2 + (c+1)*k + d + 1
	}
	for _, s := range symbols {
		h = h*k + uint64(s) + 1
	}
	return h
}

// mix returns a well-distributed value of a running hash; it is never 0.
func mix(h, length uint64) uint64 {
	h ^= length * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32 | 1
}
