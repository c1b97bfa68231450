package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Protocol is the version of the index exchange and of the requests to Config.Handler. Members use
// each other only if their versions are equal. Gossip also works between different versions.
const Protocol = 1

// metadata describes a node in gossip. Its encoding, with sizes in bytes:
//
//	| format 1 | flags 1 | protocol 2 | incarnation 8 | started 8 | check 8 |
//	| port 2 | address length 1 | address | version length 1 | version |
//
// Numbers are little-endian. Further bytes may follow in later releases and are skipped.
type metadata struct {
	Protocol    uint16
	Leaving     bool
	Plain       bool // the peers' port has no TLS
	Incarnation uint64
	Started     time.Time // with millisecond precision
	Check       [8]byte   // identifies the Secret of the node
	Peer        netip.AddrPort
	Version     string // version of the program, at most maxVersion bytes
}

const (
	metadataFormat = 1
	flagLeaving    = 1 << 0
	flagPlain      = 1 << 1
	maxVersion     = 64
)

var errMetadata = errors.New("cluster: metadata is invalid")

func (m *metadata) append(b []byte) []byte {
	flags := byte(0)
	if m.Leaving {
		flags |= flagLeaving
	}
	if m.Plain {
		flags |= flagPlain
	}
	b = append(b, metadataFormat, flags)
	b = binary.LittleEndian.AppendUint16(b, m.Protocol)
	b = binary.LittleEndian.AppendUint64(b, m.Incarnation)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Started.UnixMilli()))
	b = append(b, m.Check[:]...)
	b = binary.LittleEndian.AppendUint16(b, m.Peer.Port())
	addr := m.Peer.Addr().Unmap().AsSlice()
	b = append(append(b, byte(len(addr))), addr...)
	version := m.Version[:min(len(m.Version), maxVersion)]
	return append(append(b, byte(len(version))), version...)
}

const fixedMetadata = 2 + 2 + 8 + 8 + 8 + 2 + 1

func parseMetadata(b []byte) (metadata, error) {
	if len(b) < fixedMetadata || b[0] != metadataFormat {
		return metadata{}, fmt.Errorf("%w: %d bytes", errMetadata, len(b))
	}
	le := binary.LittleEndian
	m := metadata{
		Leaving: b[1]&flagLeaving != 0, Plain: b[1]&flagPlain != 0, Protocol: le.Uint16(b[2:]),
		Incarnation: le.Uint64(b[4:]), Started: time.UnixMilli(int64(le.Uint64(b[12:]))), Check: [8]byte(b[20:28]),
	}
	port, rest := le.Uint16(b[28:]), b[30:]
	addr, rest, ok := counted(rest)
	if !ok {
		return metadata{}, fmt.Errorf("%w: address", errMetadata)
	}
	ip, ok := netip.AddrFromSlice(addr)
	if !ok || port == 0 || ip.IsUnspecified() {
		return metadata{}, fmt.Errorf("%w: address of %d bytes, port %d", errMetadata, len(addr), port)
	}
	m.Peer = netip.AddrPortFrom(ip.Unmap(), port)
	version, _, ok := counted(rest)
	if !ok || len(version) > maxVersion || strings.ContainsFunc(string(version), func(r rune) bool { return r < ' ' || r > '~' }) {
		return metadata{}, fmt.Errorf("%w: version", errMetadata)
	}
	m.Version = string(version)
	return m, nil
}

// counted splits off the bytes whose number is in the first byte of b.
func counted(b []byte) (head, rest []byte, ok bool) {
	if len(b) == 0 || len(b)-1 < int(b[0]) {
		return nil, nil, false
	}
	return b[1 : 1+b[0]], b[1+b[0]:], true
}

// A node answers a ping with the time of its clock, in microseconds since 1970.

func appendClock(b []byte, now time.Time) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(now.UnixMicro()))
}

func parseClock(b []byte) (time.Time, bool) {
	if len(b) < 8 {
		return time.Time{}, false
	}
	return time.UnixMicro(int64(binary.LittleEndian.Uint64(b))), true
}
