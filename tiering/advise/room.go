package advise

import "github.com/spliced-kv/spliced/policy/radix"

// The memory of a tree in bytes is at most nodes·nodeBytes +
// tokens·blockBytes/blockTokens. Package radix keeps 52 bytes per node, and 64 bytes per
// started block of 15 symbols of an edge. An edge may begin and end inside a block.
const (
	nodeBytes   = 52 + 2*blockBytes
	blockBytes  = 64
	blockTokens = 15
)

func treeBytes(nodes int, tokens int64) int64 {
	return int64(nodes)*nodeBytes + tokens*blockBytes/blockTokens
}

// clockSteps is the maximum number of nodes that one request examines to make room, which
// takes about 20 µs (a guess). The worker does the remaining work.
const clockSteps = 1 << 10

// room is a size in the tree, used or allowed.
type room struct {
	nodes int
	bytes int64
}

func (t *tree) fits(r room) bool {
	nodes := t.Len()
	return nodes+r.nodes <= t.most.nodes && treeBytes(nodes, t.tokens)+r.bytes <= t.most.bytes
}

// owned is the size of one tenant's prompts in the tree, without the root.
type owned struct {
	nodes  int
	tokens int64
}

func (o *owned) add(nodes int, tokens int64) { o.nodes, o.tokens = o.nodes+nodes, o.tokens+tokens }

// exceeds reports whether o, the size of a tenant's prompts, is at least the tenant's part r of
// the tree. It adds up to two nodes to o, for the root and for the rounding of treeBytes. So at
// least one tenant exceeds its part while the tree is too full, and the method drop terminates.
func (o *owned) exceeds(r room) bool {
	return o.nodes+1 >= r.nodes || treeBytes(o.nodes+2, o.tokens) >= r.bytes
}

// part returns the size that each tenant with prompts may have. It subtracts need, the room for a
// new prompt, from the allowed size and divides the difference equally.
func (t *tree) part(need room) room {
	holders := 0
	for i := range t.owned {
		if t.owned[i].nodes > 0 {
			holders++
		}
	}
	holders = max(holders, 1)
	return room{(t.most.nodes - need.nodes) / holders, (t.most.bytes - need.bytes) / int64(holders)}
}

// drop removes leaves that were not used lately, until the tree has the room that the parameter
// need asks for, or until the given number of steps, each of which examines a node. It reports
// whether the tree has this room. It goes around the tree like a clock's hand. At each leaf it
// lowers the leaf's heat by one, or drops the leaf if its heat is 0. It skips tenants that do not
// exceed their part, so that one tenant cannot displace another's prompts with made-up ones.
func (t *tree) drop(need room, steps int) bool {
	part := t.part(need)
	for !t.fits(need) {
		if steps--; steps < 0 {
			return false
		}
		n := t.hand
		if t.hand++; int(t.hand) >= t.Limit() {
			t.hand = 0
		}
		if n == radix.Root || t.Parent(n) == radix.None || t.Children(n) > 0 {
			continue
		}
		v := t.value(n)
		if !t.owned[v.owner()].exceeds(part) {
			continue
		}
		if v.heat() > 0 {
			t.setValue(n, v-1<<heatShift)
			continue
		}
		t.dropLeaf(n)
	}
	return true
}

// dropLeaf drops a leaf, and then each ancestor that becomes a leaf without heat.
func (t *tree) dropLeaf(n radix.Node) {
	for n != radix.Root && t.Children(n) == 0 && t.value(n).heat() == 0 {
		up, tokens := t.Parent(n), int64(t.End(n)-t.Begin(n))
		t.tokens -= tokens
		t.owned[t.value(n).owner()].add(-1, -tokens)
		t.Remove(n)
		t.dropped++
		n = up
	}
}
