package peer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

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
	noError(t, err)
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
