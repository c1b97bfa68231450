package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
	"github.com/spliced-kv/spliced/tiering/tiertest/storetest"
)

var secret = []byte("a secret of the cluster's nodes")

// holders is an index that knows what it was told.
type holders struct {
	mu sync.Mutex
	at map[uint64][]Node
}

func (h *holders) Holders(tag uint64, dst []Node) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return copy(dst, h.at[tag])
}

func (h *holders) Prefetch([]uint64) {}

func (h *holders) add(tag uint64, n Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == nil {
		h.at = map[uint64][]Node{}
	}
	if !slices.Contains(h.at[tag], n) {
		h.at[tag] = append(h.at[tag], n)
	}
}

// source is a daemon as far as its peers see it: a store and its server on a real socket.
type source struct {
	*storetest.Store
	server *Server
	http   *fasthttp.Server
	listen net.Listener
	ended  chan error

	mu    sync.Mutex
	fault *fault // nil = none
}

// fault is what goes wrong with a source's answers. It stalls until over is closed.
type fault struct {
	tiertest.Fault
	of   *tiertest.Object
	over chan struct{}
	once sync.Once
	pin  atomic.Pointer[pin] // of what it lies about
}

// subject is Peers and the sources behind it.
type subject struct {
	*Peers
	memory  *tiertest.Memory
	index   *holders
	names   *Names
	sources []*source
}

func tenantsOf(list []tiertest.Tenant) (out []Tenant) {
	for _, t := range list {
		out = append(out, Tenant{t.ID, t.Name, t.Salt})
	}
	return out
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// options of a subject.
type options struct {
	sources  int
	secure   bool
	unpinned bool // memory has no address
	cfg      Config
	server   ServerConfig
	store    tiering.Config
	dev      gpuipc.Device // nil = a new one
	memory   int64         // that objects are handed over in; 0 = 48 MiB
}

func open(t testing.TB, tenants []tiertest.Tenant, o options) *subject {
	t.Helper()
	dev := o.dev
	if dev == nil {
		dev = tiertest.NewDevice(t)
	}
	near := dev // as the two ends see it
	if o.unpinned {
		near = unpinned{dev}
	}
	setDefault(&o.memory, 48<<20)
	s := &subject{memory: tiertest.NewMemory(t, dev, o.memory), index: &holders{}, names: must(NewNames(secret, tenantsOf(tenants)))}
	cfg := o.cfg
	setDefault(&cfg.FindTime, time.Minute)
	cfg.Index, cfg.Names, cfg.Device, cfg.Profile, cfg.Insecure = s.index, s.names, near, tiertest.ProfileOf, !o.secure
	setDefault(&cfg.RangeBytes, 256<<10)
	setDefault(&cfg.DialTime, time.Minute)
	setDefault(&cfg.StallTime, time.Minute)
	setDefault(&cfg.SilentTime, time.Minute)
	setDefault(&cfg.BreakerMin, 50*time.Millisecond)
	s.Peers = must(New(cfg))
	var server, client *tls.Config
	if o.secure {
		server, client = certificates()
	}
	for i := range max(o.sources, 1) {
		one := openSource(t, dev, s.memory, tenants, server, &o)
		s.sources = append(s.sources, one)
		noError(t, s.Set(Member{Node: Node(i), Addr: one.listen.Addr().String(), TLS: client}))
	}
	return s
}

func openSource(t testing.TB, dev gpuipc.Device, m *tiertest.Memory, tenants []tiertest.Tenant, secure *tls.Config, o *options) *source {
	t.Helper()
	cfg := o.store
	cfg.Device, cfg.Tenants, cfg.Eviction = dev, storetest.Tenants(tenants), policy.NewLRU
	setDefault(&cfg.PageBytes, 4096)
	setDefault(&cfg.PublicBytes, 64<<20)
	setDefault(&cfg.PrivateBytes, 64<<20)
	store, err := storetest.New(cfg, m, tiertest.Traits{})
	noError(t, err)
	s := &source{Store: store, ended: make(chan error, 1)}
	server := o.server
	if o.unpinned {
		dev = unpinned{dev}
	}
	server.Store, server.Device, server.Names = store.Store, dev, must(NewNames(secret, tenantsOf(tenants)))
	s.server = must(NewServer(server))
	s.http = &fasthttp.Server{Handler: s.handle, NoDefaultServerHeader: true, NoDefaultDate: true, MaxIdleWorkerDuration: 100 * time.Millisecond}
	s.listen = must(net.Listen("tcp", "127.0.0.1:0"))
	if secure != nil {
		s.listen = tls.NewListener(corkedListener{s.listen}, secure)
	}
	go func() { s.ended <- s.http.Serve(s.listen) }()
	return s
}

// corkedListener gives connections that can hold back what is written.
type corkedListener struct{ net.Listener }

func (l corkedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewCorked(conn), nil
}

// certificates makes a certificate and who trusts it.
func certificates() (server, client *tls.Config) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, DNSNames: []string{"node"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	pool := x509.NewCertPool()
	pool.AddCert(must(x509.ParseCertificate(der)))
	pair := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	server = &tls.Config{Certificates: pair, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true}
	return server, &tls.Config{Certificates: pair, RootCAs: pool, ServerName: "node", MinVersion: tls.VersionTLS13}
}

func (s *source) close() error {
	err := s.http.Shutdown()
	_ = s.listen.Close() // in case it had not begun to serve
	err = errors.Join(err, <-s.ended)
	s.server.Close()
	return errors.Join(err, s.Store.Close())
}

func (s *subject) RemoteTraits() tiertest.RemoteTraits {
	return tiertest.RemoteTraits{Sources: len(s.sources), Patience: 20 * time.Second, Memory: s.memory}
}

func (s *subject) Put(ctx context.Context, at int, o *tiertest.Object) error {
	f, err := s.sources[at].Begin(o)
	if err != nil {
		return err
	}
	if _, err := f.Finish(ctx, tier.LevelDefault); err != nil {
		return err
	}
	w := tiertest.WantOf(o)
	tag, ok := s.names.Tag(&w)
	if !ok {
		return fmt.Errorf("%v has no tag: %w", o, tier.ErrInvalid)
	}
	s.index.add(tag, Node(at))
	return nil
}

func (s *subject) Disturb(at int, o *tiertest.Object, f tiertest.Fault) (func(), error) {
	one := s.sources[at]
	one.mu.Lock()
	defer one.mu.Unlock()
	wrong := &fault{Fault: f, of: o, over: make(chan struct{})}
	one.fault = wrong
	return func() {
		one.mu.Lock()
		defer one.mu.Unlock()
		one.fault = nil
		close(wrong.over)
	}, nil
}

// Close ends the client first: servers wait for connections that are open.
func (s *subject) Close() error {
	s.Peers.Close()
	var errs []error
	for _, one := range s.sources {
		one.server.flats.close() // which has leases for a while
		if leases, _ := one.server.session.Holdings(); leases > 0 {
			tiertest.Wait(10*time.Second, func() bool { leases, _ = one.server.session.Holdings(); return leases == 0 })
			if leases > 0 {
				errs = append(errs, fmt.Errorf("%d leases are held", leases))
			}
		}
		errs = append(errs, one.close())
	}
	return errors.Join(errs...)
}

// handle answers, with what goes wrong.
func (s *source) handle(ctx *fasthttp.RequestCtx) {
	s.mu.Lock()
	f := s.fault
	s.mu.Unlock()
	if f == nil {
		s.server.Handler(ctx)
		return
	}
	read, of := string(ctx.Path()) == ReadPath, f.concerns(ctx)
	switch {
	case f.Fault == tiertest.Dead:
		cut(ctx, func(net.Conn) {})
		return
	case f.Fault == tiertest.Stalled:
		cut(ctx, func(net.Conn) { <-f.over })
		return
	case of && read && f.Fault == tiertest.Vanishing:
		f.once.Do(func() { s.Remove(f.of) })
	case of && read && f.pin.Load() != nil:
		q := must(decodeRead(ctx.PostBody()))
		q.pin = *f.pin.Load() // as if its digests were what it said
		ctx.Request.SetBody(q.append(nil))
	}
	s.server.Handler(ctx)
	if !of || ctx.Response.StatusCode() != fasthttp.StatusOK {
		return
	}
	if !read {
		ctx.Response.SetBody(f.lie(slices.Clone(ctx.Response.Body())))
		return
	}
	switch f.Fault {
	case tiertest.Spoilt:
		b := slices.Clone(ctx.Response.Body())
		b[len(b)-1] ^= 0x10
		ctx.Response.SetBody(b)
	case tiertest.DeadHalfway, tiertest.StalledHalf:
		b := slices.Clone(ctx.Response.Body())
		_ = ctx.Response.CloseBodyStream()
		cut(ctx, func(c net.Conn) {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(b))
			_, _ = c.Write(b[:len(b)/2])
			if f.Fault == tiertest.StalledHalf {
				<-f.over
			}
		})
	}
}

// cut ends a connection after f.
func cut(ctx *fasthttp.RequestCtx, f func(net.Conn)) {
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(f)
}

// concerns tells whether a request is about the object that something is wrong with.
func (f *fault) concerns(ctx *fasthttp.RequestCtx) bool {
	if q, err := decodeRead(ctx.PostBody()); err == nil {
		return q.Name == f.of.Name
	}
	names, _ := decodeFind(ctx.PostBody())
	return slices.ContainsFunc(names, func(n name) bool { return n.Name == f.of.Name })
}

// lie changes what an answer says of an object.
func (f *fault) lie(b []byte) []byte {
	rows := must(decodeAnswer(b, int(binary.LittleEndian.Uint16(b))))
	out := binary.LittleEndian.AppendUint16(nil, uint16(len(rows)))
	for _, r := range rows {
		var d *description
		if r.status == here {
			if d = must(decodeDescription(r.description)); d.Name == f.of.Name {
				right := pinOf(d)
				f.pin.Store(&right)
				f.change(d)
			}
		}
		out = appendRow(out, r.status, d)
	}
	return out
}

func (f *fault) change(d *description) {
	switch f.Fault {
	case tiertest.LieBytes:
		d.rankBytes += 64
	case tiertest.LieShape:
		d.end++
		d.spec.Tokens++
		d.spec.Role ^= 3
	case tiertest.LieName:
		d.Key[31] ^= 1
	case tiertest.LieTokens:
		d.tokens[0] ^= 1
	case tiertest.LieDigests:
		d.digests[len(d.digests)-1][0] ^= 1
	case tiertest.LieShort:
		for i := range d.digests {
			d.digests[i] = d.digests[i][1:]
		}
	}
}
