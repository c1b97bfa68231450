package torture

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// onDevice reads segments in GPU memory. If necessary, the daemon first copies them there.
type onDevice struct{ *client }

func (c onDevice) read(ctx context.Context, i *item, see func(rank, part int, off int64, b []byte)) (bool, error) {
	return allRanks(i, func(rank int) (bool, error) { return c.readDevice(ctx, i, rank, see) })
}

func (c onDevice) readDevice(ctx context.Context, i *item, rank int, see func(rank, part int, off int64, b []byte)) (bool, error) {
	rows, err := c.models[i.shape][rank].AcquireDevice(ctx, []profile.SegmentKey{i.Key}, connector.AcquireOptions{Wait: patience})
	if err == nil {
		err = rows[0].Err
	}
	if err != nil {
		return false, unlessAbsent(err)
	}
	l := rows[0].Lease
	defer l.Release()
	if l.Layout().Bytes != i.layout.Bytes {
		return true, nil // no bytes were seen: that counts as other bytes
	}
	for part := range i.layout.Parts {
		b := make([]byte, i.layout.Parts[part].Len)
		if err := c.device.Load(ctx, b, l.Part(part)); err != nil {
			return false, err
		}
		see(rank, part, 0, b)
	}
	return true, nil
}

// joinLayer is an attention layer of all shapes.
const joinLayer = 1

// joinPlan is a plan to which spans are appended.
type joinPlan struct{ connector.Plan }

// compute adds n tokens that the engine computes.
func (p *joinPlan) compute(n int) {
	if n > 0 {
		p.Spans = append(p.Spans, connector.Span{Start: p.End, Count: n})
		p.End += n
	}
}

// checkJoin lets the daemon place two segments one after another, and compares the values (V) of
// one layer, which the rotation does not change, with the submitted bytes. It reports whether
// both segments were present.
func (f *Findings) checkJoin(ctx context.Context, c *client, pair ...*item) (there bool, err error) {
	m := c.models[pair[0].shape][0]
	keys := make([]profile.SegmentKey, len(pair))
	for k, i := range pair {
		keys[k] = i.Key
	}
	rows, err := m.Acquire(ctx, keys, connector.AcquireOptions{All: true})
	if err != nil {
		return false, unlessAbsent(err)
	}
	plan := joinPlan{}
	held, all := 0, true
	for k, r := range rows {
		defer r.Lease.Release()
		if r.Err != nil {
			all = false
			if !errors.Is(r.Err, connector.ErrCanceled) { // ErrCanceled: the other segment is missing
				err = r.Err
			}
			continue
		}
		// The tokens before and after the interior, which an engine would compute.
		head, n := pair[k].spec.Interior()
		plan.compute(head)
		plan.Spans = append(plan.Spans, connector.Span{Lease: r.Lease, Start: plan.End, Count: n})
		plan.End += n
		plan.compute(pair[k].spec.Tokens - head - n)
		held += n
	}
	if !all {
		return false, unlessAbsent(err)
	}
	slot, err := m.Rotate(ctx, &connector.RotateQuery{Layer: joinLayer, Plan: plan.Plan})
	if err != nil {
		return false, unlessAbsent(err)
	}
	defer slot.Release()
	got := slot.Bytes()
	layout := pair[0].shape.profile.RowsLayout(joinLayer, held)
	wrong := ""
	if int64(len(got)) != layout.Bytes {
		wrong = fmt.Sprintf("%d bytes, want %d", len(got), layout.Bytes)
	} else {
		values := layout.Parts[layout.Find(joinLayer, profile.PartV)]
		got = got[values.Off:][:values.Len]
		for _, i := range pair {
			part := i.layout.Find(joinLayer, profile.PartV)
			n := i.layout.Parts[part].Len
			if int64(len(got)) < n || !i.content(0, part).holds(got[:n], 0) {
				wrong = "the values of " + i.String()
				break
			}
			got = got[n:]
		}
	}
	f.Read++
	f.Bytes += layout.Bytes
	if wrong != "" {
		f.Corrupt++
		f.note("%s joined to %s is not what was submitted: %s", pair[0], pair[1], wrong)
	}
	return true, nil
}
