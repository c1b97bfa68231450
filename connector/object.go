package connector

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// object is the data of a segment or of one node of a checkpoint.
type object struct {
	held    *held
	layout  profile.Layout
	extents extents
	digests []uint64 // one per chunk of each part, in order; nil = not requested
}

// newObject makes an object and checks its digests against the layout.
func newObject(h *held, layout profile.Layout, e extents, digests []uint64) (object, error) {
	o := object{held: h, layout: layout, extents: e}
	if len(digests) == 0 {
		return o, nil
	}
	n := 0
	for i := range layout.Parts {
		n += gpuipc.Chunks(layout.Parts[i].Len)
	}
	if n != len(digests) {
		return o, fmt.Errorf("%d digests, want %d", len(digests), n)
	}
	o.digests = append([]uint64(nil), digests...)
	return o, nil
}

// Layout returns the list of parts. They are shared and must not be changed.
func (o *object) Layout() profile.Layout { return o.layout }

// Bytes returns the size of all parts.
func (o *object) Bytes() int64 { return o.layout.Bytes }

// Part returns the bytes of part i: a view of the arena, or a copy if the part is not contiguous
// there. It returns nil if the part does not exist or is not in memory (see Node), after
// Release, and if the lease is no longer valid. Call Valid after the last use of a view: if it
// returns false, the view may have shown the bytes of another object.
func (o *object) Part(i int) []byte {
	if !o.has(i) || o.held.keep() != nil {
		return nil
	}
	defer o.held.a.Release()
	p := &o.layout.Parts[i]
	mem := o.held.a.Arena.Bytes()
	if v, ok := o.extents.view(mem, p.Off, p.Len); ok && p.Len > 0 {
		return v
	}
	v := make([]byte, p.Len)
	o.extents.copyOut(v, mem, p.Off)
	if o.held.changed() != nil {
		return nil
	}
	return v
}

// Whole reports whether part i lies in one run, so that Part returns a view of it.
func (o *object) Whole(i int) bool {
	if !o.has(i) {
		return false
	}
	p := &o.layout.Parts[i]
	_, ok := o.extents.view(o.held.a.Arena.Bytes(), p.Off, p.Len)
	return ok
}

// has reports whether part i exists and is in memory.
func (o *object) has(i int) bool {
	return i >= 0 && i < len(o.layout.Parts) && o.extents.held(o.layout.Parts[i].Off, o.layout.Parts[i].Len)
}

// Read copies part i into dst, which must have its size. If the lease has digests, Read checks
// each chunk while it is in the CPU cache. nil means that dst holds the leased bytes.
// ErrCorrupt: a digest differs. ErrGone: the lease ended before or during the call. After an
// error dst must not be used.
func (o *object) Read(i int, dst []byte) error {
	if !o.has(i) {
		return invalid("read: part %d of %d does not exist or is not in memory", i, len(o.layout.Parts))
	}
	p := &o.layout.Parts[i]
	if int64(len(dst)) != p.Len {
		return invalid("read: part %d has %d bytes, destination %d", i, p.Len, len(dst))
	}
	if err := o.held.keep(); err != nil {
		return err
	}
	defer o.held.a.Release()
	first := 0
	for j := range i {
		first += gpuipc.Chunks(o.layout.Parts[j].Len)
	}
	mem := o.held.a.Arena.Bytes()
	for chunk := 0; len(dst) > 0; chunk++ {
		run := dst[:min(len(dst), gpuipc.ChunkBytes)]
		o.extents.copyOut(run, mem, p.Off+int64(chunk)*gpuipc.ChunkBytes)
		if err := o.check(run, i, chunk, first+chunk); err != nil {
			return err
		}
		dst = dst[len(run):]
	}
	return o.held.changed()
}

// Verify recomputes the digests of all parts in memory. It returns ErrCorrupt if a digest
// differs, ErrGone if the lease is not valid, and ErrInvalid if digests were not requested.
func (o *object) Verify() error {
	if o.digests == nil {
		return invalid("verify: no digests were asked for")
	}
	if err := o.held.keep(); err != nil {
		return err
	}
	defer o.held.a.Release()
	mem := o.held.a.Arena.Bytes()
	var scratch []byte
	at := 0
	for i := range o.layout.Parts {
		p := &o.layout.Parts[i]
		if !o.has(i) {
			at += gpuipc.Chunks(p.Len)
			continue
		}
		for chunk := range gpuipc.Chunks(p.Len) {
			off := int64(chunk) * gpuipc.ChunkBytes
			n := min(p.Len-off, gpuipc.ChunkBytes)
			run, ok := o.extents.view(mem, p.Off+off, n)
			if !ok {
				scratch = append(scratch[:0], make([]byte, n)...)
				o.extents.copyOut(scratch, mem, p.Off+off)
				run = scratch
			}
			if err := o.check(run, i, chunk, at); err != nil {
				return err
			}
			at++
		}
	}
	return o.held.changed()
}

// check compares one chunk with the digest at index at.
func (o *object) check(run []byte, part, chunk, at int) error {
	if o.digests == nil {
		return nil
	}
	got := gpuipc.DigestBytes(run)
	if got == o.digests[at] {
		return nil
	}
	if err := o.held.changed(); err != nil {
		return err
	}
	o.held.a.CountCorrupt()
	return fmt.Errorf("lease %d, part %d, chunk %d: digest %#x, want %#x: %w", o.held.id, part, chunk, got, o.digests[at], ErrCorrupt)
}
