package remote_test

import (
	"math"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// nearStates wants a state as token by token prefill leaves it, up to the order of sums.
func nearStates(t *testing.T, got, want *refengine.State[float32]) {
	t.Helper()
	if got == nil || got.Tokens != want.Tokens { // not printed: it is long
		t.Fatalf("no state of %d tokens", want.Tokens)
	}
	for i := range want.Layers {
		g, w := &got.Layers[i], &want.Layers[i]
		for kind, parts := range map[string][2][]float32{"S": {g.S, w.S}, "conv": {g.Conv, w.Conv}, "K": {g.K, w.K}, "V": {g.V, w.V}} {
			if len(parts[0]) != len(parts[1]) {
				t.Fatalf("layer %d %s: %d numbers, want %d", i, kind, len(parts[0]), len(parts[1]))
			}
			most := 0.0
			for _, v := range parts[1] {
				most = max(most, math.Abs(float64(v)))
			}
			for j, v := range parts[1] {
				if !(math.Abs(float64(parts[0][j]-v)) <= 2e-4*most) {
					t.Fatalf("layer %d %s: number %d is %v, want %v", i, kind, j, parts[0][j], v)
				}
			}
		}
	}
}

// An answer is kept as rows behind the prompt's states, and another client goes on from
// any token of it; a prompt that is short has no states at all.
func TestAnswersAreKeptAsRows(t *testing.T) {
	socket, _ := started(t)
	client, other := attached(t, socket), attached(t, socket)
	for i, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, profile.F32)
			writer, reader := stored(t, client, m), stored(t, other, m)
			for _, prompt := range [][]uint32{text(uint64(20+i), 70), text(uint64(40+i), 3)} {
				st := m.NewState()
				d := refengine.NewDecoder(m, st, refengine.DecoderOptions{Keep: true, Alone: 8, Rows: 4})
				logits, err := d.Prefill(prompt)
				if err != nil {
					t.Fatal(err)
				}
				base := d.Kept().Begin
				if base > 0 {
					if err := writer.Save(prompt, []int{base}, []*refengine.State[float32]{d.Settle().Clone()}); err != nil {
						t.Fatal(err)
					}
				}
				answer, err := d.Generate(logits, 11)
				if err != nil {
					t.Fatal(err)
				}
				all := slices.Concat(prompt, answer)
				var every []int
				for p := base + 1; p <= len(all); p++ {
					every = append(every, p)
				}
				if err := writer.SaveRows(all, base, every, d.Kept(), d.Settle()); err != nil {
					t.Fatal(err)
				}
				for _, p := range every {
					// A prompt that parts from the answer after token p.
					mine := append(slices.Clone(all[:p]), 7)
					if p < len(all) {
						mine[p] = (all[p] + 1) % 200
					}
					got, err := reader.Load(mine, every)
					if err != nil {
						t.Fatal(err)
					}
					want := m.NewState()
					if _, err := m.Prefill(want, all[:p]); err != nil {
						t.Fatal(err)
					}
					nearStates(t, got, want)
					if found := reader.Found(); found.PrefixKind != connector.Rows || found.PrefixStates != base {
						t.Fatalf("found %+v, want rows behind %d", found, base)
					}
				}
				registered, err := other.Register(m.Profile(), connector.Binding{})
				if err != nil {
					t.Fatal(err)
				}
				advice, err := registered.Advise(t.Context(), &connector.AdviseQuery{Tokens: append(slices.Clone(all), text(9, 40)...), Found: reader.Found()})
				if err != nil || advice.Predicted[wire.WayReplay-1] < 0 {
					t.Fatalf("advice %+v, %v", advice, err)
				}
			}
		})
	}
}

// What is shorter than its states is kept as rows, what is longer with states.
func TestShortAnswersAreRows(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	s := stored(t, client, m)
	most := m.Profile().RowBytes().Smaller()
	if most < 3 || most > 40 {
		t.Fatalf("rows are smaller than states up to %d tokens", most)
	}
	for i, row := range []struct {
		tokens int
		want   connector.Accept
	}{{most, connector.Rows}, {most + 1, connector.Exact}} {
		prompt := text(uint64(60+i), 50)
		d := refengine.NewDecoder(m, m.NewState(), refengine.DecoderOptions{Keep: true, Alone: -1})
		logits, err := d.Prefill(prompt)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Save(prompt, []int{50}, []*refengine.State[float32]{d.Settle().Clone()}); err != nil {
			t.Fatal(err)
		}
		answer, err := d.Generate(logits, row.tokens)
		if err != nil {
			t.Fatal(err)
		}
		all := slices.Concat(prompt, answer)
		if err := s.SaveBehind(all, 50, 2, d); err != nil {
			t.Fatal(err)
		}
		got, err := s.Load(all, []int{50, 52, len(all)})
		if err != nil {
			t.Fatal(err)
		}
		nearStates(t, got, d.Settle())
		if found := s.Found(); found.PrefixKind != row.want || found.PrefixTokens != len(all) {
			t.Errorf("%d tokens: found %+v, want kind %d", row.tokens, found, row.want)
		}
		if err := s.SaveBehind(all[:51], 50, 2, d); err == nil {
			t.Error("saved other tokens than were computed")
		}
	}
}

func TestRowsThatAreNotThereAreNotSaved(t *testing.T) {
	socket, _ := started(t)
	m := model(t, families[0].family, families[0].rope, profile.F32)
	s := stored(t, attached(t, socket), m)
	d := refengine.NewDecoder(m, m.NewState(), refengine.DecoderOptions{Keep: true})
	if _, err := d.Prefill(text(1, 5)); err != nil {
		t.Fatal(err)
	}
	rows, st := d.Kept(), d.Settle()
	for what, save := range map[string]func() error{
		"past the rows":   func() error { return s.SaveRows(text(1, 9), 0, []int{6}, rows, st) },
		"a lost parent":   func() error { return s.SaveRows(text(1, 9), 2, []int{4}, rows, st) },
		"out of order":    func() error { return s.SaveRows(text(1, 9), 0, []int{4, 3}, rows, st) },
		"before the rows": func() error { r := *rows; r.Begin = 3; return s.SaveRows(text(1, 9), 0, []int{4}, &r, st) },
	} {
		if err := save(); err == nil {
			t.Errorf("%s: saved", what)
		}
	}
}
