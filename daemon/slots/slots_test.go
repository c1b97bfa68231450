package slots

import (
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

func TestSlotsAreFreedWhenNobodyUsesThem(t *testing.T) {
	s := New(nil, gpuipc.Extent{Len: 2 << 20}, 4<<10, 100)
	next := uint64(100)
	newID := func() uint64 { next++; return next }
	failed := errors.New("failed")

	x, err := s.Open(0, 5000, nil, newID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(x.Lease, 10, nil, newID); err == nil {
		t.Error("a slot that is being written was opened again")
	}
	s.Done(x, nil)
	if _, err := s.Open(x.Lease, 8193, nil, newID); err == nil {
		t.Error("a slot took more than its pages")
	}
	y, err := s.Read(x.Lease, uint64(x.Extent.Off)+8, 100)
	if err != nil || y != x {
		t.Fatal(err)
	}
	for _, off := range []uint64{uint64(x.Extent.Off) + 8192 - 50, uint64(x.Extent.Off) + 9000, ^uint64(0)} {
		if _, err := s.Read(x.Lease, off, 100); err == nil {
			t.Errorf("read at %d", off)
		}
	}
	if !s.Release(x.Lease) || s.Release(x.Lease) {
		t.Error("released once")
	}
	if _, bytes := s.Held(); bytes != 8192 {
		t.Errorf("%d bytes while somebody reads", bytes)
	}
	s.DoneReading(y)
	z, _ := s.Open(0, 100, nil, newID)
	s.Done(z, failed)
	if leases, bytes := s.Held(); leases != 0 || bytes != 0 {
		t.Errorf("%d leases, %d bytes at the end", leases, bytes)
	}
	// A slot that its client had before keeps through a failure.
	w, _ := s.Open(0, 100, nil, newID)
	s.Done(w, nil)
	_, _ = s.Open(w.Lease, 100, nil, newID)
	s.Done(w, failed)
	if _, err := s.Read(w.Lease, uint64(w.Extent.Off), 8); err == nil {
		t.Error("what a failed request left was read")
	}
	_, _ = s.Open(w.Lease, 100, nil, newID)
	s.Done(w, nil)
	v, err := s.Read(w.Lease, uint64(w.Extent.Off), 8)
	if err != nil {
		t.Errorf("written whole again: %v", err)
	}
	if _, err := s.Open(w.Lease, 100, nil, newID); err == nil {
		t.Error("a slot that somebody reads was opened for writing")
	}
	if _, err := s.Open(w.Lease, 100, v, newID); err != nil {
		t.Errorf("by its only reader: %v", err)
	}
	s.Done(w, nil)
	s.DoneReading(v)
	if !s.Release(w.Lease) {
		t.Error("a failure took a slot that was there before")
	}
}
