package api

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Ways to serve a prompt.
const (
	WayRecompute = "recompute" // nothing was reused
	WayPrefix    = "prefix"    // from a checkpoint
	WaySplice    = "splice"    // with segments
	WayReplay    = "replay"    // from rows of a checkpoint
)

var ways = []string{WayRecompute, WayPrefix, WaySplice, WayReplay}

// Sources of a prompt's tokens.
const (
	FromEngine   = "engine"   // the engine's own cache
	FromPrefix   = "prefix"   // a checkpoint
	FromSegment  = "segment"  // a segment
	FromComputed = "computed" // computed by the engine
)

// Request is an engine's report of how it served one prompt. The tokens add up: Prompt is the
// sum of Engine, Prefix, Reused and Computed, and Computed includes Seam.
type Request struct {
	ID       uint64    `json:"id"`   // of this daemon start
	Name     string    `json:"name"` // the engine's own
	At       time.Time `json:"at"`   // time of the report, right after the first token
	Tenant   string    `json:"tenant"`
	Profile  uint32    `json:"profile"`
	Model    string    `json:"model"`
	Client   string    `json:"client"`
	Trace    string    `json:"trace,omitempty"` // trace id of W3C Trace Context
	Way      string    `json:"way"`             // Way…
	Prompt   uint64    `json:"prompt_tokens"`
	Engine   uint64    `json:"engine_tokens"`
	Prefix   uint64    `json:"prefix_tokens"`
	Reused   uint64    `json:"reused_tokens"`
	Computed uint64    `json:"computed_tokens"`
	Seam     uint64    `json:"seam_tokens"`

	PrefixTier   string  `json:"prefix_tier"`   // of the checkpoint that was used, or none
	PrefixReason string  `json:"prefix_reason"` // why no longer one was used, or none
	Bytes        uint64  `json:"bytes"`         // states and rows that were read or composed
	MatchMillis  float64 `json:"match_ms"`      // until the way was chosen
	WaitMillis   float64 `json:"wait_ms"`       // from then on, waiting for bytes
	TTFTMillis   float64 `json:"ttft_ms"`       // from the request's arrival to its first token; 0 = not reported
	SavedMillis  float64 `json:"saved_ms"`      // an estimate
	SavedBy      string  `json:"saved_by"`      // basis of the estimate: one of SavedBy…
	Unverified   bool    `json:"unverified"`    // it reports reuse that its connection had not looked up; excluded from sums

	ExpectedLoss *float64 `json:"expected_loss,omitempty"` // of its splice, as the daemon advised; nil = not spliced, or unknown

	Ways  []WayCost `json:"ways,omitempty"`  // predictions for the possible ways
	Spans []Span    `json:"spans,omitempty"` // of one request, not of a listing: ascending, covering the prompt
}

// Bases of the estimate of saved time.
const (
	SavedByTTFT    = "ttft"    // time to first token of prompts that other processes computed in full
	SavedByOwn     = "own"     // the same from the reporting process only, unconfirmed by others
	SavedByPrefill = "prefill" // prefills that engines measured
	SavedByGuess   = "guess"   // no measurements
)

// WayCost is the predicted time of one way.
type WayCost struct {
	Way    string  `json:"way"`
	Millis float64 `json:"ms"`
}

// Span is the tokens [Begin, End) of a prompt.
type Span struct {
	Begin  int     `json:"begin"`
	End    int     `json:"end"`
	From   string  `json:"from"`             // From…
	Tier   string  `json:"tier,omitempty"`   // tier of the tokens, also of computed ones that were found
	Reason string  `json:"reason,omitempty"` // why they were computed
	Key    *Digest `json:"key,omitempty"`    // of the segment that contains them
}

// RequestQuery selects requests. Zero fields select all.
type RequestQuery struct {
	Tenant  string
	Profile *uint32
	Way     string
	Limit   int
}

// Usage has the totals of one tenant and model, kept across restarts if there is a disk. The
// token hit ratio is (Prefix + Reused) / (Prompt - Engine).
type Usage struct {
	Tenant   string  `json:"tenant"`
	Profile  string  `json:"profile"` // 12 hex digits of the fingerprint; empty = profiles above a bound
	Model    string  `json:"model"`
	Requests uint64  `json:"requests"`
	Prompt   uint64  `json:"prompt_tokens"`
	Engine   uint64  `json:"engine_tokens"`
	Prefix   uint64  `json:"prefix_tokens"`
	Reused   uint64  `json:"reused_tokens"`
	Computed uint64  `json:"computed_tokens"`
	Seam     uint64  `json:"seam_tokens"`
	Saved    float64 `json:"saved_ms"` // an estimate
	// SavedGuess is the part of Saved without measured times.
	SavedGuess float64 `json:"saved_guess_ms"`
	// Unverified counts reports of reuse that their connection had not looked up,
	// UnverifiedTokens the tokens of their prompts. The other fields exclude them.
	Unverified       uint64 `json:"unverified_requests"`
	UnverifiedTokens uint64 `json:"unverified_tokens"`
	// TTFTMillis is the sum over the TTFTRequests that reported it.
	TTFTMillis   float64           `json:"ttft_ms"`
	TTFTRequests uint64            `json:"ttft_requests"`
	Since        time.Time         `json:"since"`  // time of the first report
	Ways         map[string]uint64 `json:"ways"`   // requests by Way…
	Missed       map[string]uint64 `json:"missed"` // computed tokens by reason
}

// HitRatio returns the share of tokens from the daemon among those that were not in the
// engine's own cache; 0 if there are none.
func (u *Usage) HitRatio() float64 {
	if u.Prompt == u.Engine {
		return 0
	}
	return float64(u.Prefix+u.Reused) / float64(u.Prompt-u.Engine)
}

// Add adds the sums of another row.
func (u *Usage) Add(o *Usage) {
	u.Requests += o.Requests
	u.Prompt, u.Engine, u.Prefix = u.Prompt+o.Prompt, u.Engine+o.Engine, u.Prefix+o.Prefix
	u.Reused, u.Computed, u.Seam = u.Reused+o.Reused, u.Computed+o.Computed, u.Seam+o.Seam
	u.Saved, u.SavedGuess = u.Saved+o.Saved, u.SavedGuess+o.SavedGuess
	u.Unverified, u.UnverifiedTokens = u.Unverified+o.Unverified, u.UnverifiedTokens+o.UnverifiedTokens
	u.TTFTMillis, u.TTFTRequests = u.TTFTMillis+o.TTFTMillis, u.TTFTRequests+o.TTFTRequests
	if u.Since.IsZero() || o.Since.Before(u.Since) {
		u.Since = o.Since
	}
	u.Ways, u.Missed = plus(u.Ways, o.Ways), plus(u.Missed, o.Missed)
}

func plus(to, from map[string]uint64) map[string]uint64 {
	to = orNone(to)
	for name, n := range from {
		to[name] += n
	}
	return to
}

// Spans of a History.
const (
	HistoryMinutes = "15m" // steps of ten seconds, as for all but days
	HistoryHour    = "1h"
	HistoryHours   = "6h"
	HistoryDays    = "7d" // steps of five minutes
)

// Overview is the content of the first page.
type Overview struct {
	Status      Status  `json:"status"`
	Usage       Usage   `json:"usage"` // of all tenants and models
	Pools       []Pool  `json:"pools"`
	Connections int     `json:"connections"`
	Leases      uint64  `json:"leases"`
	Segments    int     `json:"segments"`
	Checkpoints int     `json:"checkpoints"`
	SharedSaved int64   `json:"shared_bytes_saved"` // bytes that live leases save by sharing, compared with private copies
	History     History `json:"history"`
}

// History has columns of steps since the daemon's start, the oldest first. Counters are
// increments per step, bytes the use at its end.
type History struct {
	StepSeconds int                  `json:"step_seconds"`
	At          []int64              `json:"at"` // Unix seconds at which steps ended
	Series      map[string][]float64 `json:"series"`
}

func (s *Server) listRequests(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	q := RequestQuery{Tenant: p.name("tenant"), Profile: p.profile(), Way: p.oneOf("way", ways), Limit: p.limit()}
	if err := p.done(); err != nil {
		return err
	}
	return writeJSON(ctx, Page[Request]{Items: orEmpty(s.shown().Node.Requests(q))})
}

func (s *Server) getRequest(ctx *fasthttp.RequestCtx, arg string) error {
	if err := noParams(ctx); err != nil {
		return err
	}
	id, err := strconv.ParseUint(arg, 10, 64)
	if err != nil {
		return newProblem(fasthttp.StatusBadRequest, CodeInvalid, "a request has a number")
	}
	r, err := s.shown().Node.Request(id)
	if err != nil {
		return err
	}
	return writeJSON(ctx, r)
}

func (s *Server) listUsage(ctx *fasthttp.RequestCtx, _ string) error {
	return listAll(ctx, s.shown().Node.Usage)
}

func (s *Server) overview(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	span := p.oneOf("history", []string{HistoryMinutes, HistoryHour, HistoryHours, HistoryDays})
	if err := p.done(); err != nil {
		return err
	}
	o := s.shown().Node.Overview(span)
	o.Status, o.Pools = withLists(o.Status), orEmpty(withTenants(o.Pools))
	o.Usage.Ways, o.Usage.Missed = orNone(o.Usage.Ways), orNone(o.Usage.Missed)
	o.History.At, o.History.Series = orEmpty(o.History.At), orNone(o.History.Series)
	return writeJSON(ctx, o)
}
