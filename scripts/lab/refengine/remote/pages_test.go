package remote_test

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/pages"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// layouts are the paper's rules and ours.
var layouts = []struct {
	name  string
	rules pages.Rules
}{
	{"paper", pages.Rules{BlockTokens: 16}},
	{"window", pages.Rules{BlockTokens: 16, Window: 8, Pack: true}},
	{"window, left shared", pages.Rules{BlockTokens: 16, Window: 8, Pack: true, ShareLeft: true}},
}

func paged(t *testing.T, m *refengine.Model[float32], r pages.Rules, blocks int, copies bool) *refengine.Pages {
	t.Helper()
	p, err := refengine.NewPages(m, refengine.PagesConfig{Config: pages.Config{Rules: r, Blocks: blocks}, Copies: copies})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func reside(t *testing.T, p *refengine.Pages, c refengine.Cache, r refengine.Request, answer int) *refengine.Resident {
	t.Helper()
	out, err := p.Serve(c, r, answer)
	if err != nil || out.Cache != nil {
		t.Fatal(err, out.Cache)
	}
	return out
}

// apart is how far logits are from each other.
func apart(a, b []float32) float64 {
	worst := 0.0
	for i := range a {
		worst = max(worst, math.Abs(float64(a[i]-b[i])))
	}
	return worst
}

// rounding is what logits of order 1 differ by when keys are rounded at their positions
// in the one and at their segment's in the other.
func rounding(kv profile.DType) float64 {
	return map[profile.DType]float64{profile.F32: 2e-5, profile.F16: 5e-3, profile.BF16: 4e-2}[kv]
}

// Requests whose segments are read in the daemon's memory give what they give with
// rotated copies of their own: prompts, answers, behind a prefix, for every family and
// type, with the layouts of the paper and ours.
func TestReadingInPlaceIsReadingCopies(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	first, query := text(1, 30), text(2, 9)
	a, b, c, short := text(3, 41), text(4, 57), text(5, 83), text(6, 6)
	for i, f := range families {
		kv := []profile.DType{profile.F32, profile.BF16, profile.F16}[i%3]
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, kv)
			store := stored(t, client, m)
			store.InPlace = time.Minute
			from := m.NewState()
			if _, err := m.Prefill(from, first); err != nil {
				t.Fatal(err)
			}
			for _, l := range layouts {
				shared, copies := paged(t, m, l.rules, 200, false), paged(t, m, l.rules, 400, true)
				var all []*refengine.Resident
				for name, r := range map[string]refengine.Request{
					"first":         {First: first, Mid: [][]uint32{a, b, c}, Query: query, Seam: 8},
					"other order":   {First: first, Mid: [][]uint32{c, b, a}, Query: query},
					"own tokens":    {Lead: first, Mid: [][]uint32{c, short, a, a}, Query: query, Seam: 3},
					"prefix":        {Prefix: first, From: from, Mid: [][]uint32{b, c}, Query: query, Seam: 8},
					"nothing there": {Mid: [][]uint32{short}, Query: query},
				} {
					got, want := reside(t, shared, store, r, 12), reside(t, copies, store, r, 12)
					if got.Plan.End != len(r.Prompt()) || got.Recomputed != want.Recomputed {
						t.Fatalf("%s, %s: %d tokens recomputed of %d, with copies %d", l.name, name, got.Recomputed, got.Plan.End, want.Recomputed)
					}
					// What is shared was computed behind another left neighbour's left.
					bound := rounding(kv)
					if l.rules.ShareLeft {
						bound = math.Inf(1)
					}
					if d := apart(got.Logits, want.Logits); !(d <= bound) {
						t.Errorf("%s, %s: logits are %g apart", l.name, name, d)
					}
					follow(t, l.name+", "+name, got, want, bound)
					all = append(all, got, want)
				}
				if h := shared.Held(); h.Leased == 0 || h.Own+h.Leased >= copies.Held().Own {
					t.Errorf("%s: %+v with shared rows, %+v with copies", l.name, h, copies.Held())
				}
				for _, r := range all {
					r.Release()
					r.Release()
				}
				if h := shared.Held(); h.Leased != 0 || h.Copied != 0 || l.rules.ShareLeft == false && h.Own != 0 {
					t.Errorf("%s: %+v held when all have ended", l.name, h)
				}
			}
		})
	}
}

// The beginning of a chunk that a request shares with one alike is what it would have
// computed itself: a second request gives the same and takes less.
func TestRequestsAlikeShareTheBeginningsOfChunks(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	r := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 41), text(3, 57), text(4, 83)}, Query: text(5, 9), Seam: 8}
	for i, f := range families {
		kv := []profile.DType{profile.F32, profile.BF16, profile.F16}[i%3]
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, kv)
			store := stored(t, client, m)
			store.InPlace = time.Minute
			p, alone := paged(t, m, layouts[2].rules, 200, false), paged(t, m, layouts[1].rules, 200, false)
			want := reside(t, alone, store, r, 12)
			first := reside(t, p, store, r, 12)
			took := p.Held().Own
			second := reside(t, p, store, r, 12)
			for name, got := range map[string]*refengine.Resident{"first": first, "second": second} {
				if d := apart(got.Logits, want.Logits); !(d <= rounding(kv)) {
					t.Errorf("%s: logits are %g apart", name, d)
				}
			}
			follow(t, "second", second, want, rounding(kv))
			if more := p.Held().Own - took; more >= took {
				t.Errorf("the second request took %d bytes, the first one %d", more, took)
			}
		})
	}
}

// follow decodes both along one line: that of the second.
func follow(t *testing.T, what string, got, want *refengine.Resident, bound float64) {
	t.Helper()
	for range 6 {
		copy(got.Logits, want.Logits) // the same token next
		x, err := got.Decode(1)
		if err != nil {
			t.Fatal(what, err)
		}
		y, err := want.Decode(1)
		if err != nil || x[0] != y[0] {
			t.Fatal(what, err, x, y)
		}
		if d := apart(got.Logits, want.Logits); !(d <= bound) {
			t.Errorf("%s: decoding is %g apart", what, d)
		}
	}
}

// What a request that reads in place gives when the window is the seam is what Serve
// gives, and so is a copy of its state.
func TestPagesServeWhatServeServes(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	store := stored(t, attached(t, socket), m)
	r := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 70), text(3, 49)}, Query: text(4, 9), Seam: 8}
	want := serve(t, m, store, r)
	store.InPlace = time.Minute
	p := paged(t, m, layouts[1].rules, 100, false)
	got := reside(t, p, store, r, 10)
	if d := apart(got.Logits, want.Logits); d > 2e-5 {
		t.Errorf("logits are %g apart", d)
	}
	state := got.State.Clone()
	for i, l := range want.State.Layers {
		c := state.Layers[i]
		if len(c.K) != len(l.K) || len(c.V) != len(l.V) || apart(c.K, l.K) > 2e-5 || apart(c.V, l.V) > 2e-5 || apart(c.S, l.S) > 2e-5 {
			t.Errorf("layer %d of a copied state differs", i)
		}
	}
	// Drafts that branch, in pages as without.
	line := refengine.NewDecoder(m, want.State, refengine.DecoderOptions{})
	inPages := refengine.NewDecoder(m, got.State, refengine.DecoderOptions{})
	for _, d := range []*refengine.Decoder{line, inPages} {
		if _, err := d.Verify([]uint32{5, 6}, []int{-1, 0}); err != nil {
			t.Fatal(err)
		}
	}
	x, err := line.Verify([]uint32{7, 8, 9}, []int{0, -1, 2})
	if err != nil {
		t.Fatal(err)
	}
	y, err := inPages.Verify([]uint32{7, 8, 9}, []int{0, -1, 2})
	if err != nil || apart(x, y) > 2e-5 {
		t.Fatal(err, apart(x, y))
	}
	for _, d := range []*refengine.Decoder{line, inPages} {
		if err := d.Accept([]int{0, 2}); err != nil {
			t.Fatal(err)
		}
	}
	x, _ = line.Prefill([]uint32{11})
	if y, err = inPages.Prefill([]uint32{11}); err != nil || apart(x, y) > 2e-5 {
		t.Fatal(err, apart(x, y))
	}
	// Beyond the room that was asked for.
	if _, err := inPages.Prefill(text(9, 8)); !errors.Is(err, refengine.ErrInvalid) {
		t.Errorf("8 tokens more: %v", err)
	}
	got.Release()
}

// A pool without room for a request refuses it, and holds nothing for it.
func TestPagesRefuseWhatDoesNotFit(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	store := stored(t, attached(t, socket), m)
	store.InPlace = time.Minute
	p := paged(t, m, layouts[1].rules, 4, false)
	r := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 70)}, Query: text(4, 9)}
	one := reside(t, p, store, r, 12)
	if _, err := p.Serve(store, r, 1000); !errors.Is(err, pages.ErrRefused) {
		t.Fatalf("an answer of 1,000 tokens in 4 blocks: %v", err)
	}
	held := p.Held()
	if _, err := p.Serve(store, refengine.Request{Lead: text(9, 60), Query: text(4, 9)}, 0); !errors.Is(err, pages.ErrRefused) {
		t.Fatalf("69 tokens beside a resident: %v", err)
	}
	if p.Held() != held {
		t.Errorf("%+v held, before the refusal %+v", p.Held(), held)
	}
	one.Release()
	reside(t, p, store, refengine.Request{Lead: text(9, 50), Query: text(4, 9)}, 0).Release()
}

// A daemon that is gone costs the sharing, and what it had leased stays readable.
func TestPagesWithoutTheDaemon(t *testing.T) {
	socket, stop := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	store := stored(t, attached(t, socket), m)
	store.InPlace = time.Minute
	p, whole := paged(t, m, layouts[1].rules, 100, false), paged(t, m, layouts[1].rules, 100, true)
	r := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 70)}, Query: text(4, 9), Seam: 8}
	got, want := reside(t, p, store, r, 12), reside(t, whole, store, r, 12)
	stop()
	line, err := got.Decode(6)
	if err != nil {
		if !errors.Is(err, connector.ErrGone) {
			t.Fatal(err)
		}
	} else if other, err := want.Decode(6); err != nil || !slices.Equal(line, other) {
		t.Errorf("%v in place, %v with copies, %v", line, other, err)
	}
	plain, err := p.Serve(store, r, 12)
	if err != nil || plain.Cache == nil {
		t.Fatal(err, plain)
	}
	full := m.NewState()
	logits, err := m.Prefill(full, r.Prompt())
	if err != nil || apart(logits, plain.Logits) > 2e-5 {
		t.Errorf("computed whole: %g apart, %v", apart(logits, plain.Logits), err)
	}
}

// Leases are taken anew before they end. Where they cannot be, copies are taken while
// what was leased is there.
func TestPagesOutliveTheirLeases(t *testing.T) {
	socket, stop := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	store := stored(t, attached(t, socket), m)
	store.InPlace = time.Minute
	now := time.Now()
	store.SetNow(func() time.Time { return now })
	p, whole := paged(t, m, layouts[1].rules, 100, false), paged(t, m, layouts[1].rules, 100, true)
	r := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 70), text(2, 70)}, Query: text(4, 9), Seam: 8}
	got, want := reside(t, p, store, r, 20), reside(t, whole, store, r, 20)
	for range 3 {
		now = now.Add(31 * time.Second)
		follow(t, "extended", got, want, 2e-5)
	}
	if p.Held().Leased == 0 {
		t.Fatal("nothing is leased any more")
	}
	stop()
	now = now.Add(31 * time.Second)
	line, err := got.Decode(2)
	if errors.Is(err, connector.ErrGone) {
		return // the client saw it go before it could copy
	}
	other, _ := want.Decode(2)
	if err != nil || !slices.Equal(line, other) || p.Held().Total() != 0 {
		t.Errorf("%v, %v, want %v; %+v still in pages", line, err, other, p.Held())
	}
}

// A lease that has ended is not read: the prompt is computed.
func TestPagesDoNotReadWhatHasExpired(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	store := stored(t, attached(t, socket), m)
	r := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 70)}, Query: text(4, 9), Seam: 8}
	logits, err := m.Prefill(m.NewState(), r.Prompt())
	if err != nil {
		t.Fatal(err)
	}
	for life, want := range map[time.Duration]error{time.Nanosecond: connector.ErrGone, time.Hour: connector.ErrInvalid} {
		store.InPlace = life
		p := paged(t, m, layouts[1].rules, 100, false)
		got, err := p.Serve(store, r, 5)
		if err != nil || !errors.Is(got.Cache, want) || apart(got.Logits, logits) > 2e-5 {
			t.Errorf("leases for %v: %v, cache: %v", life, err, got.Cache)
		}
		if h := p.Held(); h.Leased != 0 {
			t.Errorf("leases for %v: %+v held", life, h)
		}
	}
}

// What a request that reads in place leaves is saved from a copy of its state, never from
// its pages.
func TestPagesAreSavedAsCopies(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	store := stored(t, attached(t, socket), m)
	store.InPlace = time.Minute
	p := paged(t, m, layouts[1].rules, 100, false)
	r := refengine.Request{First: text(1, 30), Query: text(4, 9)} // a leading segment: exact
	one := reside(t, p, store, r, 12)
	line, err := one.Decode(6)
	if err != nil {
		t.Fatal(err)
	}
	all := append(r.Prompt(), line...)
	if err := store.Save(all, []int{len(all)}, []*refengine.State[float32]{one.State}); !errors.Is(err, refengine.ErrInvalid) {
		t.Errorf("saved from pages: %v", err)
	}
	own, err := one.Copy()
	if err != nil || own.Tokens != len(all) {
		t.Fatal(err, own.Tokens)
	}
	if err := store.Save(all, []int{len(all)}, []*refengine.State[float32]{own}); err != nil {
		t.Fatal(err)
	}
	paged := one.State
	for _, c := range []func(refengine.Request) error{
		func(r refengine.Request) error { _, err := refengine.Serve(m, store, r); return err },
		func(r refengine.Request) error { _, err := p.Serve(store, r, 1); return err },
	} {
		if err := c(refengine.Request{Prefix: all, From: paged, Query: text(5, 3)}); !errors.Is(err, refengine.ErrInvalid) {
			t.Errorf("continued from pages: %v", err)
		}
	}
	one.Release()
	if _, err := one.Decode(1); !errors.Is(err, refengine.ErrInvalid) {
		t.Errorf("decoded behind its release: %v", err)
	}
	for what, st := range map[string]*refengine.State[float32]{"": paged, "a copy of ": paged.Clone()} {
		if _, err := m.Prefill(st, []uint32{1}); !errors.Is(err, refengine.ErrInvalid) {
			t.Errorf("continued %spages that were released: %v", what, err)
		}
		if err := store.Save(all, []int{len(all)}, []*refengine.State[float32]{st}); !errors.Is(err, refengine.ErrInvalid) {
			t.Errorf("saved %spages that were released: %v", what, err)
		}
	}
	loaded, err := store.Load(all, []int{len(all)})
	if err != nil || loaded == nil {
		t.Fatal(err)
	}
	plain := m.NewState()
	if _, err := m.Prefill(plain, all); err != nil {
		t.Fatal(err)
	}
	for i, l := range plain.Layers {
		got := loaded.Layers[i]
		if len(got.K) != len(l.K) || apart(got.K, l.K) > 2e-5 || apart(got.V, l.V) > 2e-5 || apart(got.S, l.S) > 1e-4 {
			t.Errorf("layer %d of what was saved differs", i)
		}
	}
}
