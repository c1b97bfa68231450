package budget

import (
	"math"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// Descriptors is the lowest descriptor number that is kept for the daemon's own use, such as files
// of the disk tier and admin connections. Clients get lower numbers. The kernel assigns the lowest
// free number, so if a client's descriptor has this number, at least as many descriptors are in
// use.
type Descriptors int

// NewDescriptors derives the number from the process's limit.
func NewDescriptors() Descriptors {
	limit := settings.DescriptorLimit()
	if limit == 0 { // the limit is unknown
		return math.MaxInt
	}
	return Descriptors(settings.ClientDescriptors(limit))
}

// Check returns an error if one of the descriptors is too high for clients.
func (b Descriptors) Check(fds ...int) error {
	for _, fd := range fds {
		if fd >= int(b) {
			return codes.Refuse(wire.Full, "%d descriptors are in use, the maximum for clients: raise RLIMIT_NOFILE", int(b))
		}
	}
	return nil
}
