package parallel

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
)

// rowState is the state of a row. Another engine computes the row, or its left piece if this plan's
// own engine computes the right piece.
//
//	open ──► coming ──► committed        its segment is being fetched; it is cached here
//	  │ └──────────────► pieceHere       its left piece is cached here; the own engine continues
//	  ├──► aborted, late ◄── coming      the own engine computes the row instead
//	own                                  the own engine computes the row from the start
type rowState uint8

const (
	own rowState = iota
	open
	coming
	committed
	pieceHere
	aborted
	tooLate
	rowStates
)

type rowEvent uint8

const (
	wasDone   rowEvent = iota // its worker has published the segment
	isHere                    // the segment is leased here
	pieceCame                 // the first piece is leased here
	failed
	timePassed
	rowEvents
)

// stays means that the event changes nothing, for example because the row is settled.
const stays = rowStates

var rowMoves = [rowStates][rowEvents]rowState{
	own:       {stays, stays, stays, stays, stays},
	open:      {coming, committed, pieceHere, aborted, tooLate},
	coming:    {stays, committed, pieceHere, aborted, tooLate},
	committed: {stays, stays, stays, stays, stays},
	pieceHere: {stays, stays, stays, stays, stays},
	aborted:   {stays, stays, stays, stays, stays},
	tooLate:   {stays, stays, stays, stays, stays},
}

func (s rowState) settled() bool { return s != open && s != coming }

// row is one segment of a plan. It is guarded by plan.mu.
type row struct {
	Segment
	state rowState
	room  int64              // bytes reserved for it in this node's memory
	late  time.Time          // when it becomes late
	alone float64            // ms that the requesting engine would take
	cut   int                // the right piece begins at this token; 0 = the row is not cut
	left  profile.SegmentKey // key of the segment of the tokens before cut
	first share              // engine that computes [0, cut)
	last  share              // engine that computes the right piece, or the whole row
}

// share names the engine of a node that computes a piece.
type share struct {
	node   int // index of the node in the plan; -1 = the requesting engine
	engine uint64
}

// move applies an event to the row. It reports whether that changed the row's state, and whether
// the row is settled by it. No other function changes the state of a row.
func (r *row) move(e rowEvent) (changed, settled bool) {
	to := rowMoves[r.state][e]
	if to == stays {
		return false, false
	}
	if r.state.settled() {
		panic(fmt.Sprintf("parallel: event %d of a row that is settled", e))
	}
	r.state = to
	return true, to.settled()
}

// Progress is the progress of a row, as reported to clients. The wire protocol uses the same
// numbers.
type Progress uint8

// The values of Progress.
const (
	Committed Progress = 1
	Aborted   Progress = 2
	Late      Progress = 3
	Piece     Progress = 4
)

var progressOf = [rowStates]Progress{committed: Committed, pieceHere: Piece, aborted: Aborted, tooLate: Late}

// RowProgress reports that the row with index Row of a plan is settled.
type RowProgress struct {
	Row int
	Progress
}

// Reason is the reason why a plan was not started. The wire protocol uses the same numbers.
type Reason uint8

// The values of Reason. Begun means that the plan was started.
const (
	Begun Reason = iota
	NoGain
	NoWorkers
	NotAllowed
	NoRoom
	Busy
	Off
	Here
	reasons
)
