package fill

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// SaveBuffered is like Save for kind Rows, but it copies the rows of linear layers from
// the accepted rows of a buffer of the session, so that the client need not send them
// again. The client commits the keys and values of attention layers; the levels of these
// commits count. Without attention layers the checkpoint is published at once, at the
// store's default level. If the buffer does not have all of the rows, or is in the memory
// of a device, the error is ErrInvalid. After an error nothing is reserved.
func (c *Reservations) SaveBuffered(ctx context.Context, q *SaveQuery, buffer tier.LeaseID) (Reservation, error) {
	if q.Kind != tier.Rows {
		return Reservation{}, fmt.Errorf("checkpoint %x: kind %d out of a buffer: %w", q.Hash[:8], q.Kind, tier.ErrInvalid)
	}
	r, err := c.Save(q)
	if err != nil {
		return Reservation{}, err
	}
	if r.Durable, err = c.commitRows(ctx, q, r.ID, buffer); err != nil {
		_ = c.Abort(r.ID) // ErrGone: already aborted
		return Reservation{}, err
	}
	return r, nil
}

// commitRows copies the rows of linear layers into a reservation. If that publishes the
// checkpoint, it returns the Durable to wait for.
func (c *Reservations) commitRows(ctx context.Context, q *SaveQuery, id tier.ReservationID, buffer tier.LeaseID) (durable *move.Durable, err error) {
	s := c.fills
	s.cat.Mu.Lock()
	f := c.held[id]
	if f == nil {
		s.cat.Mu.Unlock()
		return nil, fmt.Errorf("reservation %d: %w", id, tier.ErrGone)
	}
	begin, layout, g := f.Object.Fill.Begin, f.Object.Fill.Layout, f.Object.Profile.Geometry
	s.cat.Mu.Unlock()

	scope := plan.Scope{Profile: q.Profile, Tenant: q.Tenant, Rank: q.Rank}
	rows, err := c.plans.HoldRows(scope, buffer, begin, q.Tokens)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %x: %w", q.Hash[:8], err)
	}
	defer rows.Release()
	if rows.On != s.memory {
		return nil, fmt.Errorf("checkpoint %x: buffer %d is on a device: %w", q.Hash[:8], buffer, tier.ErrInvalid)
	}
	level := tier.LevelMemory
	if len(g.AttentionLayers()) == 0 {
		level = tier.LevelDefault
	}
	linear := map[int]bool{}
	for _, layer := range g.LinearLayers() {
		linear[layer] = true
	}
	for i := range layout.Parts {
		part := &layout.Parts[i]
		if !linear[part.Layer] {
			continue
		}
		item := CommitItem{
			Reservation: id, Part: i, Src: rows.Part(part.Layer, part.Kind),
			Digests: make([]uint64, gpuipc.Chunks(part.Len)), Level: level, own: true,
		}
		got, err := c.Commit(ctx, item)
		if err != nil {
			return nil, err
		}
		durable = got.Durable
	}
	return durable, nil
}
