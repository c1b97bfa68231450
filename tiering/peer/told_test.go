package peer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

func toldWant(n int) tier.Want {
	return tier.Want{Name: tier.Name{Key: [32]byte{byte(n), byte(n >> 8)}}, Tenant: 1}
}

func TestWhatWasToldComesFirstAndForAWhile(t *testing.T) {
	names := must(NewNames(secret, []Tenant{{1, "a", nil}}))
	now := time.Unix(1000, 0)
	x := &holders{}
	told := NewTold(x, names, func() time.Time { return now })
	w := toldWant(1)
	tag, _ := names.Tag(&w)
	holds := func(room int) []Node {
		dst := make([]Node, room)
		n := told.Holders(tag, dst)
		return dst[:min(n, room)]
	}
	x.add(tag, 3)
	x.add(tag, 7)
	if got := holds(4); !slices.Equal(got, []Node{3, 7}) {
		t.Errorf("%v before anything was told", got)
	}
	told.Tell(&w, 9)
	if got := holds(4); !slices.Equal(got, []Node{9, 3, 7}) {
		t.Errorf("%v", got)
	}
	told.Tell(&w, 7)
	for room, want := range [][]Node{{}, {7}, {7, 3}, {7, 3}, {7, 3}} {
		if got := holds(room); !slices.Equal(got, want) {
			t.Errorf("room for %d: %v, want %v", room, got, want)
		}
	}
	now = now.Add(toldTime)
	if got := holds(4); !slices.Equal(got, []Node{3, 7}) {
		t.Errorf("%v after its time", got)
	}
	for i := range 3 * maxTold {
		w := toldWant(i)
		told.Tell(&w, 1)
		if n := len(*told.latest.Load()); n > maxTold {
			t.Fatalf("%d are remembered, at most %d", n, maxTold)
		}
	}
	var last [1]Node
	w = toldWant(3*maxTold - 1)
	tag, _ = names.Tag(&w)
	if told.Holders(tag, last[:]) != 1 || last[0] != 1 {
		t.Error("the last one that was told is not known")
	}
	if n := testing.AllocsPerRun(100, func() { told.Holders(tag, last[:]) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
}

func TestTenantsBetweenNodes(t *testing.T) {
	names := must(NewNames(secret, []Tenant{{1, "a", []byte("s")}, {2, "b", nil}}))
	other := must(NewNames(secret, []Tenant{{5, "a", []byte("s")}, {6, "b", []byte("t")}}))
	tag, ok := names.TenantTag(1)
	if id, found := other.TenantOf(tag); !ok || !found || id != 5 {
		t.Errorf("tenant 1 is %d there, %v, %v", id, ok, found)
	}
	tag, _ = names.TenantTag(2)
	if id, found := other.TenantOf(tag); found {
		t.Errorf("a tenant of another salt is %d", id)
	}
	if _, ok := names.TenantTag(9); ok {
		t.Error("an unknown tenant has a tag")
	}
}

func TestCallsAreBounded(t *testing.T) {
	s := opened(t, options{})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	w := tiertest.WantOf(o)
	of := s.search(&w)
	call := Call{Path: FindPath, Body: appendFind(nil, []name{of.name}), Within: 10 * time.Second, Most: maxAnswer}
	answer, err := s.Call(context.Background(), 0, &call)
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := decodeAnswer(answer, 1); err != nil || rows[0].status != here {
		t.Errorf("%v, %v", rows, err)
	}
	call.Most = 10
	if _, err := s.Call(context.Background(), 0, &call); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("an answer of more than is wanted: %v", err)
	}
	call.Path = "/peer/v1/nothing"
	if _, err := s.Call(context.Background(), 0, &call); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("a path that is not there: %v", err)
	}
	if _, err := s.Call(context.Background(), 9, &call); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("a member that is not there: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Call(ended, 0, &call); !errors.Is(err, context.Canceled) {
		t.Errorf("of a caller that is gone: %v", err)
	}
	if _, rate := s.Reach(0); rate != 0 {
		t.Errorf("%v bytes a second were measured", rate)
	}
}
