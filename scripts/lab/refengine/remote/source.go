package remote

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// leases holds the leased segments of one request.
type leases struct {
	store *Store
	keys  []profile.SegmentKey
	held  []*connector.Lease // nil = not cached
	specs []profile.SegmentSpec
	taken time.Time
	src   *source
}

// Packed implements refengine.Leases. It returns a copy of the published bytes; empty if the
// lease has ended.
func (l *leases) Packed(i int) refengine.PackedSegment {
	lease := l.held[i]
	if lease == nil {
		return refengine.PackedSegment{}
	}
	layout := lease.Layout()
	out := make([]byte, layout.Bytes)
	for j, p := range layout.Parts {
		if lease.Read(j, out[p.Off:][:p.Len]) != nil {
			return refengine.PackedSegment{}
		}
	}
	return refengine.PackedSegment{Spec: l.specs[i], Bytes: out, Layout: layout}
}

// Release implements refengine.Leases.
func (l *leases) Release() {
	if l.src != nil {
		l.src.release()
	}
	connector.Release(l.held...)
}

// Source implements refengine.Leases.
func (l *leases) Source(m *refengine.Model[float32], plan refengine.Plan, prefix []uint32, from *refengine.State[float32]) (refengine.Source[float32], error) {
	if err := plan.Check(); err != nil {
		return nil, err
	}
	s := &source{store: l.store, model: m, from: from, shape: plan}
	l.src = s
	s.plan = connector.Plan{Begin: plan.Begin, End: plan.End}
	for _, p := range plan.Spans {
		span := connector.Span{Start: p.Start, Count: p.Count}
		if p.Segment >= 0 {
			if p.Segment >= len(l.held) || l.held[p.Segment] == nil {
				return nil, fmt.Errorf("plan uses segment %d, which is not held: %w", p.Segment, refengine.ErrInvalid)
			}
			span.Lease = l.held[p.Segment]
		}
		s.plan.Spans = append(s.plan.Spans, span)
	}
	return s, s.begin(prefix)
}

// source requests states and rows from the daemon, layer by layer.
type source struct {
	store  *Store
	model  *refengine.Model[float32]
	shape  refengine.Plan
	from   *refengine.State[float32]
	saved  *connector.Checkpoint // checkpoint with the states of from; nil = none
	own    bool                  // from is included as a separate span
	plan   connector.Plan
	states *connector.Slot
	rows   *connector.Slot
}

// begin selects how the plan starts. If a saved checkpoint has exactly the states of the
// request's prefix, the daemon composes from it by reference. The states must be identical,
// because convolution tails and rows come from the request. Otherwise the prefix enters the plan
// as an additional computed span with T = 0 and S = its state, which turns any state into that
// state.
func (s *source) begin(prefix []uint32) error {
	if s.from == nil {
		return nil
	}
	if s.from.Tokens != s.shape.Begin || len(prefix) != s.shape.Begin {
		return fmt.Errorf("state of %d and prefix of %d tokens, plan begins at %d: %w",
			s.from.Tokens, len(prefix), s.shape.Begin, refengine.ErrInvalid)
	}
	hashes, ok := s.store.model.PrefixHashes(BlockTokens, prefix, []int{len(prefix)})
	if !ok {
		return connector.ErrUnavailable
	}
	saved, ok, err := s.store.model.Load(s.store.ctx, hashes[0], connector.Exact, connector.AcquireOptions{})
	if err != nil {
		return err
	}
	if ok {
		same, err := s.holds(saved)
		if same {
			s.saved = saved
			return nil
		}
		saved.Release()
		if err != nil {
			return err
		}
	}
	s.own = true
	s.plan.Spans = append([]connector.Span{{Start: 0, Count: s.plan.Begin}}, s.plan.Spans...)
	s.plan.Begin = 0
	return nil
}

// holds reports whether a checkpoint's running states equal those of the state s.from, bit for
// bit. A comparison of tokens does not suffice, because that state may be the result of a
// splice.
func (s *source) holds(c *connector.Checkpoint) (bool, error) {
	last := c.Last()
	for _, i := range s.store.prof.LinearLayers() {
		state, err := elements(last.Layout(), i, profile.PartS, last.Read)
		if err != nil {
			return false, err
		}
		if !slices.EqualFunc(state, s.from.Layers[i].S, sameBits) {
			return false, nil
		}
	}
	return true, nil
}

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

func (s *source) release() {
	s.states.Release()
	s.rows.Release()
	s.saved.Release()
}

// Left implements refengine.Source. It returns the convolution tail of the segment before the
// span, or of the prefix.
func (s *source) Left(layer, span int) ([]float32, error) {
	var before *connector.Lease
	for i, p := range s.shape.Spans {
		if p.Segment < 0 {
			if span == 0 {
				break
			}
			span--
			continue
		}
		before = s.plan.Spans[i+len(s.plan.Spans)-len(s.shape.Spans)].Lease
	}
	switch {
	case before != nil:
		return elements(before.Layout(), layer, profile.PartConv, before.Read)
	case s.from != nil:
		return s.from.Layers[layer].Conv, nil
	}
	return s.model.NewState().Layers[layer].Conv, nil
}

// elements returns the values of one part of an object. read is the object's Read, which returns
// an error, and never wrong bytes, if the lease ends during the call.
func elements(layout profile.Layout, layer int, kind profile.PartKind, read func(i int, dst []byte) error) ([]float32, error) {
	i := layout.Find(layer, kind)
	if i < 0 {
		return nil, nil
	}
	p := &layout.Parts[i]
	b := make([]byte, p.Len)
	if err := read(i, b); err != nil {
		return nil, fmt.Errorf("part %d of layer %d: %w", kind, layer, err)
	}
	out := make([]float32, p.Elements())
	toF32 := kernel.PartToF32
	if kind == profile.PartK || kind == profile.PartV {
		toF32 = kernel.RowsToF32
	}
	if err := toF32(out, b, kernel.DType(p.DType), p.Packed, p.Shape); err != nil {
		return nil, fmt.Errorf("part %d of layer %d: %w", kind, layer, err)
	}
	return out, nil
}

// States implements refengine.Source with one compose of the layer.
func (s *source) States(layer int, own []refengine.Tuple[float32]) ([][]float32, error) {
	seam := s.store.prof.SeamLayout(layer)
	if s.own {
		prefix := refengine.Tuple[float32]{
			T: make([]float32, seam.Parts[0].Len/4), S: s.from.Layers[layer].S,
		}
		own = append([]refengine.Tuple[float32]{prefix}, own...)
	}
	next := 0
	for i := range s.plan.Spans {
		if p := &s.plan.Spans[i]; p.Lease == nil && next < len(own) {
			p.Input = make([]byte, seam.Bytes)
			for j, values := range [][]float32{own[next].T, own[next].S} {
				if err := fill(p.Input[seam.Parts[j].Off:][:seam.Parts[j].Len], values, profile.F32, 0); err != nil {
					return nil, err
				}
			}
			next++
		}
	}
	slot, err := s.store.model.Compose(s.store.ctx, &connector.ComposeQuery{
		Layer: layer, From: connector.From{Checkpoint: s.saved}, Plan: s.plan, Into: s.states,
	})
	if err != nil {
		return nil, err
	}
	s.states = slot
	states, err := s.before(layer, len(own)+1)
	if s.own && err == nil {
		states = states[1:]
	}
	return states, err
}

// before returns copies of the states before the n computed spans, from the slot.
func (s *source) before(layer, n int) ([][]float32, error) {
	layout := s.store.prof.StatesLayout(layer, n)
	b := s.states.Bytes()
	if int64(len(b)) < layout.Bytes {
		return nil, fmt.Errorf("states of %d bytes, expected %d: %w", len(b), layout.Bytes, connector.ErrGone)
	}
	out := make([][]float32, n)
	for i := range out {
		p := layout.Parts[i]
		out[i] = make([]float32, p.Len/4)
		kernel.ToF32(out[i], b[p.Off:][:p.Len], kernel.F32)
	}
	return out, stillHeld(s.states)
}

// stillHeld returns an error if a slot's bytes may have changed. It is called after the last use
// of the bytes.
func stillHeld(slot *connector.Slot) error {
	if !slot.Valid() {
		return fmt.Errorf("slot ended while it was read: %w", connector.ErrGone)
	}
	return nil
}

// Rows implements refengine.Source: the first call rotates the rows of all
// layers into a slot.
func (s *source) Rows(layer int, k, v []float32) error {
	if s.from != nil {
		copy(k, s.from.Layers[layer].K)
		copy(v, s.from.Layers[layer].V)
	}
	cached, _ := s.shape.Counts()
	if cached == 0 {
		return nil
	}
	if s.rows == nil {
		var err error
		s.rows, err = s.store.model.Rotate(s.store.ctx, &connector.RotateQuery{
			Layer: connector.AllLayers, From: connector.From{Checkpoint: s.saved}, Plan: s.withoutInputs(),
		})
		if err != nil {
			return err
		}
	}
	layout := s.store.prof.RowsLayout(connector.AllLayers, cached)
	b := s.rows.Bytes()
	if int64(len(b)) < layout.Bytes {
		return fmt.Errorf("rows of %d bytes, expected %d: %w", len(b), layout.Bytes, connector.ErrGone)
	}
	for kind, dst := range map[profile.PartKind][]float32{profile.PartK: k, profile.PartV: v} {
		p := layout.Parts[layout.Find(layer, kind)]
		s.unpack(dst, b[p.Off:][:p.Len], p)
	}
	return stillHeld(s.rows)
}

// unpack puts packed segment rows at their prompt positions.
func (s *source) unpack(dst []float32, packed []byte, p profile.Part) {
	row := p.Shape[1] * p.Shape[2]
	for _, span := range s.shape.Spans {
		if span.Segment < 0 {
			continue
		}
		n := span.Count * row * p.DType.Size()
		kernel.ToF32(dst[span.Start*row:][:span.Count*row], packed[:n], kernel.DType(p.DType))
		packed = packed[n:]
	}
}

func (s *source) withoutInputs() connector.Plan {
	p := s.plan
	p.Spans = append([]connector.Span(nil), p.Spans...)
	for i := range p.Spans {
		p.Spans[i].Input = nil
	}
	return p
}
