package connector

import (
	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// AllLayers asks Compose and Rotate for every layer they apply to.
const AllLayers = profile.AllLayers

// Span is a run of prompt tokens [Start, Start+Count): the interior of a leased
// segment, or tokens that the engine computes.
type Span struct {
	Lease *Lease // if Resident is nil too, the engine computes these tokens
	// Resident is a segment leased on the device. If a plan has one, the operation runs on the
	// device: all segments of the plan, its base and the Slot must be there, and computed spans
	// have no Input.
	Resident *DeviceLease
	Start    int
	Count    int
	// Input is the transition T and end-state S of a computed span, in F32 and in
	// profile.SeamLayout of the requested layers. Compose needs it for every computed span
	// except the last, and copies it into staging.
	Input []byte
}

// holder returns the lease of a segment, nil for computed tokens.
func (s *Span) holder() *held {
	switch {
	case s.Resident != nil:
		return &s.Resident.held
	case s.Lease != nil:
		return &s.Lease.held
	}
	return nil
}

// onDevice reports whether the daemon runs operations of this plan on the device.
func (p *Plan) onDevice(from *From) bool {
	for i := range p.Spans {
		if p.Spans[i].Resident != nil {
			return true
		}
	}
	return from.Slot != nil && from.Slot.device
}

// Plan covers the prompt tokens [Begin, End) exactly once, in order.
type Plan struct {
	Begin, End int
	Spans      []Span
}

// From is the base of a plan: a zero state (the zero value), a loaded checkpoint of Begin
// tokens, or states that an earlier call stored in a slot.
type From struct {
	Checkpoint *Checkpoint
	Slot       *Slot
	SlotOff    int64 // offset of the states in Slot.Bytes
}

// encode returns the plan as wire columns. inputs has the staging offset of each span's Input;
// nil = no span has one.
func (p *Plan) encode(a *link.Attachment, inputs []uint64) (wire.Plan, error) {
	n := len(p.Spans)
	if n > wire.MaxSpans {
		return wire.Plan{}, invalid("plan of %d spans, at most %d", n, wire.MaxSpans)
	}
	if p.Begin < 0 || p.End < p.Begin || p.End > profile.MaxTokens {
		return wire.Plan{}, invalid("plan of tokens [%d, %d)", p.Begin, p.End)
	}
	w := wire.Plan{
		Begin: uint32(p.Begin), End: uint32(p.End), Kinds: make([]uint8, n), Leases: make([]uint64, n),
		Starts: make([]uint32, n), Counts: make([]uint32, n), Inputs: inputs,
	}
	if inputs == nil {
		w.Inputs = make([]uint64, n)
		for i := range w.Inputs {
			w.Inputs[i] = wire.None
		}
	}
	for i := range p.Spans {
		s := &p.Spans[i]
		if s.Start < p.Begin || s.Count < 0 || s.Start > p.End-s.Count {
			return wire.Plan{}, invalid("span %d of %d tokens at %d, plan is [%d, %d)", i, s.Count, s.Start, p.Begin, p.End)
		}
		w.Starts[i], w.Counts[i], w.Kinds[i] = uint32(s.Start), uint32(s.Count), wire.SpanRecompute
		h := s.holder()
		switch {
		case h == nil:
			continue
		case s.Lease != nil && s.Resident != nil:
			return wire.Plan{}, invalid("span %d has a lease in memory and one on the device", i)
		}
		id, err := h.lease(a)
		if err != nil {
			return wire.Plan{}, err
		}
		w.Kinds[i], w.Leases[i] = wire.SpanSegment, id
	}
	return w, nil
}

// encode returns the base of a plan as fields of a wire request.
func (f *From) encode(a *link.Attachment) (kind uint8, lease, off uint64, err error) {
	switch {
	case f.Checkpoint != nil && f.Slot != nil:
		return 0, 0, 0, invalid("a plan begins from either a checkpoint or a slot")
	case f.Checkpoint != nil:
		lease, err = f.Checkpoint.lease(a)
		return wire.FromCheckpoint, lease, 0, err
	case f.Slot != nil:
		if f.SlotOff < 0 || f.SlotOff > f.Slot.n {
			return 0, 0, 0, invalid("offset %d of a slot of %d bytes", f.SlotOff, f.Slot.n)
		}
		lease, err = f.Slot.lease(a)
		return wire.FromSlot, lease, uint64(f.Slot.off + f.SlotOff), err
	}
	return wire.FromZero, 0, 0, nil
}
