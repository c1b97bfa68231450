package connector

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
)

// A Slot is a result of Compose, Rotate or Assemble in memory that only this client sees. Unlike
// a lease, it may only be used by one goroutine at a time.
type Slot struct {
	held
	off, n  int64
	Rows    int // rows that Rotate or Assemble packed
	device  bool
	corrupt bool
}

// Bytes returns a view of the result, valid until Release or until the slot is given as Into
// again. It returns nil after Release, for an invalid slot, and for a slot on the device.
func (s *Slot) Bytes() []byte {
	if s == nil || s.corrupt || s.device || s.keep() != nil {
		return nil
	}
	defer s.a.Release()
	return s.a.Slots.Bytes()[s.off : s.off+s.n : s.off+s.n]
}

// Ref returns the device memory of the result, for operations of Options.Device. It returns an
// empty Ref for an invalid slot and for a slot in host memory (see Bytes). Operations that read
// the memory must end before Release.
func (s *Slot) Ref() gpuipc.Ref {
	if s == nil || s.corrupt || !s.device || s.keep() != nil {
		return gpuipc.Ref{}
	}
	defer s.a.Release()
	return gpuipc.Ref{Region: s.a.Device.Private, Extents: []gpuipc.Extent{{Off: s.off, Len: s.n}}}
}

// Release releases the slot; see Lease.Release.
func (s *Slot) Release() {
	if s != nil {
		s.release()
	}
}

// Valid is Lease.Valid for a slot.
func (s *Slot) Valid() bool { return s != nil && !s.corrupt && s.valid() }

// ComposeQuery asks for a running state advanced over the spans of a plan.
type ComposeQuery struct {
	Layer int // a linear layer, or AllLayers
	From  From
	Plan  Plan
	// Into is an existing slot for the result; nil = a new slot. After an error other than
	// ErrInvalid, ErrBusy or ErrFull, the content of Into is lost and it can only be released.
	Into *Slot
}

// Compose returns states in profile.StatesLayout(Layer, computed spans). For each requested
// layer these are the F32 state before each computed span, then the state at the end of the
// plan. If the last span is computed and has no input, the last state is the state before that
// span.
func (m *Model) Compose(ctx context.Context, q *ComposeQuery) (*Slot, error) {
	r, k, err := m.begin(ctx, wire.OpCompose, m.client.opt.Timeouts.Transfer)
	if err != nil {
		return nil, err
	}
	defer r.end(k)
	k.Late.Cancel = true
	inputs, err := m.stageInputs(ctx, r.a, k, q)
	if err != nil {
		return nil, err
	}
	request := &wire.ComposeRequest{Profile: r.profile, Rank: uint32(m.binding.Rank), Layer: int32(q.Layer)}
	if request.Plan, err = q.Plan.encode(r.a, inputs); err != nil {
		return nil, err
	}
	if request.From, request.FromLease, request.FromOff, err = q.From.encode(r.a); err != nil {
		return nil, err
	}
	if request.Into, err = into(k, r.a, q.Into); err != nil {
		return nil, err
	}
	var reply wire.ComposeReply
	if err := r.ask(ctx, k, request, &reply); err != nil {
		q.Into.spoil(err)
		return nil, err
	}
	return r.slot(k.Op, &wire.RotateReply{Lease: reply.Lease, Off: reply.Off, Bytes: reply.Bytes}, q.Into, q.Plan.onDevice(&q.From))
}

// stageInputs copies the inputs of a plan into staging. All inputs must have the length that the
// layers need: from the start of each input, the daemon reads that many bytes, and would read
// unrelated bytes after a shorter input.
func (m *Model) stageInputs(ctx context.Context, a *link.Attachment, k *link.Call, q *ComposeQuery) ([]uint64, error) {
	spans := q.Plan.Spans
	inputs := make([]uint64, len(spans))
	size, total := int64(-1), int64(0)
	for i := range spans {
		inputs[i] = wire.None
		if spans[i].Input == nil {
			continue
		}
		if size < 0 {
			size = m.profile.SeamLayout(q.Layer).Bytes
		}
		if q.Plan.onDevice(&q.From) {
			return nil, invalid("span %d: input for a plan on the device", i)
		}
		if n := int64(len(spans[i].Input)); n != size || n == 0 {
			return nil, invalid("span %d: input of %d bytes, layer %d takes %d", i, n, q.Layer, size)
		}
		inputs[i] = uint64(total)
		total += size
	}
	if total == 0 {
		return inputs, nil
	}
	mem, off, err := a.Stage(ctx, k, total)
	if err != nil {
		return nil, fmt.Errorf("%s: inputs: %w", k.Op, err)
	}
	for i := range spans {
		if inputs[i] != wire.None {
			copy(mem[inputs[i]:], spans[i].Input)
			inputs[i] += off
		}
	}
	return inputs, nil
}

// into returns the lease of the slot to write into. If s is nil, it returns 0, and the daemon
// grants a lease for a new slot; if the reply comes late, that lease must be released.
func into(k *link.Call, a *link.Attachment, s *Slot) (uint64, error) {
	if s == nil {
		k.Late.GiveBack = true
		return 0, nil
	}
	if s.corrupt {
		return 0, fmt.Errorf("slot %d: an earlier call may still be writing: %w", s.id, ErrGone)
	}
	return s.lease(a)
}

// spoil marks a slot that a request may have written partly or may still be writing.
func (s *Slot) spoil(err error) {
	if s != nil && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrFull) {
		s.corrupt = true
	}
}

// slot checks the location of a result in a reply and returns the Slot. It returns nil if the
// result is not in the slot region, as after a rotate into engine memory.
func (r *registration) slot(op wire.Op, reply *wire.RotateReply, into *Slot, device bool) (*Slot, error) {
	a := r.a
	if reply.Lease == 0 && reply.Bytes == 0 {
		return nil, nil
	}
	size := uint64(len(a.Slots.Bytes()))
	if device && a.Device != nil {
		size = uint64(a.Device.Private.Bytes())
	}
	if reply.Bytes > size || reply.Off > size-reply.Bytes || into != nil && into.id != reply.Lease {
		err := fmt.Errorf("%s: result of %d bytes at %d of %d, lease %d", op, reply.Bytes, reply.Off, size, reply.Lease)
		a.BrokeProtocol(err)
		return nil, fmt.Errorf("%v: %w", err, ErrUnavailable)
	}
	s := into
	if s == nil {
		if !a.Retain() {
			return nil, link.ErrNotAttached
		}
		s = &Slot{held: held{a: a, tenant: r.tenant, id: reply.Lease}}
	}
	s.off, s.n, s.Rows, s.device = int64(reply.Off), int64(reply.Bytes), int(reply.Rows), device
	return s, nil
}

// RotateQuery places the keys and values of a plan's segments.
type RotateQuery struct {
	Layer int  // an attention layer, or AllLayers; Assemble ignores it
	From  From // zero or a checkpoint
	Plan  Plan
	Into  *Slot // see ComposeQuery
	// Blocks is the engine's block table for tokens [0, Plan.End): the daemon writes the rows
	// into these blocks of the binding's Memory. nil = it writes the rows contiguously into a
	// slot.
	Blocks []uint32
}

// Rotate places the keys and values of a plan's segments, for one attention layer or all.
// Without Blocks it writes a slot, with K then V of each layer in profile.RowsLayout. With
// Blocks it writes engine memory, including the rows of the checkpoint that the plan begins
// from, and returns a nil Slot. Rotate ignores the Input of spans, so the plan of a Compose can
// be reused.
//
// The error of an abandoned call into engine memory is a *PendingWrite.
func (m *Model) Rotate(ctx context.Context, q *RotateQuery) (*Slot, error) {
	return m.rotate(ctx, wire.OpRotate, q)
}

// Assemble does Compose and Rotate of all layers in one request. Only the last span of its plan
// may be computed. The slot has the layout profile.CheckpointLayout(rows), or
// CheckpointLayout(0) with Blocks.
//
// The error of an abandoned call into engine memory is a *PendingWrite.
func (m *Model) Assemble(ctx context.Context, q *RotateQuery) (*Slot, error) {
	return m.rotate(ctx, wire.OpAssemble, q)
}

func (m *Model) rotate(ctx context.Context, op wire.Op, q *RotateQuery) (*Slot, error) {
	r, k, err := m.begin(ctx, op, m.client.opt.Timeouts.Transfer)
	if err != nil {
		return nil, err
	}
	defer r.end(k)
	request, err := m.rotateRequest(r, k, q)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	var message wire.Message = request
	if op == wire.OpAssemble {
		message = &wire.AssembleRequest{RotateRequest: *request}
	}
	var reply wire.RotateReply
	if err := r.ask(ctx, k, message, &reply); err != nil {
		q.Into.spoil(err)
		return nil, err
	}
	return r.slot(op, &reply, q.Into, q.Plan.onDevice(&q.From))
}

func (m *Model) rotateRequest(r *registration, k *link.Call, q *RotateQuery) (*wire.RotateRequest, error) {
	request := &wire.RotateRequest{
		Profile: r.profile, Rank: uint32(m.binding.Rank), Layer: int32(q.Layer), Dest: wire.DestSlot, Blocks: q.Blocks,
	}
	if k.Op == wire.OpAssemble {
		request.Layer = wire.AllLayers
	}
	k.Late.Cancel = true
	var err error
	if q.Blocks != nil {
		if r.memory == 0 {
			return nil, invalid("block table without registered memory")
		}
		if len(q.Blocks) > wire.MaxBlocks {
			return nil, invalid("block table of %d, at most %d", len(q.Blocks), wire.MaxBlocks)
		}
		request.Dest, request.Memory = wire.DestMemory, r.memory
		k.Late.Memory = true
	}
	if request.Plan, err = q.Plan.encode(r.a, nil); err != nil {
		return nil, err
	}
	var off uint64
	if request.From, request.FromLease, off, err = q.From.encode(r.a); err != nil {
		return nil, err
	}
	if request.From == wire.FromSlot || off != 0 {
		return nil, invalid("rows begin from a slot")
	}
	request.Into, err = into(k, r.a, q.Into)
	return request, err
}
