package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// testLimit bounds every wait of these tests: the machine may be busy.
const testLimit = time.Minute

// fakeEvents are events without an end, numbered from 1.
type fakeEvents struct {
	mu      sync.Mutex
	list    []Event
	news    chan struct{} // closed when there are more; nil = nobody waits
	refuses bool
	open    int // followers
}

func (f *fakeEvents) tell(list ...Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range list {
		e.ID = uint64(len(f.list) + 1)
		f.list = append(f.list, e)
	}
	if f.news != nil {
		close(f.news)
		f.news = nil
	}
}

func (f *fakeEvents) followers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

func (f *fakeEvents) after(q *EventQuery, after uint64, most int) (list []Event) {
	for i := range f.list {
		if e := &f.list[i]; e.ID > after && q.Match(e) && len(list) < most {
			list = append(list, *e)
		}
	}
	return list
}

func (f *fakeEvents) Events(q EventQuery) ([]Event, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	after := uint64(0)
	if q.After != nil {
		after = *q.After
	}
	list := f.after(&q, after, q.Limit+1)
	n := min(len(list), q.Limit)
	return list[:n], n < len(list)
}

func (f *fakeEvents) Follow(q EventQuery) (Follower, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuses {
		return nil, fmt.Errorf("too many: %w", ErrUnavailable)
	}
	f.open++
	r := &fakeFollower{of: f, q: q, last: uint64(len(f.list))}
	if q.After != nil {
		r.last = *q.After
	}
	return r, nil
}

type fakeFollower struct {
	of   *fakeEvents
	q    EventQuery
	last uint64
}

func (r *fakeFollower) Next(ctx context.Context, patience time.Duration, dst []Event) ([]Event, error) {
	limit := time.After(patience)
	for {
		r.of.mu.Lock()
		list := r.of.after(&r.q, r.last, cap(dst)-len(dst))
		if r.of.news == nil {
			r.of.news = make(chan struct{})
		}
		news := r.of.news
		r.of.mu.Unlock()
		if len(list) > 0 {
			r.last = list[len(list)-1].ID
			return append(dst, list...), nil
		}
		select {
		case <-news:
		case <-limit:
			return dst, nil
		case <-ctx.Done():
			return dst, ctx.Err()
		}
	}
}

func (r *fakeFollower) Last() uint64 { return r.last }

func (r *fakeFollower) Close() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.of.open--
}

// within fails unless ok holds in time.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(testLimit); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within %v: %s", testLimit, what)
		}
	}
}

// openStream asks for a stream by hand, and answers what is read after the headers.
func openStream(t *testing.T, address, query string, headers ...string) (net.Conn, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must(t, err)
	t.Cleanup(func() { conn.Close() }) // closing the body would wait for its end
	must(t, conn.SetDeadline(time.Now().Add(testLimit)))
	fmt.Fprintf(conn, "GET %s%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", eventsPath, query, strings.Join(append(headers, ""), "\r\n"))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	return conn, res
}

func address(s *served) string { return strings.TrimPrefix(s.tcp, "http://") }

// wantLines reads lines, which may have other lines between them but no other events.
func wantLines(t *testing.T, r *bufio.Reader, want ...string) {
	t.Helper()
	for _, w := range want {
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatalf("instead of %q: %v", w, err)
			}
			if line = strings.TrimSuffix(line, "\n"); line == w {
				break
			}
			if strings.HasPrefix(line, "event: ") {
				t.Fatalf("%q instead of %q", line, w)
			}
		}
	}
}

func TestAStreamTellsEventsAndGoesOnAfterThem(t *testing.T) {
	f := newFake(0)
	s := serve(t, f, func(o *Options) { o.heartbeat = 20 * time.Millisecond })
	_, res := openStream(t, address(s), "?kind=evicted,request&tenant=a")
	h := res.Header
	if res.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" || !strings.Contains(h.Get("Cache-Control"), "no-cache") ||
		h.Get("X-Accel-Buffering") != "no" || !res.Close || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %v, close %v", res.StatusCode, h, res.Close)
	}
	body := bufio.NewReader(res.Body)
	wantLines(t, body, "retry: 2000", "id: 3", "", ": nothing happens")
	f.happened.tell(Event{Kind: EventGPU, At: longAgo}, Event{Kind: EventRequest, Tenant: "a", At: longAgo, Text: "two\nlines"}, Event{Kind: EventRequest, Tenant: "b"})
	wantLines(t, body, "id: 5", "event: request", `data: {"id":5,"at":"2026-05-01T12:00:00Z","kind":"request","tenant":"a","text":"two\nlines"}`, "", ": nothing happens")

	// A browser asks as it did first, and says what it had.
	_, res = openStream(t, address(s), "?after=0", "Last-Event-ID: 4")
	wantLines(t, bufio.NewReader(res.Body), "id: 4", "id: 5", "event: request", "", "id: 6", "event: request")
	_, res = openStream(t, address(s), "?after=2")
	wantLines(t, bufio.NewReader(res.Body), "id: 2", "id: 3", "event: request")
}

func TestStreamsThatCannotBeGivenAreRefused(t *testing.T) {
	f := newFake(0)
	s := serve(t, f, nil)
	httpc := unixHTTP(t, s.unix)
	if status, media, _ := request(t, httpc, http.MethodHead, "http://localhost"+eventsPath); status != 200 || media != "text/event-stream" {
		t.Errorf("head: %d %s", status, media)
	}
	if status, _, body := request(t, httpc, http.MethodGet, "http://localhost"+eventsPath, "Last-Event-ID", "abc"); status != 400 || !strings.Contains(string(body), "Last-Event-ID") {
		t.Errorf("a bad id: %d %s", status, body)
	}
	f.happened.refuses = true
	if status, media, body := request(t, httpc, http.MethodGet, "http://localhost"+eventsPath); status != 503 || media != "application/problem+json" || !strings.Contains(string(body), CodeUnavailable) {
		t.Errorf("one too many: %d %s", status, body)
	}
	none := serve(t, f, func(o *Options) { o.Events = nil })
	if status, _, _ := request(t, http.DefaultClient, http.MethodGet, none.tcp+eventsPath); status != 503 {
		t.Errorf("where nobody keeps events: %d", status)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Streams leave all places to others, and some streams to the node's owner. A client that
// leaves is noticed though nothing happens.
func TestStreamsTakeNobodysPlace(t *testing.T) {
	f := newFake(0)
	s := serve(t, f, func(o *Options) { o.idleTimeout = time.Minute })
	conns := make([]net.Conn, maxStrangers)
	for i := range conns {
		conns[i], _ = openStream(t, address(s), "")
	}
	own, err := unixHTTP(t, s.unix).Get("http://localhost" + eventsPath)
	if err != nil || own.StatusCode != 200 {
		t.Fatalf("the owner's: %v, %v", own, err)
	}
	own.Body.Close()
	within(t, "the owner's has ended", func() bool { return f.happened.followers() == len(conns) })
	if n := f.happened.followers(); n != len(conns) {
		t.Fatalf("%d streams of %d", n, len(conns))
	}
	other := make([]net.Conn, maxConnections)
	for i := range other {
		var err error
		if other[i], err = net.Dial("tcp", address(s)); err != nil {
			t.Fatal(err)
		}
		defer other[i].Close()
		if err := exchange(other[i]); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	for i := range other { // each has kept its place
		if err := exchange(other[i]); err != nil {
			t.Fatalf("connection %d again: %v", i, err)
		}
	}
	// Last, since the connection of a refused stream has a place like others.
	if _, res := openStream(t, address(s), ""); res.StatusCode != 503 || res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("one more stream: %d %v", res.StatusCode, res.Header)
	}
	for _, c := range conns {
		c.Close()
	}
	within(t, "all streams have ended", func() bool { return f.happened.followers() == 0 })
	openStream(t, address(s), "")
	within(t, "there is another one", func() bool { return f.happened.followers() == 1 })
}

func TestStoppingEndsStreamsAtOnce(t *testing.T) {
	f := newFake(0)
	s := serve(t, f, nil)
	_, res := openStream(t, address(s), "")
	slow, _ := openStream(t, address(s), "?after=0") // reads no more
	fill := Event{Kind: EventRequest, Text: strings.Repeat("x", 1000)}
	must(t, slow.(*net.TCPConn).SetReadBuffer(4096))
	for range 20_000 {
		f.happened.tell(fill)
	}
	go io.Copy(io.Discard, res.Body)
	began := time.Now()
	must(t, s.stop())
	if took := time.Since(began); took >= drainTimeout {
		t.Errorf("stopping took %v", took)
	}
	if n := f.happened.followers(); n != 0 {
		t.Errorf("%d streams go on", n)
	}
}

// A stream lasts longer than any other answer may, as long as its client reads.
func TestAStreamOutlivesTheWriteTimeout(t *testing.T) {
	f := newFake(0)
	const limit = 2 * time.Second // longer than a busy machine may keep the reader waiting
	s := serve(t, f, func(o *Options) { o.heartbeat, o.writeTimeout = 50*time.Millisecond, limit })
	_, res := openStream(t, address(s), "")
	body := bufio.NewReader(res.Body)
	for began := time.Now(); time.Since(began) < limit+limit/2; {
		wantLines(t, body, ": nothing happens")
	}
	slow, _ := openStream(t, address(s), "?after=0")
	must(t, slow.(*net.TCPConn).SetReadBuffer(4096))
	// The one that reads is never further behind than its socket has room for.
	within(t, "only the one that reads goes on", func() bool {
		for range 200 {
			f.happened.tell(Event{Kind: EventRequest, Text: strings.Repeat("x", 1000)})
		}
		for range 200 {
			wantLines(t, body, "event: request")
		}
		return f.happened.followers() == 1
	})
	f.happened.tell(Event{Kind: EventRequest})
	wantLines(t, body, "event: request")
}

func TestClientFollowsOverRestarts(t *testing.T) {
	f := newFake(0)
	path := t.TempDir() + "/admin.sock"
	var stop func() error
	start := func() {
		server, err := New(Options{Shown: f.shown(), Metrics: prometheus.NewRegistry(), Events: &f.happened})
		must(t, err)
		l, err := ListenUnix(path)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- server.Run(ctx, Listener{Listener: l, Trusted: true}) }()
		stop = func() error { cancel(); return <-done }
	}
	c, err := NewClient("unix:"+path, "")
	must(t, err)
	defer c.Close()
	if err := c.Events(t.Context(), EventQuery{}, nil, nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("before there is a server: %v", err)
	}
	start()
	ids, reached := make(chan uint64), make(chan bool, 10)
	enough := errors.New("enough")
	done := make(chan error, 1)
	go func() {
		done <- c.Events(t.Context(), EventQuery{Kinds: []string{EventRequest}}, func(e Event) error {
			ids <- e.ID
			if e.ID == 6 {
				return enough
			}
			return nil
		}, func(ok bool) { reached <- ok })
	}()
	within(t, "it follows", func() bool { return f.happened.followers() == 1 })
	if err := stop(); err != nil { // before it has heard of anything
		t.Fatal(err)
	}
	f.happened.tell(Event{Kind: EventRequest}) // while nobody serves
	if <-reached {
		t.Error("reached while nobody serves")
	}
	start()
	if !<-reached {
		t.Error("lost again, and not reached")
	}
	if id := <-ids; id != 4 {
		t.Errorf("after the first restart %d", id)
	}
	must(t, stop())
	f.happened.tell(Event{Kind: EventGPU}, Event{Kind: EventRequest})
	start()
	if id := <-ids; id != 6 {
		t.Errorf("after the second %d", id)
	}
	if err := <-done; !errors.Is(err, enough) {
		t.Errorf("ended with %v", err)
	}
	var bad *Problem
	if err := c.Events(t.Context(), EventQuery{Kinds: []string{"nonsense"}}, nil, nil); !errors.As(err, &bad) || bad.Status != 400 {
		t.Errorf("a bad question: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = c.Events(ctx, EventQuery{After: new(uint64)}, func(Event) error { cancel(); return nil }, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	list, more, err := c.RecentEvents(t.Context(), EventQuery{After: new(uint64), Limit: 2})
	if err != nil || len(list) != 2 || !more || list[0].Policy != "gdsf" {
		t.Errorf("listed %+v, more %v, %v", list, more, err)
	}
	must(t, stop())
}

func TestEventsSayOnlyWhatApplies(t *testing.T) {
	text, err := json.Marshal(Event{ID: 7, At: longAgo, Kind: EventGPU})
	if err != nil || string(text) != `{"id":7,"at":"2026-05-01T12:00:00Z","kind":"gpu"}` {
		t.Errorf("%s, %v", text, err)
	}
}
