package parallel

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
)

// rowState is where a row of a plan is that another engine computes, or the last piece of
// which this plan's own engine computes behind the first piece of another one.
//
//	open ──► coming ──► committed        its segment is being brought here, and is here
//	  │ └──────────────► pieceHere       its first piece is here; the rest is the engine's own
//	  ├──► aborted, late ◄── coming      the engine computes it
//	own                                  it does so from the start
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
	wasDone   rowEvent = iota // its worker has published it
	isHere                    // it is leased here
	pieceCame                 // its first piece is
	failed
	timePassed
	rowEvents
)

// stays is for what changes nothing: the row is settled.
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

// row is one segment of a plan. Guarded by plan.mu.
type row struct {
	Segment
	state rowState
	room  int64              // bytes that are accounted for it
	late  time.Time          // when it is
	alone float64            // ms that the engine that asks would take
	cut   int                // 0 = in one piece
	left  profile.SegmentKey // of the tokens before cut
	first share              // who computes [0, cut)
	last  share              // who computes the rest, or all of it
}

// share is an engine of a node that computes something.
type share struct {
	node   int // -1 = the engine that asks
	engine uint64
}

// move is the one place where a row changes its state; settled tells that it did just now.
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

// Progress of a row, as clients are told. The numbers are those of the wire.
type Progress uint8

// The progresses.
const (
	Committed Progress = 1
	Aborted   Progress = 2
	Late      Progress = 3
	Piece     Progress = 4
)

var progressOf = [rowStates]Progress{committed: Committed, pieceHere: Piece, aborted: Aborted, tooLate: Late}

// RowProgress is what happened to a row.
type RowProgress struct {
	Row int
	Progress
}

// Reason says why nothing was begun for a plan. The numbers are those of the wire.
type Reason uint8

// The reasons.
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
