package gpuipc

import (
	"cmp"
	"fmt"
	"slices"
)

// checkTable refuses a block table if any byte to be written is outside the region or
// inside the source, or would be written twice.
func (j *RotateJob) checkTable(source []use) error {
	d, rows := &j.Dst, j.Rows
	if d.BlockRows <= 0 || d.FirstRow < 0 || d.Base < 0 || d.BlockStride < 0 || d.RowStride < 0 || d.HeadStride < 0 {
		return fmt.Errorf("block table of %d rows a block, first %d, base %d, strides %d, %d, %d: %w",
			d.BlockRows, d.FirstRow, d.Base, d.BlockStride, d.RowStride, d.HeadStride, ErrInvalid)
	}
	elem := int64(j.Type.Size())
	if (d.Base|d.BlockStride|d.RowStride|d.HeadStride)%elem != 0 {
		return fmt.Errorf("block table: base %d or strides %d, %d, %d not aligned to %d-byte elements: %w",
			d.Base, d.BlockStride, d.RowStride, d.HeadStride, elem, ErrInvalid)
	}
	if rows == 0 {
		return nil
	}
	first, last := d.FirstRow/d.BlockRows, (d.FirstRow+rows-1)/d.BlockRows
	if last < first || last >= len(d.Blocks) {
		return fmt.Errorf("block table: rows end in block %d of %d: %w", last, len(d.Blocks), ErrInvalid)
	}
	used := d.Blocks[first : last+1]
	if err := j.checkBounds(source, used); err != nil {
		return err
	}
	return j.checkDistinct(used)
}

// checkBounds checks the first and the last byte that are written in every used block.
func (j *RotateJob) checkBounds(source []use, used []uint32) error {
	d, size := &j.Dst, j.Dst.Region.Bytes()
	heads, ok := reach(int64(j.Heads-1), d.HeadStride, size)
	for i, b := range used {
		low, high := 0, d.BlockRows-1
		if i == 0 {
			low = d.FirstRow % d.BlockRows
		}
		if i == len(used)-1 {
			high = (d.FirstRow + j.Rows - 1) % d.BlockRows
		}
		block, ok1 := reach(int64(b), d.BlockStride, size)
		begin, ok2 := reach(int64(low), d.RowStride, size)
		end, ok3 := reach(int64(high), d.RowStride, size)
		// Each term is at most size (2^46), so the sums cannot wrap.
		if !ok || !ok1 || !ok2 || !ok3 || d.Base > size || d.Base+block+end+heads+j.headBytes() > size {
			return fmt.Errorf("block %d (entry %d) reaches outside the region of %d bytes: %w", b, i, size, ErrInvalid)
		}
		e := Extent{Off: d.Base + block + begin, Len: end - begin + heads + j.headBytes()}
		for _, u := range source {
			if u.region == d.Region && u.Off < e.Off+e.Len && e.Off < u.Off+u.Len {
				return overlap(use{d.Region, e, writes, fmt.Sprintf("block %d", b)}, u)
			}
		}
	}
	return nil
}

// checkDistinct refuses a block that is named twice, and strides that put two rows or heads
// onto the same bytes. The engine chooses the order of the strides: [block, row, head],
// [block, head, row] and [head, block, row] are all accepted.
func (j *RotateJob) checkDistinct(used []uint32) error {
	d := &j.Dst
	ids := slices.Sorted(slices.Values(used))
	for i := 1; i < len(ids); i++ {
		if ids[i] == ids[i-1] {
			return fmt.Errorf("block %d is named twice: %w", ids[i], ErrInvalid)
		}
	}
	// The number of rows of a block that the job can write.
	lines := d.BlockRows
	if len(used) == 1 {
		lines = j.Rows
	}
	type axis struct{ count, stride int64 }
	axes := []axis{
		{int64(j.Heads), d.HeadStride},
		{int64(lines), d.RowStride},
		{int64(ids[len(ids)-1]-ids[0]) + 1, d.BlockStride},
	}
	slices.SortFunc(axes, func(x, y axis) int { return cmp.Compare(x.stride, y.stride) })
	span := j.headBytes()
	for _, x := range axes {
		if x.count == 1 {
			continue
		}
		if x.stride < span {
			return fmt.Errorf("block table: strides %d, %d, %d let rows of %d bytes a head overlap: %w",
				d.BlockStride, d.RowStride, d.HeadStride, j.headBytes(), ErrInvalid)
		}
		span += (x.count - 1) * x.stride
	}
	return nil
}

// reach returns count*stride, and false if that is more than limit.
func reach(count, stride, limit int64) (int64, bool) {
	if count == 0 || stride == 0 {
		return 0, true
	}
	if count > limit/stride {
		return 0, false
	}
	return count * stride, true
}
