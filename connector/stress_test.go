package connector

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

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
	leakFree(t)
	f := startFake(t)
	c := open(t, f, func(o *Options) { o.Timeouts.Lookup = 50 * time.Millisecond })
	m := register(t, c, Binding{})
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
			for _, r := range rows[:2] {
				if err := r.Lease.Verify(); err != nil {
					return err
				}
			}
			Release(rows[0].Lease, rows[1].Lease)
			_, err = m.Compose(background, &ComposeQuery{Plan: Plan{End: 5, Spans: []Span{{Lease: rows[2].Lease, Count: 5}}}})
			rows[2].Lease.Release()
			return err
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
}

// TestBurstOfLateLeases: more leases come late than there are entries for the
// client's own requests; all are given back.
func TestBurstOfLateLeases(t *testing.T) {
	leakFree(t)
	f := startFake(t)
	c := open(t, f, func(o *Options) { o.Timeouts.Lookup = 20 * time.Millisecond })
	m := register(t, c, Binding{})
	answer := f.hold(wire.OpAcquire)
	const n = 3 * ownEntries
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
	for range n {
		f.await(wire.OpRelease)
	}
	if got := c.Counters().GaveBack; got != n {
		t.Errorf("gave back %d, want %d", got, n)
	}
}

func TestCloseWithSeveralPendingWritesIsBounded(t *testing.T) {
	leakFree(t)
	f := startFake(t)
	f.on(wire.OpCancel, silence)
	c := open(t, f, short)
	block := make(chan struct{})
	f.on(wire.OpAssemble, func(r *request) {
		r.send([]byte("garbage"))
		<-block
	})
	var pending []*PendingWrite
	for range 3 {
		pending = append(pending, givenUp(t, f, c))
		waitLost(t, c)
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		if err := c.WaitAttached(ctx); err != nil {
			t.Fatal(err)
		}
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
