package tiertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// WalkOptions configures a walk. The seed determines every operation and its arguments.
// Only the order of concurrent operations may differ.
type WalkOptions struct {
	Seed        uint64
	Steps       int
	Tenants     []Tenant
	Profiles    []*profile.Profile
	Segments    int // number of names
	Checkpoints int // number of names, in chains
	Flights     int // maximum number of objects being finished concurrently
	// Keeps is the lowest level whose objects are never evicted, since budgets and quotas
	// fit them all. A value above LevelSynced means that any object may be evicted.
	Keeps  tier.Level
	Faults Faults
}

// WalkStats counts the events of one or several walks. A walk without events of a kind
// proves nothing about that kind.
type WalkStats struct {
	Put, Hit, Missed, Refused, Failed, Removed, Cancelled int
	Restarts                                              [PowerLost + 1]int
	Survived                                              [PowerLost + 1]int // objects that had to be there, and were
	Disturbed                                             int
}

// Walk performs random operations on a subject and keeps a plain map of the objects that
// were put. It fails the test if the two disagree. These rules must hold at every step:
//
//   - a served byte was put under its name; a name that was never finished, or was
//     removed since, is not served;
//   - an object that was acknowledged at a level is found, unless its tier had to make
//     room; after a restart it is found if its level survives that ending;
//   - the parent of a checkpoint that is found is found too;
//   - once all transfers have ended, each tenant is charged the sum of the objects that
//     are found, and all tenants together no more than the budget.
//
// After a disturbance with lies, it does not check the second rule.
func Walk(t testing.TB, s Subject, o WalkOptions, stats *WalkStats) {
	t.Helper()
	w := &walk{TB: t, s: s, o: o, stats: stats, rng: rand.New(rand.NewPCG(o.Seed, 0xca11))}
	w.plan()
	for w.step = range o.Steps {
		w.one()
		if t.Failed() {
			w.fail("failed before")
		}
	}
	w.rest()
	w.audit(-1)
}

// known is a name of the map, with the known facts about its object.
type known struct {
	object *Object // its latest bytes
	parent *known
	number int

	// Guarded by walk.mu.
	maybe   []*Object  // bytes that may be served
	buried  []*Object  // bytes that were removed but may reappear after a crash
	level   tier.Level // acknowledged level; 0 = the object need not be there
	shown   tier.Level // level acknowledged since the last opening
	flights int
}

type walk struct {
	testing.TB
	s     Subject
	o     WalkOptions
	rng   *rand.Rand
	stats *WalkStats
	names []*known
	step  int
	trace []string

	begun     []*begun
	disturbed bool
	lied      bool
	cut       bool // power was lost once, so unsynced data may be incomplete

	flying sync.WaitGroup
	mu     sync.Mutex
	epoch  int // only answers to operations of this epoch count
	wrong  error
}

// begun is a filling that is neither finished nor canceled.
type begun struct {
	of *known
	Filling
}

// plan creates the names. Chains have different lengths. A child may be spliced although
// its parent is not.
func (w *walk) plan() {
	for i := range w.o.Segments {
		t := w.o.Tenants[w.rng.IntN(len(w.o.Tenants))]
		p := w.o.Profiles[w.rng.IntN(len(w.o.Profiles))]
		w.names = append(w.names, &known{number: i, object: Segment(p, t, w.o.Seed<<16|uint64(i), 1+w.rng.IntN(60))})
	}
	var chain []*known
	for i := range w.o.Checkpoints {
		var parent *known
		if len(chain) > 0 && w.rng.IntN(4) > 0 {
			parent = chain[len(chain)-1-w.rng.IntN(min(2, len(chain)))]
		}
		k := w.checkpoint(w.o.Segments+i, parent)
		if parent == nil || len(chain) > 6 {
			chain = nil
		}
		chain = append(chain, k)
		w.names = append(w.names, k)
	}
}

func (w *walk) checkpoint(number int, parent *known) *known {
	t := w.o.Tenants[w.rng.IntN(len(w.o.Tenants))]
	p := w.o.Profiles[w.rng.IntN(len(w.o.Profiles))]
	kind := tier.Exact
	var up *Object
	if parent != nil {
		up = parent.object
		t, p = up.Tenant, up.Profile
		kind = up.Kind
	}
	if w.rng.IntN(5) == 0 {
		kind = tier.Spliced
	}
	return &known{number: number, parent: parent, object: Checkpoint(p, t, w.o.Seed<<16|uint64(number), kind, up, 1+w.rng.IntN(30))}
}

func (w *walk) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%d: ", w.step)+fmt.Sprintf(format, args...))
}

// fail ends the walk and prints the steps that led to it.
func (w *walk) fail(format string, args ...any) {
	w.Helper()
	w.flying.Wait()
	w.Fatalf("seed %d, step %d: %s\nbefore:\n%s", w.o.Seed, w.step, fmt.Sprintf(format, args...),
		strings.Join(w.trace[max(0, len(w.trace)-40):], "\n"))
}

func (w *walk) one() {
	k := w.names[w.rng.IntN(len(w.names))]
	if w.disturbed && w.rng.IntN(25) == 0 {
		w.calm()
	}
	switch n := w.rng.IntN(1000); {
	case n < 330:
		w.put(k)
	case n < 400:
		w.fly(k)
	case n < 440:
		w.beginOnly(k)
	case n < 480:
		w.endBegun()
	case n < 800:
		w.get(k)
	case n < 880:
		w.find(k)
	case n < 930:
		w.remove(k)
	case n < 960:
		w.audit(w.rng.IntN(len(w.names)))
	case n < 975:
		w.disturb()
	case n < 990:
		w.restart()
	default:
		w.rest()
	}
	w.mu.Lock()
	wrong := w.wrong
	w.mu.Unlock()
	if wrong != nil {
		w.fail("%v", wrong)
	}
}

// level returns a random level that the subject supports.
func (w *walk) level() tier.Level {
	t := w.s.Traits()
	return t.Lowest + tier.Level(w.rng.IntN(int(t.Highest-t.Lowest)+1))
}

// begin begins an object. It returns nil if the subject refuses, and fails if the subject
// may not refuse.
func (w *walk) begin(k *known) Filling {
	w.Helper()
	for up := k.parent; up != nil; up = up.parent {
		if w.isBegun(up) {
			return nil // it would wait for its parent, which is not finished meanwhile
		}
	}
	f, err := w.s.Begin(k.object)
	switch {
	case err == nil:
		return f
	case errors.Is(err, tier.ErrExists):
		return nil
	case w.disturbed && errors.Is(err, tier.ErrUnavailable):
	case errors.Is(err, tier.ErrBusy):
	case errors.Is(err, tier.ErrFull), errors.Is(err, tier.ErrQuota):
		if w.keepsAll() {
			w.fail("%d %v is refused although there is room for all: %v", k.number, k.object, err)
		}
	case k.parent != nil && (errors.Is(err, tier.ErrGone) || errors.Is(err, tier.ErrInvalid)):
		if w.safe(k.parent) != 0 {
			w.fail("%d %v is refused although its parent is there: %v", k.number, k.object, err)
		}
	default:
		w.fail("%d %v is refused: %v", k.number, k.object, err)
	}
	w.stats.Refused++
	return nil
}

func (w *walk) isBegun(k *known) bool {
	return slices.ContainsFunc(w.begun, func(b *begun) bool { return b.of == k })
}

// keepsAll reports whether the subject may evict nothing, whatever the level of an object.
func (w *walk) keepsAll() bool {
	return w.o.Keeps <= w.s.Traits().Lowest && !w.disturbed && !w.lied
}

// safe returns the level at which the subject must have an object; 0 = the subject need not have
// it. The level is not higher than those of its ancestors. While the object or an ancestor is
// being filled, it may be pending, and the result is 0.
func (w *walk) safe(k *known) tier.Level {
	w.mu.Lock()
	defer w.mu.Unlock()
	for up := k; up != nil; up = up.parent {
		if up.flights > 0 || w.isBegun(up) {
			return 0
		}
	}
	return w.safeLocked(k)
}

func (w *walk) safeLocked(k *known) tier.Level {
	if w.disturbed || w.lied {
		return 0
	}
	level := k.level
	for up := k.parent; up != nil; up = up.parent {
		level = min(level, up.level)
	}
	if level < w.o.Keeps {
		return 0
	}
	return level
}

// submit records that bytes are about to be passed to the subject and may be served from now on.
func (w *walk) submit(k *known) (epoch int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(k.maybe, k.object) {
		k.maybe = append(k.maybe, k.object)
	}
	k.flights++
	return w.epoch
}

// answered handles the answer to a put, unless the subject was restarted meanwhile.
func (w *walk) answered(k *known, epoch int, asked, reached tier.Level, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k.flights--
	switch {
	case epoch != w.epoch:
	case err == nil:
		w.stats.Put++
		if w.disturbed || w.lied {
			break
		}
		k.level, k.shown = max(k.level, reached), max(k.shown, reached)
		if reached < asked && w.o.Keeps <= asked && w.o.Faults == NoFaults {
			w.wrongLocked("%d %v was asked to reach level %v and has reached %v", k.number, k.object, asked, reached)
		}
	default:
		w.stats.Failed++
		if w.o.Faults != NoFaults {
			break
		}
		if w.o.Keeps <= w.s.Traits().Lowest && !errors.Is(err, tier.ErrGone) {
			w.wrongLocked("%d %v was not put: %v", k.number, k.object, err)
		}
	}
}

func (w *walk) wrongLocked(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf(format, args...)
	}
}

func (w *walk) put(k *known) {
	level := w.level()
	w.note("put %d at %v", k.number, level)
	if f := w.begin(k); f != nil {
		epoch := w.submit(k)
		reached, err := f.Finish(context.Background(), level)
		w.answered(k, epoch, level, reached, err)
	}
}

// fly is a put that does not wait for the answer.
func (w *walk) fly(k *known) {
	level := w.level()
	w.mu.Lock()
	flights := 0
	for _, other := range w.names {
		flights += other.flights
	}
	w.mu.Unlock()
	if flights >= w.o.Flights {
		return
	}
	w.note("fly %d at %v", k.number, level)
	f := w.begin(k)
	if f == nil {
		return
	}
	epoch := w.submit(k)
	w.flying.Go(func() {
		reached, err := f.Finish(context.Background(), level)
		w.answered(k, epoch, level, reached, err)
	})
}

func (w *walk) beginOnly(k *known) {
	if len(w.begun) > 4 {
		return
	}
	w.note("begin %d", k.number)
	if f := w.begin(k); f != nil {
		w.begun = append(w.begun, &begun{k, f})
	}
}

func (w *walk) endBegun() {
	if len(w.begun) == 0 {
		return
	}
	i := w.rng.IntN(len(w.begun))
	b := w.begun[i]
	w.begun = slices.Delete(w.begun, i, i+1)
	if w.rng.IntN(2) == 0 {
		w.note("cancel %d", b.of.number)
		b.Cancel()
		w.stats.Cancelled++
		return
	}
	w.note("finish %d", b.of.number)
	epoch := w.submit(b.of)
	reached, err := b.Finish(context.Background(), w.s.Traits().Lowest)
	w.answered(b.of, epoch, w.s.Traits().Lowest, reached, err)
}

// get reads a name and compares the result with all versions that may be served.
func (w *walk) get(k *known) {
	w.Helper()
	w.note("get %d", k.number)
	safe := w.safe(k)
	c, err := w.s.Get(context.Background(), k.object)
	if err == nil {
		w.stats.Hit++
		w.compare(k, c)
		return
	}
	w.stats.Missed++
	switch {
	case errors.Is(err, ErrWrong):
		w.fail("get %d: %v", k.number, err)
	case safe != 0 && !errors.Is(err, tier.ErrBusy):
		w.fail("%d %v is not served, although it was acknowledged as %v: %v", k.number, k.object, safe, err)
	case !isKind(err):
		w.fail("get %d %v: %v", k.number, k.object, err)
	case errors.Is(err, tier.ErrCorrupt) && !w.disturbed && !w.lied && !w.cut:
		w.fail("get %d %v: %v", k.number, k.object, err)
	}
}

// isKind reports whether an error means a miss. No tier may return any other error.
func isKind(err error) bool {
	for _, kind := range []error{tier.ErrGone, tier.ErrCorrupt, tier.ErrUnavailable, tier.ErrBusy} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (w *walk) compare(k *known, c *Content) {
	w.Helper()
	w.mu.Lock()
	maybe := slices.Clone(k.maybe)
	w.mu.Unlock()
	if len(maybe) == 0 {
		w.fail("%d %v is served and was never submitted, or was removed", k.number, k.object)
	}
	var err error
	for _, o := range maybe {
		if err = o.Compare(c); err == nil {
			return
		}
	}
	w.fail("get %d: none of %d versions: %v", k.number, len(maybe), err)
}

func (w *walk) find(k *known) {
	w.Helper()
	safe := w.safe(k)
	e, ok := w.s.Find(k.object)
	w.mu.Lock()
	phantom, shown := len(k.maybe) == 0, k.shown
	w.mu.Unlock()
	switch {
	case ok && phantom:
		w.fail("%d %v is found and was never submitted, or was removed: %+v", k.number, k.object, e)
	case !ok && safe != 0:
		w.fail("%d %v is not found, although it was acknowledged as %v", k.number, k.object, safe)
	case ok && safe != 0 && e.Level < shown: // after a restart it may have a lower level
		w.fail("%d %v is found at level %v, although it was acknowledged as %v", k.number, k.object, e.Level, shown)
	}
}

// remove removes a segment. It skips names that are begun or have puts in flight, since
// the order of put and removal would be unknown.
func (w *walk) remove(k *known) {
	busy := k.object.Kind != 0 || w.isBegun(k)
	w.mu.Lock()
	busy = busy || k.flights > 0
	w.mu.Unlock()
	if busy {
		return
	}
	w.note("remove %d", k.number)
	safe := w.safe(k)
	removed := w.s.Remove(k.object)
	if !removed && safe != 0 {
		w.fail("%d %v is not removed, although it was acknowledged as %v", k.number, k.object, safe)
	}
	w.stats.Removed++
	w.mu.Lock()
	defer w.mu.Unlock()
	k.buried = append(k.buried, k.maybe...)
	k.maybe, k.level, k.shown = nil, 0, 0
	k.object = k.object.again(w.rng.Uint64())
}

// again returns an object of the same name with other bytes.
func (o *Object) again(seed uint64) *Object {
	next := *o
	next.Fill(seed)
	return &next
}

// land waits for puts in flight.
func (w *walk) land() { w.flying.Wait() }

// rest waits until nothing is in flight and checks the accounts.
func (w *walk) rest() {
	w.Helper()
	w.note("rest")
	w.land()
	w.calm()
	for _, b := range w.begun {
		b.Cancel()
	}
	w.begun = nil
	var list []*Object
	for _, k := range w.names {
		list = append(list, k.object)
	}
	if err := balanced(w.s, list, 20*time.Second); err != nil {
		w.fail("%v", err)
	}
	for _, t := range w.o.Tenants {
		if used := w.s.Used(t.ID); t.QuotaBytes > 0 && used > t.QuotaBytes {
			w.fail("tenant %q is charged %d bytes, its quota is %d", t.Name, used, t.QuotaBytes)
		}
	}
	if sum, budget := heldBy(w.s, w.o.Tenants...), w.s.Traits().Budget; sum > budget {
		w.fail("%d bytes are held, the budget is %d", sum, budget)
	}
	w.chains()
	if c, ok := w.s.(Checker); ok {
		if err := c.Check(); err != nil {
			w.fail("%v", err)
		}
		if w.Failed() {
			w.fail("invariants")
		}
	}
}

// chains checks that the parent of every checkpoint that is found is found too, in any tier.
func (w *walk) chains() {
	w.Helper()
	for _, k := range w.names {
		if k.parent == nil {
			continue
		}
		if _, ok := w.s.Find(k.object); !ok {
			continue
		}
		if _, ok := w.s.Find(k.parent.object); !ok {
			w.fail("checkpoint %d is found and %d, which it extends, is not", k.number, k.parent.number)
		}
	}
}

// audit finds and reads ten names from a position on, or all names if the parameter from is
// negative.
func (w *walk) audit(from int) {
	w.Helper()
	w.note("audit from %d", from)
	end := len(w.names)
	if from >= 0 {
		end = min(end, from+10)
	}
	for _, k := range w.names[max(from, 0):end] {
		w.find(k)
		w.get(k)
	}
}
