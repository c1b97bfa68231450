package disk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// State is the state of the tier.
type State uint8

// The states. In the first four entries are found and read; in those after StateFailed
// there are none.
const (
	StateOK     State = iota
	StateFull         // the file system has no room to grow: new entries replace old ones
	StatePaused       // writes fail: nothing is admitted until they work again
	StateFailed       // the catalogue accepts no rows: like paused, until it can be opened again

	StateOpening    // not opened yet, or being opened
	StateMissing    // the directory does not exist, or no longer
	StateRefused    // its file system has no room to open it, is read-only, or fails
	StateLocked     // locked by another process
	StateVersion    // written by another version
	StateUnreadable // its catalogue is damaged: to be repaired, or deleted
	StateForeign    // it, or something in it, belongs to another user or is not part of a tier
	StateClosed
)

var stateNames = [...]string{"ok", "full", "paused", "failed", "opening", "missing", "refused", "locked", "version", "unreadable", "foreign", "closed"}

// String returns the state's name in metrics and output.
func (s State) String() string { return stateNames[s] }

// States calls f with every state, in order of number.
func States(f func(State)) {
	for s := range stateNames {
		f(State(s))
	}
}

// open reports whether the directory is open and entries are found and read, writable
// whether objects are admitted, syncable whether the catalogue accepts rows.
func (s State) open() bool     { return s <= StateFailed }
func (s State) writable() bool { return s <= StateFull }
func (s State) syncable() bool { return s <= StatePaused }

// leadsTo reports whether a state may be followed by another.
func (s State) leadsTo(to State) bool {
	switch {
	case s == to || s == StateClosed:
		return false
	case to == StateClosed:
		return true
	case s.open() && to.open():
		// A lesser problem does not replace a graver one. Only opening the directory
		// again clears the gravest.
		return to > s || to == StateOK && s != StateFailed
	case s.open():
		return to == StateOpening || to == StateMissing
	}
	return to == StateOK || !to.open()
}

// health is the state and its cause. Guarded by the tier's lock.
type health struct {
	state   State
	cause   error
	since   time.Time
	breaker breaker
}

// enterLocked is the only function that changes the state. It reports whether it did.
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

// Health describes the health of the tier.
type Health struct {
	State State
	Cause string    // why it is not OK
	Since time.Time // when the state was entered
	Reads bool      // reads are tried; also false after too many failures in a row, or while a read hangs

	// Entries that are kept but not found, because the files of their profiles cannot be
	// used, which is retried; and the cause for one of these.
	Dormant      int
	DormantCause string

	// How long an operation has been running, once that reaches volume.StallAfter; else
	// 0. While a read hangs, lookups find nothing; while a write or sync hangs, nothing
	// is admitted.
	ReadStalled, WriteStalled time.Duration
}

// Health returns a snapshot.
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

// stalledLocked returns how long reads and writes of the open directory have hung.
func (t *Tier) stalledLocked() (reads, writes time.Duration) {
	if t.mount == nil {
		return 0, 0
	}
	return t.mount.Reads.Stalled(), t.mount.Writes.Stalled()
}

// readsOffLocked reports whether reads are not tried although the directory is open.
func (t *Tier) readsOffLocked() bool {
	b := &t.health.breaker
	return !b.closed() && b.open(t.cfg.Now()) || t.mount != nil && t.mount.Reads.Stalled() > 0
}

// trouble enters the state for an error of the disk.
func (t *Tier) trouble(s State, cause error) {
	now := t.cfg.Now()
	t.mu.Lock()
	news := t.enterLocked(s, cause, now)
	t.mu.Unlock()
	if news {
		t.log.Warn().Str("tier", "disk").Stringer("state", s).Err(cause).Msg("disk tier")
	}
}

// recovered returns to StateOK, unless the state has changed.
func (t *Tier) recovered(from State) {
	now := t.cfg.Now()
	t.mu.Lock()
	news := t.health.state == from && t.enterLocked(StateOK, nil, now)
	t.mu.Unlock()
	if news {
		t.log.Info().Str("tier", "disk").Stringer("was", from).Msg("disk tier is ok again")
	}
}

// missing enters StateMissing. Callers that wait for a sync are notified now: what was
// written is lost with the directory.
func (t *Tier) missing(err error) {
	t.trouble(StateMissing, err)
	t.answerRaising(tier.ErrGone)
}

// afterSync returns the state after a failed sync. Even a lack of room counts as a disk
// that refuses writes: what cannot be synced is not worth writing.
func afterSync(err error) State {
	if errors.Is(err, slab.ErrMissing) {
		return StateMissing
	}
	return StatePaused
}

// afterWrite returns the state after a failed write: StateFull for a full file system,
// otherwise StatePaused.
func afterWrite(err error) State {
	if noSpace(err) {
		return StateFull
	}
	return StatePaused
}

func noSpace(err error) bool {
	return errors.Is(err, slab.ErrNoSpace) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// answer returns the kind of a disk error that the store sees.
func answer(err error) error {
	if noSpace(err) {
		return tier.ErrFull
	}
	return tier.ErrUnavailable
}

// breaker stops reads after many failures in a row, so that a dying disk does not delay
// each of them. Guarded by the tier's lock.
type breaker struct {
	failures int
	pause    time.Duration
	until    time.Time
}

// Guesses: one bad sector is read only a few times in a row.
const (
	breakerFailures = 8
	breakerMin      = time.Second
	breakerMax      = time.Minute
)

func (b *breaker) open(now time.Time) bool {
	return b.failures >= breakerFailures && now.Before(b.until)
}

// closed is the cheap check, which does not read the clock.
func (b *breaker) closed() bool { return b.failures < breakerFailures }

func (b *breaker) failed(now time.Time) {
	if b.failures++; b.failures >= breakerFailures {
		b.pause = min(max(2*b.pause, breakerMin), breakerMax)
		b.until = now.Add(b.pause)
	}
}

func (b *breaker) succeeded() { *b = breaker{} }
