package hbm

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Promotion creates one rank's copy of an object in memory. It is the job of a flight (see
// package transfer). Guarded by the store's lock.
//
// Invariant: a copy that exists has no promotion. While a promotion runs its object is in
// use, so that neither the object nor its ancestors can leave memory.
type Promotion struct {
	cache *Cache
	*transfer.Flight
	objects.CopyKey

	Source *objects.Object // while it runs
	Copy   *objects.Object // the copy, while the promotion runs and afterwards
	upload *upload
}

// Promote starts or joins the promotion of a rank's copy. It returns nil if the device is
// lost or the queue is full. The caller holds the lock.
func (h *Cache) Promote(n objects.Identity, rank int, urgent bool) *Promotion {
	k := objects.CopyKey{Identity: n, Rank: rank, Device: h.ID()}
	if f := h.Flights.Find(k); f != nil {
		if urgent {
			h.Flights.Urge(f)
		}
		return f.Job.(*Promotion)
	}
	if h.memory.Lost || !h.Flights.Room(uint32(k.Tenant.ID), 1) {
		return nil
	}
	p := &Promotion{cache: h, CopyKey: k}
	p.Flight, _ = h.Flights.Start(k, p, transfer.Options{Owner: uint32(k.Tenant.ID), Urgent: urgent})
	return p
}

// hintRows is the maximum number of recorded hits that one critical section handles.
const hintRows = 32

// Hint records that a client on a device has matched an object, so that the object is
// promoted to the devices whose engines may read it. It never waits.
func (l List) Hint(o *objects.Object, on tier.DeviceID) {
	engines := o.Profile.Engines
	for i := range engines {
		if e := &engines[i]; o.Resident.On(e.Device.ID, e.Rank) == nil && o.Profile.Reads(e, on) {
			l.Of(e.Device.ID).hint(o)
		}
	}
}

func (h *Cache) hint(o *objects.Object) {
	if !h.cfg.AfterMatch || h.memory.Lost {
		return
	}
	if !h.hints.Add(o.Identity()) {
		h.memory.Counters.MatchesDropped++
	} else if h.hints.Len() == 1 {
		h.Flights.Wake()
	}
}

// Guess starts promotions for some of the recorded hits, for the engines on the device, until a
// promotion is ready to run. It reports whether more hits are left. The caller holds the lock.
func (h *Cache) Guess() (more bool) {
	for n := 0; n < hintRows && h.hints.Len() > 0 && !h.Flights.Waiting(); n++ {
		w := h.hints.Take()
		o := h.o.Objects.Names.Find(w.Name, w.Profile, w.Tenant)
		if o == nil || !h.o.Objects.Names.Promotable(o) {
			continue
		}
		for _, e := range w.Profile.Engines {
			if e.Device == h.memory && o.Resident.On(h.ID(), e.Rank) == nil {
				h.Promote(o.Identity(), e.Rank, false)
			}
		}
	}
	return h.hints.Len() > 0
}

// Begin allocates the memory of a copy and keeps its sources in use.
func (p *Promotion) Begin(f *transfer.Flight) error {
	h := p.cache
	o := h.o.Objects.Names.Find(p.Name, p.Profile, p.Tenant)
	if o == nil || !h.o.Objects.Names.Promotable(o) {
		return fmt.Errorf("segment or checkpoint %x is not whole in memory: %w", p.Name.Key[:8], tier.ErrGone)
	}
	c := h.o.Objects.HBM.New(o, h.memory)
	if c.RankBytes == 0 {
		return fmt.Errorf("%s: a copy of no bytes: %w", c.Name(), tier.ErrGone)
	}
	switch err := h.o.Objects.HBM.MakeRoom(c, !f.Urgent()); {
	case errors.Is(err, objects.ErrAgain):
		return transfer.ErrAgain
	case err != nil:
		return err
	}
	h.o.Objects.Use(o)
	h.o.Objects.HBM.Allocate(c, p.Rank)
	c.Fill = &objects.Fill{Layout: c.Layout(), Copying: 1}
	h.o.Objects.Account(c)
	p.Source, p.Copy = o, c
	p.upload = h.newUpload(c, o, p.Rank)
	h.o.Running.Add(1)
	return nil
}

// Move copies the object and verifies the copy.
func (p *Promotion) Move(ctx context.Context, _ *transfer.Flight, moved func(error)) {
	h, name := p.cache, p.Copy.Name()
	err := p.upload.run(ctx)
	switch {
	case err == nil || tier.ContextEnded(err):
	case h.deviceLost():
		err = fmt.Errorf("%w: %w", transfer.ErrLost, err)
	case errors.Is(err, gpuipc.ErrFull):
		err = errkind.With(err, tier.ErrFull) // the device lacks room for the transfer itself
	}
	moved(err)
	switch transfer.OutcomeOf(err) {
	case transfer.Lost:
		h.Failed(err)
	case transfer.Corrupt:
		h.o.Log.Error().Err(err).Str("object", name).Str("tier", "hbm").Stringer("device", h.dev.UUID()).Msg("promotion failed")
	case transfer.Failed:
		h.o.Log.Warn().Err(err).Str("object", name).Str("tier", "hbm").Stringer("device", h.dev.UUID()).Msg("promotion failed")
	}
}

// Landed checks that the object of a copy is still whole. It may have been removed or
// found corrupt meanwhile.
func (p *Promotion) Landed(*transfer.Flight) (again bool, err error) {
	if o := p.Source; !p.cache.o.Objects.Names.Promotable(o) {
		return false, fmt.Errorf("%s has left memory: %w", o.Name(), tier.ErrGone)
	}
	return false, nil
}

// End makes the copy visible to lookups, and keeps it in use for the waiting callers.
// After an error it does nothing.
func (p *Promotion) End(f *transfer.Flight, err error) {
	if err != nil {
		return
	}
	h, c := p.cache, p.Copy
	c.Fill = nil
	p.upload.publish()
	c.Ops += f.Waiters()
	h.o.Objects.HBM.Add(c, p.Source, p.Rank, p.upload.from)
	h.memory.Counters.PromotedBytes += uint64(c.Bytes)
	why := decision.Promoted
	if !f.Urgent() {
		why = decision.ReadAhead
	}
	h.o.Objects.Records.TellCopied(c, p.Source, why)
}

// Release ends the use of the object. It frees the copy unless the copy has become visible.
func (p *Promotion) Release(*transfer.Flight) {
	h, c, o := p.cache, p.Copy, p.Source
	c.Fill = nil
	if bad := p.upload.corrupt.Load(); bad != nil {
		h.o.Objects.MarkCorrupt(bad)
	}
	h.o.Objects.Account(c)
	h.o.Objects.Unuse(o)
	p.Source, p.upload = nil, nil
	h.o.Running.Done()
}

func (p *Promotion) Arrived() *objects.Object { return p.Copy }

// Reason returns why a row is a miss after a failed promotion.
func (p *Promotion) Reason(how transfer.Outcome) tier.Reason {
	switch how {
	case transfer.Gone, transfer.Lost:
		return tier.ReasonEvicted
	case transfer.NoRoom:
		return tier.ReasonRefused
	}
	return tier.ReasonAborted
}
