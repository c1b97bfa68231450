// Package peerdemo shows how engines on several nodes share segments. Documents that were
// computed on one node are placed in prompts on another node, in another order, while nodes are
// killed and restarted. Every answer is compared with the answer that uses a cache in this
// process.
package peerdemo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/ragdemo"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

const (
	seam      = 8
	modelSeed = 1
	// visible bounds the wait until one node knows the segments of another.
	visible = 10 * time.Second
	poll    = 2 * time.Millisecond
)

// Node is a daemon, and the client through which an engine reaches it.
type Node struct {
	Name   string
	Client *connector.Client
}

// Options names the two nodes; each has an engine.
type Options struct {
	A, B    Node
	Kill    func() error                    // kills A's daemon, as a crash would
	Restart func(ctx context.Context) error // restarts it with the contents of its disk
	Step    func(Step)                      // called at the end of each step; may be nil
}

// Step is one request, or one event between requests.
type Step struct {
	Node     string         `json:"node"`
	What     string         `json:"what"`
	Tokens   int            `json:"prompt_tokens,omitempty"`
	Reused   int            `json:"reused_tokens,omitempty"`
	Computed int            `json:"computed_tokens,omitempty"`
	Seconds  float64        `json:"seconds"`         // to the first token, or of the event
	Tiers    map[string]int `json:"tiers,omitempty"` // segments that were cached, by tier
	Same     *bool          `json:"same,omitempty"`  // the answer equals the one with a cache in this process; nil for events
}

// Run runs all steps: segments are computed on A, reused on B, A is killed, B continues, A is
// restarted. It fails if an answer is wrong, or if no segment came from a peer.
func Run(ctx context.Context, o Options) ([]Step, error) {
	sample, err := ragdemo.Embedded()
	if err != nil {
		return nil, err
	}
	m, err := ragdemo.Model(modelSeed)
	if err != nil {
		return nil, err
	}
	d := &demo{ctx: ctx, o: o, m: m, local: refengine.NewMemory(m.Profile())}
	if d.a, err = d.engine(o.A); err != nil {
		return nil, err
	}
	if d.b, err = d.engine(o.B); err != nil {
		return nil, err
	}
	err = d.play(sample)
	return d.steps, errors.Join(err, d.judge())
}

type demo struct {
	ctx   context.Context
	o     Options
	m     *refengine.Model[float32]
	local refengine.Cache // reference for every answer
	a, b  *engine
	steps []Step
}

// engine is the engine of one node.
type engine struct {
	node  Node
	model *connector.Model
	store *remote.Store
}

func (d *demo) engine(n Node) (*engine, error) {
	model, err := n.Client.Register(d.m.Profile(), connector.Binding{Connector: "refengine", Engine: "peerdemo"})
	if err != nil {
		return nil, err
	}
	if err := model.WaitReady(d.ctx); err != nil {
		return nil, err
	}
	s := remote.New(d.ctx, n.Client, model)
	s.Level = wire.LevelLogged
	return &engine{n, model, s}, nil
}

func (d *demo) play(sample *ragdemo.Sample) error {
	first, other := sample.Request(0, seam), sample.Request(1, seam)
	turned := first
	turned.Mid = slices.Clone(first.Mid)
	slices.Reverse(turned.Mid)
	turned.Query = other.Query
	for _, step := range []func() error{
		func() error { return d.serve(d.a, "documents that nobody holds", first) },
		func() error { return d.spread(d.a, d.b, first) },
		func() error { return d.serve(d.b, "the same documents in another order", turned) },
		func() error { return d.serve(d.b, "once more", turned) },
		func() error { return d.event(d.o.A.Name, "killed with SIGKILL", d.o.Kill) },
		func() error { return d.serve(d.b, "the same, "+d.o.A.Name+" is gone", turned) },
		func() error { return d.serve(d.b, "other documents, "+d.o.A.Name+" is gone", other) },
		func() error { return d.event(d.o.A.Name, "started again", d.again) },
		func() error { return d.spread(d.b, d.a, other) },
		func() error { return d.serve(d.a, "what "+d.o.B.Name+" has computed meanwhile", other) },
		func() error { return d.serve(d.a, "what its own disk holds", first) },
	} {
		if err := errors.Join(step(), d.ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// again restarts A and waits until its engine is attached to the new daemon.
func (d *demo) again() error {
	former := d.a.node.Client.Epoch()
	if err := d.o.Restart(d.ctx); err != nil {
		return err
	}
	if err := d.until(func() (bool, error) { return d.a.node.Client.Epoch() != former, nil }); err != nil {
		return fmt.Errorf("%s is not attached to again: %w", d.a.node.Name, err)
	}
	return d.a.model.WaitReady(d.ctx)
}

// serve answers a request on an engine and compares.
func (d *demo) serve(e *engine, what string, r refengine.Request) error {
	began := time.Now()
	out, err := refengine.Serve(d.m, e.store, r)
	took := time.Since(began)
	if err == nil {
		err = out.Cache
	}
	if err != nil {
		return fmt.Errorf("%s, %s: %w", e.node.Name, what, err)
	}
	want, err := refengine.Serve(d.m, d.local, r)
	if err != nil {
		return err
	}
	same := slices.Equal(out.Logits, want.Logits)
	tiers := map[string]int{}
	for _, s := range e.store.Found().Segments {
		if s.Hit() {
			tiers[tierNames[s.Tier]]++
		}
	}
	d.tell(Step{
		Node: e.node.Name, What: what, Tokens: len(r.Prompt()), Reused: out.Reused, Computed: out.Captured + out.Recomputed,
		Seconds: took.Seconds(), Tiers: tiers, Same: &same,
	})
	return nil
}

var tierNames = map[uint8]string{
	wire.TierHBM: "HBM", wire.TierDRAM: "memory", wire.TierDisk: "disk", wire.TierPeer: "peer",
}

// spread waits until a node knows all segments of a request that another one has.
func (d *demo) spread(from, to *engine, r refengine.Request) error {
	keys, err := d.keys(to, r)
	if err != nil {
		return err
	}
	return d.event(to.node.Name, "knows what "+from.node.Name+" holds", func() error {
		return d.until(func() (bool, error) {
			held, err := to.store.Match(keys)
			return err == nil && !slices.Contains(held, false), nil
		})
	})
}

// keys returns the keys of the segments of a request that are worth caching.
func (d *demo) keys(e *engine, r refengine.Request) ([]profile.SegmentKey, error) {
	var keys []profile.SegmentKey
	if len(r.First) > 0 {
		keys = append(keys, e.store.Key(profile.FirstSpec(len(r.First)), r.First))
	}
	for _, tokens := range r.Mid {
		if spec, ok := d.m.Profile().MidSpec(len(tokens), r.Seam); ok {
			keys = append(keys, e.store.Key(spec, tokens))
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("peerdemo: no segment of the request is worth keeping")
	}
	return keys, nil
}

func (d *demo) event(node, what string, do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s, %s: %w", node, what, err)
	}
	d.tell(Step{Node: node, What: what, Seconds: time.Since(began).Seconds()})
	return nil
}

func (d *demo) tell(s Step) {
	d.steps = append(d.steps, s)
	if d.o.Step != nil {
		d.o.Step(s)
	}
}

// until calls done repeatedly until it returns true or an error, or until the time visible has
// passed. Polling is necessary, because nothing signals that a peer's index has arrived or that
// a daemon has ended.
func (d *demo) until(done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(d.ctx, visible)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// judge returns an error if an answer differs, or if no segment came from a peer.
func (d *demo) judge() error {
	crossed := 0
	for _, s := range d.steps {
		crossed += s.Tiers["peer"]
		if s.Same != nil && !*s.Same {
			return fmt.Errorf("%s, %s: the answer is another one than without a daemon", s.Node, s.What)
		}
	}
	if len(d.steps) > 0 && crossed == 0 {
		return errors.New("no segment came from a peer")
	}
	return nil
}
