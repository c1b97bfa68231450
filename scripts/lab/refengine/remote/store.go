package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// Store keeps one model's segments and prefix states in the daemon. It belongs
// to one goroutine at a time.
type Store struct {
	// Level is the durability that Publish and Save request; 0 = as configured in the
	// daemon.
	Level wire.Level
	// InPlace is the duration of leases whose rows are read in place, at most the daemon's
	// max-lease-ttl. The store renews them before they expire. 0 = rows are copied.
	InPlace time.Duration

	ctx    context.Context
	client *connector.Client
	model  *connector.Model
	prof   *profile.Profile
	found  connector.Found
	now    func() time.Time
}

// New returns a store for a model registered with client. Calls end with ctx.
func New(ctx context.Context, client *connector.Client, model *connector.Model) *Store {
	return &Store{ctx: ctx, client: client, model: model, prof: model.Profile(), now: time.Now}
}

// Key implements refengine.Cache. Until a daemon has been attached, there is no salt, and Key
// returns the zero key, which no cache contains.
func (s *Store) Key(spec profile.SegmentSpec, tokens []uint32) profile.SegmentKey {
	key, _ := s.model.SegmentKey(spec, tokens)
	return key
}

// Match implements refengine.Cache.
func (s *Store) Match(keys []profile.SegmentKey) ([]bool, error) {
	held := make([]bool, len(keys))
	if err := s.model.Match(s.ctx, &connector.MatchQuery{Keys: keys}, &s.found); err != nil {
		return nil, err
	}
	for i := range held {
		held[i] = s.found.Segments[i].Hit()
	}
	return held, nil
}

// Found returns the full answer to the last match of segments or of a prefix. It is valid until
// the next match.
func (s *Store) Found() *connector.Found { return &s.found }

// Publish implements refengine.Cache. Values are rounded to their element types on the way
// into staging.
func (s *Store) Publish(_ profile.SegmentKey, tokens []uint32, seg *refengine.Segment[float32]) error {
	_, err := s.model.Put(s.ctx, &connector.PutQuery{
		Spec: seg.Spec, Tokens: tokens,
		Source: connector.Source{Fill: func(p profile.Part, _ int, off int64, dst []byte) error {
			return fill(dst, seg.Layers[p.Layer].Part(p.Kind), p.DType, off)
		}},
		Level: s.Level,
	})
	return unlessRefused(err)
}

// fill writes the bytes of values as stored elements, starting at off.
func fill(dst []byte, values []float32, d profile.DType, off int64) error {
	first, n := int(off)/d.Size(), len(dst)/d.Size()
	if first+n > len(values) {
		return fmt.Errorf("%d elements at %d of %d: %w", n, first, len(values), refengine.ErrInvalid)
	}
	kernel.FromF32(dst, values[first:first+n], kernel.DType(d))
	return nil
}

// unlessRefused returns nil for errors that mean that nothing was stored but nothing is wrong:
// another client stores the object, or there is no room for it now. It returns other errors
// unchanged.
func unlessRefused(err error) error {
	for _, fine := range []error{connector.ErrExists, connector.ErrFull, connector.ErrQuota, connector.ErrBusy} {
		if errors.Is(err, fine) {
			return nil
		}
	}
	return err
}

// Acquire implements refengine.Cache.
func (s *Store) Acquire(keys []profile.SegmentKey, specs []profile.SegmentSpec) (refengine.Leases, []bool, error) {
	o := connector.AcquireOptions{Wait: s.wait()}
	if s.InPlace > 0 {
		o.TTL = s.InPlace
	}
	rows, err := s.model.Acquire(s.ctx, keys, o)
	if err != nil {
		return nil, nil, err
	}
	l := &leases{store: s, keys: keys, held: make([]*connector.Lease, len(rows)), specs: specs, taken: s.now()}
	held := make([]bool, len(rows))
	for i, row := range rows {
		if row.Lease == nil {
			continue
		}
		l.held[i] = row.Lease
		begin, n := specs[i].Interior()
		if held[i] = row.Lease.Begin == begin && row.Lease.Tokens == n; !held[i] {
			l.Release()
			return nil, nil, fmt.Errorf("segment %x covers [%d, %d+%d), expected [%d, %d+%d): %w",
				keys[i], row.Lease.Begin, row.Lease.Begin, row.Lease.Tokens, begin, begin, n, connector.ErrCorrupt)
		}
	}
	return l, held, nil
}

// fetchWait bounds the wait for an object on disk or at a peer. Computing the object would take
// longer than this.
const fetchWait = time.Second

// wait returns the bound of an acquire after the last match; 0 = the client's.
func (s *Store) wait() time.Duration {
	far := func(f connector.SegmentFound) bool { return f.Tier >= wire.TierDisk }
	if s.found.PrefixTier >= wire.TierDisk || slices.ContainsFunc(s.found.Segments, far) {
		return fetchWait
	}
	return 0
}

// HeldBytes returns the bytes in the daemon's pools, for all its clients.
func (s *Store) HeldBytes() (segments, checkpoints int64, err error) {
	stats, err := s.client.Stats(s.ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, v := range stats {
		switch v.Name {
		case "pool_public_used_bytes":
			segments = int64(v.Value)
		case "pool_private_used_bytes":
			checkpoints = int64(v.Value)
		}
	}
	return segments, checkpoints, nil
}
