package connector

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// expected are the kinds that a client may meet while daemons come and go.
var expected = []error{ErrUnavailable, ErrLate, ErrBusy, ErrGone}

func harmless(err error) bool {
	if err == nil {
		return true
	}
	for _, e := range expected {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// TestEverythingAtOnce restarts the daemon under callers of every kind. What is
// tested: no other error, no fault in unmapped memory, nothing left at the end.
func TestEverythingAtOnce(t *testing.T) {
	f, c, m := opened(t, func(o *Options) { o.Timeouts.Lookup = 50 * time.Millisecond })
	stop := make(chan struct{})
	var wg sync.WaitGroup
	worker := func(work func() error) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := work(); !harmless(err) {
					t.Error(err)
					return
				}
			}
		})
	}
	q := putQuery(t, 2000)
	for range 2 {
		worker(func() error { return matchOne(m) })
		worker(func() error {
			rows, err := m.Acquire(background, make([]profile.SegmentKey, 3), AcquireOptions{Digests: true})
			if err != nil {
				return err
			}
			err = errors.Join(rows[0].Lease.Verify(), rows[1].Lease.Verify())
			Release(rows[0].Lease, rows[1].Lease)
			slot, composed := m.Compose(background, &ComposeQuery{Plan: Plan{End: 5, Spans: []Span{{Lease: rows[2].Lease, Count: 5}}}})
			Release(rows[2].Lease)
			Release(slot)
			if !harmless(err) {
				return err
			}
			return composed
		})
		worker(func() error { _, err := m.Put(background, q); return err })
		worker(func() error { _, err := c.Stats(background); return err })
	}
	for range 10 {
		f.await(wire.OpMatch)
		f.restart()
		waitReady(t, m)
	}
	close(stop)
	wg.Wait()
	answeredAgain(t, m)
}

func TestReleaseThatFoundNoRoomIsSentLater(t *testing.T) {
	leakFree(t)
	f := newFake(t)
	f.maxInFlight = 8
	f.start()
	c := open(t, f)
	m := register(t, c, Binding{})
	rows, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{})
	must(t, err)
	answer := f.hold(wire.OpMatch)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := matchOne(m); err == nil || !harmless(err) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	rows[0].Lease.Release() // the table is full of requests without an answer
	answer()
	f.await(wire.OpRelease)
}

func TestReturnThatIsRefusedIsSentAgain(t *testing.T) {
	f, _, m := opened(t)
	f.on(wire.OpRelease, refuse(wire.Busy, "later"))
	f.on(wire.OpAbort, refuse(wire.Busy, "later"))
	f.on(wire.OpCommit, refuse(wire.Gone, ""))
	rows, err := m.Acquire(background, make([]profile.SegmentKey, 2), AcquireOptions{})
	must(t, err)
	Release(rows[0].Lease, rows[1].Lease)
	if _, err := m.Put(background, putQuery(t, 20)); !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
	for range 3 {
		f.await(wire.OpRelease)
	}
	returned := make(chan int, 10)
	f.on(wire.OpRelease, func(r *request) {
		standard(r)
		returned <- len(decode[wire.ReleaseRequest](r).Leases)
	})
	f.on(wire.OpAbort, func(r *request) {
		standard(r)
		returned <- len(decode[wire.AbortRequest](r).Reservations)
	})
	for n := 0; n < 3; {
		n += <-returned
	}
}

func TestAcquireThatFailsReturnsItsLeasesAtOnce(t *testing.T) {
	f := startFake(t)
	const lookup = 500 * time.Millisecond
	c := open(t, f, func(o *Options) { o.Timeouts.Lookup = lookup })
	m := register(t, c, Binding{})
	const keys = 129
	layout := testProfile().SegmentLayout(1)
	f.on(wire.OpAcquire, func(r *request) {
		n := len(decode[wire.AcquireRequest](r).Keys)
		if n < keys {
			return // the daemon stalls after the first frame
		}
		reply := &wire.AcquireReply{
			Codes: make([]uint16, n), Leases: make([]uint64, n), Bytes: make([]uint64, n), Begins: make([]uint32, n),
			Tokens: make([]uint32, n), ExtentCount: make([]uint32, n), DigestCount: make([]uint32, n),
		}
		for i := range n - 1 {
			reply.Leases[i], reply.Bytes[i], reply.Tokens[i], reply.ExtentCount[i] = uint64(1000+i), uint64(layout.Bytes), 1, 1
			reply.ExtentOff, reply.ExtentLen = append(reply.ExtentOff, 0), append(reply.ExtentLen, uint64(layout.Bytes))
		}
		reply.Codes[n-1] = uint16(wire.Busy) // did not fit
		r.reply(reply)
	})
	f.on(wire.OpRelease, silence)
	within(t, 3*lookup, func() {
		if _, err := m.Acquire(background, make([]profile.SegmentKey, keys), AcquireOptions{}); !errors.Is(err, ErrLate) {
			t.Error(err)
		}
	})
	if n := f.count(wire.OpRelease); n != 1 {
		t.Errorf("%d releases, want 1", n)
	}
}

// TestBurstOfLateLeases: more leases come late than there are entries for the
// client's own requests; all are given back.
func TestBurstOfLateLeases(t *testing.T) {
	f, c, m := opened(t, func(o *Options) { o.Timeouts.Lookup = 500 * time.Millisecond }) // all ask before three are late
	answer := f.hold(wire.OpAcquire)
	const n = 3 * link.OwnEntries
	returned := make(chan int, n)
	f.on(wire.OpRelease, func(r *request) {
		standard(r)
		returned <- len(decode[wire.ReleaseRequest](r).Leases)
	})
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{}); !errors.Is(err, ErrLate) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for range n {
		f.await(wire.OpAcquire)
	}
	answer()
	for got := 0; got < n; {
		got += <-returned
	}
	if got := c.Counters().GaveBack; got != n {
		t.Errorf("gave back %d, want %d", got, n)
	}
}

func TestCloseWithSeveralPendingWritesIsBounded(t *testing.T) {
	f := startFake(t)
	f.on(wire.OpCancel, silence)
	c := open(t, f, short)
	block := make(chan struct{})
	f.on(wire.OpAssemble, func(r *request) {
		r.send([]byte("garbage"))
		<-block
	})
	var pending []*PendingWrite
	for i := range 3 {
		pending = append(pending, givenUp(t, f, c))
		waitLost(t, c, uint64(i+1))
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		must(t, c.WaitAttached(ctx))
		cancel()
	}
	within(t, 20*time.Millisecond, func() { c.Close() })
	for _, p := range pending {
		if err := p.Wait(background); !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	close(block)
}
