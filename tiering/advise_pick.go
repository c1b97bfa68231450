package tiering

import (
	"github.com/spliced-kv/spliced/policy/checkpoint"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/radix"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// adviseWork is one advice while it is being made. Works are reused.
type adviseWork struct {
	symbols  []uint32 // the scope's symbol, then the prompt
	contents []uint64 // of segments, in their order
	sights   []uint32 // how often they were seen
	model    *cost.Model
	pool     poolLimits

	choice     cost.Choice
	path       radix.Path
	nodes      []radix.Node // of the path, where positions are marked
	seen       int
	shares     [origins]float64 // of what comes back
	placed     []checkpoint.Position
	steps      []step
	candidates []candidate
	marks      []mark
	positions  []Position
	begins     []int   // of each position: what it is valued against
	bytes      []int64 // of each position
	segments   []SegmentAdvice
	held       []cost.Segment
}

// step is a node on a prompt's path, or where the prompt leaves an edge.
type step struct {
	end    int
	count  uint32 // recorded prompts that had all of it
	branch bool   // prompts part there, this one included
}

// candidate is a position that a checkpoint could have.
type candidate struct {
	at     int
	why    Why
	origin origin
	seen   uint32  // times that prompts had it all
	likely float64 // that the next prompt which has it needs just this one
}

// mark is a candidate that the tree will know.
type mark struct {
	at     int
	origin origin
}

// open prepares an advice: everything that takes time in the length of the prompt
// and needs no lock.
func (a *advisor) open(q *AdviseQuery) *adviseWork {
	w := a.works.Get().(*adviseWork)
	w.symbols = append(append(w.symbols[:0], 0), q.Tokens...)
	w.contents = w.contents[:0]
	for i := range q.Segments {
		g := &q.Segments[i]
		w.contents = append(w.contents, a.contents.id(scopeKey{q.Profile, q.Tenant}, q.Tokens[g.Begin:g.Begin+g.Tokens]))
	}
	return w
}

// keptSymbols is how long a prompt a work keeps room for.
const keptSymbols = 1 << 18

func (a *advisor) close(w *adviseWork) {
	w.model, w.placed = nil, nil
	if cap(w.symbols) <= keptSymbols {
		a.works.Put(w)
	}
}

// look finds out under the lock what the tree knows of a prompt.
func (a *advisor) look(w *adviseWork, q *AdviseQuery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sc := a.openScopeLocked(scopeKey{q.Profile, q.Tenant})
	w.symbols[0] = sc.symbol
	a.matchLocked(w)
	w.seen = max(0, w.path.Matched-1)
	a.stepsLocked(w, q.passed())
	for o := originBranch; o < origins; o++ {
		w.shares[o] = sc.returns[o].share(o)
	}
	a.placeLocked(w, q, sc)
	a.sightLocked(w, q, sc)
}

// placeLocked asks where checkpoints should lie by the depths at which earlier
// prompts parted, where the application names no boundary. Of what was seen before
// the branches know better: all prompts so far have passed what lies between them.
func (a *advisor) placeLocked(w *adviseWork, q *AdviseQuery, sc *scope) {
	w.placed = nil
	budget := a.most(q)
	for _, s := range w.steps {
		if s.branch {
			budget--
		}
	}
	if budget > 0 && len(q.Cuts) == 0 {
		w.placed = sc.planner.Place(checkpoint.Prompt{Tokens: len(q.Tokens), From: max(q.passed(), w.seen), Budget: budget})
	}
}

// passed is where an engine is that asks: no state before it can be had any more.
func (q *AdviseQuery) passed() int {
	if q.Output > 0 {
		return max(q.PrefixTokens, len(q.Tokens)-q.Output)
	}
	return q.PrefixTokens
}

// most is how many checkpoints are wanted.
func (a *advisor) most(q *AdviseQuery) int {
	if q.MaxCheckpoints > 0 {
		return q.MaxCheckpoints
	}
	return a.checkpoints
}

// think makes the advice, without a lock.
func (a *advisor) think(w *adviseWork, q *AdviseQuery) {
	w.collect(q)
	w.pick(q.PrefixTokens, a.most(q))
	w.judge(q.PrefixTokens)
	w.judgeSegments(q)
}

// settle records a prompt that is being served, counts, and hands to the worker
// what takes time.
func (a *advisor) settle(w *adviseWork, q *AdviseQuery) {
	a.mu.Lock()
	sc := a.openScopeLocked(scopeKey{q.Profile, q.Tenant})
	w.symbols[0] = sc.symbol
	if q.Record && len(q.Tokens) < promptMost && a.roomLocked(len(q.Tokens), len(w.marks)) && a.matchLocked(w) {
		own := a.ownLocked(w, q)
		if own == 0 {
			sc.planner.Request(a.hitLocked(w.path, q.Cuts))
		}
		a.recordLocked(sc, w, own)
	} else if q.Record {
		a.mu.counts.NotRecorded++
	}
	a.countLocked(w, q)
	wake := a.enqueueLocked(sc, q.Samples)
	a.mu.Unlock()
	if wake {
		a.nudge()
	}
}

// heldHops is how far down hitLocked looks for the end of a held prompt.
const heldHops = 256

// hitLocked is what a prompt shares with one that was recorded: the oldest of
// those that share as much. Since it has the same tokens, the cuts within are its
// own too.
func (a *advisor) hitLocked(p radix.Path, cuts []uint32) checkpoint.Hit {
	t := a.mu.tree
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
	h.Length, h.Branch = a.depthLocked(n), max(0, t.Begin(n)-1)
	return h
}

// ownLocked is how many tokens of a prompt the same request has recorded before:
// an engine that asks with the prompt and again with the answer behind it must
// not count as two prompts.
func (a *advisor) ownLocked(w *adviseWork, q *AdviseQuery) int {
	own := len(q.Tokens) - q.Output
	if q.Output == 0 {
		return 0
	}
	for n := w.path.Node; n != radix.Root && a.depthLocked(n) >= own; n = a.upLocked(n) {
		if a.depthLocked(n) == own {
			return own
		}
	}
	return 0
}

// stepsLocked lists where the path has nodes behind base, deepest first.
func (a *advisor) stepsLocked(w *adviseWork, base int) {
	t, p := a.mu.tree, &w.path
	w.steps = w.steps[:0]
	leaves := p.Matched < len(w.symbols) // the prompt goes on where the tree does not
	if p.Into != radix.None {
		w.steps = append(w.steps, step{p.Matched - 1, a.valueLocked(p.Into).count(), leaves})
	}
	for n := p.Node; n != radix.Root && a.depthLocked(n) > base; n = a.upLocked(n) {
		kids := t.Children(n)
		if n == p.Node && p.Into == radix.None && leaves {
			kids++
		}
		w.steps = append(w.steps, step{a.depthLocked(n), a.valueLocked(n).count(), kids > 1})
	}
}

// count tells of each candidate how many prompts had all before it: those of the
// nearest step that is as deep.
func (w *adviseWork) count() {
	next := len(w.steps) - 1 // the shallowest
	for i := range w.candidates {
		c := &w.candidates[i]
		for next >= 0 && w.steps[next].end < c.at {
			next--
		}
		if next < 0 {
			return
		}
		c.seen = w.steps[next].count
	}
}

// collect lists the candidates behind the prefix, ascending: where prompts part,
// what the application names, the last token, and where the depths of earlier
// prompts say, if nothing better is known.
func (w *adviseWork) collect(q *AdviseQuery) {
	block := max(q.BlockTokens, 1)
	w.candidates = w.candidates[:0]
	add := func(at int, why Why, likely float64) {
		if at -= at % block; at > q.passed() {
			c := originOf(why, q.Output)
			w.candidates = append(w.candidates, candidate{at: at, why: why, origin: c, likely: max(likely, w.shares[c])})
		}
	}
	below := uint32(0) // of the step after this one on the path
	for _, s := range w.steps {
		if s.branch && s.end > 0 {
			add(s.end, WhyBranch, float64(s.count-min(below, s.count))/float64(s.count+1))
		}
		below = s.count
	}
	for _, cut := range q.Cuts {
		add(int(cut), WhyBoundary, 0)
	}
	for _, p := range w.placed {
		if p.Why == checkpoint.WhyPlaced { // the end is a candidate anyway
			add(p.Tokens, WhyPlaced, 0)
		}
	}
	add(len(q.Tokens), WhyLast, 0)
	w.candidates = unique(w.candidates)
	w.count()
}

// pick keeps the candidates that together leave the least to compute again, each
// being needed as likely as it says.
func (w *adviseWork) pick(base, most int) {
	if len(w.candidates) <= most {
		return
	}
	law := checkpoint.Law{}
	for _, c := range w.candidates {
		law.Depth = append(law.Depth, c.at-base)
		law.Weight = append(law.Weight, c.likely)
	}
	chosen := law.Optimal(most)
	kept := w.candidates[:0]
	for _, c := range w.candidates {
		if len(chosen) > 0 && c.at-base == chosen[0] {
			chosen = chosen[1:]
			kept = append(kept, c)
		}
	}
	w.candidates = kept
}

// judge values each candidate by what it saves beyond the one before it that is
// kept.
func (w *adviseWork) judge(base int) {
	w.positions, w.marks, w.begins, w.bytes = w.positions[:0], w.marks[:0], w.begins[:0], w.bytes[:0]
	limits := &w.pool[privatePool]
	for _, c := range w.candidates {
		held := cost.Held{
			Begin: base, End: c.at, In: cost.TierDRAM,
			Bytes: w.model.Shape.CheckpointBytes() + w.model.Shape.RowBytes(c.at-base),
		}
		ok, why := w.model.Admit(cost.Candidate{
			Held: held, Asked: c.why == WhyBoundary, Seen: int(c.seen), Returns: w.shares[c.origin],
			Floor: limits.floor, MaxBytes: limits.most,
		})
		w.positions = append(w.positions, Position{
			Tokens: c.at, Why: c.why, Admit: ok, Reason: why, Value: c.likely * w.model.Density(held),
		})
		w.marks = append(w.marks, mark{c.at, c.origin})
		w.begins, w.bytes = append(w.begins, base), append(w.bytes, held.Bytes)
		if ok {
			base = c.at
		}
	}
}

// judgeSegments says of each segment whether to publish it.
func (w *adviseWork) judgeSegments(q *AdviseQuery) {
	w.segments = w.segments[:0]
	limits := &w.pool[publicPool]
	for i := range q.Segments {
		g := &q.Segments[i]
		var advice SegmentAdvice
		if g.Status == tier.StatusMiss {
			held := cost.Held{End: g.Tokens, Bytes: w.model.Shape.SegmentTotalBytes(g.Tokens), In: cost.TierDRAM}
			likely := max(w.shares[originSegment], float64(w.sights[i])/float64(w.sights[i]+1))
			advice.Value = likely * w.model.Density(held)
			advice.Admit, advice.Reason = w.model.Admit(cost.Candidate{
				Held: held,
				Seen: int(w.sights[i]), Returns: w.shares[originSegment], Floor: limits.floor, MaxBytes: limits.most,
			})
		}
		w.segments = append(w.segments, advice)
	}
}

// sightLocked answers how often the content of each segment was seen, and counts
// it when it is served.
func (a *advisor) sightLocked(w *adviseWork, q *AdviseQuery, sc *scope) {
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
