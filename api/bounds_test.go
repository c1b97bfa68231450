package api

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"
)

func TestConnectionsBeyondTheBoundAreClosedAndCounted(t *testing.T) {
	s := serve(t, newFake(0), nil)
	address := strings.TrimPrefix(s.tcp, "http://")
	for i := range maxConnections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// An answer shows that the connection has its place.
		if err := exchange(conn); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	one, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	if err := exchange(one); err == nil {
		t.Error("one connection too many is answered")
	}
	if n := s.server.Refused(); n != 1 {
		t.Errorf("%d refused, want 1", n)
	}
	// The admin socket has places of its own.
	admin, err := net.Dial("unix", s.unix)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := exchange(admin); err != nil {
		t.Errorf("admin socket: %v", err)
	}
}

func exchange(conn net.Conn) error {
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	start := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(conn, start); err != nil {
		return err
	}
	if string(start) != "HTTP/1.1 200" {
		return errors.New(string(start))
	}
	return nil
}

func FuzzQuery(f *testing.F) {
	for _, q := range []string{"", "limit=1", "limit=0&limit=2", "tenant=%00&profile=4294967296", "key_prefix=AB&cursor=" + Digest{1}.String(), "%zz&=&a=b=c"} {
		f.Add(q)
	}
	fake := newFake(5)
	s, err := New(Options{Node: fake, Catalogue: fake, Canaries: fake, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	if err != nil {
		f.Fatal(err)
	}
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
