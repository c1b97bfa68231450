package payload

import (
	"context"
	"errors"
	"sync"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// blocks rounds up to whole blocks.
func blocks(n int64) int64 { return extent.Padded(n) }

// piece is a run of whole blocks in memory, which transfers read or write. If the object
// ends inside its last block, b is a temporary block, and home is the place in the object's
// memory for the bytes of the object that are in b. The rest of b is zeros, so the disk
// never gets the bytes that follow the object in the arena.
type piece struct {
	b    []byte
	home []byte
}

// view is one rank's bytes, divided into pieces. The caller of openView calls close, once.
type view struct {
	ref    gpuipc.Ref
	parts  [][]byte // the object's bytes, in order
	pieces []piece
	staged []byte // a copy of all bytes, if transfers cannot use the memory itself; else nil
	unpin  func()
}

func (v *view) close() {
	if v.unpin != nil {
		v.unpin()
	}
}

// openView prepares a rank's memory for transfers: in place if the CPU can address it and
// it is block aligned, otherwise in a copy. If write is true, transfers fill the memory.
// After an error the view may be nil; if it is not, the caller closes it.
func openView(ctx context.Context, dev gpuipc.Device, ref gpuipc.Ref, write bool) (*view, error) {
	v := &view{ref: ref}
	parts, unpin, err := dev.Pin(ref, write)
	switch {
	case err == nil && aligned(parts):
		v.unpin, v.parts = unpin, parts
		v.pieces = inPlace(parts)
		if !write {
			for _, p := range v.pieces {
				copy(p.b, p.home) // home is nil except in the last, partial piece
			}
		}
		return v, nil
	case err == nil:
		unpin()
	case !errors.Is(err, gpuipc.ErrUnavailable):
		return nil, err
	}
	n := ref.Len()
	v.staged = slab.AlignedBuffer(int(blocks(n)))
	if n > 0 {
		v.pieces = []piece{{b: v.staged}}
	}
	v.staged = v.staged[:n]
	v.parts = [][]byte{v.staged}
	if write {
		return v, nil
	}
	return v, dev.Load(ctx, v.staged, ref)
}

// aligned reports whether all parts are block aligned, and all except the last consist of
// whole blocks.
func aligned(parts [][]byte) bool {
	for i, p := range parts {
		if uintptr(unsafe.Pointer(unsafe.SliceData(p)))%slab.BlockBytes != 0 {
			return false
		}
		if i < len(parts)-1 && len(p)%slab.BlockBytes != 0 {
			return false
		}
	}
	return true
}

func inPlace(parts [][]byte) []piece {
	pieces := make([]piece, 0, len(parts)+1)
	for _, p := range parts {
		whole := len(p) &^ (slab.BlockBytes - 1)
		if whole > 0 {
			pieces = append(pieces, piece{b: p[:whole:whole]})
		}
		if whole < len(p) {
			pieces = append(pieces, piece{b: slab.AlignedBuffer(slab.BlockBytes), home: p[whole:]})
		}
	}
	return pieces
}

// window returns the bytes [off, off+n) of a rank, as runs in memory.
func (v *view) window(off, n int64) [][]byte { return gpuipc.Window(v.parts, off, n) }

// gather returns the bytes of runs as one slice: the run itself if there is only one,
// otherwise a copy in scratch.
func gather(runs [][]byte, scratch []byte) []byte {
	if len(runs) == 1 {
		return runs[0]
	}
	scratch = scratch[:0]
	for _, r := range runs {
		scratch = append(scratch, r...)
	}
	return scratch
}

// scatter copies the bytes of the slice from to several runs, in order.
func scatter(runs [][]byte, from []byte) {
	for _, r := range runs {
		from = from[copy(r, from):]
	}
}

// cutter cuts pieces from the front of a list.
type cutter struct{ rest []piece }

// next cuts n bytes, which are whole blocks, from the front.
func (c *cutter) next(n int64) (taken []piece) {
	for n > 0 {
		p := &c.rest[0]
		k := min(n, int64(len(p.b)))
		taken = append(taken, piece{b: p.b[:k:k], home: p.home})
		if p.b = p.b[k:]; len(p.b) == 0 {
			c.rest = c.rest[1:]
		}
		n -= k
	}
	return taken
}

func buffers(pieces []piece) [][]byte {
	bufs := make([][]byte, len(pieces))
	for i, p := range pieces {
		bufs[i] = p.b
	}
	return bufs
}

// budget limits the bytes that several goroutines use together. The method take waits until
// enough bytes are free. A request for more bytes than the whole budget takes all of the
// budget.
type budget struct {
	mu   sync.Mutex
	cond *sync.Cond
	all  int64
	free int64
}

func newBudget(bytes int64) *budget {
	b := &budget{all: bytes, free: bytes}
	b.cond = sync.NewCond(&b.mu)
	return b
}

func (b *budget) take(bytes int64) (took int64) {
	bytes = min(bytes, b.all)
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.free < bytes {
		b.cond.Wait()
	}
	b.free -= bytes
	return bytes
}

func (b *budget) give(bytes int64) {
	b.mu.Lock()
	b.free += bytes
	b.mu.Unlock()
	b.cond.Broadcast()
}
