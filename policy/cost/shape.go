package cost

// Work is the floating-point work of layers of one kind, all of them together,
// for a prefill of L tokens: PerToken·L + PerTokenSquared·L².
type Work struct {
	PerToken        float64
	PerTokenSquared float64
	Window          int // tokens that a token looks back on: L² becomes L·min(L, Window); 0 = all
}

// FLOPs is the work of a prefill of that many tokens from an empty cache.
func (w Work) FLOPs(tokens int) float64 {
	if tokens <= 0 {
		return 0
	}
	l, span := float64(tokens), float64(tokens)
	if w.Window > 0 {
		span = min(span, float64(w.Window))
	}
	return w.PerToken*l + w.PerTokenSquared*l*span
}

func (w *Work) add(o Work) {
	w.PerToken += o.PerToken
	w.PerTokenSquared += o.PerTokenSquared
	w.Window = max(w.Window, o.Window)
}

// Shape is what a model computes and what its cache keeps, over all layers and
// all tensor-parallel ranks. The zero Work of every kind means that only bytes
// are known: then milliseconds have to be measured.
type Shape struct {
	Attention Work // full and MLA layers
	Window    Work // sliding-window layers
	Linear    Work // recurrent layers: linear attention, SSM
	MLP       Work

	KVBytes      int64 // rows of one token in every attention layer
	StateBytes   int64 // running states of every recurrent layer: one checkpoint
	ConvBytes    int64 // convolution tails that go with them
	DeltaBytes   int64 // rows of one token in every recurrent layer: what moves its state on; 0 = not kept
	SegmentBytes int64 // transitions, end-states and convolution tails of one segment, rows aside; 0 = as a checkpoint
}

// FLOPs is the work of a prefill of that many tokens from an empty cache; that
// of [a, b) is FLOPs(b) - FLOPs(a).
func (s Shape) FLOPs(tokens int) float64 {
	return s.Attention.FLOPs(tokens) + s.Window.FLOPs(tokens) + s.Linear.FLOPs(tokens) + s.MLP.FLOPs(tokens)
}

// Known reports whether the shape counts work at all.
func (s Shape) Known() bool { return s.FLOPs(1) > 0 }

// Shares are the parts of FLOPs that attention (windows included), recurrent
// layers and MLPs take; they add up to one.
func (s Shape) Shares(tokens int) (attention, linear, mlp float64) {
	all := s.FLOPs(tokens)
	if all == 0 {
		return 0, 0, 0
	}
	return (s.Attention.FLOPs(tokens) + s.Window.FLOPs(tokens)) / all, s.Linear.FLOPs(tokens) / all, s.MLP.FLOPs(tokens) / all
}

// CheckpointBytes is one checkpoint without attention rows.
func (s Shape) CheckpointBytes() int64 { return s.StateBytes + s.ConvBytes }

// RowBytes is the attention rows of that many tokens.
func (s Shape) RowBytes(tokens int) int64 { return s.KVBytes * int64(max(tokens, 0)) }

// PrefixBytes is a prefix of that many tokens with its rows and the given number
// of checkpoints on it.
func (s Shape) PrefixBytes(tokens, checkpoints int) int64 {
	return s.RowBytes(tokens) + int64(checkpoints)*s.CheckpointBytes()
}

// KeptBytes is a prefix whose last tokens, behind a checkpoint or behind nothing, are kept
// as rows. Of these bytes, rebuilding the states at its end goes through rebuild.
func (s Shape) KeptBytes(checkpoint, tokens int) (all, rebuild int64) {
	rebuild = s.CheckpointBytes() + s.DeltaBytes*int64(max(tokens-checkpoint, 0))
	if all = rebuild + s.RowBytes(tokens); checkpoint == 0 {
		all -= s.CheckpointBytes()
	}
	return all, rebuild
}

// EveryBlockBytes is a prefix with a checkpoint at the end of each block, the
// last one of them possibly short: what a paged cache keeps.
func (s Shape) EveryBlockBytes(tokens, blockTokens int) int64 {
	blockTokens = max(blockTokens, 1)
	return s.PrefixBytes(tokens, (max(tokens, 0)+blockTokens-1)/blockTokens)
}

// SegmentTotalBytes is a segment whose interior has that many tokens.
func (s Shape) SegmentTotalBytes(interior int) int64 {
	state := s.SegmentBytes
	if state == 0 {
		state = s.CheckpointBytes()
	}
	return state + s.RowBytes(interior)
}

// SegmentBreakEven is the number of tokens from which on a segment spends more
// bytes on its rows than on transitions and end-states; 0 without rows.
func (s Shape) SegmentBreakEven() int {
	if s.KVBytes == 0 {
		return 0
	}
	return int((s.SegmentTotalBytes(0) + s.KVBytes - 1) / s.KVBytes)
}

// FLOPsPerByte is the work that reuse of a prefix of that many tokens saves for
// each byte of its rows and of one checkpoint: Marconi's efficiency.
func (s Shape) FLOPsPerByte(tokens int) float64 {
	bytes := s.RowBytes(tokens) + s.CheckpointBytes()
	if bytes == 0 {
		return 0
	}
	return s.FLOPs(tokens) / float64(bytes)
}
