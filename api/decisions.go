package api

import (
	"time"

	"github.com/valyala/fasthttp"
)

// Kinds of decisions about an object. Demoted: it left memory and is on disk. Thinned: a
// checkpoint's states were evicted from memory and its rows stayed. Advised and discouraged: an
// engine was told to store it, or not to; the outcome is a separate decision.
const (
	DecidedAdmitted    = "admitted"
	DecidedRefused     = "refused"
	DecidedEvicted     = "evicted" // from memory, and no tier has it; or from the disk
	DecidedThinned     = "thinned"
	DecidedDemoted     = "demoted"
	DecidedDropped     = "dropped"
	DecidedAdvised     = "advised"
	DecidedDiscouraged = "discouraged"
)

var decided = []string{DecidedAdmitted, DecidedRefused, DecidedEvicted, DecidedThinned, DecidedDemoted, DecidedDropped, DecidedAdvised, DecidedDiscouraged}

// Decision is one decision about an object. The object of advice has no key yet. A decision
// of an earlier start has the profile's current number, 0 while no engine has registered
// it, and its tenant's name, configured or not.
type Decision struct {
	At      time.Time `json:"at"`
	What    string    `json:"what"`          // Decided…
	Why     string    `json:"why"`           // in words
	Object  string    `json:"object"`        // segment or checkpoint
	Key     *Digest   `json:"key,omitempty"` // segment key or prefix hash; nil of advice
	Profile uint32    `json:"profile"`
	Tenant  string    `json:"tenant"`
	Begin   int       `json:"begin"` // tokens [Begin, End) are saved by a hit
	End     int       `json:"end"`
	Value   float64   `json:"value_ms_per_mib"` // milliseconds that a hit saves per MiB, as far as known
	Bytes   int64     `json:"bytes"`
}

// DecisionQuery selects decisions. Zero fields select all.
type DecisionQuery struct {
	Tenant  string
	Profile *uint32
	What    string // Decided…
	Prefix  string // lower-case hex digits that the key begins with
	Limit   int
}

// Match reports whether a decision passes the filters (not the limit).
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

func (s *Server) listDecisions(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	q := DecisionQuery{Tenant: p.name("tenant"), Profile: p.profile(), What: p.oneOf("what", decided), Prefix: p.prefix(), Limit: p.limit()}
	if err := p.done(); err != nil {
		return err
	}
	return writeJSON(ctx, Page[Decision]{Items: orEmpty(s.shown().Node.Decisions(q))})
}
