package api

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Ways to serve a prompt.
const (
	WayRecompute = "recompute" // nothing was reused
	WayPrefix    = "prefix"    // continued from a checkpoint
	WaySplice    = "splice"    // composed from segments
	WayReplay    = "replay"    // replayed from rows of a checkpoint
)

var ways = []string{WayRecompute, WayPrefix, WaySplice, WayReplay}

// Sources of a prompt's tokens.
const (
	FromEngine   = "engine"   // the engine's own cache
	FromPrefix   = "prefix"   // a checkpoint
	FromSegment  = "segment"  // a segment
	FromComputed = "computed" // computed by the engine
)

// Request is an engine's report of how it served one prompt. Prompt is the sum of Engine,
// Prefix, Reused and Computed.
type Request struct {
	ID       uint64    `json:"id"`   // valid until the daemon ends
	Name     string    `json:"name"` // the engine's own id of the request
	At       time.Time `json:"at"`   // time of the report, right after the first token
	Tenant   string    `json:"tenant"`
	Profile  uint32    `json:"profile"`
	Model    string    `json:"model"`
	Client   string    `json:"client"`          // name of the client that reported it
	Trace    string    `json:"trace,omitempty"` // trace id of W3C Trace Context
	Way      string    `json:"way" enum:"Way*"`
	Prompt   uint64    `json:"prompt_tokens"`
	Engine   uint64    `json:"engine_tokens"` // from the engine's own cache
	Prefix   uint64    `json:"prefix_tokens"` // from a checkpoint
	Reused   uint64    `json:"reused_tokens"` // from segments
	Computed uint64    `json:"computed_tokens"`
	Seam     uint64    `json:"seam_tokens"` // computed tokens next to reused ones

	PrefixTier   string  `json:"prefix_tier"`              // tier of the checkpoint that was used, or none
	PrefixReason string  `json:"prefix_reason"`            // why a longer checkpoint was not used, or none
	Bytes        uint64  `json:"bytes"`                    // size of the states and rows that were read or composed
	MatchMillis  float64 `json:"match_ms"`                 // time until the way was chosen
	WaitMillis   float64 `json:"wait_ms"`                  // time spent waiting for bytes after the way was chosen
	TTFTMillis   float64 `json:"ttft_ms"`                  // time from the request's arrival to its first token; 0 = not reported
	SavedMillis  float64 `json:"saved_ms"`                 // estimate of the saved time
	SavedBy      string  `json:"saved_by" enum:"SavedBy*"` // basis of the estimate
	Unverified   bool    `json:"unverified"`               // it reports reuse of objects that its connection had not looked up; sums exclude it

	// ExpectedLoss is the loss that the daemon expected for the splice, from 0 to 1: the share of
	// requests spliced in the same way whose first token differs from a full prefill's. It is
	// absent if the request was not spliced, or if the loss is unknown.
	ExpectedLoss *float64 `json:"expected_loss,omitempty"`

	Ways  []WayCost `json:"ways,omitempty"`  // predictions for the possible ways
	Spans []Span    `json:"spans,omitempty"` // ascending, covering the prompt; omitted in listings
}

// Bases of the estimate of saved time.
const (
	SavedByTTFT    = "ttft"    // time to first token of prompts that other processes computed in full
	SavedByOwn     = "own"     // time to first token of prompts that only the reporting process computed in full, without confirmation by others
	SavedByPrefill = "prefill" // prefills that engines measured
	SavedByGuess   = "guess"   // no measurements
)

// WayCost is the predicted cost of one way.
type WayCost struct {
	Way    string  `json:"way" enum:"Way*"`
	Millis float64 `json:"ms"` // predicted time in milliseconds
}

// Span is the tokens [Begin, End) of a prompt.
type Span struct {
	Begin  int     `json:"begin"`
	End    int     `json:"end"`
	From   string  `json:"from" enum:"From*"` // source of the tokens
	Tier   string  `json:"tier,omitempty"`    // tier in which the daemon had the tokens, even if the engine computed them
	Reason string  `json:"reason,omitempty"`  // why the tokens were computed
	Key    *Digest `json:"key,omitempty"`     // key of the segment that contains them
}

// RequestQuery selects requests. Zero fields do not restrict it.
type RequestQuery struct {
	Tenant  string
	Profile *uint32
	Way     string
	Limit   int
}

// Usage is the sum of the requests of one tenant and model. It is kept across restarts if
// there is a disk. Prompt is the sum of Engine, Prefix, Reused and Computed. The token hit
// ratio is (Prefix + Reused) / (Prompt - Engine).
type Usage struct {
	Tenant   string  `json:"tenant"`
	Profile  string  `json:"profile"` // first 12 hex digits of the fingerprint; empty = all profiles, or those beyond the maximum number of rows
	Model    string  `json:"model"`
	Requests uint64  `json:"requests"`
	Prompt   uint64  `json:"prompt_tokens"`
	Engine   uint64  `json:"engine_tokens"` // from the engine's own cache
	Prefix   uint64  `json:"prefix_tokens"` // from checkpoints
	Reused   uint64  `json:"reused_tokens"` // from segments
	Computed uint64  `json:"computed_tokens"`
	Seam     uint64  `json:"seam_tokens"` // computed tokens next to reused ones
	Saved    float64 `json:"saved_ms"`    // estimate of the saved time
	// SavedGuess is the part of Saved that is not based on measured times.
	SavedGuess float64 `json:"saved_guess_ms"`
	// Unverified counts reports that claim reuse of an object that the reporting connection had not
	// looked up. All other fields exclude these reports.
	Unverified uint64 `json:"unverified_requests"`
	// UnverifiedTokens is the number of tokens of the unverified requests' prompts.
	UnverifiedTokens uint64 `json:"unverified_tokens"`
	// TTFTMillis is the sum of the reported times to first token.
	TTFTMillis   float64           `json:"ttft_ms"`
	TTFTRequests uint64            `json:"ttft_requests"` // requests that reported their time to first token
	Since        time.Time         `json:"since"`         // time of the first report
	Ways         map[string]uint64 `json:"ways"`          // number of requests by way
	Missed       map[string]uint64 `json:"missed"`        // number of computed tokens by reason
}

// HitRatio returns the share of tokens that the daemon provided, among the tokens that the
// engine's own cache did not have; 0 if there are none.
func (u *Usage) HitRatio() float64 {
	if u.Prompt == u.Engine {
		return 0
	}
	return float64(u.Prefix+u.Reused) / float64(u.Prompt-u.Engine)
}

// Add adds the sums of another row to u.
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

// Lengths of a History. Steps are ten seconds unless a length says otherwise.
const (
	HistoryMinutes = "15m"
	HistoryHour    = "1h"
	HistoryHours   = "6h"
	HistoryDays    = "7d" // steps of five minutes
)

var histories = []string{HistoryMinutes, HistoryHour, HistoryHours, HistoryDays}

// Overview is the content of the dashboard's first page.
type Overview struct {
	Status      Status  `json:"status"`
	Usage       Usage   `json:"usage"` // sum over all tenants and models
	Pools       []Pool  `json:"pools"`
	Connections int     `json:"connections"`
	Leases      uint64  `json:"leases"`
	Segments    int     `json:"segments"`
	Checkpoints int     `json:"checkpoints"`
	SharedSaved int64   `json:"shared_bytes_saved"` // bytes that live leases save by sharing memory instead of having private copies
	History     History `json:"history"`
}

// History has one column per value, with one number per step. Steps are in order of time and
// begin with the daemon's start at the earliest. The number of a counter is its increment in
// the step; the number of a size in bytes is the size at the end of the step.
type History struct {
	StepSeconds int                  `json:"step_seconds"` // length of a step
	At          []int64              `json:"at"`           // ends of the steps, in Unix seconds
	Series      map[string][]float64 `json:"series"`       // columns by name
}

func (from *Shown) listRequests(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	q := RequestQuery{Tenant: p.name("tenant"), Profile: p.profile(), Way: p.oneOf("way", ways), Limit: p.limit()}
	if err := p.done(); err != nil {
		return err
	}
	return writeJSON(ctx, Page[Request]{Items: orEmpty(from.Node.Requests(q))})
}

func (from *Shown) getRequest(ctx *fasthttp.RequestCtx, arg string) error {
	if err := noParams(ctx); err != nil {
		return err
	}
	id, err := strconv.ParseUint(arg, 10, 64)
	if err != nil {
		return newProblem(fasthttp.StatusBadRequest, CodeInvalid, "a request has a number")
	}
	r, err := from.Node.Request(id)
	if err != nil {
		return err
	}
	return writeJSON(ctx, r)
}

func (from *Shown) overview(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	span := p.oneOf("history", histories)
	if err := p.done(); err != nil {
		return err
	}
	o := from.Node.Overview(span)
	o.Status, o.Pools = withLists(o.Status), orEmpty(withTenants(o.Pools))
	o.Usage.Ways, o.Usage.Missed = orNone(o.Usage.Ways), orNone(o.Usage.Missed)
	o.History.At, o.History.Series = orEmpty(o.History.At), orNone(o.History.Series)
	return writeJSON(ctx, o)
}
