// Package index tracks which peers are believed to have an object. Its answers are hints:
// if one is wrong or old, a request to that peer is wasted and ends in a miss.
//
// An object is named by a 64-bit tag, a keyed hash. The index uses its upper 34 bits.
// Each node has an Own: the set of its objects, with a version that grows by one per
// change and a log of the last changes. Each node x asks every other node, the peer, for
// the changes of the peer's own set since the Position that x has reached:
//
//	asks:     x.Position(peer)           24 bytes
//	answers:  own.Delta(dst, position)   changes since then, or the next piece of the whole set
//	then:     x.Apply(peer, delta)       asks again at once if there is more
//
// (Exchange does the same for a transport of bytes.)
//
// Nodes do not forward the sets of other nodes, so a lying node can only lie about its
// own set. That costs its believers misses, and its entries get no more than their share
// of the table.
//
// All learned sets are in one table of fingerprints and set numbers, with about 26 bits
// per key at 10^8 keys. The set that a node had before a restart stays until the new set
// has been read completely, and is then dropped at once.
//
// The package does no I/O, starts no goroutine and reads no clock. The lock of an Own is
// held for microseconds. The lock of an Index is held while a delta is applied, at most
// about 10 ms; Holders, AllHolders and Lookup take no lock and never wait.
package index

import (
	"encoding/binary"
	"errors"
	"time"
)

// Node is a number that the caller assigns to a peer.
type Node uint16

// MaxNodes is the number of possible Nodes: every Node is below it.
const MaxNodes = 4096

var (
	// ErrInvalid reports that the bytes are not a delta. The sender is broken or lying.
	ErrInvalid = errors.New("index: delta is invalid")
	// ErrGap reports that the delta does not begin at the position that this node has
	// reached. The caller asks again from that position.
	ErrGap = errors.New("index: delta does not follow on")
	// ErrBusy reports that the peer has restarted its set too often while its former sets are
	// still being cleared, or that there are too many peers. The caller asks again later.
	ErrBusy = errors.New("index: no number free for the peer's set")
)

// Interval returns the time between a node's requests to the same peer. It is a quarter
// of a second in clusters of up to 100 nodes. In larger clusters it grows, so that a node
// sends 400 requests per second in total. A peer need not be asked if its version, known
// from gossip, has been reached.
func Interval(peers int) time.Duration {
	return max(250*time.Millisecond, time.Duration(peers)*2500*time.Microsecond)
}

// Position records how much of a peer's set a node has learned. The zero value means
// nothing.
type Position struct {
	Incarnation uint64 // of the peer's set; a set with another incarnation is a new one
	Version     uint64 // changes up to this version are known
	Cursor      uint64 // while the whole set is read: keys below it are known; else 0
}

// PositionSize is the length of an encoded Position in bytes.
const PositionSize = 24

// AppendTo appends the position to dst, as three little-endian numbers.
func (p Position) AppendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, p.Incarnation)
	dst = binary.LittleEndian.AppendUint64(dst, p.Version)
	return binary.LittleEndian.AppendUint64(dst, p.Cursor)
}

// ParsePosition parses what AppendTo wrote. It accepts any 24 bytes: Own.Delta answers an
// implausible position with the beginning of the set.
func ParsePosition(b []byte) (Position, error) {
	if len(b) != PositionSize {
		return Position{}, ErrInvalid
	}
	return Position{
		Incarnation: binary.LittleEndian.Uint64(b), Version: binary.LittleEndian.Uint64(b[8:]), Cursor: binary.LittleEndian.Uint64(b[16:]),
	}, nil
}

// A key is the upper 34 bits of a tag. With 10^8 entries, 0.6 % of absent tags have the
// same key as an entry.
const (
	keyBits = 34
	keyEnd  = 1 << keyBits
)

func keyOf(tag uint64) uint64 { return tag >> (64 - keyBits) }
