package torture

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Sizes of items in tokens. A row of keys and values has 1 KiB over all ranks, so items have 50
// KiB to some MiB.
const (
	headTokens  = 8  // tokens excluded from storage on each side of a segment that is not the first
	blockTokens = 64 // of prefix hashes
)

// shape is the model of an item. Some models have several ranks, because the ranks of a segment
// are stored in different places.
type shape struct {
	profile *profile.Profile
	tenant  string
	salt    []byte
}

// newShape returns a model of two linear and two attention layers.
func newShape(name string, ranks int, salt []byte) (*shape, error) {
	const heads = 4
	linear := profile.Layer{Kind: profile.KindLinear, Linear: profile.Linear{
		Family: profile.GDN, KeyHeads: heads, ValueHeads: heads, KeyDim: 32, ValueDim: 32,
		StateDType: profile.F32, TransitionDType: profile.F16,
		Conv: profile.Conv{Kernel: 4, Channels: []int{heads * 32, heads * 32, heads * 32}, DType: profile.BF16},
	}}
	full := profile.Layer{Kind: profile.KindFull, Attention: profile.Attention{
		KVHeads: 2, KeyDim: 64, ValueDim: 64, DType: profile.BF16, Keys: profile.AtZero,
		Rope: profile.Rope{Dims: 32, Theta: 1e6},
	}}
	p, err := profile.New(profile.Identity{
		Model: name, Weights: sha256.Sum256([]byte(name)), Tokenizer: "none", TPSize: ranks,
		Layers: []profile.Layer{linear, full, linear, full},
	})
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", name, err)
	}
	return &shape{profile: p, salt: salt}, nil
}

func (s *shape) ranks() int { return s.profile.TPSize() }

// item is a segment or a checkpoint that may be submitted. It is immutable.
type item struct {
	tier.Name
	number uint64 // determines the item's bytes
	seed   uint64
	shape  *shape
	spec   profile.SegmentSpec // segments
	begin  int                 // checkpoints: first token whose rows are in this item
	end    int
	parent *item
	prompt uint64         // checkpoints: determines the tokens of the chain
	layout profile.Layout // of one rank
}

// newSegment returns a random segment with at least 1 token and at most as many as the parameter
// most says.
func newSegment(s *shape, seed, number uint64, rng *rand.Rand, most int) *item {
	n := between(rng, 1, most)
	spec, ok := s.profile.MidSpec(n, headTokens)
	if !ok || rng.IntN(4) == 0 {
		spec = profile.FirstSpec(n)
	} else if number%3 == 0 {
		spec.Primer = profile.NewPrimerID([]uint32{1, 2, 3})
	}
	i := &item{number: number, seed: seed, shape: s, spec: spec}
	_, interior := spec.Interior()
	i.layout = s.profile.SegmentLayout(interior)
	i.Key = s.profile.SegmentKey(s.salt, spec, i.tokens())
	return i
}

// newCheckpoint returns a random checkpoint that extends parent; nil = the first checkpoint of a
// prompt.
func newCheckpoint(s *shape, seed, number uint64, parent *item, kind tier.CheckpointKind, rng *rand.Rand, most int) *item {
	i := &item{number: number, seed: seed, shape: s, prompt: number, parent: parent}
	i.Kind = kind
	if parent != nil {
		i.prompt, i.begin = parent.prompt, parent.end
	}
	i.end = i.begin + between(rng, 1, most)
	i.layout = s.profile.CheckpointLayout(i.end - i.begin)
	i.Key = s.profile.PrefixHashes(s.salt, blockTokens, tokensOf(seed, i.prompt, i.end), []int{i.end})[0]
	return i
}

// between draws a number in [low, high] whose logarithm is uniformly distributed. Most items are
// therefore small, and the few large items have most of the bytes.
func between(rng *rand.Rand, low, high int) int {
	n := float64(low) * math.Exp(rng.Float64()*math.Log(float64(high)/float64(low)))
	return min(max(int(n), low), high)
}

// tokens returns a segment's token ids.
func (i *item) tokens() []uint32 { return tokensOf(i.seed, i.number, i.spec.Tokens) }

// tokensOf returns the n token ids of an item number. Different numbers have different token
// ids.
func tokensOf(seed, number uint64, n int) []uint32 {
	c := contentOf(seed, number, -1, -1)
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(mix(c.base + uint64(i)))
	}
	return out
}

// content returns the bytes of one part.
func (i *item) content(rank, part int) content { return contentOf(i.seed, i.number, rank, part) }

// fill returns the source of one rank's share, in the form that clients use.
func (i *item) fill(rank int) func(p profile.Part, part int, off int64, dst []byte) error {
	return func(_ profile.Part, part int, off int64, dst []byte) error {
		i.content(rank, part).fill(dst, off)
		return nil
	}
}

// bytes returns the item's size over all ranks.
func (i *item) bytes() int64 { return i.layout.Bytes * int64(i.shape.ranks()) }

func (i *item) isSegment() bool { return i.Kind == 0 }

func (i *item) String() string {
	switch i.Kind {
	case tier.Exact:
		return fmt.Sprintf("checkpoint %x", i.Key[:8])
	case tier.Spliced:
		return fmt.Sprintf("spliced checkpoint %x", i.Key[:8])
	}
	return fmt.Sprintf("segment %x", i.Key[:8])
}
