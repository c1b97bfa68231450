package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// Requests in flight hold memory of the heap: their bodies, which are copied, what is
// read out of them, the ids of tokens, answers that their clients do not read. A client
// has many requests in flight and a user many connections, so that the whole of it has a
// bound of its own, of which one user gets three quarters.
const (
	// requestShare: that bound is one part in so many of connection-memory, and
	// leastRequests at least. With its garbage it stays below what the defaults leave
	// beside the pools.
	requestShare  = 4
	leastRequests = 8 << 20

	// jobBytes is of a request without its body: goroutine, timer, answer. perBodyByte
	// is of a byte of its body and what is read out of that. Both are rounded up.
	jobBytes    = 16 << 10
	perBodyByte = 4
	// waitBytes is room for any request that is to wait.
	waitBytes = jobBytes + perBodyByte*wire.MaxBody
	// cancelBytes is of a row of a cancellation that waits.
	cancelBytes = 32
)

func jobCost(body []byte) int64 { return jobBytes + perBodyByte*int64(len(body)) }

// hold takes memory for requests of a user.
func (s *Server) hold(uid uint32, bytes int64) error {
	if s.held.Take(uid, bytes) != nil {
		return codes.Refuse(wire.Busy, "%d bytes for a request: those in flight of user %d, or of all, hold what they may", bytes, uid)
	}
	return nil
}

// letGo ends hold.
func (s *Server) letGo(uid uint32, bytes int64) { s.held.GiveBack(uid, bytes) }

// holdTokens takes memory for n token ids, which this job holds until it is answered. A
// request that is no job has few, and nobody else's beside them.
func (t *task) holdTokens(n int) error {
	if t.job == nil {
		return nil
	}
	more := 4*int64(n) - t.job.tokenBytes
	if more <= 0 {
		return nil
	}
	if err := t.conn.server.hold(t.at.uid, more); err != nil {
		return err
	}
	t.job.tokenBytes += more
	return nil
}
