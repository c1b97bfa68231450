package remote_test

import (
	"math"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

const tolerance = 0.02

// wide is a model whose heads are worth packing.
func wide(t *testing.T, f profile.Family, rope profile.Rope, tolerance, rows float64) *refengine.Model[float32] {
	t.Helper()
	l, a := profile.KindLinear, profile.KindFull
	kernel := 4
	if rope.Dims > 0 {
		kernel = 0
	}
	w, err := modelfile.Seeded(modelfile.Config{
		Name: "packed-test", Vocab: 260, Dim: 48, Hidden: 64, Eps: 1e-6,
		Storage: modelfile.Storage{State: profile.F32, Transition: profile.F16, Conv: profile.F32, KV: profile.BF16, Tolerance: tolerance, RowTolerance: rows},
		Layers:  []profile.Kind{l, l, a, l, a},
		Linear:  modelfile.LinearConfig{Family: f, KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 48, Kernel: kernel, Rope: rope},
		Attention: modelfile.AttentionConfig{
			Heads: 4, KVHeads: 2, HeadDim: 8, Rope: profile.Rope{Dims: 4, Theta: 1000, Interleaved: rope.Interleaved},
		},
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := refengine.New[float32](w)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// inProcess composes leased segments here, by the kernels that the daemon has, out of the
// bytes that were leased.
type inProcess struct{ refengine.Cache }

func (c inProcess) Acquire(keys []profile.SegmentKey, specs []profile.SegmentSpec) (refengine.Leases, []bool, error) {
	leases, held, err := c.Cache.Acquire(keys, specs)
	if err != nil {
		return nil, nil, err
	}
	return inProcessLeases{leases, len(keys)}, held, nil
}

type inProcessLeases struct {
	refengine.Leases
	n int
}

func (l inProcessLeases) Source(m *refengine.Model[float32], plan refengine.Plan, _ []uint32, from *refengine.State[float32]) (refengine.Source[float32], error) {
	segments := make([]refengine.PackedSegment, l.n)
	for i := range segments {
		segments[i] = l.Packed(i)
	}
	return refengine.NewPacked(m, plan, from, segments)
}

// What a profile with a tolerance stores takes fewer bytes, is as near to what was published
// as it says, and is composed by the daemon to the bits that its forms stand for.
func TestPackedSegmentsAreServed(t *testing.T) {
	for _, f := range families {
		packedIsServed(t, f.name, wide(t, f.family, f.rope, 0, 0), wide(t, f.family, f.rope, tolerance, 0))
		packedIsServed(t, f.name+" and rows", wide(t, f.family, f.rope, 0, 0), wide(t, f.family, f.rope, tolerance, tolerance))
	}
	f := families[0]
	packedIsServed(t, "rows alone", wide(t, f.family, f.rope, 0, 0), wide(t, f.family, f.rope, 0, tolerance))
}

func packedIsServed(t *testing.T, name string, exact, packed *refengine.Model[float32]) {
	t.Run(name, func(t *testing.T) {
		for _, inPlace := range []time.Duration{0, time.Minute} {
			socket, _ := started(t)
			client := attached(t, socket)
			if exact.Profile().Fingerprint() == packed.Profile().Fingerprint() {
				t.Fatal("a tolerance is no part of the identity")
			}
			plain, small := stored(t, client, exact), stored(t, client, packed)
			plain.InPlace, small.InPlace = inPlace, inPlace
			segments := [][]uint32{text(3, 90), text(4, 70)}
			r := refengine.Request{First: text(1, 30), Mid: segments, Query: text(2, 9), Seam: 8}
			serve(t, exact, plain, r)
			serve(t, packed, small, r)
			want, got := serve(t, exact, plain, r), serve(t, packed, small, r)
			if got.Reused != want.Reused || got.Reused == 0 {
				t.Fatalf("%d tokens are reused, %d of exact segments", got.Reused, want.Reused)
			}
			here := serve(t, packed, inProcess{small}, r)
			if !sameBits(got.Logits, here.Logits) || !sameState(got.State, here.State) {
				t.Error("the daemon composes other states than its bytes stand for")
			}
			for i, l := range got.State.Layers {
				if d := distance(l.S, want.State.Layers[i].S); d > 0.1 {
					t.Errorf("layer %d: its state is off by %.3f", i, d)
				}
			}
			spec, _ := packed.Profile().MidSpec(90, 8)
			whole, less := leaseOf(t, plain, spec, segments[0]), leaseOf(t, small, spec, segments[0])
			comparePacked(t, packed.Profile(), whole, less)
		}
	})
}

func leaseOf(t *testing.T, s interface {
	Lease(profile.SegmentSpec, []uint32) (*connector.Lease, error)
}, spec profile.SegmentSpec, tokens []uint32) *connector.Lease {
	t.Helper()
	l, err := s.Lease(spec, tokens)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Release)
	return l
}

// floats reads part i of a lease, packed or not, as F32 numbers.
func floats(t *testing.T, l *connector.Lease, i int, dst []float32) {
	t.Helper()
	p := l.Layout().Parts[i]
	b := make([]byte, p.Len)
	err := l.Read(i, b)
	if err == nil {
		err = gpuipc.Floats(dst, b, gpuipc.DType(p.DType), p.Packed, p.Shape, p.Kind == profile.PartK || p.Kind == profile.PartV)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// comparePacked holds a packed segment against the same one as it was published.
func comparePacked(t *testing.T, p *profile.Profile, whole, less *connector.Lease) {
	t.Helper()
	if whole.Bytes() <= less.Bytes() {
		t.Errorf("%d bytes, %d of which are packed", whole.Bytes(), less.Bytes())
	}
	transition, state := less.Errors()
	dense := p.Layer(0).Linear.Transition() == profile.Dense
	dense = dense && p.Tolerance() > 0
	if state <= 0 || max(state, transition) > tolerance*(1+1e-6) || dense != (transition > 0) {
		t.Errorf("errors of %v and %v, tolerance %v", transition, state, tolerance)
	}
	if err := less.Verify(); err != nil {
		t.Error(err)
	}
	written, stored := map[profile.PartKind]int64{}, map[profile.PartKind]int64{}
	for i, part := range less.Layout().Parts {
		written[part.Kind] += whole.Layout().Parts[i].Len
		stored[part.Kind] += part.Len
		n := part.Shape[1] * part.Shape[2]
		got, want := make([]float32, part.Shape[0]*n), make([]float32, part.Shape[0]*n)
		floats(t, less, i, got)
		floats(t, whole, i, want)
		if part.Packed != p.MayPack(&part) {
			t.Errorf("part %d of layer %d: packed %v", part.Kind, part.Layer, part.Packed)
		}
		if !part.Packed {
			if !sameBits(got, want) {
				t.Errorf("part %d of layer %d is another one", part.Kind, part.Layer)
			}
			continue
		}
		if part.Kind == profile.PartK || part.Kind == profile.PartV {
			if d := distance(got, want); d == 0 || d > float64(state) {
				t.Errorf("part %d of layer %d: off by %v, at most %v", part.Kind, part.Layer, d, state)
			}
			continue
		}
		for h := range part.Shape[0] {
			d := distance(got[h*n:][:n], want[h*n:][:n])
			if part.Kind == profile.PartS && d > float64(state) {
				t.Errorf("S of layer %d, head %d: off by %v, at most %v", part.Layer, h, d, state)
			}
		}
	}
	t.Logf("T %d of %d bytes, off by %.4f; S %d of %d, K %d of %d, off by %.4f", stored[profile.PartT], written[profile.PartT], transition,
		stored[profile.PartS], written[profile.PartS], stored[profile.PartK], written[profile.PartK], state)
}

// distance is the Frobenius norm of a difference, relative to want.
func distance(got, want []float32) float64 {
	var d, n float64
	for i, x := range want {
		d += math.Pow(float64(got[i])-float64(x), 2)
		n += float64(x) * float64(x)
	}
	if d == 0 {
		return 0
	}
	return math.Sqrt(d / n)
}
