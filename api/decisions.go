package api

import (
	"time"

	"github.com/valyala/fasthttp"
)

// Kinds of decisions about an object.
const (
	DecidedAdmitted    = "admitted"    // lookups find it from now on
	DecidedRefused     = "refused"     // there was no room for it
	DecidedEvicted     = "evicted"     // it was evicted from memory and no tier has it, or from the disk
	DecidedThinned     = "thinned"     // a checkpoint's states were evicted from memory; its rows stayed
	DecidedDemoted     = "demoted"     // it was evicted from memory; the disk has it or is receiving it
	DecidedDropped     = "dropped"     // it had to be removed, whatever its value
	DecidedAdvised     = "advised"     // an engine was advised to store it; whether it did is another decision
	DecidedDiscouraged = "discouraged" // an engine was advised not to store it
)

var decided = []string{DecidedAdmitted, DecidedRefused, DecidedEvicted, DecidedThinned, DecidedDemoted, DecidedDropped, DecidedAdvised, DecidedDiscouraged}

// Decision is one decision about an object.
type Decision struct {
	At      time.Time `json:"at"`
	What    string    `json:"what" enum:"Decided*"`
	Why     string    `json:"why"` // reason, in words
	Object  string    `json:"object" enum:"segment,checkpoint"`
	Key     *Digest   `json:"key,omitempty"`    // segment key or prefix hash; nil = advice, whose object is not stored yet
	Profile uint32    `json:"profile"`          // current profile id; 0 = decided before the last start, and no engine has registered the profile since
	Tenant  string    `json:"tenant"`           // possibly not configured any more, if it was decided before the last start
	Begin   int       `json:"begin"`            // first token that a hit saves
	End     int       `json:"end"`              // token after the last one that a hit saves
	Value   float64   `json:"value_ms_per_mib"` // milliseconds that a hit saves per MiB, as far as known
	Bytes   int64     `json:"bytes"`            // size of the object
}

// DecisionQuery selects decisions. Zero fields do not restrict it.
type DecisionQuery struct {
	Tenant  string
	Profile *uint32
	What    string // one of the Decided constants
	Prefix  string // lower-case hex digits that the key begins with
	Limit   int
}

// Match reports whether a decision matches the filters. It ignores Limit.
func (q *DecisionQuery) Match(d *Decision) bool {
	switch {
	case q.Tenant != "" && q.Tenant != d.Tenant:
	case q.Profile != nil && *q.Profile != d.Profile:
	case q.What != "" && q.What != d.What:
	case q.Prefix != "" && (d.Key == nil || !d.Key.hasPrefix(q.Prefix)):
	default:
		return true
	}
	return false
}

func (from *Shown) listDecisions(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	q := DecisionQuery{Tenant: p.name("tenant"), Profile: p.profile(), What: p.oneOf("what", decided), Prefix: p.prefix(), Limit: p.limit()}
	if err := p.done(); err != nil {
		return err
	}
	return writeJSON(ctx, Page[Decision]{Items: orEmpty(from.Node.Decisions(q))})
}
