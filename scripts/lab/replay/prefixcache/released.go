package prefixcache

import "github.com/spliced-kv/spliced/policy/radix"

// released is the common part of the two tree caches of Marconi's simulator. Each lookup, insert
// and eviction advances its clock by one. An insert computes the space that it needs before it
// evicts nodes, although the evictions may change the path of the inserted sequence. Each
// request makes two lookups.
//
// The cached bytes may therefore exceed the capacity a little, and a path that is about to be
// extended may be evicted.
type released struct {
	tree
	clock uint64
	used  []uint64 // by node: the clock at its last use
}

// rules are the differences between the two caches.
type rules interface {
	// follow returns the path that a lookup uses, given the path of its symbols.
	follow(p radix.Path, symbols []uint32) radix.Path
	touch(p radix.Path)             // called by a lookup
	touchInsert(in radix.Insertion) // called by an insert, for nodes other than new ones
	evict(bytes int64)              // evicts nodes until at least this many bytes are freed or none is left
	// next is called between the lookup of a request and its insert.
	next(whole []uint32, input int)
}

// serve looks up the first symbols of whole, as many as input says, and then caches whole.
func (c *released) serve(o rules, whole []uint32, input int) Hit {
	c.clock++
	p := c.Match(whole[:input])
	found := o.follow(p, whole[:input])
	hit := c.stats.serve(c.Config, input, found.End, found.Depth)
	o.touch(found)
	o.next(whole, input)

	c.clock += 2 // the insert and its lookup
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
