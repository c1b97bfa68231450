package parallel

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
)

// rowState is the state of a row that another engine computes, or of which another engine
// computes the first piece and this plan's own engine the last.
//
//	open ──► coming ──► committed        its segment is being fetched, and is here
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
	pieceCame                 // its first piece is leased here
	failed
	timePassed
	rowEvents
)

// stays means no change: the row is settled.
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
	room  int64              // bytes reserved for it
	late  time.Time          // when it becomes late
	alone float64            // ms that the requesting engine would take
	cut   int                // 0 = in one piece
	left  profile.SegmentKey // of the tokens before cut
	first share              // engine that computes [0, cut)
	last  share              // engine that computes the rest, or the whole row
}

// share is an engine of a node that computes a piece.
type share struct {
	node   int // -1 = the requesting engine
	engine uint64
}

// move is the only function that changes the state of a row. settled reports whether this
// call settled it.
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

// Progress is the progress of a row, as reported to clients, numbered as in the wire
// protocol.
type Progress uint8

// The values of Progress.
const (
	Committed Progress = 1
	Aborted   Progress = 2
	Late      Progress = 3
	Piece     Progress = 4
)

var progressOf = [rowStates]Progress{committed: Committed, pieceHere: Piece, aborted: Aborted, tooLate: Late}

// RowProgress is an event of a row.
type RowProgress struct {
	Row int
	Progress
}

// Reason is the reason why a plan was not started, numbered as in the wire protocol.
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
