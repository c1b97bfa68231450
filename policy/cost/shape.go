package cost

// Shape describes the cached bytes of a model, over all layers and all tensor-parallel ranks.
type Shape struct {
	KVBytes      int64 // rows of one token in every attention layer
	StateBytes   int64 // running states of every recurrent layer: one checkpoint
	ConvBytes    int64 // convolution tails of every recurrent layer
	DeltaBytes   int64 // rows of one token in every recurrent layer, which advance the layer's state; 0 = not kept
	SegmentBytes int64 // transitions, end-states and convolution tails of one segment, without rows; 0 = as many as a checkpoint
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

// SegmentTotalBytes returns the bytes of a segment with that many tokens between its seams.
func (s Shape) SegmentTotalBytes(interior int) int64 {
	state := s.SegmentBytes
	if state == 0 {
		state = s.CheckpointBytes()
	}
	return state + s.RowBytes(interior)
}
