package refengine

import (
	"math"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
)

// turns is a growing table of rotary angles: one row of cosines and one of sines per
// position. Several goroutines may read it at once.
type turns[F Float] struct {
	rope    profile.Rope
	invFreq []float64
	mu      sync.Mutex
	cos     []F // [positions, Dims/2]
	sin     []F
}

func newTurns[F Float](r profile.Rope, invFreq []float64) *turns[F] {
	return &turns[F]{rope: r, invFreq: invFreq}
}

// upTo returns the table for positions below end. The rows of the table never change.
func (t *turns[F]) upTo(end int) (cos, sin []F) {
	half := t.rope.Dims / 2
	if half == 0 {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := len(t.cos) / half; p < end; p++ {
		for _, f := range t.invFreq {
			s, c := math.Sincos(float64(p) * f)
			t.cos = append(t.cos, F(c))
			t.sin = append(t.sin, F(s))
		}
	}
	return t.cos[:end*half], t.sin[:end*half]
}

// turn rotates the leading dimensions of one head by the given angles.
func turn[F Float](x, cos, sin []F, interleaved bool) {
	half := len(cos)
	step, second := 1, half
	if interleaved {
		step, second = 2, 1
	}
	for i, c := range cos {
		a, b := x[i*step], x[i*step+second]
		x[i*step] = a*c - b*sin[i]
		x[i*step+second] = b*c + a*sin[i]
	}
}
