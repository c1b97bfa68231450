// Package journal keeps what happened lately for people: objects that came and went,
// clients, canaries, the disk, GPUs, nodes of the cluster and what operators did. It is
// told of each by whoever decides it, keeps the last of them in memory, and lets readers
// follow. It says nothing to engines, and is not what routers are told (package events).
//
// A Journal may be used by many at once. Its lock is the last that anybody takes: it is
// held for a copy of an event, or for looking at a bounded number of them, and whoever
// appends may hold any other. Readers make text and JSON of what they copied.
//
// What the daemon and its operators do is kept apart from what clients cause, and that of each
// tenant's from that of others; and of a tenant what is rare from what comes with each request.
// None leaves for another: a GPU that was lost an hour ago can still be read of on a busy node,
// however often a client attaches. Readers see one list.
//
// Invariant: what is kept takes no more than its bound, however many events there are and
// however slow their readers: a reader is a number, and what it has not read leaves as
// anything else.
package journal

import (
	"sort"
	"sync"
	"time"
	"unsafe"

	"github.com/spliced-kv/spliced/api"
)

// Kind says what happened.
type Kind uint8

// The kinds, as api has them. Those up to Request come with requests; those up to Detached are
// what clients cause, except for what has no tenant.
const (
	Published Kind = iota
	Evicted
	Demoted
	Promoted
	Fetched
	Request
	Canary
	Disk
	GPU
	Attached
	Detached
	Peer
	Changed
	kinds
)

// String names a kind as readers see it.
func (k Kind) String() string { return api.EventKinds[k] }

// Object is what an event may be about.
type Object uint8

// The objects. Only with one of the last two a key means anything.
const (
	NoObject Object = iota
	Segment
	Checkpoint
)

func (o Object) String() string { return [...]string{"", "segment", "checkpoint"}[o] }

// Event is what is told. Fields that do not apply stay zero.
type Event struct {
	At      time.Time // zero = now
	Kind    Kind
	Object  Object
	Rivals  Object   // what Rival is; NoObject = there is none
	Key     [32]byte // of Object
	Rival   [32]byte // what it had to leave for
	Profile uint32
	Tokens  int
	Bytes   int64
	Value   float64 // milliseconds that a hit saves for each MiB
	Worth   float64 // the same of Rival
	Tenant  string
	Model   string
	Client  string
	Why     string
	Policy  string
	Text    string // for people; empty = made of the rest when it is read

	number uint64 // of all events, from 1 on, without a gap
}

// Bounds.
const (
	DefaultBytes = 4 << 20 // some 10,000 events and 3,000 rare ones; a guess: a minute of a busy node, a day of a quiet one
	rareShare    = 8       // the clients' rare events get 1/rareShare of the bytes, the daemon's another
	maxTenants   = 16      // with separate rings; further ones share one
	MaxFollowers = 32
	maxText      = 1 << 10 // bytes of a Text, and of each other string
	chunkEvents  = 16      // of memory that is taken at once
	stepEvents   = 256     // looked at while the lock is held
)

const eventBytes = int64(unsafe.Sizeof(Event{}))

// Numbers of events are ids without the part that tells the starts of a daemon apart. Both
// together are below 2^53.
const (
	numberBits = 36 // 100,000 events a second for a week; the epoch's part goes on counting after that
	epochBits  = 53 - numberBits
)

// Journal is the last events of one start of a daemon.
type Journal struct {
	// Fixed after New.
	base uint64 // id of the event before the first
	most [classes]int64
	now  func() time.Time

	mu struct {
		sync.Mutex
		rings     []*ring // of each class and tenant
		at        map[place]*ring
		tenants   map[string]struct{} // with separate rings
		next      uint64              // number
		followers map[*Follower]struct{}
		asleep    int // followers that wait
		lost      uint64
		refused   uint64
	}
}

// Counters is what a journal counts.
type Counters struct {
	Events    uint64 `count:"events" prom:"journal_events_total" help:"Events that people can follow, of all kinds."`
	Kept      uint64 `count:"kept" prom:"journal_kept_events" help:"Of these, those that are kept."`
	Bytes     uint64 `count:"bytes" prom:"journal_bytes" help:"What those take."`
	Followers uint64 `count:"followers" prom:"journal_followers" help:"Streams of events that are open."`
	Lost      uint64 `count:"lost" prom:"journal_lost_total" help:"Events that readers missed since they read more slowly than events came, or came back too late; each by the reader."`
	Refused   uint64 `count:"refused" prom:"journal_followers_refused_total" help:"Streams that were refused, since there were as many as may be."`
}

// Counters takes a snapshot.
func (j *Journal) Counters() Counters {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := Counters{Events: j.mu.next - 1, Followers: uint64(len(j.mu.followers)), Lost: j.mu.lost, Refused: j.mu.refused}
	for _, r := range j.mu.rings {
		c.Kept += r.next - r.first
		c.Bytes += uint64(r.size())
	}
	return c
}

// New makes an empty journal of at most so many bytes; epoch tells this start of the daemon
// from others.
func New(epoch uint64, bytes int64, now func() time.Time) *Journal {
	j := &Journal{base: max(1, epoch>>(64-epochBits)) << numberBits, now: now}
	j.mu.next = 1
	rare := bytes / rareShare
	j.most = [classes]int64{bytes - 2*rare, rare, rare}
	j.mu.at, j.mu.tenants = map[place]*ring{}, map[string]struct{}{}
	j.mu.followers = map[*Follower]struct{}{}
	return j
}

// Append adds an event. It waits for nobody, may be called with any lock held, and on nil
// does nothing. An event of kind Request has its way in Why and what it saved in Text.
func (j *Journal) Append(e Event) {
	if j == nil {
		return
	}
	if e.At.IsZero() {
		e.At = j.now()
	}
	for _, s := range [...]*string{&e.Tenant, &e.Model, &e.Client, &e.Why, &e.Policy, &e.Text} {
		*s = cut(*s)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e.number = j.mu.next
	j.mu.next++
	j.keepLocked(&e)
	if j.mu.asleep > 0 {
		j.wakeLocked(&e)
	}
}

// class is of events that are kept in one part of the memory.
type class uint8

const (
	often   class = iota // what comes with requests
	clients              // the rest of what clients cause
	own                  // what the daemon and its operators do
	classes
)

func (k Kind) class() class {
	switch {
	case k <= Request:
		return often
	case k == Canary || k == Attached || k == Detached:
		return clients
	}
	return own
}

// place identifies a ring.
type place struct {
	class  class
	tenant string // "" = of none, or of one of many
}

// keepLocked keeps an event. Room is made by the tenant that has most of its class.
func (j *Journal) keepLocked(e *Event) {
	p := place{class: e.Kind.class()}
	if p.class != own {
		if _, ok := j.mu.tenants[e.Tenant]; ok || len(j.mu.tenants) < maxTenants {
			j.mu.tenants[e.Tenant] = struct{}{}
			p.tenant = e.Tenant
		}
	}
	r := j.mu.at[p]
	if r == nil {
		r = &ring{class: p.class}
		j.mu.at[p] = r
		j.mu.rings = append(j.mu.rings, r)
	}
	r.add(e)
	for {
		var largest *ring
		bytes := int64(0)
		for _, one := range j.mu.rings {
			if one.class != p.class {
				continue
			}
			bytes += one.size()
			if one.next-one.first > 1 && (largest == nil || one.size() > largest.size()) {
				largest = one
			}
		}
		if largest == nil || bytes <= j.most[p.class] {
			return
		}
		largest.drop()
	}
}

// cut bounds a string. What is cut is copied, so that the rest of it can go.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return string([]byte(s[:maxText]))
}

// wakeLocked wakes those who wait for an event. The others have seen it: it is not theirs.
func (j *Journal) wakeLocked(e *Event) {
	for f := range j.mu.followers {
		switch {
		case !f.asleep:
		case f.filter.passes(e):
			f.asleep = false
			j.mu.asleep--
			f.wake <- struct{}{} // there is room: it sleeps once for each
		default:
			f.next = e.number + 1
		}
	}
}

// ring is some of the events that are kept, by places that count up: those from first up
// to, not including, next. They lie in chunks, which are taken as they are needed and used
// again.
type ring struct {
	class       class
	chunks      []*[chunkEvents]Event
	zero        uint64 // that of a place is chunks[place / chunkEvents - zero]
	first, next uint64
	dropped     uint64 // number of the event that left last
	bytes       int64  // of strings, beside chunks
	spare       *[chunkEvents]Event
}

func (r *ring) at(place uint64) *Event {
	return &r.chunks[place/chunkEvents-r.zero][place%chunkEvents]
}

// from is the place of the first event with that number or a later one.
func (r *ring) from(number uint64) uint64 {
	return r.first + uint64(sort.Search(int(r.next-r.first), func(i int) bool { return r.at(r.first+uint64(i)).number >= number }))
}

// add gives an event its place.
func (r *ring) add(e *Event) {
	if len(r.chunks) == 0 {
		r.zero = r.next / chunkEvents
	}
	if r.next/chunkEvents-r.zero == uint64(len(r.chunks)) {
		if r.spare == nil {
			r.spare = new([chunkEvents]Event)
		}
		r.chunks, r.spare = append(r.chunks, r.spare), nil
	}
	*r.at(r.next) = *e
	r.bytes += e.strings()
	r.next++
}

// size is what all events take. Of the chunks at both ends, and the spare one, some is not
// in use.
func (r *ring) size() int64 {
	return int64(r.next-r.first)*eventBytes + r.bytes + 3*chunkEvents*eventBytes
}

// drop lets the oldest event go.
func (r *ring) drop() {
	e := r.at(r.first)
	r.bytes -= e.strings()
	r.dropped = e.number
	*e = Event{} // its strings
	if r.first++; r.first/chunkEvents > r.zero {
		r.spare = r.chunks[0]
		r.chunks[0] = nil
		r.chunks = r.chunks[1:]
		r.zero++
	}
}

// strings is what an event takes beside itself. Most of it is shared with others.
func (e *Event) strings() int64 {
	return int64(len(e.Tenant) + len(e.Model) + len(e.Client) + len(e.Why) + len(e.Policy) + len(e.Text))
}
