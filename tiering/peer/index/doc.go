// Package index tells which peers are believed to hold a name. It is a hint: where it is
// wrong or old, somebody asks in vain and has a miss.
//
// A name is a 64-bit tag, a keyed hash, of which the upper 34 bits are used. Each node
// has an Own: the set of what it holds, with a version that grows by one per change and
// a log of the last changes. Each node asks every other node, on one connection and for
// that node's own set only, what has changed since the Position it has reached:
//
//	asks:     x.Position(peer)           24 bytes
//	answers:  own.Delta(dst, position)   changes since, or the next piece of the whole set
//	then:     x.Apply(peer, delta)       again at once while that says there is more
//
// (Exchange is the same for a carrier that knows of bytes only.)
//
// Nobody passes on what others hold, so a node that lies does so for itself alone: it
// costs those who believe it a miss, and it gets no more than its share of the table.
//
// All that is learnt lies in one table of fingerprints and node numbers, some 26 bits a
// key at 10^8 keys. What a node held before it restarted stays until the new set has been read in
// whole, then goes at once.
//
// Nothing here does I/O, starts a goroutine or reads a clock. An Own has a lock that is
// held for microseconds. An Index has one for writers, held while a delta is applied, some 10 ms at most;
// Holders, AllHolders and Lookup take none and never wait.
package index

import (
	"encoding/binary"
	"errors"
	"time"
)

// Node is a number that the caller gives to a peer.
type Node uint16

// MaxNodes bounds Node: numbers are below it.
const MaxNodes = 4096

var (
	// ErrInvalid: the bytes are not a delta. Whoever sent them is broken, or lies.
	ErrInvalid = errors.New("index: delta is invalid")
	// ErrGap: the delta does not follow on from the position reached. Ask again from there.
	ErrGap = errors.New("index: delta does not follow on")
	// ErrBusy: the peer began anew too often, its former sets are still being cleared
	// away, or there are too many peers. Ask again later.
	ErrBusy = errors.New("index: no number free for the peer's set")
)

// Interval is how often a node asks each of its peers: every quarter of a second in
// clusters of up to 100 nodes, and 400 questions a second in all in larger ones. A peer
// whose version is known to be the one that was reached need not be asked.
func Interval(peers int) time.Duration {
	return max(250*time.Millisecond, time.Duration(peers)*2500*time.Microsecond)
}

// Position is how far a node has followed a peer's set. The zero value is the beginning.
type Position struct {
	Incarnation uint64 // of the peer; another one is another set
	Version     uint64 // changes up to this one are known
	Cursor      uint64 // while the set is read in whole: keys below it are known; else 0
}

// PositionSize is the length of an encoded Position in bytes.
const PositionSize = 24

// AppendTo appends the position to dst, as three little-endian numbers.
func (p Position) AppendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, p.Incarnation)
	dst = binary.LittleEndian.AppendUint64(dst, p.Version)
	return binary.LittleEndian.AppendUint64(dst, p.Cursor)
}

// ParsePosition reads what AppendTo wrote. Any 24 bytes are a position: one that makes
// no sense is answered with the beginning of the set.
func ParsePosition(b []byte) (Position, error) {
	if len(b) != PositionSize {
		return Position{}, ErrInvalid
	}
	return Position{
		Incarnation: binary.LittleEndian.Uint64(b), Version: binary.LittleEndian.Uint64(b[8:]), Cursor: binary.LittleEndian.Uint64(b[16:]),
	}, nil
}

// A key is the upper 34 bits of a tag. At 10^8 entries 0.6 % of absent names meet an
// entry of the same key.
const (
	keyBits = 34
	keyEnd  = 1 << keyBits
)

func keyOf(tag uint64) uint64 { return tag >> (64 - keyBits) }
