package refengine

import (
	"errors"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
)

func TestContinuingFromASavedPrefixIsExact(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := build[float32](t, halved(tiny(f.family, f.rope, "LLFLF")))
			c := MemoryPrefixes{}
			shared := text(1, 90)
			for i, want := range []struct {
				prompt           []uint32
				reused, computed int
			}{
				{slices.Concat(shared, text(2, 40)), 0, 130},
				{slices.Concat(shared, text(3, 50)), 90, 50},
				{slices.Concat(shared[:60], text(4, 50)), 60, 50},
				{slices.Concat(shared, text(2, 40)), 120, 10},
			} {
				boundaries := []int{30, 60, 90}
				if len(want.prompt) > 120 {
					boundaries = append(boundaries, 120)
				}
				out, err := ServePrefix(m, c, want.prompt, boundaries)
				if err != nil {
					t.Fatal(err)
				}
				if err := out.Keep(); err != nil {
					t.Fatal(err)
				}
				if out.Reused != want.reused || out.Computed != want.computed {
					t.Errorf("request %d reused %d and computed %d, want %d and %d", i, out.Reused, out.Computed, want.reused, want.computed)
				}
				full := m.NewState()
				if logits := prefill(t, m, full, want.prompt); !slices.Equal(out.Logits, logits) || !equalStates(out.State, full) {
					t.Errorf("request %d differs from a full prefill", i)
				}
			}
		})
	}
}

func TestServePrefixRefusesBoundariesOutOfOrder(t *testing.T) {
	m := build[float32](t, tiny(profile.GDN, profile.Rope{}, "L"))
	for _, b := range [][]int{{0}, {20}, {5, 5}, {7, 3}} {
		if _, err := ServePrefix(m, MemoryPrefixes{}, text(1, 20), b); !errors.Is(err, ErrInvalid) {
			t.Errorf("boundaries %v: %v", b, err)
		}
	}
}

func TestAddingStatesWithoutTransitionsIsWrong(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := build[float32](t, tiny(f.family, f.rope, "L"))
			c := NewMemory(m.Profile())
			r := Request{First: text(1, 40), Mid: [][]uint32{text(2, 50), text(3, 60)}, Query: text(4, 9), Seam: 8}
			right := serve(t, m, c, r)
			wrong := serve(t, m, Adding{c}, r)
			full := m.NewState()
			prefill(t, m, full, r.Prompt())
			if d := distance(right.State.Layers[0].S, full.Layers[0].S); d > 1e-5 {
				t.Errorf("with transitions the state is %.2g off", d)
			}
			if d := distance(wrong.State.Layers[0].S, full.Layers[0].S); d < 0.1 {
				t.Errorf("without transitions the state is only %.2g off", d)
			}
		})
	}
}

// broken fails at one of the calls of a Cache.
type broken struct {
	Cache
	match, acquire bool
}

var errBroken = errors.New("no daemon")

func (b broken) Match(keys []profile.SegmentKey) ([]bool, error) {
	if b.match {
		return nil, errBroken
	}
	return b.Cache.Match(keys)
}

func (b broken) Acquire(keys []profile.SegmentKey, specs []profile.SegmentSpec) (Leases, []bool, error) {
	if b.acquire {
		return nil, nil, errBroken
	}
	return b.Cache.Acquire(keys, specs)
}

func TestABrokenCacheCostsOnlyTheReuse(t *testing.T) {
	m := build[float32](t, tiny(profile.GDN, profile.Rope{}, "LF"))
	r := Request{First: text(1, 40), Mid: [][]uint32{text(2, 50)}, Query: text(4, 9), Seam: 8}
	full := m.NewState()
	want := prefill(t, m, full, r.Prompt())
	for _, c := range []broken{{NewMemory(m.Profile()), true, false}, {NewMemory(m.Profile()), false, true}} {
		out := serve(t, m, c, r)
		if !errors.Is(out.Cache, errBroken) || !slices.Equal(out.Logits, want) || out.Recomputed != len(r.Prompt()) {
			t.Errorf("%+v: error %v, %d of %d tokens computed", c, out.Cache, out.Recomputed, len(r.Prompt()))
		}
	}
	prefix := text(9, 30)
	r = Request{Prefix: prefix, From: m.NewState(), Mid: r.Mid, Query: r.Query, Seam: 8}
	prefill(t, m, r.From, prefix)
	out := serve(t, m, broken{NewMemory(m.Profile()), true, false}, r)
	full = m.NewState()
	if want = prefill(t, m, full, r.Prompt()); !slices.Equal(out.Logits, want) || r.From.Tokens != 30 {
		t.Error("fallback behind a prefix differs from a full prefill")
	}
}
