package object

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/object/objecttest"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

var alice = tiertest.Tenant{ID: 7, Name: "alice", Salt: []byte("salt of alice")}

// open starts a site that ends with the test.
func open(t *testing.T) *site {
	tiertest.Leaks(t)
	return openSite(t, []tiertest.Tenant{alice})
}

// run starts a node that stops when the test ends.
func (s *site) run(change func(*Config)) *node {
	s.t.Helper()
	cfg := s.config()
	if change != nil {
		change(&cfg)
	}
	n := s.node(cfg)
	s.t.Cleanup(n.stop)
	return n
}

func (n *node) mustKeep(list ...*tiertest.Object) {
	n.t.Helper()
	for _, o := range list {
		if err := n.keep(context.Background(), o); err != nil {
			n.t.Fatalf("keep %v: %v", o, err)
		}
	}
}

// fetch finds an object and reads it.
func (n *node) fetch(o *tiertest.Object) error {
	rows, err := n.Find(context.Background(), []tier.Want{tiertest.WantOf(o)})
	if err != nil {
		return err
	}
	if rows[0] == nil {
		return tier.ErrGone
	}
	defer rows[0].Close()
	return tiertest.ReadCopy(context.Background(), n.mem, rows[0], o)
}

func segments(seed uint64, n, tokens int) (list []*tiertest.Object) {
	for i := range n {
		list = append(list, tiertest.Segment(tiertest.WideF16, alice, seed+uint64(i), tokens))
	}
	return list
}

func (n *node) hinted(o *tiertest.Object) bool {
	w := tiertest.WantOf(o)
	_, ok := n.Hint(&w)
	return ok
}

func TestAnEmptyNodeFindsWhatOthersWrote(t *testing.T) {
	s := open(t)
	list := segments(1, 12, 100)
	a := s.run(nil)
	a.mustKeep(list...)
	b := s.run(nil)
	heads := s.Requests(http.MethodHead)
	for _, o := range list {
		if !b.hinted(o) {
			t.Errorf("no hint at %v", o)
		}
		if err := b.fetch(o); err != nil {
			t.Errorf("%v: %v", o, err)
		}
	}
	gets := s.Requests(http.MethodGet)
	for _, o := range segments(1000, 50, 100) {
		if b.hinted(o) {
			t.Errorf("hint at %v, which is nowhere", o)
		}
		if err := b.fetch(o); !errors.Is(err, tier.ErrGone) {
			t.Errorf("%v: %v", o, err)
		}
	}
	if s.Requests(http.MethodHead) != heads || s.Requests(http.MethodGet) != gets {
		t.Error("keys that a listing rules out were asked for")
	}
	for _, o := range list { // nothing is written twice
		for _, n := range []*node{a, b} {
			if err := n.keep(context.Background(), o); !errors.Is(err, tier.ErrExists) {
				t.Errorf("kept again: %v", err)
			}
		}
	}
}

func TestNodesThatWriteAtOnceWriteOnce(t *testing.T) {
	s := open(t)
	list := segments(1, 6, 300)
	nodes := []*node{s.run(nil), s.run(nil), s.run(nil)}
	var work sync.WaitGroup
	for _, n := range nodes {
		work.Go(func() {
			for _, o := range list {
				if err := n.keep(context.Background(), o); err != nil && !errors.Is(err, tier.ErrExists) {
					t.Errorf("%v: %v", o, err)
				}
			}
		})
	}
	work.Wait()
	written := uint64(0)
	for _, n := range nodes {
		written += n.counters.Written.Load()
		for _, o := range list {
			if err := n.fetch(o); err != nil {
				t.Errorf("%v: %v", o, err)
			}
		}
	}
	if written != uint64(len(list)) {
		t.Errorf("%d objects were written %d times", len(list), written)
	}
}

func TestAnotherSecretSeesAndPlantsNothing(t *testing.T) {
	s := open(t)
	o, other := segments(1, 2, 200)[0], segments(1, 2, 200)[1]
	ours := s.run(nil)
	ours.mustKeep(o, other)
	theirs := s.run(func(c *Config) { c.Secret = []byte("not the secret of this cluster") })
	if theirs.hinted(o) {
		t.Error("another secret has a hint")
	}
	if err := theirs.fetch(o); !errors.Is(err, tier.ErrGone) {
		t.Errorf("found with another secret: %v", err)
	}
	theirs.mustKeep(o)
	forged, err := os.ReadFile(s.file(theirs.Store, theirs.tagFor(o)))
	must(t, err)
	genuine, err := os.ReadFile(s.file(ours.Store, ours.tagFor(other)))
	must(t, err)
	// In the place of ours: theirs, theirs under our name, and another one of ours.
	renamed := append([]byte(nil), forged...)
	mine := ours.tagFor(o)
	theirs.keys.sign(mine, renamed[:blockBytes+int(headOf(t, forged, theirs.tagFor(o)).headerBytes)], int64(len(renamed)))
	for what, b := range map[string][]byte{"theirs": forged, "theirs by our name": renamed, "another of ours": genuine} {
		n := s.run(nil)
		must(t, os.WriteFile(s.file(ours.Store, mine), b, 0o600))
		if err := n.fetch(o); !errors.Is(err, tier.ErrGone) {
			t.Errorf("%s was found: %v", what, err)
		}
		if n.counters.Corrupt.Load() != 1 {
			t.Errorf("%s is not counted", what)
		}
		n.mustKeep(o) // replaces it
		if err := s.run(nil).fetch(o); err != nil {
			t.Errorf("%s was not replaced: %v", what, err)
		}
	}
}

func headOf(t *testing.T, b []byte, of tag) head {
	t.Helper()
	h, err := parseBlock(b, of, int64(len(b)))
	must(t, err)
	return h
}

func TestTruncatedObjectsAreMisses(t *testing.T) {
	s := open(t)
	o := segments(1, 1, 1500)[0]
	w := s.run(nil)
	w.mustKeep(o)
	file := s.file(w.Store, w.tagFor(o))
	whole, err := os.ReadFile(file)
	must(t, err)
	for _, n := range []int{0, 1, 100, blockBytes, blockBytes + 100, len(whole) / 2, len(whole) - 1} {
		r := s.run(nil)
		must(t, os.Truncate(file, int64(n)))
		if err := r.fetch(o); !errors.Is(err, tier.ErrGone) && !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("%d bytes of %d: %v", n, len(whole), err)
		}
		must(t, os.WriteFile(file, whole, 0o600))
		// Cut behind the description, once that was read.
		r = s.run(nil)
		rows, err := r.Find(context.Background(), []tier.Want{tiertest.WantOf(o)})
		if err != nil || rows[0] == nil {
			t.Fatalf("%v, %v", rows, err)
		}
		must(t, os.Truncate(file, int64(n)))
		if err := tiertest.ReadCopy(context.Background(), r.mem, rows[0], o); err == nil || errors.Is(err, tiertest.ErrWrong) {
			t.Errorf("%d bytes of %d were read: %v", n, len(whole), err)
		}
		must(t, os.WriteFile(file, whole, 0o600))
	}
	must(t, s.run(nil).fetch(o))
}

func TestAServerKilledInAnUploadLeavesNothing(t *testing.T) {
	s := open(t)
	n := s.run(nil)
	small, o := segments(1, 1, 100)[0], segments(5, 1, 2000)[0]
	n.mustKeep(small)
	var once sync.Once
	s.Set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodPut {
			r.Body = killing{r.Body, func() { once.Do(s.Kill) }}
		}
		next.ServeHTTP(w, r)
	})
	if err := n.keep(context.Background(), o); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("written to a killed server: %v", err)
	}
	s.Set(nil)
	s.Server.Start()
	other := s.run(nil)
	if err := other.fetch(o); !errors.Is(err, tier.ErrGone) {
		t.Errorf("half an object is found: %v", err)
	}
	if err := other.fetch(small); err != nil {
		t.Error(err)
	}
	if !tiertest.Wait(10*time.Second, func() bool { return n.keep(context.Background(), o) == nil }) {
		t.Fatal("it is not written once the server is back")
	}
	must(t, other.List(context.Background()))
	must(t, other.fetch(o))
}

// killing calls f when bytes were read.
type killing struct {
	rc interface {
		Read([]byte) (int, error)
		Close() error
	}
	f func()
}

func (k killing) Read(b []byte) (int, error) {
	n, err := k.rc.Read(b)
	k.f()
	return n, err
}

func (k killing) Close() error { return k.rc.Close() }

func TestASlowServerIsReadAndWritten(t *testing.T) {
	s := open(t)
	n := s.run(nil)
	o := segments(1, 1, 800)[0]
	s.Set(objecttest.Slowly(2 * o.Total()))
	began := time.Now()
	n.mustKeep(o)
	if err := n.fetch(o); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 700*time.Millisecond {
		t.Errorf("%v for %d bytes both ways at %d a second", took, o.Total(), 2*o.Total())
	}
	w := tiertest.WantOf(o)
	if h, ok := n.Hint(&w); !ok || h.BytesPerSecond > 8*float64(o.Total()) {
		t.Errorf("hint %+v of a server that sends %d bytes a second", h, 2*o.Total())
	}
	// What takes longer than its reader has ends with its context.
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	rows, err := n.Find(context.Background(), []tier.Want{w})
	if err != nil || rows[0] == nil {
		t.Fatalf("%v, %v", rows, err)
	}
	if err := tiertest.ReadCopy(ctx, n.mem, rows[0], o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
}

func TestWritesKeepTheirRate(t *testing.T) {
	s := open(t)
	o := segments(1, 1, 800)[0]
	n := s.run(func(c *Config) { c.BytesPerSecond = 2 * o.Total() })
	began := time.Now()
	n.mustKeep(o)
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("%v for %d bytes at %d a second", took, o.Total(), 2*o.Total())
	}
}

func TestAFullServerIsReadOn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	tiertest.Leaks(t)
	objecttest.Program(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	s := openSiteIn(t, []tiertest.Tenant{alice}, dir)
	n := s.run(func(c *Config) { c.FullTime = time.Hour })
	var kept []*tiertest.Object
	var err error
	for _, o := range segments(1, 40, 300) {
		if err = n.keep(context.Background(), o); err != nil {
			break
		}
		kept = append(kept, o)
	}
	if !errors.Is(err, tier.ErrFull) || len(kept) == 0 {
		t.Fatalf("%d objects fit, then: %v", len(kept), err)
	}
	puts := s.Requests(http.MethodPut)
	if err := n.keep(context.Background(), segments(500, 1, 10)[0]); !errors.Is(err, tier.ErrFull) {
		t.Errorf("written to a full server: %v", err)
	}
	if s.Requests(http.MethodPut) != puts {
		t.Error("a full server was asked again at once")
	}
	for _, o := range kept {
		if err := n.fetch(o); err != nil {
			t.Errorf("%v: %v", o, err)
		}
	}
}

func TestOldAndExcessObjectsAreDeleted(t *testing.T) {
	s := open(t)
	list := segments(1, 10, 100)
	w := s.run(nil)
	w.mustKeep(list...)
	size := w.room.held() / 10
	for i, o := range list { // the first is the oldest
		at := time.Now().Add(-time.Duration(10-i) * time.Hour)
		must(t, os.Chtimes(s.file(w.Store, w.tagFor(o)), at, at))
	}
	aged := s.run(func(c *Config) { c.Life = 6*time.Hour + 30*time.Minute })
	for i, o := range list {
		if got, want := aged.hinted(o), i >= 4; got != want {
			t.Errorf("object of %d hours: hint %v", 10-i, got)
		}
	}
	if n := aged.counters.Expired.Load(); n != 4 {
		t.Errorf("%d objects expired", n)
	}
	tight := s.run(func(c *Config) { c.Bytes = 5 * size })
	must(t, tight.List(context.Background()))
	if held := tight.room.held(); held > 5*size || held < 3*size {
		t.Errorf("%d bytes of %d are held", held, 5*size)
	}
	if !tight.hinted(list[9]) || tight.hinted(list[4]) {
		t.Error("what is left is not the youngest")
	}
	small := s.run(func(c *Config) { c.Bytes = tight.room.held() + size/2 })
	if err := small.keep(context.Background(), segments(100, 1, 100)[0]); !errors.Is(err, tier.ErrFull) {
		t.Errorf("written beyond the budget: %v", err)
	}
}

func TestCredentialsAreReadAgain(t *testing.T) {
	s := open(t)
	o := segments(1, 1, 100)[0]
	n := s.run(nil)
	n.mustKeep(o)
	s.credentials(objecttest.AccessKey, "no secret of the server's")
	if err := n.fetch(o); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("read with wrong credentials: %v", err)
	}
	s.credentials(objecttest.AccessKey, objecttest.SecretKey)
	if !tiertest.Wait(10*time.Second, func() bool { return n.fetch(o) == nil }) {
		t.Error("new credentials are not used")
	}
}

func TestBadCredentialsNameTheirSetting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credentials")
	for name, row := range map[string]struct{ text, want string }{
		"no file":    {"", "object-credentials: stat " + path + ": no such file or directory"},
		"no keys":    {"[default]\n", "object-credentials: " + path + ": no aws_access_key_id and aws_secret_access_key"},
		"no profile": {"[other]\naws_access_key_id = a\naws_secret_access_key = b\n", "object-credentials: " + path + ": "},
		"no section": {"]\n", "object-credentials: " + path + ": "},
	} {
		if row.text == "" {
			os.Remove(path)
		} else if err := os.WriteFile(path, []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (&fileCredentials{path: path}).Retrieve(); err == nil || !strings.HasPrefix(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", name, err, row.want)
		}
	}
}

func TestCredentialsMayStandInTheConfiguration(t *testing.T) {
	s := open(t)
	n := s.run(func(c *Config) {
		c.Credentials, c.Keys = "", Keys{ID: objecttest.AccessKey, Secret: objecttest.SecretKey}
	})
	o := segments(1, 1, 100)[0]
	n.mustKeep(o)
	must(t, n.fetch(o))
}

func TestAProbeTriesAllThatIsNeeded(t *testing.T) {
	s := open(t)
	n := s.run(nil)
	steps := n.Probe(context.Background())
	var names []string
	for _, step := range steps {
		names = append(names, step.Name)
		if step.Err != nil {
			t.Errorf("%s: %v", step.Name, step.Err)
		}
	}
	if want := []string{"list", "write", "overwrite", "read", "range", "delete"}; !slices.Equal(names, want) {
		t.Fatalf("steps %v", names)
	}
	if left, _ := os.ReadDir(filepath.Join(s.Dir, objecttest.Bucket, n.cfg.Prefix, probeDir)); len(left) != 0 {
		t.Fatalf("%v is left", left)
	}
	for fault, want := range map[string]string{http.MethodPut: "write", http.MethodGet: "list", http.MethodDelete: "delete"} {
		s.Set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Method == fault {
				http.Error(w, "<Error><Code>AccessDenied</Code></Error>", http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		})
		first := ""
		for _, step := range n.Probe(context.Background()) {
			if step.Err != nil && first == "" {
				first = step.Name
			}
		}
		if first != want {
			t.Errorf("%s is denied and %q fails", fault, first)
		}
	}
	s.Set(nil)
	if h := n.Health(); h.Trouble != "" {
		t.Errorf("a probe counts: %v", h)
	}
}

func TestHealthTellsWhatDoesNotWork(t *testing.T) {
	s := open(t)
	n := s.run(nil)
	if h := n.Health(); h.Trouble != "" || h.ClockAhead.Abs() > 5*time.Second {
		t.Fatalf("%+v", h)
	}
	s.Set(objecttest.Dead)
	if !tiertest.Wait(20*time.Second, func() bool { _ = n.List(context.Background()); return n.Health().Trouble != "" }) {
		t.Fatal("a dead server is no trouble")
	}
	s.Set(nil)
	if !tiertest.Wait(20*time.Second, func() bool { _ = n.List(context.Background()); return n.Health().Trouble == "" }) {
		t.Fatalf("the trouble stays: %+v", n.Health())
	}
}

// A server of another authority is not spoken to, and one whose authority has changed is
// once the file says so.
func TestAuthoritiesAreThoseOfTheFile(t *testing.T) {
	s := open(t)
	front := httptest.NewTLSServer(s.Proxy.Config.Handler)
	t.Cleanup(front.Close)
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write := func(c *x509.Certificate) {
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
		must(t, errors.Join(os.WriteFile(ca+".new", text, 0o600), os.Rename(ca+".new", ca)))
	}
	write(otherAuthority(t))
	cfg := s.config()
	cfg.Endpoint, cfg.CA = front.URL, ca
	n := s.start(cfg)
	t.Cleanup(n.stop)
	if err := n.List(context.Background()); !errors.Is(err, tier.ErrUnavailable) {
		t.Fatalf("a server of another authority: %v", err)
	}
	write(front.Certificate())
	if !tiertest.Wait(20*time.Second, func() bool { return n.List(context.Background()) == nil }) {
		t.Fatal("the file is not read again")
	}
	cfg.CA = filepath.Join(t.TempDir(), "none")
	if _, err := New(cfg); !errors.Is(err, tier.ErrInvalid) {
		t.Fatalf("authorities of no file: %v", err)
	}
}

func otherAuthority(t *testing.T) *x509.Certificate {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	must(t, err)
	c, err := x509.ParseCertificate(der)
	must(t, err)
	return c
}

func TestABoundedQueueIsBusy(t *testing.T) {
	s := open(t)
	n := s.run(func(c *Config) { c.QueueLen, c.Writers = 2, 1 })
	list := segments(1, 3, 100)
	let := make(chan struct{})
	s.Set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		<-let
		next.ServeHTTP(w, r)
	})
	first, err := n.begin(list[0])
	must(t, err)
	second, err := n.begin(list[1])
	must(t, err)
	if _, err := n.begin(list[0]); !errors.Is(err, tier.ErrExists) {
		t.Errorf("what is on its way was admitted: %v", err)
	}
	if _, err := n.begin(list[2]); !errors.Is(err, tier.ErrBusy) {
		t.Errorf("a full queue: %v", err)
	}
	close(let)
	if err := errors.Join(<-first, <-second); err != nil {
		t.Error(err)
	}
	s.Set(nil)
	n.mustKeep(list[2])
	if err := n.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	n.stop()
	if _, err := n.begin(segments(50, 1, 10)[0]); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("admitted after the end: %v", err)
	}
}

// A segment with packed parts is described and read as it was sent.
func TestPackedSegmentsAreKept(t *testing.T) {
	n := open(t).run(nil)
	o := tiertest.Segment(tiertest.Lenient, alice, 1, 60)
	n.mustKeep(o)
	rows, err := n.Find(context.Background(), []tier.Want{tiertest.WantOf(o)})
	if err != nil || rows[0] == nil || rows[0].Entry().Packed != o.Packed || o.Packed == "" {
		t.Fatal(rows, err)
	}
	rows[0].Close()
	must(t, n.fetch(o))
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
