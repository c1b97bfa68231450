package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
)

// State is the state of a device.
type State uint8

// The states of a device.
const (
	Opening State = iota // the driver is opening it
	Serving              // its memory is lent
	Missing              // it could not be opened, or granted no memory for copies
	Lost                 // it has failed
	States               // number of states
)

func (s State) String() string { return [States]string{"opening", "serving", "missing", "lost"}[s] }

// event is an event in the life of a device.
type event uint8

const (
	onServe event = iota // its memory is available
	onFail               // it has failed
	events
)

// moves is the state table: moves[s][e] is the state that follows s after event e. Missing and Lost
// are final.
var moves = [States][events]State{
	Opening: {onServe: Serving, onFail: Missing},
	Serving: {onServe: Serving, onFail: Lost},
	Missing: {onServe: Missing, onFail: Missing},
	Lost:    {onServe: Lost, onFail: Lost},
}

// life is the state of a device, with the reason.
type life struct {
	mu    sync.Mutex
	state State
	why   error // first error, in state Missing or Lost
	told  func(to State, why error)
}

// happened applies an event. No other function changes the state of a device.
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

// Listen calls f for the current state of each device, unless the device is being opened, and later
// for each state that a device enters. f is called with a lock held and must not block.
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

// Serve records that the device's memory is available. If the device has failed already, its state
// stays.
func (g *GPU) Serve() { g.life.happened(onServe, nil) }

// Fail records a failure of the device.
func (g *GPU) Fail(why error) { g.life.happened(onFail, why) }

// State returns the state of the device, and the reason if the state is Missing or Lost.
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

// Trouble describes what is wrong with the device; "" = nothing is.
func (g *GPU) Trouble() string {
	switch s, why := g.State(); {
	case s == Missing:
		code, _ := codes.Of(why)
		text := fmt.Sprintf("%s is unavailable: %s", g.Name, cmp.Or(codes.Text(code, why), why.Error()))
		if errors.Is(why, cuda.ErrNoLibrary) {
			text += " (hbm-library names another library)"
		}
		return text
	case s == Lost:
		return fmt.Sprintf("%s was lost (see the kernel's log for NVRM messages): it is unavailable until the daemon is restarted: %v", g.Name, why)
	case g.StuckCalls() > 0:
		return fmt.Sprintf("%s: %d driver calls on memory of other processes do not return: that memory stays mapped", g.Name, g.StuckCalls())
	}
	return ""
}
