package server

import (
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/socket"
)

// guessPause is what a wrong token costs. Those of all connections take turns, so that
// more connections guess no faster: 4 in a second. A client that shows a wrong token by
// mistake is answered within its time to attach.
const guessPause = 250 * time.Millisecond

// wrongToken holds up the answer to a token that is not a tenant's, and logs it.
func (s *Server) wrongToken(p *socket.Peer, tenant string) {
	select {
	case s.guessing <- struct{}{}:
	case <-s.closing:
		return
	}
	s.log.Warn().Uint32("uid", p.UID).Int32("pid", p.PID).Str("tenant", tenant).Msg("a tenant's token was refused")
	s.pause(guessPause)
	<-s.guessing
}

// paced bounds lines of the log about what anybody may do as often as he likes: one in a
// second, which says how many there would have been since the one before.
type paced struct {
	last time.Time
	more int
}

func (p *paced) due(now time.Time) (more int, due bool) {
	if now.Sub(p.last) < time.Second {
		p.more++
		return 0, false
	}
	more, p.last, p.more = p.more, now, 0
	return more, true
}

// placeLocked says whether a user may have one more connection. No user gets the last
// eighth of them beside his own, so that he cannot keep all others out.
func (s *Server) placeLocked(uid uint32) error {
	most := s.config.MaxConnections
	if len(s.mu.conns) >= most {
		return codes.Refuse(wire.Busy, "%d connections, the most of this daemon", most)
	}
	his := 0
	for _, c := range s.mu.conns {
		if c.peer.UID == uid {
			his++
		}
	}
	if share := most - most/8; his >= share {
		return codes.Refuse(wire.Busy, "%d connections of user %d, the most of one user", share, uid)
	}
	return nil
}
