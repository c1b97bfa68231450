package daemon

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/object"
	"github.com/spliced-kv/spliced/tiering/object/objecttest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// withBucket has a daemon use a bucket.
func withBucket(t testing.TB, c *settings.Config, s *objecttest.Server) {
	t.Helper()
	c.ObjectBucket, c.ObjectEndpoint = objecttest.Bucket, s.Proxy.URL
	c.ObjectKeys = object.Keys{ID: objecttest.AccessKey, Secret: objecttest.SecretKey}
	c.PrefillSpeed = 1 // so that every segment is worth its bytes
	if c.UsesCluster() {
		return // its secret is the cluster's
	}
	c.ObjectSecret = filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(c.ObjectSecret, []byte("a secret of the nodes"), 0o600))
}

func (r *running) listed() {
	r.t.Helper()
	eventually(r.t, "the bucket is listed", func() bool { return r.counter("object_passes") > 0 })
}

func TestTheBucketIsATierBelowAllNodes(t *testing.T) {
	objecttest.Program(t)
	s := objecttest.Open(t, t.TempDir())
	c := testConfig(t)
	withBucket(t, &c, s)
	a := startDaemon(t, c, nil)
	a.listed()
	p := testProfile(1)
	_, onA := openClient(t, a.Socket(), p, connector.Binding{})
	doc := newDocument(p, nil, 7, 300, profile.RoleMid)
	put(t, onA, doc)
	a.stop() // and so it is written
	other := testConfig(t)
	withBucket(t, &other, s)
	other.ObjectSecret = c.ObjectSecret
	b := startDaemon(t, other, nil)
	b.listed()
	_, onB := openClient(t, b.Socket(), p, connector.Binding{})
	if f := found(t, onB, doc); f.Tier != wire.TierPeer {
		t.Fatalf("it is not believed to be beyond the node: %+v", f)
	}
	if n := b.counter("object_hit_segments"); n != 1 {
		t.Errorf("%v hits in the object store", n)
	}
	fetched(t, onB, doc)
	get(t, onB, doc).Release()
	if came := b.eventsOf(api.EventFetched); len(came) != 1 || *came[0].Key != api.Digest(doc.key) || came[0].Text != "from the object store into memory" {
		t.Errorf("events %+v", came)
	}

	at := slices.IndexFunc(b.view.Pools(), func(p api.Pool) bool { return p.Tier == "object" })
	if at < 0 || b.view.Pools()[at].Objects != 1 || b.view.Pools()[at].UsedBytes == 0 {
		t.Errorf("pools %+v", b.view.Pools())
	}
	probe := b.view.ProbeObjectStore(context.Background())
	if !probe.Enabled || len(probe.Steps) != 6 || slices.ContainsFunc(probe.Steps, func(s api.ProbeStep) bool { return s.Error != "" }) {
		t.Errorf("a probe: %+v", probe)
	}
	if told := b.eventsOf(api.EventChanged); len(told) != 1 || !strings.Contains(told[0].Text, "passed its test") {
		t.Errorf("events %+v", told)
	}
	s.Kill()
	eventually(t, "readiness says that the store is dead", func() bool {
		_ = b.object.List(context.Background())
		return slices.ContainsFunc(b.view.Checks(), func(c api.Check) bool { return c.Name == "object" && c.State == api.CheckDegraded })
	})
	if !b.view.Status().Ready {
		t.Error("a dead object store takes the node out of service")
	}
	get(t, onB, doc).Release()
}

// What a peer has is not written, and what is in the bucket is found whoever has died.
func TestPeersComeBeforeTheBucket(t *testing.T) {
	objecttest.Program(t)
	s := objecttest.Open(t, t.TempDir())
	configs := clusterConfigs(t, "a", "b")
	for i := range configs {
		withBucket(t, &configs[i], s)
	}
	a, b := startDaemon(t, configs[0], nil), startDaemon(t, configs[1], nil)
	a.listed()
	b.listed()
	p := testProfile(1)
	_, onA := openClient(t, a.Socket(), p, connector.Binding{})
	_, onB := openClient(t, b.Socket(), p, connector.Binding{})
	shared, own := newDocument(p, nil, 7, 300, profile.RoleMid), newDocument(p, nil, 8, 300, profile.RoleMid)
	put(t, onA, shared)
	put(t, onA, own)
	eventually(t, "b knows what a holds", func() bool { return found(t, onB, shared).Hit() })
	fetched(t, onB, shared)
	eventually(t, "a knows what b holds", func() bool {
		_, believed := a.peers.fetch.Hint(&tier.Want{Name: tier.Name{Key: shared.key}, Fingerprint: p.Fingerprint(), Tenant: 1})
		return believed
	})
	if sent, err := a.store.Offload(context.Background()); sent != 1 || err != nil {
		t.Fatalf("%d are written, %v, %+v", sent, err, a.store.Counters().Offload)
	}
	a.stop()
	must(t, b.object.List(context.Background()))
	fetched(t, onB, own) // which only the bucket has
	get(t, onB, own).Release()
}
