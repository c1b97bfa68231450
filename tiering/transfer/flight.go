package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Job is one transfer from its owner's point of view. Begin, End and Release are called
// with the lock held, Move without it.
type Job interface {
	// Begin allocates what the move needs: memory, a place in the destination. ErrPark:
	// nothing is available now, try again after the next Kick. ErrFollow: it has called
	// Follow. Any other error ends the flight.
	Begin(f *Flight) error
	// Move moves the bytes, or starts to, and calls moved exactly once, from any
	// goroutine, without the lock. ctx ends when the flight is canceled.
	Move(ctx context.Context, f *Flight, moved func(error))
	// Landed is called, with the lock held, after a move without an error. It may return
	// an error if the result is no longer wanted, or again to begin the flight once more.
	// If it then does not begin, it has still succeeded.
	Landed(f *Flight) (again bool, err error)
	// End ends the transfer; err says why it failed. Flights that follow f begin or end
	// after it.
	End(f *Flight, err error)
	// Release releases what Begin allocated.
	Release(f *Flight)
}

// Results of Begin other than success or failure, wrapped with the reason.
var (
	ErrPark   = errors.New("transfer: not now")
	ErrFollow = errors.New("transfer: behind another")
	ErrAgain  = errors.New("transfer: others first") // for an engine with workers: Begin has done a part, and is called again
)

// Parked returns an error for Begin that parks the flight and ends it with err if it is
// parked too often.
func Parked(err error) error { return &parked{err} }

type parked struct{ err error }

func (p *parked) Error() string   { return p.err.Error() }
func (p *parked) Unwrap() []error { return []error{ErrPark, p.err} }

// state is the state of a flight.
type state uint8

const (
	following state = iota
	ready
	parking // not in a line until the next Kick
	moving
	ended
	states
)

func (s state) String() string {
	return [...]string{"following", "ready", "parked", "moving", "ended"}[s]
}

// next lists the possible state changes of a flight.
var next = [states][states]bool{
	following: {ready: true, ended: true},
	ready:     {following: true, parking: true, moving: true, ended: true},
	parking:   {ready: true, ended: true},
	moving:    {ready: true, ended: true},
}

// Flight is one transfer. Its methods need the engine's lock, except Done, and Err once
// Done is closed.
type Flight struct {
	Job   Job
	Bytes int64 // counted while it moves

	state     state
	lane      int
	urgent    bool
	moves     int // successful moves
	turns     int // times it was parked
	waiters   int
	lead      *Flight // flight that it follows
	followers []*Flight
	cancel    context.CancelFunc
	started   time.Time
	forget    func()
	done      chan struct{}
	err       error
}

// to is the only function that changes the state of a flight.
func (f *Flight) to(s state) {
	if !next[f.state][s] {
		panic(fmt.Sprintf("transfer: a flight that is %v cannot become %v", f.state, s))
	}
	f.state = s
}

// Done returns a channel that is closed when the flight has ended.
func (f *Flight) Done() <-chan struct{} { return f.done }

// Ended reports whether the flight has ended.
func (f *Flight) Ended() bool { return f.state == ended }

// Moving reports whether bytes are being moved.
func (f *Flight) Moving() bool { return f.state == moving }

// Err returns why a flight that has ended failed.
func (f *Flight) Err() error { return f.err }

// Urgent reports whether a caller waits for the flight.
func (f *Flight) Urgent() bool { return f.urgent }

// Join adds a waiter to the flight; Leave removes one while the flight has not ended.
// What End allocates for its waiters is theirs to release.
func (f *Flight) Join()        { f.waiters++ }
func (f *Flight) Leave()       { f.waiters-- }
func (f *Flight) Waiters() int { return f.waiters }

// Lead returns the flight that f follows; nil once that has ended.
func (f *Flight) Lead() *Flight { return f.lead }

// Follow makes f wait until lead has ended. If lead fails, f fails as well.
func (f *Flight) Follow(lead *Flight) {
	f.lead = lead
	lead.followers = append(lead.followers, f)
}

// Followers returns the flights that wait for f and have not ended meanwhile.
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
