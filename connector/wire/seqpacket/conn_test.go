package seqpacket

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openDescriptors counts this process's descriptors.
func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// keepsDescriptors fails the test if it ends with more descriptors.
func keepsDescriptors(t *testing.T) {
	t.Helper()
	before := openDescriptors(t)
	t.Cleanup(func() {
		if after := openDescriptors(t); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	keepsDescriptors(t)
	a, b, err := Pair()
	must(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// memory returns a descriptor of a file that holds text.
func memory(t *testing.T, text string) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	must(t, err)
	if _, err := unix.Pwrite(fd, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestMessagesKeepTheirBoundaries(t *testing.T) {
	a, b := pair(t)
	for _, want := range []string{"one", strings.Repeat("x", 128<<10), "three"} {
		must(t, a.Send([]byte(want), nil))
	}
	buf := make([]byte, 128<<10)
	for _, want := range []int{3, 128 << 10, 5} {
		n, fds, err := b.Recv(buf)
		if err != nil || n != want || fds != nil {
			t.Fatalf("%d bytes, %v, %v, want %d", n, fds, err, want)
		}
	}
}

func TestDescriptorsArriveCloseOnExecInOrder(t *testing.T) {
	a, b := pair(t)
	sent := []int{memory(t, "arena"), memory(t, "slots"), memory(t, "staging")}
	err := a.Send([]byte("hello"), sent)
	CloseAll(sent)
	must(t, err)
	n, fds, err := b.Recv(make([]byte, 64))
	if err != nil || n != 5 || len(fds) != 3 {
		t.Fatalf("%d bytes, %d descriptors, %v", n, len(fds), err)
	}
	defer CloseAll(fds)
	for i, want := range []string{"arena", "slots", "staging"} {
		got := make([]byte, 16)
		n, err := unix.Pread(fds[i], got, 0)
		if err != nil || string(got[:n]) != want {
			t.Errorf("descriptor %d holds %q, %v, want %q", i, got[:n], err, want)
		}
		if flags, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d: flags %#x, %v", i, flags, err)
		}
	}
}

func TestTooManyDescriptorsAreClosed(t *testing.T) {
	a, b := pair(t)
	fd := memory(t, "x")
	defer unix.Close(fd)
	if err := a.Send([]byte("x"), slices.Repeat([]int{fd}, MaxDescriptors+1)); !errors.Is(err, ErrDescriptors) {
		t.Fatalf("send: %v", err)
	}
	many := slices.Repeat([]int{fd}, FewDescriptors+4)
	must(t, unix.Sendmsg(a.Fd(), []byte("x"), unix.UnixRights(many...), nil, 0))
	before := openDescriptors(t)
	n, fds, err := b.Recv(make([]byte, 64))
	if n != 1 || fds != nil || !errors.Is(err, ErrDescriptors) {
		t.Fatalf("%d bytes, %v, %v", n, fds, err)
	}
	if after := openDescriptors(t); after != before {
		t.Fatalf("%d descriptors before, %d after", before, after)
	}
}

func TestAllowedDescriptorsArrive(t *testing.T) {
	a, b := pair(t)
	fd := memory(t, "x")
	defer unix.Close(fd)
	for _, n := range []int{FewDescriptors + 1, 252, MaxDescriptors} {
		b.AllowDescriptors(n)
		must(t, a.Send([]byte("x"), slices.Repeat([]int{fd}, n)))
		_, fds, err := b.Recv(make([]byte, 64))
		if err != nil || len(fds) != n {
			t.Fatalf("%d descriptors of %d, %v", len(fds), n, err)
		}
		CloseAll(fds)
	}
}

func TestTruncatedMessageClosesItsDescriptors(t *testing.T) {
	a, b := pair(t)
	fd := memory(t, "x")
	defer unix.Close(fd)
	must(t, a.Send([]byte("0123456789"), []int{fd}))
	must(t, a.Send([]byte("next"), nil))
	buf := make([]byte, 4)
	n, fds, err := b.Recv(buf)
	if !errors.Is(err, ErrTruncated) || fds != nil || n != 4 || string(buf) != "0123" {
		t.Fatalf("%d bytes %q, %v, %v", n, buf, fds, err)
	}
	if n, _, err := b.Recv(buf); err != nil || string(buf[:n]) != "next" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
}

func TestRecvTimesOutAndGoesOn(t *testing.T) {
	a, b := pair(t)
	must(t, b.SetRecvTimeout(time.Millisecond))
	buf := make([]byte, 8)
	if _, _, err := b.Recv(buf); !errors.Is(err, ErrTimeout) {
		t.Fatalf("got %v", err)
	}
	must(t, a.Send([]byte("late"), nil))
	if n, _, err := b.Recv(buf); err != nil || string(buf[:n]) != "late" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
}

func TestSendTimesOutWhenNobodyReads(t *testing.T) {
	a, _ := pair(t)
	must(t, a.SetSendTimeout(time.Millisecond))
	frame := make([]byte, 64<<10)
	for range 1000 {
		if err := a.Send(frame, nil); err != nil {
			if !errors.Is(err, ErrTimeout) {
				t.Fatalf("got %v", err)
			}
			return
		}
	}
	t.Fatal("1000 messages fit")
}

func TestTrySendWaitsForRoom(t *testing.T) {
	a, b := pair(t)
	frame := make([]byte, 64<<10)
	sent := 0
	for a.TrySend(frame, nil) == nil {
		if sent++; sent > 1000 {
			t.Fatal("1000 messages fit")
		}
	}
	if err := a.TrySend(frame, nil); !errors.Is(err, ErrTimeout) {
		t.Fatalf("send: %v", err)
	}
	if err := a.AwaitWritable(time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Fatalf("wait: %v", err)
	}
	for range sent {
		if _, _, err := b.Recv(frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.AwaitWritable(time.Minute); err != nil {
		t.Fatalf("wait for room: %v", err)
	}
	if err := a.TrySend(frame, nil); err != nil {
		t.Fatalf("send: %v", err)
	}
}

func TestCloseWriteLetsTheLastMessagesThrough(t *testing.T) {
	a, b := pair(t)
	must(t, a.CloseWrite())
	buf := make([]byte, 8)
	if _, _, err := b.Recv(buf); !errors.Is(err, ErrClosed) {
		t.Fatalf("recv: %v", err)
	}
	must(t, b.Send([]byte("last"), nil))
	if n, _, err := a.Recv(buf); err != nil || string(buf[:n]) != "last" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
}

func TestPeerGone(t *testing.T) {
	a, b := pair(t)
	must(t, a.Send([]byte("last"), nil))
	a.Close()
	buf := make([]byte, 8)
	if n, _, err := b.Recv(buf); err != nil || string(buf[:n]) != "last" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	if _, _, err := b.Recv(buf); !errors.Is(err, ErrClosed) {
		t.Fatalf("recv: %v", err)
	}
	if err := b.Send([]byte("x"), nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("send: %v", err)
	}
	if err := b.AwaitHangup(); err != nil {
		t.Fatalf("hangup: %v", err)
	}
}

func TestCloseWakesBlockedCalls(t *testing.T) {
	a, b := pair(t)
	errs := make(chan error, 2)
	go func() {
		_, _, err := b.Recv(make([]byte, 8))
		errs <- err
	}()
	go func() { errs <- b.AwaitHangup() }()
	// The message takes the reader into and out of the kernel at least once.
	must(t, a.Send([]byte("x"), nil))
	if err := <-errs; err != nil {
		t.Fatalf("first message: %v", err)
	}
	go func() {
		_, _, err := b.Recv(make([]byte, 8))
		errs <- err
	}()
	b.Close()
	for range 2 {
		if err := <-errs; err != nil && !errors.Is(err, ErrClosed) {
			t.Fatalf("got %v", err)
		}
	}
	if err := b.Send([]byte("x"), nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("send: %v", err)
	}
	if _, _, err := b.Recv(make([]byte, 8)); !errors.Is(err, ErrClosed) {
		t.Fatalf("recv: %v", err)
	}
}

// TestCloseRace closes connections while calls come and go: under -race, and
// with descriptors counted, a number closed twice or never would show.
func TestCloseRace(t *testing.T) {
	keepsDescriptors(t)
	for range 200 {
		a, b, err := Pair()
		must(t, err)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				buf := make([]byte, 8)
				for {
					if _, _, err := b.Recv(buf); err != nil {
						return
					}
				}
			})
			wg.Go(func() {
				for a.Send([]byte("x"), nil) == nil {
				}
			})
		}
		wg.Go(func() { b.Close() })
		wg.Go(func() { b.Close(); a.Close() })
		wg.Wait()
	}
}

func TestDialAndListen(t *testing.T) {
	keepsDescriptors(t)
	path := filepath.Join(t.TempDir(), "s")
	if _, err := Dial(path, time.Second); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("dial nothing: %v", err)
	}
	l, err := Listen(path, 0o660, 4)
	must(t, err)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o660 {
		t.Fatalf("mode %v, %v", st.Mode(), err)
	}
	if _, err := Listen(path, 0o660, 4); !errors.Is(err, unix.EADDRINUSE) {
		t.Fatalf("listen twice: %v", err)
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Send([]byte("welcome"), nil)
			c.Close()
		}
		accepted <- err
	}()
	c, err := Dial(path, time.Second)
	must(t, err)
	defer c.Close()
	buf := make([]byte, 16)
	if n, _, err := c.Recv(buf); err != nil || !bytes.Equal(buf[:n], []byte("welcome")) {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	must(t, <-accepted)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	l.Close()
	if err := <-accepted; !errors.Is(err, ErrClosed) {
		t.Fatalf("accept after close: %v", err)
	}
	if _, err := Dial(path, time.Second); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("dial closed: %v", err)
	}
}

func TestFullBacklogBoundsDial(t *testing.T) {
	keepsDescriptors(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o660, 0)
	must(t, err)
	defer l.Close()
	for range 4 {
		c, err := Dial(path, 5*time.Millisecond)
		if err != nil {
			if !errors.Is(err, unix.EAGAIN) {
				t.Fatalf("got %v", err)
			}
			return
		}
		defer c.Close()
	}
	t.Fatal("a backlog of 0 took 4 connections")
}

func TestRoundTripDoesNotAllocate(t *testing.T) {
	a, b := pair(t)
	buf := make([]byte, 64)
	n := testing.AllocsPerRun(100, func() {
		must(t, a.Send(buf, nil))
		if _, _, err := b.Recv(buf); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestCloseReadWakesAReaderAndLeavesThePeerListening(t *testing.T) {
	a, b := pair(t)
	woken := make(chan error, 1)
	go func() {
		_, _, err := a.Recv(make([]byte, 8))
		woken <- err
	}()
	must(t, a.CloseRead())
	if err := <-woken; !errors.Is(err, ErrClosed) {
		t.Errorf("the reader: %v", err)
	}
	if err := b.Send([]byte("x"), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("the peer sends: %v", err)
	}
	must(t, a.Send([]byte("last"), nil))
	buf := make([]byte, 8)
	if n, _, err := b.Recv(buf); err != nil || string(buf[:n]) != "last" {
		t.Errorf("the peer receives %q, %v", buf[:n], err)
	}
}

func TestLastRepliesArriveThoughRequestsWereNotRead(t *testing.T) {
	for _, drain := range []bool{true, false} {
		a, b := pair(t)
		fd := memory(t, "stray")
		for range 3 {
			must(t, b.Send([]byte("request"), []int{fd}))
		}
		unix.Close(fd)
		must(t, a.Send([]byte("busy"), nil))
		if drain {
			a.Drain()
		}
		a.Close()
		buf := make([]byte, 8)
		if n, _, err := b.Recv(buf); err != nil || string(buf[:n]) != "busy" {
			t.Errorf("drained %v: received %q, %v", drain, buf[:n], err)
		}
		if _, _, err := b.Recv(buf); !errors.Is(err, ErrClosed) {
			t.Errorf("drained %v: then %v", drain, err)
		}
	}
}

// A full table is trouble of ours, and nothing that the sender did wrong.
func TestDescriptorsWithoutRoomAreToldApart(t *testing.T) {
	a, b := pair(t)
	fd := memory(t, "x")
	defer unix.Close(fd)
	must(t, a.Send([]byte("x"), slices.Repeat([]int{fd}, 4)))
	before := openDescriptors(t)
	next, err := unix.Dup(fd)
	must(t, err)
	unix.Close(next)
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next + 2), Max: old.Max}))
	n, fds, err := b.Recv(make([]byte, 64))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	if n != 1 || fds != nil || !errors.Is(err, ErrNoRoom) || errors.Is(err, ErrDescriptors) {
		t.Errorf("%d bytes, %v, %v", n, fds, err)
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
