package cost

// Work is the floating-point work of all layers of one kind for a prefill of L
// tokens: PerToken·L + PerTokenSquared·L².
type Work struct {
	PerToken        float64
	PerTokenSquared float64
	Window          int // lookback in tokens: L² becomes L·min(L, Window); 0 = no limit
}

// FLOPs returns the work of a prefill of that many tokens from an empty cache.
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

// Shape describes the computation and the cached bytes of a model, over all layers and all
// tensor-parallel ranks. If the Work of every kind is zero, only the bytes are known and
// milliseconds have to be measured.
type Shape struct {
	Attention Work // full and MLA layers
	Window    Work // sliding-window layers
	Linear    Work // recurrent layers: linear attention, SSM
	MLP       Work

	KVBytes      int64 // rows of one token in every attention layer
	StateBytes   int64 // running states of every recurrent layer: one checkpoint
	ConvBytes    int64 // convolution tails of every recurrent layer
	DeltaBytes   int64 // rows of one token in every recurrent layer, which advance the layer's state; 0 = not kept
	SegmentBytes int64 // transitions, end-states and convolution tails of one segment, without rows; 0 = as many as a checkpoint
}

// FLOPs returns the work of a prefill of that many tokens from an empty cache. The work of
// the tokens [a, b) is FLOPs(b) - FLOPs(a).
func (s Shape) FLOPs(tokens int) float64 {
	return s.Attention.FLOPs(tokens) + s.Window.FLOPs(tokens) + s.Linear.FLOPs(tokens) + s.MLP.FLOPs(tokens)
}

// Known reports whether the shape has any work.
func (s Shape) Known() bool { return s.FLOPs(1) > 0 }

// Shares returns the shares of FLOPs that attention (with windows), recurrent layers and
// MLPs have. They add up to one, or are all zero if there is no work.
func (s Shape) Shares(tokens int) (attention, linear, mlp float64) {
	all := s.FLOPs(tokens)
	if all == 0 {
		return 0, 0, 0
	}
	return (s.Attention.FLOPs(tokens) + s.Window.FLOPs(tokens)) / all, s.Linear.FLOPs(tokens) / all, s.MLP.FLOPs(tokens) / all
}

// CheckpointBytes returns the bytes of a checkpoint without attention rows.
func (s Shape) CheckpointBytes() int64 { return s.StateBytes + s.ConvBytes }

// RowBytes returns the bytes of the attention rows of that many tokens.
func (s Shape) RowBytes(tokens int) int64 { return s.KVBytes * int64(max(tokens, 0)) }

// PrefixBytes returns the bytes of a prefix of that many tokens with its rows
// and the given number of checkpoints.
func (s Shape) PrefixBytes(tokens, checkpoints int) int64 {
	return s.RowBytes(tokens) + int64(checkpoints)*s.CheckpointBytes()
}

// KeptBytes returns the bytes of a prefix of the given number of tokens, whose last
// checkpoint is at token checkpoint (0 = it has none) and which keeps buffered rows for all
// later tokens. The second result is the part of these bytes that is read to rebuild the
// states at the end of the prefix. It counts one state even if there is no checkpoint.
func (s Shape) KeptBytes(checkpoint, tokens int) (all, rebuild int64) {
	rebuild = s.CheckpointBytes() + s.DeltaBytes*int64(max(tokens-checkpoint, 0))
	if all = rebuild + s.RowBytes(tokens); checkpoint == 0 {
		all -= s.CheckpointBytes()
	}
	return all, rebuild
}

// EveryBlockBytes returns the bytes of a prefix with a checkpoint at the end of each block,
// as in a paged cache. The last block may be short.
func (s Shape) EveryBlockBytes(tokens, blockTokens int) int64 {
	blockTokens = max(blockTokens, 1)
	return s.PrefixBytes(tokens, (max(tokens, 0)+blockTokens-1)/blockTokens)
}

// SegmentTotalBytes returns the bytes of a segment with that many tokens between its seams.
func (s Shape) SegmentTotalBytes(interior int) int64 {
	state := s.SegmentBytes
	if state == 0 {
		state = s.CheckpointBytes()
	}
	return state + s.RowBytes(interior)
}

// SegmentBreakEven returns the number of tokens from which a segment has at least as many
// bytes of rows as of transitions and end-states; 0 for a model without rows.
func (s Shape) SegmentBreakEven() int {
	if s.KVBytes == 0 {
		return 0
	}
	return int((s.SegmentTotalBytes(0) + s.KVBytes - 1) / s.KVBytes)
}

// FLOPsPerByte returns Marconi's efficiency: the work that reuse of a prefix saves, per
// byte of the prefix's rows and one checkpoint.
func (s Shape) FLOPsPerByte(tokens int) float64 {
	bytes := s.RowBytes(tokens) + s.CheckpointBytes()
	if bytes == 0 {
		return 0
	}
	return s.FLOPs(tokens) / float64(bytes)
}
