// Package budget divides what all clients of a daemon share: bytes, descriptors, places
// of profiles. What one client, user or tenant may take of it is bounded, so that none
// takes all.
package budget

import (
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// userShare: one user gets all but one part in so many.
const userShare = 4

// Bytes are so many bytes that all clients share, of which those of one user get three
// quarters at most, so that others find room.
type Bytes struct {
	what  string
	total int64
	share int64 // most of one user

	mu struct {
		sync.Mutex
		taken int64
		users map[uint32]int64 // bytes by uid
	}
}

// NewBytes makes them; what names them in errors, and least is what a user may have in any case.
func NewBytes(what string, total, least int64) *Bytes {
	b := &Bytes{what: what, total: total, share: max(total-total/userShare, least)}
	b.mu.users = map[uint32]int64{}
	return b
}

// Take takes bytes for a user, or nothing.
func (b *Bytes) Take(uid uint32, bytes int64) error {
	return b.TakeOf(uid, 0, func(int64) int64 { return bytes })
}

// TakeFirst is Take that leaves the second half of what a user may have to others.
func (b *Bytes) TakeFirst(uid uint32, bytes int64) error {
	return b.TakeOf(uid, b.share/2, func(int64) int64 { return bytes })
}

// TakeOf takes what choose makes of what is left for a user above a rest, and nothing
// when that is more.
func (b *Bytes) TakeOf(uid uint32, rest int64, choose func(left int64) int64) error {
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

// Add takes bytes that cannot be refused any more. Who adds has asked Left.
func (b *Bytes) Add(uid uint32, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.taken += bytes
	b.mu.users[uid] += bytes
}

// Left is what a user may take now.
func (b *Bytes) Left(uid uint32) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return min(b.total-b.mu.taken, b.share-b.mu.users[uid])
}

// GiveBack ends Take and Add.
func (b *Bytes) GiveBack(uid uint32, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.taken -= bytes
	if b.mu.users[uid] -= bytes; b.mu.users[uid] == 0 {
		delete(b.mu.users, uid)
	}
}

// Used is what is taken by all.
func (b *Bytes) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.taken
}
