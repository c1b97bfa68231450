package refengine

import (
	"fmt"
)

// Prefixes stores running states under the tokens that precede them. This is ordinary prefix
// caching.
type Prefixes interface {
	// Load returns the saved state of this prompt at the largest of the ascending positions; nil
	// if no state is saved. The caller owns it.
	Load(prompt []uint32, positions []int) (*State[float32], error)
	// Save offers the states at the ascending positions of prompt. Each state extends the one
	// before it.
	Save(prompt []uint32, positions []int, states []*State[float32]) error
}

// PrefixResult is the result and cost of serving a request by prefix caching.
type PrefixResult struct {
	Logits   []float32
	State    *State[float32]
	Computed int   // tokens run
	Reused   int   // tokens before the loaded state
	Cache    error // why the cache could not be used; nil = it was used
	// Keep saves the states at the boundaries inside the computed part. Call it after the first
	// token has been sent, so that the first token does not wait for it.
	Keep func() error
}

// ServePrefix answers a request. It uses the longest saved prefix that ends at one of the
// ascending boundaries, and computes the remaining tokens.
func ServePrefix(m *Model[float32], c Prefixes, prompt []uint32, boundaries []int) (*PrefixResult, error) {
	for i, p := range boundaries {
		if p <= 0 || p >= len(prompt) || i > 0 && p <= boundaries[i-1] {
			return nil, fmt.Errorf("boundary %d at %d of %d tokens: %w", i, p, len(prompt), ErrInvalid)
		}
	}
	out := &PrefixResult{}
	if out.State, out.Cache = c.Load(prompt, boundaries); out.State == nil {
		out.State = m.NewState()
	}
	out.Reused = out.State.Tokens
	out.Computed = len(prompt) - out.Reused
	var positions []int
	var states []*State[float32]
	for _, p := range boundaries {
		if p > out.State.Tokens {
			if _, err := m.Prefill(out.State, prompt[out.State.Tokens:p]); err != nil {
				return nil, err
			}
		}
		if p >= out.Reused {
			positions, states = append(positions, p), append(states, out.State.snapshot())
		}
	}
	var err error
	if out.Logits, err = m.Prefill(out.State, prompt[out.State.Tokens:]); err != nil {
		return nil, err
	}
	out.Keep = func() error {
		m.fillRows(states, out.State)
		return c.Save(prompt, positions, states)
	}
	return out, nil
}

// snapshot copies the parts of the state that later tokens change. It copies no keys and values,
// because their rows are only appended; fillRows sets them later.
func (s *State[F]) snapshot() *State[F] {
	c := &State[F]{Tokens: s.Tokens, Spliced: s.Spliced, Layers: make([]LayerState[F], len(s.Layers))}
	for i, l := range s.Layers {
		c.Layers[i] = LayerState[F]{S: append([]F(nil), l.S...), Conv: l.Conv}
	}
	return c
}

// fillRows sets the rows of snapshots to views of the rows of a later state of the same prompt.
func (m *Model[F]) fillRows(states []*State[F], of *State[F]) {
	for _, s := range states {
		n := s.Tokens * m.rowSize()
		for i, l := range of.Layers {
			if l.K != nil {
				s.Layers[i].K, s.Layers[i].V = l.K[:n:n], l.V[:n:n]
			}
		}
	}
}

// MemoryPrefixes are Prefixes in this process, without eviction.
type MemoryPrefixes map[string]*State[float32]

func prefixName(tokens []uint32) string { return fmt.Sprint(tokens) }

// Load implements Prefixes.
func (c MemoryPrefixes) Load(prompt []uint32, positions []int) (*State[float32], error) {
	for i := len(positions) - 1; i >= 0; i-- {
		if s := c[prefixName(prompt[:positions[i]])]; s != nil {
			return s.Clone(), nil
		}
	}
	return nil, nil
}

// Save implements Prefixes.
func (c MemoryPrefixes) Save(prompt []uint32, positions []int, states []*State[float32]) error {
	for i, p := range positions {
		c[prefixName(prompt[:p])] = states[i].Clone()
	}
	return nil
}
