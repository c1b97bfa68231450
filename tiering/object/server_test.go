package object

import (
	"bytes"
	"context"
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

const bucket = "kv-cache"

// gateway is a versitygw over a directory, reached through a proxy that can be made to
// fail. Everything that comes and goes is what a real server says.
type gateway struct {
	t     testing.TB
	dir   string // of buckets
	meta  string
	sock  string
	cmd   *exec.Cmd
	log   bytes.Buffer
	proxy *httptest.Server
	up    *http.Transport

	mu    sync.Mutex
	fault func(w http.ResponseWriter, r *http.Request, next http.Handler)
	seen  map[string]int // requests by method
}

// program builds the server once; tests are skipped where that cannot be done.
func program(t testing.TB) string {
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
	tools, err := filepath.Abs("../../bin/tools")
	if err != nil {
		return "", err
	}
	sum, err := os.ReadFile("../../scripts/s3server/go.sum")
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
	cmd.Dir, cmd.Env = "../../scripts/s3server", append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build versitygw: %w\n%s", err, out)
	}
	return path, os.Rename(part, path)
}

func sumOf(b []byte) (sum uint32) {
	for _, c := range b {
		sum = sum*16777619 ^ uint32(c)
	}
	return sum
}

// openGateway starts a server with an empty bucket. close ends it.
func openGateway(t testing.TB, dir string) *gateway {
	t.Helper()
	g := &gateway{t: t, dir: dir, meta: t.TempDir(), seen: map[string]int{}}
	run, err := os.MkdirTemp("", "s3") // short enough for a socket
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
	g.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	g.start()
	t.Cleanup(g.close)
	if err := g.admin().MakeBucket(context.Background(), bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	return g
}

const (
	accessKey = "spliced-test"
	secretKey = "spliced-test-secret"
)

func (g *gateway) start() {
	g.t.Helper()
	_ = os.Remove(g.sock)
	g.cmd = exec.Command(program(g.t), "--port", g.sock, "--access", accessKey, "--secret", secretKey, "--quiet", "--keep-alive",
		"posix", "--sidecar", g.meta, g.dir)
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
		g.kill()
		g.t.Fatalf("the S3 server does not start:\n%s", g.log.String())
	}
}

func (g *gateway) kill() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	g.up.CloseIdleConnections()
}

func (g *gateway) close() {
	if g.proxy == nil {
		return
	}
	g.set(nil)
	g.proxy.CloseClientConnections()
	g.proxy.Close()
	g.proxy = nil
	g.kill()
}

// admin is a client of the test itself.
func (g *gateway) admin() *minio.Client {
	c, err := minio.New(g.proxy.Listener.Addr().String(), &minio.Options{
		Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Region: "us-east-1",
		Transport: &http.Transport{DisableKeepAlives: true},
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// file is where the server keeps an object.
func (g *gateway) file(s *Store, t tag) string {
	return filepath.Join(g.dir, bucket, s.cfg.Prefix+t.name())
}

// set has a function serve each request; nil ends that.
func (g *gateway) set(fault func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = fault
}

// requests is how many there were of a method.
func (g *gateway) requests(method string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[method]
}

// ofPayload tells a request for an object's bytes from one for its description.
func ofPayload(r *http.Request) bool {
	at := r.Header.Get("Range")
	return r.Method == http.MethodGet && at != "" && !strings.HasPrefix(at, "bytes=0-")
}

// dead fails whatever is asked.
func dead(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// halfway has the first half of bodies come, and then what is given.
func halfway(then func(r *http.Request)) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !ofPayload(r) {
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

// slowly has bodies go through at some bytes a second, both ways.
func slowly(rate int64) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
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
	_ = pause(s.ctx, s.pace.take(n, time.Now()))
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
		_ = pause(s.ctx, s.pace.take(k, time.Now()))
		k, err = s.ResponseWriter.Write(b[:k])
		n, b = n+k, b[k:]
	}
	return n, err
}
