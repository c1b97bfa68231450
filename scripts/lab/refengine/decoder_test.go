package refengine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// decoded is what Prefill token by token gives: the oracle of a Decoder.
type decoded struct {
	testing.TB
	m *Model[float32]
}

// behind is the logits and the state behind some tokens.
func (d decoded) behind(tokens []uint32) ([]float32, *State[float32]) {
	d.Helper()
	st := d.m.NewState()
	var logits []float32
	for _, t := range tokens {
		var err error
		if logits, err = d.m.Prefill(st, []uint32{t}); err != nil {
			d.Fatal(err)
		}
	}
	return logits, st
}

// near holds to a part of the largest number: sums are taken in another order.
func (d decoded) near(what string, got, want []float32) {
	d.Helper()
	most := 0.0
	for _, v := range want {
		most = max(most, math.Abs(float64(v)))
	}
	if len(got) != len(want) {
		d.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i, v := range want {
		if !(math.Abs(float64(got[i]-v)) <= 2e-4*most+1e-6) {
			d.Fatalf("%s: number %d is %v, want %v of at most %v", what, i, got[i], v, most)
		}
	}
}

func (d decoded) nearState(what string, got, want *State[float32]) {
	d.Helper()
	if got.Tokens != want.Tokens {
		d.Fatalf("%s: %d tokens, want %d", what, got.Tokens, want.Tokens)
	}
	for i := range want.Layers {
		g, w := &got.Layers[i], &want.Layers[i]
		for _, part := range []struct {
			name      string
			got, want []float32
		}{{"S", g.S, w.S}, {"conv", g.Conv, w.Conv}, {"K", g.K, w.K}, {"V", g.V, w.V}} {
			d.near(fmt.Sprintf("%s: layer %d %s", what, i, part.name), part.got, part.want)
		}
	}
}

func eachDecoder(t *testing.T, f func(t *testing.T, m *Model[float32], o DecoderOptions)) {
	for _, fam := range families {
		m := build[float32](t, tiny(fam.family, fam.rope, "LFLF"))
		for _, o := range []DecoderOptions{{}, {Rows: 1, Alone: -1}, {Rows: 5, Alone: -1}, {Rows: 3, Alone: 17}} {
			t.Run(fmt.Sprintf("%s/rows=%d/alone=%d", fam.name, o.Rows, o.Alone), func(t *testing.T) { f(t, m, o) })
		}
	}
}

// A decoder gives the tokens of decoding token by token, with or without a prompt that
// rows alone are enough for, and leaves the state that Prefill leaves.
func TestADecoderGivesTheTokensOfSequentialDecoding(t *testing.T) {
	const n = 30
	eachDecoder(t, func(t *testing.T, m *Model[float32], o DecoderOptions) {
		for _, prompt := range [][]uint32{text(1, 3), text(2, 40)} {
			o1 := decoded{t, m}
			d := NewDecoder(m, m.NewState(), o)
			logits, err := d.Prefill(prompt)
			if err != nil {
				t.Fatal(err)
			}
			got, err := d.Generate(logits, n)
			if err != nil {
				t.Fatal(err)
			}
			all := slices.Clone(prompt)
			for i, token := range got {
				want, _ := o1.behind(all)
				if next := Greedy(want); next != token {
					t.Fatalf("token %d is %d, want %d", i, token, next)
				}
				all = append(all, token)
			}
			if d.Tokens() != len(all) {
				t.Fatalf("%d tokens, want %d", d.Tokens(), len(all))
			}
			_, want := o1.behind(all)
			o1.nearState("settled", d.Settle(), want)
		}
	})
}

// Drafts are verified at once, as a chain and as trees, over several calls; whatever
// path is accepted, what follows is what sequential decoding gives.
func TestAnyPathOfDraftsIsSequentialDecoding(t *testing.T) {
	eachDecoder(t, func(t *testing.T, m *Model[float32], o DecoderOptions) {
		r := rand.New(rand.NewPCG(3, 9))
		oracle := decoded{t, m}
		all := text(4, 9)
		d := NewDecoder(m, m.NewState(), o)
		if _, err := d.Prefill(all); err != nil {
			t.Fatal(err)
		}
		for round := range 6 {
			var drafts []uint32
			var paths [][]int
			for range 1 + r.IntN(2) {
				tokens, parents := text(uint64(10*round+len(drafts)), 1+r.IntN(4)), []int(nil)
				for range tokens {
					p := len(paths) - 1
					if round%2 == 1 {
						p = r.IntN(len(paths)+1) - 1
					}
					path := []int{len(paths)}
					if p >= 0 {
						path = append(slices.Clone(paths[p]), len(paths))
					}
					parents, paths = append(parents, p), append(paths, path)
				}
				if round%2 == 0 {
					parents = nil // a chain
				}
				first := len(drafts)
				drafts = append(drafts, tokens...)
				logits, err := d.Verify(tokens, parents)
				if err != nil {
					t.Fatal(err)
				}
				for i := range tokens {
					want, _ := oracle.behind(append(slices.Clone(all), along(drafts, paths[first+i])...))
					oracle.near(fmt.Sprintf("round %d draft %d of %v", round, first+i, paths), logits[i*m.cfg.Vocab:][:m.cfg.Vocab], want)
				}
			}
			path := paths[r.IntN(len(paths))]
			path = path[:r.IntN(len(path)+1)]
			if err := d.Accept(path); err != nil {
				t.Fatal(err)
			}
			all = append(all, along(drafts, path)...)
			if d.Tokens() != len(all) || d.Drafts() != 0 {
				t.Fatalf("%d tokens and %d drafts, want %d and none", d.Tokens(), d.Drafts(), len(all))
			}
		}
		logits, err := d.Prefill([]uint32{7})
		if err != nil {
			t.Fatal(err)
		}
		want, st := oracle.behind(append(all, 7))
		oracle.near("after all rounds", logits, want)
		oracle.nearState("after all rounds", d.Settle(), st)
	})
}

func along(tokens []uint32, path []int) (out []uint32) {
	for _, i := range path {
		out = append(out, tokens[i])
	}
	return out
}

// Beams of one decoder give what a decoder each gives.
func TestBeamsShareOneState(t *testing.T) {
	eachDecoder(t, func(t *testing.T, m *Model[float32], o DecoderOptions) {
		oracle, vocab := decoded{t, m}, m.cfg.Vocab
		all := text(4, 7)
		d := NewDecoder(m, m.NewState(), o)
		if _, err := d.Prefill(all); err != nil {
			t.Fatal(err)
		}
		beams := [][]uint32{{}, {}, {}}
		at := []int{-1, -1, -1}
		for step := range 12 {
			// Beams live on, but every third step the first one takes the others' places.
			if step%3 == 2 {
				at = []int{at[0], at[0], at[0]}
				for i := range beams {
					beams[i] = slices.Clone(beams[0])
				}
			}
			tokens := []uint32{uint32(3 * step), uint32(3*step + 1), uint32(3*step + 2)}
			first := d.Drafts()
			logits, err := d.Verify(tokens, at)
			if err != nil {
				t.Fatal(err)
			}
			for i := range beams {
				beams[i], at[i] = append(beams[i], tokens[i]), first+i
				want, _ := oracle.behind(slices.Concat(all, beams[i]))
				oracle.near(fmt.Sprintf("step %d beam %d", step, i), logits[i*vocab:][:vocab], want)
			}
			if at, err = d.Live(at); err != nil {
				t.Fatal(err)
			}
		}
		if d.Tokens() != len(all)+11 || d.Drafts() != 3 {
			t.Fatalf("%d tokens and %d drafts, want those up to the last time that one beam was left", d.Tokens(), d.Drafts())
		}
		if at, err := d.Live(at[1:2]); err != nil || at[0] != -1 || d.Drafts() != 0 {
			t.Fatalf("the winner is draft %v of %d: %v", at, d.Drafts(), err)
		}
		_, st := oracle.behind(slices.Concat(all, beams[1]))
		oracle.nearState("winner", d.Settle(), st)
	})
}

func TestBadDraftsChangeNothing(t *testing.T) {
	m := build[float32](t, tiny(families[7].family, families[7].rope, "LF"))
	d := NewDecoder(m, m.NewState(), DecoderOptions{})
	if _, err := d.Prefill(text(1, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Verify(text(2, 3), []int{-1, 0, 0}); err != nil {
		t.Fatal(err)
	}
	verify := func(tokens []uint32, parents ...int) error { _, err := d.Verify(tokens, parents); return err }
	live := func(beams ...int) error { _, err := d.Live(beams); return err }
	prefill := func(tokens ...uint32) error { _, err := d.Prefill(tokens); return err }
	for what, err := range map[string]error{
		"no tokens": prefill(), "no such token": prefill(1, 999), "no drafts": verify(nil), "no such draft": verify([]uint32{999}, 1),
		"few parents": verify([]uint32{1, 2}, 1), "own parent": verify([]uint32{1}, 3), "before all": verify([]uint32{1}, -2),
		"no root": d.Accept([]int{1}), "siblings": d.Accept([]int{0, 1, 2}), "beyond": d.Accept([]int{0, 3}), "dead beam": live(0, 3), "no beam": live(-1),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if d.Tokens() != 5 || d.Drafts() != 3 {
		t.Fatalf("%d tokens and %d drafts after what was refused", d.Tokens(), d.Drafts())
	}
	if err := d.Accept([]int{0, 2}); err != nil {
		t.Fatal(err)
	}
	oracle := decoded{t, m}
	_, want := oracle.behind(append(text(1, 5), along(text(2, 3), []int{0, 2})...))
	oracle.nearState("accepted", d.Settle(), want)
}
