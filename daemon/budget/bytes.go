// Package budget divides resources that all clients of a daemon share: bytes, descriptors, places
// of profiles. It limits the share of one client, user or tenant, so that none can take all.
package budget

import (
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// userShare: a user may have at most 1 - 1/userShare of all bytes.
const userShare = 4

// Bytes is a byte budget that all clients share. One user may reserve at most three quarters of it,
// so that other users find room.
type Bytes struct {
	what  string
	total int64
	share int64 // limit of one user

	mu struct {
		sync.Mutex
		taken int64
		users map[uint32]int64 // bytes by uid
	}
}

// NewBytes creates a budget. Errors call it by the parameter what. The limit of one user is no less
// than the parameter least.
func NewBytes(what string, total, least int64) *Bytes {
	b := &Bytes{what: what, total: total, share: max(total-total/userShare, least)}
	b.mu.users = map[uint32]int64{}
	return b
}

// Take reserves bytes for a user. If they are not available, it reserves nothing.
func (b *Bytes) Take(uid uint32, bytes int64) error {
	return b.TakeOf(uid, 0, func(int64) int64 { return bytes })
}

// TakeFirst is like Take, but leaves at least half of a user's limit free.
func (b *Bytes) TakeFirst(uid uint32, bytes int64) error {
	return b.TakeOf(uid, b.share/2, func(int64) int64 { return bytes })
}

// TakeOf calls the function choose with the number of bytes that the user may still reserve, minus
// the number in the parameter rest, which stays free. It then reserves the number of bytes that
// choose returns. If that is more than it passed to choose, it reserves nothing and returns an
// error.
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

// Add reserves bytes without checking a limit. The caller must have checked Left.
func (b *Bytes) Add(uid uint32, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.taken += bytes
	b.mu.users[uid] += bytes
}

// Left returns the bytes that a user may reserve now.
func (b *Bytes) Left(uid uint32) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return min(b.total-b.mu.taken, b.share-b.mu.users[uid])
}

// GiveBack releases bytes reserved by Take or Add.
func (b *Bytes) GiveBack(uid uint32, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.taken -= bytes
	if b.mu.users[uid] -= bytes; b.mu.users[uid] == 0 {
		delete(b.mu.users, uid)
	}
}

// Used returns the bytes reserved by all users.
func (b *Bytes) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.taken
}
