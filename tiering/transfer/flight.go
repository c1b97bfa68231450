package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Job is one transfer as its owner sees it. Begin, End and Release are called with
// the lock held, Move without it.
type Job interface {
	// Begin takes what the move needs: memory, a place in the destination. ErrPark:
	// there is nothing to take now, try again after the next Kick. ErrFollow: it
	// has called Follow. Any other error ends the flight.
	Begin(f *Flight) error
	// Move moves the bytes, or begins to, and calls moved exactly once, from any
	// goroutine, without the lock. ctx ends when the flight is canceled.
	Move(ctx context.Context, f *Flight, moved func(error))
	// Landed is called, with the lock held, after a move without an error. It may
	// find that what was moved is not wanted any more, or have the flight begin once
	// more; one that then does not begin has ended well all the same.
	Landed(f *Flight) (again bool, err error)
	// End says that the transfer is over; err says why it did not happen. Flights that follow
	// f begin or end behind it.
	End(f *Flight, err error)
	// Release gives back what Begin took.
	Release(f *Flight)
}

// What Begin answers instead of beginning; wrapped with the reason.
var (
	ErrPark   = errors.New("transfer: not now")
	ErrFollow = errors.New("transfer: behind another")
	ErrAgain  = errors.New("transfer: others first") // of an engine with workers: it has done a part, and is called again
)

// Parked is an error of Begin that parks the flight and ends it with err if it is
// parked too often.
func Parked(err error) error { return &parked{err} }

type parked struct{ err error }

func (p *parked) Error() string   { return p.err.Error() }
func (p *parked) Unwrap() []error { return []error{ErrPark, p.err} }

// state of a flight.
type state uint8

const (
	following state = iota
	ready
	parking // out of the line until the next Kick
	moving
	ended
	states
)

func (s state) String() string {
	return [...]string{"following", "ready", "parked", "moving", "ended"}[s]
}

// next says which states a flight may change to.
var next = [states][states]bool{
	following: {ready: true, ended: true},
	ready:     {following: true, parking: true, moving: true, ended: true},
	parking:   {ready: true, ended: true},
	moving:    {ready: true, ended: true},
}

// Flight is one transfer. Its methods need the engine's lock, apart from Done, and
// from Err once Done is closed.
type Flight struct {
	Job   Job
	Bytes int64 // that it counts for while it moves

	state     state
	lane      int
	urgent    bool
	moves     int // that went well
	turns     int // times it was parked
	waiters   int
	lead      *Flight // that it follows
	followers []*Flight
	cancel    context.CancelFunc
	started   time.Time
	forget    func()
	done      chan struct{}
	err       error
}

// to is the only place where the state of a flight changes.
func (f *Flight) to(s state) {
	if !next[f.state][s] {
		panic(fmt.Sprintf("transfer: a flight that is %v cannot become %v", f.state, s))
	}
	f.state = s
}

// Done is closed when the flight has ended.
func (f *Flight) Done() <-chan struct{} { return f.done }

// Ended tells whether it has.
func (f *Flight) Ended() bool { return f.state == ended }

// Moving tells whether bytes are on their way.
func (f *Flight) Moving() bool { return f.state == moving }

// Err is why a flight that has ended did not bring what it was for.
func (f *Flight) Err() error { return f.err }

// Urgent tells whether somebody waits for it.
func (f *Flight) Urgent() bool { return f.urgent }

// Join counts a caller among those that wait for the flight; Leave ends that while
// the flight has not ended. What End does for its waiters is theirs to give back.
func (f *Flight) Join()        { f.waiters++ }
func (f *Flight) Leave()       { f.waiters-- }
func (f *Flight) Waiters() int { return f.waiters }

// Lead is the flight that f follows; nil once it has ended.
func (f *Flight) Lead() *Flight { return f.lead }

// Follow has f wait until lead has ended. Behind one that failed it fails as well.
func (f *Flight) Follow(lead *Flight) {
	f.lead = lead
	lead.followers = append(lead.followers, f)
}

// Followers are those that wait for f and have not ended meanwhile.
func (f *Flight) Followers() []*Flight {
	live := f.followers[:0]
	for _, g := range f.followers {
		if g.lead == f {
			live = append(live, g)
		}
	}
	f.followers = live
	return live
}
