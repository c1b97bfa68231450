package remote_test

import (
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// One key that is not held keeps the others from being leased.
func TestOneMissKeepsAllFromBeingLeased(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	c := attached(t, socket)
	store := stored(t, c, m)
	serve(t, m, store, refengine.Request{First: text(1, 20), Mid: [][]uint32{text(2, 70)}, Query: text(4, 9), Seam: 8})
	r, err := c.Register(m.Profile(), connector.Binding{Connector: "refengine test"})
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := m.Profile().MidSpec(70, 8)
	rows, err := r.Acquire(t.Context(), []profile.SegmentKey{store.Key(spec, text(2, 70)), {7}}, connector.AcquireOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(rows[0].Err, connector.ErrCanceled) || !errors.Is(rows[1].Err, connector.ErrMiss) || rows[0].Lease != nil {
		t.Fatalf("%+v", rows)
	}
}
