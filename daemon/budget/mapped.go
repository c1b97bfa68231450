package budget

import (
	"sync/atomic"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// Bounds on the addresses that memory of clients takes. A process has 128 TiB, and an
// arena may take half of them; without any left it cannot start a thread. What is
// mapped costs addresses whether it is backed or not.
const (
	mappedInAll = 32 << 40
	mappedByOne = 8 << 40 // connection
	leastMapped = 4 << 30 // counted for a mapping at least: the kernel gives a process 65,530 of them
)

// Mapped are the addresses that memory of clients takes.
type Mapped struct {
	all *Bytes
}

// NewMapped makes them, all free.
func NewMapped() *Mapped { return &Mapped{NewBytes("registered memory", mappedInAll, 0)} }

// By is what a connection of a user takes of them, nothing yet.
func (m *Mapped) By(uid uint32) *MappedBy { return &MappedBy{all: m.all, uid: uid} }

// MappedBy are the addresses that one connection takes.
type MappedBy struct {
	all   *Bytes
	uid   uint32
	taken atomic.Int64
}

// Take counts a mapping of so many bytes, or refuses it with full.
func (m *MappedBy) Take(bytes int64) error {
	bytes = max(bytes, leastMapped)
	have := m.taken.Add(bytes)
	err := error(nil)
	if have > mappedByOne {
		err = codes.Refuse(wire.Full, "%d bytes of registered memory: the connection has %d of %d", bytes, have-bytes, int64(mappedByOne))
	} else {
		err = m.all.Take(m.uid, bytes)
	}
	if err != nil {
		m.taken.Add(-bytes)
	}
	return err
}

// GiveBack ends Take.
func (m *MappedBy) GiveBack(bytes int64) {
	bytes = max(bytes, leastMapped)
	m.taken.Add(-bytes)
	m.all.GiveBack(m.uid, bytes)
}
