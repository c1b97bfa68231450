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

// The states. In the first four, up to StateFailed, the directory is open, and entries
// are found and read. In the remaining states there are no entries.
const (
	StateOK     State = iota
	StateFull         // the file system has no room to grow: new entries replace old ones
	StatePaused       // writes fail: nothing is admitted until they work again
	StateFailed       // the catalogue accepts no rows: like paused, until the catalogue can be opened again

	StateOpening    // not opened yet, or being opened
	StateMissing    // the directory does not exist, or no longer exists
	StateRefused    // the file system has no room to open the directory, is read-only, or fails
	StateLocked     // locked by another process
	StateVersion    // written by another version
	StateUnreadable // the catalogue is damaged: an operator has to repair or delete it
	StateForeign    // the directory, or a file in it, belongs to another user or is not part of a tier
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

// open reports whether the directory is open, so that entries are found and read. writable
// reports whether objects are admitted, and syncable whether the catalogue accepts rows.
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
		// A lesser problem does not replace a graver one. StateFailed, the gravest, ends
		// only when the directory is opened again.
		return to > s || to == StateOK && s != StateFailed
	case s.open():
		return to == StateOpening || to == StateMissing
	}
	return to == StateOK || !to.open()
}

// health is the state of the tier and its cause. The tier's lock guards it.
type health struct {
	state   State
	cause   error
	since   time.Time
	breaker breaker
}

// enterLocked changes the state to the parameter to, if that state may follow the current
// one. It reports whether it did. No other function changes the state.
func (t *core) enterLocked(to State, cause error, now time.Time) bool {
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
	Cause string    // error that led to the state; empty if OK
	Since time.Time // when the state was entered
	Reads bool      // reads are tried; false while the directory is not open, for a while after too many failures in a row, and while a read hangs

	// Dormant is the number of entries that are kept, but that lookups do not find, because
	// the files of their profiles cannot be used. The tier tries to read these files again.
	// DormantCause is the error of one such file.
	Dormant      int
	DormantCause string

	// ReadStalled and WriteStalled are the times that the oldest running operation of each
	// kind has been running, or 0 if that is less than volume.StallAfter. While a read
	// hangs, lookups find nothing; while a write or sync hangs, nothing is admitted.
	ReadStalled, WriteStalled time.Duration
}

// Health returns a snapshot.
func (t *core) Health() Health {
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

// stalledLocked returns how long a read and a write of the open directory have hung; 0 =
// none hangs.
func (t *core) stalledLocked() (reads, writes time.Duration) {
	if t.mount == nil {
		return 0, 0
	}
	return t.mount.Reads.Stalled(), t.mount.Writes.Stalled()
}

// readsOffLocked reports whether reads are not tried although the directory is open.
func (t *core) readsOffLocked() bool {
	b := &t.health.breaker
	return !b.closed() && b.open(t.cfg.Now()) || t.mount != nil && t.mount.Reads.Stalled() > 0
}

// trouble enters a state that an error of the disk has caused, and logs it.
func (t *core) trouble(s State, cause error) {
	now := t.cfg.Now()
	t.mu.Lock()
	news := t.enterLocked(s, cause, now)
	t.mu.Unlock()
	if news {
		t.log.Warn().Str("tier", "disk").Stringer("state", s).Err(cause).Msg("disk tier")
	}
}

// recovered enters StateOK, if the tier is still in the state from.
func (t *core) recovered(from State) {
	now := t.cfg.Now()
	t.mu.Lock()
	news := t.health.state == from && t.enterLocked(StateOK, nil, now)
	t.mu.Unlock()
	if news {
		t.log.Info().Str("tier", "disk").Stringer("was", from).Msg("disk tier is ok again")
	}
}

// missing enters StateMissing. Callers that wait for a sync are notified now: their bytes
// are lost with the directory.
func (t *core) missing(err error) {
	t.trouble(StateMissing, err)
	t.answerRaising(tier.ErrGone)
}

// afterSync returns the state after a failed sync. Even if the disk is only full, writes
// are paused, since bytes that cannot be synced are not worth writing.
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

// answer returns the error kind that the store gets for a disk error.
func answer(err error) error {
	if noSpace(err) {
		return tier.ErrFull
	}
	return tier.ErrUnavailable
}

// breaker stops reads for a while after many failures in a row, so that a dying disk does
// not delay each read. The tier's lock guards it.
type breaker struct {
	failures int
	pause    time.Duration
	until    time.Time
}

// These values are guesses. A single bad sector causes fewer failures in a row than
// breakerFailures, because its entry is forgotten.
const (
	breakerFailures = 8
	breakerMin      = time.Second
	breakerMax      = time.Minute
)

func (b *breaker) open(now time.Time) bool {
	return b.failures >= breakerFailures && now.Before(b.until)
}

// closed is a cheap check that does not read the clock: reads are certainly tried.
func (b *breaker) closed() bool { return b.failures < breakerFailures }

func (b *breaker) failed(now time.Time) {
	if b.failures++; b.failures >= breakerFailures {
		b.pause = min(max(2*b.pause, breakerMin), breakerMax)
		b.until = now.Add(b.pause)
	}
}

func (b *breaker) succeeded() { *b = breaker{} }
