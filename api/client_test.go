package api

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestClientWalksAllPagesInOrder(t *testing.T) {
	f := newFake(25)
	s := serve(t, f, nil)
	c := s.client(t, s.tcp, "")
	for _, limit := range []int{0, 1, 7, 25, 1000} {
		var got []Segment
		for seg, err := range c.Segments(t.Context(), SegmentQuery{Limit: limit}) {
			must(t, err)
			got = append(got, seg)
		}
		if len(got) != len(f.segments) {
			t.Fatalf("limit %d: %d segments, want %d", limit, len(got), len(f.segments))
		}
		for i := range got {
			if !reflect.DeepEqual(got[i], f.segments[i]) {
				t.Fatalf("limit %d: segment %d is %+v", limit, i, got[i])
			}
		}
	}
	one := uint32(1)
	n := 0
	for seg, err := range c.Segments(t.Context(), SegmentQuery{Tenant: "b", Profile: &one, Prefix: "000", Limit: 2}) {
		if err != nil || seg.Tenant != "b" {
			t.Fatalf("%+v, %v", seg, err)
		}
		n++
	}
	if n != 8 { // odd keys below 0x10
		t.Errorf("%d segments pass the filters, want 8", n)
	}
}

func TestCheckpointsOfOneHashAreNotLostBetweenPages(t *testing.T) {
	s := serve(t, newFake(0), nil)
	c := s.client(t, s.tcp, "")
	for limit := 1; limit <= 3; limit++ {
		var kinds []string
		for cp, err := range c.Checkpoints(t.Context(), CheckpointQuery{Limit: limit}) {
			must(t, err)
			kinds = append(kinds, cp.Kind)
		}
		if !slices.Equal(kinds, []string{"exact", "spliced", "exact"}) {
			t.Errorf("limit %d: %v", limit, kinds)
		}
	}
}

func TestClientErrorsKeepTheirKind(t *testing.T) {
	f := newFake(1)
	f.busy = f.segments[0].Key
	s := serve(t, f, nil)
	c := s.client(t, "unix:"+s.unix, "")
	if _, err := c.Segment(t.Context(), Digest{9}); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing segment: %v", err)
	}
	if _, err := c.Remove(t.Context(), f.busy, false); !errors.Is(err, ErrBusy) {
		t.Errorf("busy segment: %v", err)
	}
	var p *Problem
	for _, err := range c.Segments(t.Context(), SegmentQuery{Limit: MaxLimit + 1}) {
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &p) || len(p.Errors) != 1 {
			t.Errorf("bad limit: %v", err)
		}
	}
	must(t, s.stop())
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("stopped node: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestClientRefusesOtherServersAndBadTargets(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	c, err := NewClient(other.URL, "")
	must(t, err)
	defer c.Close()
	var p *Problem
	if _, err := c.Status(t.Context()); err == nil || errors.As(err, &p) {
		t.Errorf("another server: %v", err)
	}
	for _, target := range []string{"", "unix:", "ftp://x", "localhost:1", "http://", "http://:1", "http://h:99999"} {
		if _, err := NewClient(target, ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", target, err)
		}
	}
}

func TestClientSaysWhyThereIsNoAnswer(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	engines, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	must(t, err)
	defer unix.Close(engines)
	must(t, unix.Bind(engines, &unix.SockaddrUnix{Name: at("engines")}))
	must(t, unix.Listen(engines, 1))
	deserted, err := net.ListenUnix("unix", &net.UnixAddr{Name: at("deserted"), Net: "unix"})
	must(t, err)
	deserted.SetUnlinkOnClose(false)
	must(t, deserted.Close())
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer slow.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	closing, err := net.Listen("tcp", "127.0.0.1:0") // as a TLS port does when it gets plain HTTP
	must(t, err)
	defer closing.Close()
	go func() {
		for {
			conn, err := closing.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	for target, want := range map[string]string{
		"unix:" + at("none"):                        at("none") + ": no such socket",
		"unix:" + at("deserted"):                    "nobody listens on " + at("deserted"),
		"unix:" + at("engines"):                     at("engines") + " is an engine socket; the admin socket beside it is " + at("admin/admin.sock"),
		"http://" + closing.Addr().String():         closing.Addr().String() + " closed the connection before its answer was complete; if the port speaks TLS, use https://",
		"https://" + plain.Listener.Addr().String(): plain.Listener.Addr().String() + " does not speak TLS: use http://",
		secure.URL: "the certificate of " + secure.Listener.Addr().String() + " is not trusted: name the file of its authority in SSL_CERT_FILE",
		slow.URL:   "no answer from " + slow.Listener.Addr().String() + " within 100ms",
	} {
		c, err := NewClient(target, "")
		must(t, err)
		if target == slow.URL {
			c.SetTimeout(100 * time.Millisecond)
		}
		if _, err := c.Status(t.Context()); !errors.Is(err, ErrUnavailable) || err.Error() != want {
			t.Errorf("%s: %v, want %s", target, err, want)
		}
		c.Close()
	}
	for range 20 { // the connection ends before or after the request is written
		c, err := NewClient("http://"+closing.Addr().String(), "")
		must(t, err)
		if _, err := c.Status(t.Context()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "closed the connection") {
			t.Errorf("a port that closes: %v", err)
		}
		c.Close()
	}
	c, err := NewClient("https://a.example:9400", "")
	must(t, err)
	defer c.Close()
	for err, want := range map[error]string{
		x509.HostnameError{}: "the certificate of a.example:9400 is for other names or addresses: use one of these",
		&net.OpError{Op: "dial", Err: &net.DNSError{Name: "a.example", IsNotFound: true}}: "no such host: a.example",
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.EHOSTUNREACH)}:   "a.example:9400: no route to host",
	} {
		if got := c.unanswered(t.Context(), &url.Error{Op: "Get", URL: "https://a.example:9400/readyz", Err: err}); got.Error() != want || !errors.Is(got, ErrUnavailable) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
