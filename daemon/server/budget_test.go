package server

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

func TestOneUserLeavesAQuarterToOthers(t *testing.T) {
	b := newBudget("test memory", 1000, 0)
	take := func(uid uint32, bytes int64, want wire.Code) {
		t.Helper()
		if code, _ := codes.Of(b.take(uid, bytes)); code != want {
			t.Errorf("user %d takes %d: %v, not %v", uid, bytes, code, want)
		}
	}
	take(1, 700, wire.OK)
	take(1, 51, wire.Full)
	take(1, 50, wire.OK)
	take(2, 251, wire.Full)
	take(2, 250, wire.OK)
	take(3, 1, wire.Full)
	b.giveBack(2, 250)
	take(3, 250, wire.OK)
	b.giveBack(1, 750)
	b.giveBack(3, 250)
	if b.used() != 0 || len(b.mu.users) != 0 {
		t.Errorf("%d bytes of %d users are left", b.used(), len(b.mu.users))
	}
}

func TestRegisteredMemoryLeavesHalfOfAUsersShare(t *testing.T) {
	b := newBudget("test memory", 1000, 0)
	if code, _ := codes.Of(b.takeFirst(1, 376)); code != wire.Full {
		t.Errorf("more than half of 750: %v", code)
	}
	if err := b.takeFirst(1, 375); err != nil {
		t.Error(err)
	}
	if err := b.take(1, 375); err != nil {
		t.Errorf("the other half: %v", err)
	}
}

func TestAUserMayHaveOneConnectionOfASmallBudget(t *testing.T) {
	if err := newBudget("test memory", 100, 100).take(1, 100); err != nil {
		t.Error(err)
	}
}

func TestMappingsAreBoundedByConnectionAndCounted(t *testing.T) {
	s := &Server{mapped: newBudget("registered memory", mappedInAll, 0)}
	small, large := &attachment{uid: 1}, &attachment{uid: 1}
	for i := range mappedByOne / leastMapped {
		if err := s.takeMapped(small, 1); err != nil {
			t.Fatalf("mapping %d of a byte: %v", i, err)
		}
	}
	if code, _ := codes.Of(s.takeMapped(small, 1)); code != wire.Full {
		t.Errorf("one more: %v", code)
	}
	if code, _ := codes.Of(s.takeMapped(large, mappedByOne+1)); code != wire.Full {
		t.Errorf("more than a connection may have: %v", code)
	}
	if err := s.takeMapped(large, mappedByOne); err != nil {
		t.Error(err)
	}
	s.giveBackMapped(large, mappedByOne)
	for range mappedByOne / leastMapped {
		s.giveBackMapped(small, 1)
	}
	if s.mapped.used() != 0 || small.mapped.Load() != 0 || large.mapped.Load() != 0 {
		t.Errorf("%d bytes are left, %d and %d of the connections", s.mapped.used(), small.mapped.Load(), large.mapped.Load())
	}
}
