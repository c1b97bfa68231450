package slab

import "unsafe"

// AlignedBuffer returns n zero bytes at an address that File accepts. The garbage
// collector frees them. The capacity is n rounded up to whole blocks.
func AlignedBuffer(n int) []byte {
	whole := (n + BlockBytes - 1) &^ (BlockBytes - 1)
	b := make([]byte, whole+BlockBytes)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (BlockBytes - 1))
	return b[skip : skip+n : skip+whole]
}
