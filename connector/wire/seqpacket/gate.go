package seqpacket

import "sync/atomic"

// gate counts the calls that use a descriptor. Without the count, a call that is still running
// could use a descriptor number that the kernel has reassigned after Close.
//
// Invariant: users never rises from zero. The call that brings users to zero closes the
// descriptor.
type gate struct {
	users atomic.Int32 // calls inside, plus one until shut
	shut  atomic.Bool
}

// enter reports whether the caller may use the descriptor until leave.
func (g *gate) enter() bool {
	for {
		n := g.users.Load()
		if n == 0 || g.shut.Load() {
			return false
		}
		if g.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave reports whether the caller is the last and must close the descriptor.
func (g *gate) leave() bool { return g.users.Add(-1) == 0 }
