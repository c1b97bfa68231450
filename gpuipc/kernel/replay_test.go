package kernel

import (
	"fmt"
	"math"
	"testing"
)

// replayed is Replay written down once more, number by number.
func replayed(dk, dv int, state []float32, r Rows) []float32 {
	s := append([]float32(nil), state...)
	for n := range r.N {
		for i := range dk {
			for j := range dv {
				g := r.G[n*r.GStep]
				if r.PerKey {
					g = r.G[n*r.GStep+i]
				}
				kept := float32(g * s[i*dv+j])
				added := float32(r.K[n*r.KStep+i] * r.U[n*r.UStep+j])
				s[i*dv+j] = kept + added
			}
		}
	}
	return s
}

func TestReplayIsTheSameBitsAsTokenByToken(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		r := rng(t)
		for _, size := range [][2]int{{0, 3}, {1, 1}, {16, 1}, {4, 16}, {4, 32}, {5, 17}, {7, 31}, {8, 48}, {33, 65}, {128, 128}} {
			for _, perKey := range []bool{false, true} {
				for _, n := range []int{0, 1, 2, 5, 16} {
					dk, dv := size[0], size[1]
					rows := Rows{N: n, PerKey: perKey, KStep: dk + r.IntN(3), UStep: dv + r.IntN(3), GStep: 1 + r.IntN(3)}
					if perKey {
						rows.GStep += dk
					}
					rows.K, rows.U, rows.G = make([]float32, n*rows.KStep), make([]float32, n*rows.UStep), make([]float32, n*rows.GStep)
					normal(r, rows.K, 1)
					normal(r, rows.U, 1)
					normal(r, rows.G, 1)
					state, check := guardedF32(t, dk*dv)
					normal(r, state, 1)
					if dk*dv > 20 {
						state[3], state[7] = float32(math.Inf(1)), float32(math.NaN())
					}
					want := replayed(dk, dv, state, rows)
					Replay(dk, dv, state, rows)
					wantSame(t, fmt.Sprintf("[%d, %d] over %d rows, per key %v", dk, dv, n, perKey), state, want)
					check()
				}
			}
		}
	})
}

// A state that is moved in two parts is the state moved at once.
func TestReplayGoesOnWhereItStopped(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		r := rng(t)
		const dk, dv, n = 12, 40, 9
		rows := Rows{N: n, KStep: dk, UStep: dv, GStep: 1, K: make([]float32, n*dk), U: make([]float32, n*dv), G: make([]float32, n)}
		normal(r, rows.K, 1)
		normal(r, rows.U, 1)
		normal(r, rows.G, 1)
		start := make([]float32, dk*dv)
		normal(r, start, 1)
		want := append([]float32(nil), start...)
		Replay(dk, dv, want, rows)
		for cut := range n + 1 {
			got := append([]float32(nil), start...)
			first, last := rows, rows
			first.N = cut
			last.N, last.K, last.U, last.G = n-cut, rows.K[cut*dk:], rows.U[cut*dv:], rows.G[cut:]
			Replay(dk, dv, got, first)
			Replay(dk, dv, got, last)
			wantSame(t, fmt.Sprint("cut at ", cut), got, want)
		}
	})
}

func TestBadReplaysPanic(t *testing.T) {
	for name, spoil := range map[string]func(r *Rows){
		"short keys":   func(r *Rows) { r.K = r.K[1:] },
		"short values": func(r *Rows) { r.U = r.U[1:] },
		"short decays": func(r *Rows) { r.G = nil },
		"narrow keys":  func(r *Rows) { r.KStep = 3 },
		"negative":     func(r *Rows) { r.N = -1 },
		"per key":      func(r *Rows) { r.PerKey = true },
	} {
		rows := Rows{N: 2, K: make([]float32, 8), KStep: 4, U: make([]float32, 10), UStep: 5, G: make([]float32, 2), GStep: 1}
		spoil(&rows)
		wantPanic(t, name, func() { Replay(4, 5, make([]float32, 20), rows) })
	}
	wantPanic(t, "short state", func() { Replay(4, 5, make([]float32, 19), Rows{}) })
}
