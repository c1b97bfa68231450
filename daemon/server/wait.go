package server

import (
	"context"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// rest is the continuation of a request that has to wait, for example for a disk. It runs in a
// separate goroutine and occupies no worker, so that waits of any number and length do not block
// requests that need no disk. It is a job: it is counted in flight, and canceled by cancel and by
// the end of its connection. The message that it returns is not in the scratch of another
// goroutine.
type rest func(*task) (wire.Message, error)

// mayWait reports whether one more request may be in flight. Only the reader starts requests, so
// only the reader calls it.
func (c *conn) mayWait() bool {
	return c.flying.Load() < int64(c.server.config.MaxInFlight) && c.server.held.Left(c.peer.UID) >= waitBytes
}

// wait creates a job for the continuation of a short request. mayWait must have returned true.
func (c *conn) wait(t *task, now time.Time) {
	c.flying.Add(1)
	c.server.held.Add(c.peer.UID, jobCost(t.body))
	j := c.newJob(t, now)
	c.runRest(j, t.rest)
}

// runRest starts the continuation of a job.
func (c *conn) runRest(j *job, rest rest) {
	c.server.waiting.Add(1)
	go func() {
		ctx, stop := context.WithDeadline(j.ctx, j.deadline)
		s := &scratch{}
		t := &s.task
		*t = task{conn: c, at: c.attached.Load(), header: j.header, ctx: ctx, deadline: j.deadline, scratch: s}
		reply, err := rest(t)
		if err != nil {
			err, _ = codes.Ended(ctx, err)
		}
		stop()
		c.server.waiting.Add(-1)
		c.finish(j, reply, err, s)
	}()
}

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
	return func(t *task) (wire.Message, error) {
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
	}
}

// awaitTogether leases all rows or none, and waits for the rows that are being promoted. It copies
// the keys of q, which are in the reader's memory.
func awaitTogether(q leasing) rest {
	q.Keys = slices.Clone(q.Keys)
	return func(t *task) (wire.Message, error) {
		ctx, stop := t.patience(t.conn.server.config.PromoteTimeout)
		defer stop()
		rows, err := q.await(ctx, t.at.session)
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
		return t.acquired(&q, rows), nil
	}
}

// awaitLoad waits for a checkpoint that is being promoted.
func awaitLoad(later loadLater, q tiering.LoadQuery) rest {
	return func(t *task) (wire.Message, error) {
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
	}
}

// pendingLevel is an object that a commit or save has published as one of its rows, and that has
// not reached its durability level yet.
type pendingLevel struct {
	row     int
	durable *tiering.Durable
}

// awaitSaved waits until the objects published by a save are durable. Like awaitLevels, it never
// fails.
func awaitSaved(out *wire.ReserveReply, waits []pendingLevel) rest {
	out = &wire.ReserveReply{Codes: slices.Clone(out.Codes), Reservations: slices.Clone(out.Reservations), Bytes: slices.Clone(out.Bytes)}
	return func(t *task) (wire.Message, error) {
		ctx, stop := t.patience(0)
		defer stop()
		for _, w := range waits {
			w.durable.Wait(ctx)
		}
		return out, nil
	}
}

// awaitLevels waits until the objects published by a commit are as durable as requested. It never
// fails: the objects are published, and a client that got an error would compute them again.
func awaitLevels(out *wire.CommitReply, waits []pendingLevel) rest {
	out = &wire.CommitReply{Codes: slices.Clone(out.Codes), Published: slices.Clone(out.Published), Levels: slices.Clone(out.Levels)}
	return func(t *task) (wire.Message, error) {
		ctx, stop := t.patience(0)
		defer stop()
		for _, w := range waits {
			out.Levels[w.row] = uint8(w.durable.Wait(ctx))
		}
		return out, nil
	}
}
