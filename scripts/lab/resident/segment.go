package resident

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/gpucheck"
)

// segment is a segment to publish, with random bytes in each part.
type segment struct {
	profile *profile.Profile
	spec    profile.SegmentSpec
	layout  profile.Layout
	tokens  []uint32
	parts   [][]byte
	key     profile.SegmentKey
}

// modelOf returns a hybrid model of gated delta nets, with the given linear layers, and one
// attention layer after every three of them. It has no convolutions, so that no tokens must be
// recomputed between two segments.
func modelOf(z gpucheck.Sizes) (*profile.Profile, error) {
	id := profile.Identity{Model: "gpu-check", Weights: sha256.Sum256([]byte("gpu-check")), Tokenizer: "none", TPSize: 1}
	keys := max(1, z.Heads/2)
	for range z.Layers {
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GDN, KeyHeads: keys, ValueHeads: z.Heads, KeyDim: z.Dim, ValueDim: z.Dim,
			StateDType: profile.F32, TransitionDType: profile.F16,
		}})
	}
	for range max(1, z.Layers/3) {
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindFull, Attention: profile.Attention{
			KVHeads: 2, KeyDim: 256, ValueDim: 256, DType: profile.BF16, Keys: profile.AtZero,
			Rope: profile.Rope{Dims: 64, Theta: 1e7},
		}})
	}
	return profile.New(id)
}

// segments returns the number of segments of a spliced request.
func segments(z gpucheck.Sizes) int { return max(2, z.Segments/2) }

func newSegment(p *profile.Profile, tokens int, seed uint64) segment {
	s := segment{profile: p, spec: profile.SegmentSpec{Role: profile.RoleMid, Tokens: tokens}, layout: p.SegmentLayout(tokens), tokens: make([]uint32, tokens)}
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := range s.tokens {
		s.tokens[i] = rng.Uint32()
	}
	for i := range s.layout.Parts {
		part := &s.layout.Parts[i]
		b := make([]byte, part.Len)
		// All magnitudes are below 2^-3, so that products of transitions with 128 columns
		// neither grow nor vanish.
		switch part.DType {
		case profile.F32:
			for at := 0; at+4 <= len(b); at += 4 {
				binary.LittleEndian.PutUint32(b[at:], math.Float32bits(float32(rng.Float64()-0.5)/4))
			}
		case profile.F16:
			for at := 0; at+2 <= len(b); at += 2 {
				bits := rng.Uint32()
				binary.LittleEndian.PutUint16(b[at:], uint16(bits&0x83ff)|uint16(8+bits>>16&3)<<10)
			}
		default: // BF16 between 2^-6 and 2^-3
			for at := 0; at+2 <= len(b); at += 2 {
				bits := rng.Uint32()
				binary.LittleEndian.PutUint16(b[at:], uint16(bits&0x807f)|uint16(121+bits>>16%3)<<7)
			}
		}
		s.parts = append(s.parts, b)
	}
	return s
}

// same reads the memory of a lease in this process and compares it with the published data.
func (b *bench) same(ctx context.Context, l *connector.DeviceLease) error {
	for i, want := range b.parts {
		got := make([]byte, len(want))
		if err := b.device.Load(ctx, got, l.Part(i)); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("part %d of %d differs", i, len(b.parts))
		}
	}
	return nil
}

// composed lets the daemon compose the same segment twice onto a zero state, for all linear
// layers: once on the GPU and once on the CPU. It compares the results.
func (b *bench) composed(ctx context.Context, resident *connector.DeviceLease) error {
	rows, err := b.model.Acquire(ctx, []profile.SegmentKey{b.key}, connector.AcquireOptions{})
	if err == nil {
		err = rows[0].Err
	}
	if err != nil {
		return err
	}
	defer rows[0].Lease.Release()
	n := resident.Tokens
	plan := func(one connector.Span) *connector.ComposeQuery {
		one.Start, one.Count = 0, n
		two := one
		two.Start = n
		return &connector.ComposeQuery{Layer: connector.AllLayers, Plan: connector.Plan{End: 2 * n, Spans: []connector.Span{one, two}}}
	}
	onGPU, err := b.model.Compose(ctx, plan(connector.Span{Resident: resident}))
	if err != nil {
		return fmt.Errorf("on the GPU: %w", err)
	}
	defer onGPU.Release()
	inMemory, err := b.model.Compose(ctx, plan(connector.Span{Lease: rows[0].Lease}))
	if err != nil {
		return fmt.Errorf("in memory: %w", err)
	}
	defer inMemory.Release()
	want := inMemory.Bytes()
	ref := onGPU.Ref()
	if len(want) == 0 || ref.Len() != int64(len(want)) {
		return fmt.Errorf("%d bytes of states on the GPU, %d in memory", ref.Len(), len(want))
	}
	got := make([]byte, len(want))
	if err := b.device.Load(ctx, got, ref); err != nil {
		return err
	}
	return alike(got, want)
}

// alike compares F32 numbers by their root mean square error.
func alike(got, want []byte) error {
	var off, size float64
	for i := 0; i < len(want); i += 4 {
		g := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[i:])))
		w := float64(math.Float32frombits(binary.LittleEndian.Uint32(want[i:])))
		off, size = off+(g-w)*(g-w), size+w*w
	}
	if size == 0 {
		return errors.New("the states are zero")
	}
	// Both results are rounded, so the bound is twice the error of one result.
	if e := math.Sqrt(off / size); !(e <= 2e-6) {
		return fmt.Errorf("relative error %.3g, want 2e-6 at most", e)
	}
	return nil
}

// quantile returns a quantile of samples, by nearest rank.
func quantile(samples []float64, q float64) float64 {
	slices.Sort(samples)
	return samples[max(0, int(math.Ceil(q*float64(len(samples))))-1)]
}
