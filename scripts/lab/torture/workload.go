package torture

import (
	"math/rand/v2"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// verb is a worker's next operation.
type verb uint8

const (
	doPut    verb = iota // submit the item at the level
	doRead               // read an item that was acknowledged, and compare
	doRemove             // remove a segment of an earlier round
	doNothing
)

// operation is one step of a worker.
type operation struct {
	verb  verb
	item  *item
	level tier.Level
}

// Frequencies of operations.
const (
	putPercent      = 55 // percent of steps, while there are items left to put
	againPercent    = 20 // percent of puts that submit a removed or lost item again
	checkpointOneIn = 4  // puts
	removeOneIn     = 25 // steps
	removeTries     = 8  // draws until one is old enough
	mostBroken      = 256

	chains      = 6 // number of prompts whose checkpoints are being saved, one after another
	chainLength = 8
)

// workload draws operations. The seed determines what it draws, but not which worker does an
// operation, nor when.
type workload struct {
	ledger *ledger
	shapes []*shape
	limits Limits
	seed   uint64

	mu     sync.Mutex
	rng    *rand.Rand
	number uint64 // of the last item
	left   int    // items that may still be submitted in this round
	live   []*item
	bytes  int64 // of live
	growth [chains]growth
	saving map[*item]int // checkpoints in flight, with their index in growth
	broken []*item       // the last items that were broken off
}

// growth is the progress of a prompt whose checkpoints are saved one after another.
type growth struct {
	tip  *item // last acknowledged checkpoint; nil = none
	busy bool
	n    int
}

// Limits bounds the data, so that nothing is evicted from the disk for lack of room.
type Limits struct {
	Items     int   // submitted in one round
	LiveBytes int64 // bytes of segments that are not removed; above this limit, old segments are removed
	Tokens    int   // of the largest item
}

func newWorkload(l *ledger, shapes []*shape, seed uint64, limits Limits) *workload {
	return &workload{
		ledger: l, shapes: shapes, limits: limits, seed: seed,
		rng: rand.New(rand.NewPCG(seed, 1)), saving: map[*item]int{},
	}
}

// begin starts a round. Chains whose last checkpoint was lost start again with a new prompt.
func (w *workload) begin() {
	w.ledger.begin()
	gone := map[*item]bool{}
	for _, r := range w.ledger.sift(func(r *record) bool { return r.missing || r.removed }) {
		gone[r.item] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = w.limits.Items
	clear(w.saving)
	for i := range w.growth {
		if g := &w.growth[i]; g.busy || gone[g.tip] {
			*g = growth{}
		}
	}
	live := w.live[:0]
	w.bytes = 0
	for _, i := range w.live {
		if !gone[i] {
			live = append(live, i)
			w.bytes += i.bytes()
		}
	}
	clear(w.live[len(live):])
	w.live = live
}

// next draws a worker's operation, and records it in the ledger before it is done.
func (w *workload) next() operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.bytes > w.limits.LiveBytes, w.rng.IntN(removeOneIn) == 0:
		if op, ok := w.removal(); ok {
			return op
		}
	}
	if w.left > 0 && w.rng.IntN(100) < putPercent {
		w.left--
		i := w.draw()
		w.ledger.submit(i)
		return operation{verb: doPut, item: i, level: levels[w.rng.IntN(len(levels))]}
	}
	if len(w.live) > 0 {
		return operation{verb: doRead, item: w.live[w.rng.IntN(len(w.live))]}
	}
	return operation{verb: doNothing}
}

// draw makes or selects an item to submit.
func (w *workload) draw() *item {
	if w.rng.IntN(checkpointOneIn) == 0 {
		for _, at := range w.rng.Perm(chains) {
			if !w.growth[at].busy {
				return w.grow(at)
			}
		}
	}
	if w.rng.IntN(100) < againPercent {
		if i := w.former(); i != nil {
			return i
		}
	}
	w.number++
	return newSegment(w.shape(), w.seed, w.number, w.rng, w.limits.Tokens)
}

func (w *workload) shape() *shape { return w.shapes[w.rng.IntN(len(w.shapes))] }

// grow makes the next checkpoint of a chain.
func (w *workload) grow(at int) *item {
	g := &w.growth[at]
	if g.n == chainLength {
		*g = growth{}
	}
	s, kind := w.shape(), tier.Exact
	if g.tip != nil {
		s, kind = g.tip.shape, g.tip.Kind
	} else if w.rng.IntN(3) == 0 {
		kind = tier.Spliced
	}
	w.number++
	i := newCheckpoint(s, w.seed, w.number, g.tip, kind, w.rng, w.limits.Tokens/4)
	g.busy = true
	w.saving[i] = at
	return i
}

// former selects a segment that was removed or lost, to submit it again. Its bytes may be
// written where other segments were stored in the meantime. It excludes segments whose removal
// is still in flight, because the removal could remove the new copy.
func (w *workload) former() *item {
	gone := w.ledger.sift(func(r *record) bool {
		return r.item.isSegment() && r.round < w.ledger.round && (r.gone || r.missing && !r.removed)
	})
	if len(gone) == 0 {
		return nil
	}
	return gone[w.rng.IntN(len(gone))].item
}

// removal selects a segment of an earlier round to remove, so that all items acknowledged in
// this round are audited. The disk can reuse the segment's space.
func (w *workload) removal() (operation, bool) {
	if len(w.live) == 0 {
		return operation{}, false
	}
	for range removeTries {
		at := w.rng.IntN(len(w.live))
		i := w.live[at]
		if i.isSegment() && w.ledger.before(i) {
			w.ledger.remove(i)
			w.live[at] = w.live[len(w.live)-1]
			w.live = w.live[:len(w.live)-1]
			w.bytes -= i.bytes()
			return operation{verb: doRemove, item: i}, true
		}
	}
	return operation{}, false
}

// put records how a put ended.
func (w *workload) put(i *item, acknowledged bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if acknowledged {
		w.live = append(w.live, i)
		w.bytes += i.bytes()
	}
	at, ok := w.saving[i]
	if !ok {
		return
	}
	delete(w.saving, i)
	if g := &w.growth[at]; acknowledged {
		*g = growth{tip: i, n: g.n + 1}
	} else {
		*g = growth{}
	}
}

// partner returns a segment to place after segment i; nil if none was found.
func (w *workload) partner(i *item) *item {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range removeTries {
		if o := w.live[w.rng.IntN(len(w.live))]; o != i && o.isSegment() && o.shape == i.shape && o.spec.Role != profile.RoleFirst {
			return o
		}
	}
	return nil
}

// unfinished returns a segment whose put is broken off before its end. From then on it is a
// stranger: an item that audits must not find.
func (w *workload) unfinished() *item {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number++
	i := newSegment(w.shape(), w.seed, w.number, w.rng, w.limits.Tokens)
	w.broken = append(w.broken[max(0, len(w.broken)-mostBroken+1):], i)
	return i
}

// strangers returns items that must not be found: n new items of the same models that are never
// submitted, and the items whose puts were broken off.
func (w *workload) strangers(n int) []*item {
	const never = 1 << 62 // numbers above are not given to items
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*item, n, n+len(w.broken))
	for i := range out {
		number := uint64(never) + uint64(w.rng.Uint32())
		if i%4 == 0 {
			out[i] = newCheckpoint(w.shape(), w.seed, number, nil, tier.Exact, w.rng, w.limits.Tokens)
		} else {
			out[i] = newSegment(w.shape(), w.seed, number, w.rng, w.limits.Tokens)
		}
	}
	return append(out, w.broken...)
}
