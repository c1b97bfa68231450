package api

import (
	"fmt"
	"slices"
	"time"

	"github.com/valyala/fasthttp"
)

// Canaries has the reports of engines that compared reused with recomputed segments, and the
// switch that such a report or an operator sets.
type Canaries interface {
	// Canaries lists the reports in a stable order.
	Canaries() []Canary
	// SwitchProfile switches splicing off or on for a profile, for one tenant or with "" for
	// all. It returns the affected rows as they are afterwards, or with Dry as they are now.
	// ErrNotFound: the profile is not registered, or is to be switched on without reports.
	SwitchProfile(q SwitchQuery) ([]Canary, error)
}

// Canary sums up the reports on one profile of one tenant.
type Canary struct {
	Profile  Digest     `json:"profile"` // fingerprint
	Model    string     `json:"model"`
	Tenant   string     `json:"tenant"`
	Off      bool       `json:"off"`                // splicing is switched off
	Since    *time.Time `json:"since,omitempty"`    // time of the switch-off
	Why      string     `json:"why,omitempty"`      // text of the report or the operator
	Compared uint64     `json:"compared"`           // reuses that were computed again since the daemon's start
	Failed   uint64     `json:"failed"`             // of these, above the bound
	Worst    *float64   `json:"worst,omitempty"`    // largest difference; nil if a result was NaN or infinite
	Bound    float64    `json:"bound"`              // of the last report
	Reported *time.Time `json:"reported,omitempty"` // time of the last report
	Losses   []Loss     `json:"losses,omitempty"`   // of ways of splicing with comparisons
}

// Loss has the counts and the estimate of one way of splicing. The loss is the share of
// requests whose first token differs from a full prefill's.
type Loss struct {
	Primed    bool     `json:"primed"`             // segments were captured after the primer, if there is one for them
	Refreshed bool     `json:"refreshed"`          // the last segments are computed in context
	Expected  *float64 `json:"expected,omitempty"` // nil = too few were compared
	// Requests that canaries compared since the daemon's start, requests that were measured
	// offline, and the changed first tokens of each.
	Compared        uint64 `json:"compared"`
	Changed         uint64 `json:"changed"`
	OfflineCompared uint64 `json:"offline_compared"`
	OfflineChanged  uint64 `json:"offline_changed"`
}

// SwitchQuery asks for a switch.
type SwitchQuery struct {
	Profile Digest
	Tenant  string // "" = all
	Off     bool
	Why     string // for people
	Dry     bool   // change nothing
}

// Switched is the reply to a switch: the affected rows.
type Switched struct {
	Canaries []Canary `json:"canaries"`
	DryRun   bool     `json:"dry_run"`
}

// maxWhy bounds an operator's reason in bytes, as the socket does.
const maxWhy = 1024

func (s *Server) listCanaries(ctx *fasthttp.RequestCtx, _ string) error {
	return listAll(ctx, s.shown().Canaries.Canaries)
}

func (s *Server) switchOff(ctx *fasthttp.RequestCtx, arg string) error {
	return s.switchProfile(ctx, arg, true)
}

func (s *Server) switchOn(ctx *fasthttp.RequestCtx, arg string) error {
	return s.switchProfile(ctx, arg, false)
}

func (s *Server) switchProfile(ctx *fasthttp.RequestCtx, arg string, off bool) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	p := paramsOf(ctx)
	q := SwitchQuery{Profile: key, Tenant: p.name("tenant"), Off: off, Dry: p.flag("dry_run")}
	if off {
		q.Why = p.why()
	}
	if err := p.done(); err != nil {
		return err
	}
	before := slices.DeleteFunc(s.shown().Canaries.Canaries(), func(c Canary) bool { return c.Profile != key || q.Tenant != "" && c.Tenant != q.Tenant })
	rows, err := s.shown().Canaries.SwitchProfile(q)
	action := "switch splicing on"
	if off {
		action = "switch splicing off"
	}
	s.audit(ctx, change{action: action, object: key.String(), dry: q.Dry, before: before, after: rows}, err)
	if err != nil {
		return fmt.Errorf("switch profile %s: %w", key, err)
	}
	return writeJSON(ctx, Switched{Canaries: orEmpty(rows), DryRun: q.Dry})
}

func (p *params) why() string {
	v, ok := p.text("why")
	if ok && (v == "" || len(v) > maxWhy) {
		p.refuse("why", "has %d bytes, want 1 to %d", len(v), maxWhy)
	}
	return v
}
