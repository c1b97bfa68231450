package connector

import (
	"errors"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// tableOf is an object of tokens rows in one run from the arena's byte 64 on, and
// its block table.
func tableOf(t *testing.T, p *profile.Profile, tokens, blockTokens int) (*object, blockTable) {
	t.Helper()
	o := &object{layout: p.SegmentLayout(tokens)}
	o.extents = extents{gpuipc.Extent{Off: 64, Len: o.layout.Bytes}}
	table := blockTable{tokens: blockTokens}
	for i := range o.layout.Parts {
		part := &o.layout.Parts[i]
		for first := 0; hasRows(part) && first < tokens; first += blockTokens {
			table.offset = append(table.offset, uint64(64+part.Off+part.Len/int64(tokens)*int64(first)))
		}
	}
	return o, table
}

func TestTablesThatCannotBeAreRefused(t *testing.T) {
	p := testProfile()
	o, good := tableOf(t, p, 50, 16)
	arena := 64 + int(o.layout.Bytes)
	got, err := good.checked(o, 50, arena)
	if err != nil || !slices.Equal(got.offset, good.offset) || len(good.offset) == 0 {
		t.Fatalf("%v, %v", got, err)
	}
	torn := good
	torn.offset = slices.Clone(good.offset)
	torn.offset[1] = NoBlock
	if _, err := torn.checked(o, 50, arena); err != nil {
		t.Errorf("a block that is not in one run: %v", err)
	}
	last := &o.layout.Parts[len(o.layout.Parts)-1]
	for name, offset := range map[string][]uint64{
		"none":        nil,
		"one short":   good.offset[1:],
		"one more":    append(slices.Clone(good.offset), 64),
		"far outside": append(slices.Clone(good.offset[:len(good.offset)-1]), NoBlock-1),
		"just behind": append(slices.Clone(good.offset[:len(good.offset)-1]), uint64(arena)-uint64(last.Len/50*2)+1),
	} {
		if _, err := (blockTable{tokens: 16, offset: offset}).checked(o, 50, arena); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if got, err := (blockTable{offset: []uint64{1, 2}}).checked(o, 50, arena); err != nil || got.offset != nil {
		t.Errorf("a table that nobody asked for: %v, %v", got, err)
	}
}

func TestTableOfALeaseIsByLayerAndKind(t *testing.T) {
	p := testProfile()
	o, table := tableOf(t, p, 50, 16)
	l := &Lease{object: *o, Tokens: 50, table: table}
	var all []uint64
	for _, layer := range p.AttentionLayers() {
		for _, kind := range []profile.PartKind{profile.PartK, profile.PartV} {
			part := l.Table(layer, kind)
			if len(part) != 4 {
				t.Fatalf("layer %d: %d blocks", layer, len(part))
			}
			all = append(all, part...)
		}
	}
	if !slices.Equal(all, table.offset) {
		t.Errorf("%v, want %v", all, table.offset)
	}
	if l.Table(p.AttentionLayers()[0], profile.PartS) != nil || l.Table(99, profile.PartK) != nil || (*Lease)(nil).Table(0, profile.PartK) != nil {
		t.Error("a table of what has no rows")
	}
}

func TestADaemonWithoutTablesIsNotBelieved(t *testing.T) {
	leakFree(t)
	f := startFake(t)
	m := register(t, open(t, f), Binding{})
	for _, o := range []AcquireOptions{{BlockTokens: -1}, {BlockTokens: 1 << 31}} {
		if _, err := m.Acquire(background, make([]profile.SegmentKey, 1), o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := m.Acquire(background, make([]profile.SegmentKey, 4000), AcquireOptions{All: true}); !errors.Is(err, ErrInvalid) {
		t.Errorf("more keys together than a request takes: %v", err)
	}
	if _, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{BlockTokens: 16}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("an answer without the table: %v", err)
	}
}
