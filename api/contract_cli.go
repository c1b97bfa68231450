package api

import "time"

// Ways of serving a prompt.
const (
	WayRecompute = "recompute"
	WayPrefix    = "prefix"
	WaySplice    = "splice"
	WayReplay    = "replay"
)

// Where the tokens of a span come from.
const (
	FromEngine   = "engine"   // the engine's own cache
	FromPrefix   = "prefix"   // a saved prefix
	FromSegment  = "segment"  // a segment that was placed
	FromComputed = "computed" // nobody had it, or it is a seam
)

// Request is the story of one request that was served. Its prompt is the sum of engine,
// prefix, reused and computed tokens; seams are part of what was computed.
type Request struct {
	ID      uint64    `json:"id"`
	Name    string    `json:"name"` // the engine's own id of it
	At      time.Time `json:"at"`
	Tenant  string    `json:"tenant"`
	Profile uint32    `json:"profile"`
	Model   string    `json:"model"`
	Client  string    `json:"client"`
	Trace   string    `json:"trace"` // 32 hex digits; empty = the engine told none
	Way     string    `json:"way"`

	PromptTokens   int    `json:"prompt_tokens"`
	EngineTokens   int    `json:"engine_tokens"`
	PrefixTokens   int    `json:"prefix_tokens"`
	ReusedTokens   int    `json:"reused_tokens"`
	ComputedTokens int    `json:"computed_tokens"`
	SeamTokens     int    `json:"seam_tokens"`
	PrefixTier     string `json:"prefix_tier"`
	PrefixReason   string `json:"prefix_reason"` // why there was no longer prefix
	Bytes          int64  `json:"bytes"`

	MatchMillis float64   `json:"match_ms"`
	WaitMillis  float64   `json:"wait_ms"`
	TTFTMillis  float64   `json:"ttft_ms"`  // 0 = the engine did not tell
	SavedMillis float64   `json:"saved_ms"` // an estimate
	Ways        []WayCost `json:"ways"`
	Spans       []Span    `json:"spans,omitempty"` // ascending, of the whole prompt; none in listings
}

// WayCost is what a way of serving would have cost.
type WayCost struct {
	Way    string  `json:"way"`
	Millis float64 `json:"ms"`
}

// Span is a run of tokens [Begin, End) of a prompt, and where it came from.
type Span struct {
	Begin  int     `json:"begin"`
	End    int     `json:"end"`
	From   string  `json:"from"`
	Tier   string  `json:"tier"`
	Reason string  `json:"reason"`
	Key    *Digest `json:"key,omitempty"` // of a segment
}

// Usage is what was served of a tenant and model since the node's state began.
type Usage struct {
	Tenant  string `json:"tenant"`
	Profile string `json:"profile"` // the first 12 digits of the fingerprint
	Model   string `json:"model"`

	Requests       uint64  `json:"requests"`
	PromptTokens   uint64  `json:"prompt_tokens"`
	EngineTokens   uint64  `json:"engine_tokens"`
	PrefixTokens   uint64  `json:"prefix_tokens"`
	ReusedTokens   uint64  `json:"reused_tokens"`
	ComputedTokens uint64  `json:"computed_tokens"`
	SeamTokens     uint64  `json:"seam_tokens"`
	SavedMillis    float64 `json:"saved_ms"`

	Missed map[string]uint64 `json:"missed"` // tokens by reason
}

// Overview is what a node's state is at a glance.
type Overview struct {
	Status           Status  `json:"status"`
	Usage            Usage   `json:"usage"` // sums over all rows
	Pools            []Pool  `json:"pools"`
	Connections      int     `json:"connections"`
	Leases           int     `json:"leases"`
	Segments         int     `json:"segments"`
	Checkpoints      int     `json:"checkpoints"`
	SharedBytesSaved int64   `json:"shared_bytes_saved"`
	History          History `json:"history"`
}

// History is what happened lately: of counters what a step added, of bytes what there is.
type History struct {
	StepSeconds int                  `json:"step_seconds"`
	At          []int64              `json:"at"` // seconds since 1970
	Series      map[string][]float64 `json:"series"`
}

// Event is something that happened. What does not apply to its kind is left out.
type Event struct {
	ID      uint64    `json:"id"`
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Object  string    `json:"object,omitempty"`
	Key     *Digest   `json:"key,omitempty"`
	Profile uint32    `json:"profile,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Model   string    `json:"model,omitempty"`
	Client  string    `json:"client,omitempty"`
	Bytes   int64     `json:"bytes,omitempty"`
	Tokens  int       `json:"tokens,omitempty"`
	Why     string    `json:"why,omitempty"`
	Policy  string    `json:"policy,omitempty"`
	Value   float64   `json:"value_ms_per_mib,omitempty"`
	Text    string    `json:"text,omitempty"` // for people
}

// Lease is somebody's right to read or fill an object.
type Lease struct {
	ID         uint64    `json:"lease"`
	Object     string    `json:"object"`
	Key        Digest    `json:"key"`
	Tenant     string    `json:"tenant"`
	Profile    uint32    `json:"profile"`
	Client     string    `json:"client"`
	Connection uint64    `json:"connection"`
	Rank       int       `json:"rank"`
	Since      time.Time `json:"since"`
	Expires    time.Time `json:"expires"`
	Bytes      int64     `json:"bytes"`
	Device     string    `json:"device"`
}

// Pin keeps an object from being evicted until it expires.
type Pin struct {
	Key     Digest    `json:"key"`
	Tenant  string    `json:"tenant"`
	Bytes   int64     `json:"bytes"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by"`
}

// BulkRemoval answers the removal of all that passes a filter.
type BulkRemoval struct {
	DryRun  bool  `json:"dry_run"`
	Matched int   `json:"matched"`
	Removed int   `json:"removed"`
	Busy    int   `json:"busy"` // leased or being filled: they stay
	Bytes   int64 `json:"bytes"`
}
