// Package wire is the local protocol between a client and the daemon: frames, messages and
// codes. docs/protocol.md shows the byte layout.
//
// Package schema describes messages, operations, numbers and bounds; the files named *_gen.go
// are generated from it. The header is written by hand, and so is the cursor that generated
// codecs use to read and write scalars and columns.
//
// Codecs read and write fixed-layout little-endian messages without allocation. Decoded slices
// are views of the frame and are valid for as long as the frame is.
package wire
