package ragdemo

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

// modelSeed is the seed of the demo's weights. It is the same in every run, so that a daemon
// with segments of an earlier run gives hits.
const modelSeed = 1

// RunClient runs the demo against the client's daemon. It waits for a daemon until ctx ends. It
// publishes everything at level logged, so that a daemon with a disk still has it after a kill.
func RunClient(ctx context.Context, client *connector.Client, o Options) (*Report, error) {
	m, err := o.model()
	if err != nil {
		return nil, err
	}
	registered, err := client.Register(m.Profile(), connector.Binding{Connector: "refengine", Engine: "ragdemo"})
	if err != nil {
		return nil, err
	}
	if err := registered.WaitReady(ctx); err != nil {
		return nil, err
	}
	if crash := o.Crash; crash != nil {
		o.Crash = func(ctx context.Context) error {
			former := client.Epoch()
			if err := crash(ctx); err != nil {
				return err
			}
			return attachedAgain(ctx, client, registered, former)
		}
	}
	s := &store{Store: remote.New(ctx, client, registered), ctx: ctx, model: registered,
		segments: map[profile.SegmentKey]segment{}, checkpoints: map[profile.PrefixHash]checkpoint{}}
	s.Level = wire.LevelLogged
	return Run(ctx, m, s, o)
}

// attachedAgain waits until the client is attached to another daemon than the one whose epoch is
// former, and the model is registered there.
func attachedAgain(ctx context.Context, client *connector.Client, model *connector.Model, former uint64) error {
	tick := time.NewTicker(time.Millisecond) // the loss of a daemon can only be polled
	defer tick.Stop()
	for client.Epoch() == former {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return model.WaitReady(ctx)
}

// store is the daemon's store. It remembers the published segments and counts in which tier
// they are found.
type store struct {
	*remote.Store
	ctx         context.Context
	model       *connector.Model
	hits        Hits
	segments    map[profile.SegmentKey]segment
	checkpoints map[profile.PrefixHash]checkpoint
}

type segment struct {
	bytes int64
	lost  bool // it had to be published again
}

type checkpoint struct {
	kind     connector.Accept
	position uint32
	bytes    int64
}

// Match implements refengine.Cache.
func (s *store) Match(keys []profile.SegmentKey) ([]bool, error) {
	held, err := s.Store.Match(keys)
	for i := range held {
		if !held[i] {
			continue
		}
		if s.Found().Segments[i].Tier == wire.TierDisk {
			s.hits.Disk++
		} else {
			s.hits.Memory++
		}
	}
	return held, err
}

// Publish implements refengine.Cache.
func (s *store) Publish(key profile.SegmentKey, tokens []uint32, seg *refengine.Segment[float32]) error {
	if err := s.Store.Publish(key, tokens, seg); err != nil {
		return err
	}
	_, interior := seg.Spec.Interior()
	_, again := s.segments[key]
	size := s.model.Profile().SegmentLayout(interior).Bytes
	if s.model.Profile().MaxError() > 0 { // the size depends on the content
		rows, err := s.model.Acquire(s.ctx, []profile.SegmentKey{key}, connector.AcquireOptions{})
		if err != nil {
			return err
		}
		if l := rows[0].Lease; l != nil {
			size = l.Bytes()
			l.Release()
		}
	}
	s.segments[key] = segment{bytes: size, lost: again}
	return nil
}

// Save implements refengine.Prefixes.
func (s *store) Save(prompt []uint32, positions []int, states []*refengine.State[float32]) error {
	if err := s.Store.Save(prompt, positions, states); err != nil {
		return err
	}
	hashes, ok := s.model.PrefixHashes(remote.BlockTokens, prompt, positions)
	if !ok {
		return connector.ErrUnavailable
	}
	parent := 0
	for i, p := range positions {
		if _, known := s.checkpoints[hashes[i]]; !known {
			c := checkpoint{connector.Exact, uint32(p), s.model.Profile().CheckpointLayout(p - parent).Bytes}
			if states[i].Spliced {
				c.kind = connector.Spliced
			}
			s.checkpoints[hashes[i]] = c
		}
		parent = p
	}
	return nil
}

// Hits implements Durable.
func (s *store) Hits() Hits { return s.hits }

// Holdings implements Durable.
func (s *store) Holdings() (Holdings, error) {
	var out Holdings
	var found connector.Found
	q := connector.MatchQuery{}
	for key := range s.segments {
		q.Keys = append(q.Keys, key)
	}
	if err := s.model.Match(s.ctx, &q, &found); err != nil {
		return out, err
	}
	for i, key := range q.Keys {
		if known := s.segments[key]; found.Segments[i].Hit() && !known.lost {
			out.Segments++
			out.SegmentBytes += known.bytes
		}
	}
	for hash, c := range s.checkpoints {
		q := connector.MatchQuery{Accept: c.kind, Positions: []uint32{c.position}, Prefixes: []profile.PrefixHash{hash}}
		if err := s.model.Match(s.ctx, &q, &found); err != nil {
			return out, err
		}
		if found.PrefixTokens == int(c.position) {
			out.Checkpoints++
			out.CheckpointBytes += c.bytes
		}
	}
	return out, nil
}
