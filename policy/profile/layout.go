package profile

// PartAlign is the alignment of every part, in bytes: a cache line, and the
// widest vector that kernels load.
const PartAlign = 64

// AllLayers requests the layout of all layers.
const AllLayers = -1

// layoutBuilder places parts one after another.
type layoutBuilder struct{ Layout }

func (b *layoutBuilder) add(layer int, kind PartKind, t DType, shape ...int) {
	part := Part{Layer: layer, Kind: kind, DType: t, Shape: [3]int{1, 1, 1}, Off: b.Bytes, Len: int64(t.Size())}
	for i, n := range shape {
		part.Shape[i] = n
		part.Len *= int64(n)
	}
	b.Parts = append(b.Parts, part)
	b.Bytes += align(part.Len)
}

// align rounds n bytes up to a multiple of PartAlign.
func align(n int64) int64 { return (n + PartAlign - 1) &^ (PartAlign - 1) }

// SegmentLayout returns one rank's layout of a segment with the given number of interior
// tokens. It has T, S and the convolution tail of every linear layer, the tail of every
// convolution layer, and K and V of every attention layer.
func (p *Profile) SegmentLayout(interior int) Layout {
	var b layoutBuilder
	for i := range p.id.Layers {
		switch p.id.Layers[i].Kind {
		case KindLinear:
			l := &p.id.Layers[i].Linear
			p.addTransition(&b, i, l.TransitionDType)
			p.addState(&b, i, l.StateDType)
			p.addConv(&b, i)
		case KindConv:
			p.addConv(&b, i)
		case KindFull, KindMLA, KindWindow:
			p.addRows(&b, i, interior)
		}
	}
	return b.Layout
}

// CheckpointLayout returns one rank's layout of a checkpoint that adds the given number of
// attention rows to its parent. It has the running state in F32 and the convolution tail of
// every linear layer, the tail of every convolution layer, and K and V of every attention
// layer.
func (p *Profile) CheckpointLayout(rows int) Layout {
	var b layoutBuilder
	for i := range p.id.Layers {
		switch p.id.Layers[i].Kind {
		case KindLinear:
			p.addState(&b, i, F32)
			p.addConv(&b, i)
		case KindConv:
			p.addConv(&b, i)
		case KindFull, KindMLA, KindWindow:
			p.addRows(&b, i, rows)
		}
	}
	return b.Layout
}

// SeamLayout returns the layout of the T and S that an engine supplies for a recomputed
// span, in F32. layer is a linear layer or AllLayers.
func (p *Profile) SeamLayout(layer int) Layout {
	var b layoutBuilder
	for _, i := range p.linear {
		if layer == AllLayers || layer == i {
			p.addTransition(&b, i, F32)
			p.addState(&b, i, F32)
		}
	}
	return b.Layout
}

// StatesLayout returns the layout of the reply to the operation compose. For each linear
// layer, it has the F32 state before each of n recomputed spans and then the final state.
// layer is a linear layer or AllLayers.
func (p *Profile) StatesLayout(layer, n int) Layout {
	var b layoutBuilder
	for _, i := range p.linear {
		if layer == AllLayers || layer == i {
			for range n + 1 {
				p.addState(&b, i, F32)
			}
		}
	}
	return b.Layout
}

// RowsLayout returns the layout of the reply to the operation rotate: K and V of the given
// number of rows. layer is an attention layer or AllLayers.
func (p *Profile) RowsLayout(layer, rows int) Layout {
	var b layoutBuilder
	for _, i := range p.attention {
		if layer == AllLayers || layer == i {
			p.addRows(&b, i, rows)
		}
	}
	return b.Layout
}

func (p *Profile) addTransition(b *layoutBuilder, i int, t DType) {
	l := &p.id.Layers[i].Linear
	_, heads := p.RankHeads(i)
	switch l.Transition() {
	case Scalar:
		b.add(i, PartT, F32, heads)
	case Diagonal:
		b.add(i, PartT, t, heads, l.KeyDim)
	case Dense:
		b.add(i, PartT, t, heads, l.KeyDim, l.KeyDim)
	}
}

func (p *Profile) addState(b *layoutBuilder, i int, t DType) {
	l := &p.id.Layers[i].Linear
	_, heads := p.RankHeads(i)
	b.add(i, PartS, t, heads, l.KeyDim, l.ValueDim)
}

func (p *Profile) addConv(b *layoutBuilder, i int) {
	c := &p.id.Layers[i].Linear.Conv
	if c.rows() > 0 {
		b.add(i, PartConv, c.DType, c.rows(), p.RankConvChannels(i))
	}
}

func (p *Profile) addRows(b *layoutBuilder, i, rows int) {
	a := &p.id.Layers[i].Attention
	heads, rows := p.RankKVHeads(i), max(rows, 0)
	b.add(i, PartK, a.DType, rows, heads, a.KeyDim)
	b.add(i, PartV, a.DType, rows, heads, a.ValueDim)
}

// RankConvChannels returns the number of convolution channels of a layer on one
// rank, over all groups.
func (p *Profile) RankConvChannels(layer int) int {
	n := 0
	for _, c := range p.id.Layers[layer].Linear.Conv.Channels {
		n += c / p.id.TPSize
	}
	return n
}

// Elements returns the number of elements of a part before packing.
func (p *Part) Elements() int { return p.Shape[0] * p.Shape[1] * p.Shape[2] }

// Find returns the index of a part in Parts, or -1.
func (l *Layout) Find(layer int, kind PartKind) int {
	for i := range l.Parts {
		if l.Parts[i].Layer == layer && l.Parts[i].Kind == kind {
			return i
		}
	}
	return -1
}
