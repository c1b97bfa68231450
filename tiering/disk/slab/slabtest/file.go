package slabtest

import (
	"io"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// faultFile is a File of Faults.
type faultFile struct {
	slab.File
	faults *Faults
	name   string
}

func (f *faultFile) Sync() error {
	if err := f.faults.plain(OpSync, f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) ReadAt(bufs [][]byte, off int64) error {
	r, ok := f.faults.meet(OpRead, f.name)
	if !ok {
		return f.File.ReadAt(bufs, off)
	}
	switch r.Kind {
	case FaultShort:
		return f.readShort(&r, bufs, off)
	case FaultFlipRead:
		return f.readFlipped(&r, bufs, off)
	}
	return f.faults.fail(&r, OpRead, f.name)
}

func (f *faultFile) readShort(r *Rule, bufs [][]byte, off int64) error {
	total := length(bufs)
	if total < slab.BlockBytes {
		return f.File.ReadAt(bufs, off)
	}
	got := f.faults.draw(total/slab.BlockBytes) * slab.BlockBytes
	if err := f.File.ReadAt(cut(bufs, 0, got), off); err != nil {
		return err
	}
	f.faults.injected[FaultShort].Add(1)
	return r.err(OpRead, f.name, io.ErrUnexpectedEOF)
}

func (f *faultFile) readFlipped(r *Rule, bufs [][]byte, off int64) error {
	err := f.File.ReadAt(bufs, off)
	total := length(bufs)
	if err != nil || total == 0 {
		return err
	}
	for _, bit := range f.faults.drawBits(r.Bits, total) {
		cut(bufs, bit/8, 1)[0][0] ^= 1 << (bit % 8)
	}
	f.faults.injected[FaultFlipRead].Add(1)
	return nil
}

func (f *faultFile) WriteAt(bufs [][]byte, off int64) error {
	r, ok := f.faults.meet(OpWrite, f.name)
	if !ok {
		return f.File.WriteAt(bufs, off)
	}
	switch r.Kind {
	case FaultTorn:
		return f.writeTorn(&r, bufs, off)
	case FaultReordered:
		return f.writeReordered(&r, bufs, off)
	case FaultFlipRest:
		return f.writeFlipped(&r, bufs, off)
	}
	return f.faults.fail(&r, OpWrite, f.name)
}

// sectorBytes is the smallest unit that a disk writes completely or not at all.
const sectorBytes = 512

func (f *faultFile) writeTorn(r *Rule, bufs [][]byte, off int64) error {
	total := length(bufs)
	if total < slab.BlockBytes {
		return f.File.WriteAt(bufs, off)
	}
	kept := f.faults.draw(total/sectorBytes) * sectorBytes
	whole := kept &^ (slab.BlockBytes - 1)
	if err := f.File.WriteAt(cut(bufs, 0, whole), off); err != nil {
		return err
	}
	if part := int(kept - whole); part > 0 {
		block := slab.AlignedBuffer(slab.BlockBytes)
		if err := f.File.ReadAt([][]byte{block}, off+whole); err != nil {
			return err
		}
		copy(block[:part], cut(bufs, whole, slab.BlockBytes)[0]) // buffers are whole blocks
		if err := f.File.WriteAt([][]byte{block}, off+whole); err != nil {
			return err
		}
	}
	f.faults.injected[FaultTorn].Add(1)
	return r.err(OpWrite, f.name, nil)
}

// writeReordered leaves out at least one block. If there are several blocks, it writes at
// least one.
func (f *faultFile) writeReordered(r *Rule, bufs [][]byte, off int64) error {
	blocks := length(bufs) / slab.BlockBytes
	if blocks == 0 {
		return f.File.WriteAt(bufs, off)
	}
	lost := f.faults.draw(blocks)
	kept := (lost + 1 + f.faults.draw(max(1, blocks-1))) % blocks
	for i := range blocks {
		block := cut(bufs, i*slab.BlockBytes, slab.BlockBytes)
		if i == lost || i != kept && f.faults.draw(2) == 0 {
			continue
		}
		if err := f.File.WriteAt(block, off+i*slab.BlockBytes); err != nil {
			return err
		}
	}
	f.faults.injected[FaultReordered].Add(1)
	return r.err(OpWrite, f.name, nil)
}

func (f *faultFile) writeFlipped(r *Rule, bufs [][]byte, off int64) error {
	err := f.File.WriteAt(bufs, off)
	total := length(bufs)
	if err != nil || total == 0 {
		return err
	}
	for _, bit := range f.faults.drawBits(r.Bits, total) {
		if err := flip(f.File, off+bit/8, 1<<(bit%8)); err != nil {
			return err
		}
	}
	f.faults.injected[FaultFlipRest].Add(1)
	return r.err(OpWrite, f.name, nil)
}

// flip changes one byte of a file.
func flip(f slab.File, off int64, mask byte) error {
	block := slab.AlignedBuffer(slab.BlockBytes)
	start := off &^ (slab.BlockBytes - 1)
	if err := f.ReadAt([][]byte{block}, start); err != nil {
		return err
	}
	block[off-start] ^= mask
	return f.WriteAt([][]byte{block}, start)
}

func length(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

// cut returns the bytes [off, off+n) of a list of buffers, as pieces of them.
func cut(bufs [][]byte, off, n int64) (pieces [][]byte) {
	for _, b := range bufs {
		if from, to := max(off, 0), min(off+n, int64(len(b))); from < to {
			pieces = append(pieces, b[from:to])
		}
		off -= int64(len(b))
	}
	return pieces
}
