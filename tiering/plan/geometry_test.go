package plan

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// hybrid has layers of several kinds, one without state among them. States are of more
// than a page.
func hybrid(ranks int) profile.Identity {
	id := profiletest.Hybrid(ranks)
	gdn, full, none, lightning := id.Layers[0], id.Layers[1], id.Layers[2], id.Layers[3]
	gdn.Linear.KeyDim, gdn.Linear.ValueDim = 32, 24
	id.Layers = []profile.Layer{gdn, full, none, lightning, gdn, full}
	return id
}

func geometry(t testing.TB, id profile.Identity, page int64) *Geometry {
	t.Helper()
	p, err := profile.New(id)
	must(t, err)
	return NewGeometry(p, 1, page, NewParts())
}

func TestStatesByArithmeticAreWhereTheProfilePutsThem(t *testing.T) {
	g := geometry(t, hybrid(2), 4096)
	for _, layer := range append([]int{profile.AllLayers}, g.LinearLayers()...) {
		for seams := range 5 {
			want := g.StatesLayout(layer, seams)
			got, err := g.statesBefore(layer, seams)
			must(t, err)
			if got.bytes() != want.Bytes {
				t.Fatalf("layer %d, %d seams: %d bytes, want %d", layer, seams, got.bytes(), want.Bytes)
			}
			for i, part := range want.Parts {
				if off, n := got.at(i/(seams+1), i%(seams+1)); off != part.Off || n != part.Len {
					t.Fatalf("layer %d, %d seams, state %d: [%d, +%d), want [%d, +%d)", layer, seams, i, off, n, part.Off, part.Len)
				}
			}
		}
	}
}

func TestPartsAreFoundByLayerAndKind(t *testing.T) {
	g := geometry(t, hybrid(1), 4096)
	for _, l := range []profile.Layout{g.SegmentLayout(9), g.CheckpointLayout(3), g.RowsLayout(profile.AllLayers, 2), g.SeamLayout(3)} {
		indexed := NewPartMap(l)
		for _, want := range l.Parts {
			if got, ok := indexed.Part(want.Layer, want.Kind); !ok || got != want {
				t.Errorf("layer %d kind %d: found %v at %d, want it at %d", want.Layer, want.Kind, ok, got.Off, want.Off)
			}
		}
		if _, ok := indexed.Part(2, profile.PartK); ok { // a layer without state
			t.Error("found a part that is not there")
		}
	}
}

func TestLayoutsKeptAreBounded(t *testing.T) {
	g := geometry(t, hybrid(1), 4096)
	other := NewGeometry(g.Profile, g.id+1, 4096, g.parts)
	for n := range 3 * maxCachedParts / len(g.SegmentLayout(1).Parts) {
		theirs, first := other.SegmentParts(n+1), g.SegmentParts(n+1)
		if first == theirs {
			t.Fatalf("part map of %d tokens is that of another profile", n+1)
		}
		if g.SegmentParts(n+1) != first {
			t.Fatalf("part map of %d tokens was not kept at all", n+1)
		}
		held := 0
		if n%1000 == 0 {
			for _, l := range g.parts.entries {
				held += len(l.Parts)
			}
			if held > maxCachedParts || held != g.parts.parts {
				t.Fatalf("%d parts kept, counted %d, bound %d", held, g.parts.parts, maxCachedParts)
			}
		}
	}
}

func TestStatePagesHoldNoRows(t *testing.T) {
	for _, page := range []int64{64, 4096, 8192, 1 << 20} {
		for _, rows := range []int{1, 7, 100, 1000} {
			l := geometry(t, hybrid(2), page).CheckpointParts(rows)
			inRun := func(off int64) bool {
				for _, run := range l.StatePages {
					if run.Off <= off && off < run.Off+run.Len {
						return true
					}
				}
				return false
			}
			for at := int64(0); at < l.Bytes; at += page {
				clean := true
				for _, part := range l.Parts {
					clean = clean && (!IsRows(part.Kind) || part.Off+part.Len <= at || part.Off >= min(at+page, l.Bytes))
				}
				if inRun(at) != clean || inRun(min(at+page, l.Bytes)-1) != clean {
					t.Fatalf("page of %d at %d of %d rows: among the states %v, has no rows %v", page, at, rows, inRun(at), clean)
				}
			}
		}
	}
}

func TestEdgesAreTheOtherStates(t *testing.T) {
	for _, page := range []int64{64, 4096, 8192, 1 << 20} {
		for _, rows := range []int{1, 7, 100, 1000} {
			l := geometry(t, hybrid(2), page).CheckpointParts(rows)
			for _, part := range l.Parts {
				for _, off := range []int64{0, 1, part.Len / 2, part.Len - 1} {
					holds := func(run gpuipc.Extent) bool { return run.Off <= part.Off+off && part.Off+off < run.Off+run.Len }
					state, edge := slices.ContainsFunc(l.StatePages, holds), slices.ContainsFunc(l.StateEdges, holds)
					if IsRows(part.Kind) && (state || edge) || !IsRows(part.Kind) && state == edge {
						t.Fatalf("page %d, %d rows: layer %d part %d at %d: leaves %v, stays and is no row %v", page, rows, part.Layer, part.Kind, off, state, edge)
					}
				}
			}
		}
	}
}

// A request costs what its frame costs, not what it asks about times the number
// of layers.
func TestManySeamsCostNothing(t *testing.T) {
	id := profile.Identity{Model: "deep", Weights: [32]byte{4}, Tokenizer: "bytes", TPSize: 1}
	for range 900 {
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GLA, KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, StateDType: profile.F32, TransitionDType: profile.F32,
		}})
	}
	g := geometry(t, id, 4096)
	q := &ComposeQuery{Layer: profile.AllLayers}
	for i := range 2000 {
		q.Plan.Spans = append(q.Plan.Spans, Span{Kind: SpanRecompute, Start: i, Count: 1})
	}
	q.Plan.End = 2000
	bytes, err := g.ComposeBytes(q)
	must(t, err)
	if want := int64(900 * 2001 * profile.PartAlign); bytes != want {
		t.Fatalf("%d bytes, want %d", bytes, want)
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = g.ComposeBytes(q) }); n > 0 {
		t.Fatalf("%v allocations for a size", n)
	}
}
