package remote

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// BlockTokens is the block of prefix hashes. Positions need not be multiples.
const BlockTokens = 64

// Load implements refengine.Prefixes with exact checkpoints, including those stored as
// rows.
func (s *Store) Load(prompt []uint32, positions []int) (*refengine.State[float32], error) {
	hashes, ok := s.model.PrefixHashes(BlockTokens, prompt, positions)
	if !ok {
		return nil, connector.ErrUnavailable
	}
	const accept = connector.Exact | connector.Rows
	q := connector.MatchQuery{Accept: accept, Prefixes: hashes}
	for _, p := range positions {
		q.Positions = append(q.Positions, uint32(p))
	}
	if err := s.model.Match(s.ctx, &q, &s.found); err != nil || s.found.PrefixTokens == 0 {
		return nil, err
	}
	c, ok, err := s.model.Load(s.ctx, hashes[s.found.PrefixIndex], accept, connector.AcquireOptions{Wait: s.wait()})
	if err != nil || !ok {
		return nil, err
	}
	defer c.Release()
	return s.unfold(c)
}

// unfold copies a checkpoint into a state. Attention rows come from every node of the chain.
// States and convolution tails come from the last node, or are rebuilt if the checkpoint is
// stored as rows.
func (s *Store) unfold(c *connector.Checkpoint) (*refengine.State[float32], error) {
	st := &refengine.State[float32]{Tokens: c.Tokens, Layers: make([]refengine.LayerState[float32], s.prof.Layers())}
	layout, read := c.Last().Layout(), c.Last().Read
	if c.Kind == connector.Rows {
		slot, err := s.model.ReplayRows(s.ctx, c, c.Tokens, nil)
		if err != nil {
			return nil, err
		}
		defer slot.Release()
		layout = s.prof.CheckpointLayout(0)
		states := slices.Clone(slot.Bytes())
		if !slot.Valid() { // the copied bytes may belong to another owner
			return nil, connector.ErrGone
		}
		read = func(i int, dst []byte) error {
			copy(dst, states[layout.Parts[i].Off:])
			return nil
		}
	}
	for _, i := range s.prof.LinearLayers() {
		var err error
		if st.Layers[i].S, err = elements(layout, i, profile.PartS, read); err != nil {
			return nil, err
		}
		if st.Layers[i].Conv, err = elements(layout, i, profile.PartConv, read); err != nil {
			return nil, err
		}
	}
	for n := range c.Nodes {
		node := &c.Nodes[n]
		for _, i := range s.prof.AttentionLayers() {
			k, err := elements(node.Layout(), i, profile.PartK, node.Read)
			if err != nil {
				return nil, err
			}
			v, err := elements(node.Layout(), i, profile.PartV, node.Read)
			if err != nil {
				return nil, err
			}
			st.Layers[i].K, st.Layers[i].V = append(st.Layers[i].K, k...), append(st.Layers[i].V, v...)
		}
	}
	return st, nil
}

// Save implements refengine.Prefixes. Each state extends the one before it, so rows are stored
// once. Spliced states are saved as checkpoints of kind Spliced. If the daemon has no room for a
// state, Save does not save later ones.
func (s *Store) Save(prompt []uint32, positions []int, states []*refengine.State[float32]) error {
	hashes, ok := s.model.PrefixHashes(BlockTokens, prompt, positions)
	if !ok {
		return connector.ErrUnavailable
	}
	q := connector.SaveQuery{Level: s.Level}
	for i, p := range positions {
		if states[i].Pages != nil {
			return fmt.Errorf("state to save at %d whose rows lie in pages: %w", p, refengine.ErrInvalid)
		}
		if states[i].Tokens != p {
			return fmt.Errorf("state of %d tokens to save at %d: %w", states[i].Tokens, p, refengine.ErrInvalid)
		}
		q.Kind = connector.Exact
		if states[i].Spliced {
			q.Kind = connector.Spliced
		}
		q.Hash, q.Tokens = hashes[i], p
		q.Source.Fill = s.checkpointFill(states[i], q.ParentTokens)
		_, err := s.model.Save(s.ctx, &q)
		if err != nil && !errors.Is(err, connector.ErrExists) {
			return unlessRefused(err)
		}
		q.Parent, q.ParentTokens = hashes[i], p
	}
	return nil
}

func (s *Store) checkpointFill(st *refengine.State[float32], parent int) func(p profile.Part, i int, off int64, dst []byte) error {
	return func(p profile.Part, _ int, off int64, dst []byte) error {
		l, values := &st.Layers[p.Layer], []float32(nil)
		switch p.Kind {
		case profile.PartS:
			values = l.S
		case profile.PartConv:
			values = l.Conv
		case profile.PartK:
			values = l.K[parent*p.Shape[1]*p.Shape[2]:]
		case profile.PartV:
			values = l.V[parent*p.Shape[1]*p.Shape[2]:]
		}
		return fill(dst, values, p.DType, off)
	}
}

// SaveRows saves checkpoints of kind Rows at the ascending positions, each as an extension of
// the previous one. A later Load can rebuild the states at any of these positions. A checkpoint
// must already be saved at parent, with states or as rows; 0 = the start of the prompt. st has
// the keys and values of attention layers.
func (s *Store) SaveRows(prompt []uint32, parent int, positions []int, rows *refengine.Rows, st *refengine.State[float32]) error {
	hashes, ok := s.model.PrefixHashes(BlockTokens, prompt, append([]int{parent}, positions...))
	if !ok {
		return connector.ErrUnavailable
	}
	if st.Spliced {
		return fmt.Errorf("rows behind a spliced state: %w", refengine.ErrInvalid)
	}
	q := connector.SaveQuery{Level: s.Level, Kind: connector.Rows}
	if parent > 0 {
		q.Parent, q.ParentTokens = hashes[0], parent
	}
	for i, p := range positions {
		if q.ParentTokens < rows.Begin || p > rows.End || p > st.Tokens {
			return fmt.Errorf("rows of tokens [%d, %d) to save at %d behind %d: %w", rows.Begin, rows.End, p, q.ParentTokens, refengine.ErrInvalid)
		}
		q.Hash, q.Tokens = hashes[i+1], p
		q.Source.Fill = s.rowsFill(rows, st, q.ParentTokens)
		_, err := s.model.Save(s.ctx, &q)
		if err != nil && !errors.Is(err, connector.ErrExists) {
			return unlessRefused(err)
		}
		q.Parent, q.ParentTokens = hashes[i+1], p
	}
	return nil
}

// SaveBehind saves the tokens after position parent, which a decoder with the option Keep has
// computed. The slice all has all tokens of the sequence. parent is a position with a saved
// checkpoint; 0 = the start. If rows take fewer bytes than the states at the end
// (profile.RowBytes), SaveBehind saves a checkpoint of kind Rows at every step-th token;
// otherwise it saves the states at the end.
func (s *Store) SaveBehind(all []uint32, parent, step int, d *refengine.Decoder) error {
	rows, st := d.Kept(), d.Settle()
	if st.Tokens != len(all) || parent < 0 || parent >= len(all) || step < 1 {
		return fmt.Errorf("%d tokens behind %d in steps of %d, %d are computed: %w", len(all), parent, step, st.Tokens, refengine.ErrInvalid)
	}
	if n := len(all) - parent; rows == nil || rows.Begin > parent || n > s.prof.RowBytes().Smaller() {
		return s.saveStates(all, parent, st)
	}
	var positions []int
	for at := parent + step; at < len(all); at += step {
		positions = append(positions, at)
	}
	return s.SaveRows(all, parent, append(positions, len(all)), rows, st)
}

func (s *Store) saveStates(all []uint32, parent int, st *refengine.State[float32]) error {
	hashes, ok := s.model.PrefixHashes(BlockTokens, all, []int{parent, len(all)})
	if !ok {
		return connector.ErrUnavailable
	}
	q := connector.SaveQuery{Level: s.Level, Kind: connector.Exact, Hash: hashes[1], Tokens: len(all)}
	if st.Spliced {
		q.Kind = connector.Spliced
	}
	if parent > 0 {
		q.Parent, q.ParentTokens = hashes[0], parent
	}
	q.Source.Fill = s.checkpointFill(st, parent)
	_, err := s.model.Save(s.ctx, &q)
	return unlessRefused(err)
}

func (s *Store) rowsFill(rows *refengine.Rows, st *refengine.State[float32], from int) func(p profile.Part, i int, off int64, dst []byte) error {
	attention := s.checkpointFill(st, from)
	return func(p profile.Part, i int, off int64, dst []byte) error {
		if s.prof.Layer(p.Layer).Kind != profile.KindLinear {
			return attention(p, i, off, dst)
		}
		values := rows.Layers[p.Layer].Part(p.Kind)
		return fill(dst, values[(from-rows.Begin)*p.Shape[1]*p.Shape[2]:], p.DType, off)
	}
}
