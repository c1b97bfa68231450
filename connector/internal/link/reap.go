package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
)

// abandon ends the wait for the reply to c, with cause as the reason, and returns the error for
// the caller. It starts the reaper, so that some goroutine reads the reply. The goroutine that
// reads the reply then does what c.Late lists.
func (a *Attachment) abandon(c *Call, cause error) error {
	err := fmt.Errorf("%s: given up: %w", c.Op, cause)
	l := c.Late
	if l.Memory {
		l.pending = newPendingWrite(err, c.id)
	}
	if !a.leave(c, &l) {
		return c.err
	}
	c.abandoned = true
	if errors.Is(cause, ErrLate) {
		a.host.Counters.Late.Add(1)
		a.stall.missed()
	} else {
		a.host.Counters.Canceled.Add(1)
	}
	if l.Cancel {
		a.askToStop()
	}
	a.reap()
	if l.pending != nil {
		return l.pending
	}
	return err
}

// reap starts the reaper, a goroutine, unless it already runs. The reaper reads replies that
// have no waiting caller, sends cancels and releases that could not be sent at once, and ends
// when nothing is left to read or send.
func (a *Attachment) reap() {
	if !a.reaping.Swap(true) {
		a.host.Spawn(a.reapAll)
	}
}

// reapRest is the timeout of one read of the reaper if it has nothing to send. If a request could
// not be sent, the reaper tries again after readTick. A request that was sent and that the
// daemon refused does not shorten the pause.
const reapRest = 500 * time.Millisecond

func (a *Attachment) reapAll() {
	var next time.Time // time of the next attempt to send
	for {
		tick := reapRest
		if now := time.Now(); now.Before(next) {
			tick = next.Sub(now)
		} else if !a.payOwed() || !a.askToStop() {
			next = now.Add(readTick)
			tick = readTick
		}
		select {
		case <-a.token:
		case <-a.Dead:
			return
		}
		a.read(tick, nil)
		a.token <- struct{}{}
		if a.unfinished() {
			continue
		}
		a.reaping.Store(false)
		// A call may have been abandoned between the check and the Store above.
		if !a.unfinished() || a.reaping.Swap(true) {
			return
		}
	}
}

func (a *Attachment) unfinished() bool { return a.orphans() > 0 || !a.owed.none() }

// askToStop sends a cancel for each abandoned request that needs one and has had none. It
// returns false if a cancel could not be sent.
func (a *Attachment) askToStop() bool {
	all := true
	for id, l := range a.unasked() {
		cancel := &Late{own: true, cancels: id, stops: l.pending}
		if !a.post(wire.OpCancel, l.tenant, &wire.CancelRequest{Requests: []uint64{id}}, cancel) {
			a.askAgain(id)
			all = false
		}
	}
	return all
}

// post sends a request without a waiting caller. It does not block.
func (a *Attachment) post(op wire.Op, tenant uint32, m wire.Message, l *Late) bool {
	var i uint16
	select {
	case i = <-a.own:
	default:
		return false
	}
	id, err := a.add(i, op, nil, l)
	if err != nil {
		return false
	}
	h := wire.Header{Op: op, Request: id, Epoch: a.Epoch, Tenant: tenant}
	frame, err := wire.AppendFrame(nil, &h, m)
	if err == nil {
		err = a.conn.TrySend(frame, nil)
	}
	if err != nil {
		a.remove(id)
		return false
	}
	a.reap()
	return true
}

// lateReply handles the reply to a request that has no waiting caller, as l says.
func (a *Attachment) lateReply(l *Late, h wire.Header, body []byte) {
	if !l.own {
		a.host.Counters.LateReplies.Add(1)
	}
	a.Staging.Free(l.Staged...)
	if l.pending != nil {
		l.pending.resolve(nil)
	}
	if l.cancels != 0 {
		a.cancelAnswered(l, h.Code)
	}
	if l.GiveBack && h.Code == wire.OK {
		a.giveBack(l, h.Op, body)
	}
	if len(l.returns) > 0 && h.Code != wire.OK && worthRetry(Kind(h.Code)) {
		a.owed.add(debt{h.Op, l.tenant}, l.returns) // the reaper sends it later
		a.reap()
	}
}

// cancelAnswered handles the reply to a cancel. The daemon answers a cancel only when the
// cancelled request can no longer write to its destination, whether it succeeded or not.
func (a *Attachment) cancelAnswered(l *Late, code wire.Code) {
	switch code {
	case wire.OK:
		if l.stops != nil {
			l.stops.resolve(nil)
		}
	case wire.Busy, wire.Late, wire.Unavailable, wire.Canceled:
		a.askAgain(l.cancels)
	}
}

// giveBack returns the leases and reservations that a late reply granted. If the reply cannot be
// read, these leases and reservations end when they expire.
func (a *Attachment) giveBack(l *Late, op wire.Op, body []byte) {
	leases, reservations := Granted(op, body)
	if len(leases) > 0 {
		a.owe(debt{wire.OpRelease, l.tenant}, leases)
	}
	if len(reservations) > 0 {
		a.owe(debt{wire.OpAbort, l.tenant}, reservations)
	}
}

// Granted returns the leases and reservations in a reply.
func Granted(op wire.Op, body []byte) (leases, reservations []uint64) {
	switch op {
	case wire.OpAcquire, wire.OpAcquireDevice:
		var m wire.AcquireReply
		if m.Decode(body) == nil {
			leases = withCode(m.Codes, m.Leases)
		}
	case wire.OpLoad:
		var m wire.LoadReply
		if m.Decode(body) == nil {
			leases = []uint64{m.Lease}
		}
	case wire.OpCompose, wire.OpReplay:
		var m wire.ComposeReply
		if m.Decode(body) == nil {
			leases = []uint64{m.Lease}
		}
	case wire.OpAppend:
		var m wire.AppendReply
		if m.Decode(body) == nil {
			leases = []uint64{m.Buffer}
		}
	case wire.OpRotate, wire.OpAssemble:
		var m wire.RotateReply
		if m.Decode(body) == nil && m.Lease != 0 {
			leases = []uint64{m.Lease}
		}
	case wire.OpReserve, wire.OpSave:
		var m wire.ReserveReply
		if m.Decode(body) == nil {
			reservations = withCode(m.Codes, m.Reservations)
		}
	}
	return leases, reservations
}

// withCode returns the ids of the rows that are OK.
func withCode(codes []uint16, ids []uint64) []uint64 {
	var granted []uint64
	for i, id := range ids {
		if wire.Code(codes[i]) == wire.OK {
			granted = append(granted, id)
		}
	}
	return granted
}
