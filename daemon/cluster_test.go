package daemon

import (
	"context"
	"encoding/base64"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/loopback"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
)

// keyringFile holds one key of a cluster.
func keyringFile(t testing.TB) string {
	t.Helper()
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i + 1)
	}
	path := filepath.Join(t.TempDir(), "keyring")
	must(t, os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(key)), 0o600))
	return path
}

// address is of this machine, and nobody else's until the test ends.
func address(t testing.TB) netip.AddrPort {
	t.Helper()
	list, release, err := loopback.Reserve(1)
	must(t, err)
	t.Cleanup(release)
	return netip.MustParseAddrPort(list[0])
}

// clusterConfigs are nodes of one cluster, each with the other ones' addresses as seeds.
func clusterConfigs(t testing.TB, names ...string) []settings.Config {
	t.Helper()
	keyring := keyringFile(t)
	configs, seeds := make([]settings.Config, len(names)), []string(nil)
	for i, name := range names {
		c := testConfig(t)
		c.ClusterNode, c.ClusterKeyring = name, keyring
		c.PrefillSpeed = 1 // so that every segment is worth its bytes
		c.ClusterBind, c.ClusterPeerBind = address(t), netip.MustParseAddrPort("127.0.0.1:0")
		seeds = append(seeds, c.ClusterBind.String())
		configs[i] = c
	}
	for i := range configs {
		configs[i].ClusterSeeds = seeds
	}
	return configs
}

func found(t testing.TB, m *connector.Model, d *document) connector.SegmentFound {
	t.Helper()
	var out connector.Found
	must(t, m.Match(context.Background(), &connector.MatchQuery{Keys: []profile.SegmentKey{d.key}}, &out))
	return out.Segments[0]
}

// fetched waits until a segment that lies beyond the node can be leased there.
func fetched(t testing.TB, m *connector.Model, d *document) {
	t.Helper()
	eventually(t, "it is fetched", func() bool {
		rows, err := m.Acquire(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{Wait: patience})
		must(t, err)
		if rows[0].Lease == nil {
			return false // a match has begun to fetch it, and what it answers may be older
		}
		rows[0].Lease.Release()
		return true
	})
}

// twoNodes starts a, which hands nothing over, and b, with a client of each.
func twoNodes(t *testing.T, p *profile.Profile) (a, b *running, onA, onB *connector.Model) {
	t.Helper()
	configs := clusterConfigs(t, "a", "b")
	configs[0].ClusterCopies = false // else it hands over what only it has
	a, b = startDaemon(t, configs[0], nil), startDaemon(t, configs[1], nil)
	_, onA = openClient(t, a.Socket(), p, connector.Binding{})
	_, onB = openClient(t, b.Socket(), p, connector.Binding{})
	return a, b, onA, onB
}

func TestWhatOneNodeHoldsAnotherOneReads(t *testing.T) {
	p := testProfile(1)
	a, b, onA, onB := twoNodes(t, p)
	doc := newDocument(p, nil, 7, 300, profile.RoleMid)
	if f := found(t, onB, doc); f.Hit() {
		t.Fatalf("held by nobody, and found: %+v", f)
	}
	put(t, onA, doc)
	eventually(t, "b knows what a holds", func() bool { return found(t, onB, doc).Tier == wire.TierPeer })
	eventually(t, "b has read a's set", func() bool { return b.view.Cluster().Members[1].Index.Version >= a.peers.own.Version() })
	fetched(t, onB, doc)
	get(t, onB, doc).Release()
	if f := found(t, onB, doc); f.Tier != wire.TierDRAM {
		t.Errorf("what was fetched is in tier %d, want memory", f.Tier)
	}

	told := b.view.Cluster()
	if !told.Enabled || !told.Encrypted || len(told.Members) != 2 || told.Fetched == 0 {
		t.Errorf("b tells of its cluster: %+v", told)
	}
	eventually(t, "a has counted what b fetched", func() bool { return a.view.Cluster().Sent == told.Fetched })
	for _, m := range told.Members[1:] {
		if m.State != api.MemberAlive || !m.InUse || m.Index == nil || m.Index.Version == 0 {
			t.Errorf("member %+v", m)
		}
	}

	other := newDocument(p, nil, 8, 300, profile.RoleMid)
	put(t, onA, other)
	eventually(t, "b knows that too", func() bool { return b.view.Cluster().Members[1].Index.Version >= a.peers.own.Version() })
	a.stop()
	eventually(t, "a has left", func() bool { return b.view.Cluster().Members[1].State == api.MemberLeft })
	eventually(t, "b forgets what only a had", func() bool { return !found(t, onB, other).Hit() })
	get(t, onB, doc).Release()

	if list := b.eventsOf(api.EventFetched); len(list) != 1 || *list[0].Key != api.Digest(doc.key) || list[0].Text != "from another node into memory" || list[0].Bytes == 0 {
		t.Errorf("fetched: %+v", list)
	}
	if e := b.eventsOf(api.EventPeer)[0]; e.Why != "joined" || !strings.HasPrefix(e.Text, "node a at 127.0.0.1:") {
		t.Errorf("joined: %+v", e)
	}
	eventually(t, "it is told that a has left", func() bool { list := b.eventsOf(api.EventPeer); return list[len(list)-1].Why == "left" })
}

// A node that knows no sets yet, as after a start, asks who holds what.
func TestANodeThatHasJustStartedFindsWhatOthersHold(t *testing.T) {
	configs := clusterConfigs(t, "a", "b")
	a, b := startDaemon(t, configs[0], nil), startDaemon(t, configs[1], nil)
	p := testProfile(1)
	_, onA := openClient(t, a.Socket(), p, connector.Binding{})
	_, onB := openClient(t, b.Socket(), p, connector.Binding{})
	doc := newDocument(p, nil, 7, 300, profile.RoleMid)
	put(t, onA, doc)
	eventually(t, "b knows what a holds", func() bool { return found(t, onB, doc).Tier == wire.TierPeer })
	// forget makes b a node that has just started. On a busy machine, a may need longer for its answer than b waits:
	// then what a holds is a miss, and b asks again.
	var before uint64
	forget := func() {
		number := b.peers.fetch.Members()[0].Node
		before = b.peers.fetch.Counters().Learnt
		b.peers.known.joined(uint16(number))
		b.peers.index.Forget(number)
	}
	eventually(t, "b has asked a", func() bool {
		forget()
		other := newDocument(p, nil, 8, 300, profile.RoleMid)
		if f := found(t, onB, other); f.Hit() {
			t.Fatalf("held by nobody, and found: %+v", f)
		}
		return found(t, onB, doc).Hit() && b.peers.fetch.Counters().Learns > 0
	})
	raw := attachWith(t, b.Socket(), wire.FeatureLookup|wire.FeatureEstimates)
	raw.register(p)
	raw.stageTokens(64, 400)
	name := uint64(20)
	eventually(t, "b has asked a before an advice", func() bool {
		name++ // what was found once is read ahead
		fresh := newDocument(p, nil, name, 300, profile.RoleMid)
		put(t, onA, fresh)
		forget()
		var reply wire.AdviseReply
		raw.call(wire.OpAdvise, &wire.AdviseRequest{
			Profile: raw.profile, Tokens: 400, TokenOff: 64, SegmentBegin: []uint32{0}, SegmentTokens: []uint32{300},
			SegmentStatus: []uint8{0}, SegmentTier: []uint8{0}, Match: wire.AdviseMatch{Present: true, Keys: [][32]byte{fresh.key}, Primed: []uint8{0}},
		}, &reply)
		return len(reply.Match.Status) == 1 && reply.Match.Status[0] == wire.StatusHit && b.peers.fetch.Counters().Learnt > before
	})
}

func TestATenantsSegmentsCrossToTheSameTenantOnly(t *testing.T) {
	leakCheck(t)
	configs := clusterConfigs(t, "a", "b", "c")
	for i := range configs[2].Tenants {
		if configs[2].Tenants[i].Name == "guarded" {
			configs[2].Tenants[i].Salt = "salt" // the same name, another salt
		}
	}
	p := testProfile(1)
	var models []*connector.Model
	for _, c := range configs {
		d := startDaemon(t, c, nil)
		_, m := openClient(t, d.Socket(), p, connector.Binding{Tenant: "guarded"}, connector.Tenant{Name: "guarded", Token: "open sesame"})
		models = append(models, m)
	}
	doc := newDocument(p, []byte("pepper"), 9, 300, profile.RoleMid)
	put(t, models[0], doc)
	eventually(t, "b knows what a holds", func() bool { return found(t, models[1], doc).Hit() })
	if f := found(t, models[2], doc); f.Hit() {
		t.Errorf("a tenant of another salt finds %+v", f)
	}
}
