package daemon

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// patience bounds every wait of these tests; it is long because the machine may
// be busy, not because anything takes long.
const patience = time.Minute

// eventually polls until ok, or fails with what.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(limit) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-time.After(time.Millisecond)
	}
}

// testConfig is a small daemon on a socket of its own. The path is short: a
// test's own directory would not fit sun_path for tests with long names.
func testConfig(t testing.TB) settings.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "spl")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := settings.Default()
	c.Socket = filepath.Join(dir, "s")
	c.AdminSocket, c.HTTP = settings.Off, settings.Off
	c.Arena, c.Private = 8*settings.MiB, 4*settings.MiB
	c.PageBytes = 4 * settings.KiB
	c.Staging, c.Slots = 2*settings.MiB, 2*settings.MiB
	c.ConnectionMemory = 64 * settings.MiB
	c.Workers = 2
	c.RequestTimeout, c.DrainTimeout, c.PromoteTimeout, c.HBMTimeout = patience, patience, patience, patience
	c.Tenants = append(c.Tenants, settings.Tenant{Name: "guarded", Token: "open sesame", Salt: "pepper"})
	return c
}

// running is a daemon in this process.
type running struct {
	*Daemon
	t      testing.TB
	cancel context.CancelFunc
	done   chan error
}

func startDaemon(t testing.TB, c settings.Config, device gpuipc.Device) *running {
	t.Helper()
	return startParts(t, c, Parts{Device: device})
}

// startClient starts a daemon and attaches a client that has registered testProfile(1).
func startClient(t testing.TB, c settings.Config, device gpuipc.Device) (*running, *rawClient, *profile.Profile) {
	t.Helper()
	r, p := startDaemon(t, c, device), testProfile(1)
	client := attach(t, r.Socket())
	client.register(p)
	return r, client, p
}

func startParts(t testing.TB, c settings.Config, parts Parts) *running {
	t.Helper()
	if _, ok := t.(*testing.T); ok {
		leakCheck(t)
	}
	parts.Log, parts.Build = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel), Build{Version: "test"}
	d, err := New(c, parts)
	must(t, err)
	d.offers = patience
	return startNew(t, d)
}

// startNew runs a daemon that was made.
func startNew(t testing.TB, d *Daemon) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Daemon: d, t: t, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- d.Run(ctx) }()
	select {
	case <-d.Ready():
	case err := <-r.done:
		t.Fatalf("the daemon did not start: %v", err)
	case <-time.After(patience):
		t.Fatal("the daemon is not ready")
	}
	t.Cleanup(func() { r.stop() })
	// A busy machine may open a disk later than the start waits for it.
	for limit := time.Now().Add(patience); d.disk != nil && d.diskComes() && time.Now().Before(limit); {
		time.Sleep(openTick)
	}
	return r
}

// stop ends the daemon and fails the test unless it ends well.
func (r *running) stop() {
	r.t.Helper()
	if err := r.end(); err != nil {
		r.t.Errorf("the daemon ended with: %v", err)
	}
}

// end ends the daemon; again = nil.
func (r *running) end() error {
	r.t.Helper()
	r.cancel()
	select {
	case err, ok := <-r.done:
		if ok {
			close(r.done)
		}
		return err
	case <-time.After(patience):
		r.t.Fatal("the daemon does not end")
		return nil
	}
}

// atRest waits until nothing of clients is held: connections, leases,
// reservations, queued work, lent memory and quarantined or leased pool bytes.
func (r *running) atRest() {
	r.t.Helper()
	eventually(r.t, "the daemon holds nothing of clients", func() bool {
		load := r.server.Load()
		held := int64(load.Connections+load.InFlight+load.Queued) + load.ConnectionBytes
		for _, p := range r.store.Pools() {
			held += p.LeasedBytes + p.PendingBytes + p.QuarantinedBytes
		}
		return held == 0
	})
}

// eventsOf returns the last events of a kind, at most ten.
func (r *running) eventsOf(kind string) []api.Event {
	list, _ := r.journal.Events(api.EventQuery{Kinds: []string{kind}, Limit: 10})
	return list
}

// counter is the value of a counter as people see it; 0 = none of that name.
func (r *running) counter(name string) float64 {
	for _, c := range r.view.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// leakCheck compares goroutines and descriptors of before and after the test.
// It looks last, if it is called first: the start of a daemon calls it, and who opens something
// before that. A test's further calls do nothing.
func leakCheck(t testing.TB) {
	t.Helper()
	if _, again := leakChecked.LoadOrStore(t, true); again {
		return
	}
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	t.Cleanup(func() {
		leakChecked.Delete(t)
		if t.Failed() {
			return
		}
		limit := time.Now().Add(patience)
		for runtime.NumGoroutine() > goroutines || openFiles(t) > files {
			if time.Now().After(limit) {
				stacks := make([]byte, 1<<20)
				t.Errorf("%d goroutines and %d descriptors before, %d and %d after\n%s", goroutines, files,
					runtime.NumGoroutine(), openFiles(t), stacks[:runtime.Stack(stacks, true)])
				return
			}
			<-time.After(time.Millisecond)
		}
	})
}

var leakChecked sync.Map // running tests

func openFiles(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// testProfile is a model of some ranks.
func testProfile(ranks int) *profile.Profile { return profiletest.New(profiletest.TwoLayers(ranks)) }

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
