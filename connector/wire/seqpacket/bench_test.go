package seqpacket

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echoMode makes the test binary an echo server on descriptor 3: "raw" with
// this package, "net" with Go's.
const echoMode = "SEQPACKET_ECHO"

func TestMain(m *testing.M) {
	switch os.Getenv(echoMode) {
	case "raw":
		echoRaw(3)
	case "net":
		echoNet(3)
	default:
		os.Exit(m.Run())
	}
}

func echoRaw(fd int) {
	runtime.LockOSThread()
	c, err := New(fd)
	if err != nil {
		panic(err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := c.Recv(buf)
		if err != nil || c.Send(buf[:n], nil) != nil {
			return
		}
	}
}

func echoNet(fd uintptr) {
	c, err := net.FileConn(os.NewFile(fd, "echo"))
	if err != nil {
		panic(err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil || n == 0 {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

// BenchmarkEcho is the floor under every request: a message there and back
// between two processes, with this package and with net.
func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{64, 4096} {
		for _, server := range []string{"raw", "net"} {
			for _, client := range []string{"raw", "net"} {
				b.Run(fmt.Sprintf("client=%s/server=%s/bytes=%d", client, server, size), func(b *testing.B) {
					echo(b, startEcho(b, server), client, size)
				})
			}
		}
	}
}

// startEcho returns the descriptor of a connection to an echo process.
func startEcho(b *testing.B, mode string) int {
	b.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(b, err)
	theirs := os.NewFile(uintptr(fds[1]), "echo")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoMode+"="+mode)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	must(b, cmd.Start())
	theirs.Close()
	b.Cleanup(func() { must(b, cmd.Wait()) })
	return fds[0]
}

func echo(b *testing.B, fd int, client string, size int) {
	buf := make([]byte, size)
	if client == "net" {
		f := os.NewFile(uintptr(fd), "client")
		c, err := net.FileConn(f)
		must(b, err)
		f.Close()
		defer c.Close()
		measure(b, func() error {
			if _, err := c.Write(buf); err != nil {
				return err
			}
			_, err := c.Read(buf)
			return err
		})
		return
	}
	c, err := New(fd)
	must(b, err)
	defer c.Close()
	measure(b, func() error {
		if err := c.Send(buf, nil); err != nil {
			return err
		}
		_, _, err := c.Recv(buf)
		return err
	})
}

// measure reports the median and the 99th percentile beside the mean.
func measure(b *testing.B, call func() error) {
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		must(b, call())
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
}
