package server

import (
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// Bounds on the addresses that memory of clients takes. A process has 128 TiB, and an
// arena may take half of them; without any left it cannot start a thread. What is
// mapped costs addresses whether it is backed or not.
const (
	mappedInAll   = 32 << 40
	mappedByOne   = 8 << 40 // connection
	leastMapped   = 4 << 30 // counted for a mapping at least: the kernel gives a process 65,530 of them
	userShare     = 4       // one user gets all but one in so many
	mostOneMemory = 1 << 46 // bytes of registered memory that make sense at all
)

// budget is what all clients share: so many bytes, of which those of one user get
// three quarters at most, so that others find room.
type budget struct {
	what  string
	total int64
	share int64 // most of one user

	mu struct {
		sync.Mutex
		taken int64
		users map[uint32]int64 // bytes by uid
	}
}

// newBudget makes a budget; least is what a user may have in any case.
func newBudget(what string, total, least int64) *budget {
	b := &budget{what: what, total: total, share: max(total-total/userShare, least)}
	b.mu.users = map[uint32]int64{}
	return b
}

// take takes bytes for a user, or nothing.
func (b *budget) take(uid uint32, bytes int64) error {
	return b.takeOf(uid, 0, func(int64) int64 { return bytes })
}

// takeFirst is take that leaves the second half of what a user may have to others.
func (b *budget) takeFirst(uid uint32, bytes int64) error {
	return b.takeOf(uid, b.share/2, func(int64) int64 { return bytes })
}

// takeOf takes what choose makes of what is left for a user above a rest, and nothing
// when that is more.
func (b *budget) takeOf(uid uint32, rest int64, choose func(left int64) int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	mine := b.mu.users[uid]
	left := min(b.total-b.mu.taken, b.share-mine) - rest
	bytes := choose(left)
	if bytes > left {
		return codes.Refuse(wire.Full, "%d bytes of %s: %d of %d are taken, %d of the %d that one user may have by user %d",
			bytes, b.what, b.mu.taken, b.total, mine, b.share, uid)
	}
	b.mu.taken += bytes
	b.mu.users[uid] = mine + bytes
	return nil
}

// giveBack ends take.
func (b *budget) giveBack(uid uint32, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.taken -= bytes
	if b.mu.users[uid] -= bytes; b.mu.users[uid] == 0 {
		delete(b.mu.users, uid)
	}
}

// used is what is taken by all.
func (b *budget) used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.taken
}

// takeMapped counts a mapping of so many bytes for a connection.
func (s *Server) takeMapped(a *attachment, bytes int64) error {
	bytes = max(bytes, leastMapped)
	have := a.mapped.Add(bytes)
	err := error(nil)
	if have > mappedByOne {
		err = codes.Refuse(wire.Full, "%d bytes of registered memory: the connection has %d of %d", bytes, have-bytes, int64(mappedByOne))
	} else {
		err = s.mapped.take(a.uid, bytes)
	}
	if err != nil {
		a.mapped.Add(-bytes)
	}
	return err
}

// giveBackMapped ends takeMapped.
func (s *Server) giveBackMapped(a *attachment, bytes int64) {
	bytes = max(bytes, leastMapped)
	a.mapped.Add(-bytes)
	s.mapped.giveBack(a.uid, bytes)
}
