package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/object/objecttest"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

var clusterSecret = []byte("a secret of the test's cluster")

// node is a Store that runs.
type node struct {
	*Store
	t    testing.TB
	stop func()
	mem  *tiertest.Memory
}

// site is a server and memory for the nodes of a test.
type site struct {
	*objecttest.Server
	t       testing.TB
	dev     gpuipc.Device
	mem     *tiertest.Memory
	tenants []Tenant
	creds   string
}

// openSite starts a server for a test, which ends with close.
func openSite(t testing.TB, tenants []tiertest.Tenant) *site {
	t.Helper()
	return openSiteIn(t, tenants, t.TempDir())
}

// openSiteIn is openSite with a directory of the server's own.
func openSiteIn(t testing.TB, tenants []tiertest.Tenant, dir string) *site {
	t.Helper()
	objecttest.Program(t) // before there is anything to be given back
	s := &site{t: t, dev: tiertest.NewDevice(t)}
	s.mem = tiertest.NewMemory(t, s.dev, 256<<20)
	s.Server = objecttest.Open(t, dir)
	for _, of := range tenants {
		s.tenants = append(s.tenants, Tenant{of.ID, of.Name, of.Salt})
	}
	s.creds = filepath.Join(t.TempDir(), "credentials")
	s.credentials(objecttest.AccessKey, objecttest.SecretKey)
	return s
}

func (s *site) credentials(access, secret string) {
	s.t.Helper()
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", access, secret)
	if err := os.WriteFile(s.creds+".new", []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.creds+".new", s.creds); err != nil {
		s.t.Fatal(err)
	}
}

// config is that of a node, in haste, but patient with a server on a busy machine.
func (s *site) config() Config {
	return Config{
		Endpoint: s.Proxy.URL, Bucket: objecttest.Bucket, Credentials: s.creds, Secret: clusterSecret, Tenants: s.tenants, Device: s.dev,
		Profile:    tiertest.ProfileOf,
		AnswerTime: time.Minute, StallTime: time.Minute, BreakerMin: 20 * time.Millisecond, BreakerMax: 200 * time.Millisecond,
		AbsentTime: 20 * time.Millisecond, RangeBytes: 256 << 10, ListEvery: time.Hour, FullTime: 50 * time.Millisecond,
		Log: zerolog.New(zerolog.NewTestWriter(s.t)).Level(zerolog.WarnLevel),
	}
}

// node starts a node, and waits until it has listed the bucket.
func (s *site) node(cfg Config) *node {
	s.t.Helper()
	n := s.start(cfg)
	if !tiertest.Wait(20*time.Second, n.index.listed.Load) {
		n.stop()
		s.t.Fatal("the bucket is not listed")
	}
	return n
}

func (s *site) start(cfg Config) *node {
	s.t.Helper()
	st, err := New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { st.Run(ctx) })
	return &node{Store: st, t: s.t, mem: s.mem, stop: sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})}
}

// begin puts an object into memory and admits it; the answer comes when its write has ended.
func (n *node) begin(o *tiertest.Object) (<-chan error, error) {
	of := &tier.Object{
		Key: o.Key, Kind: o.Kind, Profile: o.Profile, Tenant: o.Tenant.ID, Publisher: "test", Created: time.Now(),
		Spec: o.Spec, Tokens: o.Tokens, Packed: o.Packed, Begin: o.Begin, End: o.End, Parent: o.Parent,
	}
	var refs []gpuipc.Ref
	for i, b := range o.Bytes {
		r, err := n.mem.Put(b)
		if err != nil {
			return nil, err
		}
		refs = append(refs, r)
		of.Shares = append(of.Shares, tier.Share{Ref: r, Digests: o.Digests[i]})
	}
	w, err := n.Admit(of)
	if err != nil {
		return nil, errors.Join(err, n.mem.Spend(refs...))
	}
	ended := make(chan error, 1)
	w.Start(tier.LevelSynced, func(reached tier.Level, err error) {
		if (err == nil) != (reached == tier.LevelSynced) {
			err = fmt.Errorf("level %v: %w", reached, err)
		}
		ended <- errors.Join(err, n.mem.Spend(refs...))
	})
	return ended, nil
}

// keep writes an object and waits for it.
func (n *node) keep(ctx context.Context, o *tiertest.Object) error {
	ended, err := n.begin(o)
	if err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *node) tagFor(o *tiertest.Object) tag {
	w := tiertest.WantOf(o)
	t, ok := n.keys.tagOf(&w)
	if !ok {
		n.t.Fatalf("%v has no tag", o)
	}
	return t
}

// subject is two nodes: one writes, the other one lists, finds and reads.
type subject struct {
	*node
	site   *site
	writer *node
}

func openSubject(t testing.TB, tenants []tiertest.Tenant, change func(*Config)) *subject {
	t.Helper()
	s := openSite(t, tenants)
	cfg := s.config()
	cfg.AnswerTime, cfg.StallTime = 3*time.Second, 3*time.Second // within Patience, as sources stall
	change(&cfg)
	return &subject{site: s, writer: s.node(cfg), node: s.node(cfg)}
}

// RemoteTraits implements tiertest.RemoteSubject.
func (s *subject) RemoteTraits() tiertest.RemoteTraits {
	return tiertest.RemoteTraits{Sources: 1, Patience: 20 * time.Second, Memory: s.mem}
}

// Put implements tiertest.RemoteSubject.
func (s *subject) Put(ctx context.Context, _ int, o *tiertest.Object) error {
	if err := s.writer.keep(ctx, o); err != nil {
		return err
	}
	return s.List(ctx)
}

// Close implements tiertest.RemoteSubject.
func (s *subject) Close() error {
	s.writer.stop()
	s.stop()
	s.site.Close()
	return nil
}

// Disturb implements tiertest.RemoteSubject.
func (s *subject) Disturb(_ int, o *tiertest.Object, f tiertest.Fault) (mend func(), err error) {
	t := s.tagFor(o)
	file := s.site.file(s.Store, t)
	stalled := make(chan struct{})
	stall := func(r *http.Request) {
		select {
		case <-stalled:
		case <-r.Context().Done():
		}
	}
	well := func() {
		close(stalled)
		s.site.Set(nil)
	}
	switch f {
	case tiertest.Spoilt:
		return change(file, func(b []byte) []byte {
			h, err := parseBlock(b, t, int64(len(b)))
			if err != nil {
				s.t.Error(err)
			}
			b[h.bytes()+(int64(len(b))-h.bytes())/3] ^= 0x10
			return b
		})
	case tiertest.Vanishing:
		s.site.Set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if objecttest.OfPayload(r) && strings.HasSuffix(r.URL.Path, t.name()) {
				if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
					s.t.Error(err)
				}
			}
			next.ServeHTTP(w, r)
		})
		return well, nil
	case tiertest.Dead:
		s.site.Set(objecttest.Dead)
		return well, nil
	case tiertest.DeadHalfway:
		s.site.Set(objecttest.Halfway(func(*http.Request) {}))
		return well, nil
	case tiertest.Stalled:
		s.site.Set(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
			stall(r)
			panic(http.ErrAbortHandler)
		})
		return well, nil
	case tiertest.StalledHalf:
		s.site.Set(objecttest.Halfway(stall))
		return well, nil
	}
	return change(file, func(b []byte) []byte { return s.lie(t, o, f, b) })
}

// change rewrites a file in place until mend is called.
func change(file string, how func(b []byte) []byte) (mend func(), err error) {
	was, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, how(bytes.Clone(was)), 0o600); err != nil {
		return nil, err
	}
	return func() {
		if err := os.WriteFile(file, was, 0o600); err != nil {
			panic(err)
		}
	}, nil
}

// lie is an object as a member that has the secret may describe it wrongly.
func (s *subject) lie(t tag, o *tiertest.Object, f tiertest.Fault, b []byte) []byte {
	h, err := parseBlock(b, t, int64(len(b)))
	if err != nil {
		s.t.Fatal(err)
	}
	x, err := payload.ReadExtent(memory(b[blockBytes:h.bytes()]), []slab.Run{wholeRun(h.headerBytes, h.objectBytes-h.bytes())})
	if err != nil {
		s.t.Fatal(err)
	}
	m, rest := x.Manifest, b[h.bytes():]
	switch f {
	case tiertest.LieBytes:
		m.RankBytes += extent.BlockBytes
		rest = append(rest, make([]byte, len(m.Digests)*extent.BlockBytes)...)
		x.PayloadBytes = int64(len(rest))
	case tiertest.LieShape:
		m.Digests = append(m.Digests, m.Digests[0])
		if m.Coded {
			m.Parts = append(m.Parts, m.Parts[0])
		}
		x.PayloadBytes = m.PayloadBytes()
		rest = append(rest, make([]byte, x.PayloadBytes-int64(len(rest)))...)
		for m.Coded && len(m.StoredDigests) < extent.Chunks(x.PayloadBytes) {
			m.StoredDigests = append(m.StoredDigests, 0)
		}
	case tiertest.LieName:
		x.Key[5] ^= 1
	case tiertest.LieTokens:
		m.Tokens[len(m.Tokens)/2]++
	case tiertest.LieDigests:
		m.Digests[0][0] ^= 1
	case tiertest.LieShort:
		for i := range m.Digests {
			m.Digests[i] = m.Digests[i][:len(m.Digests[i])-1]
		}
	}
	manifest, err := m.Encode(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	head, err := s.keys.putHead(t, &x.Header, manifest, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = o
	return append(head, rest...)
}

// file is where the server keeps an object.
func (s *site) file(of *Store, t tag) string {
	return filepath.Join(s.Dir, objecttest.Bucket, of.cfg.Prefix+t.name())
}
