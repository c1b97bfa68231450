package baseline

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// EchoCommand is the argument that makes the program run ServeEcho.
const EchoCommand = "bench-echo"

// Echo is another process that echoes SOCK_SEQPACKET messages, with blocking descriptors on both
// sides and no protocol. The time of a round trip is the lower bound of every request.
type Echo struct {
	fd  int
	cmd *exec.Cmd
}

// StartEcho starts another process of this program, with EchoCommand.
func StartEcho() (*Echo, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "echo")
	defer theirs.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, EchoCommand)
	cmd.ExtraFiles = []*os.File{theirs} // becomes descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start echo: %w", err)
	}
	return &Echo{fd: pair[0], cmd: cmd}, nil
}

// RoundTrip sends b and receives the same number of bytes into b.
func (e *Echo) RoundTrip(b []byte) error {
	if _, err := unix.Write(e.fd, b); err != nil {
		return fmt.Errorf("echo send: %w", err)
	}
	n, err := unix.Read(e.fd, b)
	if err != nil || n != len(b) {
		return fmt.Errorf("echo receive: %d bytes of %d: %w", n, len(b), err)
	}
	return nil
}

// Stop closes the socket and waits for the process.
func (e *Echo) Stop() error {
	err := unix.Close(e.fd)
	if werr := e.cmd.Wait(); err == nil {
		err = werr
	}
	return err
}

// ServeEcho answers on descriptor 3 until the other side closes.
func ServeEcho() error {
	buf := make([]byte, 256<<10)
	for {
		n, err := unix.Read(3, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		if _, err := unix.Write(3, buf[:n]); err != nil {
			return err
		}
	}
}
