// Package journal keeps recent events for operators: objects stored and evicted, clients, canaries,
// the disk, GPUs, nodes of the cluster, and actions of operators. The component that decides
// something appends the event. The journal keeps the latest events in memory, and readers can
// follow them. Engines do not use it. Package events publishes other events, for routers.
//
// A Journal may be used concurrently. Its lock is the last in the lock order, so callers of Append
// may hold any other lock. It is held only while an event is copied or a bounded number of events
// is examined. Readers format their copies as text and JSON without it.
//
// Events have separate memory by cause, and events of one cause do not displace those of another.
// One part is for the daemon and its operators. Each tenant has two parts for events that its
// clients cause: one for events of each request, and one for rare events. So the loss of a GPU an
// hour ago is still listed on a busy node, however often a client attaches. Readers see all parts
// as one list.
//
// Invariant: the memory used stays within its bound, for any number of events and however slow
// readers are. A reader only stores the number of the next event to read, so the events that it has
// not read are dropped like all others.
package journal

import (
	"sort"
	"sync"
	"time"
	"unsafe"

	"github.com/spliced-kv/spliced/api"
)

// Kind is the kind of an event.
type Kind uint8

// The kinds, as in package api. Kinds up to Request occur with requests. Canary, Attached and
// Detached are caused by clients too.
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

// String returns the name of a kind for readers.
func (k Kind) String() string { return api.EventKinds[k] }

// Object is a kind of object that an event may be about.
type Object uint8

// The kinds of objects. Event.Key is set only for Segment and Checkpoint.
const (
	NoObject Object = iota
	Segment
	Checkpoint
)

func (o Object) String() string { return [...]string{"", "segment", "checkpoint"}[o] }

// Event is one event. Fields that do not apply are zero.
type Event struct {
	At      time.Time // zero = now
	Kind    Kind
	Object  Object
	Rivals  Object   // kind of Rival; NoObject = none
	Key     [32]byte // key of the object
	Rival   [32]byte // key of the object that displaced it
	Profile uint32
	Tokens  int
	Bytes   int64
	Value   float64 // worth of the object: milliseconds that a hit saves per MiB
	Worth   float64 // worth of Rival, in the same unit
	Tenant  string
	Model   string
	Client  string
	Why     string
	Policy  string
	Text    string // for operators; "" = generated from the other fields when it is read

	number uint64 // number of the event, from 1, without gaps
}

// Bounds.
const (
	DefaultBytes = 4 << 20 // about 10,000 events and 3,000 rare ones; a guess: a minute of a busy node, a day of a quiet one
	rareShare    = 8       // rare events of clients get 1/rareShare of the bytes, and those of the daemon as much
	maxTenants   = 16      // tenants with separate rings; further tenants share one
	MaxFollowers = 32
	maxText      = 1 << 10 // largest size in bytes of a Text, and of each other string
	chunkEvents  = 16      // events allocated at once
	stepEvents   = 256     // events examined while the lock is held
)

const eventBytes = int64(unsafe.Sizeof(Event{}))

// The id of an event consists of bits that identify the start of the daemon, and of the event's
// number. Ids are below 2^53.
const (
	numberBits = 36 // enough for 100,000 events per second for a week; later numbers use bits of the start
	epochBits  = 53 - numberBits
)

// Journal holds the latest events of one start of a daemon.
type Journal struct {
	// Fixed after New.
	base uint64 // id of the event before number 1
	most [classes]int64
	now  func() time.Time

	mu struct {
		sync.Mutex
		rings     []*ring // of all classes and tenants
		at        map[place]*ring
		tenants   map[string]struct{} // tenants with separate rings
		next      uint64              // number of the next event
		followers map[*Follower]struct{}
		asleep    int // number of followers that wait
		lost      uint64
		refused   uint64
	}
}

// Counters are the counters of a journal.
type Counters struct {
	Events    uint64 `count:"events" prom:"journal_events_total" help:"Events recorded for operators."`
	Kept      uint64 `count:"kept" prom:"journal_kept_events" help:"Recorded events that are still kept in memory."`
	Bytes     uint64 `count:"bytes" prom:"journal_bytes" help:"Bytes of memory used by the events kept for operators."`
	Followers uint64 `count:"followers" prom:"journal_followers" help:"Open event streams."`
	Lost      uint64 `count:"lost" prom:"journal_lost_total" help:"Events that readers of event streams missed, because they were too slow or reconnected too late. An event that two readers miss counts twice."`
	Refused   uint64 `count:"refused" prom:"journal_followers_refused_total" help:"Event streams refused because the maximum number was open."`
}

// Counters returns a snapshot.
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

// New creates an empty journal that uses at most the given number of bytes. The parameter epoch
// identifies this start of the daemon.
func New(epoch uint64, bytes int64, now func() time.Time) *Journal {
	j := &Journal{base: max(1, epoch>>(64-epochBits)) << numberBits, now: now}
	j.mu.next = 1
	rare := bytes / rareShare
	j.most = [classes]int64{bytes - 2*rare, rare, rare}
	j.mu.at, j.mu.tenants = map[place]*ring{}, map[string]struct{}{}
	j.mu.followers = map[*Follower]struct{}{}
	return j
}

// Append adds an event. It does not block, and may be called with any lock held. On a nil Journal
// it does nothing. In an event of kind Request, Why is the way the request was served.
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

// class is a group of events that share one part of the memory.
type class uint8

const (
	often   class = iota // events that occur with requests
	clients              // other events caused by clients
	own                  // events of the daemon and its operators
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
	tenant string // "" = no tenant, or one of the tenants that share a ring
}

// keepLocked stores an event. If that exceeds the memory of the class, the tenant with most events
// in the class loses some.
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

// cut truncates a string. A truncated string is copied, so that the original can be freed.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return string([]byte(s[:maxText]))
}

// wakeLocked wakes the followers that wait and want the event. The other waiting followers skip it.
func (j *Journal) wakeLocked(e *Event) {
	for f := range j.mu.followers {
		switch {
		case !f.asleep:
		case f.filter.passes(e):
			f.asleep = false
			j.mu.asleep--
			f.wake <- struct{}{} // never blocks: a follower sleeps once per wake-up
		default:
			f.next = e.number + 1
		}
	}
}

// ring holds the kept events of one class and tenant; tenants beyond a maximum number share a ring.
// The places of the events in a ring are consecutive numbers, from the field first up to but not
// including the field next. Chunks of events are allocated as needed and reused.
type ring struct {
	class       class
	chunks      []*[chunkEvents]Event
	zero        uint64 // the event at a place is in chunks[place/chunkEvents-zero]
	first, next uint64
	dropped     uint64 // number of the latest dropped event
	bytes       int64  // bytes of the events' strings
	spare       *[chunkEvents]Event
}

func (r *ring) at(place uint64) *Event {
	return &r.chunks[place/chunkEvents-r.zero][place%chunkEvents]
}

// from returns the place of the first event with that or a higher number.
func (r *ring) from(number uint64) uint64 {
	return r.first + uint64(sort.Search(int(r.next-r.first), func(i int) bool { return r.at(r.first+uint64(i)).number >= number }))
}

// add stores an event.
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

// size returns the memory of all events in bytes. It includes unused space in the first, last and
// spare chunk.
func (r *ring) size() int64 {
	return int64(r.next-r.first)*eventBytes + r.bytes + 3*chunkEvents*eventBytes
}

// drop removes the oldest event.
func (r *ring) drop() {
	e := r.at(r.first)
	r.bytes -= e.strings()
	r.dropped = e.number
	*e = Event{} // frees its strings
	if r.first++; r.first/chunkEvents > r.zero {
		r.spare = r.chunks[0]
		r.chunks[0] = nil
		r.chunks = r.chunks[1:]
		r.zero++
	}
}

// strings returns the size of an event's strings in bytes. Most of them are shared with other
// events.
func (e *Event) strings() int64 {
	return int64(len(e.Tenant) + len(e.Model) + len(e.Client) + len(e.Why) + len(e.Policy) + len(e.Text))
}
