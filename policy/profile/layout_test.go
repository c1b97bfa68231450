package profile

import (
	"fmt"
	"testing"
)

func checkLayout(t *testing.T, l Layout) {
	t.Helper()
	var end int64
	layer, kind := -1, PartKind(0)
	for i, p := range l.Parts {
		if p.Off < end || p.Off%PartAlign != 0 || p.Off-end >= PartAlign {
			t.Errorf("part %d at %d, behind one that ends at %d", i, p.Off, end)
		}
		if n := int64(p.Shape[0]*p.Shape[1]*p.Shape[2]) * int64(p.DType.Size()); n != p.Len {
			t.Errorf("part %d: %d bytes for %v of %s", i, p.Len, p.Shape, p.DType)
		}
		if p.Layer < layer || p.Layer == layer && p.Kind < kind {
			t.Errorf("part %d out of order", i)
		}
		layer, kind, end = p.Layer, p.Kind, p.Off+p.Len
	}
	if l.Bytes < end || l.Bytes-end >= PartAlign || l.Bytes%PartAlign != 0 {
		t.Errorf("total %d, last part ends at %d", l.Bytes, end)
	}
}

func TestLayoutsAreOrderedAlignedAndDense(t *testing.T) {
	p, err := New(hybrid())
	must(t, err)
	for _, n := range []int{-1, 0, 1, 7, 512} {
		t.Run(fmt.Sprintf("rows=%d", n), func(t *testing.T) {
			checkLayout(t, p.BufferLayout(n))
			n := max(n, 0)
			checkLayout(t, p.SegmentLayout(n))
			checkLayout(t, p.CheckpointLayout(n))
			checkLayout(t, p.RowsLayout(AllLayers, n))
			checkLayout(t, p.StatesLayout(AllLayers, n))
			checkLayout(t, p.SeamLayout(AllLayers))
		})
	}
}

func TestLayerLayoutsAreThoseOfTheWhole(t *testing.T) {
	p, err := New(hybrid())
	must(t, err)
	for name, layout := range map[string]func(layer int) Layout{
		"seam":   p.SeamLayout,
		"states": func(i int) Layout { return p.StatesLayout(i, 3) },
		"rows":   func(i int) Layout { return p.RowsLayout(i, 9) },
	} {
		var sum int64
		parts := 0
		for i := range p.Layers() {
			l := layout(i)
			sum += l.Bytes
			parts += len(l.Parts)
		}
		if all := layout(AllLayers); all.Bytes != sum || len(all.Parts) != parts || parts == 0 {
			t.Errorf("%s: %d bytes in %d parts, by layer %d in %d", name, all.Bytes, len(all.Parts), sum, parts)
		}
	}
	if l := p.StatesLayout(0, 3); len(l.Parts) != 4 {
		t.Errorf("%d states for three recomputed spans, want one before each and the last", len(l.Parts))
	}
	if l := p.SegmentLayout(4); l.Find(3, PartS) < 0 || l.Find(3, PartConv) != -1 {
		t.Error("Find does not tell what a layer has")
	}
}
