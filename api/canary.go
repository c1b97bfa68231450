package api

import (
	"fmt"
	"slices"
	"time"

	"github.com/valyala/fasthttp"
)

// Canaries has the reports of engines that compared reused with recomputed segments. Such a report
// can switch splicing off for a profile. Operators can switch it off and on with SwitchProfile.
type Canaries interface {
	// Canaries lists the reports in a stable order.
	Canaries() []Canary
	// SwitchProfile switches splicing off or on for a profile, for the tenant q.Tenant or, if that
	// is "", for all tenants. It returns the affected rows after the change; with q.Dry it changes
	// nothing and returns the current rows. It returns ErrNotFound if the profile is not
	// registered. It also does so if splicing should be switched on for a profile that has no
	// reports.
	SwitchProfile(q SwitchQuery) ([]Canary, error)
}

// Canary sums up the reports on one profile of one tenant.
type Canary struct {
	Profile  Digest     `json:"profile"` // fingerprint
	Model    string     `json:"model"`
	Tenant   string     `json:"tenant"`
	Off      bool       `json:"off"`                // splicing is switched off: lookups find no segments, but exact checkpoints
	Since    *time.Time `json:"since,omitempty"`    // when splicing was switched off
	Why      string     `json:"why,omitempty"`      // text of the report or of the operator that switched splicing off
	Compared uint64     `json:"compared"`           // reuses that were recomputed and compared since the daemon's start
	Failed   uint64     `json:"failed"`             // compared reuses whose difference exceeded the bound
	Worst    *float64   `json:"worst,omitempty"`    // largest difference; nil = a result was NaN or infinite
	Bound    float64    `json:"bound"`              // bound on the difference in the last report
	Reported *time.Time `json:"reported,omitempty"` // time of the last report
	Losses   []Loss     `json:"losses,omitempty"`   // one row for each way of splicing that was compared
}

// Loss has the counts and the estimate for one way of splicing. The loss is the share of
// requests whose first token differs from a full prefill's.
type Loss struct {
	Primed          bool     `json:"primed"`             // segments were captured after the primer, where there is one for them
	Refreshed       bool     `json:"refreshed"`          // the last segments are computed in context
	Expected        *float64 `json:"expected,omitempty"` // expected loss, from 0 to 1; nil = too few requests were compared
	Compared        uint64   `json:"compared"`           // requests that canaries compared since the daemon's start
	Changed         uint64   `json:"changed"`            // compared requests whose first token changed
	OfflineCompared uint64   `json:"offline_compared"`   // requests that were measured offline, as an engine last reported
	OfflineChanged  uint64   `json:"offline_changed"`    // requests measured offline whose first token changed
}

// SwitchQuery asks to switch splicing off or on for a profile.
type SwitchQuery struct {
	Profile Digest
	Tenant  string // "" = all
	Off     bool
	Why     string // reason, shown to other operators
	Dry     bool   // change nothing
}

// Switched is the result of switching splicing off or on.
type Switched struct {
	Canaries []Canary `json:"canaries"` // the affected rows
	DryRun   bool     `json:"dry_run"`  // nothing was changed
}

// maxWhy bounds an operator's reason in bytes. The socket protocol has the same bound.
const maxWhy = 1024

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
	s.audit(ctx, change{object: key.String(), dry: q.Dry, before: before, after: rows}, err)
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
