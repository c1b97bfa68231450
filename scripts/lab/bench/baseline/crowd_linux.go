package baseline

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CrowdCommand is the argument that makes the program run ServeCrowd; the number of connections
// follows it.
const CrowdCommand = "bench-crowd"

// firstExtra is the descriptor of the first of exec.Cmd's ExtraFiles.
const firstExtra = 3

// Crowd is a process that echoes messages of many connections. The time of an echo is the lower
// bound for a server with the same number of clients. Like RoundTripBare, the process makes its
// system calls without notifying Go's scheduler, as a C program would.
type Crowd struct {
	clients []*os.File
	cmd     *exec.Cmd
}

// StartCrowd starts another process of this program, with CrowdCommand.
func StartCrowd(n int) (_ *Crowd, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Crowd{cmd: exec.Command(self, CrowdCommand, strconv.Itoa(n))}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	defer func() {
		for _, theirs := range c.cmd.ExtraFiles {
			theirs.Close()
		}
		if err != nil {
			c.closeClients()
		}
	}()
	for range n {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("socket pair: %w", err)
		}
		c.clients = append(c.clients, os.NewFile(uintptr(pair[0]), "crowd client"))
		c.cmd.ExtraFiles = append(c.cmd.ExtraFiles, os.NewFile(uintptr(pair[1]), "crowd server"))
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start crowd: %w", err)
	}
	return c, nil
}

// Client returns the end of connection i, to be passed to a process that makes round trips.
func (c *Crowd) Client(i int) *os.File { return c.clients[i] }

// PID returns the id of the echoing process.
func (c *Crowd) PID() int { return c.cmd.Process.Pid }

func (c *Crowd) closeClients() {
	for _, f := range c.clients {
		f.Close()
	}
}

// Stop closes the connections and waits for the process, which ends once no other process
// has a client's end open.
func (c *Crowd) Stop() error {
	c.closeClients()
	return c.cmd.Wait()
}

// ServeCrowd echoes on n descriptors from 3 on until all of them are closed.
func ServeCrowd(n int) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	defer unix.Close(epoll)
	for fd := firstExtra; fd < firstExtra+n; fd++ {
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
	}
	events, buf := make([]unix.EpollEvent, n), make([]byte, 256<<10)
	for n > 0 {
		ready, errno := bare(unix.SYS_EPOLL_PWAIT, epoll, unsafe.Pointer(&events[0]), len(events), -1)
		if errno != 0 {
			return fmt.Errorf("epoll: %w", errno)
		}
		for _, e := range events[:ready] {
			switch got, errno := bare(unix.SYS_READ, int(e.Fd), unsafe.Pointer(&buf[0]), len(buf), 0); {
			case errno != 0 || got == 0:
				unix.Close(int(e.Fd))
				n--
			default:
				if _, errno := bare(unix.SYS_WRITE, int(e.Fd), unsafe.Pointer(&buf[0]), got, 0); errno != 0 && errno != unix.EPIPE {
					return fmt.Errorf("crowd send: %w", errno)
				}
			}
		}
	}
	return nil
}

// RoundTripBare sends b and receives the same number of bytes into b, without notifying Go's
// scheduler.
func RoundTripBare(fd int, b []byte) error {
	if _, errno := bare(unix.SYS_WRITE, fd, unsafe.Pointer(&b[0]), len(b), 0); errno != 0 {
		return fmt.Errorf("crowd send: %w", errno)
	}
	n, errno := bare(unix.SYS_READ, fd, unsafe.Pointer(&b[0]), len(b), 0)
	if errno != 0 || n != len(b) {
		return fmt.Errorf("crowd receive: %d bytes of %d: %w", n, len(b), errno)
	}
	return nil
}

// bare makes a system call without notifying Go's scheduler: the goroutine keeps its processor
// while the call blocks.
func bare(call uintptr, fd int, p unsafe.Pointer, n, timeout int) (int, unix.Errno) {
	for {
		got, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(p), uintptr(n), uintptr(timeout), 0, 0)
		if errno != unix.EINTR {
			return int(got), errno
		}
	}
}
