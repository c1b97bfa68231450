package gpuipc

import (
	"fmt"
	"slices"
)

// Absent reports whether r is the zero Ref. A Ref to an empty object of a region is not
// absent.
func (r Ref) Absent() bool { return r.Region == nil && len(r.Extents) == 0 }

// Len returns the number of bytes of the object.
func (r Ref) Len() int64 {
	var n int64
	for _, e := range r.Extents {
		n += e.Len
	}
	return n
}

// Slice returns the bytes [off, off+n) of the object. It panics like a slice expression if
// they are out of range. The result may share Extents with r.
func (r Ref) Slice(off, n int64) Ref {
	if off < 0 || n < 0 || off > r.Len()-n {
		panic(fmt.Sprintf("gpuipc: slice of %d bytes at %d of an object of %d bytes", n, off, r.Len()))
	}
	out := Ref{Region: r.Region}
	if n == 0 {
		return out
	}
	i := 0
	for off >= r.Extents[i].Len {
		off -= r.Extents[i].Len
		i++
	}
	if off == 0 && n == r.Extents[i].Len {
		out.Extents = r.Extents[i : i+1 : i+1]
		return out
	}
	for ; n > 0; i++ {
		e := r.Extents[i]
		take := min(e.Len-off, n)
		if take > 0 {
			out.Extents = append(out.Extents, Extent{Off: e.Off + off, Len: take})
		}
		n -= take
		off = 0
	}
	return out
}

// Equal reports whether r and o name the same bytes of the same region in the same order.
// It does not matter how these are split into extents.
func (r Ref) Equal(o Ref) bool {
	if r.Region != o.Region {
		return false
	}
	return slices.Equal(joined(r.Extents), joined(o.Extents))
}

// joined merges adjacent extents and drops empty ones.
func joined(in []Extent) []Extent {
	var out []Extent
	for _, e := range in {
		if e.Len == 0 {
			continue
		}
		if k := len(out) - 1; k >= 0 && out[k].Off+out[k].Len == e.Off {
			out[k].Len += e.Len
			continue
		}
		out = append(out, e)
	}
	return out
}

// within checks that every extent of r is inside a region of size bytes, and that its
// offset and length are multiples of elem bytes. So later code can index without checks.
func (r Ref) within(size int64, elem int) error {
	var total int64
	for i, e := range r.Extents {
		if e.Off < 0 || e.Len < 0 || e.Len > size || e.Off > size-e.Len {
			return fmt.Errorf("extent %d [%d, +%d) of a region of %d bytes: %w", i, e.Off, e.Len, size, ErrInvalid)
		}
		if e.Off%int64(elem) != 0 || e.Len%int64(elem) != 0 {
			return fmt.Errorf("extent %d [%d, +%d) is not aligned to %d-byte elements: %w", i, e.Off, e.Len, elem, ErrInvalid)
		}
		// Extents may repeat bytes (a source used twice), but a sum that wraps
		// would pass every later length check.
		if total += e.Len; total < 0 {
			return fmt.Errorf("%d extents overflow: %w", len(r.Extents), ErrInvalid)
		}
	}
	return nil
}
