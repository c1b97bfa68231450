package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Occasion is why a copy of an object is offered to the outlets.
type Occasion uint8

const (
	Published Occasion = iota
	UsedAgain
	Ahead    // the object will be evicted soon
	Leaving  // the object is being evicted from memory
	Flushing // SendAll sends all objects before a shutdown
)

// Verdict is the result of offering an object to the outlets.
type Verdict uint8

const (
	Sending Verdict = iota
	Settled         // no copy is needed, or none is possible
	notNow          // too much is in flight
)

// usesAgain is the number of uses, per rank of an object, after which the object counts as
// used again.
const usesAgain = 2

// offload is a copy of an object in flight to an outlet: the job of a flight (see package
// transfer). It keeps the object's memory in use: an object that is evicted or removed
// meanwhile keeps its pages until the sink is done. Guarded by the store's lock.
//
// Invariant: an eviction never waits for an offload. Memory that is being sent does not
// count as room about to be freed, so other objects are evicted instead. Offloads hold at
// most 1/OffloadShare of a pool and of a quota; a single object may hold half. A slow or
// hung sink therefore costs at most that memory until the sink times out. Objects offered
// meanwhile are lost if they are evicted, as they would be without sinks.
type offload struct {
	owner   *Offloads
	object  *objects.Object
	outlets []*catalog.Outlet // candidates, in order
	patient bool              // parked while all outlets are busy
	pages   int64
	charge  int64
	begun   bool
	to      tier.Write // the sink's write; nil = the outlet already has a copy
}

// OffloadShare limits offloads in flight to 1/OffloadShare of a pool, and of a tenant's
// quota (a guess).
const OffloadShare = 8

// Offloads is the part of a store that sends copies of objects to outlets. Guarded by the
// store's lock.
type Offloads struct {
	cat    *catalog.Catalog
	remote *Remote
	freed  func() // as in Writes

	engine *transfer.Engine[*objects.Object] // nil without outlets
	ended  uint64                            // offloads that have ended
}

// open creates the engine that sends copies. It has no workers, since sinks have their own.
func (off *Offloads) open() {
	off.engine = transfer.New[*objects.Object](transfer.Config{Lock: &off.cat.Mu, Now: off.cat.Config.Now})
}

// kickLocked offers the parked copies to the outlets again.
func (off *Offloads) kickLocked() {
	if off.engine != nil {
		off.engine.Kick()
	}
}

// OffloadLocked sends a copy of an object, after copies of its ancestors, to the first outlet
// that accepts it. The parameter short is the room that evictions must free at once; nil =
// none. The flight is nil unless the second result is the verdict Sending.
func (off *Offloads) OffloadLocked(o *objects.Object, why Occasion, short *shortage) (*transfer.Flight, Verdict) {
	if off.engine == nil || off.cat.Closed || o.InHBM() || o.Profile.Trial || o.Phase != objects.Whole || o.Corrupt || o.Kind == tier.Rows {
		return nil, Settled
	}
	if o.Offload != nil {
		return off.engine.Find(o), Sending
	}
	outlets := off.outletsLocked(o, why)
	if len(outlets) == 0 {
		return nil, Settled
	}
	chain, ok := off.unsentLocked(o)
	switch {
	case !ok:
		off.cat.Counters.Offload.Chain++
		return nil, Settled
	case why != Flushing && (!offloadFits(chain) || !short.spares(chain)):
		if why == Leaving {
			off.cat.Counters.Offload.NoRoom++
		}
		return nil, notNow
	}
	var flight *transfer.Flight
	for i := len(chain) - 1; i >= 0; i-- {
		var err error
		flight, err = off.sendLocked(chain[i], outlets, why == Flushing, flight)
		switch {
		case errors.Is(err, tier.ErrBusy):
			return nil, notNow
		case err != nil:
			return nil, Settled
		}
	}
	return flight, Sending
}

// CameBackLocked counts a lease by a client, and offers the object to the outlets at its
// usesAgain-th use. Leases by peers do not count, since the peer then has a copy.
func (off *Offloads) CameBackLocked(o *objects.Object) {
	if o.Came++; o.Came == usesAgain*uint64(len(o.Shares)) {
		off.OffloadLocked(o, UsedAgain, nil)
	}
}

// outletsLocked returns the outlets to which an object is offered on an occasion.
func (off *Offloads) outletsLocked(o *objects.Object, why Occasion) (list []*catalog.Outlet) {
	_, below := off.cat.Objects.Below.Of(o)
	asked, elsewhere := false, false
	for i := range off.cat.Config.Outlets {
		out := &off.cat.Config.Outlets[i]
		switch {
		case why == Published && !out.All, out.Last && (why != Ahead && why != Flushing || below || o.Write != nil):
			continue
		case out.All && !o.Asked:
			list = append(list, out)
			continue
		}
		if !asked && off.cat.Config.Remote != nil {
			_, elsewhere = off.remote.HintLocked(o.Identity())
		}
		asked = true
		if elsewhere {
			continue
		}
		if out.All || worth(out.To.Expect(), o.Profile, o.Begin, o.End, o.RankBytes*int64(len(o.Shares))) {
			list = append(list, out)
		}
	}
	switch {
	case len(list) > 0 || !asked:
	case elsewhere:
		off.cat.Counters.Offload.Elsewhere++
	default:
		off.cat.Counters.Offload.NotWorth++
	}
	return list
}

// unsentLocked lists an object and then its ancestors. It stops before an ancestor that is
// believed to be cached elsewhere, and after one that is already being sent. The second result
// is false if one of these objects is not whole in memory, or if they are too many for one
// critical section.
func (off *Offloads) unsentLocked(o *objects.Object) (chain []*objects.Object, ok bool) {
	for ; o != nil; o = o.Parent {
		if len(chain) > 0 && off.cat.Config.Remote != nil {
			if _, has := off.remote.HintLocked(o.Identity()); has {
				break
			}
		}
		if o.Phase != objects.Whole || o.Corrupt || o.Kind == tier.Rows || len(chain) == catalog.HoldRows {
			return nil, false
		}
		chain = append(chain, o)
		if o.Offload != nil {
			break
		}
	}
	return chain, true
}

// offloadFits reports whether a chain may be sent within the bounds on bytes in flight.
func offloadFits(chain []*objects.Object) bool {
	pages, charge := int64(0), int64(0)
	for _, o := range chain {
		if o.Offload == nil {
			pages, charge = pages+o.PageBytes, charge+o.Charge()
		}
	}
	fits := func(has, more, of int64) bool {
		return has+more <= of/OffloadShare || has == 0 && len(chain) == 1 && more <= of/2
	}
	o := chain[0]
	return fits(o.Pool.Offloading, pages, o.Pool.Budget) && (o.Tenant.QuotaBytes == 0 || fits(o.Tenant.Offload, charge, o.Tenant.QuotaBytes))
}

// sendLocked starts a flight that sends a copy. It begins when the flight that the parameter
// behind names has ended (nil = at once). The error says why no outlet accepts the copy.
func (off *Offloads) sendLocked(o *objects.Object, outlets []*catalog.Outlet, patient bool, behind *transfer.Flight) (*transfer.Flight, error) {
	if o.Offload != nil {
		return off.engine.Find(o), nil
	}
	w := &offload{owner: off, object: o, outlets: outlets, patient: patient, pages: o.PageBytes, charge: o.Charge()}
	o.Offload, o.Asked = w, true
	o.Pool.Offloading += w.pages
	o.Tenant.Offload += w.charge
	n := &off.cat.Counters.Offload
	n.Offered++
	n.Sending++
	n.SendingBytes += uint64(w.pages)
	off.cat.Objects.Account(o)
	off.cat.Objects.Policies.Rank(o)
	if behind != nil && behind.Ended() {
		behind = nil
	}
	return off.engine.Start(o, w, transfer.Options{After: behind})
}

// Begin offers the object to the outlets.
func (w *offload) Begin(*transfer.Flight) (err error) {
	off, o := w.owner, w.object
	if off.cat.Closed {
		return fmt.Errorf("%s: closing: %w", o.Name(), tier.ErrUnavailable)
	}
	d := off.cat.Objects.Memory.Describe(o)
	for _, out := range w.outlets {
		if w.to, err = out.To.Admit(d); err == nil || errors.Is(err, tier.ErrExists) {
			w.begun = true
			off.cat.Running.Add(1)
			return nil
		}
	}
	if w.patient && errors.Is(err, tier.ErrBusy) {
		return transfer.Parked(err)
	}
	return err
}

// Move passes the object to the sink, which calls back when it is done.
func (w *offload) Move(_ context.Context, _ *transfer.Flight, moved func(error)) {
	if w.to == nil {
		moved(nil)
		return
	}
	w.to.Start(tier.LevelSynced, func(_ tier.Level, err error) { moved(err) })
}

// Landed counts the copy as sent.
func (w *offload) Landed(*transfer.Flight) (again bool, err error) {
	if w.to != nil {
		w.owner.cat.Counters.Offload.SentBytes += uint64(w.object.Bytes)
	}
	w.owner.cat.Counters.Offload.Sent++
	return false, nil
}

// End releases the object's memory.
func (w *offload) End(_ *transfer.Flight, err error) {
	off, o := w.owner, w.object
	n := &off.cat.Counters.Offload
	switch {
	case err == nil:
	case w.begun:
		n.Failed++
	default:
		off.cat.Counters.OffloadRefused(err)
	}
	n.Sending--
	n.SendingBytes -= uint64(w.pages)
	o.Offload = nil
	o.Asked = o.Asked && !errors.Is(err, tier.ErrBusy)
	o.Pool.Offloading -= w.pages
	o.Tenant.Offload -= w.charge
	if w.begun && errors.Is(err, tier.ErrCorrupt) {
		off.cat.Objects.MarkCorrupt(o)
	}
	off.cat.Objects.Account(o)
	if o.Linked() {
		off.cat.Objects.Policies.Rank(o)
	}
	off.ended++
	off.cat.Changed.Broadcast()
	off.freed()
}

// Release records that the sink does not read the object's memory any more.
func (w *offload) Release(*transfer.Flight) { w.owner.cat.Running.Done() }

// sendAhead sends copies of the next victims of pools that are short of free bytes, until
// ctx ends. Evictions then find memory that can be dropped at once. An object that no
// outlet accepts is offered again at its eviction. While too much is in flight, sendAhead
// waits for the end of an offload or for the next sweep.
func (off *Offloads) sendAhead(ctx context.Context) {
	var ended, swept uint64
	blocked := false
	for {
		off.cat.Mu.Lock()
		for ctx.Err() == nil && (blocked && ended == off.ended && swept == off.cat.Sweeps || !off.AheadLocked()) {
			off.cat.SenderIdle = true
			off.cat.Changed.Wait()
			off.cat.SenderIdle = false
		}
		if ctx.Err() != nil {
			off.cat.Mu.Unlock()
			return
		}
		ended, swept = off.ended, off.cat.Sweeps
		blocked = off.SendSomeLocked()
		off.cat.Mu.Unlock()
		off.cat.Launch()
	}
}

// AheadLocked reports whether copies should be sent ahead.
func (off *Offloads) AheadLocked() bool {
	return slices.ContainsFunc(off.cat.Objects.Pools[:], func(p *objects.Pool) bool { return off.cat.Objects.Policies.ShortOf(p, &p.Unsent) })
}

// SendSomeLocked starts to send some copies ahead. The result is true if too much is in flight.
func (off *Offloads) SendSomeLocked() (blocked bool) {
	n := 0
	for _, p := range off.cat.Objects.Pools {
		for ; n < CleanRows && off.cat.Objects.Policies.ShortOf(p, &p.Unsent); n++ {
			o := off.nextToLeaveLocked(p)
			_, how := off.OffloadLocked(o, Ahead, nil)
			if how == notNow {
				blocked = true
				break
			}
			o.Asked = true
			off.cat.Objects.Policies.Rank(o)
		}
	}
	return blocked
}

// aheadTries is the maximum number of a pool's victims that a search skips: victimLocked
// skips those not offered to an outlet yet, nextToLeaveLocked those already offered.
const aheadTries = 64

// nextToLeaveLocked returns the object that the pool will evict next among those not offered
// yet. It looks through the first aheadTries victims of the pool's policy. If all of these were
// offered, it takes the first object of p.Unsent, whose own learning policy may order objects
// differently. That is good enough: such a pool has room for copies that are sent at eviction.
func (off *Offloads) nextToLeaveLocked(p *objects.Pool) *objects.Object {
	tries := 0
	id, ok := p.Evict.Victim(func(id policy.ID) bool {
		tries++
		return tries > aheadTries || off.cat.Objects.Table.Get(id).Sending == objects.Candidate
	})
	if o := off.cat.Objects.Table.Get(id); ok && o.Sending == objects.Candidate {
		return o
	}
	id, _ = p.Unsent.Victim(objects.AnyID)
	return off.cat.Objects.Table.Get(id)
}

// SendAll sends copies of every published object that the outlets want, see Store.Offload.
func (off *Offloads) SendAll(ctx context.Context) (sent int, err error) {
	if off.engine == nil {
		return 0, nil
	}
	var flights []*transfer.Flight
	for i, more := 0, true; more && ctx.Err() == nil; i += catalog.HoldRows {
		off.cat.Mu.Lock()
		off.engine.Kick()
		places := off.cat.Objects.Table.Places()
		for _, o := range places[min(i, len(places)):min(i+catalog.HoldRows, len(places))] {
			if o == nil {
				continue
			}
			if f, _ := off.OffloadLocked(o, Flushing, nil); f != nil {
				flights = append(flights, f)
			}
		}
		more = i+catalog.HoldRows < len(places)
		off.cat.Mu.Unlock()
		off.cat.Launch()
	}
	for _, f := range flights {
		select {
		case <-f.Done():
			if f.Err() == nil {
				sent++
			}
		case <-ctx.Done():
		}
	}
	left := len(flights) - sent
	switch {
	case ctx.Err() != nil:
		return sent, fmt.Errorf("offload: %d of %d objects are not sent: %w", left, len(flights), ctx.Err())
	case left > 0:
		return sent, fmt.Errorf("offload: %d of %d objects are not sent: %w", left, len(flights), tier.ErrUnavailable)
	}
	return sent, nil
}

// shortage is the room that evictions still have to free: bytes of pages in a pool, bytes
// of a tenant's quota, or both. It bounds how many evictable bytes may be sent to outlets.
type shortage struct {
	pool   *objects.Pool
	pages  int64
	tenant *objects.Tenant
	charge int64
	rival  *objects.Object // the object that needs the room
}

// of returns the object that needs the room; nil if unknown.
func (n *shortage) of() *objects.Object {
	if n == nil {
		return nil
	}
	return n.rival
}

// spares reports whether evictions can still free the room if the objects of the list chain
// keep their memory.
func (n *shortage) spares(chain []*objects.Object) bool {
	if n == nil {
		return true
	}
	pages, charge := n.pages, n.charge
	for _, o := range chain {
		if o.Pool == n.pool {
			pages += o.PageBytes
		}
		if o.Tenant == n.tenant {
			charge += o.Charge()
		}
	}
	return (n.pages <= 0 || n.pool.Used-n.pool.Pinned >= pages) && (n.charge <= 0 || n.tenant.Total()-n.tenant.Pinned >= charge)
}
