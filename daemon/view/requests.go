package view

import (
	"fmt"
	"math"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/tiering/tier"
)

var wayNames = [...]string{wire.WayRecompute: api.WayRecompute, wire.WayPrefix: api.WayPrefix, wire.WaySplice: api.WaySplice, wire.WayReplay: api.WayReplay}

// WayName returns the name of a wire.Way.
func WayName(way uint8) string { return wayNames[way] }

// Requests implements api.Node.
func (v *listing) Requests(q api.RequestQuery) []api.Request {
	tenant, ok := v.tenant(q.Tenant)
	if !ok {
		return nil
	}
	var list []api.Request
	for _, r := range v.o.Usage.Last(q.Limit, func(r *usage.Request) bool {
		return (tenant == nil || r.Who.Tenant == *tenant) && (q.Profile == nil || tier.ProfileID(*q.Profile) == r.Who.Profile) &&
			(q.Way == "" || q.Way == wayNames[r.Way])
	}) {
		list = append(list, v.request(r))
	}
	return list
}

// Request implements api.Node.
func (v *listing) Request(id uint64) (*api.Request, error) {
	r, ok := v.o.Usage.Request(id)
	if !ok {
		return nil, fmt.Errorf("request %d is unknown or no longer kept: %w", id, api.ErrNotFound)
	}
	out := v.request(r)
	for i := range r.Spans {
		out.Spans = append(out.Spans, span(&r.Spans[i]))
	}
	return &out, nil
}

func (v *listing) request(r *usage.Request) api.Request {
	out := api.Request{
		ID: r.Number, Name: r.Name, At: r.At, Tenant: v.o.Tenants.NameOf(r.Who.Tenant), Profile: uint32(r.Who.Profile), Model: r.Who.Model,
		Client: r.Who.Client, Trace: r.Parent.TraceID(), Way: wayNames[r.Way], Prompt: uint64(r.Tokens),
		Engine: r.Sources[usage.Engine], Prefix: r.Sources[usage.Checkpoint], Reused: r.Sources[usage.Segment],
		Computed: r.Sources[usage.Computed], Seam: r.Seam, PrefixTier: tierName(r.Prefix), PrefixReason: r.Reason.String(),
		Bytes: r.Bytes, MatchMillis: msOf(r.Match), WaitMillis: msOf(r.Wait), TTFTMillis: msOf(r.First), SavedMillis: r.Saved, SavedBy: r.By.String(),
		Unverified: r.Unverified,
	}
	if r.Loss >= 0 {
		out.ExpectedLoss = &r.Loss
	}
	for i, ms := range r.Ways {
		if i+1 < len(wayNames) && !math.IsInf(ms, 0) {
			out.Ways = append(out.Ways, api.WayCost{Way: wayNames[i+1], Millis: ms})
		}
	}
	return out
}

func span(s *usage.Span) api.Span {
	out := api.Span{Begin: int(s.Begin), End: int(s.End), From: s.From.String(), Key: digestOf(s.Key)}
	if s.Place != tier.PlaceNone {
		out.Tier = tierName(s.Place)
	}
	if s.From == usage.Computed {
		out.Reason = s.Cause.String()
	}
	return out
}

// Usage implements api.Node.
func (v *listing) Usage() []api.Usage {
	rows := v.o.Usage.Rows()
	list := make([]api.Usage, 0, len(rows))
	for i := range rows {
		total := rows[i].Total()
		u := sums(&total)
		u.Tenant, u.Profile, u.Model = v.o.Tenants.NameOf(rows[i].Tenant), shortName(rows[i].Fingerprint), rows[i].Model
		u.Since = rows[i].Began
		list = append(list, u)
	}
	return list
}

func sums(s *usage.Sums) api.Usage {
	u := api.Usage{
		Requests: s.Requests(), Prompt: s.Prompt, Engine: s.Sources[usage.Engine], Prefix: s.Sources[usage.Checkpoint],
		Reused: s.Sources[usage.Segment], Computed: s.Sources[usage.Computed], Seam: s.Missed[usage.Seam], Saved: s.Saved - s.Lost, SavedGuess: s.Guessed, TTFTMillis: s.First, TTFTRequests: s.Timed,
		Unverified: s.Unverified, UnverifiedTokens: s.UnverifiedTokens, Ways: map[string]uint64{}, Missed: map[string]uint64{},
	}
	for way, n := range s.Ways {
		if n > 0 {
			u.Ways[wayNames[way]] = n
		}
	}
	s.Causes(func(c usage.Cause, tokens uint64) {
		if tokens > 0 {
			u.Missed[c.String()] = tokens
		}
	})
	return u
}

// Overview implements api.Node.
func (v *View) Overview(history string) *api.Overview {
	o := &api.Overview{
		Status: v.Status(), Pools: v.Pools(), Connections: len(v.Connections()), Leases: v.o.Store.Counters().Leases, History: v.history(history),
	}
	for _, u := range v.Usage() {
		o.Usage.Add(&u)
	}
	for _, p := range v.o.Store.Pools() {
		o.SharedSaved += p.SavedBytes
	}
	for _, p := range v.Profiles() {
		o.Segments += p.Segments
		o.Checkpoints += p.Checkpoints
	}
	return o
}

func (v *View) history(span string) api.History {
	list, step := []usage.Sample(nil), usage.FineStep
	switch span {
	case api.HistoryMinutes:
		list = v.o.History.Fine(15 * time.Minute)
	case api.HistoryHour:
		list = v.o.History.Fine(time.Hour)
	case api.HistoryDays:
		list, step = v.o.History.Coarse(), usage.CoarseStep
	default:
		list = v.o.History.Fine(6 * time.Hour)
	}
	h := api.History{StepSeconds: int(step.Seconds()), At: make([]int64, len(list)), Series: map[string][]float64{}}
	column := func(name string, of func(*usage.Sample) float64) {
		values := make([]float64, len(list))
		for i := range list {
			values[i] = of(&list[i])
		}
		h.Series[name] = values
	}
	for i := range list {
		h.At[i] = list[i].At.Unix()
	}
	column("requests", func(s *usage.Sample) float64 { return float64(s.Requests) })
	column("prompt_tokens", func(s *usage.Sample) float64 { return float64(s.Prompt) })
	for from, name := range map[usage.From]string{
		usage.Engine: "engine_tokens", usage.Checkpoint: "prefix_tokens", usage.Segment: "reused_tokens", usage.Computed: "computed_tokens",
	} {
		column(name, func(s *usage.Sample) float64 { return float64(s.Sources[from]) })
	}
	for c := range usage.Cause(usage.Causes) {
		column("missed_"+c.String(), func(s *usage.Sample) float64 { return float64(s.Missed[c]) })
	}
	column("ttft_ms", func(s *usage.Sample) float64 { return s.First })
	column("ttft_requests", func(s *usage.Sample) float64 { return float64(s.Timed) })
	column("saved_ms", func(s *usage.Sample) float64 { return s.Saved })
	column("evictions", func(s *usage.Sample) float64 { return float64(s.Evictions) })
	for _, place := range []tier.Place{tier.PlaceHBM, tier.PlaceDRAM, tier.PlaceDisk} {
		column("used_bytes_"+tierName(place), func(s *usage.Sample) float64 { return float64(s.Bytes[place]) })
	}
	return h
}

func msOf(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
