package advise

import (
	"slices"

	"github.com/spliced-kv/spliced/policy/checkpoint"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/radix"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// work is the state of the computation of one advice. Works are reused from a pool.
type work struct {
	symbols  []uint32 // the scope's symbol, then the prompt
	contents []uint64 // content ids of the segments, in order
	most     int      // maximum number of checkpoints
	model    *cost.Model

	// Read from the tree.
	path   radix.Path
	nodes  []radix.Node // nodes on the path, while positions are marked
	seen   int
	sights []uint32         // how often each segment was seen
	shares [origins]float64 // share of each origin that is reused
	placed []checkpoint.Position
	steps  []step

	// Results.
	choice     cost.Choice
	candidates []candidate
	marks      []mark
	positions  []Position
	begins     []int   // of each position: the end of the prefix or admitted position before it
	bytes      []int64 // of each position: bytes of its checkpoint
	segments   []SegmentAdvice
	held       []cost.Segment
}

// step is a node on a prompt's path, or the place inside an edge where the prompt leaves
// the tree.
type step struct {
	end    int
	count  uint32 // recorded prompts that contain it
	branch bool   // prompts diverge there; this prompt counts too
}

// candidate is a possible position of a checkpoint.
type candidate struct {
	at     int
	why    Why
	origin origin
	seen   uint32  // recorded prompts that contain it
	likely float64 // probability that the next prompt that contains it uses this checkpoint
}

// mark is a candidate position to be marked in the tree.
type mark struct {
	at     int
	origin origin
}

// open prepares a work. It does all steps that take time proportional to the length of the
// prompt, without the lock.
func (a *Advisor) open(q *Query) *work {
	w := a.works.Get().(*work)
	w.symbols = append(append(w.symbols[:0], 0), q.Tokens...)
	w.contents = w.contents[:0]
	for i := range q.Segments {
		g := &q.Segments[i]
		w.contents = append(w.contents, a.contents.id(scopeKey{q.Profile, q.Tenant}, q.Tokens[g.Begin:g.Begin+g.Tokens]))
	}
	if w.most = q.MaxCheckpoints; w.most == 0 {
		w.most = a.checkpoints
	}
	return w
}

// keptSymbols is the largest capacity of a prompt buffer with which a work returns to the pool.
const keptSymbols = 1 << 18

func (a *Advisor) close(w *work) {
	w.model, w.placed = nil, nil
	if cap(w.symbols) <= keptSymbols {
		a.works.Put(w)
	}
}

// judge computes the advice from the results of look, without a lock.
func (w *work) judge(q *Query, s Store) {
	segments, checkpoints := s.Limits()
	w.collect(q)
	w.pick(q.PrefixTokens)
	w.judgePositions(q.PrefixTokens, checkpoints)
	w.judgeSegments(q, segments)
}

// collect lists the candidates after the prefix, ascending: where prompts diverge, the
// application's boundaries, the last usable position, and the positions of the planner.
func (w *work) collect(q *Query) {
	block := max(q.BlockTokens, 1)
	w.candidates = w.candidates[:0]
	add := func(at int, why Why, likely float64) {
		if at -= at % block; at > q.computed() {
			c := originOf(why, q.Output)
			w.candidates = append(w.candidates, candidate{at: at, why: why, origin: c, likely: max(likely, w.shares[c])})
		}
	}
	below := uint32(0) // count of the next step on the path
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
	add(q.last(), WhyLast, 0)
	w.candidates = unique(w.candidates)
	w.count()
}

// unique sorts candidates by position. Of candidates with equal positions it keeps the one
// with the highest precedence. It works in place.
func unique(list []candidate) []candidate {
	slices.SortFunc(list, func(a, b candidate) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return int(precedence[b.why]) - int(precedence[a.why])
	})
	kept := list[:0]
	for _, c := range list {
		if n := len(kept); n > 0 && kept[n-1].at == c.at {
			kept[n-1].likely = max(kept[n-1].likely, c.likely)
			continue
		}
		kept = append(kept, c)
	}
	return kept
}

var precedence = [whys]uint8{WhyBoundary: 4, WhyBranch: 3, WhyLast: 2, WhyPlaced: 1}

// count sets for each candidate the number of recorded prompts that contain it: the count
// of the nearest step that is at least as deep.
func (w *work) count() {
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

// pick keeps at most w.most candidates: those that minimize the expected recomputation, by
// their probabilities.
func (w *work) pick(base int) {
	if len(w.candidates) <= w.most {
		return
	}
	law := checkpoint.Law{}
	for _, c := range w.candidates {
		law.Depth = append(law.Depth, c.at-base)
		law.Weight = append(law.Weight, c.likely)
	}
	chosen := law.Optimal(w.most)
	kept := w.candidates[:0]
	for _, c := range w.candidates {
		if len(chosen) > 0 && c.at-base == chosen[0] {
			chosen = chosen[1:]
			kept = append(kept, c)
		}
	}
	w.candidates = kept
}

// judgePositions values each candidate by the tokens that it saves in addition to the last
// admitted candidate before it, or to the prefix whose length is the parameter base.
func (w *work) judgePositions(base int, limit Limit) {
	w.positions, w.marks, w.begins, w.bytes = w.positions[:0], w.marks[:0], w.begins[:0], w.bytes[:0]
	for _, c := range w.candidates {
		held := cost.Held{
			Begin: base, End: c.at, In: cost.TierDRAM,
			Bytes: w.model.Shape.CheckpointBytes() + w.model.Shape.RowBytes(c.at-base),
		}
		ok, why := w.model.Admit(cost.Candidate{
			Held: held, Asked: c.why == WhyBoundary, Seen: int(c.seen), Returns: w.shares[c.origin],
			Floor: limit.Floor, MaxBytes: limit.MaxBytes,
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

// judgeSegments decides for each missing segment whether to publish it.
func (w *work) judgeSegments(q *Query, limit Limit) {
	w.segments = w.segments[:0]
	for i := range q.Segments {
		g := &q.Segments[i]
		var advice SegmentAdvice
		if g.Status == tier.StatusMiss {
			held := cost.Held{End: g.Tokens, Bytes: w.model.Shape.SegmentTotalBytes(g.Tokens), In: cost.TierDRAM}
			likely := max(w.shares[originSegment], float64(w.sights[i])/float64(w.sights[i]+1))
			advice.Value = likely * w.model.Density(held)
			advice.Admit, advice.Reason = w.model.Admit(cost.Candidate{
				Held: held,
				Seen: int(w.sights[i]), Returns: w.shares[originSegment], Floor: limit.Floor, MaxBytes: limit.MaxBytes,
			})
		}
		w.segments = append(w.segments, advice)
	}
}

// used returns the number of segments over which SeamTokens are distributed: the cached
// ones, or all if none is cached.
func (q *Query) used() (hits int) {
	for i := range q.Segments {
		if q.Segments[i].Status == tier.StatusHit {
			hits++
		}
	}
	if hits == 0 {
		return len(q.Segments)
	}
	return hits
}

// request returns what is cached of a prompt and which segments are to be captured, as the
// input for the choice of a way to serve it. The result has a row for each segment of the
// query; rows of segments that cannot be used have no tokens.
func (w *work) request(q *Query) cost.Request {
	shape := &w.model.Shape
	r := cost.Request{Tokens: len(q.Tokens), Segments: w.held[:0], ExactOnly: q.NoSplice}
	if q.PrefixTokens > 0 {
		r.Prefix = cost.Prefix{Tokens: q.PrefixTokens, Bytes: shape.PrefixBytes(q.PrefixTokens, 1), Tier: tierOf(q.PrefixPlace)}
	}
	if q.BufferTokens > q.PrefixTokens {
		all, rebuild := shape.KeptBytes(q.PrefixTokens, q.BufferTokens)
		r.Buffer = cost.Buffer{Tokens: q.BufferTokens, Tier: tierOf(q.PrefixPlace), Bytes: all, RebuildBytes: rebuild}
	}
	used := q.used()
	for i := range q.Segments {
		g := &q.Segments[i]
		capture := w.segments[i].Admit
		refreshed := q.Refresh && i == len(q.Segments)-1
		if refreshed || g.Status != tier.StatusHit && !capture {
			r.Segments = append(r.Segments, cost.Segment{Begin: g.Begin}) // an empty row, so that rows keep their indexes
			continue
		}
		seam := min(q.SeamTokens/used, g.Tokens)
		r.Segments = append(r.Segments, cost.Segment{
			Begin: g.Begin, Tokens: g.Tokens, SeamTokens: seam, Tier: tierOf(g.Place), Capture: capture,
			StateBytes: shape.SegmentTotalBytes(0), RowBytes: shape.RowBytes(g.Tokens - seam),
		})
	}
	w.held = r.Segments
	return r
}

// tierOf returns the tier of a place. PlaceNone counts as DRAM.
func tierOf(p tier.Place) cost.Tier {
	if p == tier.PlaceNone {
		return cost.TierDRAM
	}
	return cost.Tier(p)
}
