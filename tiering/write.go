package tiering

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// write is an object's way into the lower tier, from the wish to its end. It
// holds the object's memory: an object that is evicted or removed meanwhile
// keeps its pages until the tier is done. Guarded by the store's lock.
//
//	wanted ──► follows ──► running ──► ended: the object is held below, or not
//	    │    its parent's    ▲   │
//	    │        write       │   └── a higher level was asked for meanwhile
//	    └──► backlog ────────┘
//	      the tier is busy
//
// Invariant: a checkpoint is offered to the tier only when its parent is there
// at the level asked for.
type write struct {
	want      tier.Level // highest level asked for
	running   tier.Level // of the write that the tier has; 0 = none
	reached   tier.Level // so far
	patient   bool       // waits for a tier that is busy
	admitted  bool       // the tier has taken it once
	turns     int        // times it waited for its parent
	waiting   []*Durable
	followers []*object // checkpoints that wait for this one
}

// maxTurns bounds how often a checkpoint waits for its parent, which a small
// tier may push out again before the child's turn.
const maxTurns = 3

// outside is what a critical section has decided and is done without the lock.
type outside struct {
	starts  []writeStart
	removed []tier.Name // by an operator while they were written: to be removed again
}

type writeStart struct {
	write  tier.Write
	object *object
	level  tier.Level
}

func (s *Store) act(b *outside) {
	for i := range b.starts {
		st := &b.starts[i]
		st.write.Start(st.level, func(reached tier.Level, err error) { s.written(st.object, reached, err) })
	}
	for i := range b.removed {
		s.cfg.Lower.Remove(&b.removed[i])
		s.pardon(b.removed[i])
	}
}

// wantLocked asks for an object to be held below at a level, those it extends
// first. It is on its way when o.write is set afterwards, and there already when
// it is not and err is nil. A patient wish waits for a tier that is busy.
func (s *Store) wantLocked(o *object, level tier.Level, patient bool, b *outside) error {
	if s.cfg.Lower == nil || s.closed {
		return fmt.Errorf("%s: no lower tier: %w", o.name(), tier.ErrUnavailable)
	}
	if w := o.write; w != nil {
		w.want, w.patient = max(w.want, level), w.patient || patient
		return nil
	}
	w := &write{want: level, reached: tier.LevelMemory, patient: patient}
	if e, held := s.belowLocked(o); held {
		w.reached = e.Level
		s.storedLocked(o, e.Level)
		if e.Level >= level {
			return nil
		}
	}
	switch {
	case o.thin:
		return fmt.Errorf("%s: its states are not in memory: %w", o.name(), tier.ErrGone)
	case o.spoilt:
		return fmt.Errorf("%s: its bytes in memory are wrong: %w", o.name(), tier.ErrCorrupt)
	}
	o.write = w
	n := o.label()
	s.writes[n] = append(s.writes[n], o)
	err := s.turnLocked(o, b)
	if err != nil {
		s.unwriteLocked(o)
	}
	s.rankLocked(o)
	return err
}

// unwriteLocked ends that an object has a write.
func (s *Store) unwriteLocked(o *object) {
	n := o.label()
	left := slices.DeleteFunc(s.writes[n], func(other *object) bool { return other == o })
	if s.writes[n] = left; len(left) == 0 {
		delete(s.writes, n)
	}
	o.write = nil
}

// turnLocked moves a write on that the tier does not have: behind its parent's
// write, into the tier or into the backlog.
func (s *Store) turnLocked(o *object, b *outside) error {
	err := s.admitLocked(o, b)
	if err == nil {
		return nil
	}
	if o.write.patient && errors.Is(err, tier.ErrBusy) && !s.closed {
		s.backlog = append(s.backlog, o)
		return nil
	}
	s.counters.writeRefused(err)
	return err
}

func (s *Store) admitLocked(o *object, b *outside) error {
	w := o.write
	if waits, err := s.followLocked(o, b); waits || err != nil {
		return err
	}
	name := o.label()
	switch {
	case s.closed:
		return fmt.Errorf("%s: closing: %w", o.name(), tier.ErrUnavailable)
	case o.removed:
		return fmt.Errorf("%s: removed: %w", o.name(), tier.ErrGone)
	case s.doomed[name] > 0:
		return fmt.Errorf("%s: an older one is being removed: %w", o.name(), tier.ErrBusy)
	}
	s.asked = name
	if e, ok := s.cfg.Lower.Lookup(&s.asked); ok && (e.Tenant != o.tenant.ID || e.Fingerprint != o.profile.Fingerprint() || !o.shapeOf(&e)) {
		// Hashes of checkpoints come from clients, so this need not be a
		// broken hash function.
		return fmt.Errorf("%s: the tier has one of another tenant, profile or length: %w", o.name(), tier.ErrExists)
	}
	s.yieldToWriteLocked(o)
	tw, err := s.cfg.Lower.Admit(s.describe(o), s.roomBelow(o.tenant))
	if err != nil {
		return err
	}
	w.running, w.admitted = w.want, true
	s.running.Add(1)
	if s.counters.Writing == 0 {
		s.writeSweep = s.sweeps
	}
	s.counters.Writing++
	b.starts = append(b.starts, writeStart{tw, o, w.running})
	return nil
}

// followLocked puts a write behind that of its parent, if the parent has to be
// written first.
func (s *Store) followLocked(o *object, b *outside) (waits bool, err error) {
	w, up := o.write, o.parent
	if up == nil {
		return false, nil
	}
	e, held := s.belowLocked(up)
	if held && up.thin {
		w.want = min(w.want, e.Level) // it cannot be made safer
		return false, nil
	}
	if w.turns == maxTurns && (!held || e.Level < w.want) {
		return false, fmt.Errorf("%s: its parent does not stay: %w", o.name(), tier.ErrFull)
	}
	if err := s.wantLocked(up, w.want, w.patient, b); err != nil {
		return false, fmt.Errorf("%s: its parent: %w", o.name(), err)
	}
	if up.write == nil {
		return false, nil
	}
	w.turns++
	up.write.followers = append(up.write.followers, o)
	return true, nil
}

// roomBelow is how many bytes a tenant may hold in the lower tier.
func (s *Store) roomBelow(t *tenant) int64 {
	if t.QuotaBytes == 0 {
		return math.MaxInt64
	}
	return max(0, t.QuotaBytes-t.total())
}

// written is the tier's answer to a write.
func (s *Store) written(o *object, reached tier.Level, err error) {
	var b outside
	s.mu.Lock()
	s.writtenLocked(o, reached, err, &b)
	s.backlogLocked(&b)
	s.mu.Unlock()
	if errors.Is(err, tier.ErrCorrupt) {
		s.cfg.Log.Error().Err(err).Str("object", o.name()).Msg("wrong bytes in memory")
	}
	s.act(&b)
	s.running.Done()
}

func (s *Store) writtenLocked(o *object, reached tier.Level, err error, b *outside) {
	w := o.write
	if w == nil || w.running == 0 {
		panic(fmt.Sprintf("tiering: a write of %s ended twice", o.name()))
	}
	asked := w.running
	w.running = 0
	s.counters.Writing--
	s.writeSweep = s.sweeps
	switch {
	case err != nil || reached < tier.LevelLogged:
		s.counters.WritesFailed++
		s.cleanerHolds = true
		if errors.Is(err, tier.ErrCorrupt) {
			s.spoiltLocked(o)
		}
	default:
		if w.reached < tier.LevelLogged {
			s.counters.Written++
			s.counters.WrittenBytes += uint64(o.bytes)
		}
		w.reached = max(w.reached, reached)
		s.storedLocked(o, max(o.stored, reached))
		if w.want > asked && reached >= asked && s.turnLocked(o, b) == nil {
			return
		}
	}
	s.endWriteLocked(o, b)
}

// spoiltLocked takes an object out of memory whose bytes are not those that were
// published, as the tier found out. One that others extend stays until they have
// left, but neither it nor they are found any more.
func (s *Store) spoiltLocked(o *object) {
	s.counters.SpoiltInMemory++
	o.refused = true
	switch {
	case !o.linked:
	case o.children == 0:
		s.decideLocked(o, decision.Drop, decision.Corrupt, o.pageBytes)
		s.unlinkLocked(o, tier.ReasonAborted)
	case !o.spoilt:
		o.spoilt = true
		s.spoilt++
	}
}

// soundLocked tells whether neither an object nor what it extends is known to
// hold wrong bytes.
func (s *Store) soundLocked(o *object) bool {
	if s.spoilt == 0 {
		return true
	}
	for ; o != nil; o = o.parent {
		if o.spoilt {
			return false
		}
	}
	return true
}

// endWriteLocked ends a wish, fulfilled or not, and gives those their turn that
// waited for it.
func (s *Store) endWriteLocked(o *object, b *outside) {
	w := o.write
	s.unwriteLocked(o)
	for _, d := range w.waiting {
		s.reachLocked(d, w.reached)
	}
	if o.leaving {
		o.leaving = false
		switch {
		case w.reached >= tier.LevelLogged:
			s.counters.Demoted++
		case w.admitted:
			s.counters.DemotionsFailed++
		default:
			s.counters.DemotionsRefused++
		}
	}
	if n := o.label(); o.removed && !slices.ContainsFunc(s.writes[n], func(other *object) bool { return other.removed }) {
		b.removed = append(b.removed, n)
	}
	s.rankLocked(o)
	s.settleLocked(o)
	for _, f := range w.followers {
		if w.reached >= tier.LevelLogged {
			f.write.want = min(f.write.want, w.reached)
			if s.turnLocked(f, b) == nil {
				continue
			}
		}
		s.endWriteLocked(f, b)
	}
	s.writesEnded++
	s.changed.Broadcast()
}

// movingLocked tells whether the tier works on a write, or on one that it
// follows.
func (o *object) movingLocked() bool {
	for o.write.running == 0 {
		up := o.parent
		if up == nil || up.write == nil || !slices.Contains(up.write.followers, o) {
			return false
		}
		o = up
	}
	return true
}

// unwishLocked ends a write of an object that is being evicted and that the tier
// does not have.
func (s *Store) unwishLocked(o *object, b *outside) {
	same := func(other *object) bool { return other == o }
	s.backlog = slices.DeleteFunc(s.backlog, same)
	if up := o.parent; up != nil && up.write != nil {
		up.write.followers = slices.DeleteFunc(up.write.followers, same)
	}
	o.leaving = true
	s.endWriteLocked(o, b)
}

// dropBacklog ends the wishes that a busy tier has kept waiting.
func (s *Store) dropBacklog() {
	var b outside
	s.mu.Lock()
	for len(s.backlog) > 0 {
		o := s.backlog[0]
		s.backlog = s.backlog[1:]
		s.endWriteLocked(o, &b)
	}
	s.mu.Unlock()
	s.act(&b)
}

// backlogLocked offers again what a busy tier did not take, in order.
func (s *Store) backlogLocked(b *outside) {
	for n := len(s.backlog); n > 0; n-- {
		o := s.backlog[0]
		s.backlog = s.backlog[1:]
		others := len(s.backlog)
		if err := s.turnLocked(o, b); err != nil {
			s.endWriteLocked(o, b)
			continue
		}
		if len(s.backlog) > others { // it, or what it has to follow, went to the end
			last := s.backlog[others]
			copy(s.backlog[1:], s.backlog[:others])
			s.backlog[0] = last
			return
		}
	}
}
