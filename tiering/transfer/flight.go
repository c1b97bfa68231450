package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Job is the part of a flight that depends on what is moved, and to where. Begin, End and
// Release are called with the lock held, Move without it.
type Job interface {
	// Begin allocates what the move needs: memory, or a place in the destination. ErrPark
	// means that nothing is available now; the next Kick tries again. ErrFollow means that
	// Begin has called Follow. Any other error ends the flight.
	Begin(f *Flight) error
	// Move moves the bytes, or starts to. It calls moved exactly once, from any goroutine,
	// without the lock. ctx ends when the flight is canceled.
	Move(ctx context.Context, f *Flight, moved func(error))
	// Landed is called after a move without an error. It may return an error if the result is no
	// longer wanted. If the result again is true, the flight begins once more; if that fails,
	// the flight has still succeeded.
	Landed(f *Flight) (again bool, err error)
	// End ends the transfer. The parameter err says why the transfer failed; nil = it succeeded.
	// Flights that follow f begin or end after this call.
	End(f *Flight, err error)
	// Release releases what Begin allocated.
	Release(f *Flight)
}

// Errors with which Begin does not end the flight. They may be wrapped with the reason.
var (
	ErrPark   = errors.New("transfer: not now")
	ErrFollow = errors.New("transfer: behind another")
	ErrAgain  = errors.New("transfer: others first") // only with workers: call Begin again, after others had the lock
)

// Parked returns an error with which Begin parks the flight. If the flight is parked too
// often, it ends with err.
func Parked(err error) error { return &parked{err} }

type parked struct{ err error }

func (p *parked) Error() string   { return p.err.Error() }
func (p *parked) Unwrap() []error { return []error{ErrPark, p.err} }

// state is the state of a flight.
type state uint8

const (
	following state = iota
	ready
	parking // waits for a Kick
	moving
	ended
	states
)

func (s state) String() string {
	return [...]string{"following", "ready", "parked", "moving", "ended"}[s]
}

// next says which state changes of a flight are possible.
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
	Bytes int64 // counted in its lane while it moves

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

// Err returns why the flight failed; nil if it has succeeded or not ended.
func (f *Flight) Err() error { return f.err }

// Urgent reports whether a caller waits for the flight.
func (f *Flight) Urgent() bool { return f.urgent }

// Join adds a waiter to the flight. Leave removes one; it must not be called after the flight
// has ended. If End takes something into use for each waiter, the waiters release it.
func (f *Flight) Join()        { f.waiters++ }
func (f *Flight) Leave()       { f.waiters-- }
func (f *Flight) Waiters() int { return f.waiters }

// Lead returns the flight that f follows; nil if there is none or it has ended.
func (f *Flight) Lead() *Flight { return f.lead }

// Follow makes f wait until the flight lead has ended. If the flight lead fails, f fails as
// well.
func (f *Flight) Follow(lead *Flight) {
	f.lead = lead
	lead.followers = append(lead.followers, f)
}

// Followers returns the flights that wait for f.
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
