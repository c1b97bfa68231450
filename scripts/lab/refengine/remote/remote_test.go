package remote_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

// started runs a daemon of its own for a test and returns its socket and what
// ends it.
func started(t *testing.T) (socket string, stop func()) {
	t.Helper()
	c := settings.Default()
	dir := t.TempDir()
	c.Socket, c.AdminSocket, c.HTTP = filepath.Join(dir, "s"), filepath.Join(dir, "a"), "off"
	c.Arena, c.Private, c.Staging, c.Slots = 64*settings.MiB, 64*settings.MiB, 16*settings.MiB, 16*settings.MiB
	d, err := daemon.New(c, daemon.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case <-d.Ready():
	case err := <-ended:
		t.Fatalf("daemon: %v", err)
	}
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("daemon: %v", err)
		}
	}
	t.Cleanup(stop)
	return d.Socket(), stop
}

func attached(t *testing.T, socket string) *connector.Client {
	t.Helper()
	// The machine may be busy: a late answer would read as a cache that is away.
	patient := connector.Timeouts{Lookup: 10 * time.Second, Transfer: 10 * time.Second, Attach: 10 * time.Second}
	c, err := connector.Open(connector.Options{Socket: socket, Timeouts: patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.WaitAttached(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func stored(t *testing.T, c *connector.Client, m *refengine.Model[float32]) *remote.Store {
	t.Helper()
	r, err := c.Register(m.Profile(), connector.Binding{Connector: "refengine test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return remote.New(t.Context(), c, r)
}

var families = []struct {
	name   string
	family profile.Family
	rope   profile.Rope
}{
	{"RetNet", profile.RetNet, profile.Rope{}},
	{"LightningRope", profile.Lightning, profile.Rope{Dims: 4, Theta: 100}},
	{"LightningRopePairs", profile.Lightning, profile.Rope{Dims: 6, Theta: 100, Interleaved: true}},
	{"Mamba2", profile.Mamba2, profile.Rope{}},
	{"GLA", profile.GLA, profile.Rope{}},
	{"DeltaNet", profile.DeltaNet, profile.Rope{}},
	{"GDN", profile.GDN, profile.Rope{}},
	{"KDA", profile.KDA, profile.Rope{}},
	{"GDN2", profile.GDN2, profile.Rope{}},
}

func model(t *testing.T, f profile.Family, rope profile.Rope, kv profile.DType) *refengine.Model[float32] {
	t.Helper()
	w, err := remoteWeights(f, rope, kv)
	if err != nil {
		t.Fatal(err)
	}
	m, err := refengine.New[float32](w)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func remoteWeights(f profile.Family, rope profile.Rope, kv profile.DType) (*modelfile.Weights, error) {
	l, a := profile.KindLinear, profile.KindFull
	kernel := 4
	if rope.Dims > 0 {
		kernel = 0 // as Ring has it
	}
	return modelfile.Seeded(modelfile.Config{
		Name: "remote-test", Vocab: 260, Dim: 24, Hidden: 40, Eps: 1e-6,
		Storage: modelfile.Storage{State: profile.F32, Transition: profile.F16, Conv: profile.F32, KV: kv},
		Layers:  []profile.Kind{l, l, a, l, a},
		Linear: modelfile.LinearConfig{
			Family: f, KeyHeads: 2, ValueHeads: 4, KeyDim: 6, ValueDim: 5, Kernel: kernel, Rope: rope,
		},
		Attention: modelfile.AttentionConfig{
			Heads: 4, KVHeads: 2, HeadDim: 8, Gate: true,
			Rope: profile.Rope{Dims: 4, Theta: 1000, Interleaved: rope.Interleaved},
		},
	}, 1)
}

func text(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(rng.IntN(256))
	}
	return out
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func sameState(a, b *refengine.State[float32]) bool {
	return a.Tokens == b.Tokens && slices.EqualFunc(a.Layers, b.Layers, func(x, y refengine.LayerState[float32]) bool {
		return sameBits(x.S, y.S) && sameBits(x.Conv, y.Conv) && sameBits(x.K, y.K) && sameBits(x.V, y.V)
	})
}

func serve(t *testing.T, m *refengine.Model[float32], c refengine.Cache, r refengine.Request) *refengine.Result {
	t.Helper()
	out, err := refengine.Serve(m, c, r)
	if err != nil || out.Cache != nil {
		t.Fatal(err, out.Cache)
	}
	return out
}

// The daemon's walk and the walk in memory run the same kernels in the same order
// over the same bytes.
func TestWalkThroughTheDaemonEqualsTheWalkInMemory(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	for i, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, []profile.DType{profile.BF16, profile.F16, profile.F32}[i%3])
			there, here := stored(t, client, m), refengine.NewMemory(m.Profile())
			first, query := text(1, 30), text(2, 9)
			a, b, c, short := text(3, 41), text(4, 57), text(5, 33), text(6, 15)
			from := m.NewState()
			if _, err := m.Prefill(from, first); err != nil {
				t.Fatal(err)
			}
			for name, r := range map[string]refengine.Request{
				"1 cold":                 {First: first, Mid: [][]uint32{a, b}, Query: query, Seam: 8},
				"2 warm":                 {First: first, Mid: [][]uint32{b, a}, Query: query, Seam: 8},
				"3 too short in between": {First: first, Mid: [][]uint32{b, short, a, short}, Query: query, Seam: 8},
				"4 no leading segment":   {Mid: [][]uint32{c, a, c}, Query: query, Seam: 8},
				"5 twice, no seam":       {First: first, Mid: [][]uint32{a, a}, Query: query, Seam: 0},
				"6 behind a prefix":      {Prefix: first, From: from, Mid: [][]uint32{c, a}, Query: query, Seam: 8},
				"7 nothing cached":       {Mid: [][]uint32{short}, Query: query, Seam: 8},
				"8 short, side by side":  {First: first[:1], Mid: [][]uint32{a[:1], b[:2], c[:7], a}, Query: query[:1], Seam: 0},
				"9 query alone":          {Query: query[:2], Seam: 8},
			} {
				got, want := serve(t, m, there, r), serve(t, m, here, r)
				if !sameBits(got.Logits, want.Logits) || !sameState(got.State, want.State) {
					t.Errorf("%s: differs from the walk in memory", name)
				}
				if got.Reused != want.Reused || got.Captured != want.Captured || got.Missed != want.Missed {
					t.Errorf("%s: counted %+v, in memory %+v", name, got, want)
				}
			}
		})
	}
}

func TestLeadingSegmentsShorterThanTheConvolution(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, profile.BF16)
			c := stored(t, client, m)
			for n := 1; n <= 3; n++ {
				first, query := text(1, n), text(2, 2)
				var out *refengine.Result
				for range 2 { // the second one finds the segment
					out = serve(t, m, c, refengine.Request{First: first, Query: query, Seam: 8})
				}
				if out.Reused != n {
					t.Errorf("reused %d of %d tokens", out.Reused, n)
				}
				checkpoint := m.NewState()
				if _, err := m.Prefill(checkpoint, first); err != nil {
					t.Fatal(err)
				}
				want, err := m.Prefill(checkpoint, query)
				if err != nil {
					t.Fatal(err)
				}
				if !sameBits(out.Logits, want) || !sameState(out.State, checkpoint) {
					t.Errorf("%d tokens: differs from prefix caching", n)
				}
			}
		})
	}
}

func TestPublishedBytesAreThoseInMemory(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.BF16)
	there, here := stored(t, attached(t, socket), m), refengine.NewMemory(m.Profile())
	segment := text(1, 70)
	spec, _ := m.Profile().MidSpec(70, 8)
	for _, c := range []refengine.Cache{there, here} {
		serve(t, m, c, refengine.Request{First: text(2, 20), Mid: [][]uint32{segment}, Query: text(3, 5), Seam: 8})
	}
	key := there.Key(spec, segment)
	l, held, err := there.Acquire([]profile.SegmentKey{key}, []profile.SegmentSpec{spec})
	if err != nil || !held[0] {
		t.Fatal(held, err)
	}
	defer l.Release()
	if !bytes.Equal(l.Packed(0).Bytes, here.Bytes(here.Key(spec, segment))) {
		t.Error("published bytes differ")
	}
	segments, checkpoints, err := there.HeldBytes()
	if err != nil || segments < int64(len(l.Packed(0).Bytes)) || checkpoints != 0 {
		t.Errorf("holds %d and %d bytes, %v", segments, checkpoints, err)
	}
}

func TestPrefixesThroughTheDaemonAreExact(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, profile.BF16)
			c := stored(t, client, m)
			shared := text(1, 90)
			for i, want := range []struct {
				prompt []uint32
				reused int
			}{
				{slices.Concat(shared, text(2, 40)), 0},
				{slices.Concat(shared, text(3, 50)), 90},
				{slices.Concat(shared[:60], text(4, 50)), 60},
				{slices.Concat(shared, text(2, 40)), 100},
			} {
				out, err := refengine.ServePrefix(m, c, want.prompt, []int{30, 60, 90, 100})
				if err != nil || out.Cache != nil {
					t.Fatal(err, out.Cache)
				}
				if err := out.Keep(); err != nil {
					t.Fatal(err)
				}
				full := m.NewState()
				logits, err := m.Prefill(full, want.prompt)
				if err != nil {
					t.Fatal(err)
				}
				if out.Reused != want.reused {
					t.Errorf("request %d reused %d tokens, want %d", i, out.Reused, want.reused)
				}
				if !sameBits(out.Logits, logits) || !sameState(out.State, full) {
					t.Errorf("request %d differs from a full prefill", i)
				}
			}
		})
	}
}

// A prefix that the daemon holds is composed from by reference, one that it does
// not hold goes along: both must give the same bits.
func TestSegmentsBehindASavedPrefix(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, profile.BF16)
			c := stored(t, client, m)
			prefix := text(1, 45)
			r := refengine.Request{Prefix: prefix, Mid: [][]uint32{text(2, 50), text(3, 60)}, Query: text(4, 9), Seam: 8, From: m.NewState()}
			if _, err := m.Prefill(r.From, prefix); err != nil {
				t.Fatal(err)
			}
			want := serve(t, m, c, r)
			if err := c.Save(prefix, []int{45}, []*refengine.State[float32]{r.From}); err != nil {
				t.Fatal(err)
			}
			var err error
			if r.From, err = c.Load(prefix, []int{45}); err != nil || r.From == nil {
				t.Fatal(err)
			}
			if !fromSaved(t, m, c, r) {
				t.Error("the saved prefix was sent along")
			}
			got := serve(t, m, c, r)
			if !sameBits(got.Logits, want.Logits) || !sameState(got.State, want.State) {
				t.Error("differs from the same prefix sent along")
			}
		})
	}
}

// fromSaved says whether a request behind a prefix begins at a checkpoint that
// the daemon holds.
func fromSaved(t *testing.T, m *refengine.Model[float32], c *remote.Store, r refengine.Request) bool {
	t.Helper()
	l, _, err := c.Acquire(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	plan, err := refengine.MakePlan(len(r.Prefix), nil, len(r.Query))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Source(m, plan, r.Prefix, r.From); err != nil {
		t.Fatal(err)
	}
	return remote.FromSaved(l)
}

// Somebody keeps a spliced checkpoint of the same tokens. A request that brings
// its exact state must not begin there.
func TestAnExactPrefixIsNotServedFromASplicedCheckpoint(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	m := model(t, profile.GDN, profile.Rope{}, profile.BF16)
	c := stored(t, client, m)
	prefix := text(1, 45)
	r := refengine.Request{Prefix: prefix, Mid: [][]uint32{text(2, 50), text(3, 60)}, Query: text(4, 9), Seam: 8, From: m.NewState()}
	if _, err := m.Prefill(r.From, prefix); err != nil {
		t.Fatal(err)
	}
	want := serve(t, m, refengine.NewMemory(m.Profile()), r)
	other, err := client.Register(m.Profile(), connector.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	hashes, _ := other.PrefixHashes(64, prefix, []int{45})
	if _, err := other.Save(t.Context(), &connector.SaveQuery{
		Hash: hashes[0], Tokens: 45, Kind: connector.Spliced,
		Source: connector.Source{Fill: func(_ profile.Part, _ int, _ int64, dst []byte) error { clear(dst); return nil }},
	}); err != nil {
		t.Fatal(err)
	}
	spliced, ok, err := other.Load(t.Context(), hashes[0], connector.Spliced, connector.AcquireOptions{})
	if !ok || err != nil {
		t.Fatal("the spliced checkpoint is not held", err)
	}
	spliced.Release()
	got := serve(t, m, c, r)
	if !sameBits(got.Logits, want.Logits) || !sameState(got.State, want.State) {
		t.Error("an exact prefix was served from somebody's spliced state")
	}
}

// The other way round: the daemon holds the exact states of the tokens, and the
// request goes on from a splice of them.
func TestASplicedPrefixIsNotServedFromAnExactCheckpoint(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.KDA, profile.Rope{}, profile.BF16)
	c, here := stored(t, attached(t, socket), m), refengine.NewMemory(m.Profile())
	turn := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 50)}, Query: text(3, 9), Seam: 8}
	next := refengine.Request{Prefix: turn.Prompt(), Mid: [][]uint32{text(4, 60)}, Query: text(5, 9), Seam: 8}
	next.From = serve(t, m, here, turn).State
	want := serve(t, m, here, next)
	exact := m.NewState()
	if _, err := m.Prefill(exact, next.Prefix); err != nil {
		t.Fatal(err)
	}
	if sameState(exact, next.From) {
		t.Fatal("the splice equals a full prefill: nothing is compared")
	}
	if err := c.Save(next.Prefix, []int{len(next.Prefix)}, []*refengine.State[float32]{exact}); err != nil {
		t.Fatal(err)
	}
	got := serve(t, m, c, next)
	if !sameBits(got.Logits, want.Logits) || !sameState(got.State, want.State) {
		t.Error("a spliced prefix was served from the exact state of its tokens")
	}
}

// What a splice left behind, and what was computed on top of it, is kept as
// spliced: whoever asks for exact checkpoints does not get it.
func TestSplicedStatesAreSavedAsSpliced(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	m := model(t, profile.GDN, profile.Rope{}, profile.BF16)
	c := stored(t, client, m)
	r := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 50)}, Query: text(3, 9), Seam: 8}
	first := refengine.Request{First: text(1, 30), Query: text(4, 9), Seam: 8}
	if serve(t, m, c, first).State.Spliced {
		t.Error("reuse of a leading segment is exact, yet its state is marked")
	}
	st := serve(t, m, c, r).State
	next := refengine.Request{Prefix: r.Prompt(), Query: text(5, 5), Seam: 8, From: st}
	for _, held := range []struct {
		prompt []uint32
		state  *refengine.State[float32]
	}{{r.Prompt(), st}, {next.Prompt(), serve(t, m, c, next).State}} {
		n := len(held.prompt)
		if !held.state.Spliced || !held.state.Clone().Spliced {
			t.Fatalf("the state of %d tokens is not marked", n)
		}
		if err := c.Save(held.prompt, []int{n}, []*refengine.State[float32]{held.state}); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Load(held.prompt, []int{n}); err != nil || got != nil {
			t.Errorf("a spliced state of %d tokens was loaded as exact (%v)", n, err)
		}
	}
	info, err := client.Register(m.Profile(), connector.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	if err := info.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	hashes, _ := info.PrefixHashes(64, r.Prompt(), []int{len(r.Prompt())})
	kept, ok, err := info.Load(t.Context(), hashes[0], connector.Spliced, connector.AcquireOptions{})
	if err != nil || !ok {
		t.Fatal("the spliced state is not held as such", err)
	}
	kept.Release()
}

// losing is a cache that loses one segment between match and acquire.
type losing struct {
	refengine.Cache
	key profile.SegmentKey
}

func (l losing) Acquire(keys []profile.SegmentKey, specs []profile.SegmentSpec) (refengine.Leases, []bool, error) {
	leases, held, err := l.Cache.Acquire(keys, specs)
	for i := range held {
		held[i] = held[i] && keys[i] != l.key
	}
	return leases, held, err
}

// Behind a private prefix, sent along or saved, a segment that is gone from the
// middle is computed in context.
func TestMissingMiddleSegmentBehindAPrivatePrefix(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, profile.BF16)
			there, here := stored(t, client, m), refengine.NewMemory(m.Profile())
			gone := text(3, 33)
			spec, _ := m.Profile().MidSpec(len(gone), 8)
			r := refengine.Request{
				Prefix: text(1, 45), Mid: [][]uint32{text(2, 41), gone, text(4, 57)}, Query: text(5, 2), Seam: 8, From: m.NewState(),
			}
			if _, err := m.Prefill(r.From, r.Prefix); err != nil {
				t.Fatal(err)
			}
			want := serve(t, m, losing{here, here.Key(spec, gone)}, r)
			if recomputed := 8 + (8 + 33 + 8) + 8 + 2; want.Recomputed != recomputed {
				t.Fatalf("recomputed %d tokens, want %d", want.Recomputed, recomputed)
			}
			for _, saved := range []bool{false, true} {
				if saved {
					if err := there.Save(r.Prefix, []int{45}, []*refengine.State[float32]{r.From}); err != nil {
						t.Fatal(err)
					}
				}
				if fromSaved(t, m, there, r) != saved {
					t.Errorf("prefix saved: %v", !saved)
				}
				got := serve(t, m, losing{there, there.Key(spec, gone)}, r)
				if !sameBits(got.Logits, want.Logits) || !sameState(got.State, want.State) || got.Recomputed != want.Recomputed {
					t.Errorf("differs from the walk in memory, prefix saved: %v", saved)
				}
			}
		})
	}
}

func TestADaemonThatGoesAwayCostsOnlyTheReuse(t *testing.T) {
	socket, stop := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.BF16)
	c := stored(t, attached(t, socket), m)
	r := refengine.Request{First: text(1, 30), Mid: [][]uint32{text(2, 50)}, Query: text(4, 9), Seam: 8}
	serve(t, m, c, r)
	stop()
	out, err := refengine.Serve(m, c, r)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(out.Cache, connector.ErrUnavailable) {
		t.Errorf("error %v", out.Cache)
	}
	full := m.NewState()
	want, err := m.Prefill(full, r.Prompt())
	if err != nil {
		t.Fatal(err)
	}
	if !sameBits(out.Logits, want) || out.Recomputed != len(r.Prompt()) {
		t.Error("differs from a full prefill")
	}
}
