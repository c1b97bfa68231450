package gpuipc

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sort"
	"unsafe"
)

// memory is a checked Ref as bytes of our address space. Its parts are in the order of the
// object, and adjacent extents are one part.
type memory struct {
	region *hostRegion
	parts  []part
	n      int64
}

// part is one run of bytes. The field off is its offset in the object, and the field at is
// its offset in the region.
type part struct {
	off, at int64
	b       []byte
}

// The method run returns the bytes from offset off to the end of their part, but at most n
// bytes.
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

// populate prepares the bytes [off, off+n) for writing.
func (m *memory) populate(off, n int64) {
	for n > 0 {
		p := m.part(off)
		k := min(n, p.off+int64(len(p.b))-off)
		m.region.populate(p.at+off-p.off, k)
		off, n = off+k, n-k
	}
}

// view returns the bytes [off, off+n). If they are one run, it returns them in place, else
// it gathers them into *buf, which grows as needed.
func (m *memory) view(off, n int64, buf *[]byte) []byte {
	b := m.run(off, n)
	if int64(len(b)) < n {
		b = grown(buf, int(n))
		m.load(b, off)
	}
	return b
}

// load copies from the object into dst, and store copies from src into the object.
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

// floats returns bytes as float32. The bytes must be aligned.
func floats(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// access keeps the regions of one operation mapped until release.
type access struct {
	Checker
	host *host
}

func (h *host) access() access { return access{Checker: Checker{Holder: h}, host: h} }

// Hold keeps a region of this device mapped.
func (h *host) Hold(r Region) error {
	hr, ok := r.(*hostRegion)
	if !ok || hr.dev != h {
		return fmt.Errorf("the region is not one of this device: %w", ErrInvalid)
	}
	return hr.acquire()
}

func (a *access) release() {
	for _, r := range a.regions {
		r.(*hostRegion).release()
	}
}

// memory returns the bytes of a checked object.
func (a *access) memory(r Ref) memory {
	if r.Region == nil {
		return memory{}
	}
	hr := r.Region.(*hostRegion)
	m := memory{region: hr, parts: make([]part, 0, len(r.Extents))}
	end := int64(-1)
	for _, e := range r.Extents {
		if e.Len == 0 {
			continue
		}
		if k := len(m.parts) - 1; e.Off == end {
			p := &m.parts[k]
			p.b = hr.mem[end-int64(len(p.b)) : end+e.Len]
		} else {
			m.parts = append(m.parts, part{off: m.n, at: e.Off, b: hr.mem[e.Off : e.Off+e.Len]})
		}
		m.n += e.Len
		end = e.Off + e.Len
	}
	return m
}

// memoryFault is an access that the kernel refused.
type memoryFault struct{ addr uintptr }

func (f *memoryFault) Error() string {
	return fmt.Sprintf("memory at %#x could not be reached: %v", f.addr, ErrUnavailable)
}

func (f *memoryFault) Unwrap() error { return ErrUnavailable }

// guarded runs f and turns a memory fault into an error, a memoryFault. Sealed memory
// cannot shrink, but the kernel may still have no page to give (strict overcommit, a
// hugetlb limit, a broken memory bank), or may be told to give none (holes of imported
// memory). That must end one operation, not the process.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = &memoryFault{p.Addr()}
		default:
			panic(p)
		}
	}()
	return f()
}
