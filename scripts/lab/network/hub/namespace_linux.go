package hub

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is an unnamed network namespace: it ends with the last process, socket and
// descriptor in it. Its loopback interface is up.
type Namespace struct{ file *os.File }

// Available returns why namespaces or interfaces cannot be created here, or nil.
func Available() error {
	ns, err := NewNamespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	tap, err := ns.openTAP(netip.MustParsePrefix("192.0.2.1/24"))
	if err != nil {
		return err
	}
	return tap.Close()
}

// NewNamespace creates a namespace. It has to be closed.
func NewNamespace() (ns *Namespace, err error) {
	enter := func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("hub: new network namespace: %w", err)
		}
		return nil
	}
	err = away(enter, func() error {
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return fmt.Errorf("hub: new network namespace: %w", err)
		}
		ns = &Namespace{f}
		return up("lo")
	})
	if err != nil && ns != nil {
		ns.Close()
		ns = nil
	}
	return ns, err
}

// Close closes the namespace.
func (ns *Namespace) Close() { _ = ns.file.Close() }

// Path returns a name of the namespace for other programs, such as ip link set netns, valid
// while this process runs.
func (ns *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd()) }

// Do calls f on a thread in the namespace. Sockets that f opens itself, not on another
// goroutine, belong to it permanently; so do processes that it starts.
func (ns *Namespace) Do(f func() error) error {
	enter := func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("hub: enter a network namespace: %w", err)
		}
		return nil
	}
	return away(enter, f)
}

// away calls f on a thread that has entered another namespace, and then returns it to its
// own. The thread must not end: its end would kill processes that were started on it with a
// signal for the death of their parent, because for Linux the parent is the thread.
func away(enter, f func() error) error {
	done := make(chan error)
	go func() { done <- awayHere(enter, f) }()
	return <-done
}

func awayHere(enter, f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("hub: %w", err)
	}
	defer home.Close()
	if err := enter(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("hub: leave a network namespace: %w", back)) // and the thread ends
	}
	runtime.UnlockOSThread()
	return err
}

// Start starts a command in the namespace.
func (ns *Namespace) Start(c *exec.Cmd) error { return ns.Do(c.Start) }

// interfaceName is the name of a port in its namespace.
const interfaceName = "eth0"

// openTAP creates an interface in the namespace, up and with an address, and returns the
// end from which its frames are read and to which they are written.
func (ns *Namespace) openTAP(addr netip.Prefix) (tap *os.File, err error) {
	err = ns.Do(func() (err error) {
		tap, err = openTAP(addr)
		return err
	})
	return tap, err
}

func openTAP(addr netip.Prefix) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("hub: /dev/net/tun: %w", err)
	}
	r, err := unix.NewIfreq(interfaceName)
	if err == nil {
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("hub: interface %s: %w", interfaceName, err)
	}
	// It can be polled from here on.
	tap := os.NewFile(uintptr(fd), "tap")
	if err := configure(addr); err != nil {
		_ = tap.Close()
		return nil, err
	}
	return tap, nil
}

// queueFrames is the number of a sender's frames that wait for the hub: a TCP window.
const queueFrames = 4096

// configure sets up the interface of the calling thread's namespace.
func configure(addr netip.Prefix) error {
	var mask [4]byte
	for i := range addr.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	for _, step := range []struct {
		what uint
		set  func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFTXQLEN, func(r *unix.Ifreq) error { r.SetUint32(queueFrames); return nil }},
		{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(addr.Addr().AsSlice()) }},
		{unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask[:]) }},
	} {
		if err := change(interfaceName, step.what, step.set); err != nil {
			return err
		}
	}
	return up(interfaceName)
}

func up(name string) error {
	return change(name, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil })
}

// change makes one call about an interface of the calling thread's namespace.
func change(name string, what uint, set func(*unix.Ifreq) error) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = set(r)
	}
	if err == nil {
		err = unix.IoctlIfreq(s, what, r)
	}
	if err != nil {
		return fmt.Errorf("hub: interface %s, request %#x: %w", name, what, err)
	}
	return nil
}
