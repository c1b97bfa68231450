package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// fakeStore is a Store that hands out memory of one region and counts what is held.
type fakeStore struct {
	t        testing.TB
	geometry *Geometry
	dev      *gpuipctest.Device
	memory   *Device
	region   gpuipc.Region

	mu struct {
		sync.Mutex
		next    int64
		id      tier.LeaseID
		leases  map[tier.LeaseID]Source
		held    int // and claimed
		refused error
	}
}

var errNoSuchLease = fmt.Errorf("no such lease: %w", tier.ErrGone)

// newSession is a session over a fake store, whose memory has to be back at the end.
func newSession(t *testing.T) (*Session, *fakeStore) {
	t.Helper()
	f := &fakeStore{t: t, geometry: geometry(t, hybrid(1), 4096), dev: gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})}
	var err error
	f.region, err = f.dev.NewRegion(gpuipc.RegionSpec{Name: "arena", Bytes: 16 << 20, Access: gpuipc.ClientWrites, Huge: gpuipc.HugeNever})
	must(t, err)
	f.mu.leases = map[tier.LeaseID]Source{}
	f.memory = &Device{Device: f.dev, Place: tier.PlaceDRAM}
	s := (&Runner{Memory: f.memory, Now: time.Now}).NewSession(f)
	t.Cleanup(func() {
		s.Close(tier.ErrUnavailable)
		if n := f.holds(); n != 0 {
			t.Errorf("%d holds are left", n)
		}
		if err := f.region.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, f
}

func (f *fakeStore) holds() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.held
}

// space is fresh zeroed memory.
func (f *fakeStore) space(bytes int64) gpuipc.Ref {
	f.mu.Lock()
	defer f.mu.Unlock()
	ref := gpuipc.Ref{Region: f.region, Extents: []gpuipc.Extent{{Off: f.mu.next, Len: bytes}}}
	f.mu.next += (bytes + 4095) / 4096 * 4096
	return ref
}

// lease makes something to be leased.
func (f *fakeStore) lease(src Source) tier.LeaseID {
	if src.Kind == 0 {
		src.Share = f.space(f.geometry.SegmentParts(src.End - src.Begin).Bytes)
	} else {
		src.Share = f.space(f.geometry.CheckpointParts(src.End - src.Begin).Bytes)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.id++
	f.mu.leases[f.mu.id] = src
	return f.mu.id
}

func (f *fakeStore) keep() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.held++
	var once sync.Once
	return func() {
		again := true
		once.Do(func() { again = false })
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.mu.held--; again || f.mu.held < 0 {
			f.t.Error("something was released twice")
		}
	}
}

func (f *fakeStore) Geometry(sc Scope) (*Geometry, error) {
	return f.geometry, f.geometry.CheckRank(sc.Rank)
}

func (f *fakeStore) On([]tier.LeaseID) (*Device, error) { return f.memory, nil }

func (f *fakeStore) Hold(_ Scope, leases []tier.LeaseID) (*Held, error) {
	held := &Held{On: f.memory}
	for _, id := range leases {
		f.mu.Lock()
		src, ok := f.mu.leases[id]
		f.mu.Unlock()
		if !ok {
			return nil, errNoSuchLease
		}
		held.Sources = append(held.Sources, src)
	}
	held.Release = f.keep()
	return held, nil
}

func (f *fakeStore) Admit(int) error { return nil }

func (f *fakeStore) NewID() tier.LeaseID {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.id++
	return f.mu.id
}

func (f *fakeStore) Claim(_ Scope, _ *Device, bytes int64) (*Claimed, error) {
	f.mu.Lock()
	err := f.mu.refused
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &Claimed{Memory: f.space(bytes), Release: f.keep()}, nil
}

// everything is a plan from a checkpoint over a segment, and how it is carried out in
// each way.
func (f *fakeStore) everything(s *Session) map[string]func(context.Context) error {
	from := From{Kind: FromCheckpoint, Lease: f.lease(Source{Name: tier.Name{Kind: tier.Exact}, End: 8})}
	segment := f.lease(Source{Spec: profile.SegmentSpec{Role: profile.RoleMid, Head: 4, Tail: 4, Tokens: 24}, Begin: 4, End: 20})
	pl := Plan{Begin: 8, End: 30, Spans: []Span{
		{Kind: SpanRecompute, Start: 8, Count: 4, Input: f.space(f.geometry.seamParts(profile.AllLayers).Bytes)},
		{Kind: SpanSegment, Lease: segment, Start: 12, Count: 16},
		{Kind: SpanRecompute, Start: 28, Count: 2},
	}}
	unbroken := Plan{Begin: 12, End: 30, Spans: []Span{{Kind: SpanSegment, Lease: segment, Start: 12, Count: 16}, pl.Spans[2]}}
	later := From{Kind: FromCheckpoint, Lease: f.lease(Source{Name: tier.Name{Kind: tier.Exact}, End: 12})}
	out := f.space(1 << 20)
	return map[string]func(context.Context) error{
		"compose": func(ctx context.Context) error {
			return s.Compose(ctx, &ComposeQuery{Layer: profile.AllLayers, From: from, Plan: pl, Out: out})
		},
		"rotate": func(ctx context.Context) error {
			return s.Rotate(ctx, &RotateQuery{Layer: profile.AllLayers, From: from, Plan: pl, Dest: Destination{Out: out}})
		},
		"assemble": func(ctx context.Context) error {
			return s.Assemble(ctx, &AssembleQuery{From: later, Plan: unbroken, Dest: Destination{Out: out}})
		},
	}
}

// However a plan ends, what it held is let go of, and only its success is counted.
func TestPlansLetGoOfWhatTheyHeld(t *testing.T) {
	s, f := newSession(t)
	for name, carryOut := range f.everything(s) {
		t.Run(name, func(t *testing.T) {
			failed := 0
			for _, op := range []gpuipc.Op{gpuipc.OpCompose, gpuipc.OpRotate} {
				calls := f.dev.Calls(op)
				must(t, carryOut(t.Context()))
				calls = f.dev.Calls(op) - calls
				for n := range calls {
					f.dev.Fail(op, n+1, errors.New("lost"))
					if err := carryOut(t.Context()); !errors.Is(err, tier.ErrUnavailable) {
						t.Fatalf("job %d of %d failed, the answer is %v", n, calls, err)
					}
					failed++
				}
			}
			if failed == 0 || f.holds() != 0 {
				t.Fatalf("after %d failures %d holds are left", failed, f.holds())
			}
		})
	}
	if c := s.runner.Counters(); c.Composed != 2 || c.Rotated != 2 || c.Assembled != 2 {
		t.Fatalf("%d composed, %d rotated, %d assembled", c.Composed, c.Rotated, c.Assembled)
	}
}

// openBuffer is a buffer for ten rows with four certain ones.
func (f *fakeStore) openBuffer(t *testing.T, s *Session) tier.LeaseID {
	t.Helper()
	got, err := s.Append(t.Context(), f.rows(0, 4))
	if err == nil {
		got, err = s.Accept(&AcceptQuery{Buffer: got.Buffer, Tokens: 4})
	}
	must(t, err)
	return got.Buffer
}

func (f *fakeStore) rows(buffer tier.LeaseID, n int) *AppendQuery {
	q := &AppendQuery{Buffer: buffer, Rows: n, Src: f.space(f.geometry.bufferParts(n).Bytes)}
	if buffer == 0 {
		q.Capacity = 10
	} else {
		q.Begin = 4
	}
	return q
}

// Memory of a buffer goes when it is released and nothing runs on it any more, and
// what ran has not happened. Appends go on beside replays alone.
func TestBufferInUseKeepsItsMemoryAfterRelease(t *testing.T) {
	for name, tc := range map[string]struct {
		op   gpuipc.Op
		work func(s *Session, f *fakeStore, id tier.LeaseID) error
	}{
		"append": {gpuipc.OpRotate, func(s *Session, f *fakeStore, id tier.LeaseID) error {
			_, err := s.Append(context.Background(), f.rows(id, 2))
			return err
		}},
		"replay": {gpuipc.OpReplay, func(s *Session, f *fakeStore, id tier.LeaseID) error {
			return s.Replay(context.Background(), &ReplayQuery{Buffer: id, Token: 3, Out: f.space(f.geometry.ReplayBytes())})
		}},
		"flush": {gpuipc.OpReplay, func(s *Session, f *fakeStore, id tier.LeaseID) error {
			return s.Replay(context.Background(), &ReplayQuery{Buffer: id, Token: 3, Flush: true, Out: f.space(f.geometry.ReplayBytes())})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, f := newSession(t)
			id := f.openBuffer(t, s)
			stall := f.dev.Stall(t, tc.op, 2)
			done := make(chan error, 1)
			go func() { done <- tc.work(s, f, id) }()
			stall.Await()
			if _, err := s.Append(t.Context(), f.rows(id, 1)); errors.Is(err, tier.ErrBusy) != (name != "replay") {
				t.Fatalf("an append beside it: %v", err)
			}
			if !s.ReleaseBuffer(id) || s.ReleaseBuffer(id) {
				t.Fatal("the buffer was not there, or is there still")
			}
			if f.holds() == 0 {
				t.Fatal("memory was given back under an operation")
			}
			stall.Release()
			if err := <-done; !errors.Is(err, tier.ErrGone) {
				t.Fatalf("error %v, want %v", err, tier.ErrGone)
			}
			if f.holds() != 0 {
				t.Fatalf("%d holds are left", f.holds())
			}
		})
	}
}

// A session that ends takes along its buffers and those that are being opened.
func TestSessionThatEndsHasNoBuffers(t *testing.T) {
	s, f := newSession(t)
	id := f.openBuffer(t, s)
	stall := f.dev.Stall(t, gpuipc.OpRotate, 1)
	done := make(chan error, 1)
	go func() {
		_, err := s.Append(context.Background(), f.rows(0, 1))
		done <- err
	}()
	stall.Await()
	ended := fmt.Errorf("ended: %w", tier.ErrGone)
	s.Close(ended)
	stall.Release()
	if err := <-done; !errors.Is(err, ended) {
		t.Fatalf("error %v of a buffer that was being opened", err)
	}
	if _, err := s.Accept(&AcceptQuery{Buffer: id}); !errors.Is(err, ended) {
		t.Fatalf("error %v after the end", err)
	}
	if c := s.runner.Counters(); c.Buffers != 0 || c.BuffersOpened != 1 || f.holds() != 0 {
		t.Fatalf("%d buffers, %d opened, %d holds", c.Buffers, c.BuffersOpened, f.holds())
	}
}

// A flush for which there is no memory leaves the buffer as it was.
func TestFlushWithoutRoomLosesNothing(t *testing.T) {
	s, f := newSession(t)
	id := f.openBuffer(t, s)
	q := &ReplayQuery{Buffer: id, Token: 3, Flush: true, Out: f.space(f.geometry.ReplayBytes())}
	f.mu.refused = tier.ErrFull
	if err := s.Replay(t.Context(), q); !errors.Is(err, tier.ErrFull) {
		t.Fatalf("error %v, want %v", err, tier.ErrFull)
	}
	f.mu.refused = nil
	if got, err := s.Accept(&AcceptQuery{Buffer: id}); err != nil || got.Begin != 0 || got.End != 4 {
		t.Fatalf("rows [%d, %d), %v", got.Begin, got.End, err)
	}
	must(t, s.Replay(t.Context(), q))
	if got, err := s.Accept(&AcceptQuery{Buffer: id}); err != nil || got.Begin != 3 || f.holds() != 2 {
		t.Fatalf("rows from %d on, %d holds, %v", got.Begin, f.holds(), err)
	}
}

// What is left of a segment in a layer that is a convolution alone is its tail.
func TestConvolutionsAloneAreAssembledByTheirTails(t *testing.T) {
	s, f := newSession(t)
	conv := profile.Layer{Kind: profile.KindConv, Linear: profile.Linear{
		Conv: profile.Conv{Kernel: 4, Channels: []int{24}, DType: profile.BF16},
	}}
	id := hybrid(1)
	id.Layers = []profile.Layer{conv, id.Layers[1], id.Layers[0], conv}
	f.geometry = geometry(t, id, 4096)
	segment := f.lease(Source{Spec: profile.SegmentSpec{Role: profile.RoleFirst, Tokens: 16}, End: 16})
	q := &AssembleQuery{Plan: Plan{End: 16, Spans: []Span{{Kind: SpanSegment, Lease: segment, Count: 16}}}}
	bytes, _, err := f.geometry.AssembleBytes(q)
	must(t, err)
	q.Dest.Out = f.space(bytes)
	for _, layer := range f.geometry.ConvLayers() {
		from, _ := f.geometry.SegmentParts(16).Part(layer, profile.PartConv)
		want := slices.Repeat([]byte{byte(layer + 1), 7}, int(from.Len/2))
		must(t, f.dev.Store(t.Context(), f.mu.leases[segment].Share.Slice(from.Off, from.Len), want))
	}
	must(t, s.Assemble(t.Context(), q))
	for _, layer := range f.geometry.ConvLayers() {
		part, _ := q.parts(f.geometry, 16).Part(layer, profile.PartConv)
		got := make([]byte, part.Len)
		must(t, f.dev.Load(t.Context(), got, q.Dest.Out.Slice(part.Off, part.Len)))
		if want := slices.Repeat([]byte{byte(layer + 1), 7}, len(got)/2); string(got) != string(want) {
			t.Errorf("layer %d: tail %x", layer, got)
		}
	}
	rows := &AppendQuery{Capacity: 4, Rows: 1, Src: f.space(f.geometry.bufferParts(1).Bytes)}
	if _, err := s.Append(t.Context(), rows); !errors.Is(err, tier.ErrInvalid) {
		t.Errorf("a buffer of rows that move no tail: %v", err)
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
