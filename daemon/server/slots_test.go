package server

import (
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

func TestSlotsAreFreedWhenNobodyUsesThem(t *testing.T) {
	s := newSlots(nil, gpuipc.Extent{Len: 2 << 20}, 4<<10, 100)
	next := uint64(100)
	newID := func() uint64 { next++; return next }
	failed := errors.New("failed")

	x, err := s.open(0, 5000, nil, newID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.open(x.lease, 10, nil, newID); err == nil {
		t.Error("a slot that is being written was opened again")
	}
	s.done(x, nil)
	if _, err := s.open(x.lease, 8193, nil, newID); err == nil {
		t.Error("a slot took more than its pages")
	}
	y, err := s.read(x.lease, uint64(x.extent.Off)+8, 100)
	if err != nil || y != x {
		t.Fatal(err)
	}
	for _, off := range []uint64{uint64(x.extent.Off) + 8192 - 50, uint64(x.extent.Off) + 9000, ^uint64(0)} {
		if _, err := s.read(x.lease, off, 100); err == nil {
			t.Errorf("read at %d", off)
		}
	}
	if !s.release(x.lease) || s.release(x.lease) {
		t.Error("released once")
	}
	if _, bytes := s.held(); bytes != 8192 {
		t.Errorf("%d bytes while somebody reads", bytes)
	}
	s.doneReading(y)
	z, _ := s.open(0, 100, nil, newID)
	s.done(z, failed)
	if leases, bytes := s.held(); leases != 0 || bytes != 0 {
		t.Errorf("%d leases, %d bytes at the end", leases, bytes)
	}
	// A slot that its client had before keeps through a failure.
	w, _ := s.open(0, 100, nil, newID)
	s.done(w, nil)
	_, _ = s.open(w.lease, 100, nil, newID)
	s.done(w, failed)
	if _, err := s.read(w.lease, uint64(w.extent.Off), 8); err == nil {
		t.Error("what a failed request left was read")
	}
	_, _ = s.open(w.lease, 100, nil, newID)
	s.done(w, nil)
	v, err := s.read(w.lease, uint64(w.extent.Off), 8)
	if err != nil {
		t.Errorf("written whole again: %v", err)
	}
	if _, err := s.open(w.lease, 100, nil, newID); err == nil {
		t.Error("a slot that somebody reads was opened for writing")
	}
	if _, err := s.open(w.lease, 100, v, newID); err != nil {
		t.Errorf("by its only reader: %v", err)
	}
	s.done(w, nil)
	s.doneReading(v)
	if !s.release(w.lease) {
		t.Error("a failure took a slot that was there before")
	}
}
