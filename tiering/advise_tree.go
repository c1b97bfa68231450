package tiering

import (
	"hash/maphash"
	"sync"

	"github.com/spliced-kv/spliced/policy/checkpoint"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/radix"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// advisor remembers what prompts looked like: one radix tree for all tenants and
// profiles, in which every prompt begins with a symbol that only its tenant and
// profile have. So nobody's prompts are ever compared with another's, while one
// bound holds for the memory of all of them. Where it is met those give way that
// hold more than their part of it.
//
// Invariant: what the tree holds is within maxNodes and maxBytes, and each node is
// counted for the tenant that owns it.
type advisor struct {
	// Fixed after newAdvisor.
	maxNodes    int
	maxScopes   int // of profiles that are registered; beyond it the worker forgets the others'
	maxBytes    int64
	checkpoints int
	solveEvery  int
	contents    contentIDs
	owners      map[tier.TenantID]int // index of a tenant in mu.owned
	wake        chan struct{}         // the worker has something to do
	works       sync.Pool

	mu struct {
		sync.Mutex
		tree    *radix.Tree
		hand    radix.Node // of the clock that drops leaves
		tokens  int64      // on all edges
		owned   []owned    // by owner
		scopes  map[scopeKey]*scope
		symbols uint32 // given to scopes
		sights  sightings
		crowded bool // the worker is to drop leaves
		counts  AdviceStats
	}
}

// scopeKey is whose prompts are compared with each other.
type scopeKey struct {
	profile tier.ProfileID
	tenant  tier.TenantID
}

// scope is what is known of one tenant's prompts of one profile, beside the
// tree. Guarded by the advisor's lock.
type scope struct {
	symbol  uint32
	owner   int
	returns [origins]returns
	planner *checkpoint.Planner
	samples []cost.Sample // that the worker has not taken yet
	queued  bool          // the worker is to look at it
}

func newAdvisor(c *Config) *advisor {
	a := &advisor{
		maxScopes: c.MaxProfiles * len(c.Tenants),
		maxNodes:  c.AdviseNodes, maxBytes: c.AdviseBytes, checkpoints: c.AdviseCheckpoints, solveEvery: c.AdviseSolveEvery,
		contents: contentIDs{maphash.MakeSeed()}, wake: make(chan struct{}, 1),
	}
	a.owners, a.mu.owned = map[tier.TenantID]int{}, make([]owned, len(c.Tenants))
	for i := range c.Tenants {
		a.owners[c.Tenants[i].ID] = i
	}
	a.works.New = func() any { return &adviseWork{} }
	a.mu.tree = radix.New()
	a.mu.scopes = map[scopeKey]*scope{}
	return a
}

// What a node keeps in its word of the tree.
//
//	 0      32     35     38     39      64
//	+-------+------+------+------+-------+
//	| count | heat | mark | came | owner |
//	+-------+------+------+------+-------+
//
// count is how many recorded prompts began with its whole prefix, heat how many
// turns of the clock it survives, mark the origin of the checkpoint that was
// advised there (0 = none), came whether a prompt has come back to it and owner whose
// prompts begin so.
type seen uint64

const (
	heatShift  = 32
	heatMost   = 7
	markShift  = 35
	cameBit    = seen(1) << 38
	ownerShift = 39
)

func (v seen) count() uint32 { return uint32(v) } //nolint:gosec // its low half
func (v seen) heat() uint64  { return uint64(v) >> heatShift & heatMost }
func (v seen) owner() int    { return int(v >> ownerShift) } //nolint:gosec // 25 bits
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

// unmarked is what a node that splits the edge of v begins with.
func (v seen) unmarked() seen { return v.marked(originNone) }

func (a *advisor) valueLocked(n radix.Node) seen  { return seen(a.mu.tree.Value(n)) }
func (a *advisor) setLocked(n radix.Node, v seen) { a.mu.tree.SetValue(n, uint64(v)) }
func (a *advisor) depthLocked(n radix.Node) int   { return a.mu.tree.End(n) - 1 } // without the scope's symbol

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

// openScopeLocked finds or makes the scope of a query.
func (a *advisor) openScopeLocked(key scopeKey) *scope {
	sc := a.mu.scopes[key]
	if sc == nil {
		a.mu.symbols++
		sc = &scope{symbol: a.mu.symbols, owner: a.owners[key.tenant], planner: checkpoint.New(checkpoint.Options{Budget: a.checkpoints, Period: a.solveEvery})}
		a.mu.scopes[key] = sc
	}
	return sc
}

// promptMost is how long a prompt may be that is recorded, pathMost how many nodes
// it may pass, and matchSymbols how many symbols are followed between two looks at
// that. Together they bound every walk along a prompt, whatever shape earlier prompts
// have given to the tree: to some milliseconds. A conversation adds a few nodes a
// turn.
const (
	promptMost   = 1 << 20
	pathMost     = 1 << 12
	matchSymbols = 1 << 10
)

// matchLocked follows a prompt from the root and reports whether it came to the end
// of it, or of what is known; else it is too long or has passed too many nodes, and
// the rest of it is taken for new.
func (a *advisor) matchLocked(w *adviseWork) (whole bool) {
	t := a.mu.tree
	w.path = radix.Path{Into: radix.None}
	for n := 0; n < len(w.symbols); {
		if w.path.Depth >= pathMost || n >= promptMost {
			return false
		}
		n += matchSymbols
		if w.path.Into != radix.None {
			n = t.End(w.path.Into) // the edge is compared again, so once more at most
		}
		n = min(n, len(w.symbols), promptMost)
		before := w.path.Depth
		w.path = t.Extend(w.path, w.symbols[:n])
		a.mu.counts.Steps += uint64(w.path.Depth - before + 1)
		if w.path.Matched < n {
			break
		}
	}
	return true
}

// upLocked is one step of a walk from a leaf to the root.
func (a *advisor) upLocked(n radix.Node) radix.Node {
	a.mu.counts.Steps++
	return a.mu.tree.Parent(n)
}

// recordLocked puts a prompt into the tree. marks are the positions of checkpoints
// that were thought of, ascending. Prompts up to own were counted before, by the
// same request.
func (a *advisor) recordLocked(sc *scope, w *adviseWork, own int) {
	t := a.mu.tree
	a.returnedLocked(sc, w.path, own)
	nodes := t.Len()
	in := t.InsertAt(w.path, w.symbols)
	a.mu.tokens += int64(in.Grows)
	if in.Grows > 0 {
		a.setLocked(in.Leaf, seen(sc.owner)<<ownerShift) //nolint:gosec // an index
	}
	if in.Branch != radix.None {
		a.setLocked(in.Branch, a.valueLocked(w.path.Into).unmarked())
	}
	a.marksLocked(sc, in.Leaf, w)
	a.mu.owned[sc.owner].add(t.Len()-nodes, int64(in.Grows))
	for n := in.Leaf; n != radix.Root && a.depthLocked(n) > own; n = a.upLocked(n) {
		a.setLocked(n, a.valueLocked(n).passed())
	}
	a.mu.counts.Recorded++
}

// returnedLocked counts the deepest advised checkpoint that a prompt comes back
// to, once for each. Only the deepest one would have served it.
func (a *advisor) returnedLocked(sc *scope, p radix.Path, own int) {
	for n := p.Node; n != radix.Root && a.depthLocked(n) > own; n = a.upLocked(n) {
		v := a.valueLocked(n)
		if v.mark() == originNone {
			continue
		}
		if v&cameBit == 0 {
			sc.returns[v.mark()].came()
			a.setLocked(n, v|cameBit)
		}
		return
	}
}

// marksLocked makes sure that there is a node above leaf at each position and notes
// what was advised there. It goes down, since splitting an edge takes time in the
// length of its front.
func (a *advisor) marksLocked(sc *scope, leaf radix.Node, w *adviseWork) {
	if len(w.marks) == 0 {
		return
	}
	t := a.mu.tree
	w.nodes = w.nodes[:0]
	for n := leaf; n != radix.Root && t.End(n) > w.marks[0].at; n = a.upLocked(n) {
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
			v := a.valueLocked(n).unmarked()
			n = t.InsertAt(radix.Path{Node: up, End: t.End(up), Matched: end, Into: n}, w.symbols[:end]).Branch
			a.setLocked(n, v)
		}
		if v := a.valueLocked(n); v.mark() == originNone {
			a.setLocked(n, v.marked(w.marks[i].origin))
			sc.returns[w.marks[i].origin].advised()
		}
	}
}

// clockSteps is how many nodes one request looks at to make room; the rest is the
// worker's. A guess: some 20 µs.
const clockSteps = 1 << 10

// roomLocked makes room for a prompt of so many tokens and positions; false when
// that takes longer than a request should wait, or can never be.
func (a *advisor) roomLocked(tokens, positions int) bool {
	need := room{positions + 3, treeBytes(positions+3, int64(tokens+1))}
	if need.nodes > a.maxNodes || need.bytes > a.maxBytes {
		return false
	}
	if a.fitsLocked(room{need.nodes + a.maxNodes/16, need.bytes + a.maxBytes/16}) {
		return true
	}
	a.mu.crowded = true // the worker keeps some free, so that requests seldom have to
	return a.dropLocked(need, clockSteps)
}

// room is what something takes, or may take, in the tree.
type room struct {
	nodes int
	bytes int64
}

func (a *advisor) fitsLocked(r room) bool {
	nodes := a.mu.tree.Len()
	return nodes+r.nodes <= a.maxNodes && treeBytes(nodes, a.mu.tokens)+r.bytes <= a.maxBytes
}

// owned is what one tenant's prompts take of the tree, the root apart.
type owned struct {
	nodes  int
	tokens int64
}

func (o *owned) add(nodes int, tokens int64) { o.nodes, o.tokens = o.nodes+nodes, o.tokens+tokens }

// exceeds reports whether it is more than r. While something does not fit,
// one always exceeds its part of what there is without that: the root, and what
// treeBytes rounds away, are less than two nodes.
func (o *owned) exceeds(r room) bool {
	return o.nodes+1 >= r.nodes || treeBytes(o.nodes+2, o.tokens) >= r.bytes
}

// partLocked is the equal part of each tenant that holds anything, beside need.
func (a *advisor) partLocked(need room) room {
	holders := 0
	for i := range a.mu.owned {
		if a.mu.owned[i].nodes > 0 {
			holders++
		}
	}
	holders = max(holders, 1)
	return room{(a.maxNodes - need.nodes) / holders, (a.maxBytes - need.bytes) / int64(holders)}
}

// dropLocked drops the leaves that the clock finds cold, until there is room or
// so many nodes were looked at. It reports whether there is room. Tenants that hold
// no more than their part keep it: prompts that one invents do not push out what is
// known of another's.
func (a *advisor) dropLocked(need room, steps int) bool {
	t, part := a.mu.tree, a.partLocked(need)
	for !a.fitsLocked(need) {
		if steps--; steps < 0 {
			return false
		}
		n := a.mu.hand
		if a.mu.hand++; int(a.mu.hand) >= t.Limit() {
			a.mu.hand = 0
		}
		if n == radix.Root || t.Parent(n) == radix.None || t.Children(n) > 0 {
			continue
		}
		v := a.valueLocked(n)
		if !a.mu.owned[v.owner()].exceeds(part) {
			continue
		}
		if v.heat() > 0 {
			a.setLocked(n, v-1<<heatShift)
			continue
		}
		a.dropLeafLocked(n)
	}
	return true
}

// dropLeafLocked drops a leaf, and with it what only it kept.
func (a *advisor) dropLeafLocked(n radix.Node) {
	t := a.mu.tree
	for n != radix.Root && t.Children(n) == 0 && a.valueLocked(n).heat() == 0 {
		up, tokens := t.Parent(n), int64(t.End(n)-t.Begin(n))
		a.mu.tokens -= tokens
		a.mu.owned[a.valueLocked(n).owner()].add(-1, -tokens)
		t.Remove(n)
		a.mu.counts.Dropped++
		n = up
	}
}
