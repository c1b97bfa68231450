package refengine

import (
	"fmt"
)

// running is the surroundings of a plain prefill: its only span continues the state st, which is
// updated in place.
type running[F Float] struct {
	m  *Model[F]
	st *State[F]
}

func (r running[F]) left(layer, _ int) ([]F, error) { return r.st.Layers[layer].Conv, nil }

func (r running[F]) states(layer int, _ []Tuple[F]) ([][]F, error) {
	return [][]F{r.st.Layers[layer].S}, nil
}

func (r running[F]) rows(layer, end int) (kept[F], error) {
	return r.st.rows(layer, end, r.m.rowSize())
}

func (r running[F]) leave(layer int, _, conv []F) { r.st.Layers[layer].Conv = conv }

// extended returns s grown to n elements, with spare capacity.
func extended[F Float](s []F, n int) []F {
	if n <= cap(s) {
		return s[:n]
	}
	out := make([]F, n, n+n/2)
	copy(out, s)
	return out
}

// prefillChunk is the number of rows per walk in a long prefill. It is large enough for
// efficient matrix products, and small enough for the second-level cache.
const prefillChunk = 256

// Prefill continues a state over tokens and returns the logits after the last.
// After an error the state is undefined.
func (m *Model[F]) Prefill(st *State[F], tokens []uint32) (logits []F, err error) {
	if len(tokens) == 0 {
		return nil, fmt.Errorf("prefill of no tokens: %w", ErrInvalid)
	}
	for lo := 0; lo < len(tokens); lo += prefillChunk {
		chunk := tokens[lo:min(lo+prefillChunk, len(tokens))]
		logits, err = m.run(m.continuing(st, len(chunk)), chunk)
		if err != nil {
			return nil, err
		}
		st.Tokens += len(chunk)
	}
	return logits, nil
}

func (m *Model[F]) continuing(st *State[F], n int) *walk[F] {
	return &walk[F]{spans: []rowSpan{{0, n, st.Tokens}}, around: running[F]{m, st}}
}

// Decode appends n tokens greedily, starting from the logits of the last token, and returns
// them. In float32 it uses a Decoder, so the state equals that of Prefill only up to rounding.
func (m *Model[F]) Decode(st *State[F], logits []F, n int) ([]uint32, error) {
	if m, ok := any(m).(*Model[float32]); ok {
		d := NewDecoder(m, any(st).(*State[float32]), DecoderOptions{})
		defer d.Settle()
		return d.Generate(any(logits).([]float32), n)
	}
	out := make([]uint32, 0, n)
	for range n {
		next := Greedy(logits)
		out = append(out, next)
		var err error
		if logits, err = m.Prefill(st, []uint32{next}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Greedy returns the token with the largest logit, the lowest of equals.
func Greedy[F Float](logits []F) uint32 {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	return uint32(best)
}
