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

// NewNamespace creates a namespace. The caller closes it.
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

// Path returns a path of the namespace for other programs, such as ip link set netns. It is
// valid while this process runs.
func (ns *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd()) }

// Do calls f on a thread in the namespace. Sockets that f opens and processes that f starts
// belong to the namespace permanently, unless f does so on another goroutine.
func (ns *Namespace) Do(f func() error) error {
	enter := func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("hub: enter a network namespace: %w", err)
		}
		return nil
	}
	return away(enter, f)
}

// away calls f on a thread that has entered another namespace, and then moves the thread back to
// its own namespace. The thread must not end: for Linux, the parent of a process is the thread
// that started it, so its end would kill processes that were started with Pdeathsig.
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
		return errors.Join(err, fmt.Errorf("hub: leave a network namespace: %w", back)) // the goroutine ends with a locked thread, so the thread ends
	}
	runtime.UnlockOSThread()
	return err
}

// Start starts a command in the namespace.
func (ns *Namespace) Start(c *exec.Cmd) error { return ns.Do(c.Start) }

// interfaceName is the name of a port in its namespace.
const interfaceName = "eth0"

// openTAP creates an interface in the namespace, sets its address and brings it up. Reading tap
// returns the frames that the interface sends; writing to tap delivers a frame to it.
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
	// os.NewFile comes after TUNSETIFF, because only an attached TAP can be polled.
	tap := os.NewFile(uintptr(fd), "tap")
	if err := configure(addr); err != nil {
		_ = tap.Close()
		return nil, err
	}
	return tap, nil
}

// queueFrames is the number of frames of a sender that can wait for the hub. It is a TCP window.
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

// change makes one ioctl call, what, on an interface of the calling thread's namespace.
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
