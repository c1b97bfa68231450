package api

import (
	"context"
	"fmt"

	"github.com/valyala/fasthttp"
)

// Health states.
const (
	HealthOK          = "ok"
	HealthDegraded    = "degraded"    // ready, but some capabilities are restricted
	HealthUnavailable = "unavailable" // not ready, or not alive
)

// Health is the result of a probe. The answer of a degraded node has status 200, so that a problem
// of the cache does not take the engine's pod out of service.
type Health struct {
	Status   string   `json:"status" enum:"Health*"`
	Degraded []string `json:"degraded"`         // names of the checks that are not ok
	Checks   []Check  `json:"checks,omitempty"` // present with the parameter verbose
}

// Page is one page of a listing. Next is the cursor of the next page, empty on the last page.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// Removal is the result of removing one segment.
type Removal struct {
	Segment Segment `json:"segment"` // as it was before the removal
	DryRun  bool    `json:"dry_run"` // nothing was removed
}

func (from *Shown) live(ctx *fasthttp.RequestCtx, _ string) error {
	if err := noParams(ctx); err != nil {
		return err
	}
	h := Health{Status: HealthOK, Degraded: []string{}}
	if !from.Node.Status().Alive {
		h.Status = HealthUnavailable
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
	}
	return writeJSON(ctx, h)
}

func (from *Shown) ready(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	verbose := p.flag("verbose")
	if err := p.done(); err != nil {
		return err
	}
	st := from.Node.Status()
	h := Health{Status: HealthOK, Degraded: []string{}}
	for _, c := range st.Checks {
		if c.State != CheckOK {
			h.Status = HealthDegraded
			h.Degraded = append(h.Degraded, c.Name)
		}
	}
	if verbose {
		h.Checks = st.Checks
	}
	if !st.Ready {
		h.Status = HealthUnavailable
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
	}
	return writeJSON(ctx, h)
}

func (s *Server) scrape(ctx *fasthttp.RequestCtx, _ string) error {
	s.metrics(ctx)
	return nil
}

func (s *Server) document(ctx *fasthttp.RequestCtx, _ string) error {
	ctx.SetContentType("application/json")
	ctx.SetBody(openAPI)
	return nil
}

func (from *Shown) status() (Status, error) { return withLists(from.Node.Status()), nil }

// withLists makes a status without features or checks contain empty lists.
func withLists(st Status) Status {
	st.Features, st.Checks = orEmpty(st.Features), orEmpty(st.Checks)
	return st
}

// withTenants makes pools without tenants contain an empty list.
func withTenants(pools []Pool) []Pool {
	for i := range pools {
		pools[i].Tenants = orEmpty(pools[i].Tenants)
	}
	return pools
}

func (from *Shown) connections() []Connection {
	conns := from.Node.Connections()
	for i := range conns {
		conns[i].Tenants = orEmpty(conns[i].Tenants)
		conns[i].Profiles = orEmpty(conns[i].Profiles)
		conns[i].Engines = orEmpty(conns[i].Engines)
	}
	return conns
}

func (from *Shown) cluster() (Cluster, error) {
	c := from.Node.Cluster()
	c.Join.Errors, c.Members, c.Rejected, c.Counters, c.Workers = orEmpty(c.Join.Errors), orEmpty(c.Members), orEmpty(c.Rejected), orEmpty(c.Counters), orEmpty(c.Workers)
	return c, nil
}

func (from *Shown) probeObjectStore() (ObjectProbe, error) {
	bounded, cancel := context.WithTimeout(context.Background(), probeStoreTimeout)
	defer cancel()
	p := from.Node.ProbeObjectStore(bounded)
	p.Steps = orEmpty(p.Steps)
	return p, nil
}

func (from *Shown) listSegments(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	q := SegmentQuery{Tenant: p.name("tenant"), Profile: p.profile(), Prefix: p.prefix(), After: p.cursor(), Limit: p.limit()}
	if err := p.done(); err != nil {
		return err
	}
	limit := q.Limit
	q.Limit++ // one more shows whether there is a next page
	items, err := from.Catalogue.Segments(q)
	if err != nil {
		return fmt.Errorf("list segments: %w", err)
	}
	for i := range items {
		items[i].Tiers = orEmpty(items[i].Tiers)
	}
	return writeJSON(ctx, pageOf(items, limit, func(s *Segment) string { return s.Key.String() }))
}

func (from *Shown) listCheckpoints(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	q := CheckpointQuery{Tenant: p.name("tenant"), Profile: p.profile(), After: p.cursor(), Limit: p.limit()}
	if err := p.done(); err != nil {
		return err
	}
	limit := q.Limit
	q.Limit++
	items, err := from.Catalogue.Checkpoints(q)
	if err != nil {
		return fmt.Errorf("list checkpoints: %w", err)
	}
	for i := range items {
		items[i].Tiers = orEmpty(items[i].Tiers)
	}
	return writeJSON(ctx, pageOf(items, limit, func(c *Checkpoint) string { return c.Hash.String() }))
}

func (from *Shown) getSegment(ctx *fasthttp.RequestCtx, arg string) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	if err := noParams(ctx); err != nil {
		return err
	}
	d, err := from.Catalogue.Segment(key)
	if err != nil {
		return fmt.Errorf("segment %s: %w", key, err)
	}
	d.Parts, d.Tiers = orEmpty(d.Parts), orEmpty(d.Tiers)
	return writeJSON(ctx, d)
}

func (s *Server) removeSegment(ctx *fasthttp.RequestCtx, arg string) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	dry, err := onlyDryRun(ctx)
	if err != nil {
		return err
	}
	d, err := s.shown().Catalogue.Segment(key)
	if err == nil && len(s.shown().pinsOf(key)) > 0 {
		err = fmt.Errorf("it is pinned; unpin it with DELETE /api/v1/pins: %w", ErrBusy)
	}
	if err == nil && !dry {
		err = s.shown().Catalogue.Remove(key)
	}
	s.audit(ctx, change{object: key.String(), dry: dry, before: map[string]any{"bytes": d.Bytes, "tiers": d.Tiers}, after: map[string]any{"bytes": 0}}, err)
	if err != nil {
		return fmt.Errorf("remove segment %s: %w", key, err)
	}
	d.Tiers = orEmpty(d.Tiers)
	return writeJSON(ctx, Removal{Segment: d.Segment, DryRun: dry})
}

// pageOf returns a page of limit items, and a cursor if there are more items. To show whether there
// are more, the caller passes limit+1 items if it has that many. Items with the same key stay on
// one page, since the cursor continues after their key.
func pageOf[T any](items []T, limit int, key func(*T) string) Page[T] {
	page := Page[T]{Items: orEmpty(items)}
	if len(items) <= limit {
		return page
	}
	last := key(&items[limit-1])
	for limit < len(items) && key(&items[limit]) == last {
		limit++
	}
	page.Items, page.Next = items[:limit], last
	return page
}

// orEmpty makes JSON contain [] instead of null.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// orNone makes JSON contain {} instead of null.
func orNone[T any](m map[string]T) map[string]T {
	if m == nil {
		return map[string]T{}
	}
	return m
}
