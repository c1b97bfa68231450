package gpuipc

import (
	"cmp"
	"fmt"
	"slices"
)

// Holder keeps a region in use for one operation. Hold returns ErrInvalid for a closed
// region and for a region of another device.
type Holder interface {
	Hold(Region) error
}

// Checker checks one operation, as the interface Device promises, and collects the bytes
// that the operation reads and writes. Every device uses Checker, so that all devices
// refuse the same jobs. A Checker needs a Holder and serves one operation.
type Checker struct {
	Holder  Holder
	regions []Region
	uses    []use
}

// use is one run of bytes that an operation touches.
type use struct {
	region Region
	Extent
	write bool
	name  string
}

const (
	reads  = false
	writes = true
)

// Regions returns the regions that the checks hold. The caller releases them when the
// operation has ended, also if a check failed.
func (c *Checker) Regions() []Region { return c.regions }

// Reads checks an object that the operation reads. The object must have n bytes, and its
// extents must be aligned to elements of size elem, in bytes. The parameter name is for
// error messages.
func (c *Checker) Reads(name string, r Ref, elem int, n int64) error {
	return c.exact(name, r, elem, n, reads)
}

// Writes checks an object that the operation writes.
func (c *Checker) Writes(name string, r Ref, elem int, n int64) error {
	return c.exact(name, r, elem, n, writes)
}

func (c *Checker) exact(name string, r Ref, elem int, n int64, write bool) error {
	if got := r.Len(); got != n {
		return fmt.Errorf("%s: %d bytes instead of %d: %w", name, got, n, ErrInvalid)
	}
	return c.object(name, r, elem, write)
}

// object checks r and holds its region. An object without bytes needs no region.
func (c *Checker) object(name string, r Ref, elem int, write bool) error {
	if r.Region == nil && r.Len() == 0 {
		return nil
	}
	if err := c.hold(name, r.Region); err != nil {
		return err
	}
	if err := r.within(r.Region.Bytes(), elem); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, e := range r.Extents {
		if e.Len > 0 {
			c.uses = append(c.uses, use{r.Region, e, write, name})
		}
	}
	return nil
}

// hold holds a region, unless it is held already.
func (c *Checker) hold(name string, r Region) error {
	// Held regions are pointers of the device, so comparing is safe for any r.
	if slices.Contains(c.regions, r) {
		return nil
	}
	if err := c.Holder.Hold(r); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.regions = append(c.regions, r)
	return nil
}

// Copy checks the sides of a copy.
func (c *Checker) Copy(dst, src Ref) error {
	if err := c.object("destination", dst, 1, writes); err != nil {
		return err
	}
	if err := c.Reads("source", src, 1, dst.Len()); err != nil {
		return err
	}
	return c.Disjoint()
}

// CheckDigests refuses a list of digests that does not fit n bytes.
func CheckDigests(digests []uint64, n int64) error {
	if len(digests) != Chunks(n) {
		return fmt.Errorf("%d digests for %d chunks of %d bytes: %w", len(digests), Chunks(n), n, ErrInvalid)
	}
	return nil
}

// Disjoint refuses an operation that writes bytes twice, or writes bytes that
// it also reads: with several workers the result would depend on their order.
// Call it after all objects are checked.
func (c *Checker) Disjoint() error {
	for _, r := range c.regions {
		var in []use
		written := false
		for _, u := range c.uses {
			if u.region == r {
				in = append(in, u)
				written = written || u.write
			}
		}
		if !written {
			continue
		}
		if err := disjoint(in); err != nil {
			return err
		}
	}
	return nil
}

func disjoint(in []use) error {
	slices.SortFunc(in, func(x, y use) int { return cmp.Compare(x.Off, y.Off) })
	var last, written use // of the uses so far: the one that ends last, and the last write
	for _, u := range in {
		if u.write && u.Off < last.Off+last.Len {
			return overlap(u, last)
		}
		if u.Off < written.Off+written.Len {
			return overlap(u, written)
		}
		if u.Off+u.Len > last.Off+last.Len {
			last = u
		}
		if u.write {
			written = u // a write starts where the previous write ends, or later
		}
	}
	return nil
}

func overlap(a, b use) error {
	return fmt.Errorf("%s [%d, +%d) and %s [%d, +%d) overlap in a region of %d bytes: %w",
		a.name, a.Off, a.Len, b.name, b.Off, b.Len, a.region.Bytes(), ErrInvalid)
}
