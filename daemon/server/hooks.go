package server

import "time"

// Hooks are what tests of a whole daemon do to one connection, in order of ids.
type Hooks struct{ c *conn }

// Hooks lists the connections.
func (s *Server) Hooks() []Hooks {
	var list []Hooks
	for _, c := range s.list() {
		list = append(list, Hooks{c})
	}
	return list
}

// Drop ends the connection while its client lives.
func (h Hooks) Drop() { h.c.drop(errPeerLeft) }

// Stop ends it as the end of the daemon does.
func (h Hooks) Stop() { h.c.drop(errStopping) }

// PeerGone says that the process that connected is dead.
func (h Hooks) PeerGone() { h.c.peerGone() }

// Leave ends it and gives its leases back.
func (h Hooks) Leave() { h.c.leave(errPeerLeft) }

// Fd is the descriptor of its socket.
func (h Hooks) Fd() int { return h.c.sock.Fd() }

// Ended reports whether its context has ended.
func (h Hooks) Ended() bool { return h.c.ctx.Err() != nil }

// Stopping reports whether new work is refused.
func (s *Server) Stopping() bool { return s.stopping.Load() }

// WaitStuck waits for what Stop has left.
func (s *Server) WaitStuck() {
	s.conns.Wait()
	s.queue.close()
	s.deviceQueue.close()
}

// AliveAt is Alive at another time.
func (s *Server) AliveAt(now time.Time) bool { return s.watcher.alive(now) }
