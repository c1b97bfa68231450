// Package payload moves the bytes of an entry between the memory of its ranks and its
// runs on disk, and verifies them on the way. Bytes move either unchanged, directly from
// and to the pages of the arena, or coded part by part. The caller knows where an entry
// is and whether it may be read or written.
//
// The memory of an encoded object is in use until Encoded.Release, and the destination of
// a Reading until Read returns. The last, partial block of a rank goes through a
// temporary block, so that the bytes that follow it in the arena are not written to disk.
//
// All functions and methods may be called concurrently.
package payload
