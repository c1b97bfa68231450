package connector

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
)

// owed are the leases and reservations that the daemon still has to be told are
// ours no longer: they came late, or it did not take their return. What is not
// returned would be lost to everybody for as long as the connection lives.
//
// Its size is bounded by what the daemon grants one connection.
type owed struct {
	mu struct {
		sync.Mutex
		due map[debt][]uint64
	}
}

// debt is whom ids are owed to and how they are returned.
type debt struct {
	op     wire.Op // OpRelease or OpAbort
	tenant uint32
}

func (o *owed) add(d debt, ids []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.due == nil {
		o.mu.due = map[debt][]uint64{}
	}
	o.mu.due[d] = append(o.mu.due[d], ids...)
}

// take removes as many ids as one request carries.
func (o *owed) take() (d debt, ids []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for d, ids := range o.mu.due {
		n := min(len(ids), wire.MaxIDs)
		if rest := ids[n:]; len(rest) > 0 {
			o.mu.due[d] = slices.Clone(rest)
		} else {
			delete(o.mu.due, d)
		}
		return d, ids[:n]
	}
	return d, nil
}

func (o *owed) none() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.due) == 0
}

// giveUp returns ids at the daemon and waits for its answer. A daemon that does
// not take them is told again later; one that is gone has nothing to release.
func (a *attachment) giveUp(d debt, ids []uint64) {
	if a.ended.Load() {
		return
	}
	c := a.client
	k := c.call(context.Background(), c.opt.Timeouts.Lookup)
	defer c.put(k)
	k.op = d.op
	k.late.returns = ids
	_, err := a.do(context.Background(), k, d.tenant, returning(d.op, ids), nil)
	if err != nil && !k.abandoned && worthRetry(err) {
		a.owe(d, ids)
	}
}

// owe returns ids without waiting, now or when there is room.
func (a *attachment) owe(d debt, ids []uint64) {
	a.owed.add(d, ids)
	if !a.payOwed() {
		a.reap()
	}
}

// payOwed sends what is owed; false when something is left.
func (a *attachment) payOwed() bool {
	for {
		d, ids := a.owed.take()
		if len(ids) == 0 {
			return true
		}
		n := uint64(len(ids))
		a.client.counters.gaveBack.Add(n)
		if !a.post(d.op, d.tenant, returning(d.op, ids), &late{own: true, tenant: d.tenant, returns: ids}) {
			a.client.counters.gaveBack.Add(-n)
			a.owed.add(d, ids)
			return false
		}
	}
}

func returning(op wire.Op, ids []uint64) wire.Message {
	if op == wire.OpAbort {
		return &wire.AbortRequest{Reservations: ids}
	}
	return &wire.ReleaseRequest{Leases: ids}
}

// worthRetry reports whether a request that failed like this may succeed later.
func worthRetry(err error) bool {
	return errors.Is(err, ErrBusy) || errors.Is(err, ErrLate) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrCanceled)
}
