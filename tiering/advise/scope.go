package advise

import (
	"github.com/spliced-kv/spliced/policy/checkpoint"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/radix"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// scopeKey identifies a set of prompts that are compared with each other.
type scopeKey struct {
	profile tier.ProfileID
	tenant  tier.TenantID
}

// scope is the state of one tenant and profile, apart from the tree. Guarded by the
// advisor's lock.
type scope struct {
	symbol  uint32
	owner   int
	returns [origins]returns
	planner *checkpoint.Planner
	samples []cost.Sample // samples that the worker has not taken yet
	queued  bool          // waiting for the worker
}

// openScopeLocked finds or creates the scope of a query.
func (a *Advisor) openScopeLocked(key scopeKey) *scope {
	sc := a.mu.scopes[key]
	if sc == nil {
		a.mu.symbols++
		sc = &scope{symbol: a.mu.symbols, owner: a.owners[key.tenant], planner: checkpoint.New(checkpoint.Options{Budget: a.checkpoints, Period: a.solveEvery})}
		a.mu.scopes[key] = sc
	}
	return sc
}

// look reads, under the lock, what the tree and the scope know of a prompt.
func (a *Advisor) look(w *work, q *Query) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sc := a.openScopeLocked(scopeKey{q.Profile, q.Tenant})
	w.symbols[0] = sc.symbol
	w.path, _ = a.mu.tree.match(w.symbols)
	w.seen = max(0, w.path.Matched-1)
	a.mu.tree.list(w, q.computed())
	for o := originBranch; o < origins; o++ {
		w.shares[o] = sc.returns[o].share(o)
	}
	w.place(q, sc)
	a.sightLocked(w, q, sc)
}

// place lets the planner choose positions from the depths at which earlier prompts diverged,
// unless the application names boundaries. It plans only after the prefix that was seen
// before: within that prefix all branches are known, and no prompt ended between them.
func (w *work) place(q *Query, sc *scope) {
	w.placed = nil
	budget := w.most
	for _, s := range w.steps {
		if s.branch {
			budget--
		}
	}
	if budget > 0 && len(q.Cuts) == 0 {
		w.placed = sc.planner.Place(checkpoint.Prompt{Tokens: len(q.Tokens), From: max(q.computed(), w.seen), Budget: budget})
	}
}

// sightLocked reads how often the content of each segment was seen before. If the prompt
// is being served, it also counts this sight.
func (a *Advisor) sightLocked(w *work, q *Query, sc *scope) {
	w.sights = w.sights[:0]
	for _, content := range w.contents {
		before := a.mu.sights.count(content)
		w.sights = append(w.sights, before)
		if !q.Record {
			continue
		}
		switch before {
		case 0:
			sc.returns[originSegment].advised()
		case 1:
			sc.returns[originSegment].came()
		}
		a.mu.sights.add(content)
	}
}

// record adds a served prompt to the tree, counts the advice, and queues slow work for the
// worker.
func (a *Advisor) record(w *work, q *Query) {
	a.mu.Lock()
	sc := a.openScopeLocked(scopeKey{q.Profile, q.Tenant})
	if q.Record && !a.recordLocked(w, q, sc) {
		a.mu.counts.NotRecorded++
	}
	a.countLocked(w, q)
	wake := a.enqueueLocked(sc, q.Samples)
	a.mu.Unlock()
	if wake {
		a.nudge()
	}
}

// recordLocked adds a prompt to the tree. It returns false if adding the prompt, or making room
// for it, would take too long. It matches the prompt again, because the tree may have changed
// since the method look.
func (a *Advisor) recordLocked(w *work, q *Query, sc *scope) bool {
	if len(q.Tokens) >= promptMost || !a.roomLocked(len(q.Tokens), len(w.marks)) {
		return false
	}
	t, whole := a.mu.tree, false
	w.symbols[0] = sc.symbol
	if w.path, whole = t.match(w.symbols); !whole {
		return false
	}
	own := t.own(w.path, q)
	if own == 0 {
		sc.planner.Request(t.hit(w.path, q.Cuts))
	}
	t.record(sc, w, own)
	a.mu.counts.Recorded++
	return true
}

// roomLocked makes room for a prompt. It returns false if that takes longer than a request
// should wait, or is impossible.
func (a *Advisor) roomLocked(tokens, positions int) bool {
	t, need := a.mu.tree, room{positions + 3, treeBytes(positions+3, int64(tokens+1))}
	if need.nodes > t.most.nodes || need.bytes > t.most.bytes {
		return false
	}
	if t.fits(room{need.nodes + t.most.nodes/16, need.bytes + t.most.bytes/16}) {
		return true
	}
	a.mu.crowded = true // the worker keeps some room free, so that requests seldom make it
	return t.drop(need, clockSteps)
}

// heldHops is the maximum number of nodes that hit follows down to the end of a recorded prompt.
const heldHops = 256

// hit compares a prompt with the recorded prompt that has the longest prefix in common with it,
// or with the oldest of several. In this prefix the two prompts have the same cuts, since they
// have the same tokens.
func (t *tree) hit(p radix.Path, cuts []uint32) checkpoint.Hit {
	h := checkpoint.Hit{Depth: p.Matched - 1, Cuts: len(cuts)}
	if h.Depth <= 0 {
		return checkpoint.Hit{}
	}
	for h.Cut < len(cuts) && int(cuts[h.Cut]) <= h.Depth {
		h.Cut++
	}
	n := p.Node
	if p.Into != radix.None {
		n = p.Into
	}
	for hops := 0; t.Children(n) > 0 && hops < heldHops; hops++ {
		n = t.FirstChild(n)
	}
	h.Length, h.Branch = t.depth(n), max(0, t.Begin(n)-1)
	return h
}

// own returns the number of tokens that an earlier query of the same request recorded; 0 = none.
// A request may send a query with the prompt and later a query with prompt and answer, which
// must not count as two prompts.
func (t *tree) own(p radix.Path, q *Query) int {
	own := len(q.Tokens) - q.Output
	if q.Output == 0 {
		return 0
	}
	for n := p.Node; n != radix.Root && t.depth(n) >= own; n = t.up(n) {
		if t.depth(n) == own {
			return own
		}
	}
	return 0
}
