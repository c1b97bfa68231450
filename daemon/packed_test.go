package daemon

import (
	"bytes"
	"context"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// lenient is a profile of wide heads with a tolerance.
func lenient(tolerance float64) *profile.Profile {
	id := profiletest.TwoLayers(1)
	id.Tolerance = tolerance
	l := &id.Layers[0].Linear
	l.Family, l.KeyHeads, l.ValueHeads, l.KeyDim, l.ValueDim, l.Conv = profile.GDN, 2, 4, 32, 32, profile.Conv{}
	return profiletest.New(id)
}

// wholeOf leases a segment and reads all of it, with its digests.
func wholeOf(t *testing.T, m *connector.Model, d *document) (l *connector.Lease, parts [][]byte) {
	t.Helper()
	var rows []connector.Acquired
	eventually(t, "the segment can be leased", func() (ok bool) {
		var err error
		rows, err = m.Acquire(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{Digests: true})
		return err == nil && rows[0].Err == nil
	})
	l = rows[0].Lease
	defer l.Release()
	for i, part := range l.Layout().Parts {
		b := make([]byte, part.Len)
		must(t, l.Read(i, b))
		parts = append(parts, b)
	}
	if transition, state := l.Errors(); l.Bytes() >= d.layout.Bytes || transition <= 0 || state <= 0 || max(transition, state) > 0.02*(1+1e-6) {
		t.Fatalf("%d of %d bytes, errors of %v and %v", l.Bytes(), d.layout.Bytes, transition, state)
	}
	return l, parts
}

func equalParts(t *testing.T, got, want [][]byte) {
	t.Helper()
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("part %d has other bytes", i)
		}
	}
}

// A packed segment is the same bytes after a restart, from the disk.
func TestPackedSegmentsOutliveTheDaemon(t *testing.T) {
	for _, codec := range []string{"none", "kv", "all"} {
		t.Run(codec, func(t *testing.T) {
			c := withDisk(t)
			c.DiskCodec = codec
			p := lenient(0.02)
			first := startDaemon(t, c, nil)
			client, m := openClient(t, first.Socket(), p, connector.Binding{})
			d := newDocument(p, nil, 1, 200, profile.RoleMid)
			if stored, err := m.Put(context.Background(), &connector.PutQuery{Spec: d.spec, Tokens: d.tokens, Source: connector.Source{Parts: partsOf(d)}, Level: wire.LevelSynced}); err != nil || !stored.Published {
				t.Fatal(stored, err)
			}
			l, want := wholeOf(t, m, d)
			off := min(float64(max(l.Errors())), 0.02) // rounded up
			if f := found(t, m, d); f.Tier != wire.TierDRAM || f.Error != off {
				t.Errorf("in memory %+v, off by %v", f, off)
			}
			// What is stored as it was written is off by nothing, nor is what is missed.
			lead, missing := newDocument(p, nil, 1, 200, profile.RoleFirst), newDocument(p, nil, 2, 200, profile.RoleMid)
			put(t, m, lead)
			if f := found(t, m, lead); !f.Hit() || f.Error != 0 {
				t.Errorf("a leading segment: %+v, want one that is off by nothing", f)
			}
			if f := found(t, m, missing); f.Hit() || f.Error != 0 {
				t.Errorf("a miss: %+v", f)
			}
			client.Close()
			first.stop()

			second := startDaemon(t, c, nil)
			_, m = openClient(t, second.Socket(), p, connector.Binding{})
			if f := found(t, m, d); f.Tier != wire.TierDisk || f.Error != off {
				t.Errorf("on disk %+v, off by %v", f, off)
			}
			again, got := wholeOf(t, m, d)
			equalParts(t, got, want)
			a, b := l.Errors()
			if x, y := again.Errors(); x != a || y != b {
				t.Errorf("errors of %v and %v, were %v and %v", x, y, a, b)
			}
		})
	}
}

// A node that fetches a packed segment has what the other one packed.
func TestPackedSegmentsAreFetched(t *testing.T) {
	p := lenient(0.02)
	_, b, onA, onB := twoNodes(t, p)
	d := newDocument(p, nil, 1, 200, profile.RoleMid)
	put(t, onA, d)
	_, want := wholeOf(t, onA, d)
	eventually(t, "b knows of it", func() bool { return found(t, onB, d).Hit() })
	switch f := found(t, onB, d); {
	case f.Tier == wire.TierPeer && f.Error != 0.02:
		t.Errorf("what nobody has looked at is said to be off by %v, the tolerance is 0.02", f.Error)
	case f.Error <= 0 || f.Error > 0.02: // it has come meanwhile
		t.Errorf("%+v: off by %v", f, f.Error)
	}
	_, got := wholeOf(t, onB, d)
	equalParts(t, got, want)
	if b.view.Cluster().Fetched == 0 {
		t.Error("nothing was fetched")
	}
}

// A client that cannot read packed parts is told so when it names a profile that has them.
func TestAToleranceNeedsTheFeature(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := dialRaw(t, r.Socket())
	c.mapAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Client: "old", Tenants: []wire.TenantName{{}}}))
	p := lenient(0.02)
	c.refused(wire.OpProfile, profileRequest(p), wire.Unsupported, "tolerance")
}
