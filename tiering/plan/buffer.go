package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// buffer holds the rows of recent tokens together with the states that they advance. A decoding
// engine keeps it instead of a state for each token (KVBuffer). It belongs to a session and ends
// with it. Its fields do not change once it is open, except the fields base, pages and state,
// which the session's lock guards.
type buffer struct {
	id       tier.LeaseID
	scope    Scope
	geometry *Geometry
	on       *Device

	base  baseStates // the states before the first row
	pages pages      // memory of the rows; grows with them
	state bufferState
}

// baseStates are the states that rows advance. The zero value stands for zero states.
type baseStates struct {
	share
	release func()
}

func (b *baseStates) letGo() {
	if b.release != nil {
		b.release()
	}
}

// claimedBase returns base states in memory that the buffer has claimed.
func claimedBase(g *Geometry, m *Claimed) baseStates {
	return baseStates{share{parts: g.CheckpointParts(0), ref: m.Memory}, m.Release}
}

func (b *buffer) answer() BufferState {
	return BufferState{Buffer: b.id, Begin: b.state.begin, Accepted: b.state.accepted, End: b.state.end}
}

// happensLocked applies an event to the buffer's state. The first result is true if the event has
// ended the buffer. The caller must then free the buffer, after it has released the lock.
func (b *buffer) happensLocked(e bufferEvent) (last bool, err error) {
	was := b.state.phase
	if err = b.state.transition(e); err != nil {
		err = fmt.Errorf("buffer %d: %w", b.id, err)
	}
	return b.state.phase == bufferEnded && was != bufferEnded, err
}

// free frees a buffer's memory.
func (b *buffer) free() {
	b.pages.release()
	b.base.letGo()
}

// bufferLocked finds a buffer of this session. A buffer of another tenant is reported as
// missing.
func (s *Session) bufferLocked(id tier.LeaseID, sc Scope) (*buffer, error) {
	if s.mu.closed != nil {
		return nil, s.mu.closed
	}
	b := s.mu.buffers[id]
	switch {
	case b == nil || b.scope.Tenant != sc.Tenant:
		return nil, fmt.Errorf("buffer %d: %w", id, tier.ErrGone)
	case b.scope != sc:
		return nil, fmt.Errorf("buffer %d is of profile %d and rank %d, not %d and %d: %w",
			id, b.scope.Profile, b.scope.Rank, sc.Profile, sc.Rank, tier.ErrInvalid)
	}
	return b, nil
}

// Accept keeps drafted rows that a verification has confirmed and drops the other drafts.
func (s *Session) Accept(q *AcceptQuery) (BufferState, error) {
	if _, err := s.store.Geometry(q.Scope); err != nil {
		return BufferState{}, err
	}
	got, dropped, err := s.acceptRows(q)
	dropped.release()
	return got, err
}

// acceptRows does the work of Accept. It also returns the pages that have no rows any more.
func (s *Session) acceptRows(q *AcceptQuery) (got BufferState, dropped pages, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bufferLocked(q.Buffer, q.Scope)
	if err != nil {
		return got, nil, err
	}
	drafted := b.state.end - b.state.accepted
	if _, err := b.happensLocked(bufferEvent{kind: acceptRows, rows: q.Tokens}); err != nil {
		return got, nil, err
	}
	s.runner.rowsAccepted.Add(uint64(q.Tokens))
	s.runner.rowsDropped.Add(uint64(drafted - q.Tokens))
	return b.answer(), b.pages.behind(b.state.end), nil
}

// HeldRows are accepted rows of a buffer. They stay in place until Release, which is called once.
type HeldRows struct {
	On      *Device
	Release func()

	runs []rowRun
}

// Part returns the bytes of one part (a tensor) of all rows, in order.
func (h *HeldRows) Part(layer int, kind profile.PartKind) gpuipc.Ref {
	var out gpuipc.Ref
	for _, run := range h.runs {
		ref := run.part(layer, kind)
		out.Region, out.Extents = ref.Region, append(out.Extents, ref.Extents...)
	}
	return out
}

// HoldRows keeps the rows of tokens [begin, end) of a buffer in place. The error is ErrInvalid
// if some of them do not exist or are not accepted, ErrBusy if the buffer is being flushed.
func (s *Session) HoldRows(sc Scope, id tier.LeaseID, begin, end int) (*HeldRows, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bufferLocked(id, sc)
	if err != nil {
		return nil, err
	}
	if begin < b.state.begin || begin >= end {
		return nil, fmt.Errorf("buffer %d has the rows of tokens %d to %d, not [%d, %d): %w", id, b.state.begin, b.state.accepted, begin, end, tier.ErrInvalid)
	}
	if _, err := b.happensLocked(bufferEvent{kind: beginReplay, token: end}); err != nil {
		return nil, err
	}
	return &HeldRows{On: b.on, runs: b.pages.runs(begin, end-begin), Release: func() { s.releaseRows(b) }}, nil
}

func (s *Session) releaseRows(b *buffer) {
	s.mu.Lock()
	last, _ := b.happensLocked(bufferEvent{kind: endReplay}) // ErrGone: released meanwhile
	s.mu.Unlock()
	if last {
		b.free()
	}
}

// ReleaseBuffer ends a buffer. It returns false if the session has none with this id.
// Operations that still run on the buffer keep its memory until they end.
func (s *Session) ReleaseBuffer(id tier.LeaseID) bool {
	s.mu.Lock()
	b := s.mu.buffers[id]
	if b == nil {
		s.mu.Unlock()
		return false
	}
	last := s.releaseLocked(b)
	s.mu.Unlock()
	if last {
		b.free()
	}
	return true
}

func (s *Session) releaseLocked(b *buffer) (last bool) {
	delete(s.mu.buffers, b.id)
	s.runner.buffers.Add(-1)
	last, _ = b.happensLocked(bufferEvent{kind: release})
	return last
}

// Close ends all buffers. Later calls return the error why.
func (s *Session) Close(why error) {
	var free []*buffer
	s.mu.Lock()
	s.mu.closed = why
	for _, id := range slices.Sorted(maps.Keys(s.mu.buffers)) { // in order, so that a run can be replayed
		if b := s.mu.buffers[id]; s.releaseLocked(b) {
			free = append(free, b)
		}
	}
	s.mu.Unlock()
	for _, b := range free {
		b.free()
	}
}
