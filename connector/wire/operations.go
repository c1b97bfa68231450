package wire

import (
	"fmt"
	"strconv"
)

// Rules are what the header of a request of one op has to keep to.
type Rules struct {
	Tenant        bool // it names a tenant of the connection
	Descriptors   bool // descriptors may come along
	WhileStopping bool // it is served while the daemon stops, since it ends things
}

// operation is what the protocol says of one op.
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

// Rules returns what a request of o has to keep to; o is Known.
func (o Op) Rules() Rules { return operations[o].rules }

// New returns an empty message of the op and kind; false for an unknown op. Some
// operations share a reply.
func New(op Op, kind Kind) (Message, bool) {
	if !op.Known() || kind > Reply {
		return nil, false
	}
	return operations[op].messages[kind](), true
}

// Descriptors is how many descriptors come with a message that names chunks:
// one for each with WayDescriptor, and extra ones of its own.
func Descriptors(way uint8, chunks, extra int) (int, error) {
	if chunks > MaxChunks {
		return 0, fmt.Errorf("%d chunks, most %d: %w", chunks, MaxChunks, ErrTooLarge)
	}
	if way == WayDescriptor {
		return chunks + extra, nil
	}
	return extra, nil
}
