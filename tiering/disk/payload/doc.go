// Package payload moves the bytes of an entry between the memory of its ranks and
// the runs where it lies, and checks them on the way: as they are, straight from and
// to the pages of the arena, or coded part by part. Where an entry lies, and whether
// it may be read or written at all, its caller knows.
//
// The memory of an object that is encoded is read until Encoded.Release. That of a
// Reading's destination is written until Read returns, which waits for everything it
// has begun. The last, partial block of a rank goes through a block of our own, so
// that the disk does not get what lies behind it.
//
// All functions and methods may run at once.
package payload
