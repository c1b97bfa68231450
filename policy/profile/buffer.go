package profile

// BufferLayout returns one rank's layout of a buffer with the given number of rows. A row
// holds what one token adds to the states of all linear layers. Convolution layers have no
// rows. Row n advances the state S of a value head by
//
//	S = g_n * S + k_n u_n^T
//
// which is a decay and a sum of rank one in every family. u is the value times its write
// strength. For the delta rule, k^T S of the decayed state is subtracted from the value
// first: u = beta*(v - g_n*S^T k) (KVBuffer, appendix A.1). With the gates per channel of
// Gated DeltaNet-2, u = w*v - g_n*S^T (b*k).
//
// The parts of a linear layer, in this order, each row by row:
//
//	PartT     decay g, not its logarithm: F32 [rows, value heads], or
//	          [rows, value heads, KeyDim] if Linear.DecayPerKey
//	PartConv  inputs of the convolution [rows, channels], as in its tail
//	PartK     key k as the recurrence reads it, normalised and with rope:
//	          F32 [rows, key heads, KeyDim]
//	PartV     delta value u: F32 [rows, value heads, ValueDim]
func (p *Profile) BufferLayout(rows int) Layout {
	var b layoutBuilder
	for _, i := range p.linear {
		p.addBuffer(&b, i, max(rows, 0))
	}
	return b.Layout
}

func (p *Profile) addBuffer(b *layoutBuilder, i, rows int) {
	l := &p.id.Layers[i].Linear
	keys, values := p.RankHeads(i)
	if l.DecayPerKey() {
		b.add(i, PartT, F32, rows, values, l.KeyDim)
	} else {
		b.add(i, PartT, F32, rows, values)
	}
	if l.Conv.rows() > 0 {
		b.add(i, PartConv, l.Conv.DType, rows, p.RankConvChannels(i))
	}
	b.add(i, PartK, F32, rows, keys, l.KeyDim)
	b.add(i, PartV, F32, rows, values, l.ValueDim)
}

// KeepsRows reports whether rows alone advance all states of the profile. That holds if it
// has linear layers and no convolution layers.
func (p *Profile) KeepsRows() bool { return len(p.linear) > 0 && len(p.ConvLayers()) == 0 }

// EdgeLayout returns one rank's layout of a checkpoint that is stored as rows after an
// earlier checkpoint (KVBuffer §6). For the given number of tokens it has the parts of
// BufferLayout for linear layers and those of CheckpointLayout for attention layers. Layers
// are in order.
func (p *Profile) EdgeLayout(rows int) Layout {
	var b layoutBuilder
	for i := range p.id.Layers {
		switch p.id.Layers[i].Kind {
		case KindLinear:
			p.addBuffer(&b, i, rows)
		case KindFull, KindMLA, KindWindow:
			p.addRows(&b, i, rows)
		}
	}
	return b.Layout
}

// DecayPerKey reports whether every key channel has its own decay.
func (l *Linear) DecayPerKey() bool { return l.Family.Decay() == DecayPerKey }
