package slab

import "io"

// faultFile is a File of Faults.
type faultFile struct {
	File
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
	if total < BlockBytes {
		return f.File.ReadAt(bufs, off)
	}
	v := vector{bufs: bufs}
	got := f.faults.draw(total/BlockBytes) * BlockBytes
	if err := f.File.ReadAt(v.cut(nil, int(got)), off); err != nil {
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
		v := vector{bufs: bufs}
		v.advance(int(bit / 8))
		v.bufs[0][v.done] ^= 1 << (bit % 8)
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
	if total < BlockBytes {
		return f.File.WriteAt(bufs, off)
	}
	kept := f.faults.draw(total/sectorBytes) * sectorBytes
	whole := kept &^ (BlockBytes - 1)
	v := vector{bufs: bufs}
	if err := f.File.WriteAt(v.cut(nil, int(whole)), off); err != nil {
		return err
	}
	if part := int(kept - whole); part > 0 {
		block := AlignedBuffer(BlockBytes)
		if err := f.File.ReadAt([][]byte{block}, off+whole); err != nil {
			return err
		}
		copy(block[:part], v.bufs[0][v.done:]) // buffers are whole blocks
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
	blocks := length(bufs) / BlockBytes
	if blocks == 0 {
		return f.File.WriteAt(bufs, off)
	}
	lost := f.faults.draw(blocks)
	kept := (lost + 1 + f.faults.draw(max(1, blocks-1))) % blocks
	v := vector{bufs: bufs}
	for i := range blocks {
		block := v.cut(nil, BlockBytes)
		if i == lost || i != kept && f.faults.draw(2) == 0 {
			continue
		}
		if err := f.File.WriteAt(block, off+i*BlockBytes); err != nil {
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
func flip(f File, off int64, mask byte) error {
	block := AlignedBuffer(BlockBytes)
	start := off &^ (BlockBytes - 1)
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
