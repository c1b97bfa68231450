package budget

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

func TestOneUserLeavesAQuarterToOthers(t *testing.T) {
	b := NewBytes("test memory", 1000, 0)
	take := func(uid uint32, bytes int64, want wire.Code) {
		t.Helper()
		if code, _ := codes.Of(b.Take(uid, bytes)); code != want {
			t.Errorf("user %d takes %d: %v, not %v", uid, bytes, code, want)
		}
	}
	take(1, 700, wire.OK)
	take(1, 51, wire.Full)
	take(1, 50, wire.OK)
	take(2, 251, wire.Full)
	take(2, 250, wire.OK)
	take(3, 1, wire.Full)
	b.GiveBack(2, 250)
	take(3, 250, wire.OK)
	b.GiveBack(1, 750)
	b.GiveBack(3, 250)
	if b.Used() != 0 || len(b.mu.users) != 0 {
		t.Errorf("%d bytes of %d users are left", b.Used(), len(b.mu.users))
	}
}

func TestRegisteredMemoryLeavesHalfOfAUsersShare(t *testing.T) {
	b := NewBytes("test memory", 1000, 0)
	if code, _ := codes.Of(b.TakeFirst(1, 376)); code != wire.Full {
		t.Errorf("more than half of 750: %v", code)
	}
	if err := b.TakeFirst(1, 375); err != nil {
		t.Error(err)
	}
	if err := b.Take(1, 375); err != nil {
		t.Errorf("the other half: %v", err)
	}
}

func TestAUserMayHaveOneConnectionOfASmallBudget(t *testing.T) {
	if err := NewBytes("test memory", 100, 100).Take(1, 100); err != nil {
		t.Error(err)
	}
}

func TestMappingsAreBoundedByConnectionAndCounted(t *testing.T) {
	m := NewMapped()
	small, large := m.By(1), m.By(1)
	for i := range mappedByOne / leastMapped {
		if err := small.Take(1); err != nil {
			t.Fatalf("mapping %d of a byte: %v", i, err)
		}
	}
	if code, _ := codes.Of(small.Take(1)); code != wire.Full {
		t.Errorf("one more: %v", code)
	}
	if code, _ := codes.Of(large.Take(mappedByOne + 1)); code != wire.Full {
		t.Errorf("more than a connection may have: %v", code)
	}
	if err := large.Take(mappedByOne); err != nil {
		t.Error(err)
	}
	large.GiveBack(mappedByOne)
	for range mappedByOne / leastMapped {
		small.GiveBack(1)
	}
	if m.all.Used() != 0 || small.taken.Load() != 0 || large.taken.Load() != 0 {
		t.Errorf("%d bytes are left, %d and %d of the connections", m.all.Used(), small.taken.Load(), large.taken.Load())
	}
}
