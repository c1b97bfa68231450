package budget

import (
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// Descriptors keep descriptors of the process for its own use, such as the disk's
// files and the admin's connections: clients have those with numbers below it. The
// kernel gives out the lowest number that is free, so that a number tells how many are
// in use at least.
type Descriptors int

// NewDescriptors reads what the process may have.
func NewDescriptors() (Descriptors, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	return Descriptors(settings.ClientDescriptors(int(min(limit.Cur, 1<<30)))), nil
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
