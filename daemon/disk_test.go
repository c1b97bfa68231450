package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk"
)

// withDisk is testConfig with a small disk tier in a directory of the test's own.
// Nothing is read ahead, so that what a match finds on disk stays there until it
// is asked for.
func withDisk(t testing.TB) settings.Config {
	t.Helper()
	return diskIn(t, filepath.Join(t.TempDir(), "disk"))
}

func diskIn(t testing.TB, dir string) settings.Config {
	t.Helper()
	c := testConfig(t)
	c.Disk = dir
	c.DiskSize, c.DiskPrivate, c.DiskSlab, c.DiskGranule, c.DiskReserve = 24*settings.MiB, 8*settings.MiB, 4*settings.MiB, 4*settings.KiB, 0
	c.ReadAhead = false
	c.AdminSocket, c.HTTP = "", "127.0.0.1:0"
	return c
}

// adminClient is a client of a daemon's trusted admin socket.
func (r *running) adminClient(t testing.TB) *api.Client {
	t.Helper()
	return adminAt(t, r.Socket())
}

// check is one check of a daemon's status.
func (r *running) check(t testing.TB, name string) api.Check {
	t.Helper()
	st, err := r.adminClient(t).Status(context.Background())
	must(t, err)
	for _, c := range st.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %q in %+v", name, st.Checks)
	return api.Check{}
}

// publishAt publishes a document and returns the level reached.
func (c *rawClient) publishAt(d *document, level wire.Level) wire.Level {
	c.t.Helper()
	id, code := c.reserve(d, 0)
	if code != wire.OK {
		c.t.Fatalf("reserve: %v", code)
	}
	m := c.commitRequest(id, d.layout, d.bytes)
	m.Level = uint8(level)
	var r wire.CommitReply
	c.call(wire.OpCommit, m, &r)
	n := len(r.Codes) - 1
	if r.Published[n] != 1 {
		c.t.Fatalf("commit %v, published %v", r.Codes, r.Published)
	}
	for i := range n {
		if r.Levels[i] != 0 {
			c.t.Errorf("row %d has level %d and published nothing", i, r.Levels[i])
		}
	}
	return wire.Level(r.Levels[n])
}

func TestWhatWasPutAtAnyLevelOutlivesTheDaemon(t *testing.T) {
	leakCheck(t)
	config := withDisk(t)
	p := testProfile(1)
	var docs []*document
	r := startDaemon(t, config, nil)
	c := attach(t, r.Socket())
	c.register(p)
	for i, level := range []wire.Level{wire.LevelDefault, wire.LevelMemory, wire.LevelLogged, wire.LevelSynced} {
		d := newDocument(p, nil, uint64(i+1), 64+i, profile.RoleFirst)
		if got := c.publishAt(d, level); got != max(level, wire.LevelMemory) {
			t.Errorf("asked for %v, reached %v", level, got)
		}
		docs = append(docs, d)
	}
	root, leaf := c.saveChain(p)
	if m := c.match(docs[3].key); m.Tier[0] != wire.TierDRAM {
		t.Errorf("before: tier %d", m.Tier[0])
	}
	c.close()
	r.stop()

	// Ids follow the order of the file, which an operator may change.
	config.Tenants = append([]settings.Tenant{{Name: "new", Salt: "salted"}}, config.Tenants...)
	r = startDaemon(t, config, nil)
	c = attach(t, r.Socket(), wire.TenantName{Name: settings.DefaultTenant})
	if c.tenant != 2 {
		t.Errorf("tenant %d", c.tenant)
	}
	c.register(p)
	for _, d := range docs {
		m := c.match(d.key)
		if m.Status[0] != wire.StatusHit || m.Tier[0] != wire.TierDisk || int(m.Tokens[0]) != d.spec.Tokens {
			t.Errorf("after the restart: %s", told(m))
		}
		c.release(c.lease(d))
		if m = c.match(d.key); m.Status[0] != wire.StatusHit || m.Tier[0] != wire.TierDRAM {
			t.Errorf("after it was acquired: %s", told(m))
		}
	}
	var m wire.MatchReply
	c.call(wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Accept: wire.AcceptExact, Positions: []uint32{32, 64}, Prefixes: [][32]byte{root.hash, leaf.hash}}, &m)
	if m.PrefixTokens != 64 || m.PrefixIndex != 1 || m.PrefixFlags != wire.AcceptExact || m.PrefixTier != wire.TierDisk {
		t.Errorf("prefix after the restart: %s", told(&m))
	}
	var l wire.LoadReply
	c.call(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptExact, Hash: leaf.hash}, &l)
	if got := c.nodes(&l); len(got) != 2 || !bytes.Equal(got[0], root.bytes) || !bytes.Equal(got[1], leaf.bytes) {
		t.Errorf("loaded %d nodes, or they differ", len(got))
	}
	if l.Tokens != 64 || !slices.Equal(l.NodeBegin, []uint32{0, 32}) || !slices.Equal(l.NodeEnd, []uint32{32, 64}) {
		t.Errorf("loaded %d tokens in nodes from %d to %d", l.Tokens, l.NodeBegin, l.NodeEnd)
	}
	c.refused(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptSpliced, Hash: leaf.hash}, wire.Miss, "flag_only")
	c.call(wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Accept: wire.AcceptExact, Positions: []uint32{64}, Prefixes: [][32]byte{leaf.hash}}, &m)
	if m.PrefixTokens != 64 || m.PrefixTier != wire.TierDRAM {
		t.Errorf("prefix after it was loaded: %s", told(&m))
	}
	c.release(l.Lease)
	c.close()
	r.atRest()
	r.stop()
}

// node is a checkpoint that saveChain has made.
type node struct {
	hash  [32]byte
	bytes []byte
}

// saveChain saves a checkpoint of 32 tokens and one of 64 that extends it.
func (c *rawClient) saveChain(p *profile.Profile) (root, leaf node) {
	c.t.Helper()
	d := newDocument(p, nil, 99, 64, profile.RoleFirst)
	hashes := p.PrefixHashes(nil, 16, d.tokens, []int{32, 64})
	var nodes [2]node
	var parent [32]byte
	for i, n := range []int{32, 64} {
		l := p.CheckpointLayout(32)
		nodes[i] = node{hashes[i], fill(l, rand.New(rand.NewPCG(uint64(n), 2)))}
		c.saveNode(wire.AcceptExact, hashes[i], parent, uint32(n), l, nodes[i].bytes)
		parent = hashes[i]
	}
	return nodes[0], nodes[1]
}

// nodes returns the bytes of a loaded chain.
func (c *rawClient) nodes(l *wire.LoadReply) [][]byte {
	var list [][]byte
	at := 0
	for _, n := range l.ExtentCount {
		var b []byte
		for range n {
			b = append(b, c.arena.Bytes()[l.ExtentOff[at]:][:l.ExtentLen[at]]...)
			at++
		}
		list = append(list, b)
	}
	return list
}

// Without a disk every level is memory, and no level is refused but those that
// are none.
func TestLevelsWithoutADisk(t *testing.T) {
	r, c, p := startClient(t, testConfig(t), nil)
	for level := wire.LevelDefault; level.Known(); level++ {
		if got := c.publishAt(newDocument(p, nil, uint64(level+1), 64, profile.RoleFirst), level); got != wire.LevelMemory {
			t.Errorf("asked for %v, reached %v", level, got)
		}
	}
	d := newDocument(p, nil, 77, 64, profile.RoleFirst)
	id, _ := c.reserve(d, 0)
	m := c.commitRequest(id, d.layout, d.bytes)
	for _, level := range []uint8{uint8(wire.LevelSynced) + 1, 0x80, 0xff} {
		m.Level = level
		c.refused(wire.OpCommit, m, wire.Invalid, fmt.Sprintf("level %d", level))
	}
	if !c.commit(id, d.layout, d.bytes) {
		t.Error("the refused commits have spoilt the reservation")
	}
	c.close()
	r.atRest()
}

// A directory that cannot be used costs the tier, never the daemon.
func TestADaemonWhoseDiskIsInTroubleServesFromMemory(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(t *testing.T, c *settings.Config)
		state string
	}{
		"not a directory": {func(t *testing.T, c *settings.Config) {
			must(t, os.WriteFile(c.Disk, []byte("a file"), 0o600))
		}, "foreign"},
		"no parent":                  {func(_ *testing.T, c *settings.Config) { c.Disk = filepath.Join(c.Disk, "a", "b") }, "missing"},
		"a directory of other files": {func(_ *testing.T, c *settings.Config) { c.Disk = "/sys/kernel" }, "foreign"},
	} {
		t.Run(name, func(t *testing.T) {
			config := withDisk(t)
			test.spoil(t, &config)
			r := startDaemon(t, config, nil)
			if check := r.check(t, "disk"); check.State != api.CheckDegraded || !strings.HasPrefix(check.Detail, test.state+" since ") {
				t.Errorf("check %s is %s, want %s: %s", check.Name, check.State, test.state, check.Detail)
			}
			if h, err := r.adminClient(t).Ready(context.Background()); err != nil || h.Status != api.HealthDegraded || !slices.Contains(h.Degraded, "disk") {
				t.Errorf("readiness %+v, %v", h, err)
			}
			if line := fmt.Sprintf("spliced_disk_state{state=%q} 1\n", test.state); !strings.Contains(r.metricsText(t), line) {
				t.Errorf("metrics have no line %q", line)
			}
			p := testProfile(1)
			c := attach(t, r.Socket())
			c.register(p)
			d := newDocument(p, nil, 1, 64, profile.RoleFirst)
			if got := c.publishAt(d, wire.LevelSynced); got != wire.LevelMemory {
				t.Errorf("reached %v", got)
			}
			if m := c.match(d.key); m.Status[0] != wire.StatusHit || m.Tier[0] != wire.TierDRAM {
				t.Errorf("match %s", told(m))
			}
			c.release(c.lease(d))
			c.close()
			r.atRest()
			r.stop()
		})
	}
}

// The directory is tried again: whoever waits for it gets it.
func TestADaemonTakesADirectoryOverFromOneThatEnds(t *testing.T) {
	leakCheck(t)
	config, next := withDisk(t), withDisk(t)
	next.Disk = config.Disk
	first, c, p := startClient(t, config, nil)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publishAt(d, wire.LevelSynced)
	c.close()
	second := startDaemon(t, next, nil)
	if check := second.check(t, "disk"); check.State != api.CheckDegraded || !strings.HasPrefix(check.Detail, "locked since ") {
		t.Errorf("check %s is %s: %s", check.Name, check.State, check.Detail)
	}
	first.stop()
	eventually(t, "the directory is open", func() bool { return second.disk.Health().State == disk.StateOK })
	c = attach(t, second.Socket())
	c.register(p)
	if m := c.match(d.key); m.Tier[0] != wire.TierDisk {
		t.Errorf("match %s", told(m))
	}
	c.release(c.lease(d))
	c.close()
	second.atRest()
	second.stop()
}

func (r *running) metricsText(t testing.TB) string {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	answer, err := http.Get("http://" + r.AdminAddr().String() + "/metrics")
	must(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	return string(text)
}

func TestPeopleSeeBothTiersAsOne(t *testing.T) {
	config := withDisk(t)
	config.Arena = settings.MiB
	r, c, p := startClient(t, config, nil)
	docs, inOrder := map[api.Digest]*document{}, []*document(nil)
	for i := range 40 {
		d := newDocument(p, nil, uint64(i+1), 512, profile.RoleFirst)
		eventually(t, "the disk has made room", func() bool {
			id, code := c.reserve(d, 0)
			return code == wire.OK && c.commit(id, d.layout, d.bytes)
		})
		docs[api.Digest(d.key)], inOrder = d, append(inOrder, d)
	}
	root, leaf := c.saveChain(p)
	ctx, admin := context.Background(), r.adminClient(t)
	eventually(t, "all is written", func() bool { return r.disk.Counters().Written == 42 })
	for _, limit := range []int{2, 7, 1000} {
		both := 0
		last := api.Digest{}
		seen := 0
		for s, err := range admin.Segments(ctx, api.SegmentQuery{Limit: limit}) {
			must(t, err)
			d := docs[s.Key]
			if d == nil || bytes.Compare(s.Key[:], last[:]) <= 0 {
				t.Fatalf("limit %d: %v after %v", limit, s.Key, last)
			}
			if s.State != "published" || s.Level == api.LevelMemory || s.Bytes != d.layout.Bytes || s.DiskBytes < s.Bytes || s.Tenant != settings.DefaultTenant ||
				s.Profile != c.profile || s.Model != "test" || s.Tokens != 512 || s.Interior != 512 || s.Role != "first" || s.Created.IsZero() {
				t.Errorf("limit %d: %+v", limit, s)
			}
			if len(s.Tiers) == 2 {
				both++
			} else if !slices.Equal(s.Tiers, []string{"disk"}) {
				t.Errorf("tiers %v", s.Tiers)
			}
			last = s.Key
			seen++
		}
		if seen != len(docs) || both == 0 || both == seen {
			t.Errorf("limit %d: %d segments, %d in both tiers", limit, seen, both)
		}
	}
	var points []api.Checkpoint
	for cp, err := range admin.Checkpoints(ctx, api.CheckpointQuery{Limit: 1}) {
		must(t, err)
		points = append(points, cp)
	}
	if len(points) != 2 || !slices.Equal(points[0].Tiers, []string{"dram", "disk"}) {
		t.Errorf("checkpoints %+v", points)
	}
	pools, err := admin.Pools(ctx)
	if err != nil || len(pools) != 4 || pools[2].Tier != "disk" || pools[2].Objects != 40 || pools[2].UsedBytes == 0 || pools[2].PageBytes != int64(config.DiskGranule) ||
		pools[3].Objects != 2 || pools[2].CapacityBytes < int64(config.DiskSize)*9/10 || len(pools[2].Tenants) != 2 {
		t.Errorf("pools %+v, %v", pools, err)
	}
	// A disk holds what memory has no room for: everything stays a hit.
	tiers := map[uint8]int{}
	for _, d := range inOrder {
		m := c.match(d.key)
		if m.Status[0] != wire.StatusHit {
			t.Errorf("%x: %s", d.key[:4], told(m))
		}
		tiers[m.Tier[0]]++
		c.release(c.lease(d))
	}
	if tiers[wire.TierDisk] < len(inOrder)/2 {
		t.Errorf("tiers %v of %d", tiers, len(inOrder))
	}
	if m := c.match(inOrder[len(inOrder)-1].key); m.Tier[0] != wire.TierDRAM {
		t.Errorf("what was acquired last: %s", told(m))
	}
	c.close()
	r.stop()

	// What no engine has registered since is shown, without parts.
	r = startDaemon(t, config, nil)
	admin = r.adminClient(t)
	points = nil
	for cp, err := range admin.Checkpoints(ctx, api.CheckpointQuery{Limit: 1}) {
		must(t, err)
		points = append(points, cp)
	}
	for _, cp := range points {
		if isLeaf := cp.Hash == api.Digest(leaf.hash); cp.Profile != 0 || cp.Kind != "exact" || cp.Rows != 32 || !slices.Equal(cp.Tiers, []string{"disk"}) ||
			isLeaf && (cp.Tokens != 64 || cp.Parent == nil || *cp.Parent != api.Digest(root.hash)) || !isLeaf && (cp.Children != 1 || cp.Parent != nil) {
			t.Errorf("checkpoint %+v", cp)
		}
	}
	if len(points) != 2 {
		t.Errorf("%d checkpoints", len(points))
	}
	d := newDocument(p, nil, 1, 512, profile.RoleFirst)
	detail, err := admin.Segment(ctx, api.Digest(d.key))
	if err != nil || len(detail.Parts) != 0 || detail.Profile != 0 || detail.Publisher != "raw" || detail.DiskExtents == 0 || detail.Codec != "none" || detail.Extents != 0 {
		t.Errorf("before an engine came: %+v, %v", detail, err)
	}
	c = attach(t, r.Socket())
	c.register(p)
	if detail, err = admin.Segment(ctx, api.Digest(d.key)); err != nil || len(detail.Parts) != len(d.layout.Parts) || detail.Profile != c.profile {
		t.Errorf("after it came: %+v, %v", detail, err)
	}
	// Removed from both tiers, for good.
	c.release(c.lease(d))
	if _, err := admin.Remove(ctx, api.Digest(d.key), false); err != nil {
		t.Error(err)
	}
	if m := c.match(d.key); m.Status[0] != wire.StatusMiss || m.Reason[0] != wire.ReasonRemoved {
		t.Errorf("after removal: %s", told(m))
	}
	c.close()
	r.stop()
	r = startDaemon(t, config, nil)
	if _, err := r.adminClient(t).Segment(ctx, api.Digest(d.key)); err == nil {
		t.Error("a removed segment came back")
	}
	r.stop()
}

func TestDiskMetricsAreNamedAsPrometheusWants(t *testing.T) {
	r, c, p := startClient(t, withDisk(t), nil)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publishAt(d, wire.LevelSynced)
	r.wantMetrics(t,
		`spliced_disk_state{state="ok"} 1`, `spliced_disk_state{state="full"} 0`, `spliced_disk_written_total 1`,
		`spliced_acknowledged_total{level="synced"} 1`, `spliced_tier_written_total{tier="disk"} 1`,
		`spliced_pool_objects{pool="public",tier="disk"} 1`, `spliced_corrupt_total{tier="disk"} 0`,
		`spliced_disk_write_queue_bytes 0`, `spliced_promotions_total{result="done"} 0`,
		`spliced_disk_operation_duration_seconds_count{operation="write"} 1`, `spliced_fetch_duration_seconds_count{tier="disk"} 0`,
	)
	// The socket tells the same, by other names.
	var stats wire.StatsReply
	c.call(wire.OpStats, &wire.StatsRequest{}, &stats)
	for _, name := range []string{"disk_written", "disk_pool_public_used_bytes", "acknowledged_synced", "requests_waiting"} {
		if !slices.Contains(stats.Names, name) {
			t.Errorf("stats have no %q", name)
		}
	}
	for name, want := range map[string]float64{"connections": 1, "requests_hello_ok": 1, "pool_public_capacity_bytes": float64(8 * settings.MiB)} {
		if i := slices.Index(stats.Names, name); i < 0 || stats.Values[i] != want {
			t.Errorf("%s at %d of %v", name, i, stats.Values)
		}
	}
}
