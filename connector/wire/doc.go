// Package wire is the local protocol between a client and the daemon: frames,
// messages and codes. docs/protocol.md draws the bytes.
//
// Package schema describes messages, operations, numbers and bounds; the files
// named *_gen.go are generated from it. Written by hand are the header and the
// cursor that generated codecs read and write scalars and columns with.
//
// Codecs write and read fixed-layout little-endian messages without
// allocation; decoded slices are views of the frame and live as long as it.
package wire
