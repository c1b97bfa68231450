package tiering

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// write is an object's way into the lower tier: the job of a flight, which begins as
// soon as it can, since the tier has workers of its own. It holds the object's
// memory: an object that is evicted or removed meanwhile keeps its pages until the
// tier is done. Guarded by the store's lock.
//
// Invariant: a checkpoint is offered to the tier only when its parent is there
// at the level asked for.
type write struct {
	store  *Store
	object *objects.Object
	*transfer.Flight

	want     tier.Level // highest level asked for
	running  tier.Level // of the write that the tier has; 0 = none
	reached  tier.Level // so far
	patient  bool       // parked while the tier is busy
	queued   bool       // has been parked or begun
	leaving  bool       // its object was evicted meanwhile
	removed  bool       // and its object by an operator
	admitted bool       // the tier has taken it once
	turns    int        // times it waited for its parent
	waiting  []*Durable
	tier     tier.Write // while it runs
	answer   tier.Level // of the tier
}

// writeOf is the write of an object, if it has one.
func writeOf(o *objects.Object) *write {
	w, _ := o.Write.(*write)
	return w
}

// maxTurns bounds how often a checkpoint waits for its parent, which a small
// tier may push out again before the child's turn.
const maxTurns = 3

// openWrites makes the engine that brings objects into the lower tier.
func (s *Store) openWrites() {
	s.down = transfer.New[*objects.Object](transfer.Config{Lock: &s.mu, Now: s.cfg.Now, After: s.removeAgain})
}

// launch has writes that have begun under the lock go to the tier. Whoever has called
// what may begin them calls it without the lock.
func (s *Store) launch() {
	if s.down != nil {
		s.down.Launch()
	}
	if s.out != nil {
		s.out.Launch()
	}
	s.closeDiscarded()
}

// wantLocked asks for an object to be held below at a level, those it extends
// first. It is on its way when o.write is set afterwards, and there already when
// it is not and err is nil. A patient wish waits for a tier that is busy.
func (s *Store) wantLocked(o *objects.Object, level tier.Level, patient bool) error {
	if s.cfg.Lower == nil || s.closed {
		return fmt.Errorf("%s: no lower tier: %w", o.Name(), tier.ErrUnavailable)
	}
	if w := writeOf(o); w != nil {
		w.want, w.patient = max(w.want, level), w.patient || patient
		return nil
	}
	w := &write{store: s, object: o, want: level, reached: tier.LevelMemory, patient: patient}
	if e, held := s.objects.Below(o); held {
		w.reached = e.Level
		s.objects.SetStored(o, e.Level)
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
	s.writes[n] = append(s.writes[n], o)
	f, err := s.down.Start(o, w, transfer.Options{})
	w.Flight, w.queued = f, err == nil
	s.objects.Rank(o)
	return err
}

// Begin offers an object to the tier, behind its parent.
func (w *write) Begin(f *transfer.Flight) error {
	s := w.store
	err := w.admit(f)
	switch {
	case err == nil || errors.Is(err, transfer.ErrFollow):
		return err
	case w.patient && errors.Is(err, tier.ErrBusy) && !s.closed:
		return transfer.Parked(err)
	}
	s.counters.WriteRefused(err)
	return err
}

func (w *write) admit(f *transfer.Flight) error {
	s, o := w.store, w.object
	if err := w.follow(f); err != nil {
		return err
	}
	name := o.Label()
	switch {
	case s.closed:
		return fmt.Errorf("%s: closing: %w", o.Name(), tier.ErrUnavailable)
	case w.removed:
		return fmt.Errorf("%s: removed: %w", o.Name(), tier.ErrGone)
	case s.objects.Deleting[name] > 0:
		return fmt.Errorf("%s: an older one is being removed: %w", o.Name(), tier.ErrBusy)
	}
	if e := s.objects.EntryBelow(name); e != nil && (e.Tenant != o.Tenant.ID || e.Fingerprint != o.Profile.Fingerprint() || !o.ShapeOf(e)) {
		// Hashes of checkpoints come from clients, so this need not be a
		// broken hash function.
		return fmt.Errorf("%s: the tier has one of another tenant, profile or length: %w", o.Name(), tier.ErrExists)
	}
	s.objects.YieldToWrite(o)
	tw, err := s.cfg.Lower.Admit(s.objects.Describe(o), s.roomBelow(o.Tenant))
	if err != nil {
		return err
	}
	w.tier, w.running, w.admitted = tw, w.want, true
	s.running.Add(1)
	if s.counters.Writing == 0 {
		s.writeSweep = s.sweeps
	}
	s.counters.Writing++
	return nil
}

// follow puts a write behind that of its parent, if the parent has to be written
// first.
func (w *write) follow(f *transfer.Flight) error {
	s, o, up := w.store, w.object, w.object.Parent
	if up == nil {
		return nil
	}
	e, held := s.objects.Below(up)
	if held && up.Phase == objects.Stripped {
		w.want = min(w.want, e.Level) // it cannot be made safer
		return nil
	}
	if w.turns == maxTurns && (!held || e.Level < w.want) {
		return fmt.Errorf("%s: its parent does not stay: %w", o.Name(), tier.ErrFull)
	}
	if err := s.wantLocked(up, w.want, w.patient); err != nil {
		return fmt.Errorf("%s: its parent: %w", o.Name(), err)
	}
	if up.Write == nil {
		return nil
	}
	w.turns++
	f.Follow(writeOf(up).Flight)
	return transfer.ErrFollow
}

// roomBelow is how many bytes a tenant may hold in the lower tier.
func (s *Store) roomBelow(t *objects.Tenant) int64 {
	if t.QuotaBytes == 0 {
		return math.MaxInt64
	}
	return max(0, t.QuotaBytes-t.Total())
}

// Move hands an object to the tier, which calls back when it is done.
func (w *write) Move(_ context.Context, _ *transfer.Flight, moved func(error)) {
	s, name := w.store, w.object.Name()
	w.tier.Start(w.running, func(reached tier.Level, err error) {
		w.answer = reached
		if err == nil && reached < tier.LevelLogged {
			err = fmt.Errorf("%s: written to level %v only: %w", name, reached, tier.ErrUnavailable)
		}
		moved(err)
		if errors.Is(err, tier.ErrCorrupt) {
			s.cfg.Log.Error().Err(err).Str("object", name).Msg("wrong bytes in memory")
		}
	})
}

// Landed notes what the tier holds now. A higher level may have been asked for
// meanwhile.
func (w *write) Landed(*transfer.Flight) (again bool, err error) {
	s, o := w.store, w.object
	if w.reached < tier.LevelLogged {
		s.counters.Written++
		s.counters.WrittenBytes += uint64(o.Bytes)
	}
	w.reached = max(w.reached, w.answer)
	s.objects.SetStored(o, max(o.Stored, w.answer))
	return w.want > w.running && w.answer >= w.running, nil
}

// End ends a wish, fulfilled or not.
func (w *write) End(f *transfer.Flight, err error) {
	s, o := w.store, w.object
	if !w.queued {
		s.forgetWriteLocked(o)
		return // Start says so
	}
	if err != nil && w.running != 0 {
		s.counters.WritesFailed++
		s.cleanerHolds = true
		if errors.Is(err, tier.ErrCorrupt) {
			s.objects.MarkCorrupt(o)
		}
	}
	s.forgetWriteLocked(o)
	for _, d := range w.waiting {
		d.reach(w.reached)
	}
	if w.leaving {
		switch {
		case w.reached >= tier.LevelLogged:
			s.counters.Demoted++
		case w.admitted:
			s.counters.DemotionsFailed++
		default:
			s.counters.DemotionsRefused++
		}
	}
	if n := o.Label(); w.removed && !slices.ContainsFunc(s.writes[n], func(other *objects.Object) bool { return writeOf(other).removed }) {
		s.running.Add(1)
		s.removals = append(s.removals, n)
	}
	s.objects.Rank(o)
	for _, g := range f.Followers() {
		follower := g.Job.(*write)
		follower.want = min(follower.want, max(w.reached, tier.LevelLogged))
	}
	s.objects.Account(o)
	s.writesEnded++
	s.changed.Broadcast()
	if s.up != nil {
		s.up.Kick() // promotions may wait for this room
	}
}

// Release ends that the tier reads an object.
func (w *write) Release(*transfer.Flight) {
	s := w.store
	w.tier, w.running = nil, 0
	s.counters.Writing--
	s.writeSweep = s.sweeps
	s.running.Done()
}

// forgetWriteLocked ends that an object has a write.
func (s *Store) forgetWriteLocked(o *objects.Object) {
	n := o.Label()
	left := slices.DeleteFunc(s.writes[n], func(other *objects.Object) bool { return other == o })
	if s.writes[n] = left; len(left) == 0 {
		delete(s.writes, n)
	}
	o.Write = nil
}

// removeAgain removes what an operator removed while it was written.
func (s *Store) removeAgain() {
	s.mu.Lock()
	names := s.removals
	s.removals = nil
	s.mu.Unlock()
	for i := range names {
		s.cfg.Lower.Remove(&names[i])
		s.endDeletion(names[i])
		s.running.Done()
	}
}

// moving tells whether the tier works on a write, or on one that it follows.
func (w *write) moving() bool {
	for f := w.Flight; f != nil; f = f.Lead() {
		if f.Moving() {
			return true
		}
	}
	return false
}

// kickLocked offers again, in order, what a busy tier did not take.
func (s *Store) kickLocked() {
	if s.down != nil {
		s.down.Kick()
	}
}

// withdrawLocked ends a write of an object that is being evicted and that the tier
// does not have.
func (s *Store) withdrawLocked(o *objects.Object) {
	w := writeOf(o)
	w.leaving = true
	s.down.Cancel(w.Flight, transfer.ErrStopped)
}

// lowerTier is what the store keeps of a lower tier. Guarded by the store's lock.
type lowerTier struct {
	removals   []tier.Name                     // by an operator while they were written: to be removed again
	writes     map[tier.Name][]*objects.Object // with a write, wanted or running
	down       *transfer.Engine[*objects.Object]
	up         *transfer.Engine[tier.Name]
	aheadHints transfer.Hints[wanted]
}
