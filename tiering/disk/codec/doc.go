// Package codec makes cached state smaller on its way to a slow medium, without
// loss. It knows bytes and their element type, nothing of where they go.
//
// What compresses is the exponent: neighbouring numbers have much the same size,
// while sign and mantissa are as good as random. So the bytes are split into
// planes - the exponent alone in the first, sign and mantissa in the others - and
// the first plane is Huffman coded (huff0, four streams per block). General
// compressors find nothing in such bytes as they lie in memory.
//
// # Planes
//
// Of every number, written as bits with the highest first:
//
//	         memory                      plane 0    1          2          3
//	BF16     seeeeeee emmmmmmm           eeeeeeee   mmmmmmms
//	F16      seeeeemm mmmmmmmm           eeeeemmm   mmmmmmms
//	F32      seeeeeee emmmmmmm x×8 y×8   eeeeeeee   mmmmmmms   xxxxxxxx   yyyyyyyy
//
// That is, the upper 16 bits are rotated left by one. F32 numbers that were
// widened from BF16 have zeros in planes 2 and 3.
//
// # Stream
//
// All numbers are little-endian.
//
//	 0  "PLH1"                  the digit is the version
//	 4  element type, 1 byte    as in kernel.DType
//	 5  0
//	 6  chunk, 2 bytes          raw bytes of a chunk, in units of 4096
//	 8  raw length, 8 bytes
//	16  table                   4 bytes for each chunk
//	    chunks                  one after another, nothing between or behind
//
//	table entry:  bits 0-23 stored length of the chunk
//	              bits 24-25 form of plane 0, 26-27 of plane 1, 28-29, 30-31
//
//	form: 0 raw   1 huff0, plane 0 only   2 one byte, repeated
//
// Every chunk but the last holds the same number of raw bytes. An entry whose
// forms are all 0 is a chunk kept as it was, not split. Any other chunk is, in
// this order:
//
//	planes 1 and up, each its bytes or the one byte
//	what is behind the last whole number (last chunk only), less than an element
//	plane 0: its bytes, the one byte, or a huff0 block (table, then four streams)
//
// so that all lengths follow from the table. A chunk is decoded without any
// other. The stream holds no checksum: who stores it has one over its bytes.
//
// # Use
//
// All functions may run at once on different memory; they keep no reference to
// what they are given. The amd64 assembly is written by a program in
// scripts/kernels; plain Go (split_generic.go) is its meaning.
//
//go:generate go run -C ../../../scripts/kernels . ../../tiering/disk/codec
package codec
