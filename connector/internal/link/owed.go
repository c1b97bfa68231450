package link

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
)

// owed lists leases and reservations that must still be returned to the daemon, because they
// arrived late or the daemon did not accept their first return. If they were not returned, no
// client could use that memory until the connection ends.
//
// Its size is bounded by the number of leases and reservations that the daemon grants one
// connection.
type owed struct {
	mu struct {
		sync.Mutex
		due map[debt][]uint64
	}
}

// debt is the tenant to which ids belong, and the operation that returns them.
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

// take removes and returns up to as many ids as one request can carry.
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

// GiveBack gives ids back to the daemon with the operation op, which is OpRelease or OpAbort,
// and waits for the daemon's answer. If the daemon does not accept them, they are sent again
// later. If the connection has ended, GiveBack does nothing.
func (a *Attachment) GiveBack(op wire.Op, tenant uint32, ids []uint64) {
	if a.ended.Load() {
		return
	}
	k := a.Get(context.Background(), op, a.host.ReleaseTimeout)
	defer a.Put(k)
	k.Late.returns = ids
	_, err := a.Do(context.Background(), k, tenant, returning(op, ids), nil)
	if err != nil && !k.abandoned && worthRetry(err) {
		a.owe(debt{op, tenant}, ids)
	}
}

// owe returns ids to the daemon without waiting. If they cannot be sent now, the reaper sends
// them later.
func (a *Attachment) owe(d debt, ids []uint64) {
	a.owed.add(d, ids)
	if !a.payOwed() {
		a.reap()
	}
}

// payOwed sends the ids that are owed. It returns false if some remain.
func (a *Attachment) payOwed() bool {
	for {
		d, ids := a.owed.take()
		if len(ids) == 0 {
			return true
		}
		n := uint64(len(ids))
		a.host.Counters.GaveBack.Add(n)
		if !a.post(d.op, d.tenant, returning(d.op, ids), &Late{own: true, tenant: d.tenant, returns: ids}) {
			a.host.Counters.GaveBack.Add(-n)
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
