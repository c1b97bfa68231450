package advise

import "github.com/spliced-kv/spliced/policy/radix"

// The memory of a tree of so many nodes and tokens is at most nodes·nodeBytes +
// tokens·blockBytes/blockTokens: package radix keeps 52 bytes for a node and 64 for
// each 15 symbols of an edge that are begun, where an edge may begin inside a
// block.
const (
	nodeBytes   = 52 + 2*blockBytes
	blockBytes  = 64
	blockTokens = 15
)

func treeBytes(nodes int, tokens int64) int64 {
	return int64(nodes)*nodeBytes + tokens*blockBytes/blockTokens
}

// clockSteps is how many nodes one request looks at to make room; the rest is the
// worker's. A guess: some 20 µs.
const clockSteps = 1 << 10

// room is what something takes, or may take, in the tree.
type room struct {
	nodes int
	bytes int64
}

func (t *tree) fits(r room) bool {
	nodes := t.Len()
	return nodes+r.nodes <= t.most.nodes && treeBytes(nodes, t.tokens)+r.bytes <= t.most.bytes
}

// owned is what one tenant's prompts take of the tree, the root apart.
type owned struct {
	nodes  int
	tokens int64
}

func (o *owned) add(nodes int, tokens int64) { o.nodes, o.tokens = o.nodes+nodes, o.tokens+tokens }

// exceeds reports whether it is more than r, give or take two nodes: the root and
// what treeBytes rounds away. So while need does not fit, at least one tenant
// exceeds its part, and drop ends.
func (o *owned) exceeds(r room) bool {
	return o.nodes+1 >= r.nodes || treeBytes(o.nodes+2, o.tokens) >= r.bytes
}

// part is the equal part of each tenant that holds anything, beside need.
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

// drop drops the leaves that the clock finds cold, until there is room or so many
// nodes were looked at. It reports whether there is room. Tenants that hold no more
// than their part keep it: prompts that one invents do not push out what is known
// of another's.
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

// dropLeaf drops a leaf, and with it what only it kept.
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
