package peer

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

func opened(t *testing.T, o options) *subject {
	t.Helper()
	tiertest.Leaks(t)
	s := open(t, loneTenant, o)
	t.Cleanup(func() { noError(t, s.Close()) })
	return s
}

func (s *subject) put(t *testing.T, at int, o *tiertest.Object) {
	t.Helper()
	noError(t, s.Put(context.Background(), at, o))
}

func TestTagsDifferInAllThatNamesAnObject(t *testing.T) {
	tenants := []Tenant{{1, "a", nil}, {2, "b", []byte("s")}, {3, "bs", nil}}
	names, same, other := must(NewNames(secret, tenants)), must(NewNames(secret, tenants)), must(NewNames([]byte("another secret of 16"), tenants))
	seen := map[uint64]tier.Want{}
	for tenant := range tier.TenantID(3) {
		for kind := range tier.CheckpointKind(3) {
			for key := range byte(3) {
				for of := range byte(2) {
					w := tier.Want{Name: tier.Name{Kind: kind, Key: [32]byte{31: key}}, Fingerprint: [32]byte{of}, Tenant: tenant + 1}
					tag, ok := names.Tag(&w)
					again, _ := same.Tag(&w)
					differs, _ := other.Tag(&w)
					if !ok || tag != again || tag == differs {
						t.Errorf("%+v: %x, %x, with another secret %x", w, tag, again, differs)
					}
					if first, dup := seen[tag]; dup {
						t.Errorf("%+v and %+v have one tag", first, w)
					}
					seen[tag] = w
				}
			}
		}
	}
	if _, ok := names.Tag(&tier.Want{Tenant: 9}); ok {
		t.Error("an unknown tenant has tags")
	}
	if _, err := NewNames([]byte("short"), nil); !errors.Is(err, tier.ErrInvalid) {
		t.Error(err)
	}
}

// Tenants of one name that have different salts do not share, even if the index errs.
func TestATenantOfAnotherSaltFindsNothing(t *testing.T) {
	s := opened(t, options{})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	w := tiertest.WantOf(o)
	for _, of := range []Tenant{{1, "alice", []byte("b")}, {1, "bob", []byte("a")}} {
		cfg := s.cfg
		cfg.Names = must(NewNames(secret, []Tenant{of}))
		other := must(New(cfg))
		noError(t, other.Set(s.member(0).Member))
		tag, _ := cfg.Names.Tag(&w)
		s.index.add(tag, 0)
		if rows, err := other.Find(context.Background(), []tier.Want{w}); err != nil || rows[0] != nil {
			t.Errorf("%+v: %v, %v", of, rows, err)
		}
		other.Close()
	}
	if got := s.sources[0].server.Counters(); got.Found != 0 {
		t.Errorf("%d objects were told", got.Found)
	}
}

func TestPlainHasToBeAllowed(t *testing.T) {
	s := opened(t, options{secure: true})
	if err := s.Set(Member{Node: 1, Addr: "127.0.0.1:1"}); !errors.Is(err, tier.ErrInvalid) {
		t.Error(err)
	}
	if err := s.Set(Member{Node: math.MaxUint16, Addr: "127.0.0.1:1", TLS: s.member(0).TLS}); !errors.Is(err, tier.ErrInvalid) {
		t.Error(err)
	}
}

func TestAMemberThatIsRemovedIsNotAsked(t *testing.T) {
	s := opened(t, options{})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	w := tiertest.WantOf(o)
	s.Remove(0)
	s.Remove(7)
	if _, ok := s.Hint(&w); ok {
		t.Error("a hint of a member that is gone")
	}
	if rows, err := s.Find(context.Background(), []tier.Want{w}); err != nil || rows[0] != nil {
		t.Errorf("%v, %v", rows, err)
	}
}

// due is a context at the moment when its deadline has come and it has not ended yet.
type due struct{ context.Context }

func (due) Deadline() (time.Time, bool) { return time.Unix(1, 0), true }

// A caller's deadline is no failure of the member.
func TestADialEndsWithItsCallerNotBefore(t *testing.T) {
	s := opened(t, options{})
	l, err := s.member(0).dial(due{context.Background()})
	noError(t, err)
	_ = l.Close()
	ended, end := context.WithCancel(context.Background())
	end()
	if _, err := s.member(0).dial(ended); err == nil || ended.Err() == nil {
		t.Fatalf("a connection for a caller that is gone: %v", err)
	}
}

func TestHintsKnowWhatWasMeasuredAndQueued(t *testing.T) {
	s := opened(t, options{})
	o := tiertest.Segment(tiertest.WideF32, loneTenant[0], 1, 1500)
	s.put(t, 0, o)
	w := tiertest.WantOf(o)
	if h, ok := s.Hint(&w); !ok || h != (tier.Hint{}) {
		t.Errorf("before anything was measured: %+v, %v", h, ok)
	}
	rows, err := s.Find(context.Background(), []tier.Want{w})
	if err != nil || rows[0] == nil {
		t.Fatal(rows, err)
	}
	noError(t, tiertest.ReadCopy(context.Background(), s.memory, rows[0], o))
	before, ok := s.Hint(&w)
	if !ok || before.Latency <= 0 || before.BytesPerSecond <= 0 {
		t.Errorf("%+v, %v", before, ok)
	}
	s.member(0).queued.Add(1 << 30)
	after, _ := s.Hint(&w)
	if want := before.Latency + time.Duration(float64(1<<30)/before.BytesPerSecond*1e9); after.Latency < want*99/100 || after.Latency > want*101/100 {
		t.Errorf("with a gigabyte queued %v, want %v", after.Latency, want)
	}
	if n := testing.AllocsPerRun(100, func() { s.Hint(&w) }); n > 0 {
		t.Errorf("%v allocations a hint", n)
	}
	info := s.Members()
	if len(info) != 1 || info[0].RoundTrip <= 0 || info[0].Open {
		t.Errorf("%+v", info)
	}
}

func TestBreakerDoublesItsPauses(t *testing.T) {
	cfg := Config{BreakerFailures: 3, BreakerMin: time.Second, BreakerMax: 4 * time.Second}
	now := time.Unix(1e9, 0)
	var b breaker
	fail := func(of asked, want bool) {
		t.Helper()
		if !b.begin(now) {
			t.Fatal("is not to be asked")
		}
		if b.settle(of, failed, now, &cfg) != want {
			t.Errorf("opened: %v", !want)
		}
	}
	fail(reads, false)
	fail(reads, false)
	b.settle(finds, answered, now, &cfg) // says nothing of reads
	fail(reads, true)
	for _, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
		if now = now.Add(pause - 1); b.begin(now) {
			t.Fatalf("asked before %v", pause)
		}
		now = now.Add(1)
		if !b.begin(now) || b.begin(now) {
			t.Fatal("half open, one may try")
		}
		b.settle(reads, neither, now, &cfg) // its caller went away: another may
		fail(reads, true)
	}
	now = now.Add(4 * time.Second)
	if !b.begin(now) {
		t.Fatal("is not tried")
	}
	b.settle(reads, answered, now, &cfg)
	fail(reads, false)
}

func TestSuspectsAreBoundedAndForgotten(t *testing.T) {
	var s suspects
	now := time.Unix(1e9, 0)
	for tag := range uint64(2 * maxSuspects) {
		s.add(1, tag, now.Add(time.Second), now)
	}
	if len(s.at) > maxSuspects || !s.is(1, 2*maxSuspects-1, now) || s.is(2, 2*maxSuspects-1, now) {
		t.Errorf("%d are remembered", len(s.at))
	}
	now = now.Add(time.Second)
	s.add(2, 1, now.Add(time.Second), now)
	if len(s.at) != 1 || s.is(1, 2*maxSuspects-1, now) {
		t.Errorf("%d are remembered after their time", len(s.at))
	}
}

// A server answers so many requests at once, and one peer only its share of these.
func TestServerIsBounded(t *testing.T) {
	var later atomic.Int64
	began := time.Now()
	s := opened(t, options{
		cfg:    Config{Now: func() time.Time { return began.Add(time.Duration(later.Load())) }},
		server: ServerConfig{MaxRequests: 3, MaxPerPeer: 2},
	})
	server := s.sources[0].server
	for i, c := range []struct {
		peer string
		want error
	}{{"a", nil}, {"a", nil}, {"a", tier.ErrBusy}, {"b", nil}, {"c", tier.ErrBusy}} {
		if err := server.enter(c.peer); !errors.Is(err, c.want) {
			t.Errorf("%d: %v, want %v", i, err, c.want)
		}
	}
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	w := tiertest.WantOf(o)
	if _, err := s.Find(context.Background(), []tier.Want{w}); !errors.Is(err, tier.ErrBusy) {
		t.Errorf("%v, want %v", err, tier.ErrBusy)
	}
	if _, ok := s.Hint(&w); ok {
		t.Error("a hint of a peer that asked to be left alone")
	}
	server.leave("a")
	server.leave("a")
	server.leave("b")
	later.Store(int64(time.Second))
	if !tiertest.Wait(10*time.Second, func() bool {
		rows, err := s.Find(context.Background(), []tier.Want{w})
		return err == nil && rows[0] != nil
	}) {
		t.Error("it is not asked again")
	}
	if len(server.peers) != 0 {
		t.Errorf("%v are counted", server.peers)
	}
}

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	s := opened(t, options{})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	n := nameOf(o)
	n.tenant = s.names.tags[1]
	right := readRequest{name: n, pin: pinOf(descriptionOf(o)), n: 64}
	with := func(f func(*readRequest)) []byte {
		q := right
		f(&q)
		return q.append(nil)
	}
	odd := n
	odd.Kind = 77
	for _, c := range []struct {
		what, method, path string
		body               []byte
		status             int
		code               string
	}{
		{"good", "POST", ReadPath, right.append(nil), 200, ""},
		{"method", "GET", ReadPath, nil, 400, "invalid"},
		{"method of find", "PUT", FindPath, appendFind(nil, []name{n}), 400, "invalid"},
		{"path", "POST", "/peer/v9/read", nil, 501, "no_such_path"},
		{"empty", "POST", FindPath, nil, 400, "invalid"},
		{"no names", "POST", FindPath, appendFind(nil, nil), 400, "invalid"},
		{"many names", "POST", FindPath, appendFind(nil, make([]name, maxNames+1)), 400, "invalid"},
		{"kind", "POST", FindPath, appendFind(nil, []name{odd}), 400, "invalid"},
		{"short", "POST", ReadPath, right.append(nil)[1:], 400, "invalid"},
		{"long", "POST", ReadPath, append(right.append(nil), 0), 400, "invalid"},
		{"no bytes", "POST", ReadPath, with(func(q *readRequest) { q.n = 0 }), 400, "invalid"},
		{"too many bytes", "POST", ReadPath, with(func(q *readRequest) { q.n = maxRange + 1 }), 400, "invalid"},
		{"beyond the end", "POST", ReadPath, with(func(q *readRequest) { q.off = int64(len(o.Bytes[0])) - 63 }), 400, "invalid"},
		{"far beyond", "POST", ReadPath, with(func(q *readRequest) { q.off = math.MaxInt64 }), 400, "invalid"},
		{"before the start", "POST", ReadPath, with(func(q *readRequest) { q.off = -64 }), 400, "invalid"},
		{"rank", "POST", ReadPath, with(func(q *readRequest) { q.rank = 1 }), 400, "invalid"},
		{"other digests", "POST", ReadPath, with(func(q *readRequest) { q.pin[0]++ }), 412, "changed"},
		{"other key", "POST", ReadPath, with(func(q *readRequest) { q.Key[0]++ }), 404, "gone"},
		{"other tenant", "POST", ReadPath, with(func(q *readRequest) { q.tenant[0]++ }), 404, "gone"},
		{"other profile", "POST", ReadPath, with(func(q *readRequest) { q.fingerprint[0]++ }), 404, "gone"},
	} {
		var q fasthttp.Request
		var a fasthttp.Response
		q.Header.SetMethod(c.method)
		q.SetRequestURI("http://" + s.sources[0].listen.Addr().String() + c.path)
		q.SetBody(c.body)
		q.SetConnectionClose()
		client := &fasthttp.Client{Dial: func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }}
		noError(t, client.Do(&q, &a))
		client.CloseIdleConnections()
		if a.StatusCode() != c.status || c.code != "" && !strings.HasPrefix(string(a.Body()), c.code+": ") {
			t.Errorf("%s: %d %s, want %d %s", c.what, a.StatusCode(), a.Body(), c.status, c.code)
		}
	}
}

// What a peer has on disk only is promoted when it is asked for.
func TestWhatIsOnDiskIsFound(t *testing.T) {
	dir := t.TempDir()
	dev := tiertest.NewDevice(t)
	below, err := disk.Open(disk.Config{
		Dir: dir + "/tier", PublicBytes: 32 << 20, PrivateBytes: 32 << 20, SlabBytes: 8 << 20, GranuleBytes: 16 << 10, Device: dev,
		Tenants: []disk.Tenant{{ID: 1, Name: "alice"}},
	})
	noError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = below.Run(ctx) })
	t.Cleanup(func() {
		_ = below.Close()
		cancel()
		running.Wait()
	})
	s := open(t, loneTenant, options{dev: dev, server: ServerConfig{PromoteTime: time.Minute}, store: tiering.Config{Lower: below, PublicBytes: 512 << 10, PrivateBytes: 512 << 10, WriteBehind: true}})
	t.Cleanup(func() { noError(t, s.Close()) })
	var list []*tiertest.Object
	var up *tiertest.Object
	for i := range uint64(40) { // several times what memory holds
		list = append(list, tiertest.Segment(tiertest.Small, loneTenant[0], i, 200))
		if i < 6 {
			up = tiertest.Checkpoint(tiertest.Pair, loneTenant[0], i, tier.Exact, up, 30)
			list = append(list, up)
		}
	}
	for _, o := range list {
		if !tiertest.Wait(time.Minute, func() bool {
			err = s.Put(context.Background(), 0, o)
			return !errors.Is(err, tier.ErrFull) && !errors.Is(err, tier.ErrBusy)
		}) || err != nil {
			t.Fatal(err)
		}
	}
	s.sources[0].Settle()
	for _, o := range list {
		rows, err := s.Find(context.Background(), []tier.Want{tiertest.WantOf(o)})
		if err != nil || rows[0] == nil {
			t.Fatalf("%v: %v, %v", o, rows, err)
		}
		if err := o.EntryFits(rows[0].Entry()); err != nil {
			t.Error(err)
		}
		if err := tiertest.ReadCopy(context.Background(), s.memory, rows[0], o); err != nil {
			t.Error(err)
		}
	}
	if c := s.sources[0].Store.Counters(); c.PromotedBytes == 0 {
		t.Error("nothing was promoted")
	}
}

// noError ends a test at what has to work for it to go on. It costs a benchmark nothing.
func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
