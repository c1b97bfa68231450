package plan

import (
	"math"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// rope has the parameters of a rotary position embedding.
type rope struct {
	dims        int
	interleaved bool
	invFreq     []float64
}

func (a rope) equal(b rope) bool {
	return a.dims == b.dims && a.interleaved == b.interleaved && slices.Equal(a.invFreq, b.invFreq)
}

// distinctRopes lists the distinct ropes of a profile. The result ofLayer has the index of
// each layer's rope; -1 = the layer's keys are not rotated.
func distinctRopes(p *profile.Profile) (ropes []rope, ofLayer []int) {
	ofLayer = make([]int, p.Layers())
	for i := range ofLayer {
		ofLayer[i] = -1
		spec := p.Rope(i)
		if spec.Dims == 0 {
			continue
		}
		r := rope{dims: spec.Dims, interleaved: spec.Interleaved, invFreq: p.InvFreq(i)}
		at := slices.IndexFunc(ropes, r.equal)
		if at < 0 {
			at = len(ropes)
			ropes = append(ropes, r)
		}
		ofLayer[i] = at
	}
	return ropes, ofLayer
}

// rotations computes the rotations of one call, each pair of rope and distance only once.
type rotations struct {
	geometry *Geometry
	known    map[rotationKey]*gpuipc.Rotation
}

type rotationKey struct{ rope, by int }

// by returns the rotation of a layer's keys by a distance in tokens; nil = none. It
// computes angles in float64, since a float32 angle at position 10^6 is off by 0.06.
func (t *rotations) by(layer, distance int) *gpuipc.Rotation {
	at := t.geometry.ropeOf[layer]
	if at < 0 || distance == 0 {
		return nil
	}
	key := rotationKey{at, distance}
	if r := t.known[key]; r != nil {
		return r
	}
	spec := &t.geometry.ropes[at]
	n := len(spec.invFreq)
	r := &gpuipc.Rotation{Dims: spec.dims, Interleaved: spec.interleaved, Cos: make([]float32, n), Sin: make([]float32, n)}
	for i, f := range spec.invFreq {
		sin, cos := math.Sincos(float64(distance) * f)
		r.Cos[i], r.Sin[i] = float32(cos), float32(sin)
	}
	if t.known == nil {
		t.known = map[rotationKey]*gpuipc.Rotation{}
	}
	t.known[key] = r
	return r
}

// rotate sets how a job rotates a segment's keys to their positions. Keys that are stored
// rotated, as if the segment began at position 0, all need the same rotation. Keys that
// are stored unrotated need a separate rotation for each row.
func (t *rotations) rotate(job *gpuipc.RotateJob, layer int, sp *heldSpan) {
	at := t.geometry.ropeOf[layer]
	if at < 0 {
		return
	}
	if t.geometry.Layer(layer).Attention.Keys == profile.Unrotated {
		spec := &t.geometry.ropes[at]
		job.PerRow = &gpuipc.RowRotation{
			Dims: spec.dims, Interleaved: spec.interleaved, Position: sp.Start, InvFreq: spec.invFreq,
		}
		return
	}
	job.Turn = t.by(layer, sp.origin)
}
