package remote

import (
	"fmt"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

var _ refengine.InPlace = (*leases)(nil)

// Rows implements refengine.InPlace. It returns views of the arena, or copies of keys or values
// that are not contiguous there.
func (l *leases) Rows(i, layer int) ([]enginekernel.Run, int64, error) {
	lease := l.held[i]
	if l.store.InPlace <= 0 {
		return nil, 0, fmt.Errorf("segment %d was leased to be copied: %w", i, refengine.ErrInvalid)
	}
	run, copied := enginekernel.Run{Rows: lease.Tokens, Begin: lease.Begin}, int64(0)
	layout := lease.Layout()
	part := func(kind profile.PartKind) (b []byte, stride int, err error) {
		at := layout.Find(layer, kind)
		p := &layout.Parts[at]
		if b = lease.Part(at); b == nil {
			return nil, 0, fmt.Errorf("segment %d: %w", i, connector.ErrGone)
		}
		if p.Packed {
			b, err = kernel.UnpackRows(b, kernel.DType(p.DType), p.Shape[0], p.Shape[1], p.Shape[2])
		}
		if p.Packed || !lease.Whole(at) {
			copied += int64(len(b))
		}
		return b, len(b) / lease.Tokens, err
	}
	var err error
	if run.K, run.KStride, err = part(profile.PartK); err == nil {
		run.V, run.VStride, err = part(profile.PartV)
	}
	if err != nil {
		return nil, 0, err
	}
	return []enginekernel.Run{run}, copied, nil
}

// Intact implements refengine.InPlace.
func (l *leases) Intact() error {
	for i, lease := range l.held {
		if lease != nil && !lease.Valid() {
			return fmt.Errorf("segment %d: %w", i, connector.ErrGone)
		}
	}
	return nil
}

// Extend implements refengine.InPlace. It renews the leases once half of their duration is over.
// Leased segments are not moved, so the rows stay at the same addresses.
func (l *leases) Extend() error {
	now := l.store.now()
	if now.Sub(l.taken) < l.store.InPlace/2 {
		return nil
	}
	var keys []profile.SegmentKey
	for i, lease := range l.held {
		if lease != nil {
			keys = append(keys, l.keys[i])
		}
	}
	rows, err := l.store.model.Acquire(l.store.ctx, keys, connector.AcquireOptions{TTL: l.store.InPlace})
	if err != nil {
		return err
	}
	held := make([]*connector.Lease, len(l.held))
	for i, lease := range l.held {
		if lease == nil {
			continue
		}
		held[i], rows = rows[0].Lease, rows[1:]
		if err == nil && (held[i] == nil || !held[i].Same(lease)) {
			err = fmt.Errorf("segment %d cannot be leased for longer: %w", i, connector.ErrGone)
		}
	}
	if err != nil {
		connector.Release(held...)
		return err
	}
	connector.Release(l.held...)
	l.held, l.taken = held, now
	return nil
}
