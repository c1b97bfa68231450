// Package objecttest runs a real S3 server for tests: versitygw, which stores objects in
// a directory. Clients reach it through a proxy that can inject faults.
package objecttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// Bucket is the name of a bucket that Open creates.
const Bucket = "kv-cache"

// Server is a versitygw over a directory, and the proxy in front of it. Without a Fault,
// all answers come from versitygw.
type Server struct {
	Dir   string           // the directory that holds the buckets
	Proxy *httptest.Server // address for clients

	t    testing.TB
	meta string
	sock string
	cmd  *exec.Cmd
	log  bytes.Buffer
	up   *http.Transport

	mu    sync.Mutex
	fault Fault
	seen  map[string]int // requests by method
}

// Fault serves a request in place of next, which forwards it to the server.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Program builds the server once and returns its path. It skips the test if building is
// not possible.
func Program(t testing.TB) string {
	t.Helper()
	built.Do(func() { built.path, built.err = build() })
	if built.err != nil {
		t.Skipf("no S3 server: %v", built.err)
	}
	return built.path
}

var built struct {
	sync.Once
	path string
	err  error
}

func build() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	tools, module := filepath.Join(root, "bin", "tools"), filepath.Join(root, "scripts", "s3server")
	sum, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(tools, fmt.Sprintf("versitygw-%x", sumOf(sum)))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(tools, 0o755); err != nil {
		return "", err
	}
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer func() { _ = os.Remove(part) }()
	cmd := exec.Command("go", "build", "-o", part, "github.com/versity/versitygw/cmd/versitygw")
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build versitygw: %w\n%s", err, out)
	}
	return path, os.Rename(part, path)
}

// moduleRoot returns the root of the repository, found from the test's working directory
// upwards.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "s3server", "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("scripts/s3server is nowhere above this directory")
		}
		dir = up
	}
	return "", err
}

func sumOf(b []byte) (sum uint32) {
	for _, c := range b {
		sum = sum*16777619 ^ uint32(c)
	}
	return sum
}

// Open starts a server over dir with an empty bucket. It runs until the test ends or
// Close is called.
func Open(t testing.TB, dir string) *Server {
	t.Helper()
	Program(t)
	g := &Server{t: t, Dir: dir, meta: t.TempDir(), seen: map[string]int{}}
	run, err := os.MkdirTemp("", "s3") // short enough for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	g.sock = filepath.Join(run, "s")
	g.up = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", g.sock)
		},
		MaxIdleConnsPerHost: 64, DisableCompression: true,
	}
	to := &url.URL{Scheme: "http", Host: "gateway"}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it was signed
		},
		Transport:     g.up,
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	g.Proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		fault := g.fault
		g.seen[r.Method]++
		g.mu.Unlock()
		if fault != nil {
			fault(w, r, forward)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	g.Start()
	t.Cleanup(g.Close)
	if err := g.Admin().MakeBucket(context.Background(), Bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	return g
}

// The clients' credentials.
const (
	AccessKey = "spliced-test"
	SecretKey = "spliced-test-secret"
)

// Start starts the server, in Open or again after Kill.
func (g *Server) Start() {
	g.t.Helper()
	_ = os.Remove(g.sock)
	g.cmd = exec.Command(Program(g.t), "--port", g.sock, "--access", AccessKey, "--secret", SecretKey, "--quiet", "--keep-alive",
		"posix", "--sidecar", g.meta, g.Dir)
	g.cmd.Stdout, g.cmd.Stderr = &g.log, &g.log
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	if !tiertest.Wait(20*time.Second, func() bool {
		c, err := net.Dial("unix", g.sock)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}) {
		g.Kill()
		g.t.Fatalf("the S3 server does not start:\n%s", g.log.String())
	}
}

// Kill ends the server with SIGKILL. The proxy stays, and its requests fail.
func (g *Server) Kill() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	g.up.CloseIdleConnections()
}

// Close ends server and proxy.
func (g *Server) Close() {
	if g.Proxy == nil {
		return
	}
	g.Set(nil)
	g.Proxy.CloseClientConnections()
	g.Proxy.Close()
	g.Proxy = nil
	g.Kill()
}

// Admin returns a client for the test itself.
func (g *Server) Admin() *minio.Client {
	c, err := minio.New(g.Proxy.Listener.Addr().String(), &minio.Options{
		Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: "us-east-1",
		Transport: &http.Transport{DisableKeepAlives: true},
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// Set makes a fault serve each request; nil = requests are forwarded.
func (g *Server) Set(fault Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = fault
}

// Requests returns the number of requests of a method.
func (g *Server) Requests(method string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[method]
}

// OfPayload reports whether a request reads an object's payload, not its description.
func OfPayload(r *http.Request) bool {
	at := r.Header.Get("Range")
	return r.Method == http.MethodGet && at != "" && !strings.HasPrefix(at, "bytes=0-")
}

// Dead fails every request.
func Dead(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// Halfway is a Fault for reads of payloads. It sends the first half of the body, calls the
// function then, and breaks the connection.
func Halfway(then func(r *http.Request)) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !OfPayload(r) {
			next.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
		_ = http.NewResponseController(w).Flush()
		then(r)
		panic(http.ErrAbortHandler)
	}
}

// Slowly is a Fault that limits bodies of both directions together to rate bytes per second.
func Slowly(rate int64) Fault {
	p := &pace{rate: rate}
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		r.Body = io.NopCloser(slowReader{r.Context(), r.Body, p})
		next.ServeHTTP(slowWriter{w, r.Context(), p}, r)
	}
}

type slowReader struct {
	ctx  context.Context
	from io.Reader
	pace *pace
}

func (s slowReader) Read(b []byte) (int, error) {
	n, err := s.from.Read(b[:min(len(b), 16<<10)])
	s.pace.take(s.ctx, n)
	return n, err
}

type slowWriter struct {
	http.ResponseWriter
	ctx  context.Context
	pace *pace
}

func (s slowWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s slowWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		k := min(len(b), 16<<10)
		s.pace.take(s.ctx, k)
		k, err = s.ResponseWriter.Write(b[:k])
		n, b = n+k, b[k:]
	}
	return n, err
}

// pace spreads bytes over time.
type pace struct {
	rate int64 // bytes per second
	mu   sync.Mutex
	next time.Time
}

// take reserves time for n bytes and waits until they may pass.
func (p *pace) take(ctx context.Context, n int) {
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	p.mu.Unlock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
