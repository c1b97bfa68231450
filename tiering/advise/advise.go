// Package advise recommends what to store of a prompt and how to serve it, based on the
// earlier prompts of its tenant and on the costs of computing and loading. Advice is a
// prediction: correctness never depends on it.
//
// An Advisor does not look into the store: the query states what is cached, and the interface
// Store supplies the learned costs and the limits of the pools. Methods are safe for
// concurrent use. While the advisor holds its lock, it takes no other lock, and it only walks
// a few times along a prompt. Each walk is bounded by the prompt's tokens and by pathMost
// nodes. The method Advisor.Run does all longer work.
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

// Store is the part of the store that an Advisor uses. None of its methods waits for the
// store's lock.
type Store interface {
	// Costs returns the costs of a profile, or an error if it is not registered.
	Costs(tier.ProfileID) (*costs.Learned, error)
	// Limits returns the limits of both pools.
	Limits() (segments, checkpoints Limit)
}

// Limit is the part of a pool's state that admission depends on.
type Limit struct {
	MaxBytes int64   // maximum size of one object
	Floor    float64 // value, in milliseconds per MiB, of the object that was last evicted for room
}

// Advisor remembers prompts in one radix tree for all tenants and profiles, so that one
// bound limits the memory of all. Every prompt begins with a symbol of its tenant and
// profile, so prompts of different tenants are never compared. At the bound, the tree
// drops prompts of tenants that have more than their share of it.
type Advisor struct {
	// Fixed after New.
	store       Store
	log         *decision.Log
	now         func() time.Time
	maxScopes   int // maximum for registered profiles; above it the worker forgets scopes of profiles that are gone
	checkpoints int
	solveEvery  int
	contents    contentIDs
	owners      map[tier.TenantID]int // index of each tenant in tree.owned
	wake        chan struct{}         // signals work for Run
	works       sync.Pool

	mu struct {
		sync.Mutex
		tree    *tree
		scopes  map[scopeKey]*scope
		symbols uint32 // number of symbols assigned to scopes so far
		sights  sightings
		crowded bool // the worker must drop leaves
		counts  Stats
	}
}

// Options configures an Advisor. All fields are required.
type Options struct {
	Config      // with defaults
	Store       Store
	Tenants     []tier.TenantID
	MaxProfiles int           // maximum number registered at once
	Log         *decision.Log // records the advice on served prompts
	Now         func() time.Time
}

// New returns an advisor that has seen no prompt.
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

// Advise returns what to use and what to store for a prompt. It does no I/O.
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

// told is the number of positions, and of segments, that the log lists for one advice.
const told = 4

// note records the advice for a served prompt in the decision log. The log lists the first few
// positions and segments and only counts the others. Objects to be stored have no name yet.
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

// noteSome records the i-th decision of one kind in one advice.
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
