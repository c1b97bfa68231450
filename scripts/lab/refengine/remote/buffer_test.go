package remote_test

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

// speculation decodes with drafts, beside rows in the engine and in the daemon: what the
// daemon gives back of any accepted token is compared with decoding token by token.
type speculation struct {
	*testing.T
	m      *refengine.Model[float32]
	client *connector.Model
	buffer *connector.Buffer
	engine *refengine.Decoder
	state  *refengine.State[float32] // of the accepted tokens, by the daemon
}

func (s *speculation) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// verify runs a tree of drafts at once and accepts a path of it.
func (s *speculation) verify(drafts []uint32, parents, path []int) {
	s.Helper()
	_, err := s.engine.Verify(drafts, parents)
	s.must(err)
	if len(path) > 0 {
		s.must(s.client.Append(s.Context(), s.buffer, len(path), s.rows(len(drafts), path)))
	}
	s.must(s.client.Accept(s.Context(), s.buffer, len(path)))
	s.must(s.engine.Accept(path))
	if want := s.engine.Tokens(); s.buffer.Accepted() != want || s.buffer.End() != want {
		s.Fatalf("accepted %d and end %d, want %d", s.buffer.Accepted(), s.buffer.End(), want)
	}
	s.replayed(s.buffer.End(), s.flushDue())
}

// rows returns the rows of a path of the engine's drafts, as a chain.
func (s *speculation) rows(drafts int, path []int) []byte {
	all, p := s.engine.Rows(), s.m.Profile()
	from, to := p.BufferLayout(drafts), p.BufferLayout(len(path))
	out := make([]byte, to.Bytes)
	for i := range to.Parts {
		n := int(to.Parts[i].Len) / len(path)
		for row, draft := range path {
			copy(out[int(to.Parts[i].Off)+row*n:][:n], all[int(from.Parts[i].Off)+draft*n:])
		}
	}
	return out
}

// flushDue reports whether the accepted rows take as much memory as the recurrent states.
func (s *speculation) flushDue() bool {
	return s.buffer.Accepted()-s.buffer.Begin() >= max(1, s.m.Profile().RowBytes().Smaller())
}

// replayed takes the states and convolution tails behind a token out of the buffer.
func (s *speculation) replayed(token int, flush bool) {
	s.Helper()
	slot, err := s.client.Replay(s.Context(), s.buffer, &connector.ReplayQuery{Token: token, Flush: flush})
	s.must(err)
	defer slot.Release()
	bytes := slot.Bytes()
	s.state.Tokens = token
	for _, p := range s.m.Profile().CheckpointLayout(0).Parts {
		values := make([]float32, p.Len/4)
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[p.Off+int64(4*i):]))
		}
		switch p.Kind {
		case profile.PartS:
			s.state.Layers[p.Layer].S = values
		case profile.PartConv:
			s.state.Layers[p.Layer].Conv = values
		}
	}
}

// equal wants the states of sequential decoding, up to the order of sums.
func (s *speculation) equal(what string, got, want *refengine.State[float32]) {
	s.Helper()
	if got.Tokens != want.Tokens {
		s.Fatalf("%s: %d tokens, want %d", what, got.Tokens, want.Tokens)
	}
	for i := range want.Layers {
		for kind, parts := range map[string][2][]float32{
			"states": {got.Layers[i].S, want.Layers[i].S}, "tail": {got.Layers[i].Conv, want.Layers[i].Conv},
		} {
			most := 0.0
			for _, v := range parts[1] {
				most = max(most, math.Abs(float64(v)))
			}
			for j, v := range parts[1] {
				if !(math.Abs(float64(parts[0][j]-v)) <= 2e-4*most) {
					s.Fatalf("%s: layer %d %s: %v, want %v", what, i, kind, parts[0][j], v)
				}
			}
		}
	}
}

func TestDraftsInTheDaemonAreSequentialDecoding(t *testing.T) {
	socket, _ := started(t)
	client := attached(t, socket)
	for i, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, profile.F32)
			store := stored(t, client, m)
			r, err := client.Register(m.Profile(), connector.Binding{Connector: "refengine test"})
			if err != nil {
				t.Fatal(err)
			}
			prompt := text(uint64(i)+1, 40)
			decodeWithDrafts(t, m, store, r, prompt)
		})
	}
}

func decodeWithDrafts(t *testing.T, m *refengine.Model[float32], store *remote.Store, r *connector.Model, prompt []uint32) {
	one := m.NewState()
	logits, err := m.Prefill(one, prompt)
	if err != nil {
		t.Fatal(err)
	}
	s := &speculation{T: t, m: m, client: r, state: one.Clone(), engine: refengine.NewDecoder(m, one.Clone(), refengine.DecoderOptions{})}
	s.must(store.Save(prompt, []int{len(prompt)}, []*refengine.State[float32]{one.Clone()}))
	hashes, ok := r.PrefixHashes(remote.BlockTokens, prompt, []int{len(prompt)})
	if !ok {
		t.Fatal("not attached")
	}
	base, ok, err := r.Load(t.Context(), hashes[0], connector.Exact, connector.AcquireOptions{})
	if err != nil || !ok {
		t.Fatalf("load: %v, %v", ok, err)
	}
	s.buffer, err = r.OpenBuffer(t.Context(), &connector.OpenQuery{From: connector.From{Checkpoint: base}, Begin: len(prompt), Capacity: 13})
	s.must(err)
	defer s.buffer.Release()
	base.Release()

	all := slices.Clone(prompt)
	for round := range 9 {
		// The accepted path goes through a tree: at each depth a wrong draft stands before it.
		var drafts []uint32
		var parents, path []int
		last := -1
		for range round * 3 % 5 {
			sure := refengine.Greedy(logits)
			drafts, parents = append(drafts, (sure+1)%200, sure), append(parents, last, last)
			last = len(drafts) - 1
			path = append(path, last)
			all = append(all, sure)
			logits, err = m.Prefill(one, []uint32{sure})
			s.must(err)
		}
		drafts, parents = append(drafts, uint32(round)), append(parents, last) // one that is not accepted
		s.verify(drafts, parents, path)
		s.equal("round", s.state, one)
		// Any token before is there still, as far as it was not flushed.
		s.replayed(s.buffer.Begin(), false)
		s.replayed(one.Tokens, false)
		s.equal("again", s.state, one)
	}

	// What the buffer gives is saved, loaded and gone on with: as the engine goes on.
	mine := s.engine.Settle()
	s.equal("the engine", mine, one)
	for i, l := range mine.Layers {
		s.state.Layers[i].K, s.state.Layers[i].V = l.K, l.V
	}
	s.must(store.Save(all, []int{len(all)}, []*refengine.State[float32]{s.state.Clone()}))
	loaded, err := store.Load(all, []int{len(all)})
	if err != nil || loaded == nil {
		t.Fatalf("loaded %v, %v", loaded, err)
	}
	s.equal("loaded", loaded, one)
	want, err := m.Decode(one, logits, 12)
	s.must(err)
	next := refengine.Greedy(logits)
	logits, err = m.Prefill(loaded, []uint32{next})
	s.must(err)
	rest, err := m.Decode(loaded, logits, 11)
	s.must(err)
	if got := append([]uint32{next}, rest...); !slices.Equal(got, want) {
		t.Errorf("went on with %v, sequential decoding with %v", got, want)
	}
}
