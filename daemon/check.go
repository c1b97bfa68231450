package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// Check returns what is wrong with the valid settings on this machine now: settings that a start
// would reduce, and ports that it could not open. It opens the ports and closes them again. While a
// daemon with these settings runs, its ports are in use.
func (d *Daemon) Check() (problems []string) {
	for _, s := range d.short {
		problems = append(problems, s.Check+": "+s.Text)
	}
	for _, at := range d.config.Listeners() {
		l, err := listen(at)
		if err != nil {
			problems = append(problems, fmt.Sprintf("a start would fail now: %s: %v", at.Setting, remedied(err)))
			continue
		}
		defer l.Close() // at the end, so that two settings with the same port are found
	}
	return problems
}

func listen(at settings.Listener) (io.Closer, error) {
	if at.Network == "udp" {
		return net.ListenPacket(at.Network, at.Address)
	}
	return net.Listen(at.Network, at.Address)
}

// remedied adds to an error of a listener what to do about it.
func remedied(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: stop the process that uses the port, or set another port", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: set an address that this machine has", err)
	}
	return err
}
