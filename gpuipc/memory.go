package gpuipc

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
	"unsafe"
)

// memory is a checked Ref as bytes of our address space: parts in object order,
// neighbours joined.
type memory struct {
	region *hostRegion
	parts  []part
	n      int64
}

// part is one run of bytes: off is its place in the object, at in the region.
type part struct {
	off, at int64
	b       []byte
}

// run is the longest run of bytes that begins at off, at most n.
func (m *memory) run(off, n int64) []byte {
	p := m.part(off)
	return p.b[off-p.off : min(off-p.off+n, int64(len(p.b)))]
}

func (m *memory) part(off int64) *part {
	if len(m.parts) == 1 {
		return &m.parts[0]
	}
	return &m.parts[sort.Search(len(m.parts), func(i int) bool { return m.parts[i].off > off })-1]
}

// populate prepares the bytes [off, off+n) for being written.
func (m *memory) populate(off, n int64) {
	for n > 0 {
		p := m.part(off)
		k := min(n, p.off+int64(len(p.b))-off)
		m.region.populate(p.at+off-p.off, k)
		off, n = off+k, n-k
	}
}

// view is the bytes [off, off+n): in place when they are one run, else gathered
// into *buf, which grows as needed.
func (m *memory) view(off, n int64, buf *[]byte) []byte {
	b := m.run(off, n)
	if int64(len(b)) < n {
		b = grown(buf, int(n))
		m.load(b, off)
	}
	return b
}

// load copies from the object into dst, store the other way.
func (m *memory) load(dst []byte, off int64) {
	for len(dst) > 0 {
		k := copy(dst, m.run(off, int64(len(dst))))
		dst, off = dst[k:], off+int64(k)
	}
}

func (m *memory) store(off int64, src []byte) {
	for len(src) > 0 {
		k := copy(m.run(off, int64(len(src))), src)
		src, off = src[k:], off+int64(k)
	}
}

// floats views aligned bytes as float32.
func floats(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// access is what one operation touches: it keeps the regions mapped until
// release, and knows which bytes are read and written.
type access struct {
	host    *host
	regions []*hostRegion
	uses    []use
}

type use struct {
	region *hostRegion
	Extent
	write bool
	name  string
}

const (
	reads  = false
	writes = true
)

func (a *access) release() {
	for _, r := range a.regions {
		r.release()
	}
}

// region pins a region of this device.
func (a *access) region(name string, r Region) (*hostRegion, error) {
	hr, ok := r.(*hostRegion)
	if !ok || hr.dev != a.host {
		return nil, fmt.Errorf("%s: the region is not one of this device: %w", name, ErrInvalid)
	}
	if slices.Contains(a.regions, hr) {
		return hr, nil
	}
	if err := hr.acquire(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	a.regions = append(a.regions, hr)
	return hr, nil
}

// open checks r and pins its region. An object without bytes needs no region.
func (a *access) open(name string, r Ref, elem int, write bool) (memory, error) {
	if r.Region == nil && r.Len() == 0 {
		return memory{}, nil
	}
	hr, err := a.region(name, r.Region)
	if err != nil {
		return memory{}, err
	}
	if err := r.within(hr.Bytes(), elem); err != nil {
		return memory{}, fmt.Errorf("%s: %w", name, err)
	}
	m := memory{region: hr, parts: make([]part, 0, len(r.Extents))}
	end := int64(-1)
	for _, e := range r.Extents {
		if e.Len == 0 {
			continue
		}
		a.uses = append(a.uses, use{hr, e, write, name})
		if k := len(m.parts) - 1; e.Off == end {
			p := &m.parts[k]
			p.b = hr.mem[end-int64(len(p.b)) : end+e.Len]
		} else {
			m.parts = append(m.parts, part{off: m.n, at: e.Off, b: hr.mem[e.Off : e.Off+e.Len]})
		}
		m.n += e.Len
		end = e.Off + e.Len
	}
	return m, nil
}

// openExact is open for an object that must have n bytes.
func (a *access) openExact(name string, r Ref, elem int, write bool, n int64) (memory, error) {
	if got := r.Len(); got != n {
		return memory{}, fmt.Errorf("%s: %d bytes instead of %d: %w", name, got, n, ErrInvalid)
	}
	return a.open(name, r, elem, write)
}

// disjoint refuses an operation that writes bytes twice, or writes bytes that it
// also reads: with several workers the result would depend on their order.
func (a *access) disjoint() error {
	for _, r := range a.regions {
		var in []use
		written := false
		for _, u := range a.uses {
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
	var last, written use // those seen so far that end last
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
			written = u // begins where the one before has ended, or later
		}
	}
	return nil
}

func overlap(a, b use) error {
	return fmt.Errorf("%s [%d, +%d) and %s [%d, +%d) overlap in region %s: %w", a.name, a.Off, a.Len, b.name, b.Off, b.Len, a.region.name, ErrInvalid)
}

// guarded runs f and turns a memory fault into ErrUnavailable. Sealed memory
// cannot shrink, but the kernel may still fail to back a page (strict
// overcommit, a hugetlb limit, a broken memory bank); that must cost one
// operation, not the process.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = fmt.Errorf("memory at %#x could not be reached: %w", p.Addr(), ErrUnavailable)
		default:
			panic(p)
		}
	}()
	return f()
}
