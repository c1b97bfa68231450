package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
)

// watched are the events of a client that follows.
type watched struct {
	t      testing.TB
	events chan api.Event
}

// watch follows the events of a daemon from its start on, until the test ends.
func watch(t testing.TB, c *api.Client, q api.EventQuery) *watched {
	t.Helper()
	w := &watched{t, make(chan api.Event, 10_000)}
	q.After = new(uint64)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Events(ctx, q, func(e api.Event) error { w.events <- e; return nil }, nil) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// next is the next event of a kind; others before it are left out.
func (w *watched) next(kind string) api.Event {
	w.t.Helper()
	for limit := time.After(patience); ; {
		select {
		case e := <-w.events:
			if e.Kind == kind {
				return e
			}
		case <-limit:
			w.t.Fatalf("no event %q", kind)
		}
	}
}

func TestPeopleSeeWhatHappensInItsOrder(t *testing.T) {
	c := testConfig(t)
	c.AdminSocket, c.HTTP = "", "127.0.0.1:0"
	c.EvictionPublic = "lru"
	r := startDaemon(t, c, nil)
	tcp, err := api.NewClient("http://"+r.AdminAddr().String(), "")
	must(t, err)
	defer tcp.Close()
	admin := r.adminClient(t)
	w := watch(t, tcp, api.EventQuery{})
	p := testProfile(1)
	raw := attach(t, r.Socket())
	if e := w.next(api.EventAttached); e.Client != "raw" || e.Tenant != "default" || !strings.Contains(e.Text, "connection 1 of user ") || e.Profile != 0 {
		t.Errorf("attached: %+v", e)
	}
	raw.register(p)
	if e := w.next(api.EventAttached); e.Profile != raw.profile || e.Model != p.Identity().Model || !strings.Contains(e.Text, "raw test") {
		t.Errorf("registered: %+v", e)
	}
	raw.register(p) // again: nothing has changed

	first := newDocument(p, nil, 1, 64, profile.RoleFirst)
	raw.publish(first)
	came := w.next(api.EventPublished)
	if *came.Key != api.Digest(first.key) || came.Object != "segment" || came.Tokens != 64 || came.Tenant != "default" || came.Client != "raw" ||
		came.Bytes < first.layout.Bytes || came.Value <= 0 || came.Model != p.Identity().Model || came.Profile != raw.profile {
		t.Errorf("published: %+v", came)
	}
	last := first
	for seed := uint64(2); r.counter("evicted_room") == 0; seed++ {
		last = newDocument(p, nil, seed, 64, profile.RoleFirst)
		raw.publish(last)
	}
	left := w.next(api.EventEvicted)
	if *left.Key != *came.Key || left.Policy != "lru" || left.Why != "for room in its pool" || left.Value <= 0 || left.ID <= came.ID ||
		!strings.Contains(left.Text, fmt.Sprintf("segment %x needs it", last.key[:6])) {
		t.Errorf("evicted: %+v; %x came", left, last.key[:6])
	}
	if e := w.next(api.EventPublished); *e.Key != api.Digest(last.key) {
		t.Errorf("published after it: %+v", e)
	}

	raw.report(wire.ReportRequest{Compared: 4, Bound: 0.5}) // nothing differs
	raw.report(wire.ReportRequest{Compared: 10, Failed: 2, Worst: 0.75, Bound: 0.5})
	if e := w.next(api.EventCanary); e.Why != "differs" || e.Client != "raw" || !strings.Contains(e.Text, "2 of 10") || e.Model != p.Identity().Model {
		t.Errorf("canary: %+v", e)
	}
	raw.report(wire.ReportRequest{Compared: 1, Failed: 1, Worst: 2, Bound: 0.5, Off: 1, Text: "far\noff"})
	if e := w.next(api.EventCanary); e.Why != "off" || !strings.HasSuffix(e.Text, "switched off: far off") {
		t.Errorf("canary: %+v", e)
	}
	if _, err := admin.SwitchProfile(t.Context(), api.SwitchQuery{Profile: api.Digest(p.Fingerprint()), Tenant: "default"}); err != nil {
		t.Fatal(err)
	}
	if e := w.next(api.EventCanary); e.Why != "on" || e.Tenant != "default" || e.Profile != raw.profile {
		t.Errorf("canary: %+v", e)
	}
	if e := w.next(api.EventChanged); !strings.Contains(e.Text, "switched on by an operator") {
		t.Errorf("changed: %+v", e)
	}
	if _, err := admin.Remove(t.Context(), api.Digest(last.key), true); err != nil { // dry: no event
		t.Fatal(err)
	}
	if _, err := admin.Remove(t.Context(), api.Digest(last.key), false); err != nil {
		t.Fatal(err)
	}
	if e := w.next(api.EventEvicted); *e.Key != api.Digest(last.key) || e.Why != "removed by an operator" || e.Policy != "" {
		t.Errorf("evicted: %+v", e)
	}
	if e := w.next(api.EventChanged); *e.Key != api.Digest(last.key) || e.Bytes == 0 || e.Tenant != "default" {
		t.Errorf("changed: %+v", e)
	}
	raw.close()
	if e := w.next(api.EventDetached); e.Client != "raw" || e.Why == "" || !strings.Contains(e.Text, "connection 1") {
		t.Errorf("detached: %+v", e)
	}

	// The same by a listing: two attachments, and nothing that did not happen.
	list, more, err := tcp.RecentEvents(t.Context(), api.EventQuery{Kinds: []string{api.EventAttached, api.EventDetached, api.EventChanged, api.EventCanary}, Limit: 50})
	kinds := ""
	for _, e := range list {
		kinds += e.Kind + " "
	}
	if err != nil || more || kinds != "attached attached canary canary canary changed changed detached " {
		t.Errorf("listed %s, more %v, %v", kinds, more, err)
	}
}

// Whoever follows connects again after a restart, is told that it was one, and goes on.
func TestFollowersAreToldOfARestart(t *testing.T) {
	config := withDisk(t)
	r := startDaemon(t, config, nil)
	w := watch(t, r.adminClient(t), api.EventQuery{})
	if e := w.next(api.EventDisk); e.Why != "ok" {
		t.Errorf("the disk: %+v", e)
	}
	p := testProfile(1)
	c := attach(t, r.Socket())
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publishAt(d, wire.LevelSynced)
	last := w.next(api.EventPublished)
	r.stop()
	if e := w.next(api.EventDetached); !strings.Contains(e.Why, "stopping") {
		t.Errorf("detached: %+v", e)
	}
	c.close()

	r = startDaemon(t, config, nil)
	if e := w.next(api.EventLost); e.Why != api.LostRestart || e.ID>>36 == last.ID>>36 {
		t.Errorf("lost: %+v after %d", e, last.ID)
	}
	c = attach(t, r.Socket())
	c.register(p)
	c.release(c.lease(d))
	if e := w.next(api.EventPromoted); *e.Key != api.Digest(d.key) || e.Text != "from the disk into memory" || e.Client != "raw" {
		t.Errorf("promoted: %+v", e)
	}
	r.wantMetrics(t, `spliced_disk_operation_duration_seconds_count{operation="read"} 1`, `spliced_fetch_duration_seconds_count{tier="disk"} 1`)
}

// BenchmarkJournal is what the journal costs those who decide: the same with it and without.
// Publishing is a reserve and a commit, and from the first pool full on an eviction.
func BenchmarkJournal(b *testing.B) {
	for _, name := range []string{"on", "off"} {
		b.Run("journal="+name, func(b *testing.B) {
			config := testConfig(b)
			config.Arena, config.EvictionPublic = settings.MiB, "lru" // what comes again has left long ago
			d, err := New(config, Parts{Log: zerolog.Nop()})
			must(b, err)
			if name == "off" {
				d.journal = nil
			}
			r := startNew(b, d)
			c := attach(b, r.Socket())
			p := testProfile(1)
			c.register(p)
			var keys [][32]byte
			for i := range 32 {
				doc := newDocument(p, nil, uint64(i), 8, profile.RoleFirst)
				c.publish(doc)
				keys = append(keys, doc.key)
			}
			b.Run("match", func(b *testing.B) {
				c.bare(b, wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Keys: keys}).loop(b)
			})
			b.Run("publish", func(b *testing.B) {
				var docs []*document
				for i := range 2000 {
					docs = append(docs, newDocument(p, nil, uint64(1000+i), 8, profile.RoleFirst))
				}
				b.ReportAllocs()
				b.ResetTimer()
				for i := 0; b.Loop(); i++ {
					c.publish(docs[i%len(docs)])
				}
			})
		})
	}
}

// BenchmarkStreams is what ten streams cost while 100 events happen a second, as a share of a
// core: the CPU time of the whole process, readers and idle daemon included, and of the
// same without streams and events.
func BenchmarkStreams(b *testing.B) {
	for _, streams := range []int{0, 10} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			c := testConfig(b)
			c.HTTP = "127.0.0.1:0"
			r := startDaemon(b, c, nil)
			read := make(chan int64, streams)
			for range streams {
				res, err := http.Get("http://" + r.AdminAddr().String() + "/api/v1/events")
				must(b, err)
				defer res.Body.Close()
				go func() {
					n, _ := io.Copy(io.Discard, res.Body)
					read <- n
				}()
			}
			used, began := cpuTime(b), time.Now()
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			n := 0
			for b.Loop() {
				<-tick.C
				if streams > 0 {
					r.journal.Append(journal.Event{Kind: journal.Evicted, Object: journal.Segment, Key: [32]byte{byte(n)}, Tenant: "default", Model: "m",
						Client: "vllm", Bytes: 1 << 20, Tokens: 512, Why: "for room in its pool", Policy: "default", Value: 1.5, Rivals: journal.Segment, Worth: 2})
				}
				n++
			}
			took := time.Since(began)
			b.ReportMetric(100*float64(cpuTime(b)-used)/float64(took), "%core")
			b.ReportMetric(float64(n)/took.Seconds(), "events/s")
			r.stop()
			for range streams {
				if <-read == 0 {
					b.Error("a stream told nothing")
				}
			}
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
