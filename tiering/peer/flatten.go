package peer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A checkpoint that extends others is sent as one node: the rows of all of them behind
// what the asker has, and the states of the last. So the states of those before it, of
// which nobody has a use, cross no network, and may have left memory here; and it takes one
// round trip, however long the chain. No byte is copied for it: what is sent is described
// by where it lies. Its digests are of other chunks than those of the nodes, and are
// computed once.

// flatten makes one node of a chain; chain[0] begins where the node is to begin.
func flatten(ctx context.Context, dev gpuipc.Device, chain []*tier.Object) (*tier.Object, error) {
	first, last := chain[0], chain[len(chain)-1]
	o := *last
	o.Begin, o.Parent = first.Begin, first.Parent
	l := o.Profile.CheckpointLayout(o.End - o.Begin)
	o.Shares = make([]tier.Share, len(last.Shares))
	for rank := range o.Shares {
		var err error
		if o.Shares[rank], err = flatShare(ctx, dev, &l, chain, rank); err != nil {
			return nil, fmt.Errorf("peer: checkpoint %x of %d nodes: %w: %w", o.Key[:8], len(chain), tier.ErrUnavailable, err)
		}
	}
	return &o, nil
}

// flatShare is one rank's share of the node.
func flatShare(ctx context.Context, dev gpuipc.Device, l *profile.Layout, chain []*tier.Object, rank int) (tier.Share, error) {
	last := chain[len(chain)-1]
	out := tier.Share{Ref: gpuipc.Ref{Region: last.Shares[rank].Ref.Region}}
	layouts := make([]profile.Layout, len(chain))
	for i, o := range chain {
		layouts[i], _ = o.Layout() // checkpoints are not packed
	}
	for k := range l.Parts {
		part := gpuipc.Ref{Region: out.Ref.Region}
		from := chain
		if kind := l.Parts[k].Kind; kind != profile.PartK && kind != profile.PartV {
			from = chain[len(chain)-1:]
		}
		for i, o := range from {
			of := &layouts[len(chain)-len(from)+i]
			p := &of.Parts[of.Find(l.Parts[k].Layer, l.Parts[k].Kind)]
			part.Extents = append(part.Extents, o.Shares[rank].Ref.Slice(p.Off, p.Len).Extents...)
		}
		digests := make([]uint64, gpuipc.Chunks(l.Parts[k].Len))
		if err := dev.Digests(ctx, part, digests); err != nil {
			return out, err
		}
		out.Digests = append(out.Digests, digests...)
		out.Ref.Extents = append(out.Ref.Extents, part.Extents...)
		// Between parts anything may lie: who reads clears it.
		if gap := -l.Parts[k].Len & (profile.PartAlign - 1); gap > 0 {
			out.Ref.Extents = append(out.Ref.Extents, last.Shares[rank].Ref.Slice(0, gap).Extents...)
		}
	}
	return out, nil
}

const (
	// maxFlats bounds the nodes made of chains that are kept, with a lease each: a peer
	// reads one by some requests. More are made anew for each request.
	maxFlats = 16
	// flatTTL is how long one is kept that nobody asks for, longer than a peer waits
	// between two ranges (a guess).
	flatTTL = 10 * time.Second
	// flatMost is how long one is kept at most, less than a lease lasts.
	flatMost = 40 * time.Second
)

// flat is a node made of a chain, under a lease of its head.
type flat struct {
	object *tier.Object
	lease  tier.LeaseID
	users  int
	until  time.Time // when it is let go of, unless somebody uses it
	end    time.Time // when it is given to nobody any more
	gone   bool      // of the table: the last user lets go of the lease
}

// flats are those that a Server keeps, by what was asked for.
type flats struct {
	release func(tier.LeaseID)

	mu    sync.Mutex
	of    map[name]*flat
	timer *time.Timer // sweeps; nil = none are kept
}

// use finds one, for a user who calls leave.
func (f *flats) use(n *name, now time.Time) *flat {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.of[*n]
	if one == nil || !now.Before(one.end) {
		return nil
	}
	one.users++
	one.until = now.Add(flatTTL)
	return one
}

// add keeps one, for a user who calls leave. If that is not possible its lease is the
// user's alone.
func (f *flats) add(n *name, o *tier.Object, lease tier.LeaseID, now time.Time) *flat {
	one := &flat{object: o, lease: lease, users: 1, until: now.Add(flatTTL), end: now.Add(flatMost)}
	f.sweep(now)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[name]*flat{}
	}
	if f.of[*n] != nil || len(f.of) >= maxFlats {
		one.gone = true
		return one
	}
	f.of[*n] = one
	if f.timer == nil {
		f.timer = time.AfterFunc(flatTTL, func() { f.sweep(time.Now()) })
	}
	return one
}

func (f *flats) leave(one *flat) {
	f.mu.Lock()
	one.users--
	last := one.users == 0 && one.gone
	f.mu.Unlock()
	if last {
		f.release(one.lease)
	}
}

// sweep lets go of those whose time is over.
func (f *flats) sweep(now time.Time) {
	f.drop(func(one *flat) bool { return !now.Before(one.end) || one.users == 0 && !now.Before(one.until) })
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.timer == nil:
	case len(f.of) == 0:
		f.timer.Stop()
		f.timer = nil
	default:
		f.timer.Reset(flatTTL)
	}
}

func (f *flats) drop(which func(*flat) bool) {
	f.mu.Lock()
	var leases []tier.LeaseID
	for n, one := range f.of {
		if !which(one) {
			continue
		}
		delete(f.of, n)
		if one.gone = true; one.users == 0 {
			leases = append(leases, one.lease)
		}
	}
	f.mu.Unlock()
	for _, lease := range leases {
		f.release(lease)
	}
}

// close lets go of all of them; nobody uses any.
func (f *flats) close() {
	f.drop(func(*flat) bool { return true })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
}

// asOneNode puts what a leased checkpoint has behind the asker's base into the place of
// its last node.
func (s *Server) asOneNode(ctx context.Context, n *name, h *held) error {
	if h.object.Begin == 0 || h.object.Parent == n.base {
		return nil
	}
	chain, err := s.session.LeasedChain(h.lease)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(chain, func(o *tier.Object) bool { return o.Kind == n.base.Kind && o.Key == n.base.Key }); i >= 0 {
		chain = chain[i+1:]
	}
	o, err := flatten(ctx, s.cfg.Device, chain)
	if err != nil {
		return err
	}
	h.flat = s.flats.add(n, o, h.lease, time.Now())
	h.object, h.lease = o, 0
	return nil
}
