package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/object/objecttest"
)

// bucket is an S3 server for daemons of a test.
type bucket struct {
	*objecttest.Server
	flags []string
}

// openBucket starts one; the flags are of a node without a cluster, for which everything
// is worth its bytes.
func openBucket(t testing.TB, dir string) *bucket {
	t.Helper()
	b := &bucket{Server: objecttest.Open(t, dir)}
	own := t.TempDir()
	creds, secret := filepath.Join(own, "credentials"), filepath.Join(own, "secret")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", objecttest.AccessKey, objecttest.SecretKey)
	if err := errors.Join(os.WriteFile(creds, []byte(text), 0o600), os.WriteFile(secret, []byte("a secret of the nodes"), 0o600)); err != nil {
		t.Fatal(err)
	}
	b.flags = []string{
		"-arena=4MiB", "-prefill-speed=1", "-drain-timeout=20s", "-object-bucket=" + objecttest.Bucket, "-object-endpoint=" + b.Proxy.URL,
		"-object-credentials=" + creds, "-object-secret=" + secret, "-object-list-every=10s",
	}
	return b
}

// start starts a daemon before the bucket.
func (b *bucket) start(t testing.TB, more ...string) *victim {
	t.Helper()
	return start(t, bounds{}, append(b.flags[:len(b.flags):len(b.flags)], more...)...)
}

// ofBucket is what readiness says of the object store; empty while it is well.
func (v *victim) ofBucket() string {
	for _, c := range v.health().Checks {
		if c.Name == "object" && c.State == api.CheckDegraded {
			return c.Detail
		}
	}
	return ""
}

// series is a metric that has to be there.
func (v *victim) series(name string) float64 {
	v.t.Helper()
	n, ok := v.metric(name)
	if !ok {
		v.t.Fatalf("/metrics does not have %s", name)
	}
	return n
}

// stored is a segment and the seed of its bytes.
type stored struct {
	key  profile.SegmentKey
	seed uint64
}

// pattern is a part's bytes from off on.
func pattern(dst []byte, seed uint64, part int, off int64) {
	for i := range dst {
		x := (seed + uint64(part)<<40 + uint64(off) + uint64(i)) * 0x9e3779b97f4a7c15
		dst[i] = byte(x >> 33)
	}
}

// publish puts n segments of bytes of their own, none refused for good.
func publish(t testing.TB, m *connector.Model, n int) (list []stored) {
	t.Helper()
	for range n {
		q, seed := newSegment(1000), rand.Uint64()
		q.Source.Fill = func(_ profile.Part, i int, off int64, dst []byte) error { pattern(dst, seed, i, off); return nil }
		if err := patiently(func() error { _, err := m.Put(context.Background(), q); return err }); err != nil {
			t.Fatal(err)
		}
		key, ok := m.SegmentKey(q.Spec, q.Tokens)
		if !ok {
			t.Fatal("the daemon has gone")
		}
		list = append(list, stored{key, seed})
	}
	return list
}

// tally is what came of asking for segments.
type tally struct {
	right, wrong, missed int
	slowest              time.Duration
}

func (y tally) String() string {
	return fmt.Sprintf("%d right, %d wrong, %d missed, the slowest in %v", y.right, y.wrong, y.missed, y.slowest.Round(time.Millisecond))
}

// ask acquires segments one by one, each of which may take so long.
func ask(t testing.TB, m *connector.Model, list []stored, wait time.Duration) (y tally) {
	t.Helper()
	for _, s := range list {
		begun := time.Now()
		rows, err := m.Acquire(context.Background(), []profile.SegmentKey{s.key}, connector.AcquireOptions{Wait: wait})
		if err != nil {
			t.Fatal(err)
		}
		y.slowest = max(y.slowest, time.Since(begun))
		if errors.Is(rows[0].Err, connector.ErrMiss) {
			y.missed++
			continue
		} else if rows[0].Err != nil {
			t.Fatal(rows[0].Err)
		}
		l := rows[0].Lease
		same := true
		for i, p := range l.Layout().Parts {
			got, want := make([]byte, p.Len), make([]byte, p.Len)
			if err := l.Read(i, got); err != nil {
				t.Fatal(err)
			}
			pattern(want, s.seed, i, 0)
			same = same && bytes.Equal(got, want)
		}
		l.Release()
		if same {
			y.right++
		} else {
			y.wrong++
		}
	}
	return y
}

// sent waits until nothing is on its way to the bucket.
func (v *victim) sent() {
	v.t.Helper()
	eventually(v.t, "what is offered to the bucket is written", func() bool {
		return v.series("spliced_offloads_in_flight") == 0 && v.series("spliced_object_queued") == 0
	})
}

// known waits until a node has seen so many objects in the bucket.
func (v *victim) known(n int) {
	v.t.Helper()
	eventually(v.t, "the bucket is listed", func() bool { return v.series("spliced_object_known") >= float64(n) })
}

// What a node had is read by another one, that has no peers and comes up empty: what left
// its memory, and what was in it at its stop, or at kill -9 what was written until then.
func TestHostileANodeDiesBeforeItsBucket(t *testing.T) {
	for name, c := range map[string]struct {
		write string
		end   func(v *victim)
	}{
		"stopped": {"evicted", (*victim).stop},
		"killed":  {"all", func(v *victim) { v.sent(); v.kill() }},
	} {
		t.Run(name, func(t *testing.T) {
			s := openBucket(t, t.TempDir())
			a := s.start(t, "-object-write="+c.write)
			a.known(0)
			eventually(t, "the bucket is listed", func() bool { return a.series("spliced_object_listings_total") > 0 })
			m := writer(t, a)
			var list []stored
			for range 120 {
				list = append(list, publish(t, m, 1)...)
				a.sent() // faster than that some are lost, which is counted
			}
			counted := a.offloads()
			c.end(a)
			b := s.start(t)
			b.known(len(list))
			y := ask(t, writer(t, b), list, patience)
			if y.right != len(list) {
				t.Errorf("%v of %d: %v", y, len(list), counted)
			}
			if n := b.series(`spliced_lookups_total{result="object"}`); n != 0 {
				t.Errorf("%v lookups without a match", n)
			}
			again := ask(t, writer(t, b), list[len(list)-5:], 0)
			if again.right != 5 {
				t.Errorf("what was just read: %v", again)
			}
			report(t, "a node "+name+" after 120 segments in an arena of half as many", "nothing", "another node, empty, without peers: "+y.String())
		})
	}
}

// offloads are the counters of copies, for messages.
func (v *victim) offloads() (list []string) {
	_, body := v.get("/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "spliced_offloads_") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// kill ends a daemon by SIGKILL.
func (v *victim) kill() {
	v.t.Helper()
	_ = v.command.Process.Kill()
	<-v.ended
}

// A server that is killed, slow, hangs or has been tampered with costs bounded waits and
// misses, and no wrong byte.
func TestHostileBucketThatFails(t *testing.T) {
	s := openBucket(t, t.TempDir())
	a := s.start(t, "-object-write=all")
	eventually(t, "the bucket is listed", func() bool { return a.series("spliced_object_listings_total") > 0 })
	m := writer(t, a)
	var list []stored
	for range 30 {
		list = append(list, publish(t, m, 1)...)
		a.sent()
	}
	a.kill()

	const wait = 2 * time.Second
	for name, c := range map[string]struct{ fail, mend func() }{
		"killed":         {s.Kill, s.Start},
		"slow":           {func() { s.Set(objecttest.Slowly(64 << 10)) }, func() { s.Set(nil) }},
		"hanging":        {func() { s.Set(hang) }, func() { s.Set(nil) }},
		"dead halfway":   {func() { s.Set(objecttest.Halfway(func(*http.Request) {})) }, func() { s.Set(nil) }},
		"access refused": {func() { s.Set(denied) }, func() { s.Set(nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := s.start(t, "-object-write=none")
			b.known(len(list))
			m := writer(t, b)
			n := b.neighbour()
			c.fail()
			var y tally
			felt := n.during(func() { y = ask(t, m, list[:8], wait) })
			if y.wrong != 0 || y.slowest > wait+5*time.Second {
				t.Errorf("%v, each may wait %v", y, wait)
			}
			said := b.ofBucket()
			if name != "slow" && name != "dead halfway" && !strings.Contains(said, "requests in a row have failed") {
				t.Errorf("readiness says %q", said)
			}
			c.mend()
			after := tally{}
			eventually(t, "all is read once it works again", func() bool { after = ask(t, m, list, patience); return after.right == len(list) || after.wrong > 0 })
			if after.wrong != 0 {
				t.Errorf("afterwards: %v", after)
			}
			b.mustRun()
			report(t, "a bucket that is "+name, y.String()+", then "+after.String(), felt)
		})
	}
	t.Run("tampered with", func(t *testing.T) {
		changed := 0
		err := filepath.WalkDir(filepath.Join(s.Dir, objecttest.Bucket), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			changed++
			b[rand.IntN(len(b))] ^= 1 << rand.IntN(8)
			return os.WriteFile(path, b, 0o600)
		})
		if err != nil || changed != len(list) {
			t.Fatalf("%d objects, %v", changed, err)
		}
		b := s.start(t, "-object-write=none")
		b.known(len(list))
		n := b.neighbour()
		var y tally
		felt := n.during(func() { y = ask(t, writer(t, b), list, patience) })
		// A bit of the padding behind a header says nothing: that object is read, and right.
		if y.wrong != 0 || y.missed < len(list)*9/10 {
			t.Errorf("a bit of each is another: %v", y)
		}
		if corrupt := b.series(`spliced_corrupt_total{tier="object"}`); corrupt != float64(y.missed) {
			t.Errorf("%v counted as corrupt", corrupt)
		}
		report(t, "a bit of each object changed by who can write to the bucket", y.String(), felt)
	})
}

// hang answers nothing until the client has gone.
func hang(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	_, _ = io.Copy(io.Discard, r.Body) // else its going is not seen
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

func denied(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	http.Error(w, "<Error><Code>AccessDenied</Code></Error>", http.StatusForbidden)
}

// A server that takes no writes, or never ends them, costs neither evictions nor memory.
func TestHostileBucketThatTakesNothing(t *testing.T) {
	full := t.TempDir()
	for name, c := range map[string]struct {
		dir func(t *testing.T) string
		set func(s *bucket)
	}{
		"hangs in writes": {func(t *testing.T) string { return t.TempDir() }, func(s *bucket) {
			s.Set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method == http.MethodPut {
					hang(w, r, next)
				}
				next.ServeHTTP(w, r)
			})
		}},
		"is full": {func(t *testing.T) string {
			if os.Geteuid() != 0 {
				t.Skip("SKIP: mounting a small file system needs root")
			}
			if err := syscall.Mount("tmpfs", full, "tmpfs", 0, "size=1m"); err != nil {
				t.Skipf("SKIP: a small file system cannot be mounted: %v", err)
			}
			t.Cleanup(func() { _ = syscall.Unmount(full, syscall.MNT_DETACH) })
			return full
		}, func(*bucket) {}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openBucket(t, c.dir(t))
			a := s.start(t, "-drain-timeout=1s")
			eventually(t, "the bucket is listed", func() bool { return a.series("spliced_object_listings_total") > 0 })
			m := writer(t, a)
			c.set(s)
			most, before := 0.0, time.Now()
			felt := a.neighbour().during(func() {
				for range 40 {
					publish(t, m, 10)
					most = max(most, a.series(`spliced_tier_used_bytes{pool="public",state="demoting",tier="dram"}`))
				}
			})
			took := time.Since(before)
			if most > 4<<20/8+100<<10 {
				t.Errorf("%v bytes of memory are kept for writes", most)
			}
			lost := a.series(`spliced_offloads_total{result="no_room"}`) + a.series(`spliced_offloads_refused_total{reason="full"}`) + a.series(`spliced_offloads_refused_total{reason="unavailable"}`)
			if lost == 0 {
				t.Error("nothing is counted as lost")
			}
			eventually(t, "readiness says so", func() bool { return a.ofBucket() != "" })
			began := time.Now()
			a.stop()
			report(t, "a bucket that "+name+" under 400 segments in an arena of 60", fmt.Sprintf("%.0f copies lost and counted, %.0f KiB kept at most, 400 puts in %v, a stop in %v",
				lost, most/1024, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond)), felt)
		})
	}
}
