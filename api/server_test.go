package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

func problemIn(t *testing.T, body []byte) Problem {
	t.Helper()
	var p Problem
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return p
}

func TestForeignHostAndOriginAreRefusedOverTCP(t *testing.T) {
	s := serve(t, newFake(0), func(o *Options) { o.Hosts = []string{"cache.example"} })
	port := s.tcp[strings.LastIndexByte(s.tcp, ':'):]
	rows := []struct {
		host, origin string
		status       int
	}{
		{"127.0.0.1" + port, "", 200},
		{"localhost" + port, "", 200},
		{"LOCALHOST.", "", 200},
		{"[::1]" + port, "", 200},
		{"cache.example:80", "", 200},
		{"evil.example", "", 403},
		{"localhost.evil.example", "", 403},
		{"10.1.2.3", "", 403},
		{"127.0.0.1.evil.example", "", 403},
		{"localhost" + port, "http://localhost" + port, 200},
		{"localhost" + port, "http://evil.example", 403},
		{"localhost" + port, "null", 403},
		{"localhost" + port, "http://localhost:1", 403},
	}
	for _, r := range rows {
		headers := []string{"Host", r.host}
		if r.origin != "" {
			headers = append(headers, "Origin", r.origin)
		}
		status, _, body := request(t, http.DefaultClient, "GET", s.tcp+"/api/v1/status", headers...)
		if status != r.status {
			t.Errorf("host %q origin %q: %d, want %d", r.host, r.origin, status, r.status)
		}
		if status == 403 && problemIn(t, body).Code != CodeForbiddenHost {
			t.Errorf("host %q: %s", r.host, body)
		}
	}
}

func TestAddressLiteralsAreServedOnOpenListeners(t *testing.T) {
	s := &Server{}
	open := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3)}
	if !s.hostAllowed("10.1.2.3", open) || s.hostAllowed("evil.example", open) {
		t.Error("an open listener serves its address (the kubelet and Prometheus use it) and no foreign name")
	}
}

func TestDryRunRemovesNothing(t *testing.T) {
	f := newFake(1)
	s := serve(t, f, nil)
	c := s.client(t, "unix:"+s.unix, "")
	r, err := c.Remove(t.Context(), f.segments[0].Key, true)
	if err != nil || !r.DryRun || r.Segment.Key != f.segments[0].Key || len(f.removed) != 0 {
		t.Errorf("%+v, %v, %d removed", r, err, len(f.removed))
	}
	if _, err := c.Remove(t.Context(), f.segments[0].Key, false); err != nil || len(f.removed) != 1 || <-f.removed != f.segments[0].Key {
		t.Errorf("without a dry run: %v", err)
	}
}

func TestProfilingIsOnTheSocketOnly(t *testing.T) {
	s := serve(t, newFake(0), nil)
	if status, _, _ := request(t, http.DefaultClient, "GET", s.tcp+"/debug/pprof/"); status != 404 {
		t.Errorf("TCP: %d, want 404", status)
	}
	own := unixHTTP(t, s.unix)
	for _, path := range []string{"", "goroutine?debug=1", "heap", "cmdline"} {
		if status, _, body := request(t, own, "GET", "http://localhost/debug/pprof/"+path); status != 200 || len(body) == 0 {
			t.Errorf("%q: %d, %d bytes", path, status, len(body))
		}
	}
}

func TestReadinessDegradesAndNeverLies(t *testing.T) {
	f := newFake(0)
	s := serve(t, f, nil)
	h, err := s.client(t, s.tcp, "").Ready(t.Context())
	if err != nil || h.Status != HealthDegraded || len(h.Degraded) != 1 || len(h.Checks) != 2 {
		t.Errorf("degraded: %+v, %v", h, err)
	}
	f = newFake(0)
	f.status.Ready, f.status.Alive = false, false
	s = serve(t, f, nil)
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		status, media, body := request(t, http.DefaultClient, "GET", s.tcp+path)
		if status != 503 || media != "application/json" || !strings.Contains(string(body), HealthUnavailable) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if h, err := s.client(t, s.tcp, "").Ready(t.Context()); err != nil || h.Status != HealthUnavailable {
		t.Errorf("client: %+v, %v", h, err)
	}
}

func TestUnknownPathsMethodsAndParametersAreProblems(t *testing.T) {
	s := serve(t, newFake(1), nil)
	rows := []struct {
		method, path string
		status       int
		code         string
		violations   int
	}{
		{"GET", "/elsewhere", 404, CodeNotFound, 0},
		{"GET", "/ui/elsewhere", 404, CodeNotFound, 0},
		{"POST", "/ui/", 405, CodeMethodNotAllowed, 0},
		{"GET", "/api/v1/segments/", 404, CodeNotFound, 0},
		{"GET", "/api/v2/segments", 404, CodeNotFound, 0},
		{"POST", "/api/v1/segments", 405, CodeMethodNotAllowed, 0},
		{"OPTIONS", "/livez", 405, CodeMethodNotAllowed, 0},
		{"GET", "/api/v1/segments?limit=0&profile=x&key_prefix=g&colour=red&tenant=", 400, CodeInvalid, 5},
		{"GET", "/api/v1/checkpoints?limit=99999999999999999999", 400, CodeInvalid, 1},
	}
	for _, r := range rows {
		status, media, body := request(t, http.DefaultClient, r.method, s.tcp+r.path)
		p := problemIn(t, body)
		if status != r.status || p.Status != r.status || p.Code != r.code || len(p.Errors) != r.violations || media != "application/problem+json" {
			t.Errorf("%s %s: %d %s", r.method, r.path, status, body)
		}
	}
}

func TestHeadAnswersWithoutBody(t *testing.T) {
	s := serve(t, newFake(0), nil)
	res, err := http.Head(s.tcp + "/readyz")
	if err != nil || res.StatusCode != 200 || res.ContentLength <= 0 {
		t.Fatalf("%v, %v", res, err)
	}
	if res.Header.Get("X-Content-Type-Options") != "nosniff" || res.Header.Get("Server") != "" {
		t.Errorf("headers: %v", res.Header)
	}
}

func TestOversizedAndBrokenRequestsAreProblems(t *testing.T) {
	s := serve(t, newFake(0), nil)
	rows := []struct {
		name, request string
		status        int
	}{
		{"headers", "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", maxHeaderBytes) + "\r\n\r\n", 431},
		{"body", fmt.Sprintf("POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", maxBodyBytes+1), 413},
		{"noise", "\x00\x01\x02\r\n\r\n", 400},
	}
	for _, r := range rows {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.tcp, "http://"))
		must(t, err)
		if _, err := io.WriteString(conn, r.request); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != r.status || problemIn(t, body).Status != r.status {
			t.Errorf("%s: %d %s", r.name, res.StatusCode, body)
		}
		conn.Close()
	}
}

// The end of a request is certain, or the connection ends with it.
func TestAmbiguousFramingEndsTheConnection(t *testing.T) {
	s := serve(t, newFake(0), nil)
	const next = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
	rows := []struct {
		name, request string
		answers       int // 2 = the next request is answered too
	}{
		{"no body", next, 2},
		{"a length", "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 2},
		{"chunks", "POST /livez HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 2},
		{"length and coding", "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1},
		{"coding and length", "POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 1},
		{"two lengths", "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 1},
		{"the same length twice", "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 1},
		{"a list of lengths", "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2, 2\r\n\r\n{}", 1},
		{"a signed length", "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}", 1},
		{"chunked twice", "POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1},
		{"identity", "POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: identity\r\n\r\n", 1},
		{"another coding", "POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 1},
		{"chunks before HTTP/1.1", "POST /livez HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1},
		{"whitespace before the colon", "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length : 2\r\n\r\n", 1},
		{"a folded line", "POST /livez HTTP/1.1\r\nHost: localhost\r\nX: a\r\n Content-Length: 2\r\n\r\n", 1},
		{"a bare line end", "POST /livez HTTP/1.1\r\nHost: localhost\r\nX: a\nContent-Length: 0\r\n\r\n", 1},
		{"two hosts", "GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: 127.0.0.1\r\n\r\n", 1},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.tcp, "http://"))
			must(t, err)
			defer conn.Close()
			if _, err := io.WriteString(conn, r.request+next); err != nil {
				t.Fatal(err)
			}
			answers, from := 0, bufio.NewReader(conn)
			for answers < 2 {
				res, err := http.ReadResponse(from, nil)
				if err != nil {
					break // the connection has ended
				}
				body, err := io.ReadAll(res.Body)
				must(t, err)
				answers++
				if r.answers == 1 && (res.StatusCode != 400 || !res.Close || problemIn(t, body).Code != CodeInvalid) {
					t.Errorf("%d %s", res.StatusCode, body)
				}
			}
			if answers != r.answers {
				t.Errorf("%d answers, want %d", answers, r.answers)
			}
		})
	}
}

type panicking struct{ *fakeNode }

func (panicking) Status() Status { panic("broken") }

func TestPanicOfOneRequestLeavesTheRestServed(t *testing.T) {
	s := serve(t, newFake(0), func(o *Options) { o.Node = panicking{newFake(0)} })
	status, _, body := request(t, http.DefaultClient, "GET", s.tcp+"/livez")
	if status != 500 || problemIn(t, body).Code != CodeInternal || strings.Contains(string(body), "broken") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, _ := request(t, http.DefaultClient, "GET", s.tcp+"/api/v1/pools"); status != 200 {
		t.Errorf("after: %d", status)
	}
}

func TestStopEndsIdleConnectionsAndWaitsForAnswers(t *testing.T) {
	before := runtime.NumGoroutine()
	files := openFiles(t)
	f := newFake(0)
	f.hang, f.entered = make(chan struct{}), make(chan struct{})
	s := serve(t, f, nil)
	idle, err := net.Dial("unix", s.unix)
	must(t, err)
	// An answer shows that the connection was accepted.
	answers := bufio.NewReader(idle)
	if _, err := io.WriteString(idle, "GET /api/v1/pools HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(answers, nil)
	must(t, err)
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	answered := make(chan int, 1)
	go func() {
		res, err := (&http.Client{Transport: tr}).Get(s.tcp + "/livez")
		if err != nil {
			answered <- 0
			return
		}
		res.Body.Close()
		answered <- res.StatusCode
	}()
	<-f.entered
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	// The idle connection ends although a request still runs.
	if _, err := answers.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("idle connection: %v, want EOF", err)
	}
	select {
	case err := <-stopped:
		t.Fatalf("stopped (%v) while a request was answered", err)
	default:
	}
	close(f.hang)
	if status := <-answered; status != 200 {
		t.Errorf("request in progress: %d", status)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	idle.Close()
	tr.CloseIdleConnections()
	if _, err := os.Lstat(s.unix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket after stop: %v", err)
	}
	awaitAtMost(t, "goroutines", before, runtime.NumGoroutine)
	awaitAtMost(t, "open files", files, func() int { return openFiles(t) })
}

// awaitAtMost waits until what ends by itself (the peers' halves) has ended.
func awaitAtMost(t *testing.T, what string, want int, now func() int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); now() > want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%s: %d, were %d\n%s", what, now(), want, buf[:runtime.Stack(buf, true)])
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

func TestOptionsNameEveryMistake(t *testing.T) {
	_, err := New(Options{Tokens: Tokens{Token: "short"}, Hosts: []string{"A.example", "b:80", "ok"}, Metrics: prometheus.NewRegistry()})
	if !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{"required", "16", "A.example", "b:80"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %q is missing", err, want)
		}
	}
}

// broken is a collector with a series that cannot be told.
type broken struct{ desc *prometheus.Desc }

func (b broken) Describe(ch chan<- *prometheus.Desc) { ch <- b.desc }
func (b broken) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(b.desc, errors.New("no good"))
}

// A metric that cannot be told costs no other, is counted, and is in the log.
func TestWhatIsMissingFromMetricsIsCountedAndLogged(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "spliced_good", Help: "One."}))
	registry.MustRegister(broken{prometheus.NewDesc("spliced_broken", "Two.", nil, nil)})
	var log strings.Builder
	s := serve(t, newFake(0), func(o *Options) { o.Metrics, o.Log = registry, zerolog.New(&log) })
	var body string
	for range 2 {
		_, media, text := request(t, http.DefaultClient, http.MethodGet, s.tcp+"/metrics")
		if body = string(text); media != "text/plain" {
			t.Errorf("%s: %s", media, body)
		}
	}
	for _, line := range []string{"spliced_good 0", `promhttp_metric_handler_errors_total{cause="gathering"} 1`} {
		if !strings.Contains(body, line) {
			t.Errorf("no %s in\n%s", line, body)
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "no good") {
		t.Errorf("the log: %s", &log)
	}
}
