package plan

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// bufferState has the positions of a buffer's rows and the operations on it. Appending
// adds rows at the end. A flush moves rows from the front into the base.
//
//	base ── row begin ── … ── row accepted-1 ── row accepted ── … ── row end-1
//	states       accepted                           drafted
//
//	        beginAppend              beginFlush, nothing else running
//	 idle ───────────────► appending          idle ──────► flushing
//	   ▲ ◄─────────────────────┘                ▲ ◄────────────┘
//
//	 any ──release──► ending ──last operation ends──► ended
//
// Replays may run while the buffer is idle or appending. If no operation runs, release
// leads directly to ended.
//
// Invariant: begin <= accepted <= end <= begin+capacity.
//
// Invariant: an operation reads only rows before the position accepted. An append writes
// only rows from the position end on. So an append may run concurrently with other
// operations.
type bufferState struct {
	phase    bufferPhase
	running  int // appends, flushes and replays
	capacity int
	begin    int // prompt position, like accepted and end
	accepted int
	end      int
}

type bufferPhase uint8

const (
	bufferIdle      bufferPhase = iota
	bufferAppending             // rows from the position end on are being written
	bufferFlushing              // the base is being advanced
	bufferEnding                // released, but an operation is still running
	bufferEnded                 // its memory can be freed
)

type bufferEventKind uint8

const (
	beginAppend bufferEventKind = iota // an append of rows begins, from the position token on
	endAppend                          // the append of rows has ended
	failAppend
	acceptRows // keep the first drafted rows, as many as the field rows says, and drop the others
	beginReplay
	endReplay
	beginFlush // a flush of the rows before the position token begins
	endFlush   // the base includes the rows before the position token
	failFlush
	release
)

// bufferEvent is an event in the life of a buffer.
type bufferEvent struct {
	kind  bufferEventKind
	token int // a prompt position
	rows  int
}

// newBufferState returns an idle buffer without rows.
func newBufferState(begin, capacity int) bufferState {
	return bufferState{capacity: capacity, begin: begin, accepted: begin, end: begin}
}

// transition is the only function that changes a buffer's state. An event that is refused
// changes nothing. The end of an operation after release takes effect, but returns ErrGone.
func (s *bufferState) transition(e bufferEvent) error {
	if err := s.refuse(e); err != nil {
		return err
	}
	switch e.kind {
	case beginAppend:
		s.phase = bufferAppending
		s.running++
	case beginFlush:
		s.phase = bufferFlushing
		s.running++
	case beginReplay:
		s.running++
	case acceptRows:
		s.accepted += e.rows
		s.end = s.accepted
	case release:
		if s.phase = bufferEnding; s.running == 0 {
			s.phase = bufferEnded
		}
	default:
		return s.finish(e)
	}
	return nil
}

// finish ends an operation.
func (s *bufferState) finish(e bufferEvent) error {
	s.running--
	if s.phase == bufferEnding {
		if s.running == 0 {
			s.phase = bufferEnded
		}
		return tier.ErrGone
	}
	switch e.kind {
	case endReplay:
		return nil
	case endAppend:
		s.end += e.rows
	case endFlush:
		s.begin = e.token
	}
	s.phase = bufferIdle
	return nil
}

// refuse returns why an event is not allowed. Events that can only be a bug panic.
func (s *bufferState) refuse(e bufferEvent) error {
	ended := s.phase >= bufferEnding
	switch e.kind {
	case beginAppend:
		switch {
		case ended:
			return tier.ErrGone
		case s.phase != bufferIdle:
			return fmt.Errorf("is being written: %w", tier.ErrBusy)
		case e.token != s.end:
			return fmt.Errorf("ends at token %d, the rows begin at %d: %w", s.end, e.token, tier.ErrInvalid)
		case s.end+e.rows-s.begin > s.capacity:
			return fmt.Errorf("%d rows beside %d, the most is %d: %w", e.rows, s.end-s.begin, s.capacity, tier.ErrFull)
		}
	case acceptRows:
		switch {
		case ended:
			return tier.ErrGone
		case s.phase != bufferIdle:
			return fmt.Errorf("is being written: %w", tier.ErrBusy)
		case e.rows < 0 || e.rows > s.end-s.accepted:
			return fmt.Errorf("accept %d of %d drafted rows: %w", e.rows, s.end-s.accepted, tier.ErrInvalid)
		}
	case beginReplay, beginFlush:
		switch {
		case ended:
			return tier.ErrGone
		case e.token < s.begin || e.token > s.accepted:
			return fmt.Errorf("has the states of tokens %d to %d, not %d: %w", s.begin, s.accepted, e.token, tier.ErrInvalid)
		case s.phase == bufferFlushing || e.kind == beginFlush && s.running > 0:
			return fmt.Errorf("is in use: %w", tier.ErrBusy)
		}
	case release:
		if ended {
			return tier.ErrGone
		}
	default:
		s.mustEnd(e.kind)
	}
	return nil
}

// mustEnd panics unless an operation of this kind is running.
func (s *bufferState) mustEnd(kind bufferEventKind) {
	of := bufferIdle
	switch kind {
	case endAppend, failAppend:
		of = bufferAppending
	case endFlush, failFlush:
		of = bufferFlushing
	}
	if s.running == 0 || of != bufferIdle && s.phase != of && s.phase != bufferEnding {
		panic(fmt.Sprintf("plan: event %d ends nothing in phase %d with %d running", kind, s.phase, s.running))
	}
}
