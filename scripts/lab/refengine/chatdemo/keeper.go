package chatdemo

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

// State is a running state of the reference engine.
type State = refengine.State[float32]

// Store saves states under the tokens that precede them, and advises at which positions to save
// states. The daemon is a Store; tests use memory.
type Store interface {
	refengine.Prefixes
	// Advise returns the positions at which a state is worth saving, and how many leading tokens
	// were seen before. The slice all has the tokens of the prompt and of its answer, and output is
	// the number of tokens of the answer. from is the position of the last saved state.
	Advise(all []uint32, from, output int, cuts []int, took []Sample) (positions []int, seen int, err error)
	// Kept counts the states that Save has stored so far.
	Kept() (states int, bytes int64)
}

// Sample is a measured prefill.
type Sample = connector.Sample

// adviseBlock is the block size of the advised way: all its positions are multiples of it. An
// engine saves states at block boundaries, and looks for states at each of them.
const adviseBlock = 16

// adviseMost is the number of states to save per prompt, and per answer. The way with a state at
// every message saves the same number per turn.
const adviseMost = 1

// store is the daemon's store for one way.
type store struct {
	*remote.Store
	ctx   context.Context
	model *connector.Model
	kept  map[profile.PrefixHash]int64 // bytes
	total int64
}

func newStore(ctx context.Context, client *connector.Client, m *refengine.Model[float32]) (*store, error) {
	registered, err := client.Register(m.Profile(), connector.Binding{Connector: "refengine", Engine: "chatdemo"})
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := registered.WaitReady(wait); err != nil {
		return nil, err
	}
	return &store{Store: remote.New(ctx, client, registered), ctx: ctx, model: registered, kept: map[profile.PrefixHash]int64{}}, nil
}

// Save implements refengine.Prefixes, and counts the states that are new to the daemon.
func (s *store) Save(prompt []uint32, positions []int, states []*State) error {
	if err := s.Store.Save(prompt, positions, states); err != nil {
		return err
	}
	hashes, ok := s.model.PrefixHashes(remote.BlockTokens, prompt, positions)
	if !ok {
		return connector.ErrUnavailable
	}
	parent := 0
	for i, p := range positions {
		if _, known := s.kept[hashes[i]]; !known {
			s.kept[hashes[i]] = s.model.Profile().CheckpointLayout(p - parent).Bytes
			s.total += s.kept[hashes[i]]
		}
		parent = p
	}
	return nil
}

// Kept implements Store.
func (s *store) Kept() (states int, bytes int64) { return len(s.kept), s.total }

// Advise implements Store.
func (s *store) Advise(all []uint32, from, output int, cuts []int, took []Sample) ([]int, int, error) {
	found := connector.Found{PrefixTokens: from}
	advice, err := s.model.Advise(s.ctx, &connector.AdviseQuery{
		Tokens: all, Output: output, Record: true, BlockTokens: adviseBlock, Found: &found, Cuts: cuts, Samples: took, MaxCheckpoints: adviseMost,
	})
	if err != nil {
		return nil, 0, err
	}
	var positions []int
	for _, c := range advice.Checkpoints {
		if c.Save && c.Tokens > from {
			positions = append(positions, c.Tokens)
		}
	}
	return positions, advice.SeenTokens, nil
}
