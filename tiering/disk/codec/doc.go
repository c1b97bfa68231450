// Package codec compresses cached state for a slow medium, without loss. It handles bytes
// of a given element type; callers store them.
//
// Only the exponents of the numbers compress: neighboring numbers have similar
// magnitudes, while signs and mantissas look random. So the bytes are split into planes:
// the first has the exponents, the others have signs and mantissas. The first plane is
// Huffman coded (huff0, four streams per block). General compressors find no redundancy
// in the bytes as they are in memory.
//
// # Planes
//
// The bits of a number (s = sign, e = exponent, m = mantissa, x and y = low bytes) in
// memory and in planes, highest bit first:
//
//	         memory                      plane 0    1          2          3
//	BF16     seeeeeee emmmmmmm           eeeeeeee   mmmmmmms
//	F16      seeeeemm mmmmmmmm           eeeeemmm   mmmmmmms
//	F32      seeeeeee emmmmmmm x×8 y×8   eeeeeeee   mmmmmmms   xxxxxxxx   yyyyyyyy
//
// The upper 16 bits are rotated left by one; the planes are the bytes of the result. F32
// numbers that were widened from BF16 have zeros in planes 2 and 3.
//
// # Stream
//
// All numbers are little-endian.
//
//	 0  "PLH1"                  the digit is the version
//	 4  element type, 1 byte    as in kernel.DType
//	 5  0
//	 6  chunk, 2 bytes          raw length of a chunk, in units of 4096 bytes
//	 8  raw length, 8 bytes
//	16  table                   4 bytes for each chunk
//	    chunks                  one after another, without gaps
//
//	table entry:  bits 0-23 stored length of the chunk
//	              bits 24-25 form of plane 0, 26-27 of plane 1, 28-29, 30-31
//
//	form: 0 raw   1 huff0, plane 0 only   2 one byte, repeated
//
// Raw bytes are the bytes before encoding. Every chunk except the last has the same
// number of raw bytes. If all forms of a table entry are 0, its chunk is stored unchanged
// and not split. Any other chunk consists of, in this order:
//
//	planes 1 and up: each plane's bytes, or the one byte
//	the bytes after the last whole number (last chunk only)
//	plane 0: its bytes, the one byte, or a huff0 block (code table, then four streams)
//
// The table determines all lengths, and each chunk can be decoded independently. The stream
// has no checksum, because the formats that contain streams have one over their bytes.
//
// # Use
//
// All functions may be called concurrently on different memory; they keep no reference to
// their arguments. A program in scripts/kernels generates the amd64 assembly, which has
// the same results as plain Go (split_generic.go).
//
//go:generate go run -C ../../../scripts/kernels . ../../tiering/disk/codec
package codec
