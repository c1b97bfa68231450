// Package ghost is the ghost list of a cache: the keys of objects that were evicted or
// refused most recently, each with the reason, so that a miss can say why. It has no lock;
// its owner guards it.
package ghost

import (
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Entry is the key of an object that was evicted, or was never stored.
type Entry struct {
	Key     [32]byte
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Reason  tier.Reason
	Tokens  uint32 // tokens that a hit would save
}

// List is a bounded list of keys. When it is full, a new key replaces the oldest one.
type List struct {
	index *index.Map[Entry]
	ring  []*Entry
	block []Entry // allocated entries that are not used yet
	next  int     // index of the oldest, once the ring is full
	limit int
}

// blockEntries is the number of entries that are allocated together. Entries live as long
// as the list. If each entry were allocated alone, it would lie among short-lived values of
// its size, and the heap page that it shares with them could not be freed.
const blockEntries = 256

// New returns a list of up to limit keys, at least one.
func New(limit int) *List {
	return &List{index: index.New[Entry](), limit: limit}
}

// Note adds a key. A key that is already in the list keeps its position and gets the new
// reason.
func (l *List) Note(e Entry) {
	if known := l.index.Find(&e.Key); known != nil {
		*known = e
		return
	}
	if len(l.ring) < l.limit {
		if len(l.block) == 0 {
			l.block = make([]Entry, min(blockEntries, l.limit-len(l.ring)))
		}
		fresh := &l.block[0]
		l.block = l.block[1:]
		*fresh = e
		l.ring = append(l.ring, fresh)
		l.index.Put(&fresh.Key, fresh)
		return
	}
	oldest := l.ring[l.next]
	l.next = (l.next + 1) % l.limit
	l.index.Remove(&oldest.Key)
	*oldest = e
	l.index.Put(&oldest.Key, oldest)
}

// Why returns why a key is not cached, and the tokens that a hit would save. A key of
// another tenant or profile is reported as unknown.
func (l *List) Why(key *[32]byte, p tier.ProfileID, t tier.TenantID) (tier.Reason, uint32) {
	e := l.index.Find(key)
	if e == nil || e.Profile != p || e.Tenant != t {
		return tier.ReasonUnknown, 0
	}
	return e.Reason, e.Tokens
}
