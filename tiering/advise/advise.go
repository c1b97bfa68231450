// Package advise says what is worth storing of a prompt and how to serve it, from
// the prompts that its tenant sent so far and from what computing and loading take.
// An answer is a guess about what comes: nothing depends on its being right.
//
// An Advisor knows no object of the store; what is held a query tells it, the rest
// it asks through Store. Its methods may be called by many at once. It has one lock
// of its own, never held with another, for a few walks along a prompt, each bounded
// by its tokens and by pathMost nodes. What takes longer is left to Run.
package advise

import (
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Store is what an Advisor asks of the store. No method waits for the store's lock.
type Store interface {
	// Costs answers those of a profile, an error for one that is not registered.
	Costs(tier.ProfileID) (*costs.Learned, error)
	// Limits is what admission has to know of the pools of either.
	Limits() (segments, checkpoints Limit)
}

// Limit is what admission has to know of a pool.
type Limit struct {
	MaxBytes int64   // that one object should take
	Floor    float64 // milliseconds per MiB of what left for room last
}

// Advisor remembers what prompts looked like: one radix tree for all tenants and
// profiles, in which every prompt begins with a symbol that only its tenant and
// profile have. So nobody's prompts are ever compared with another's, while one
// bound holds for the memory of all of them. Where it is met, tenants that hold
// more than their part of it lose prompts.
type Advisor struct {
	// Fixed after New.
	store       Store
	log         *decision.Log
	now         func() time.Time
	maxScopes   int // of profiles that are registered; beyond it the worker forgets the others'
	checkpoints int
	solveEvery  int
	contents    contentIDs
	owners      map[tier.TenantID]int // index of a tenant in the tree's owned
	wake        chan struct{}         // the worker has something to do
	works       sync.Pool

	mu struct {
		sync.Mutex
		tree    *tree
		scopes  map[scopeKey]*scope
		symbols uint32 // given to scopes
		sights  sightings
		crowded bool // the worker is to drop leaves
		counts  Stats
	}
}

// Options is what an Advisor is made of. All are required.
type Options struct {
	Config      // with defaults
	Store       Store
	Tenants     []tier.TenantID
	MaxProfiles int           // registered at once
	Log         *decision.Log // where advice on prompts that are served is noted
	Now         func() time.Time
}

// New makes an advisor that has seen no prompt.
func New(o Options) *Advisor {
	a := &Advisor{
		store: o.Store, log: o.Log, now: o.Now,
		maxScopes: o.MaxProfiles * len(o.Tenants), checkpoints: o.Checkpoints, solveEvery: o.SolveEvery,
		contents: contentIDs{maphash.MakeSeed()}, owners: map[tier.TenantID]int{}, wake: make(chan struct{}, 1),
	}
	for i, t := range o.Tenants {
		a.owners[t] = i
	}
	a.works.New = func() any { return &work{} }
	a.mu.tree = newTree(o.Nodes, o.Bytes, len(o.Tenants))
	a.mu.scopes = map[scopeKey]*scope{}
	return a
}

// Advise answers what to use and what to store for a prompt. It does no I/O.
func (a *Advisor) Advise(q *Query, dst *Advice) error {
	learned, err := a.store.Costs(q.Profile)
	if err != nil {
		return err
	}
	if _, ok := a.owners[q.Tenant]; !ok {
		return fmt.Errorf("tenant %d is not configured: %w", q.Tenant, tier.ErrInvalid)
	}
	if err := q.check(); err != nil {
		return fmt.Errorf("advise: %w", err)
	}
	w := a.open(q)
	w.model = learned.For(q.Tenant)
	a.look(w, q)
	w.judge(q, a.store)
	w.choice = w.model.Choose(w.request(q))
	a.record(w, q)
	dst.SeenTokens = w.seen
	dst.Positions = append(dst.Positions[:0], w.positions...)
	dst.Segments = append(dst.Segments[:0], w.segments...)
	dst.Choice = w.choice
	if q.Record {
		a.note(w, q)
	}
	a.close(w)
	return nil
}

// told is how many positions and how many segments of one advice can be told
// afterwards.
const told = 4

// note puts what was advised for a prompt that is being served among the decisions,
// the first few of it to be told. What is to be stored has no name yet.
func (a *Advisor) note(w *work, q *Query) {
	d := decision.Decision{At: a.now(), Profile: q.Profile, Tenant: q.Tenant, Name: tier.Name{Kind: tier.Exact}}
	for i := range w.positions {
		p := &w.positions[i]
		d.Begin, d.End, d.Bytes = w.begins[i], p.Tokens, w.bytes[i]
		d.What, d.Why, d.Value = advised(p.Admit), decision.Reason(p.Reason), p.Value
		a.noteSome(i, d)
	}
	d.Name = tier.Name{}
	missing := 0
	for i := range w.segments {
		g := &w.segments[i]
		if g.Reason == cost.ReasonNone {
			continue
		}
		d.Begin, d.End = q.Segments[i].Begin, q.Segments[i].Begin+q.Segments[i].Tokens
		d.Bytes = w.model.Shape.SegmentTotalBytes(q.Segments[i].Tokens)
		d.What, d.Why, d.Value = advised(g.Admit), decision.Reason(g.Reason), g.Value
		a.noteSome(missing, d)
		missing++
	}
}

// noteSome notes the i-th decision of a kind in one advice.
func (a *Advisor) noteSome(i int, d decision.Decision) {
	if i < told {
		a.log.Note(d)
	} else {
		a.log.Count(d.What, d.Why)
	}
}

func advised(admit bool) decision.What {
	if admit {
		return decision.Advise
	}
	return decision.AdviseAgainst
}
