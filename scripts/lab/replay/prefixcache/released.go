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
	// follow is what a lookup makes of the path of its symbols.
	follow(p radix.Path, symbols []uint32) radix.Path
	touch(p radix.Path)             // a lookup
	touchInsert(in radix.Insertion) // what an insert touches beside new nodes
	evict(bytes int64)              // at least so many, if there are
	// next is called between the lookup of a request and its insert.
	next(whole []uint32, input int)
}

// serve handles a request of which the first input symbols are looked up.
func (c *released) serve(o rules, whole []uint32, input int) Hit {
	c.clock++
	p := c.Match(whole[:input])
	found := o.follow(p, whole[:input])
	hit := c.stats.serve(c.Config, input, found.End, found.Depth)
	o.touch(found)
	o.next(whole, input)

	c.clock += 2 // the insert and the lookup in it
	p = c.Extend(p, whole)
	found = o.follow(p, whole)
	o.touch(found)
	states := 1
	if found.Matched > found.End {
		states = 2
	}
	need := c.bytes(states, len(whole)-found.Matched)
	if over := c.held() + need - c.CapacityBytes; over > 0 {
		c.clock++
		o.evict(over)
		p = c.Match(whole)
	}
	in := c.keep(p, whole)
	for _, n := range [2]radix.Node{in.Branch, in.Leaf} {
		if n != radix.None && (n == in.Branch || in.Grows > 0) {
			c.used = grown(c.used, n)
			c.used[n] = c.clock
		}
	}
	o.touchInsert(in)
	return hit
}
