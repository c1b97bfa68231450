package refengine

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
)

const (
	gatedTokens = 40
	gatedKeys   = 7
	gatedValues = 5
)

// gated is a head with gates per channel b and w, whose keys, values and decays
// are drawn. erase and written are what a recurrence reads of it.
type gated struct {
	k, v, decay, b, w []float64
	erase, written    []float64
}

func drawGated(sameGates bool) *gated {
	rng := rand.New(rand.NewPCG(5, 7))
	draw := func(n int) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = rng.Float64()
		}
		return out
	}
	g := &gated{
		k: draw(gatedTokens * gatedKeys), v: draw(gatedTokens * gatedValues), decay: draw(gatedTokens * gatedKeys),
		b: draw(gatedTokens * gatedKeys), w: draw(gatedTokens * gatedValues),
	}
	for t := range gatedTokens {
		unit(g.k[t*gatedKeys:][:gatedKeys])
		for i := t * gatedKeys; i < (t+1)*gatedKeys; i++ {
			g.decay[i] = 0.9 + 0.1*g.decay[i]
			if sameGates {
				g.b[i] = g.b[t*gatedKeys]
			}
		}
		for j := t * gatedValues; sameGates && j < (t+1)*gatedValues; j++ {
			g.w[j] = g.b[t*gatedKeys]
		}
	}
	for i := range g.k {
		g.erase = append(g.erase, g.b[i]*g.k[i])
	}
	for j := range g.v {
		g.written = append(g.written, g.w[j]*g.v[j])
	}
	return g
}

func (g *gated) head() head[float64] {
	return head[float64]{
		n: gatedTokens, k: g.k, sk: gatedKeys, v: g.written, sv: gatedValues, decay: g.decay, sdecay: gatedKeys, perKey: 1,
		beta: []float64{1}, delta: true, erase: g.erase, serase: gatedKeys,
	}
}

func (h head[F]) tuple() (t, s []F) {
	t, s = make([]F, gatedKeys*gatedKeys), make([]F, gatedKeys*gatedValues)
	scratch := make([]F, gatedKeys)
	h.run(s, gatedKeys, gatedValues, nil, 0, scratch)
	h.cumulate(t, profile.Dense, gatedKeys, scratch)
	return t, s
}

// The equation of Gated DeltaNet-2 (arXiv 2605.22791) with its matrices written
// out: S = (I - k (b*k)^T) D S + k (w*v)^T.
func TestGatesPerChannelAreTheirEquation(t *testing.T) {
	g := drawGated(false)
	product, state := make([]float64, gatedKeys*gatedKeys), make([]float64, gatedKeys*gatedValues)
	for i := range gatedKeys {
		product[i*gatedKeys+i] = 1
	}
	for tok := range gatedTokens {
		k, b, d := g.k[tok*gatedKeys:][:gatedKeys], g.b[tok*gatedKeys:], g.decay[tok*gatedKeys:]
		step := make([]float64, gatedKeys*gatedKeys)
		for i := range gatedKeys {
			for j := range gatedKeys {
				step[i*gatedKeys+j] = -k[i] * b[j] * k[j] * d[j]
			}
			step[i*gatedKeys+i] += d[i]
		}
		product, state = times(step, product, gatedKeys), times(step, state, gatedValues)
		for i := range gatedKeys {
			for j := range gatedValues {
				state[i*gatedValues+j] += k[i] * g.w[tok*gatedValues+j] * g.v[tok*gatedValues+j]
			}
		}
	}
	gotT, gotS := g.head().tuple()
	if d := max(furthest(gotT, product), furthest(gotS, state)); d > 1e-13 {
		t.Errorf("%.2g from the equation", d)
	}
}

// With both gates one number it is KDA, with one decay for all channels GDN.
func TestGatesPerChannelThatAreEqualAreTheGateOfAHead(t *testing.T) {
	for _, oneDecay := range []bool{false, true} {
		g := drawGated(true)
		one := g.head()
		one.erase, one.v, one.beta, one.sbeta = nil, g.v, g.b, gatedKeys
		if oneDecay {
			for i := range g.decay {
				g.decay[i] = g.decay[i/gatedKeys*gatedKeys]
			}
			one.decay, one.perKey = slices.Clone(g.decay), 0
		}
		gotT, gotS := g.head().tuple()
		wantT, wantS := one.tuple()
		if d := max(furthest(gotT, wantT), furthest(gotS, wantS)); d > 1e-14 {
			t.Errorf("one decay %v: %.2g from one gate", oneDecay, d)
		}
	}
}

// times is the product of a square matrix and one with so many columns.
func times(a, b []float64, columns int) []float64 {
	n := len(b) / columns
	out := make([]float64, len(b))
	for i := range n {
		for j := range columns {
			for l := range n {
				out[i*columns+j] += a[i*n+l] * b[l*columns+j]
			}
		}
	}
	return out
}

func furthest(a, b []float64) (d float64) {
	for i := range a {
		d = max(d, math.Abs(a[i]-b[i]))
	}
	return d
}
