package wire

import (
	"fmt"
	"strconv"
)

// Rules are the requirements on the header of a request of one op.
type Rules struct {
	Tenant        bool // the header names a tenant of the connection
	Descriptors   bool // the request may carry descriptors
	WhileStopping bool // the request is served while the daemon stops, because it ends something
}

// operation describes one op of the protocol.
type operation struct {
	name     string
	rules    Rules
	messages [2]func() Message // by Kind
}

func message[T any, P interface {
	*T
	Message
}]() Message {
	return P(new(T))
}

// Known reports whether o is an operation of this version.
func (o Op) Known() bool { return int(o) < OpCount && operations[o].name != "" }

// String returns the name of o, or its number when it has none.
func (o Op) String() string {
	if o.Known() {
		return operations[o].name
	}
	return "op " + strconv.Itoa(int(o))
}

// Rules returns the requirements on requests of o, which must be Known.
func (o Op) Rules() Rules { return operations[o].rules }

// New returns an empty message of the op and kind; false for an unknown op. Some operations
// share a reply type.
func New(op Op, kind Kind) (Message, bool) {
	if !op.Known() || kind > Reply {
		return nil, false
	}
	return operations[op].messages[kind](), true
}

// Descriptors returns the number of descriptors that accompany a message. That is extra and, if
// way is WayDescriptor, one for each of the message's chunks.
func Descriptors(way uint8, chunks, extra int) (int, error) {
	if chunks > MaxChunks {
		return 0, fmt.Errorf("%d chunks, at most %d: %w", chunks, MaxChunks, ErrTooLarge)
	}
	if way == WayDescriptor {
		return chunks + extra, nil
	}
	return extra, nil
}
