package gpuipc

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// plainRegion is a Region of bytes, to look at Refs without a device.
type plainRegion struct {
	Region
	b []byte
}

func (r *plainRegion) Bytes() int64 { return int64(len(r.b)) }

// content is what a Ref names, the slow way.
func content(r Ref) []byte {
	var out []byte
	for _, e := range r.Extents {
		out = append(out, r.Region.(*plainRegion).b[e.Off:e.Off+e.Len]...)
	}
	return out
}

func randomRef(rng *rand.Rand, r *plainRegion) Ref {
	ref := Ref{Region: r}
	for range rng.IntN(5) {
		off := rng.Int64N(r.Bytes())
		ref.Extents = append(ref.Extents, Extent{off, rng.Int64N(min(8, r.Bytes()-off+1))})
	}
	return ref
}

func TestSliceOfARefIsTheSliceOfItsBytes(t *testing.T) {
	rng := seedOf(t)
	region := &plainRegion{b: make([]byte, 64)}
	for i := range region.b {
		region.b[i] = byte(i)
	}
	for range 20000 {
		ref := randomRef(rng, region)
		all := content(ref)
		if ref.Len() != int64(len(all)) {
			t.Fatalf("%v has %d bytes, Len says %d", ref.Extents, len(all), ref.Len())
		}
		off := rng.Int64N(ref.Len() + 1)
		n := rng.Int64N(ref.Len() - off + 1)
		cut := ref.Slice(off, n)
		if !bytes.Equal(content(cut), all[off:off+n]) || cut.Region != ref.Region {
			t.Fatalf("%v sliced [%d, +%d) is %v", ref.Extents, off, n, cut.Extents)
		}
		// Put together again from two cuts it is the same object.
		two := Ref{Region: region, Extents: append(ref.Slice(0, off).Extents, ref.Slice(off, ref.Len()-off).Extents...)}
		if !two.Equal(ref) || !ref.Equal(two) {
			t.Fatalf("%v cut at %d is not equal to itself: %v", ref.Extents, off, two.Extents)
		}
		if off > 0 && ref.Slice(0, off).Equal(ref) != (off == ref.Len()) {
			t.Fatalf("%v is equal to its first %d bytes", ref.Extents, off)
		}
	}
}

func TestSliceOutOfRangePanics(t *testing.T) {
	ref := Ref{Region: &plainRegion{b: make([]byte, 64)}, Extents: []Extent{{0, 4}, {8, 4}}}
	for _, c := range [][2]int64{{-1, 1}, {0, -1}, {0, 9}, {9, 0}, {8, 1}, {1, math.MaxInt64}, {math.MaxInt64, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("slice at %d of %d bytes passed", c[0], c[1])
				}
			}()
			ref.Slice(c[0], c[1])
		}()
	}
}

func TestExtentsOutsideTheRegionAreInvalid(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		name    string
		elem    int
		extents []Extent
		ok      bool
	}{
		{"whole", 1, []Extent{{0, size}}, true},
		{"empty at the end", 1, []Extent{{size, 0}}, true},
		{"none", 4, nil, true},
		{"one too long", 1, []Extent{{0, size + 1}}, false},
		{"past the end", 1, []Extent{{size, 1}}, false},
		{"negative offset", 1, []Extent{{-1, 1}}, false},
		{"negative length", 1, []Extent{{8, -1}}, false},
		{"sum wraps", 1, []Extent{{math.MaxInt64, math.MaxInt64}}, false},
		{"length wraps", 1, []Extent{{1, math.MaxInt64}}, false},
		{"second is bad", 1, []Extent{{0, 1}, {size, 1}}, false},
		{"offset between elements", 4, []Extent{{2, 4}}, false},
		{"length between elements", 4, []Extent{{4, 6}}, false},
		{"half elements", 2, []Extent{{2, 6}}, true},
	} {
		err := Ref{Extents: c.extents}.within(size, c.elem)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
