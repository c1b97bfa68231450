package remote_test

import (
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/refengine"
	"github.com/spliced-kv/spliced/connector/refengine/remote"
	"github.com/spliced-kv/spliced/policy/profile"
)

// speculation decodes with drafts and keeps its rows in the daemon: the states
// behind accepted tokens come from there, never from the model.
type speculation struct {
	*testing.T
	m      *refengine.Model[float32]
	client *connector.Model
	buffer *connector.Buffer
	state  *refengine.State[float32]
}

func (s *speculation) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// verify runs drafts at once and keeps the first accepted ones.
func (s *speculation) verify(drafts []uint32, accepted int) {
	s.Helper()
	checked := s.state.Clone()
	_, rows, err := s.m.PrefillRows(checked, drafts)
	s.must(err)
	s.must(s.client.Append(s.Context(), s.buffer, len(drafts), refengine.PackRows(s.m.Profile(), rows, 0, len(drafts))))
	s.must(s.client.Accept(s.Context(), s.buffer, accepted))
	if want := s.state.Tokens + accepted; s.buffer.Accepted() != want || s.buffer.End() != want {
		s.Fatalf("accepted %d and end %d, want %d", s.buffer.Accepted(), s.buffer.End(), want)
	}
	s.state.Tokens += accepted
	for i, l := range checked.Layers {
		n := s.state.Tokens * len(l.K) / checked.Tokens
		s.state.Layers[i].K, s.state.Layers[i].V = l.K[:n:n], l.V[:n:n]
	}
	s.replayed(s.state.Tokens, s.buffer.End()-s.buffer.Begin() > 8)
}

// replayed takes the states and convolution tails behind a token out of the buffer.
func (s *speculation) replayed(token int, flush bool) {
	s.Helper()
	slot, err := s.client.Replay(s.Context(), s.buffer, &connector.ReplayQuery{Token: token, Flush: flush})
	s.must(err)
	defer slot.Release()
	bytes := slot.Bytes()
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

// equal wants the state of sequential decoding: to the bit where the compiler does
// not fuse multiply-adds.
func (s *speculation) equal(what string, got, want *refengine.State[float32]) {
	s.Helper()
	if runtime.GOARCH == "amd64" {
		if !sameState(got, want) {
			s.Fatalf("%s: not the state of sequential decoding", what)
		}
		return
	}
	for i := range want.Layers {
		for j, v := range want.Layers[i].S {
			if math.Abs(float64(got.Layers[i].S[j]-v)) > 1e-5 {
				s.Fatalf("%s: layer %d: %v, want %v", what, i, got.Layers[i].S[j], v)
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
	s := &speculation{T: t, m: m, client: r, state: one.Clone()}
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
		accepted := round * 3 % 5
		ahead, sure := one.Clone(), slices.Clone(logits)
		drafts, err := m.Decode(ahead, sure, accepted)
		s.must(err)
		for len(drafts) < 4 {
			drafts = append(drafts, uint32(7*round+len(drafts))) // wrong, or right by chance
		}
		s.verify(drafts, accepted)
		for _, token := range drafts[:accepted] {
			logits, err = m.Prefill(one, []uint32{token})
			s.must(err)
			all = append(all, token)
		}
		s.equal("round", s.state, one)
		// Any token before is there still, as far as it was not flushed.
		s.replayed(s.buffer.Begin(), false)
		s.replayed(one.Tokens, false)
		s.equal("again", s.state, one)
	}

	// What the buffer gives is saved, loaded and gone on with.
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
