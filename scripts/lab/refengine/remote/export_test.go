package remote

import (
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// FromSaved says whether the source of l composes from a checkpoint that the
// daemon holds.
func FromSaved(l refengine.Leases) bool { return l.(*leases).src.saved != nil }

// Unfold reads the state of a checkpoint.
func (s *Store) Unfold(c *connector.Checkpoint) (*refengine.State[float32], error) {
	return s.unfold(c)
}

// SetNow has leases that are read in place extended by another clock.
func (s *Store) SetNow(now func() time.Time) { s.now = now }

// Lease leases a segment with its digests.
func (s *Store) Lease(spec profile.SegmentSpec, tokens []uint32) (*connector.Lease, error) {
	rows, err := s.model.Acquire(s.ctx, []profile.SegmentKey{s.Key(spec, tokens)}, connector.AcquireOptions{Digests: true})
	if err != nil {
		return nil, err
	}
	return rows[0].Lease, rows[0].Err
}
