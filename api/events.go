package api

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// Kinds of events.
const (
	EventPublished = "published" // an engine has filled an object, and lookups find it
	EventEvicted   = "evicted"   // an object was evicted from memory and no tier of this node has it, or from the disk
	EventDemoted   = "demoted"   // an object was evicted from memory, and is on disk or being written there
	EventPromoted  = "promoted"  // an object was copied from disk to memory, or to HBM
	EventFetched   = "fetched"   // an object was copied from another node or the object store to memory
	EventRequest   = "request"   // a request was served
	EventCanary    = "canary"    // a reuse differed from the computed result, or splicing was switched off or on
	EventDisk      = "disk"      // the state of the disk tier changed
	EventGPU       = "gpu"       // the state of a GPU changed
	EventAttached  = "attached"  // a client attached, or registered a model
	EventDetached  = "detached"  // a client ended
	EventPeer      = "peer"      // a node of the cluster joined, left, or stopped answering
	EventChanged   = "changed"   // an operator changed or tried something
	EventLost      = "lost"      // the reader has missed events before the next one
)

// EventKinds are the kinds that a query can select: all except EventLost.
var EventKinds = []string{
	EventPublished, EventEvicted, EventDemoted, EventPromoted, EventFetched, EventRequest, EventCanary, EventDisk, EventGPU,
	EventAttached, EventDetached, EventPeer, EventChanged,
}

// Reasons of a lost event.
const (
	LostBehind  = "behind"    // the reader was slower than the events; Event.Lost is their number
	LostRestart = "restarted" // the reader's last event is of an earlier start of the daemon
)

// Event is one event. Fields that do not apply are omitted.
type Event struct {
	// ID increases from event to event, and differs from the ids of other starts of the
	// daemon. It is below 2^53, the limit of integers in JavaScript's numbers.
	ID      uint64    `json:"id"`
	At      time.Time `json:"at"`
	Kind    string    `json:"kind" enum:"Event*"`
	Object  string    `json:"object,omitempty" enum:"segment,checkpoint"`
	Key     *Digest   `json:"key,omitempty"` // segment key or prefix hash
	Profile uint32    `json:"profile,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Model   string    `json:"model,omitempty"`
	Client  string    `json:"client,omitempty"` // name of the client; for an object the client that began to fill it
	Bytes   int64     `json:"bytes,omitempty"`
	Tokens  int       `json:"tokens,omitempty"`           // tokens that a hit saves
	Why     string    `json:"why,omitempty"`              // reason, in words; of a lost event LostBehind or LostRestart
	Policy  string    `json:"policy,omitempty"`           // policy that chose the object to evict
	Value   float64   `json:"value_ms_per_mib,omitempty"` // milliseconds that a hit saves per MiB, as far as known
	Lost    uint64    `json:"lost,omitempty"`             // number of missing events of any kind; absent if they are of an earlier start
	Text    string    `json:"text,omitempty"`             // for operators
}

// EventQuery selects events. Zero fields do not restrict it.
type EventQuery struct {
	Kinds  []string // some of EventKinds
	Tenant string   // only events of this tenant
	// After is the id of the last known event; 0 = begin with the oldest that is kept. nil
	// selects future events for a stream, and the newest events for a listing.
	After *uint64
	Limit int // maximum number of events in a listing
}

// Match reports whether an event matches the filters. It ignores After and Limit.
func (q *EventQuery) Match(e *Event) bool {
	return (q.Tenant == "" || q.Tenant == e.Tenant) && (len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind))
}

// Events provides recent events. All methods may be called concurrently.
type Events interface {
	// Events lists events that match the query, in order: at most Limit, and possibly an EventLost
	// before them. The result more reports whether further events match.
	Events(EventQuery) (list []Event, more bool)
	// Follow starts following events. It returns ErrUnavailable if the maximum number of
	// followers is reached.
	Follow(EventQuery) (Follower, error)
}

// Follower reads events in order. A follower that is too slow loses the oldest events and gets
// an EventLost instead. It is used by one goroutine.
type Follower interface {
	// Next waits for events that match, and appends as many as fit into the capacity of dst. It
	// returns the error of ctx when ctx ends. If no event matches within the duration patience, it
	// returns without an event or error.
	Next(ctx context.Context, patience time.Duration, dst []Event) ([]Event, error)
	// Last returns the id of the last event that the follower has passed; the follower continues
	// after that event. 0 means that the follower has to report an EventLost first.
	Last() uint64
	// Close ends the follower; it is called once.
	Close()
}

func (s *Server) events(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	poll := p.flag("poll")
	q := EventQuery{Kinds: p.someOf("kind", EventKinds), Tenant: p.name("tenant"), After: p.number("after", 64, "the id of an event"), Limit: p.limit()}
	if !poll && p.args.Has("limit") {
		p.refuse("limit", "applies only to listings, with poll=1")
	}
	// A browser that reconnects repeats its first request with this header, which contains the
	// id of the last event that it received.
	if last := ctx.Request.Header.Peek("Last-Event-ID"); len(last) > 0 {
		id, err := strconv.ParseUint(string(last), 10, 64)
		if err != nil {
			p.refuse("Last-Event-ID", "invalid event id %.40q", last)
		}
		q.After = &id
	}
	if err := p.done(); err != nil {
		return err
	}
	if s.happened == nil {
		return newProblem(fasthttp.StatusServiceUnavailable, CodeUnavailable, "this node keeps no events")
	}
	if !poll {
		return s.stream(ctx, q)
	}
	list, more := s.happened.Events(q)
	page := Page[Event]{Items: orEmpty(list)}
	if more {
		page.Next = strconv.FormatUint(list[len(list)-1].ID, 10)
	}
	return writeJSON(ctx, page)
}

// someOf parses a list of words separated by commas.
func (p *params) someOf(name string, of []string) []string {
	v, ok := p.text(name)
	if !ok {
		return nil
	}
	list := strings.Split(v, ",")
	for _, word := range list {
		if !slices.Contains(of, word) {
			p.refuse(name, "%.40q is not one of %s", word, strings.Join(of, ", "))
			return nil
		}
	}
	return list
}
