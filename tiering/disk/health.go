package disk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// State says what the tier does at the moment.
type State uint8

// The states. In the first three entries are found and read; in those behind
// Failed there are none.
const (
	StateOK     State = iota
	StateFull         // the file system has no room to grow: new entries take the place of old ones
	StatePaused       // the disk refuses writes: nothing is admitted until it takes them again
	StateFailed       // the catalogue takes no more rows: as paused, until it could be opened again

	StateOpening    // not opened yet, or being opened
	StateMissing    // the directory is not there, or not any more
	StateRefused    // its file system has no room to open it, is read-only, or fails
	StateLocked     // another process has it
	StateVersion    // it was written by another version
	StateUnreadable // its catalogue is damaged: it has to be repaired, or deleted
	StateForeign    // it, or something in it, is another user's or no part of a tier
	StateClosed
)

var stateNames = [...]string{"ok", "full", "paused", "failed", "opening", "missing", "refused", "locked", "version", "unreadable", "foreign", "closed"}

// String names a state as metrics and people see it.
func (s State) String() string { return stateNames[s] }

// States calls f with every state, in order of number.
func States(f func(State)) {
	for s := range stateNames {
		f(State(s))
	}
}

// open: the directory is, and entries are found and read. writable: objects are
// admitted. syncable: the catalogue takes rows.
func (s State) open() bool     { return s <= StateFailed }
func (s State) writable() bool { return s <= StateFull }
func (s State) syncable() bool { return s <= StatePaused }

// leadsTo says which changes of state there are.
func (s State) leadsTo(to State) bool {
	switch {
	case s == to || s == StateClosed:
		return false
	case to == StateClosed:
		return true
	case s.open() && to.open():
		// A graver trouble is not covered up by a lighter one. Only opening the
		// directory anew mends the gravest.
		return to > s || to == StateOK && s != StateFailed
	case s.open():
		return to == StateOpening || to == StateMissing
	}
	return to == StateOK || !to.open()
}

// health is the state and what it follows from. The tier's lock guards it.
type health struct {
	state   State
	cause   error
	since   time.Time
	breaker breaker
}

// enterLocked changes the state, here and nowhere else, and says whether it did.
func (t *Tier) enterLocked(to State, cause error, now time.Time) bool {
	h := &t.health
	if !h.state.leadsTo(to) {
		return false
	}
	h.state, h.cause, h.since = to, cause, now
	if t.cfg.Changed != nil {
		t.cfg.Changed(to, cause)
	}
	t.wakeLocked()
	return true
}

// Health is how the tier does.
type Health struct {
	State State
	Cause string    // why it is not ok
	Since time.Time // when the state began
	Reads bool      // reads are tried; false also while too many in a row have failed, or one hangs

	// Entries that are kept and not found because the file of their profile does not
	// give it, which is tried again, and why the file of one does not.
	Dormant      int
	DormantCause string

	// How long an operation has not returned, once that is volume.StallAfter; else 0. While
	// a read hangs nothing is found, while a write or sync does nothing is admitted.
	ReadStalled, WriteStalled time.Duration
}

// Health takes a snapshot.
func (t *Tier) Health() Health {
	now := t.cfg.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	h := Health{State: t.health.state, Since: t.health.since}
	h.ReadStalled, h.WriteStalled = t.stalledLocked()
	h.Reads = h.State.open() && !t.health.breaker.open(now) && h.ReadStalled == 0
	if t.health.cause != nil {
		h.Cause = t.health.cause.Error()
	}
	h.Dormant, h.DormantCause = t.dormantLocked()
	return h
}

// stalledLocked is how long reads and writes of the open directory have hung.
func (t *Tier) stalledLocked() (reads, writes time.Duration) {
	if t.mount == nil {
		return 0, 0
	}
	return t.mount.Reads.Stalled(), t.mount.Writes.Stalled()
}

// readsOffLocked says whether reads are not tried although the directory is open.
func (t *Tier) readsOffLocked() bool {
	b := &t.health.breaker
	return !b.closed() && b.open(t.cfg.Now()) || t.mount != nil && t.mount.Reads.Stalled() > 0
}

// trouble sorts an error of the disk and enters the state it calls for.
func (t *Tier) trouble(s State, cause error) {
	now := t.cfg.Now()
	t.mu.Lock()
	news := t.enterLocked(s, cause, now)
	t.mu.Unlock()
	if news {
		t.log.Warn().Str("tier", "disk").Stringer("state", s).Err(cause).Msg("disk tier")
	}
}

// recovered goes back to ok, unless the state has changed.
func (t *Tier) recovered(from State) {
	now := t.cfg.Now()
	t.mu.Lock()
	news := t.health.state == from && t.enterLocked(StateOK, nil, now)
	t.mu.Unlock()
	if news {
		t.log.Info().Str("tier", "disk").Stringer("was", from).Msg("disk tier is ok again")
	}
}

// missing enters StateMissing. Who waits for a sync is told now: what was written is
// lost with the directory.
func (t *Tier) missing(err error) {
	t.trouble(StateMissing, err)
	t.answerRaising(tier.ErrGone)
}

// afterSync is the state that a failed sync calls for. Room as well is a disk that
// does not take writes: what cannot be synced is not worth writing.
func afterSync(err error) State {
	if errors.Is(err, slab.ErrMissing) {
		return StateMissing
	}
	return StatePaused
}

// afterWrite is the state that a failed write calls for: a full file system is
// full, anything else is a disk that does not take writes.
func afterWrite(err error) State {
	if noSpace(err) {
		return StateFull
	}
	return StatePaused
}

func noSpace(err error) bool {
	return errors.Is(err, slab.ErrNoSpace) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// answer is the kind that the store sees of an error of the disk.
func answer(err error) error {
	if noSpace(err) {
		return tier.ErrFull
	}
	return tier.ErrUnavailable
}

// breaker stops reads after many failures in a row, so that a dying disk does
// not hold each of them up. It is guarded by the tier's lock.
type breaker struct {
	failures int
	pause    time.Duration
	until    time.Time
}

// Guesses: one bad sector is met a few times in a row at most.
const (
	breakerFailures = 8
	breakerMin      = time.Second
	breakerMax      = time.Minute
)

func (b *breaker) open(now time.Time) bool {
	return b.failures >= breakerFailures && now.Before(b.until)
}

// closed is the cheap case: no clock needs to be asked.
func (b *breaker) closed() bool { return b.failures < breakerFailures }

func (b *breaker) failed(now time.Time) {
	if b.failures++; b.failures >= breakerFailures {
		b.pause = min(max(2*b.pause, breakerMin), breakerMax)
		b.until = now.Add(b.pause)
	}
}

func (b *breaker) succeeded() { *b = breaker{} }
