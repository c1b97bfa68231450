// Package wire is the local protocol between a client and the daemon: frames,
// messages and codes. docs/protocol.md draws the bytes.
//
// Codecs write and read fixed-layout little-endian messages without
// allocation; decoded slices are views of the frame and live as long as it.
package wire
