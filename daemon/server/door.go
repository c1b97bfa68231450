package server

import (
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/socket"
)

// guessPause is the delay of the reply to a wrong token. The delays of all connections follow one
// another, so that more connections do not guess faster: 4 tokens per second in total. A client
// that shows a wrong token by mistake is still answered before its attach times out.
const guessPause = 250 * time.Millisecond

// wrongToken logs a token that belongs to no tenant, and delays the reply to it.
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

// paced limits log lines about events that any client can cause at will to one line per second. A
// line reports how many lines were suppressed since the previous one.
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
