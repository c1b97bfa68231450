package budget

import (
	"sync/atomic"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// Limits of the address space for memory of clients, in bytes. A process has 128 TiB, of which an
// arena may take half. A process without free address space cannot start a thread. A mapping takes
// address space even if no memory backs it.
const (
	mappedInAll = 32 << 40
	mappedByOne = 8 << 40 // per connection
	leastMapped = 4 << 30 // least bytes counted per mapping: the kernel allows a process 65,530 mappings
)

// Mapped is the budget of address space for memory of clients.
type Mapped struct {
	all *Bytes
}

// NewMapped creates the budget.
func NewMapped() *Mapped { return &Mapped{NewBytes("registered memory", mappedInAll, 0)} }

// By returns an empty account for one connection of a user.
func (m *Mapped) By(uid uint32) *MappedBy { return &MappedBy{all: m.all, uid: uid} }

// MappedBy is the address space used by one connection.
type MappedBy struct {
	all   *Bytes
	uid   uint32
	taken atomic.Int64
}

// Take counts a mapping of the given number of bytes. Beyond a limit, it returns an error (full).
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

// GiveBack undoes Take.
func (m *MappedBy) GiveBack(bytes int64) {
	bytes = max(bytes, leastMapped)
	m.taken.Add(-bytes)
	m.all.GiveBack(m.uid, bytes)
}
