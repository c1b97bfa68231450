package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// Requests in flight use heap memory: copies of their bodies, decoded values, token ids, and
// replies that clients have not read. A client can have many requests in flight and a user many
// connections, so the memory of all requests is bounded. One user may take three quarters of the
// bound.
const (
	// The bound in bytes is connection-memory / requestShare, at least leastRequests. Even with Go's
	// garbage, that is less than what the default settings leave next to the pools.
	requestShare  = 4
	leastRequests = 8 << 20

	// jobBytes is the cost in bytes of a request without its body: goroutine, timer, reply. perBodyByte
	// is the cost of one byte of the body and of the values decoded from it. Both are rounded up.
	jobBytes    = 16 << 10
	perBodyByte = 4
	// waitBytes is enough for any request that has to wait.
	waitBytes = jobBytes + perBodyByte*wire.MaxBody
	// cancelBytes is the cost of one row of a waiting cancellation.
	cancelBytes = 32
)

func jobCost(body []byte) int64 { return jobBytes + perBodyByte*int64(len(body)) }

// hold reserves heap memory for requests of a user.
func (s *Server) hold(uid uint32, bytes int64) error {
	if s.held.Take(uid, bytes) != nil {
		return codes.Refuse(wire.Busy, "%d bytes for a request: requests in flight of user %d, or of all users, hold the maximum", bytes, uid)
	}
	return nil
}

// holdTokens reserves memory for n token ids until the request is over. A request that is not a
// running job reserves nothing, since its number of ids is small.
func (t *task) holdTokens(n int) error {
	more := 4*int64(n) - t.tokenBytes
	if t.phase != running || more <= 0 {
		return nil
	}
	if err := t.conn.server.hold(t.at.uid, more); err != nil {
		return err
	}
	t.tokenBytes += more
	return nil
}
