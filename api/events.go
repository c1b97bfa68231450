package api

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// Kinds of events. A lost one stands for those that a reader missed.
const (
	EventPublished = "published" // an engine has filled an object: lookups find it
	EventEvicted   = "evicted"   // it left memory, and no tier of this node has it; or it left the disk
	EventDemoted   = "demoted"   // it left memory, and the disk has it or is getting it
	EventPromoted  = "promoted"  // it came from the disk into memory, or a copy into HBM
	EventFetched   = "fetched"   // it came from beyond the node into memory
	EventRequest   = "request"   // a request was answered
	EventCanary    = "canary"    // a reuse differed from what was computed, or splicing was switched
	EventDisk      = "disk"      // the disk tier does otherwise than before
	EventGPU       = "gpu"       // a GPU does
	EventAttached  = "attached"  // a client is there, or has registered a model
	EventDetached  = "detached"  // it is gone
	EventPeer      = "peer"      // a node of the cluster has joined, left, or does not answer
	EventChanged   = "changed"   // an operator has changed or tried something
	EventLost      = "lost"
)

// EventKinds are those that can be asked for, in a fixed order.
var EventKinds = []string{
	EventPublished, EventEvicted, EventDemoted, EventPromoted, EventFetched, EventRequest, EventCanary, EventDisk, EventGPU,
	EventAttached, EventDetached, EventPeer, EventChanged,
}

// Why a lost event is there.
const (
	LostBehind  = "behind"    // the reader was slower than the events, Lost says by how many
	LostRestart = "restarted" // its last event is of an earlier start of the daemon
)

// Event is something that happened. What does not apply is left out.
type Event struct {
	// ID ascends from event to event, and is not that of an event of another start of the
	// daemon. It is below 2^53, which JavaScript's numbers hold.
	ID      uint64    `json:"id"`
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`             // Event…
	Object  string    `json:"object,omitempty"` // segment or checkpoint
	Key     *Digest   `json:"key,omitempty"`    // segment key or prefix hash
	Profile uint32    `json:"profile,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Model   string    `json:"model,omitempty"`
	Client  string    `json:"client,omitempty"` // of an object: who began to fill it
	Bytes   int64     `json:"bytes,omitempty"`
	Tokens  int       `json:"tokens,omitempty"` // that a hit saves
	Why     string    `json:"why,omitempty"`
	Policy  string    `json:"policy,omitempty"`           // the policy that chose what leaves
	Value   float64   `json:"value_ms_per_mib,omitempty"` // milliseconds that a hit saves for each MiB, as far as known
	Lost    uint64    `json:"lost,omitempty"`             // events that are missing before the next, of whatever kind
	Text    string    `json:"text,omitempty"`             // for people
}

// EventQuery selects events. Zero fields select all.
type EventQuery struct {
	Kinds  []string // Event…
	Tenant string   // events of no tenant are left out
	// After is the last event that is known, 0 for the oldest that are kept; nil = those
	// from now on, and of a listing the newest.
	After *uint64
	Limit int // of a listing
}

// Match reports whether an event passes the filters (not After and Limit).
func (q *EventQuery) Match(e *Event) bool {
	return (q.Tenant == "" || q.Tenant == e.Tenant) && (len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind))
}

// Events is what happened lately. All of it may be used at once.
type Events interface {
	// Events lists those that pass the query, in their order, at most Limit beside one
	// that says how many were lost before them. more: there are more behind them.
	Events(EventQuery) (list []Event, more bool)
	// Follow begins to follow them; ErrUnavailable while as many follow as may.
	Follow(EventQuery) (Follower, error)
}

// Follower reads events in their order. One that is too slow loses the oldest, and is told
// so. It is used by one goroutine.
type Follower interface {
	// Next waits for the next events that pass and appends to dst what it has room for: at
	// most until ctx ends, which is its error, or for patience, after which there are none.
	Next(ctx context.Context, patience time.Duration, dst []Event) ([]Event, error)
	// Last is the id after which it reads on; 0 = it has yet to say that events were lost.
	Last() uint64
	// Close ends it; it is called once.
	Close()
}

func (s *Server) events(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	poll := p.flag("poll")
	q := EventQuery{Kinds: p.someOf("kind", EventKinds), Tenant: p.name("tenant"), After: p.number("after", 64, "the id of an event"), Limit: p.limit()}
	if !poll && p.args.Has("limit") {
		p.refuse("limit", "is of a listing, which poll=1 asks for")
	}
	// A browser that connects again asks as it did first, and says here what it had since.
	if last := ctx.Request.Header.Peek("Last-Event-ID"); len(last) > 0 {
		id, err := strconv.ParseUint(string(last), 10, 64)
		if err != nil {
			p.refuse("Last-Event-ID", "%.40q is not the id of an event", last)
		}
		q.After = &id
	}
	if err := p.done(); err != nil {
		return err
	}
	if s.happened == nil {
		return newProblem(fasthttp.StatusServiceUnavailable, CodeUnavailable, "nobody keeps events here")
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

// someOf reads a list of words with commas between them.
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
