package gpu

import (
	"fmt"
	"sync"
)

// State is how a device does.
type State uint8

// The states of a device.
const (
	Opening State = iota // the driver was asked for it
	Serving              // its memory is lent
	Missing              // it could not be opened, or gave no memory for copies
	Lost                 // it gives no service any more
	States               // how many there are
)

func (s State) String() string { return [States]string{"opening", "serving", "missing", "lost"}[s] }

// event is what happens to a device.
type event uint8

const (
	onServe event = iota // its memory is there
	onFail               // it gives no service
	events
)

// moves is the whole of a device's life: the state after an event. What is over stays so.
var moves = [States][events]State{
	Opening: {onServe: Serving, onFail: Missing},
	Serving: {onServe: Serving, onFail: Lost},
	Missing: {onServe: Missing, onFail: Missing},
	Lost:    {onServe: Lost, onFail: Lost},
}

// life is the state of a device, and why.
type life struct {
	mu    sync.Mutex
	state State
	why   error // of Missing and Lost: the first
	told  func(to State, why error)
}

// happened is the one place where a device changes its state.
func (l *life) happened(e event, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to := moves[l.state][e]
	if to == l.state {
		return
	}
	l.state, l.why = to, why
	if l.told != nil {
		l.told(to, why)
	}
}

// Listen has f told of each state that a device enters, and of that which it is in unless
// it is being opened. f is called with a lock held and must not wait.
func (d Devices) Listen(f func(g *GPU, to State, why error)) {
	for _, g := range d {
		l := &g.life
		l.mu.Lock()
		l.told = func(to State, why error) { f(g, to, why) }
		if l.state != Opening {
			l.told(l.state, l.why)
		}
		l.mu.Unlock()
	}
}

// Serve says that the device's memory is there. One that has failed meanwhile stays so.
func (g *GPU) Serve() { g.life.happened(onServe, nil) }

// Fail says why the device gives no service.
func (g *GPU) Fail(why error) { g.life.happened(onFail, why) }

// State is how the device does. Trouble is why, where it does not serve.
func (g *GPU) State() (s State, trouble error) {
	g.life.mu.Lock()
	defer g.life.mu.Unlock()
	return g.life.state, g.life.why
}

// Serving reports whether the device lends its memory.
func (g *GPU) Serving() bool {
	s, _ := g.State()
	return s == Serving
}

// Trouble says for people what is wrong with the device; empty when nothing is.
func (g *GPU) Trouble() string {
	switch s, why := g.State(); {
	case s == Missing:
		return fmt.Sprintf("%s gives no memory: %v", g.Name, why)
	case s == Lost:
		return fmt.Sprintf("%s was lost (see the kernel's log for NVRM messages): nothing is there until the daemon is started again: %v", g.Name, why)
	case g.StuckCalls() > 0:
		return fmt.Sprintf("%s: %d calls of the driver on memory of other processes do not come back: what they hold stays held", g.Name, g.StuckCalls())
	}
	return ""
}
