package object

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// shards is the number of parts of the index. The first byte of a tag chooses the part.
const shards = 256

// maxNotes is the most notes of a shard. When it is reached, some notes are dropped.
const maxNotes = 1024

// index is the believed content of the bucket. Each shard has a list from the last
// listing, and notes about later events.
type index struct {
	shards [shards]shard
	most   int         // maximum entries of a shard
	listed atomic.Bool // at least one pass has ended
	cut    atomic.Int64
}

type shard struct {
	list atomic.Pointer[[]uint64] // sorted short tags; never changed
	cut  atomic.Bool              // list does not have all listed objects

	mu    sync.Mutex
	notes map[uint64]note
	// passes counts the listings of the shard that have begun. A listing may use a page
	// that was requested shortly before it began, so its list may miss an event noted just
	// before. Only the second listing that begins after a note is certain to reflect it.
	passes int
}

// note is the state of one object. It holds until a time; zero = until a listing reflects it.
type note struct {
	what  what
	pass  int
	until time.Time
}

type what uint8

const (
	unknown what = iota // not listed, but the index may be incomplete
	present
	absent
	wrong // its bytes are wrong
)

func newIndex(bytes int64) *index {
	return &index{most: int(bytes / 8 / shards)}
}

func (x *index) shard(t tag) *shard { return &x.shards[t[0]] }

// look returns the believed state of an object. It does no I/O.
func (x *index) look(t tag, now time.Time) what {
	s := x.shard(t)
	s.mu.Lock()
	n, ok := s.notes[t.short()]
	s.mu.Unlock()
	if ok && (n.until.IsZero() || now.Before(n.until)) {
		return n.what
	}
	if list := s.list.Load(); list != nil {
		if _, ok := slices.BinarySearch(*list, t.short()); ok {
			return present
		}
	}
	if x.listed.Load() && !s.cut.Load() {
		return absent
	}
	return unknown
}

// note records the state of an object.
func (x *index) note(t tag, w what, until, now time.Time) {
	s := x.shard(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notes == nil {
		s.notes = map[uint64]note{}
	}
	if _, ok := s.notes[t.short()]; !ok && len(s.notes) >= maxNotes {
		s.forgetLocked(now)
	}
	s.notes[t.short()] = note{w, s.passes, until}
}

// forget drops the note of an object.
func (x *index) forget(t tag) {
	s := x.shard(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.notes, t.short())
}

// forgetLocked makes room for a note. It drops expired notes, and also other notes if that
// is not enough.
func (s *shard) forgetLocked(now time.Time) {
	for k, n := range s.notes {
		if !n.until.IsZero() && !now.Before(n.until) {
			delete(s.notes, k)
		}
	}
	for k := range s.notes {
		if len(s.notes) < maxNotes {
			return
		}
		delete(s.notes, k)
	}
}

// begin starts the listing of a shard.
func (x *index) begin(i int) {
	s := &x.shards[i]
	s.mu.Lock()
	s.passes++
	s.mu.Unlock()
}

// settle adopts the list of shard i, whose listing the method begin has started. It drops
// the notes that the list reflects. Notes about wrong objects stay until they expire.
func (x *index) settle(i int, list []uint64, now time.Time) {
	s := &x.shards[i]
	if !slices.IsSorted(list) {
		slices.Sort(list)
	}
	cut := len(list) > x.most
	if cut {
		list = list[:x.most]
	}
	list = slices.Clip(list)
	s.list.Store(&list)
	if s.cut.Swap(cut) != cut {
		if cut {
			x.cut.Add(1)
		} else {
			x.cut.Add(-1)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, n := range s.notes {
		over := !n.until.IsZero() && !now.Before(n.until)
		if over || n.what != wrong && n.pass < s.passes-1 {
			delete(s.notes, k)
		}
	}
}

// size returns the number of known objects.
func (x *index) size() (n int) {
	for i := range x.shards {
		s := &x.shards[i]
		if list := s.list.Load(); list != nil {
			n += len(*list)
		}
		s.mu.Lock()
		for _, note := range s.notes {
			if note.what == present {
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}
