package prefixcache

import "github.com/spliced-kv/spliced/policy/radix"

// released holds what the two tree caches of Marconi's simulator have in common:
// a clock that each lookup, insert and eviction moves by one, the room that an
// insert asks for before it knows what evictions will do to its path, and two
// lookups a request.
//
// So the bytes held may exceed the capacity a little, and a path may be evicted
// that is about to be extended.
type released struct {
	tree
	clock uint64
	used  []uint64 // by node: the clock when it was used last
}

// rules is where the two differ.
type rules interface {
	touch(p radix.Path)               // a lookup
	touchInsert(in radix.Insertion)   // what an insert touches beside new nodes
	evict(bytes int64)                // at least so many, if there are
	walk(symbols []uint32) radix.Path // how a lookup follows the tree
}

func (c *released) look(o rules, input []uint32) Hit {
	c.clock++
	p := o.walk(input)
	hit := c.stats.serve(c.Config, len(input), p.End, p.Depth)
	o.touch(p)
	return hit
}

func (c *released) insert(o rules, whole []uint32) {
	c.clock += 2 // the insert and the lookup in it
	p := o.walk(whole)
	o.touch(p)
	states := 1
	if p.Matched > p.End {
		states = 2
	}
	need := c.bytes(states, len(whole)-p.Matched)
	if over := c.held() + need - c.CapacityBytes; over > 0 {
		c.clock++
		o.evict(over)
	}
	in := c.keep(c.Match(whole), whole)
	for _, n := range [2]radix.Node{in.Branch, in.Leaf} {
		if n != radix.None && (n == in.Branch || in.Grows > 0) {
			c.used = grown(c.used, n)
			c.used[n] = c.clock
		}
	}
	o.touchInsert(in)
}
