// Package payload moves the bytes of an entry between the memory of its ranks and its
// runs, and verifies them on the way: either unchanged, directly from and to the pages of
// the arena, or coded part by part. The caller knows where an entry is and whether it may
// be read or written.
//
// The memory of an object that is encoded is read until Encoded.Release. That of a
// Reading's destination is written until Read returns, which waits for everything it has
// started. The last, partial block of a rank goes through a temporary block, so that the
// disk does not get the bytes after it.
//
// All functions and methods may be called concurrently.
package payload
