package api

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// fakeNode holds what a test put in. Its fields are not changed while served.
type fakeNode struct {
	status   Status
	segments []Segment // ascending by key
	removed  chan Digest
	switched chan SwitchQuery
	busy     Digest // Remove and Segment answer ErrBusy for this key
	hang     chan struct{}
	entered  chan struct{}
	located  chan LocateQuery // what was asked; nil = nobody looks
	happened fakeEvents
}

var longAgo = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func newFake(n int) *fakeNode {
	f := &fakeNode{removed: make(chan Digest, 16), switched: make(chan SwitchQuery, 100), status: Status{
		Ready: true, Alive: true, Node: "node-1", Version: "v1", BootEpoch: 1 << 60, Started: longAgo,
		Socket: "/run/spliced/spliced.sock", Device: "host: test", Features: []string{"avx2"},
		GPUs: []GPU{
			{UUID: "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", State: GPUServing, Name: "test", Driver: "12.4", Mode: "default", MPS: "no", Way: "descriptor"},
			{UUID: "GPU-11121314-1516-1718-191a-1b1c1d1e1f20", State: GPULost, Trouble: "it was lost"},
		},
		Checks: []Check{{Name: "huge_pages", State: CheckDegraded, Detail: "none"}, {Name: "seals", State: CheckOK}},
	}}
	f.happened.tell(
		Event{At: longAgo, Kind: EventEvicted, Object: "segment", Key: &Digest{5}, Profile: 1, Tenant: "a", Model: "m", Client: "c", Bytes: 4096, Tokens: 64, Why: "for room", Policy: "gdsf", Value: 1.5, Text: "for room"},
		Event{At: longAgo, Kind: EventLost, Tenant: "a", Lost: 3, Why: LostBehind},
		Event{At: longAgo, Kind: EventRequest, Tenant: "a"},
	)
	for i := range n {
		f.segments = append(f.segments, Segment{
			Key: Digest{0: byte(i >> 8), 1: byte(i), 2: 0xee}, Profile: uint32(i % 2), Model: "m", Tenant: []string{"a", "b"}[i%2],
			State: "published", Tiers: []string{"dram", "disk"}, Level: LevelSynced, DiskBytes: 1<<20 + 8192, Role: "mid", Tokens: 512, Interior: 496, Bytes: 1 << 20,
			Publisher: "test", Created: longAgo, LastUsed: longAgo,
		})
		f.segments[i].Primer = &Digest{1, 2, byte(i)}
		f.segments[i].Packed = &Packed{PlainBytes: 1 << 20, TransitionError: 0.006, StateError: 0.009}
	}
	return f
}

func (f *fakeNode) Status() Status {
	if f.hang != nil {
		f.entered <- struct{}{}
		<-f.hang
	}
	return f.status
}

func (f *fakeNode) Profiles() []Profile {
	return []Profile{{ID: 1, Model: "m", TPSize: 1, Layers: 4, LinearLayers: 3, AttentionLayers: 1, Engines: []string{"e 1"}}}
}

func (f *fakeNode) Pools() []Pool {
	return []Pool{
		{Name: "public", Tier: "hbm", Device: "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", CapacityBytes: 1 << 30, PageBytes: 1 << 16, Tenants: []TenantPool{{Tenant: "a", UsedBytes: 1}}},
		{Name: "public", Tier: "dram", CapacityBytes: 1 << 30, PageBytes: 1 << 16, Tenants: []TenantPool{{Tenant: "a", UsedBytes: 1}}},
		{Name: "private", Tier: "dram"},
		{Name: "public", Tier: "disk", CapacityBytes: 1 << 32, PageBytes: 1 << 16},
	}
}

func (f *fakeNode) Connections() []Connection {
	return []Connection{{ID: 1, Client: "c", Device: "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", Tenants: []string{"a"}, Profiles: []uint32{1}, Since: longAgo}, {ID: 2}}
}

func (f *fakeNode) Counters() []Counter { return []Counter{{Name: "hits", Value: 1.5}} }

func (f *fakeNode) Requests(q RequestQuery) []Request {
	var out []Request
	for id := uint64(9); id > 0 && len(out) < q.Limit; id-- {
		r := f.request(id)
		if r.Spans = nil; (q.Tenant == "" || q.Tenant == r.Tenant) && (q.Profile == nil || *q.Profile == r.Profile) && (q.Way == "" || q.Way == r.Way) {
			out = append(out, r)
		}
	}
	return out
}

func (f *fakeNode) request(id uint64) Request {
	loss := 0.125
	return Request{
		ExpectedLoss: &loss,
		ID:           id, Name: "cmpl-1", At: longAgo, Tenant: []string{"a", "b"}[id%2], Profile: 1, Model: "m", Client: "c", Trace: "4bf92f3577b34da6a3ce929d0e0e4736",
		Way: WaySplice, Prompt: 100, Engine: 10, Prefix: 20, Reused: 40, Computed: 30, Seam: 8, PrefixTier: "dram", PrefixReason: "unknown",
		Bytes: 1 << 20, MatchMillis: 0.4, WaitMillis: 2, TTFTMillis: 50, SavedMillis: 70, SavedBy: SavedByPrefill, Ways: []WayCost{{WayRecompute, 120}, {WaySplice, 50}},
		Spans: []Span{
			{End: 10, From: FromEngine},
			{Begin: 10, End: 30, From: FromPrefix, Tier: "dram"},
			{Begin: 30, End: 38, From: FromComputed, Reason: "seam", Tier: "disk", Key: &Digest{7}},
			{Begin: 38, End: 78, From: FromSegment, Tier: "disk", Key: &Digest{7}},
			{Begin: 78, End: 100, From: FromComputed, Reason: "new"},
		},
	}
}

func (f *fakeNode) Request(id uint64) (*Request, error) {
	if id == 0 || id > 9 {
		return nil, ErrNotFound
	}
	r := f.request(id)
	return &r, nil
}

func (f *fakeNode) Usage() []Usage {
	return []Usage{{
		Tenant: "a", Profile: "0102030405ab", Model: "m", Requests: 9, Prompt: 900, Engine: 90, Prefix: 180, Reused: 360, Computed: 270, Seam: 72, Saved: 630, TTFTMillis: 450, TTFTRequests: 9, Since: longAgo,
		Ways: map[string]uint64{WaySplice: 9}, Missed: map[string]uint64{"seam": 72, "new": 198},
	}}
}

func (f *fakeNode) Overview(history string) *Overview {
	step := 10
	if history == HistoryDays {
		step = 300
	}
	return &Overview{
		Status: f.status, Usage: f.Usage()[0], Pools: f.Pools(), Connections: 2, Leases: 3, Segments: len(f.segments),
		History: History{StepSeconds: step, At: []int64{longAgo.Unix()}, Series: map[string][]float64{"requests": {9}}},
	}
}

func (f *fakeNode) Decisions(q DecisionQuery) []Decision {
	var out []Decision
	for _, d := range []Decision{
		{At: longAgo, What: DecidedEvicted, Why: "for room", Object: "segment", Key: &Digest{5}, Profile: 1, Tenant: "a", End: 64, Value: 1.5, Bytes: 4096},
		{At: longAgo, What: DecidedRefused, Why: "cold", Object: "checkpoint", Profile: 1, Tenant: "b", Begin: 64, End: 128},
	} {
		if q.Match(&d) && len(out) < q.Limit {
			out = append(out, d)
		}
	}
	return out
}

func (f *fakeNode) Cluster() Cluster {
	at, rtt, ahead := longAgo, 0.0005, -0.25
	return Cluster{
		Enabled: true, Name: "prod", Encrypted: true, Certificate: &at, FilesError: "keyring: no keys", Health: 1, Fetched: 1 << 40, Sent: 5,
		Join:  Join{At: &at, Tried: 2, Answered: 1, Errors: []string{"10.0.0.3: refused"}},
		Index: PeerIndex{Names: 100, Complete: 1, Bytes: 1 << 20, Refused: 1}, Own: OwnIndex{Names: 50, Version: 60, Bytes: 1 << 10},
		Rejected: []Rejected{{Address: "10.0.0.9", Since: at, Seen: at, Times: 4, Why: "its key is not in this node's keyring"}},
		Counters: []Counter{{Name: "peer_finds", Value: 3}},
		Workers:  []Worker{{Connection: 7, Profile: 1, Tenant: "default", Pieces: true, AtOnce: 2, Jobs: 3, Queued: 0.5}},
		Members: []Member{
			{Name: "node-1", Self: true, State: MemberAlive, Since: at, Gossip: "10.0.0.1:7946", Peer: "10.0.0.1:7947", TLS: true, Version: "v1", Protocol: 1, Started: at},
			{
				Name: "node-2", State: MemberAlive, Since: at, Gossip: "10.0.0.2:7946", Peer: "10.0.0.2:7947", TLS: true, Version: "v1", Protocol: 1, Started: at,
				InUse: true, RTT: &rtt, ClockAhead: &ahead, Index: &MemberIndex{Names: 8, Version: 9, Complete: true, AsOf: &at},
				Fetch: &MemberFetch{RoundTrip: 0.001, BytesPerSecond: 1e9, QueuedBytes: 4096, Reads: 1, Open: true, LeftAlone: &at},
			},
			{Name: "node-4", State: MemberFailed, Since: at, Seen: &at},
			{Name: "node-3", State: MemberAlive, Since: at, Version: "v2", Protocol: 2, Unusable: "it speaks protocol 2"},
		},
	}
}

func (f *fakeNode) ProbeObjectStore(context.Context) ObjectProbe {
	return ObjectProbe{
		Enabled: true, Endpoint: "https://s3.example.com", Bucket: "kv", Prefix: "spliced/", ClockAhead: 0.5,
		Steps: []ProbeStep{{Name: "list", Seconds: 0.01}, {Name: "write", Seconds: 0.02, Error: "denied"}},
	}
}

func (f *fakeNode) Segments(q SegmentQuery) ([]Segment, error) {
	var out []Segment
	for _, s := range f.segments {
		if q.After != nil && slices.Compare(s.Key[:], q.After[:]) <= 0 || !q.Match(s.Key, s.Tenant, s.Profile) {
			continue
		}
		if out = append(out, s); len(out) == q.Limit {
			break
		}
	}
	return out, nil
}

func (f *fakeNode) Segment(key Digest) (SegmentDetail, error) {
	for _, s := range f.segments {
		if s.Key == key {
			return SegmentDetail{Segment: s, HeadExcluded: 8, TailExcluded: 8, Extents: 2, DiskExtents: 1, Codec: "none", OtherNodes: 2, ObjectStore: true, Parts: []SegmentPart{
				{Layer: 1, Kind: "s", DType: "f32", Shape: []int{2, 4, 8}, Bytes: 256},
			}}, nil
		}
	}
	return SegmentDetail{}, ErrNotFound
}

func (f *fakeNode) Checkpoints(q CheckpointQuery) ([]Checkpoint, error) {
	parent := Digest{1}
	all := []Checkpoint{
		{Hash: Digest{1}, Model: "m", Tenant: "a", Kind: "exact", Tiers: []string{"disk"}, Level: LevelLogged, DiskBytes: 4096, Tokens: 64, Rows: 64, Children: 1, Created: longAgo, LastUsed: longAgo},
		{Hash: Digest{2}, Parent: &parent, Model: "m", Tenant: "a", Kind: "spliced", Level: LevelMemory, Tokens: 128, Rows: 64, Created: longAgo, LastUsed: longAgo},
	}
	twin := all[1]
	twin.Kind = "exact"
	all = append(all, twin)
	if q.After != nil {
		all = slices.DeleteFunc(all, func(c Checkpoint) bool { return slices.Compare(c.Hash[:], q.After[:]) <= 0 })
	}
	n := min(len(all), q.Limit)
	for 0 < n && n < len(all) && all[n].Hash == all[n-1].Hash {
		n++
	}
	return all[:n], nil
}

func (f *fakeNode) Remove(key Digest) error {
	if key == f.busy {
		return ErrBusy
	}
	f.removed <- key
	return nil
}

func (f *fakeNode) Locate(q *LocateQuery) (*Located, error) {
	if f.located != nil {
		f.located <- *q
	}
	if q.Profile == "unknown" {
		return nil, ErrNotFound
	}
	at, memory, disk := longAgo, 512, 128
	return &Located{Tokens: q.Tokens, RecomputeMillis: 60.5, Measured: true, Best: "node-2", Members: 2, ExpectedFalse: 0.01, Nodes: []LocatedNode{
		{Node: "node-2", Peer: "10.0.0.2:7947", PrefixTokens: 512, SegmentTokens: 128, Tokens: 640, Share: 0.5, SavedMillis: 30, PeerTokens: 1, SavedWithPeersMillis: 31, Complete: true, AsOf: &at},
		{Node: "node-1", Self: true, Peer: "10.0.0.1:7947", PrefixTokens: 512, SegmentTokens: 128, Tokens: 640, Share: 0.5, MemoryTokens: &memory, DiskTokens: &disk, SavedMillis: 20, SavedWithPeersMillis: 20},
	}}, nil
}

func (f *fakeNode) Canaries() []Canary {
	at, worst, loss := longAgo, 0.25, 0.125
	return []Canary{
		{Profile: f.segments[0].Key, Model: "m", Tenant: "a", Off: true, Since: &at, Why: "too far", Compared: 9, Failed: 1, Worst: &worst, Bound: 0.125, Reported: &at, Losses: []Loss{
			{Primed: true, Refreshed: true, Expected: &loss, Compared: 62, Changed: 7, OfflineCompared: 9, OfflineChanged: 1},
		}},
		{Profile: f.segments[0].Key, Model: "m", Tenant: "b"},
	}
}

func (f *fakeNode) SwitchProfile(q SwitchQuery) ([]Canary, error) {
	var out []Canary
	for _, c := range f.Canaries() {
		if c.Profile != q.Profile || q.Tenant != "" && q.Tenant != c.Tenant {
			continue
		}
		if !q.Dry {
			c.Off, c.Why = q.Off, q.Why
			f.switched <- q
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, ErrNotFound
	}
	return out, nil
}

// shown is all that a server tells of.
func (f *fakeNode) shown() Shown {
	return Shown{Node: f, Catalogue: f, Canaries: f, Control: newFakeControl()}
}

// served is a running server with both kinds of listener.
type served struct {
	tcp  string // http://127.0.0.1:port
	unix string // path of the trusted socket
	stop func() error

	server *Server
}

func serve(t *testing.T, f *fakeNode, change func(*Options)) *served {
	t.Helper()
	o := Options{Shown: f.shown(), Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(), Events: &f.happened}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	must(t, err)
	path := t.TempDir() + "/admin.sock"
	own, err := ListenUnix(path)
	must(t, err)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, Listener{Listener: own, Trusted: true}, Listener{Listener: tcp}) }()
	stopped := false
	out := &served{tcp: "http://" + tcp.Addr().String(), unix: path, server: s}
	out.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := out.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return out
}

func (s *served) client(t *testing.T, target, token string) *Client {
	t.Helper()
	c, err := NewClient(target, token)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
