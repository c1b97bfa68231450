package server

import (
	"context"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// patience bounds a wait by seven eighths of the time left until the deadline, so that the reply
// still reaches a client whose clock started earlier. The parameter most is a further bound; 0 =
// none.
func (t *task) patience(most time.Duration) (context.Context, context.CancelFunc) {
	left := time.Until(t.deadline)
	left -= left / 8
	if most > 0 {
		left = min(left, most)
	}
	return context.WithTimeout(t.ctx, left)
}

func promoting(row tiering.Acquired) bool { return row.Promoting }

// awaitAcquire waits for the rows that are being promoted from a slower tier. The remaining rows
// keep their leases meanwhile. It copies q and rows, which are in the reader's memory.
func awaitAcquire(q leasing, rows []tiering.Acquired) rest {
	rows, all := slices.Clone(rows), slices.Clone(q.Keys)
	var keys [][32]byte
	var at []int
	for i := range rows {
		if rows[i].Promoting {
			keys, at = append(keys, all[i]), append(at, i)
		}
	}
	q.Keys = keys
	return on(func(t leaseOps) (wire.Message, error) {
		ctx, stop := t.patience(t.conn.server.config.PromoteTimeout)
		defer stop()
		got, err := q.await(ctx, t.at.session)
		for i := range got {
			rows[at[i]] = got[i]
		}
		if err == nil {
			err = t.ctx.Err()
		}
		if err != nil {
			t.giveAllBack(rows)
			return nil, err
		}
		if t.switchedOff(q.Profile) { // it may have been switched off meanwhile
			t.giveAllBack(rows)
			rows = make([]tiering.Acquired, len(rows))
		}
		q.Keys = all
		return t.acquired(&q, rows), nil
	})
}

// awaitLoad waits for a checkpoint that is being promoted.
func awaitLoad(later loadLater, q tiering.LoadQuery) rest {
	return on(func(t leaseOps) (wire.Message, error) {
		ctx, stop := t.patience(t.conn.server.config.PromoteTimeout)
		defer stop()
		got, err := later(ctx, &q)
		if err != nil {
			return nil, err
		}
		if err := t.ctx.Err(); err != nil {
			if got.Hit {
				t.giveBack(got.Lease)
			}
			return nil, err
		}
		if got.Hit && got.Kind&tier.Spliced != 0 && t.switchedOff(q.Profile) { // it may have been switched off meanwhile
			t.giveBack(got.Lease)
			return nil, refuseOff(&q)
		}
		return t.loaded(&q, &got)
	})
}

// pendingLevel is an object that a commit or save has published as one of its rows, and that has
// not reached its durability level yet.
type pendingLevel struct {
	row     int
	durable *tiering.Durable
}

// awaitDurable waits until the objects published by a commit or save are as durable as requested,
// and stores the reached levels in the rows of the parameter levels; nil = in none. It never fails:
// the objects are published, and a client that got an error would compute them again.
func awaitDurable(out wire.Message, levels []uint8, waits []pendingLevel) rest {
	return func(t *task) (wire.Message, error) {
		ctx, stop := t.patience(0)
		defer stop()
		for _, w := range waits {
			level := w.durable.Wait(ctx)
			if levels != nil {
				levels[w.row] = uint8(level)
			}
		}
		return out, nil
	}
}
