package tiertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Object is a segment or checkpoint to be put into a subject.
type Object struct {
	tier.Name
	Profile    *profile.Profile
	Tenant     Tenant
	Spec       profile.SegmentSpec // segments
	Tokens     []uint32            // segments
	Packed     profile.Packed      // segments
	Begin, End int                 // segments: the interior; checkpoints: the rows stored
	Parent     tier.Name           // checkpoints
	Bytes      [][]byte            // by rank
	Digests    [][]uint64          // by rank, of each chunk of each part
}

// Segment returns a segment that leads a prompt. The seed determines its key and bytes.
func Segment(p *profile.Profile, t Tenant, seed uint64, tokens int) *Object {
	o := &Object{Profile: p, Tenant: t, Spec: profile.FirstSpec(tokens), End: tokens}
	rng := rand.New(rand.NewPCG(seed, 1))
	for range tokens {
		o.Tokens = append(o.Tokens, rng.Uint32N(1<<17))
	}
	o.Key = p.SegmentKey(t.Salt, o.Spec, o.Tokens)
	o.pack(rng)
	o.Fill(seed)
	return o
}

// pack gives random packed lengths to the parts that a profile with a tolerance may pack.
func (o *Object) pack(rng *rand.Rand) {
	if o.Profile.MaxError() == 0 {
		return
	}
	var lengths []int64
	for _, part := range o.Profile.SegmentLayout(o.End - o.Begin).Parts {
		if o.Profile.MayPack(&part) {
			lengths = append(lengths, profile.PartAlign*rng.Int64N(profile.PackedMost(&part)/profile.PartAlign+1))
		}
	}
	o.Packed = profile.PackedOf(0.01, 0.02, lengths)
}

// Middle returns a segment with a head and a tail, whose tokens are not stored.
func Middle(p *profile.Profile, t Tenant, seed uint64, tokens int) *Object {
	o := Segment(p, t, seed, tokens)
	spec, ok := p.MidSpec(tokens, 3)
	if !ok {
		panic(fmt.Sprintf("tiertest: no interior in %d tokens", tokens))
	}
	begin, n := spec.Interior()
	o.Spec, o.Begin, o.End = spec, begin, begin+n
	o.Key = p.SegmentKey(t.Salt, spec, o.Tokens)
	o.pack(rand.New(rand.NewPCG(seed, 2)))
	o.Fill(seed)
	return o
}

// Primed returns a segment like Middle that was captured after a primer.
func Primed(p *profile.Profile, t Tenant, seed uint64, tokens int) *Object {
	o := Middle(p, t, seed, tokens)
	o.Spec.Primer = profile.NewPrimerID(o.Tokens[:1])
	o.Key = p.SegmentKey(t.Salt, o.Spec, o.Tokens)
	o.Fill(seed)
	return o
}

// Checkpoint returns a checkpoint of a number of rows. If the parameter parent is not nil,
// the checkpoint extends it: it has the parent's profile and tenant, and its rows follow
// the parent's rows.
func Checkpoint(p *profile.Profile, t Tenant, seed uint64, kind tier.CheckpointKind, parent *Object, rows int) *Object {
	o := &Object{Profile: p, Tenant: t, End: rows}
	o.Kind = kind
	o.Key = sha256.Sum256(fmt.Appendf(nil, "checkpoint %d of %s", seed, t.Name))
	if parent != nil {
		o.Begin, o.End, o.Parent = parent.End, parent.End+rows, parent.Name
	}
	o.Fill(seed)
	return o
}

// Layout returns the layout of one rank.
func (o *Object) Layout() profile.Layout {
	l, err := tier.LayoutOf(o.Profile, o.Kind, o.End-o.Begin, o.Packed)
	if err != nil {
		panic(err)
	}
	return l
}

// Fill sets the object's bytes and digests from a seed. Parts are random, of few values,
// or constant, in turn, so that a codec meets every case.
func (o *Object) Fill(seed uint64) {
	l := o.Layout()
	o.Bytes, o.Digests = nil, nil
	for rank := range o.Profile.TPSize() {
		b := make([]byte, l.Bytes)
		rng := rand.New(rand.NewPCG(seed, uint64(rank)<<8|uint64(o.Kind)))
		for i, p := range l.Parts {
			fillPart(b[p.Off:p.Off+p.Len], rng, int((seed+uint64(i))%3))
		}
		o.Bytes = append(o.Bytes, b)
		o.Digests = append(o.Digests, digestsOf(&l, b))
	}
}

func fillPart(b []byte, rng *rand.Rand, how int) {
	masks := [...]uint64{^uint64(0), 0x03ff03ff03ff03ff, 0}
	set := rng.Uint64() &^ masks[how]
	var word [8]byte
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(word[:], rng.Uint64()&masks[how]|set)
		copy(b[i:], word[:])
	}
}

func digestsOf(l *profile.Layout, b []byte) (digests []uint64) {
	for _, p := range l.Parts {
		digests = gpuipc.AppendDigests(digests, b[p.Off:p.Off+p.Len])
	}
	return digests
}

// ErrWrong means that bytes were served that were never put, which must never happen.
var ErrWrong = errors.New("tiertest: wrong bytes")

// Compare returns an error unless content equals the object's.
func (o *Object) Compare(c *Content) error {
	l := o.Layout()
	if len(c.Bytes) != len(o.Bytes) {
		return fmt.Errorf("%v: %d ranks of %d: %w", o, len(c.Bytes), len(o.Bytes), ErrWrong)
	}
	for rank, got := range c.Bytes {
		if int64(len(got)) != l.Bytes {
			return fmt.Errorf("%v: rank %d has %d bytes of %d: %w", o, rank, len(got), l.Bytes, ErrWrong)
		}
		for _, p := range l.Parts {
			if !bytes.Equal(got[p.Off:p.Off+p.Len], o.Bytes[rank][p.Off:p.Off+p.Len]) {
				return fmt.Errorf("%v: rank %d, part %d of layer %d: %w", o, rank, p.Kind, p.Layer, ErrWrong)
			}
		}
		if !slices.Equal(c.Digests[rank], o.Digests[rank]) {
			return fmt.Errorf("%v: digests of rank %d: %w", o, rank, ErrWrong)
		}
	}
	if c.Tokens != nil && !slices.Equal(c.Tokens, o.Tokens) {
		return fmt.Errorf("%v: token ids: %w", o, ErrWrong)
	}
	return nil
}

func (o *Object) String() string {
	kind := map[tier.CheckpointKind]string{0: "segment", tier.Exact: "checkpoint", tier.Spliced: "spliced checkpoint", tier.Rows: "rows checkpoint"}[o.Kind]
	return fmt.Sprintf("%s %x of %q", kind, o.Key[:4], o.Tenant.Name)
}

// Total returns the bytes of all ranks.
func (o *Object) Total() (n int64) {
	for _, b := range o.Bytes {
		n += int64(len(b))
	}
	return n
}
