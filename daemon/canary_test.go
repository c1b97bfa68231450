package daemon

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// report sends a report and answers whether the profile is off.
func (c *rawClient) report(m wire.ReportRequest) bool {
	c.t.Helper()
	m.Profile = c.profile
	var r wire.ReportReply
	c.call(wire.OpReport, &m, &r)
	return r.Off == 1
}

var guarded = wire.TenantName{Name: "guarded", Token: "open sesame"}

func TestProfileIsSwitchedOffForItsTenantAlone(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	c, other := attach(t, d.Socket()), attach(t, d.Socket(), guarded)
	c.register(p)
	other.register(p)
	mine := newDocument(p, c.hello.Tenants[0].Salt, 1, 40, profile.RoleFirst)
	theirs := newDocument(p, other.hello.Tenants[0].Salt, 1, 40, profile.RoleFirst)
	c.publish(mine)
	other.publish(theirs)

	if c.report(wire.ReportRequest{Compared: 10, Failed: 2, Worst: 0.5, Bound: 0.1}) {
		t.Fatal("off without being asked to")
	}
	held := c.lease(mine)
	if !c.report(wire.ReportRequest{Compared: 1, Failed: 1, Worst: math.Inf(1), Bound: 0.1, Off: 1, Text: "no number"}) {
		t.Fatal("not off")
	}
	checkOff := func(c *rawClient) {
		t.Helper()
		if m := c.match(mine.key); m.Status[0] != wire.StatusMiss || m.Reason[0] != wire.ReasonOff {
			t.Fatalf("match: status %d, reason %d", m.Status[0], m.Reason[0])
		}
		if r := c.acquire(0, mine.key); wire.Code(r.Codes[0]) != wire.Miss || r.Leases[0] != 0 {
			t.Fatalf("acquire: %v, lease %d", wire.Code(r.Codes[0]), r.Leases[0])
		}
		var all wire.AcquireReply
		c.call(wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, All: 1, Keys: [][32]byte{mine.key}}, &all)
		if wire.Code(all.Codes[0]) != wire.Miss {
			t.Fatalf("acquire of all: %v", wire.Code(all.Codes[0]))
		}
	}
	checkOff(c)
	if codes := c.release(held); wire.Code(codes[0]) != wire.OK {
		t.Fatalf("release of what was leased before: %v", wire.Code(codes[0]))
	}
	again := attach(t, d.Socket())
	again.register(p)
	checkOff(again)
	if !again.report(wire.ReportRequest{Compared: 5, Bound: 0.1}) {
		t.Fatal("a report of another connection switched it on")
	}
	other.release(other.lease(theirs))

	rows := d.canary.List()
	if len(rows) != 1 || rows[0].Compared != 16 || rows[0].Failed != 3 || !rows[0].Off || rows[0].Why != "no number" {
		t.Fatalf("kept %+v", rows)
	}
	if changed, err := d.canary.Set(rows[0].Key, "", false, ""); err != nil || !changed {
		t.Fatal(changed, err)
	}
	c.release(c.lease(mine))
}

func TestExactCheckpointsGoOnWhileSplicingIsOff(t *testing.T) {
	_, c, p := startClient(t, testConfig(t), nil)
	exact := c.keep(p, [32]byte{1}, 32, wire.AcceptExact)
	spliced := c.keep(p, [32]byte{2}, 48, wire.AcceptSpliced)
	both := wire.AcceptExact | wire.AcceptSpliced
	find := func() uint32 {
		t.Helper()
		var r wire.MatchReply
		c.call(wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Accept: both, Positions: []uint32{32, 48}, Prefixes: [][32]byte{exact, spliced}}, &r)
		return r.PrefixTokens
	}
	if n := find(); n != 48 {
		t.Fatalf("prefix of %d tokens before", n)
	}
	c.report(wire.ReportRequest{Compared: 1, Failed: 1, Worst: 1, Off: 1})
	if n := find(); n != 32 {
		t.Fatalf("prefix of %d tokens, want the exact one of 32", n)
	}
	c.refused(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: both, Hash: spliced}, wire.Miss, "checkpoint")
	c.refused(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptSpliced, Hash: spliced}, wire.Miss, "switched off")
	var loaded wire.LoadReply
	c.call(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: both, Hash: exact}, &loaded)
	c.release(loaded.Lease)
}

// keep saves a checkpoint of made-up bytes without a parent.
func (c *rawClient) keep(p *profile.Profile, hash [32]byte, tokens uint32, kind uint8) [32]byte {
	c.t.Helper()
	layout := p.CheckpointLayout(int(tokens))
	c.saveNode(kind, hash, [32]byte{}, tokens, layout, make([]byte, layout.Bytes))
	return hash
}

func TestBadReportsAreRefused(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	c := attach(t, d.Socket())
	c.register(testProfile(1))
	for part, m := range map[string]wire.ReportRequest{
		"2 of 1":      {Compared: 1, Failed: 2, Off: 1},
		"worst NaN":   {Compared: 1, Worst: math.NaN(), Off: 1},
		"worst -1":    {Compared: 1, Worst: -1, Off: 1},
		"bound NaN":   {Compared: 1, Bound: math.NaN(), Off: 1},
		"bound: want": {Compared: 1, Bound: math.Inf(1), Off: 1},
		"off 2":       {Compared: 1, Off: 2},
	} {
		m.Profile = c.profile
		c.refused(wire.OpReport, &m, wire.Invalid, part)
	}
	c.refused(wire.OpReport, &wire.ReportRequest{Profile: c.profile + 7, Off: 1}, wire.Invalid, "not registered")
	if rows := d.canary.List(); len(rows) != 0 {
		t.Fatalf("kept %+v", rows)
	}
}

// crc32Request is commitRequest as a client with crc32-digests sends it.
func (c *rawClient) crc32Request(reservation uint64, d *document) *wire.CommitRequest {
	m := c.commitRequest(reservation, d.layout, d.bytes)
	m.Digest = m.Digest[:0]
	for _, p := range d.layout.Parts {
		for at := p.Off; at < p.Off+p.Len; at += gpuipc.ChunkBytes {
			m.Digest = append(m.Digest, uint64(crc32.ChecksumIEEE(d.bytes[at:min(at+gpuipc.ChunkBytes, p.Off+p.Len)])))
		}
	}
	return m
}

func TestConnectionWithCRC32Digests(t *testing.T) {
	d := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	c := dialRaw(t, d.Socket())
	fds := c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Features: ^uint64(0), Client: "raw", Tenants: []wire.TenantName{{}}})
	if c.hello.Features&(wire.FeatureCRC32Digests|wire.FeatureDevice) != wire.FeatureCRC32Digests {
		t.Fatalf("features %#x", c.hello.Features)
	}
	c.mapAll(fds)
	c.register(p)
	doc := newDocument(p, c.hello.Tenants[0].Salt, 3, 40, profile.RoleFirst)
	id, _ := c.reserve(doc, 0)
	var r wire.CommitReply
	c.call(wire.OpCommit, c.commitRequest(id, doc.layout, doc.bytes), &r)
	if wire.Code(r.Codes[0]) != wire.Corrupt {
		t.Fatalf("xxh3 on a connection that said CRC-32: %v", wire.Code(r.Codes[0]))
	}
	id, _ = c.reserve(doc, 0)
	m := c.crc32Request(id, doc)
	r = wire.CommitReply{}
	c.call(wire.OpCommit, m, &r)
	if last := len(r.Codes) - 1; r.Published[last] != 1 {
		t.Fatalf("commit: %v", r.Codes)
	}
	c.release(c.lease(doc))
	// What the daemon keeps are xxh3 digests.
	rows := c.acquire(0, doc.key)
	want := c.commitRequest(0, doc.layout, doc.bytes).Digest
	for i := range want {
		if rows.Digest[i] != want[i] {
			t.Fatalf("digest %d is %#x, want %#x", i, rows.Digest[i], want[i])
		}
	}
	c.release(rows.Leases...)

	wrong := newDocument(p, c.hello.Tenants[0].Salt, 4, 40, profile.RoleFirst)
	id, _ = c.reserve(wrong, 0)
	m = c.crc32Request(id, wrong)
	m.Digest[len(m.Digest)-1] ^= 1 << 40 // CRC-32 has no upper half
	r = wire.CommitReply{}
	c.call(wire.OpCommit, m, &r)
	if last := len(r.Codes) - 1; wire.Code(r.Codes[last]) != wire.Corrupt {
		t.Fatalf("a wrong checksum: %v", r.Codes)
	}
}

func TestSwitchedOffSurvivesARestartAndAnOperatorClearsIt(t *testing.T) {
	config := withDisk(t)
	d, c, p := startClient(t, config, nil)
	doc := newDocument(p, c.hello.Tenants[0].Salt, 5, 40, profile.RoleFirst)
	c.publish(doc)
	c.report(wire.ReportRequest{Compared: 3, Failed: 3, Worst: 2, Bound: 1, Off: 1, Text: "too\nfar"})
	c.close()
	d.stop()

	// The order of the tenants has changed, and with it their numbers.
	config.Tenants[0], config.Tenants[1] = config.Tenants[1], config.Tenants[0]
	d = startDaemon(t, config, nil)
	c = attach(t, d.Socket())
	c.register(p)
	if m := c.match(doc.key); m.Reason[0] != wire.ReasonOff {
		t.Fatalf("after a restart: status %d, reason %d", m.Status[0], m.Reason[0])
	}
	if check := d.check(t, "splicing"); check.State != api.CheckDegraded || !strings.Contains(check.Detail, "too far") {
		t.Fatalf("check %s is %s: %s", check.Name, check.State, check.Detail)
	}
	admin := d.adminClient(t)
	rows, err := admin.Canaries(t.Context())
	if err != nil || len(rows) != 1 || !rows[0].Off || rows[0].Tenant != "default" || rows[0].Why != "too far" {
		t.Fatal(rows, err)
	}
	q := api.SwitchQuery{Profile: rows[0].Profile, Tenant: "guarded"}
	if _, err := admin.SwitchProfile(t.Context(), q); !errors.Is(err, api.ErrNotFound) {
		t.Fatalf("another tenant's: %v", err)
	}
	q.Tenant, q.Dry = "", true
	if done, err := admin.SwitchProfile(t.Context(), q); err != nil || !done.Canaries[0].Off || !done.DryRun {
		t.Fatal(done, err)
	}
	q.Dry = false
	if done, err := admin.SwitchProfile(t.Context(), q); err != nil || len(done.Canaries) != 1 || done.Canaries[0].Off {
		t.Fatal(done, err)
	}
	if m := c.match(doc.key); m.Reason[0] == wire.ReasonOff {
		t.Fatal("still off")
	}
	if check := d.check(t, "splicing"); check.State != api.CheckOK {
		t.Fatalf("check %s is %s: %s", check.Name, check.State, check.Detail)
	}
	c.close()
	d.stop()

	d = startDaemon(t, config, nil)
	if n := d.canary.Sums().Off; n != 0 {
		t.Fatalf("%d off again after the next restart", n)
	}
}

// damage is what may befall the note of what is switched off.
var damage = map[string]func(t *testing.T, path string){
	"emptied": func(t *testing.T, path string) {
		must(t, os.Truncate(path, 0))
	},
	"unreadable": func(t *testing.T, path string) {
		must(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
	},
}

// While it is not known what is switched off, no operation serves what was spliced, of any
// profile of any tenant, although no profile is listed as off.
func TestEveryOperationIsOffWhileTheNoteCannotBeRead(t *testing.T) {
	for name, harm := range damage {
		t.Run(name, func(t *testing.T) {
			config, hbm := withDisk(t), deviceConfig(t)
			config.HBMPublic, config.HBMPrivate, config.HBMPageBytes = hbm.HBMPublic, hbm.HBMPrivate, hbm.HBMPageBytes
			config.HBMClient, config.HBMConnections, config.HBMAhead = hbm.HBMClient, hbm.HBMConnections, false
			p := testProfile(1)
			d, _ := startDouble(t, config)
			c := attachDouble(t, d.Socket())
			c.register(p)
			if !c.report(wire.ReportRequest{Compared: 1, Failed: 1, Worst: 1, Off: 1}) {
				t.Fatal("not off")
			}
			c.close()
			d.stop()
			harm(t, filepath.Join(config.Disk, "switched-off.json"))

			d, _ = startDouble(t, config)
			c = attachDouble(t, d.Socket())
			other := adapted("never reported on")
			for _, p := range []*profile.Profile{p, other} {
				c.register(p)
				checkAllOff(t, c, p)
			}
			if n := d.canary.Sums().Withheld; n == 0 {
				t.Error("no key is counted as withheld")
			}
			if check := d.check(t, "splicing"); check.State != api.CheckDegraded || !strings.Contains(check.Detail, "all profiles are switched off") {
				t.Errorf("check %s is %s: %s", check.Name, check.State, check.Detail)
			}
			if text := d.metricsText(t); !strings.Contains(text, `spliced_profile_switched_off{profile="all",tenant="guarded"} 1`) {
				t.Error("no series says that all is off")
			}
			m := wire.ReportRequest{Profile: c.profile, Compared: 1, Off: 1}
			c.refused(wire.OpReport, &m, wire.Unavailable, "not saved")
			c.close()
			d.deviceAtRest()
		})
	}
}

// checkAllOff publishes under a profile and asks for it by each operation that serves what
// was spliced.
func checkAllOff(t *testing.T, c *deviceClient, p *profile.Profile) {
	t.Helper()
	doc := newDocument(p, c.hello.Tenants[0].Salt, 1, 40, profile.RoleMid)
	c.publish(doc)
	hash := c.keep(p, [32]byte{byte(c.profile)}, 48, wire.AcceptSpliced)
	both := wire.AcceptExact | wire.AcceptSpliced
	var m wire.MatchReply
	c.call(wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Accept: both, Positions: []uint32{48}, Prefixes: [][32]byte{hash}, Keys: [][32]byte{doc.key}}, &m)
	if m.PrefixTokens != 0 || m.Status[0] != wire.StatusMiss || m.Reason[0] != wire.ReasonOff {
		t.Errorf("match: %s", told(&m))
	}
	if r := c.acquire(0, doc.key); wire.Code(r.Codes[0]) != wire.Miss || r.Leases[0] != 0 {
		t.Errorf("acquire: %v, lease %d", wire.Code(r.Codes[0]), r.Leases[0])
	}
	if r := c.acquireDevice(1, doc.key); wire.Code(r.Codes[0]) != wire.Miss || r.Leases[0] != 0 {
		t.Errorf("acquire-device: %v, lease %d", wire.Code(r.Codes[0]), r.Leases[0])
	}
	load := wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptSpliced, Hash: hash}
	c.refused(wire.OpLoad, &load, wire.Miss, "switched off")
	c.refused(wire.OpLoadDevice, &wire.LoadDeviceRequest{LoadRequest: load}, wire.Miss, "switched off")
	row := c.reserveRequest(doc, 0) // stages the tokens
	var alone wire.PlanReply
	c.call(wire.OpPlan, &wire.PlanRequest{
		Profile: c.profile, Keys: row.Keys, Roles: row.Roles, Heads: row.Heads, Tails: row.Tails, Tokens: row.Tokens, TokenOff: tokensAt,
	}, &alone)
	if alone.Plan != 0 || alone.Alone != wire.AloneOff {
		t.Errorf("plan: %+v", alone)
	}
}

func TestOperatorSwitchesAProfileOff(t *testing.T) {
	config := testConfig(t)
	config.AdminSocket = ""
	d, c, p := startClient(t, config, nil)
	admin := d.adminClient(t)
	q := api.SwitchQuery{Profile: api.Digest(p.Fingerprint()), Off: true, Why: "a new kernel"}
	if done, err := admin.SwitchProfile(t.Context(), q); err != nil || len(done.Canaries) != len(config.Tenants) || done.Canaries[0].Why != q.Why {
		t.Fatal(done, err)
	}
	if m := c.match([32]byte{1}); m.Reason[0] != wire.ReasonOff {
		t.Fatalf("reason %d", m.Reason[0])
	}
	if n := d.canary.Sums().Withheld; n != 1 {
		t.Fatalf("%d keys withheld", n)
	}
	q.Why = ""
	for _, q.Off = range []bool{false, true} {
		if _, err := admin.SwitchProfile(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if check := d.check(t, "splicing"); !strings.Contains(check.Detail, "no reason given") {
		t.Errorf("%+v", check)
	}
	q.Profile[0] ^= 1
	if _, err := admin.SwitchProfile(t.Context(), q); !errors.Is(err, api.ErrNotFound) {
		t.Fatalf("a profile that nobody has: %v", err)
	}
}

// Every row is answered whole, also of a profile that has a tolerance and is switched off.
func TestSwitchedOffProfilesWithATolerance(t *testing.T) {
	config := testConfig(t)
	config.AdminSocket = ""
	r := startDaemon(t, config, nil)
	p := lenient(0.02)
	_, m := openClient(t, r.Socket(), p, connector.Binding{})
	doc, missing := newDocument(p, nil, 1, 200, profile.RoleMid), newDocument(p, nil, 2, 200, profile.RoleMid)
	put(t, m, doc)
	q := api.SwitchQuery{Profile: api.Digest(p.Fingerprint()), Off: true, Why: "a new kernel"}
	if _, err := r.adminClient(t).SwitchProfile(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	var found connector.Found
	must(t, m.Match(t.Context(), &connector.MatchQuery{Keys: []profile.SegmentKey{doc.key, missing.key}}, &found))
	for _, row := range found.Segments {
		if row.Hit() || row.Reason != wire.ReasonOff || row.Error != 0 {
			t.Errorf("%+v", row)
		}
	}
}

// switchedEnv makes the test binary a daemon on the socket, with this disk directory, until
// it is killed.
const switchedEnv = "SPLICED_TEST_SWITCHED"

// adapted is a profile that differs from others by its adapter.
func adapted(adapter string) *profile.Profile {
	identity := profiletest.TwoLayers(1)
	identity.Adapter = adapter
	return profiletest.New(identity)
}

// A daemon that is killed as soon as it has answered, by a canary's report or to an operator,
// has what it switched off after a restart.
func TestAnsweredSwitchesOutliveAKill(t *testing.T) {
	leakCheck(t)
	config := withDisk(t)
	const rounds = 8
	for i := range rounds {
		command := ourselves(switchedEnv+"="+config.Disk, daemonEnv+"="+config.Socket)
		must(t, command.Start())
		listens(t, config.Socket)
		p := adapted(fmt.Sprint(i))
		c := attach(t, config.Socket)
		c.register(p)
		if i%2 == 0 {
			c.report(wire.ReportRequest{Compared: 1, Failed: 1, Worst: 1, Off: 1})
		} else if _, err := adminAt(t, config.Socket).SwitchProfile(t.Context(), api.SwitchQuery{Profile: api.Digest(p.Fingerprint()), Tenant: "default", Off: true}); err != nil {
			t.Error(err)
		}
		must(t, command.Process.Kill())
		_ = command.Wait()
		c.close()
	}
	d := startDaemon(t, config, nil)
	rows := d.canary.List()
	for i := range rounds {
		of := adapted(fmt.Sprint(i)).Fingerprint()
		if !slices.ContainsFunc(rows, func(r canary.Row) bool { return r.Fingerprint == of && r.Off }) {
			t.Errorf("what was switched off in round %d is on again", i)
		}
	}
}

// What is switched off is so at once, and the answer says where that will not last.
func TestASwitchThatCannotBeNotedIsNotAnsweredAsDone(t *testing.T) {
	config := withDisk(t)
	d := startDaemon(t, config, nil)
	must(t, errors.Join(os.RemoveAll(filepath.Join(config.Disk, "switched-off.json.new")), os.Mkdir(filepath.Join(config.Disk, "switched-off.json.new"), 0o700)))
	c := attach(t, d.Socket())
	p := testProfile(1)
	c.register(p)
	m := wire.ReportRequest{Profile: c.profile, Compared: 1, Failed: 1, Worst: 1, Off: 1}
	c.refused(wire.OpReport, &m, wire.Unavailable, "in force, but not saved yet")
	if r := c.match([32]byte{1}); r.Reason[0] != wire.ReasonOff {
		t.Errorf("reason %d", r.Reason[0])
	}
	other := adapted("other")
	c.register(other)
	q := api.SwitchQuery{Profile: api.Digest(other.Fingerprint()), Off: true}
	if _, err := d.adminClient(t).SwitchProfile(t.Context(), q); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("an operator is answered %v", err)
	}
	must(t, os.Remove(filepath.Join(config.Disk, "switched-off.json.new")))
	eventually(t, "what was not noted is", func() bool {
		_, err := d.adminClient(t).SwitchProfile(t.Context(), q)
		return err == nil
	})
}
