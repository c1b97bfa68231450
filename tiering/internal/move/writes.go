package move

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// write is an object's transfer into the lower tier: the job of a flight (see package
// transfer). It begins as soon as it can, since the tier has its own workers. It keeps the
// object's memory in use: an object that is evicted or removed meanwhile keeps its pages
// until the tier is done. Guarded by the store's lock.
//
// Invariant: a checkpoint is offered to the tier only when the tier has its parent, at the
// requested level.
type write struct {
	owner  *Writes
	object *objects.Object
	*transfer.Flight

	want     tier.Level // highest level requested
	running  tier.Level // level requested of the tier's current write; 0 = none
	reached  tier.Level // level reached so far
	patient  bool       // parked while the tier is busy
	queued   bool       // parked or begun at least once
	Leaving  bool       // its object was evicted meanwhile
	Removed  bool       // its object was removed by an operator meanwhile
	admitted bool       // the tier has accepted it once
	turns    int        // number of times it waited for its parent
	waiting  []*Durable
	tier     tier.Write // the tier's write, while it runs
	answer   tier.Level // level that the tier's write reached
}

// WriteOf returns the write of an object, nil if it has none.
func WriteOf(o *objects.Object) *write {
	w, _ := o.Write.(*write)
	return w
}

// MaxTurns is the largest number of times that a write waits for its parent's write. A small
// tier may evict the parent again before the child is written.
const MaxTurns = 3

// Writes is the part of a store that writes objects into the lower tier: for commits, before
// evictions, and by its cleaner. Guarded by the store's lock.
type Writes struct {
	cat    *catalog.Catalog
	remote *Remote
	freed  func() // makes promotions that wait for memory try again; called with the lock held

	Engine       *transfer.Engine[*objects.Object] // nil without a lower tier
	ByName       map[tier.Name][]*objects.Object   // objects with a write, waiting or running
	removals     []tier.Name                       // removed by an operator while being written; to be removed again
	cleanerHolds bool                              // the cleaner pauses until the next sweep, after a failed write
	ended        uint64                            // writes that have ended
	lastSweep    uint64                            // value of sweeps when the last write ended, or began while no other ran
}

// open creates the engine that writes objects into the lower tier.
func (wr *Writes) open() {
	wr.ByName = map[tier.Name][]*objects.Object{}
	wr.Engine = transfer.New[*objects.Object](transfer.Config{Lock: &wr.cat.Mu, Now: wr.cat.Config.Now, After: wr.removeAgain})
}

// WantLocked requests that the lower tier has an object at a level, ancestors first. If
// o.Write is set afterwards, the write waits or runs. If it is not set and err is nil, the
// tier already has the object. If the parameter patient is true, the request waits while the
// tier is busy.
func (wr *Writes) WantLocked(o *objects.Object, level tier.Level, patient bool) error {
	if wr.cat.Config.Lower == nil || wr.cat.Closed {
		return fmt.Errorf("%s: no lower tier: %w", o.Name(), tier.ErrUnavailable)
	}
	if w := WriteOf(o); w != nil {
		w.want, w.patient = max(w.want, level), w.patient || patient
		return nil
	}
	w := &write{owner: wr, object: o, want: level, reached: tier.LevelMemory, patient: patient}
	if e, held := wr.cat.Objects.Below.Of(o); held {
		w.reached = e.Level
		wr.cat.Objects.Policies.SetStored(o, e.Level)
		if e.Level >= level {
			return nil
		}
	}
	switch {
	case o.Phase == objects.Stripped:
		return fmt.Errorf("%s: its states are not in memory: %w", o.Name(), tier.ErrGone)
	case o.Corrupt:
		return fmt.Errorf("%s: its bytes in memory are wrong: %w", o.Name(), tier.ErrCorrupt)
	}
	o.Write = w
	n := o.Label()
	wr.ByName[n] = append(wr.ByName[n], o)
	f, err := wr.Engine.Start(o, w, transfer.Options{})
	w.Flight, w.queued = f, err == nil
	wr.cat.Objects.Policies.Rank(o)
	return err
}

// Begin offers an object to the tier, after its parent.
func (w *write) Begin(f *transfer.Flight) error {
	wr := w.owner
	err := w.admit(f)
	switch {
	case err == nil || errors.Is(err, transfer.ErrFollow):
		return err
	case w.patient && errors.Is(err, tier.ErrBusy) && !wr.cat.Closed:
		return transfer.Parked(err)
	}
	wr.cat.Counters.WriteRefused(err)
	return err
}

func (w *write) admit(f *transfer.Flight) error {
	wr, o := w.owner, w.object
	if err := w.follow(f); err != nil {
		return err
	}
	name := o.Label()
	switch {
	case wr.cat.Closed:
		return fmt.Errorf("%s: closing: %w", o.Name(), tier.ErrUnavailable)
	case w.Removed:
		return fmt.Errorf("%s: removed: %w", o.Name(), tier.ErrGone)
	case wr.cat.Objects.Below.Deleting[name] > 0:
		return fmt.Errorf("%s: an older one is being removed: %w", o.Name(), tier.ErrBusy)
	}
	if e := wr.cat.Objects.Below.Entry(name); e != nil && (e.Tenant != o.Tenant.ID || e.Fingerprint != o.Profile.Fingerprint() || !o.ShapeOf(e)) {
		// Clients choose the hashes of checkpoints, so an entry of another tenant or
		// length does not imply a broken hash function.
		return fmt.Errorf("%s: the tier has one of another tenant, profile or length: %w", o.Name(), tier.ErrExists)
	}
	wr.cat.Objects.HBM.YieldToWrite(o)
	tw, err := wr.cat.Config.Lower.Admit(wr.cat.Objects.Memory.Describe(o), wr.roomBelow(o.Tenant))
	if err != nil {
		return err
	}
	w.tier, w.running, w.admitted = tw, w.want, true
	wr.cat.Running.Add(1)
	if wr.cat.Counters.Writing == 0 {
		wr.lastSweep = wr.cat.Sweeps
	}
	wr.cat.Counters.Writing++
	return nil
}

// follow makes a write wait for its parent's write, if the parent must be written first.
func (w *write) follow(f *transfer.Flight) error {
	wr, o, up := w.owner, w.object, w.object.Parent
	if up == nil {
		return nil
	}
	e, held := wr.cat.Objects.Below.Of(up)
	if held && up.Phase == objects.Stripped {
		w.want = min(w.want, e.Level) // an object cannot be more durable than its parent
		return nil
	}
	if w.turns == MaxTurns && (!held || e.Level < w.want) {
		return fmt.Errorf("%s: its parent does not stay: %w", o.Name(), tier.ErrFull)
	}
	if err := wr.WantLocked(up, w.want, w.patient); err != nil {
		return fmt.Errorf("%s: its parent: %w", o.Name(), err)
	}
	if up.Write == nil {
		return nil
	}
	w.turns++
	f.Follow(WriteOf(up).Flight)
	return transfer.ErrFollow
}

// roomBelow returns how many bytes a tenant may have in the lower tier, next to its bytes
// in memory and HBM.
func (wr *Writes) roomBelow(t *objects.Tenant) int64 {
	if t.QuotaBytes == 0 {
		return math.MaxInt64
	}
	return max(0, t.QuotaBytes-t.Total())
}

// Move passes an object to the tier, which calls back when it is done.
func (w *write) Move(_ context.Context, _ *transfer.Flight, moved func(error)) {
	wr, name := w.owner, w.object.Name()
	w.tier.Start(w.running, func(reached tier.Level, err error) {
		w.answer = reached
		if err == nil && reached < tier.LevelLogged {
			err = fmt.Errorf("%s: written to level %v only: %w", name, reached, tier.ErrUnavailable)
		}
		moved(err)
		if errors.Is(err, tier.ErrCorrupt) {
			wr.cat.Config.Log.Error().Err(err).Str("object", name).Msg("wrong bytes in memory")
		}
	})
}

// Landed records the level that the object has now in the tier. The result again is true if
// a higher level was requested meanwhile.
func (w *write) Landed(*transfer.Flight) (again bool, err error) {
	wr, o := w.owner, w.object
	if w.reached < tier.LevelLogged {
		wr.cat.Counters.Written++
		wr.cat.Counters.WrittenBytes += uint64(o.Bytes)
	}
	w.reached = max(w.reached, w.answer)
	wr.cat.Objects.Policies.SetStored(o, max(o.Stored, w.answer))
	return w.want > w.running && w.answer >= w.running, nil
}

// End ends a request, whether or not the object was written.
func (w *write) End(f *transfer.Flight, err error) {
	wr, o := w.owner, w.object
	if !w.queued {
		wr.forgetWriteLocked(o)
		return // Start returns the error
	}
	if err != nil && w.running != 0 {
		wr.cat.Counters.WritesFailed++
		wr.cleanerHolds = true
		if errors.Is(err, tier.ErrCorrupt) {
			wr.cat.Objects.MarkCorrupt(o)
		}
	}
	wr.forgetWriteLocked(o)
	for _, d := range w.waiting {
		d.reach(w.reached)
	}
	if w.Leaving {
		switch {
		case w.reached >= tier.LevelLogged:
			wr.cat.Counters.Demoted++
		case w.admitted:
			wr.cat.Counters.DemotionsFailed++
		default:
			wr.cat.Counters.DemotionsRefused++
		}
	}
	if n := o.Label(); w.Removed && !slices.ContainsFunc(wr.ByName[n], func(other *objects.Object) bool { return WriteOf(other).Removed }) {
		wr.cat.Running.Add(1)
		wr.removals = append(wr.removals, n)
	}
	wr.cat.Objects.Policies.Rank(o)
	for _, g := range f.Followers() {
		follower := g.Job.(*write)
		follower.want = min(follower.want, max(w.reached, tier.LevelLogged))
	}
	wr.cat.Objects.Account(o)
	wr.ended++
	wr.cat.Changed.Broadcast()
	wr.freed()
}

// Release records that the tier does not read the object's memory any more.
func (w *write) Release(*transfer.Flight) {
	wr := w.owner
	w.tier, w.running = nil, 0
	wr.cat.Counters.Writing--
	wr.lastSweep = wr.cat.Sweeps
	wr.cat.Running.Done()
}

// forgetWriteLocked removes the write of an object.
func (wr *Writes) forgetWriteLocked(o *objects.Object) {
	n := o.Label()
	left := slices.DeleteFunc(wr.ByName[n], func(other *objects.Object) bool { return other == o })
	if wr.ByName[n] = left; len(left) == 0 {
		delete(wr.ByName, n)
	}
	o.Write = nil
}

// removeAgain removes entries that an operator removed while they were being written.
func (wr *Writes) removeAgain() {
	wr.cat.Mu.Lock()
	names := wr.removals
	wr.removals = nil
	wr.cat.Mu.Unlock()
	for i := range names {
		wr.cat.Config.Lower.Remove(&names[i])
		wr.EndDeletion(names[i])
		wr.cat.Running.Done()
	}
}

// moving reports whether the tier is working on a write, or on one that it follows.
func (w *write) moving() bool {
	for f := w.Flight; f != nil; f = f.Lead() {
		if f.Moving() {
			return true
		}
	}
	return false
}

// kickLocked offers the parked writes to the tier again, in order.
func (wr *Writes) kickLocked() {
	if wr.Engine != nil {
		wr.Engine.Kick()
	}
}

// resumeLocked is kickLocked in a sweep: the cleaner continues after a failed write.
func (wr *Writes) resumeLocked() {
	wr.kickLocked()
	wr.cleanerHolds = false
}

// withdrawLocked cancels the write of an object that is being evicted, if the tier is not
// working on it.
func (wr *Writes) withdrawLocked(o *objects.Object) {
	w := WriteOf(o)
	w.Leaving = true
	wr.Engine.Cancel(w.Flight, transfer.ErrStopped)
}

// HungSweeps is a number of sweeps, usually one per second. If no write has ended during
// this number of sweeps, the store no longer counts on memory that running writes will
// free. The disk tier takes the same time to report that its disk hangs.
const HungSweeps = 5

// WritesHangLocked reports whether writes to the lower tier are running but have not ended
// for HungSweeps sweeps.
func (wr *Writes) WritesHangLocked() bool {
	return wr.cat.Counters.Writing > 0 && wr.cat.Sweeps-wr.lastSweep >= HungSweeps
}

// DurableLocked requests a write of an object and returns its Durable. If the parameter
// counted is true, the first Wait counts as an acknowledgement. If the tier refuses the
// write for a reason other than being busy, the Durable is done at once.
func (wr *Writes) DurableLocked(o *objects.Object, level tier.Level, counted bool) *Durable {
	d := &Durable{done: make(chan struct{})}
	if counted {
		d.counts = wr.cat
	}
	err := wr.WantLocked(o, level, true)
	switch {
	case o.Write != nil:
		w := WriteOf(o)
		w.waiting = append(w.waiting, d)
	case err != nil:
		d.reach(tier.LevelMemory)
	default:
		d.reach(o.Stored)
	}
	return d
}

// BeginDeletionLocked starts to remove a name from the lower tier. The first result reports
// whether the lower tier has the name. The second result reports whether the name is being
// written; then it is removed again after the write.
func (wr *Writes) BeginDeletionLocked(n tier.Name) (below, coming bool) {
	if wr.cat.Config.Lower == nil {
		return false, false
	}
	below = wr.noteRemovalLocked(n)
	wr.cat.Objects.Below.Deleting[n]++
	known := false // an earlier removal of the name exists and waits for the last of its writes
	for _, o := range wr.ByName[n] {
		w := WriteOf(o)
		known, coming = known || w.Removed, coming || !w.Removed
		w.Removed = true
	}
	if coming && !known {
		wr.cat.Objects.Below.Deleting[n]++
	}
	return below, coming
}

// noteRemovalLocked records that an operator removed an entry of the lower tier, so that
// later misses report that reason. It reports whether the lower tier has the entry.
func (wr *Writes) noteRemovalLocked(n tier.Name) (held bool) {
	if wr.cat.Objects.Below.Deleting[n] > 0 {
		return false
	}
	e := wr.cat.Objects.Below.Entry(n)
	if e == nil {
		return false
	}
	if p := wr.cat.Registered(e.Fingerprint); p != nil {
		wr.cat.Objects.Names.Ghosts.Note(ghost.Entry{Key: n.Key, Profile: p.ID, Tenant: e.Tenant, Reason: tier.ReasonRemoved, Tokens: uint32(e.HitTokens())})
	}
	return true
}

// EndDeletion ends the removal of a name from the lower tier.
func (wr *Writes) EndDeletion(n tier.Name) {
	wr.cat.Mu.Lock()
	if wr.cat.Objects.Below.Deleting[n]--; wr.cat.Objects.Below.Deleting[n] == 0 {
		delete(wr.cat.Objects.Below.Deleting, n)
		wr.kickLocked() // the next write of this name may be waiting
	}
	wr.cat.Mu.Unlock()
	wr.cat.Launch()
}
