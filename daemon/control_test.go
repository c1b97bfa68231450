package daemon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestManySegmentsAreRemovedTogether(t *testing.T) {
	config := withDisk(t)
	config.WriteBehind = true
	r := startDaemon(t, config, nil)
	p := testProfile(1)
	c := attach(t, r.Socket(), wire.TenantName{})
	c.register(p)
	var docs []*document
	for i := range 40 {
		d := newDocument(p, nil, uint64(1000+i), 64, profile.RoleMid)
		if level := c.publishAt(d, wire.LevelLogged); level != wire.LevelLogged {
			t.Fatalf("level %v", level)
		}
		docs = append(docs, d)
	}
	pending := newDocument(p, nil, 5, 64, profile.RoleMid)
	if _, code := c.reserve(pending, 0); code != wire.OK {
		t.Fatal(code)
	}
	admin, ctx := r.adminClient(t), context.Background()
	if _, err := admin.Pin(ctx, api.PinQuery{Key: api.Digest(docs[0].key), TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	lease := c.lease(docs[1]) // it is removed all the same, and its memory stays
	dry, err := admin.RemoveSegments(ctx, api.RemovalQuery{Tenant: "default", Dry: true})
	if err != nil || !dry.DryRun || dry.Matched != 41 || dry.Removed != 39 || dry.Busy != 2 || dry.Bytes == 0 {
		t.Fatalf("%+v, %v", dry, err)
	}
	for name, q := range map[string]api.RemovalQuery{"another tenant": {Tenant: "guarded"}, "what is older": {OlderThan: time.Hour}, "another prefix": {Prefix: strings.Repeat("0", 32)}} {
		if none, err := admin.RemoveSegments(ctx, q); err != nil || none.Matched != 0 {
			t.Errorf("%s: %+v, %v", name, none, err)
		}
	}
	if _, err := admin.RemoveSegments(ctx, api.RemovalQuery{Tenant: "nobody"}); !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), `tenant "nobody" is not configured`) {
		t.Errorf("an unknown tenant: %v", err)
	}
	nobody := uint32(99)
	if _, err := admin.RemoveSegments(ctx, api.RemovalQuery{Profile: &nobody}); !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "no profile 99 is registered") {
		t.Errorf("an unknown profile: %v", err)
	}
	one, err := admin.RemoveSegments(ctx, api.RemovalQuery{Prefix: api.Digest(docs[2].key).String()[:20]})
	if err != nil || one.Removed != 1 {
		t.Fatalf("%+v, %v", one, err)
	}
	got, err := admin.RemoveSegments(ctx, api.RemovalQuery{Tenant: "default", Profile: &c.profile})
	if err != nil || got.Matched != 40 || got.Removed != 38 || got.Busy != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, d := range docs {
		if m := c.match(d.key); (m.Status[0] == wire.StatusMiss) == (i == 0) {
			t.Errorf("segment %d: %s", i, told(m))
		}
	}
	if u := r.disk.Usage(); u.Pools[0].Entries != 1 {
		t.Errorf("%d segments are left on disk, want the pinned one", u.Pools[0].Entries)
	}
	c.release(lease)
}

func TestCheckpointsAreShownAndRemoved(t *testing.T) {
	config := withDisk(t)
	r := startDaemon(t, config, nil)
	p := testProfile(1)
	c := attach(t, r.Socket(), wire.TenantName{})
	c.register(p)
	root, leaf := c.saveChain(p)
	written := func() {
		eventually(t, "the disk has what was saved", func() bool {
			_, ok := r.disk.Lookup(&tier.Name{Kind: tier.Exact, Key: leaf.hash})
			return ok
		})
	}
	written()
	admin, ctx := r.adminClient(t), context.Background()
	for range 2 { // in memory, and then on disk only
		at := api.CheckpointName{Hash: root.hash}
		got, err := admin.Checkpoint(ctx, at)
		if err != nil || got.Tokens != 32 || got.Children != 1 || got.Others != 0 || got.Hash != root.hash {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := admin.RemoveCheckpoint(ctx, at, false); !errors.Is(err, api.ErrBusy) {
			t.Fatalf("one that another extends: %v", err)
		}
		for _, none := range []api.CheckpointName{{Hash: api.Digest{1}}, {Hash: root.hash, Kind: "rows"}, {Hash: root.hash, Tenant: "guarded"}} {
			if _, err := admin.Checkpoint(ctx, none); !errors.Is(err, api.ErrNotFound) {
				t.Errorf("%+v: %v", none, err)
			}
		}
		dry, err := admin.RemoveCheckpoints(ctx, api.RemovalQuery{Dry: true})
		if err != nil || dry.Matched != 2 || dry.Removed != 2 || dry.Busy != 0 {
			t.Fatalf("%+v, %v", dry, err)
		}
		c.close()
		r.stop()
		r = startDaemon(t, config, nil)
		c = attach(t, r.Socket(), wire.TenantName{})
		c.register(p)
		admin = r.adminClient(t)
		written()
	}
	if got, err := admin.RemoveCheckpoint(ctx, api.CheckpointName{Hash: leaf.hash}, false); err != nil || got.Removed != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	c.saveChain(p)
	written()
	if got, err := admin.RemoveCheckpoints(ctx, api.RemovalQuery{Tenant: "default"}); err != nil || got.Removed != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := admin.Checkpoint(ctx, api.CheckpointName{Hash: root.hash}); !errors.Is(err, api.ErrNotFound) {
		t.Fatal(err)
	}
}

// After a restart the disk has objects of a model that no engine has registered yet.
func TestObjectsOfUnregisteredModels(t *testing.T) {
	config := withDisk(t)
	r, c, p := startClient(t, config, nil)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publishAt(d, wire.LevelLogged)
	c.close()
	r.stop()

	r = startDaemon(t, config, nil)
	admin, ctx := r.adminClient(t), t.Context()
	pin := api.PinQuery{Key: api.Digest(d.key), TTL: time.Minute}
	for _, pin.Dry = range []bool{true, false} {
		if _, err := admin.Pin(ctx, pin); !errors.Is(err, api.ErrBusy) || !strings.HasSuffix(err.Error(), "no engine has registered the object's model since the start: pin it when one is attached") {
			t.Errorf("pin: %v", err)
		}
	}
	off := api.SwitchQuery{Profile: api.Digest(p.Fingerprint()), Off: true}
	if done, err := admin.SwitchProfile(ctx, off); err != nil || len(done.Canaries) == 0 || done.Canaries[0].Model != p.Identity().Model {
		t.Errorf("switch off: %+v, %v", done, err)
	}
	if check := r.check(t, "splicing"); !strings.Contains(check.Detail, ": (no reason given)") {
		t.Errorf("check: %s", check.Detail)
	}
	c = attach(t, r.Socket())
	c.register(p)
	if got, err := admin.Pin(ctx, pin); err != nil || len(got.Pins) != 1 {
		t.Errorf("pin: %+v, %v", got, err)
	}
	c.close()
}

// Clients are served while a great deal is removed.
func TestRemovalsHoldUpNobody(t *testing.T) {
	config := testConfig(t)
	config.AdminSocket, config.Arena, config.MaxReservations = "", 64*settings.MiB, 20000
	r := startDaemon(t, config, nil)
	p := testProfile(1)
	c := attach(t, r.Socket(), wire.TenantName{})
	c.register(p)
	kept := newDocument(p, nil, 3, 16, profile.RoleFirst)
	other := attach(t, r.Socket(), wire.TenantName{})
	other.register(p)
	admin := r.adminClient(t)
	most := 0
	for range 3 { // in one round this thread may not run meanwhile
		for i := range 2000 {
			c.publish(newDocument(p, nil, uint64(10000+i), 16, profile.RoleFirst))
		}
		var removed api.Removed
		var failed error
		done := make(chan struct{})
		go func() {
			defer close(done)
			removed, failed = admin.RemoveSegments(context.Background(), api.RemovalQuery{})
		}()
		answered := 0
		for busy := true; busy; answered++ {
			other.match(kept.key)
			select {
			case <-done:
				busy = false
			default:
			}
		}
		if failed != nil || removed.Removed != 2000 {
			t.Fatalf("%+v, %v", removed, failed)
		}
		if most = max(most, answered); most >= 10 {
			return
		}
	}
	t.Errorf("at most %d matches were answered while 2000 segments were removed", most)
}

// startControlled starts a daemon with its admin socket beside that of engines, and a client
// of some tenants that has registered the first profile.
func startControlled(t testing.TB, tenants ...wire.TenantName) (*running, *rawClient) {
	t.Helper()
	config := testConfig(t)
	config.AdminSocket = ""
	r := startDaemon(t, config, nil)
	c := attach(t, r.Socket(), tenants...)
	c.register(testProfile(1))
	return r, c
}

func TestPinsAndLeasesAreShown(t *testing.T) {
	r, c := startControlled(t, wire.TenantName{}, wire.TenantName{Name: "guarded", Token: "open sesame"})
	p := testProfile(1)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publish(d)
	lease := c.lease(d)
	admin, ctx := r.adminClient(t), context.Background()
	conns, err := admin.Connections(ctx)
	must(t, err)
	for name, q := range map[string]api.LeaseQuery{"all": {}, "the connection's": {Connection: &conns[0].ID}, "the tenant's": {Tenant: "default"}} {
		n := 0
		for l, err := range admin.Leases(ctx, q) {
			if err != nil || l.Lease != lease || l.Client != "raw" || l.Connection != conns[0].ID || l.Key != api.Digest(d.key) || l.Tenant != "default" ||
				l.Object != "segment" || !l.Expires.After(l.Since) || l.Bytes == 0 || l.Profile != c.profile {
				t.Errorf("%s: %+v, %v", name, l, err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("%s: %d leases", name, n)
		}
	}
	nobody := uint64(999)
	for _, err := range admin.Leases(ctx, api.LeaseQuery{Connection: &nobody}) {
		if !errors.Is(err, api.ErrNotFound) {
			t.Errorf("an unknown connection: %v", err)
		}
	}
	for _, tenant := range []string{"guarded", "nobody"} {
		for l, err := range admin.Leases(ctx, api.LeaseQuery{Tenant: tenant}) {
			t.Errorf("of tenant %s: %+v, %v", tenant, l, err)
		}
	}

	key := api.Digest(d.key)
	if pinned, err := admin.Pin(ctx, api.PinQuery{Key: key, TTL: time.Minute, By: "the night shift"}); err != nil || len(pinned.Pins) != 1 {
		t.Fatalf("%+v, %v", pinned, err)
	}
	pins, err := admin.Pins(ctx)
	if err != nil || len(pins) != 1 || pins[0].By != "the night shift" || pins[0].Key != key || pins[0].Object != "segment" || pins[0].Tenant != "default" {
		t.Fatalf("%+v, %v", pins, err)
	}
	if _, err := admin.Remove(ctx, key, false); !errors.Is(err, api.ErrBusy) {
		t.Errorf("a pinned segment was removed: %v", err)
	}
	c.release(lease)
	for range admin.Leases(ctx, api.LeaseQuery{}) {
		t.Error("a pin is shown as a client's lease")
	}
	if _, err := admin.Unpin(ctx, key, false); err != nil {
		t.Fatal(err)
	}
	var p404 *api.Problem
	if _, err := admin.Unpin(ctx, key, false); !errors.As(err, &p404) || p404.Code != api.CodeNotFound || p404.Detail != "unpin "+key.String()+": it is not pinned" {
		t.Errorf("a pin that is not there: %v", err)
	}
	for what, err := range map[string]error{
		"segment %s: no such segment":              second(admin.Segment(ctx, api.Digest{1})),
		"remove segment %s: no such segment":       second(admin.Remove(ctx, api.Digest{1}, false)),
		"pin %s: no such segment or checkpoint":    second(admin.Pin(ctx, api.PinQuery{Key: api.Digest{1}, TTL: time.Minute})),
		"checkpoint %s: no such checkpoint":        second(admin.Checkpoint(ctx, api.CheckpointName{Hash: api.Digest{1}})),
		"remove checkpoint %s: no such checkpoint": second(admin.RemoveCheckpoint(ctx, api.CheckpointName{Hash: api.Digest{1}}, false)),
		"switch profile %s: no engine has registered it with this node, and nothing on disk is of it": second(admin.SwitchProfile(ctx, api.SwitchQuery{Profile: api.Digest{1}, Off: true})),
	} {
		if want := fmt.Sprintf(what, api.Digest{1}); !errors.As(err, &p404) || p404.Code != api.CodeNotFound || p404.Detail != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	c.close()
	r.atRest()
}

func second[T any](_ T, err error) error { return err }

// level is that of a log of its own.
type level struct {
	mu  sync.Mutex
	now zerolog.Level
}

func (l *level) Level() zerolog.Level {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *level) SetLevel(to zerolog.Level) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = to
}

func TestConfigurationChangesWhileItRuns(t *testing.T) {
	config := testConfig(t)
	config.AdminSocket = ""
	config.Tenants[1].Quota = 4 * settings.MiB
	config.Tenants[1].Salt = "the salt of the sea"
	log := &level{now: zerolog.WarnLevel}
	r := startParts(t, config, Parts{Level: log})
	admin, ctx := r.adminClient(t), context.Background()
	was, etag, err := admin.Config(ctx)
	if err != nil || was.LogLevel != "warn" || was.PublicBytes != int64(8*settings.MiB) || was.PoolsBytes != int64(12*settings.MiB) || was.Quotas["guarded"].QuotaBytes != int64(4*settings.MiB) || was.Settings["lease-ttl"] != "1m0s" {
		t.Fatalf("%+v, %v", was, err)
	}
	patch := map[string]any{
		"log_level": "debug", "public_bytes": 4 * settings.MiB, "private_bytes": 8 * settings.MiB, "quotas": map[string]any{"guarded": map[string]any{"quota_bytes": 1 << 20}},
	}
	now, err := admin.ChangeConfig(ctx, etag, patch, false)
	if err != nil || now.LogLevel != "debug" || now.PublicBytes != int64(4*settings.MiB) || now.Quotas["guarded"].QuotaBytes != 1<<20 || log.Level() != zerolog.DebugLevel {
		t.Fatalf("%+v, %v", now, err)
	}
	first := map[string]any{"public_bytes": 2 * settings.MiB, "quotas": map[string]any{"default": map[string]any{"quota_bytes": 1 << 20}}}
	if dry, err := admin.ChangeConfig(ctx, "*", first, true); err != nil || dry.PublicBytes != int64(2*settings.MiB) || dry.Quotas["default"].QuotaBytes != 1<<20 {
		t.Fatalf("a dry run: %+v, %v", dry, err)
	}
	pools, err := admin.Pools(ctx)
	if err != nil || pools[0].CapacityBytes != int64(4*settings.MiB) || pools[1].CapacityBytes != int64(8*settings.MiB) || pools[0].Tenants[0].QuotaBytes != 0 || pools[0].Tenants[1].QuotaBytes != 1<<20 {
		t.Fatalf("%+v, %v", pools, err)
	}
	for name, bad := range map[string]struct {
		patch map[string]any
		field string
		code  string
	}{
		"more than the arena": {map[string]any{"public_bytes": 64 * settings.MiB, "log_level": "error"}, "public_bytes", api.CodeInvalid},
		"more than is left":   {map[string]any{"public_bytes": 5 * settings.MiB}, "public_bytes", api.CodeInvalid},
		"what both exceed":    {map[string]any{"public_bytes": 5 * settings.MiB, "private_bytes": 9 * settings.MiB}, "public_bytes", api.CodeInvalid},
		"a negative quota":    {map[string]any{"quotas": map[string]any{"default": map[string]any{"quota_bytes": -1}}}, "quotas.default.quota_bytes", api.CodeInvalid},
		"a setting":           {map[string]any{"settings": map[string]any{"workers": "9"}}, "settings.workers", api.CodeUnsupported},
		"no such tenant":      {map[string]any{"quotas": map[string]any{"x": map[string]any{"quota_bytes": 5}}}, "quotas.x", api.CodeInvalid},
		"no such level":       {map[string]any{"log_level": "loud"}, "log_level", api.CodeInvalid},
		"no pool at all":      {map[string]any{"private_bytes": 0}, "private_bytes", api.CodeInvalid},
	} {
		var p *api.Problem
		if _, err := admin.ChangeConfig(ctx, "*", bad.patch, false); !errors.As(err, &p) || p.Code != bad.code || bad.field != "" && (len(p.Errors) != 1 || p.Errors[0].Parameter != bad.field) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = admin.ChangeConfig(ctx, "*", map[string]any{"private_bytes": 9 * settings.MiB}, false)
	if want := "private_bytes: with public_bytes it is 13MiB together, the arena has 12MiB: lower public_bytes in the same change"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if again, _, err := admin.Config(ctx); err != nil || again.LogLevel != "debug" || again.PublicBytes != now.PublicBytes {
		t.Fatalf("after refusals: %+v, %v", again, err)
	}
	_, _, text := r.get(t, "/api/v1/config")
	for _, secret := range []string{"open sesame", "the salt of the sea"} {
		if strings.Contains(text, secret) {
			t.Errorf("the configuration shows %q", secret)
		}
	}
}

// get is a plain request over the admin socket.
func (r *running) get(t testing.TB, path string) (status int, head http.Header, body string) {
	t.Helper()
	return r.ask(t, http.MethodGet, path, "", nil)
}

func TestEnginesAreToldTheCanarysShare(t *testing.T) {
	r, c := startControlled(t, wire.TenantName{})
	told := func() float64 {
		m := splicedRequest()
		m.Profile = c.profile
		var reply wire.ServedReply
		c.call(wire.OpServed, &m, &reply)
		return reply.CanaryShare
	}
	if share := told(); share >= 0 {
		t.Fatalf("nobody has set a share, and an engine is told %v", share)
	}
	admin, ctx := r.adminClient(t), context.Background()
	for _, share := range []float64{0.25, 0, 1} {
		for _, dry := range []bool{true, false} {
			before := told()
			now, err := admin.ChangeConfig(ctx, "*", map[string]any{"canary_share": share}, dry)
			if err != nil || now.CanaryShare == nil || *now.CanaryShare != share {
				t.Fatalf("%v: %+v, %v", share, now, err)
			}
			if after := told(); dry && after != before || !dry && after != share {
				t.Fatalf("%v, dry %t: an engine is told %v", share, dry, after)
			}
		}
	}
	for _, bad := range []any{-0.1, 1.5, "much"} {
		if _, err := admin.ChangeConfig(ctx, "*", map[string]any{"canary_share": bad}, false); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if share := told(); share != 1 {
		t.Errorf("after refusals an engine is told %v", share)
	}
	if now, err := admin.ChangeConfig(ctx, "*", map[string]any{"canary_share": nil}, false); err != nil || now.CanaryShare != nil || told() >= 0 {
		t.Errorf("%+v, %v, an engine is told %v", now, err, told())
	}
}

func TestDrainedDaemonsTakeNothingNew(t *testing.T) {
	r, c := startControlled(t, wire.TenantName{})
	p := testProfile(1)
	d, half, late := newDocument(p, nil, 1, 64, profile.RoleFirst), newDocument(p, nil, 2, 64, profile.RoleFirst), newDocument(p, nil, 3, 64, profile.RoleFirst)
	c.publish(d)
	id, code := c.reserve(half, 0)
	if code != wire.OK {
		t.Fatal(code)
	}
	admin, ctx := r.adminClient(t), context.Background()
	if dry, err := admin.Drain(ctx, false, true); err != nil || !dry.DryRun || !dry.Draining || dry.Connections != 1 {
		t.Fatalf("%+v, %v", dry, err)
	}
	if h, err := admin.Ready(ctx); err != nil || h.Status == api.HealthUnavailable {
		t.Fatalf("after a dry run: %+v, %v", h, err)
	}
	if _, err := admin.Drain(ctx, false, false); err != nil {
		t.Fatal(err)
	}
	if h, err := admin.Ready(ctx); err != nil || h.Status != api.HealthUnavailable {
		t.Fatalf("%+v, %v", h, err)
	}
	if got := r.check(t, "drain"); got.State != api.CheckDegraded {
		t.Fatalf("%+v", got)
	}
	c.refused(wire.OpReserve, c.reserveRequest(late, 0), wire.Unavailable, "drained")
	c.refused(wire.OpSave, &wire.SaveRequest{Profile: c.profile, Kind: wire.AcceptExact, Hashes: make([][32]byte, 1), Tokens: []uint32{1}, Parents: make([][32]byte, 1)}, wire.Unavailable, "drained")
	stranger := dialRaw(t, r.Socket())
	stranger.refused(wire.OpHello, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Client: "late", Tenants: []wire.TenantName{{}}}, wire.Unavailable, "drained")
	lease := c.lease(d)
	if !c.commit(id, half.layout, half.bytes) {
		t.Error("what was begun could not be ended")
	}
	c.release(lease)
	if back, err := admin.Drain(ctx, true, false); err != nil || back.Draining {
		t.Fatalf("%+v, %v", back, err)
	}
	if h, err := admin.Ready(ctx); err != nil || h.Status == api.HealthUnavailable {
		t.Fatalf("%+v, %v", h, err)
	}
	c.publish(late)
	attach(t, r.Socket(), wire.TenantName{}).close()
	c.close()
	r.atRest()
}

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(t testing.TB, certPath, keyPath string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "admin"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	write(t, certPath, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, keyPath, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return pool
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestKeysAndTokensAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	config := testConfig(t)
	config.AdminSocket, config.HTTP = "", "127.0.0.1:0"
	config.TokenFile, config.AdminTLSCert, config.AdminTLSKey = at("token"), at("cert"), at("key")
	config.Tenants[1].Token, config.Tenants[1].TokenFile = "first tenant token", at("tenant")
	write(t, at("token"), "first token 0123456789\n")
	write(t, at("tenant"), "first tenant token")
	roots := selfSigned(t, at("cert"), at("key"))
	r := startDaemon(t, config, nil)
	admin, ctx := r.adminClient(t), context.Background()

	// may answers whether a change is allowed over TLS.
	may := func(roots *x509.CertPool, token string) int {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
		req, err := http.NewRequest(http.MethodPost, "https://"+r.AdminAddr().String()+"/api/v1/drain?dry_run=true", nil)
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		answer, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	hello := func(token string) wire.Code {
		c := dialRaw(t, r.Socket())
		defer c.close()
		_, fds, code := c.exchange(wire.OpHello, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Client: "x", Tenants: []wire.TenantName{{Name: "guarded", Token: token}}}, nil)
		closeAll(fds)
		return code
	}
	if may(roots, "first token 0123456789") != 200 || may(roots, "second token 0123456789") != 401 || hello("first tenant token") != wire.OK {
		t.Fatal("the first keys do not open")
	}
	if _, err := tls.Dial("tcp", r.AdminAddr().String(), &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	if answer, err := http.Get("http://" + r.AdminAddr().String() + "/livez"); err == nil {
		if answer.Body.Close(); answer.StatusCode == 200 {
			t.Error("plain http is spoken beside TLS")
		}
	}

	// One bad file, and nothing has changed.
	second := selfSigned(t, at("cert"), at("key"))
	write(t, at("token"), "second token 0123456789")
	write(t, at("tenant"), "")
	var p *api.Problem
	if _, err := admin.Reload(ctx, false); !errors.As(err, &p) || p.Code != api.CodeBadFile || len(p.Errors) != 1 || p.Errors[0].Parameter != "tenants[1].token_file" || !strings.Contains(p.Errors[0].Detail, at("tenant")) {
		t.Fatalf("with an empty file: %v", err)
	}
	if may(roots, "first token 0123456789") != 200 || hello("first tenant token") != wire.OK {
		t.Fatal("a part of a bad reload is in use")
	}
	write(t, at("tenant"), "second tenant token")
	dry, err := admin.Reload(ctx, true)
	if err != nil || len(dry.Read) != 3 || len(dry.Changed) != 3 || may(roots, "first token 0123456789") != 200 {
		t.Fatalf("a dry run: %+v, %v", dry, err)
	}
	r.ReloadOnSignal()
	if may(second, "second token 0123456789") != 200 || may(second, "first token 0123456789") != 401 || may(roots, "second token 0123456789") != 0 {
		t.Error("the second keys do not open, or the first still do")
	}
	if hello("second tenant token") != wire.OK || hello("first tenant token") != wire.Denied {
		t.Error("the second tenant token does not open, or the first still does")
	}
	if again, err := admin.Reload(ctx, false); err != nil || len(again.Read) != 3 || len(again.Changed) != 0 {
		t.Errorf("once more: %+v, %v", again, err)
	}
}
