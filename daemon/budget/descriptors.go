package budget

import (
	"math"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// Descriptors is the number from which descriptors are kept for the process's own use, such
// as the disk's files and admin connections. Clients get those below it. The kernel assigns
// the lowest free number, so a number is a lower bound of the descriptors in use.
type Descriptors int

// NewDescriptors derives it from the process's limit.
func NewDescriptors() Descriptors {
	limit := settings.DescriptorLimit()
	if limit == 0 { // unknown
		return math.MaxInt
	}
	return Descriptors(settings.ClientDescriptors(limit))
}

// Check refuses descriptors that clients may not have.
func (b Descriptors) Check(fds ...int) error {
	for _, fd := range fds {
		if fd >= int(b) {
			return codes.Refuse(wire.Full, "%d descriptors are in use, the maximum for clients: raise RLIMIT_NOFILE", int(b))
		}
	}
	return nil
}
