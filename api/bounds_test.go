package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"
)

// Whoever holds all connections and says nothing closes his own.
func TestIdleConnectionsMakeWay(t *testing.T) {
	s := serve(t, newFake(0), func(o *Options) { o.idleTimeout = time.Minute })
	address := strings.TrimPrefix(s.tcp, "http://")
	conns := make([]net.Conn, maxConnections+8)
	for i := range conns {
		var err error
		if conns[i], err = net.Dial("tcp", address); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
		// An answer shows that the connection has its place.
		if err := exchange(conns[i]); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	lost := 0
	for _, conn := range conns {
		if exchange(conn) != nil {
			lost++
		}
	}
	if lost != 8 {
		t.Errorf("%d of %d connections have ended, want 8", lost, len(conns))
	}
	var counted dto.Metric
	if err := s.server.turnedAway.WithLabelValues("idle").Write(&counted); err != nil || counted.Counter.GetValue() != 8 {
		t.Errorf("%v closed, %v; want 8", counted.Counter.GetValue(), err)
	}
	// The admin socket has places of its own.
	admin, err := net.Dial("unix", s.unix)
	must(t, err)
	defer admin.Close()
	if err := exchange(admin); err != nil {
		t.Errorf("admin socket: %v", err)
	}
}

// While all places are busy, probes are answered at others.
func TestProbesAreAnsweredWhileAllPlacesAreBusy(t *testing.T) {
	f := newFake(0)
	held := make(chan struct{})
	busy := make(chan struct{}, maxConnections)
	s := serve(t, f, func(o *Options) { o.Node = slowNode{f, busy, held} })
	var asking sync.WaitGroup
	for range maxConnections {
		asking.Go(func() {
			request(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, http.MethodGet, s.tcp+"/api/v1/pools")
		})
	}
	for range maxConnections {
		<-busy
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 3 * maxProbes {
		for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/healthz": 200, "/api/v1/status": 503} {
			if status, _, body := request(t, client, http.MethodGet, s.tcp+path); status != want {
				t.Fatalf("%s: %d %s", path, status, body)
			}
		}
	}
	close(held)
	asking.Wait()
}

// slowNode lists its pools when it is let go.
type slowNode struct {
	Node
	busy chan<- struct{}
	held <-chan struct{}
}

func (n slowNode) Pools() []Pool {
	n.busy <- struct{}{}
	<-n.held
	return n.Node.Pools()
}

func exchange(conn net.Conn) error {
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// Any request is answered, and none of them is a fault of ours.
func FuzzRequest(f *testing.F) {
	for _, r := range []struct{ method, path, query, body string }{
		{"GET", "/api/v1/segments/" + Digest{1}.String(), "", ""}, {"DELETE", "/api/v1/segments/00", "dry_run=true", ""},
		{"POST", "/api/v1/profiles/" + Digest{1}.String() + "/switch", "off=true&reason=x", "{}"}, {"GET", "/api/v1/decisions", "limit=-1", ""},
		{"GET", "/metrics", "", ""}, {"GET", "metrics", "", ""}, {"PUT", "//../livez", "%", "\x00"},
	} {
		f.Add(r.method, r.path, r.query, r.body)
	}
	fake := newFake(5)
	s, err := New(Options{Shown: fake.shown(), Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	must(f, err)
	handle := s.handler(true)
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		var ctx fasthttp.RequestCtx
		ctx.Init(&fasthttp.Request{}, nil, nil)
		ctx.Request.Header.SetMethod(method)
		ctx.Request.SetRequestURI(path)
		ctx.Request.URI().SetQueryString(query)
		ctx.Request.SetBodyString(body)
		if strings.Contains(string(ctx.Path()), profilingPath) { // takes the time that it is asked to
			return
		}
		handle(&ctx)
		if status := ctx.Response.StatusCode(); status < 200 || status >= 500 {
			t.Errorf("%q %q?%q: status %d: %s", method, path, query, status, ctx.Response.Body())
		}
	})
}

func FuzzQuery(f *testing.F) {
	for _, q := range []string{"", "limit=1", "limit=0&limit=2", "tenant=%00&profile=4294967296", "key_prefix=AB&cursor=" + Digest{1}.String(), "%zz&=&a=b=c"} {
		f.Add(q)
	}
	fake := newFake(5)
	s, err := New(Options{Shown: fake.shown(), Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	must(f, err)
	handle := s.handler(true)
	f.Fuzz(func(t *testing.T, query string) {
		for _, path := range []string{"/api/v1/segments", "/api/v1/checkpoints", "/readyz"} {
			var ctx fasthttp.RequestCtx
			ctx.Init(&fasthttp.Request{}, nil, nil)
			ctx.Request.SetRequestURI(path)
			ctx.Request.URI().SetQueryString(query)
			handle(&ctx)
			var p Problem
			switch status := ctx.Response.StatusCode(); status {
			case fasthttp.StatusOK:
			case fasthttp.StatusBadRequest:
				if err := json.Unmarshal(ctx.Response.Body(), &p); err != nil || len(p.Errors) == 0 {
					t.Errorf("%q: %v %s", query, err, ctx.Response.Body())
				}
			default:
				t.Errorf("%q: status %d", query, status)
			}
		}
	})
}
