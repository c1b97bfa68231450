package budget

import (
	"math"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// Descriptors keep descriptors of the process for its own use, such as the disk's
// files and the admin's connections: clients have those with numbers below it. The
// kernel gives out the lowest number that is free, so that a number tells how many are
// in use at least.
type Descriptors int

// NewDescriptors derives them from what the process may have.
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
			return codes.Refuse(wire.Full, "%d descriptors are in use, the most that clients may have: raise RLIMIT_NOFILE", int(b))
		}
	}
	return nil
}
