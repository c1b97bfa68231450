package order

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// words is a page in this process, whose reads and writes a test can get between.
type words struct {
	mu     sync.Mutex
	page   [PageBytes]byte
	reads  int
	before func(off int64) // of a store, outside of the lock
	torn   []uint64        // what the next reads give instead
}

func (w *words) load(ctx context.Context, off int64, word []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if len(w.torn) > 0 {
		binary.NativeEndian.PutUint64(word, w.torn[0])
		w.torn = w.torn[1:]
		return ctx.Err()
	}
	copy(word, w.page[off:])
	return ctx.Err()
}

func (w *words) store(ctx context.Context, off int64, word []byte) error {
	if w.before != nil {
		w.before(off)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	copy(w.page[off:], word)
	return ctx.Err()
}

func TestReachedIsTheDriversComparison(t *testing.T) {
	for _, c := range []struct {
		have, want uint64
		reached    bool
	}{
		{0, 1, false},
		{1, 1, true},
		{2, 1, true},
		{1 << 40, 1<<40 + 1, false},
		{Released, 1, true},
		{Released, Released - 1, true},
		// What would be taken for -1 holds every waiter.
		{math.MaxUint64, 1, false},
	} {
		if got := Reached(c.have, c.want); got != c.reached {
			t.Errorf("%d has reached %d: %v", c.have, c.want, got)
		}
	}
}

func TestWaitEndsWithTheSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Page{memory: &words{}}
		got := make(chan uint64)
		go func() {
			seen, err := p.Wait(t.Context(), Daemon, 3)
			if err != nil {
				t.Error(err)
			}
			got <- seen
		}()
		for v := uint64(1); v <= 4; v++ {
			synctest.Wait()
			select {
			case seen := <-got:
				t.Fatalf("a wait for 3 ended at %d with %d", v-1, seen)
			default:
			}
			if v == 3 {
				v = 4 // Numbers may be left out.
			}
			must(t, p.Signal(t.Context(), Daemon, v))
		}
		if seen := <-got; seen != 4 {
			t.Errorf("saw %d", seen)
		}
	})
}

func TestSlotsAreApart(t *testing.T) {
	p := &Page{memory: &words{}}
	must(t, p.Signal(t.Context(), Client, 7))
	client, err1 := p.Read(t.Context(), Client)
	daemon, err2 := p.Read(t.Context(), Daemon)
	if client != 7 || daemon != 0 || err1 != nil || err2 != nil {
		t.Errorf("client %d, daemon %d; %v, %v", client, daemon, err1, err2)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &words{}
		p := &Page{memory: m}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := p.Wait(ctx, Client, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		// A second of waiting costs a bounded number of copies.
		if most := int(time.Second/pollMost) + 20; m.reads > most {
			t.Errorf("%d reads, at most %d", m.reads, most)
		}
	})
}

func TestReleasePassesEveryWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Page{memory: &words{}}
		var waiting sync.WaitGroup
		for _, v := range []uint64{1, 1 << 20, Released - 1} {
			waiting.Go(func() {
				if seen, err := p.Wait(t.Context(), Daemon, v); err != nil || seen != Released {
					t.Errorf("wait for %d: saw %d, %v", v, seen, err)
				}
			})
		}
		synctest.Wait()
		must(t, p.Release(t.Context(), Daemon))
		waiting.Wait()
		// It is final.
		must(t, p.Signal(t.Context(), Daemon, 5))
		if v, err := p.Read(t.Context(), Daemon); v != Released || err != nil {
			t.Errorf("slot %d, %v", v, err)
		}
	})
}

// The write of a number that was on its way when the connection ended must not
// be what stays.
func TestReleaseDuringASignalStays(t *testing.T) {
	m := &words{}
	p := &Page{memory: m}
	m.before = func(int64) {
		m.before = nil
		if err := p.Release(t.Context(), Daemon); err != nil {
			t.Error(err)
		}
	}
	must(t, p.Signal(t.Context(), Daemon, 9))
	if v, err := p.Read(t.Context(), Daemon); v != Released || err != nil {
		t.Errorf("slot %d, %v", v, err)
	}
}

// A reader between the two halves of a carry sees the new upper and the old lower
// one: more than either number.
func TestATornNumberIsNotBelieved(t *testing.T) {
	old, next := uint64(0xFFFF_FFFF), uint64(1<<32)
	m := &words{torn: []uint64{old, 1<<32 | 0xFFFF_FFFF}}
	p := &Page{memory: m}
	must(t, p.Signal(t.Context(), Client, next))
	for range 2 {
		if v, err := p.Read(t.Context(), Client); v != old && v != next || err != nil {
			t.Errorf("read %#x, %v", v, err)
		}
	}
}

func TestNumbersAscend(t *testing.T) {
	p := &Page{memory: &words{}}
	for _, c := range []struct {
		v  uint64
		ok bool
	}{{0, false}, {2, true}, {2, false}, {1, false}, {3, true}, {Released, false}, {math.MaxUint64, false}} {
		err := p.Signal(t.Context(), Daemon, c.v)
		if c.ok != (err == nil) || !c.ok && !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("signal %d: %v", c.v, err)
		}
	}
	for name, err := range map[string]error{
		"third slot":   p.Signal(t.Context(), 2, 9),
		"before first": p.Release(t.Context(), -1),
		"wait for 0":   second(p.Wait(t.Context(), Client, 0)),
	} {
		if !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ uint64, err error) error { return err }

func TestAPageLiesInItsRegion(t *testing.T) {
	d, err := gpuipc.NewHost(gpuipc.HostOptions{})
	must(t, err)
	defer d.Close()
	r, err := d.NewRegion(gpuipc.RegionSpec{Name: "order", Bytes: 1 << 16, Access: gpuipc.ClientWrites})
	must(t, err)
	defer r.Close()
	for _, off := range []int64{-64, 8, r.Bytes() - 64, r.Bytes(), math.MaxInt64 &^ 63} {
		if _, err := In(d, r, off); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("page at %d: %v", off, err)
		}
	}
	// Two views of one page: another process has its own.
	p, err1 := In(d, r, 4096)
	other, err2 := In(d, r, 4096)
	must(t, errors.Join(err1, err2, other.Signal(t.Context(), Client, 8), p.Clear(t.Context())))
	must(t, p.Signal(t.Context(), Client, 6))
	if seen, err := other.Wait(t.Context(), Client, 5); seen != 6 || err != nil {
		t.Errorf("saw %d, %v", seen, err)
	}
	var raw [PageBytes]byte
	ref := gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Off: 4096, Len: PageBytes}}}
	must(t, d.Load(t.Context(), raw[:], ref))
	if c, dm := binary.NativeEndian.Uint64(raw[:]), binary.NativeEndian.Uint64(raw[64:]); c != 6 || dm != 0 {
		t.Errorf("bytes of the slots: %d and %d", c, dm)
	}
}

func TestANumberThatWasNotWrittenCanBeWritten(t *testing.T) {
	page := &Page{memory: &words{}}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := page.Signal(ended, Daemon, 1); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := page.Signal(t.Context(), Daemon, 1); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := page.Signal(t.Context(), Daemon, 1); !errors.Is(err, gpuipc.ErrInvalid) {
		t.Errorf("once it is written: %v", err)
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
