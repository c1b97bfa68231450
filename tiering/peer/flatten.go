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

// A checkpoint that extends others is the last of a chain of checkpoints. It is sent as a
// single checkpoint, the flattened chain, in one round trip: with the rows of all
// checkpoints after the client's base, and the states of the last one. The client has no
// use for the states of earlier checkpoints, which may be evicted here. No bytes are
// copied: the flattened chain refers to the parts where they are. Its chunks and digests
// differ from those of the checkpoints, so its digests are computed once.

// flatten returns a chain as a single object, which begins where chain[0] begins.
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

// flatShare returns one rank's share of the flattened chain, with its digests. l is the
// layout of a share.
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
		// Bytes between parts are undefined, so any bytes are sent; the receiver clears them.
		if gap := -l.Parts[k].Len & (profile.PartAlign - 1); gap > 0 {
			out.Ref.Extents = append(out.Ref.Extents, last.Shares[rank].Ref.Slice(0, gap).Extents...)
		}
	}
	return out, nil
}

const (
	// maxFlats is the most flattened chains that are kept, with one lease each. They are
	// kept because a peer reads a chain in several requests. Further chains are flattened
	// for each request.
	maxFlats = 16
	// flatTTL is the time that an unused flattened chain is kept: longer than a peer waits
	// between two ranges (a guess).
	flatTTL = 10 * time.Second
	// flatMost is the longest time that a flattened chain is kept; it is shorter than a lease.
	flatMost = 40 * time.Second
)

// flat is a flattened chain, under a lease of its last checkpoint, which leases the whole
// chain.
type flat struct {
	object *tier.Object
	lease  tier.LeaseID
	users  int
	until  time.Time // when it is released, unless it has users
	end    time.Time // when it is no longer given to new users
	gone   bool      // removed from the table: the last user releases the lease
}

// flats are the flattened chains that a Server keeps, by the requested name.
type flats struct {
	release func(tier.LeaseID)

	mu    sync.Mutex
	of    map[name]*flat
	timer *time.Timer // for sweeps; nil = no chain is kept
}

// The method use returns the flattened chain for a name, and counts a user, who calls the
// method leave at the end; nil = there is none.
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

// The method add keeps a flattened chain in f and counts its first user. The user calls the
// method leave at the end. If the chain cannot be kept, this call of leave releases the
// lease.
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

// sweep releases expired chains.
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

// close releases all chains. None may be in use.
func (f *flats) close() {
	f.drop(func(*flat) bool { return true })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
}

// asOneNode replaces a leased checkpoint with the flattened chain after the client's
// base, if they differ.
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
