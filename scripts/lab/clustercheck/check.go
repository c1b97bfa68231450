// Package clustercheck runs daemons as one cluster on this machine and measures what package
// simulate predicts: how soon the other nodes learn of segments that are added to or removed
// from one node, how often what they know is wrong, and what the exchange costs.
package clustercheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Options configures a run. Nodes are running and reach each other.
type Options struct {
	Nodes    []Node
	Profile  *profile.Profile // with small segments: each takes memory
	Keys     int              // segments that each node has
	Duration time.Duration    // of the measurement
	Churn    float64          // share of a node's segments that are added, and removed, per minute
	Seed     uint64
	Progress func(done float64) // may be nil
}

// Node is a daemon of the cluster.
type Node struct {
	Name   string // in the cluster
	Client *connector.Client
	// Remove removes a segment from the node.
	Remove func(context.Context, profile.SegmentKey) error
	// Exchanges returns the number of requests in which the node has asked other nodes for their
	// sets of segments, and the bytes of the answers.
	Exchanges func(context.Context) (asked, bytes float64, err error)
	// Versions returns the version of the node's own set and, by node name, the versions of other
	// nodes' sets that the node has read completely.
	Versions func(context.Context) (own uint64, others map[string]uint64, err error)
}

// Report is the result of a run. Byte counts include the answers that nodes exchange about their
// sets, but not the overhead of HTTP, TLS and TCP.
type Report struct {
	Nodes              int     `json:"nodes"`
	Segments           int     `json:"segments_per_node"`
	ExchangesPerSecond float64 `json:"exchanges_per_second"` // started per node, the mean
	AnswerBytes        float64 `json:"answer_bytes_per_second"`
	VisibleP50         float64 `json:"visible_p50_seconds"` // time until one node knows a new segment, after its writer learned that it was published
	VisibleP99         float64 `json:"visible_p99_seconds"`
	EverywhereP99      float64 `json:"everywhere_p99_seconds"` // the same until the last node knows it
	NewSegments        int     `json:"new_segments"`
	HitsLost           float64 `json:"hits_lost"`   // share of missed lookups, of segments that another node has
	False              float64 `json:"false_peers"` // share of wrong hits, of segments that never existed
	Lookups            int     `json:"lookups"`
	Unseen             int     `json:"not_visible"` // new segments that a node did not know after 5 s, counted per node
}

const (
	tokens  = 8
	perTurn = 100 // lookups of each kind, per node and second
	poll    = 10 * time.Millisecond
	settle  = 20 * time.Second // longest wait until all nodes know the first sets
	late    = 5 * time.Second
)

// run is the state of one run of the check.
type run struct {
	Options
	models []*connector.Model
	held   [][]*segment // by node
	next   uint64
	rand   *rand.Rand
	fresh  []*segment // not yet seen by every node
	report Report
	one    []time.Duration // times until one node knew a new segment
	all    []time.Duration
}

type segment struct {
	node      int
	key       profile.SegmentKey
	published time.Time
	seen      []bool // by node
	missing   int
	gone      bool
}

// Run fills the nodes, waits until they know each other's sets, and measures.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &run{Options: o, held: make([][]*segment, len(o.Nodes)), rand: rand.New(rand.NewPCG(o.Seed, 1))}
	r.report = Report{Nodes: len(o.Nodes), Segments: o.Keys}
	for _, n := range o.Nodes {
		m, err := n.Client.Register(o.Profile, connector.Binding{Connector: "splicectl", Engine: "clustercheck"})
		if err != nil {
			return nil, err
		}
		if err := m.WaitReady(ctx); err != nil {
			return nil, err
		}
		r.models = append(r.models, m)
	}
	if err := r.fill(ctx); err != nil {
		return nil, err
	}
	if err := r.known(ctx); err != nil {
		return nil, err
	}
	if err := r.measure(ctx); err != nil {
		return nil, err
	}
	return &r.report, nil
}

// fill publishes the initial segments on all nodes.
func (r *run) fill(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	for node := range r.Nodes {
		first := r.next
		r.next += uint64(r.Keys)
		all.Go(func() error {
			for i := range r.Keys {
				s, err := r.put(ctx, node, first+uint64(i))
				if err != nil {
					return err
				}
				r.held[node] = append(r.held[node], s)
			}
			return nil
		})
	}
	return all.Wait()
}

// ids returns the token ids of segment number n; numbers are never reused.
func (r *run) ids(n uint64) []uint32 {
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(n>>(16*(i%4))) & 0xffff
	}
	ids[tokens-1] = uint32(r.Seed) & 0xffff
	return ids
}

func (r *run) key(node int, n uint64) (profile.SegmentKey, error) {
	key, ok := r.models[node].SegmentKey(profile.FirstSpec(tokens), r.ids(n))
	if !ok {
		return key, errors.New("the client is not attached")
	}
	return key, nil
}

func (r *run) put(ctx context.Context, node int, n uint64) (*segment, error) {
	key, err := r.key(node, n)
	if err != nil {
		return nil, err
	}
	_, err = r.models[node].Put(ctx, &connector.PutQuery{
		Spec: profile.FirstSpec(tokens), Tokens: r.ids(n),
		Source: connector.Source{Fill: func(_ profile.Part, _ int, _ int64, dst []byte) error { clear(dst); return nil }},
	})
	if err != nil {
		return nil, fmt.Errorf("node %d: %w", node, err)
	}
	return &segment{node: node, key: key, published: time.Now()}, nil
}

// match looks up keys on a node.
func (r *run) match(ctx context.Context, node int, keys []profile.SegmentKey, found *connector.Found) error {
	if err := r.models[node].Match(ctx, &connector.MatchQuery{Keys: keys}, found); err != nil {
		return fmt.Errorf("node %d: %w", node, err)
	}
	return nil
}

// known waits until each node has read all other nodes' sets completely. Lookups would not show
// that, because a node that is behind asks other nodes.
func (r *run) known(ctx context.Context) error {
	own := make([]uint64, len(r.Nodes)) // a set changes before put returns
	for node := range r.Nodes {
		var err error
		if own[node], _, err = r.Nodes[node].Versions(ctx); err != nil {
			return fmt.Errorf("node %d: %w", node, err)
		}
	}
	deadline := time.Now().Add(settle)
	for node := 0; node < len(r.Nodes); {
		_, others, err := r.Nodes[node].Versions(ctx)
		if err != nil {
			return fmt.Errorf("node %d: %w", node, err)
		}
		if r.upToDate(node, own, others) {
			node++
			continue
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v node %d does not know all others' segments", settle, node)
		}
		if err := pause(ctx, poll); err != nil {
			return err
		}
	}
	return nil
}

// upToDate reports whether a node has read the others' sets up to the versions in own.
func (r *run) upToDate(node int, own []uint64, others map[string]uint64) bool {
	for i, n := range r.Nodes {
		if version, complete := others[n.Name]; i != node && (!complete || version < own[i]) {
			return false
		}
	}
	return true
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (r *run) measure(ctx context.Context) error {
	asked, bytes, err := r.exchanges(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	gap := time.Duration(float64(time.Minute) / (r.Churn*float64(r.Keys*len(r.Nodes)) + 1e-9))
	nextChange, nextTurn := began, began.Add(time.Second)
	for now := began; now.Sub(began) < r.Duration; now = time.Now() {
		for ; r.Churn > 0 && !nextChange.After(now); nextChange = nextChange.Add(gap) {
			if err := r.change(ctx); err != nil {
				return err
			}
		}
		if err := r.look(ctx); err != nil {
			return err
		}
		if !nextTurn.After(now) {
			nextTurn = nextTurn.Add(time.Second)
			if err := r.questions(ctx); err != nil {
				return err
			}
			if r.Progress != nil {
				r.Progress(now.Sub(began).Seconds() / r.Duration.Seconds())
			}
		}
		if err := pause(ctx, poll); err != nil {
			return err
		}
	}
	seconds := time.Since(began).Seconds() * float64(len(r.Nodes))
	asked2, bytes2, err := r.exchanges(ctx)
	r.report.ExchangesPerSecond, r.report.AnswerBytes = (asked2-asked)/seconds, (bytes2-bytes)/seconds
	r.summary()
	return err
}

func (r *run) exchanges(ctx context.Context) (asked, bytes float64, err error) {
	for _, n := range r.Nodes {
		a, b, err := n.Exchanges(ctx)
		if err != nil {
			return 0, 0, err
		}
		asked, bytes = asked+a, bytes+b
	}
	return asked, bytes, nil
}

// change adds a segment to a node and removes another one.
func (r *run) change(ctx context.Context) error {
	node := r.rand.IntN(len(r.Nodes))
	s, err := r.put(ctx, node, r.next)
	r.next++
	if err != nil {
		return err
	}
	s.seen, s.missing = make([]bool, len(r.Nodes)), len(r.Nodes)-1
	list := r.held[node]
	i := r.rand.IntN(len(list))
	if err := r.Nodes[node].Remove(ctx, list[i].key); err != nil {
		return fmt.Errorf("node %d: %w", node, err)
	}
	list[i].gone = true
	list[i] = s
	r.fresh = append(r.fresh, s)
	return nil
}

// look records which new segments nodes have learned of.
func (r *run) look(ctx context.Context) error {
	if len(r.fresh) == 0 {
		return nil
	}
	var keys []profile.SegmentKey
	for _, s := range r.fresh {
		keys = append(keys, s.key)
	}
	var found connector.Found
	for node := range r.Nodes {
		if err := r.match(ctx, node, keys, &found); err != nil {
			return err
		}
		now := time.Now()
		for i, s := range r.fresh {
			if s.node == node || s.seen[node] || !found.Segments[i].Hit() {
				continue
			}
			s.seen[node] = true
			r.one = append(r.one, now.Sub(s.published))
			if s.missing--; s.missing == 0 {
				r.all = append(r.all, now.Sub(s.published))
			}
		}
	}
	r.fresh = slices.DeleteFunc(r.fresh, func(s *segment) bool { return s.missing == 0 || s.gone })
	return nil
}

// questions looks up segments that others have, and segments that never existed.
func (r *run) questions(ctx context.Context) error {
	var found connector.Found
	for node := range r.Nodes {
		var keys []profile.SegmentKey
		for len(keys) < perTurn {
			if of := r.rand.IntN(len(r.Nodes)); of != node {
				keys = append(keys, r.held[of][r.rand.IntN(len(r.held[of]))].key)
			}
		}
		for range perTurn {
			key, err := r.key(node, 1<<63|r.rand.Uint64())
			if err != nil {
				return err
			}
			keys = append(keys, key)
		}
		if err := r.match(ctx, node, keys, &found); err != nil {
			return err
		}
		for i, s := range found.Segments {
			switch {
			case i < perTurn && !s.Hit():
				r.report.HitsLost++
			case i >= perTurn && s.Hit():
				r.report.False++
			}
		}
		r.report.Lookups += perTurn
	}
	return nil
}

func (r *run) summary() {
	p := &r.report
	n := float64(max(p.Lookups, 1))
	p.HitsLost, p.False = p.HitsLost/n, p.False/n
	p.NewSegments = len(r.all)
	for _, s := range r.fresh {
		if time.Since(s.published) > late {
			p.Unseen += s.missing
		}
	}
	p.VisibleP50, p.VisibleP99 = at(r.one, 0.5), at(r.one, 0.99)
	p.EverywhereP99 = at(r.all, 0.99)
}

func at(list []time.Duration, share float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[min(len(list)-1, int(share*float64(len(list))))].Seconds()
}
