package server

import (
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/socket"
)

// guessPause is the delay of a wrong token. All connections share one sequence, so that
// more connections do not guess faster: 4 per second. A client that shows a wrong token by
// mistake is still answered within its time to attach.
const guessPause = 250 * time.Millisecond

// wrongToken delays the reply to a token that belongs to no tenant, and logs it.
func (s *Server) wrongToken(p *socket.Peer, tenant string) {
	select {
	case s.guessing <- struct{}{}:
	case <-s.closing:
		return
	}
	s.log.Warn().Uint32("uid", p.UID).Int32("pid", p.PID).Str("tenant", tenant).Msg("tenant token refused")
	s.pause(guessPause)
	<-s.guessing
}

// paced limits log lines about events that any client can cause at will to one per second.
// A line reports how many were suppressed since the previous one.
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

// placeLocked returns an error if a user may not have one more connection. A user may have
// at most 7/8 of all connections, so that one user cannot lock out the others.
func (s *Server) placeLocked(uid uint32) error {
	most := s.config.MaxConnections
	if len(s.mu.conns) >= most {
		return codes.Refuse(wire.Busy, "%d connections, the maximum of this daemon", most)
	}
	his := 0
	for _, c := range s.mu.conns {
		if c.peer.UID == uid {
			his++
		}
	}
	if share := most - most/8; his >= share {
		return codes.Refuse(wire.Busy, "%d connections of user %d, the maximum of one user", share, uid)
	}
	return nil
}
