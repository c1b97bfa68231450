// Package index tracks which peers are believed to have an object. It is a hint: where it
// is wrong or old, a request is wasted and ends in a miss.
//
// An object is named by a 64-bit tag, a keyed hash, of which the upper 34 bits are used.
// Each node has an Own: the set of its objects, with a version that grows by one per
// change and a log of the last changes. Each node asks every other node, on one
// connection and for that node's own set only, what has changed since the Position that
// it has reached:
//
//	asks:     x.Position(peer)           24 bytes
//	answers:  own.Delta(dst, position)   changes since, or the next piece of the whole set
//	then:     x.Apply(peer, delta)       asks again at once if there is more
//
// (Exchange is the same for a transport that knows only bytes.)
//
// Nodes do not forward the sets of others, so a lying node can only lie about itself:
// that costs a miss for those that believe it, and it gets no more than its share of the
// table.
//
// All learned sets are in one table of fingerprints and node numbers, about 26 bits per
// key at 10^8 keys. The set that a node had before a restart stays until the new set has
// been read completely, and is then dropped at once.
//
// Nothing here does I/O, starts a goroutine or reads a clock. An Own has a lock that is
// held for microseconds. An Index has one for writers, held while a delta is applied, at
// most about 10 ms; Holders, AllHolders and Lookup take none and never wait.
package index

import (
	"encoding/binary"
	"errors"
	"time"
)

// Node is a number that the caller assigns to a peer.
type Node uint16

// MaxNodes bounds Node: numbers are below it.
const MaxNodes = 4096

var (
	// ErrInvalid: the bytes are not a delta. The sender is broken or lying.
	ErrInvalid = errors.New("index: delta is invalid")
	// ErrGap: the delta does not continue the position reached. Ask again from there.
	ErrGap = errors.New("index: delta does not follow on")
	// ErrBusy: the peer restarted its set too often while its former sets are still being
	// cleared, or there are too many peers. Ask again later.
	ErrBusy = errors.New("index: no number free for the peer's set")
)

// Interval returns the period of a node's requests to each of its peers: a quarter of a
// second in clusters of up to 100 nodes, and in larger ones such that there are 400
// requests per second in total. A peer whose known version has been reached need not be
// asked.
func Interval(peers int) time.Duration {
	return max(250*time.Millisecond, time.Duration(peers)*2500*time.Microsecond)
}

// Position is a node's progress in following a peer's set. The zero value is the
// beginning.
type Position struct {
	Incarnation uint64 // of the peer's set; another incarnation is another set
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

// ParsePosition parses what AppendTo wrote. Any 24 bytes are a position; an implausible
// one is answered with the start of the set.
func ParsePosition(b []byte) (Position, error) {
	if len(b) != PositionSize {
		return Position{}, ErrInvalid
	}
	return Position{
		Incarnation: binary.LittleEndian.Uint64(b), Version: binary.LittleEndian.Uint64(b[8:]), Cursor: binary.LittleEndian.Uint64(b[16:]),
	}, nil
}

// A key is the upper 34 bits of a tag. At 10^8 entries 0.6 % of absent tags match an
// entry of the same key.
const (
	keyBits = 34
	keyEnd  = 1 << keyBits
)

func keyOf(tag uint64) uint64 { return tag >> (64 - keyBits) }
