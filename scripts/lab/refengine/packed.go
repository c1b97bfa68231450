package refengine

import (
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Pack returns a captured segment in the layout of the profile, rounded to its element
// types: the published bytes.
func Pack(p *profile.Profile, s *Segment[float32]) []byte {
	_, n := s.Spec.Interior()
	layout := p.SegmentLayout(n)
	out := make([]byte, layout.Bytes)
	for _, part := range layout.Parts {
		kernel.FromF32(out[part.Off:part.Off+part.Len], s.Layers[part.Layer].Part(part.Kind), kernel.DType(part.DType))
	}
	return out
}

// Part returns the values of one part of the layer, nil if it has none.
func (l *SegmentLayer[F]) Part(k profile.PartKind) []F {
	switch k {
	case profile.PartT:
		return l.T
	case profile.PartS:
		return l.S
	case profile.PartConv:
		return l.Conv
	case profile.PartK:
		return l.K
	case profile.PartV:
		return l.V
	}
	return nil
}

// PackedSegment is the published form of a segment: its bytes in Layout, or in
// profile.SegmentLayout if Layout is zero. The bytes are only read.
type PackedSegment struct {
	Spec   profile.SegmentSpec
	Bytes  []byte
	Layout profile.Layout
}

// layout returns the layout of its bytes.
func (s *PackedSegment) layout(p *profile.Profile) profile.Layout {
	if s.Layout.Parts != nil {
		return s.Layout
	}
	_, n := s.Spec.Interior()
	return p.SegmentLayout(n)
}

// Packed is a Source in this process that reads published bytes. It calls the same kernels as
// the daemon, in the same order and on the same bytes. A splice through the daemon must
// therefore be bit-identical to a splice through Packed.
type Packed struct {
	m        *Model[float32]
	plan     Plan
	from     *State[float32]
	segments []PackedSegment
	layouts  []profile.Layout          // per segment
	opened   []map[int64]kernel.Packed // per segment, packed parts by their offset
}

// NewPacked returns a Source for a plan. segments are the published segments, indexed as in the
// plan. from is the state after the first plan.Begin tokens; nil if plan.Begin is 0.
func NewPacked(m *Model[float32], plan Plan, from *State[float32], segments []PackedSegment) (*Packed, error) {
	from, err := m.beginning(plan, from)
	if err != nil {
		return nil, err
	}
	layouts := make([]profile.Layout, len(segments))
	for _, s := range plan.Spans {
		if s.Segment < 0 {
			continue
		}
		if s.Segment >= len(segments) || segments[s.Segment].Bytes == nil {
			return nil, fmt.Errorf("plan uses segment %d, which is not given: %w", s.Segment, ErrInvalid)
		}
		seg := segments[s.Segment]
		_, n := seg.Spec.Interior()
		layouts[s.Segment] = seg.layout(m.prof)
		if s.Count != n || int64(len(seg.Bytes)) != layouts[s.Segment].Bytes {
			return nil, fmt.Errorf("segment %d has an interior of %d tokens in %d bytes, plan says %d: %w",
				s.Segment, n, len(seg.Bytes), s.Count, ErrInvalid)
		}
	}
	s := &Packed{m: m, plan: plan, from: from, segments: segments, layouts: layouts, opened: make([]map[int64]kernel.Packed, len(segments))}
	for i := range layouts {
		if err := s.open(i); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// open parses the packed parts of a segment.
func (s *Packed) open(segment int) error {
	for i := range s.layouts[segment].Parts {
		p := &s.layouts[segment].Parts[i]
		if !p.Packed {
			continue
		}
		shape := p.PackedShape()
		k, err := kernel.OpenPacked(s.segments[segment].Bytes[p.Off:][:p.Len], kernel.DType(p.DType), shape[0], shape[1], shape[2])
		if err != nil {
			return fmt.Errorf("segment %d, part %d of layer %d: %w: %w", segment, p.Kind, p.Layer, err, ErrInvalid)
		}
		if s.opened[segment] == nil {
			s.opened[segment] = map[int64]kernel.Packed{}
		}
		s.opened[segment][p.Off] = k
	}
	return nil
}

// part returns the bytes of one part of a segment, which the layer must have.
func (s *Packed) part(segment, layer int, kind profile.PartKind) []byte {
	b, _ := s.find(segment, layer, kind)
	return b
}

// rows returns the keys or values of a segment; if the part is packed, approximations of them.
func (s *Packed) rows(segment, layer int, kind profile.PartKind) ([]byte, error) {
	b, p := s.find(segment, layer, kind)
	return rowsOf(b, p)
}

// rowsOf returns the rows of a part of keys or values.
func rowsOf(b []byte, p *profile.Part) ([]byte, error) {
	if !p.Packed {
		return b, nil
	}
	return kernel.UnpackRows(b, kernel.DType(p.DType), p.Shape[0], p.Shape[1], p.Shape[2])
}

func (s *Packed) find(segment, layer int, kind profile.PartKind) ([]byte, *profile.Part) {
	l := &s.layouts[segment]
	p := &l.Parts[l.Find(layer, kind)]
	return s.segments[segment].Bytes[p.Off:][:p.Len], p
}

// head returns one head's matrix of a part, and its stored form.
func (s *Packed) head(segment, layer, h int, kind profile.PartKind) ([]byte, kernel.Form) {
	b, p := s.find(segment, layer, kind)
	if !p.Packed {
		n := p.Shape[1] * p.Shape[2] * p.DType.Size()
		return b[h*n:][:n], kernel.FormPlain
	}
	form, head := s.opened[segment][p.Off].Head(h)
	return head, form
}

// Left implements Source.
func (s *Packed) Left(layer, span int) ([]float32, error) {
	segment := -1
	for _, p := range s.plan.Spans {
		if p.Segment >= 0 {
			segment = p.Segment
			continue
		}
		if span == 0 {
			break
		}
		span--
	}
	if segment < 0 {
		return s.from.Layers[layer].Conv, nil
	}
	tail := make([]float32, s.m.convSize())
	if len(tail) > 0 {
		kernel.ToF32(tail, s.part(segment, layer, profile.PartConv), kernel.DType(s.m.cfg.Storage.Conv))
	}
	return tail, nil
}

// States implements Source.
func (s *Packed) States(layer int, own []Tuple[float32]) ([][]float32, error) {
	c := s.m.cfg.Linear
	size := c.KeyDim * c.ValueDim
	before := make([][]float32, len(own)+1)
	for i := range before {
		before[i] = make([]float32, s.m.stateSize())
	}
	ownBytes := make([][2][]byte, len(own))
	for i, o := range own {
		ownBytes[i] = [2][]byte{f32Bytes(o.T), f32Bytes(o.S)}
	}
	s.m.each(c.ValueHeads, func(h int) {
		state := append([]float32(nil), s.from.Layers[layer].S[h*size:][:size]...)
		steps := make([]kernel.Step, 0, len(s.plan.Spans))
		span := 0
		for _, p := range s.plan.Spans {
			if p.Segment >= 0 {
				steps = append(steps, s.segmentStep(layer, h, p))
				continue
			}
			step := kernel.Step{Before: before[span][h*size:][:size]}
			if span < len(own) {
				n := 4 * c.TransitionSize()
				step.T, step.TType = ownBytes[span][0][h*n:][:n], kernel.F32
				step.S, step.SType = ownBytes[span][1][h*size*4:][:size*4], kernel.F32
			}
			steps = append(steps, step)
			span++
		}
		kernel.Compose(kernel.Transition(c.Family.Transition()), c.KeyDim, c.ValueDim, state, steps, nil)
	})
	return before, nil
}

// segmentStep returns one head's step over a segment's interior. The step rotates the end-state,
// which was captured at position 0, to the position of the segment in the prompt (HYPIC Eq. 7).
func (s *Packed) segmentStep(layer, h int, p Span) kernel.Step {
	c, seg := s.m.cfg.Linear, s.segments[p.Segment]
	l := s.m.prof.Layer(layer).Linear
	step := kernel.Step{TType: kernel.DType(l.TransitionDType), SType: kernel.DType(l.StateDType)}
	step.T, step.TForm = s.head(p.Segment, layer, h, profile.PartT)
	step.S, step.SForm = s.head(p.Segment, layer, h, profile.PartS)
	turn := turnBy(c.Rope, s.m.linRope.invFreq, p.Start-seg.Spec.Head)
	step.Dims, step.Interleaved, step.Cos, step.Sin = turn.Dims, turn.Interleaved, turn.Cos, turn.Sin
	return step
}

// Rows implements Source.
func (s *Packed) Rows(layer int, k, v []float32) error {
	a, row := s.m.cfg.Attention, s.m.rowSize()
	dt := kernel.DType(s.m.cfg.Storage.KV)
	copy(k, s.from.Layers[layer].K)
	copy(v, s.from.Layers[layer].V)
	for _, p := range s.plan.Spans {
		if p.Segment < 0 {
			continue
		}
		seg := s.segments[p.Segment]
		src, err := s.rows(p.Segment, layer, profile.PartK)
		if err != nil {
			return err
		}
		values, err := s.rows(p.Segment, layer, profile.PartV)
		if err != nil {
			return err
		}
		turned := make([]byte, len(src))
		kernel.RotateRows(turned, row*dt.Size(), a.HeadDim*dt.Size(), src, dt, p.Count, a.KVHeads, a.HeadDim,
			turnBy(a.Rope, s.m.attnRope.invFreq, p.Start-seg.Spec.Head))
		kernel.ToF32(k[p.Start*row:][:p.Count*row], turned, dt)
		kernel.ToF32(v[p.Start*row:][:p.Count*row], values, dt)
	}
	return nil
}

func f32Bytes(x []float32) []byte {
	out := make([]byte, 4*len(x))
	kernel.FromF32(out, x, kernel.F32)
	return out
}

// turnBy returns the rotation over a distance in tokens. For a distance of 0 it is the zero
// Turn, which copies.
func turnBy(r profile.Rope, invFreq []float64, distance int) kernel.Turn {
	if r.Dims == 0 || distance == 0 {
		return kernel.Turn{}
	}
	cos, sin := anglesAt[float32](invFreq, distance)
	return kernel.Turn{Dims: r.Dims, Interleaved: r.Interleaved, Cos: cos, Sin: sin}
}

func anglesAt[F Float](invFreq []float64, pos int) (cos, sin []F) {
	for _, f := range invFreq {
		s, c := math.Sincos(float64(pos) * f)
		cos, sin = append(cos, F(c)), append(sin, F(s))
	}
	return cos, sin
}
