package connector

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// putQuery is a middle segment of n tokens whose bytes differ everywhere.
func putQuery(t *testing.T, n int) *PutQuery {
	t.Helper()
	p := testProfile()
	spec, ok := p.MidSpec(n, 2)
	if !ok {
		t.Fatalf("%d tokens have no interior", n)
	}
	q := &PutQuery{Spec: spec, Tokens: make([]uint32, n)}
	for i := range q.Tokens {
		q.Tokens[i] = uint32(7 * i)
	}
	_, interior := spec.Interior()
	for i, part := range p.SegmentLayout(interior).Parts {
		b := make([]byte, part.Len)
		for j := range b {
			b[j] = byte(j*31 + i + j>>8)
		}
		q.Source.Parts = append(q.Source.Parts, b)
	}
	return q
}

// shelf is where a fake puts what is committed: what a daemon would publish.
type shelf struct {
	mu      sync.Mutex
	parts   [][]byte
	staging []byte
}

// serve makes f commit to the shelf.
func (s *shelf) serve(f *fake, layout profile.Layout) {
	s.staging = f.map_(f.staging, false)
	for _, p := range layout.Parts {
		s.parts = append(s.parts, make([]byte, p.Len))
	}
	left := 0
	for _, p := range layout.Parts {
		left += gpuipc.Chunks(p.Len)
	}
	f.on(wire.OpCommit, func(r *request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		m := decode[wire.CommitRequest](r)
		reply := &wire.CommitReply{}
		for i, part := range m.Parts {
			dst := s.parts[part][int(m.ChunkFirst[i])*gpuipc.ChunkBytes:]
			dst = dst[:min(len(dst), gpuipc.ChunkBytes)]
			copy(dst, s.staging[m.StagingOff[i]:])
			code, published := wire.OK, uint8(0)
			if gpuipc.DigestBytes(dst) != m.Digest[i] || m.ChunkCount[i] != 1 || m.Reservations[i] != 500 {
				code = wire.Corrupt
			}
			if left--; left == 0 {
				published = 1
			}
			reply.Codes = append(reply.Codes, uint16(code))
			reply.Published = append(reply.Published, published)
			reply.Levels = append(reply.Levels, max(uint8(wire.LevelMemory), m.Level)*published)
		}
		r.reply(reply)
	})
}

func (s *shelf) compare(t *testing.T, want [][]byte) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range want {
		if !bytes.Equal(s.parts[i], want[i]) {
			t.Errorf("part %d differs", i)
		}
	}
}

// stagingFree fails the test unless all staging of the client is free.
func stagingFree(t *testing.T, c *Client) {
	t.Helper()
	if n, _ := c.current().Staging.Unused(); n != fakeStaging {
		t.Errorf("%d bytes of staging are free, want all %d", n, fakeStaging)
	}
}

func TestPutCarriesEveryByte(t *testing.T) {
	for name, tokens := range map[string]int{"small": 20, "many chunks": 70_000} {
		for _, callback := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				f := startFake(t)
				q := putQuery(t, tokens)
				parts := q.Source.Parts
				if callback {
					q.Source = Source{Fill: func(_ profile.Part, i int, off int64, dst []byte) error {
						copy(dst, parts[i][off:])
						return nil
					}}
				}
				_, interior := q.Spec.Interior()
				var s shelf
				s.serve(f, testProfile().SegmentLayout(interior))
				f.on(wire.OpReserve, func(r *request) {
					m := decode[wire.ReserveRequest](r)
					ids := s.staging[m.TokenOff[0]:][:4*tokens]
					for i, id := range q.Tokens {
						if got := binary.LittleEndian.Uint32(ids[4*i:]); got != id {
							t.Errorf("token %d is %d, want %d", i, got, id)
							break
						}
					}
					key := testProfile().SegmentKey([]byte("salt of "), q.Spec, q.Tokens)
					if m.Keys[0] != key || m.Roles[0] != uint8(q.Spec.Role) || int(m.Heads[0]) != q.Spec.Head || int(m.Tails[0]) != q.Spec.Tail {
						t.Errorf("reserve %+v", m)
					}
					standard(r)
				})
				c := open(t, f)
				stored, err := register(t, c, Binding{}).Put(background, q)
				if want := (Stored{Published: true, Level: wire.LevelMemory}); err != nil || stored != want {
					t.Fatalf("stored %v, %v", stored, err)
				}
				s.compare(t, parts)
				if n := f.count(wire.OpCommit); tokens > 1000 && n < 3 {
					t.Errorf("%d commits", n)
				}
				stagingFree(t, c)
			})
		}
	}
}

func TestPutThatFailsIsAborted(t *testing.T) {
	corrupt := func(r *request) {
		n := len(decode[wire.CommitRequest](r).Reservations)
		reply := &wire.CommitReply{Codes: make([]uint16, n), Published: make([]uint8, n), Levels: make([]uint8, n)}
		reply.Codes[n-1] = uint16(wire.Corrupt)
		r.reply(reply)
	}
	row := func(code wire.Code) answer {
		return func(r *request) {
			r.reply(&wire.ReserveReply{Codes: []uint16{uint16(code)}, Reservations: make([]uint64, 1), Bytes: make([]uint64, 1)})
		}
	}
	published := func(level wire.Level) answer {
		return func(r *request) {
			n := len(decode[wire.CommitRequest](r).Reservations)
			reply := &wire.CommitReply{Codes: make([]uint16, n), Published: make([]uint8, n), Levels: make([]uint8, n)}
			reply.Published[n-1], reply.Levels[n-1] = 1, uint8(level)
			r.reply(reply)
		}
	}
	full := errors.New("disk on fire")
	rows := []struct {
		name   string
		op     wire.Op
		answer answer
		fill   error
		want   error
		aborts int
	}{
		{"corrupt", wire.OpCommit, corrupt, nil, ErrCorrupt, 1},
		{"gone", wire.OpCommit, refuse(wire.Gone, ""), nil, ErrGone, 1},
		{"no level", wire.OpCommit, published(wire.LevelDefault), nil, ErrUnavailable, 0},
		{"strange level", wire.OpCommit, published(wire.LevelSynced + 1), nil, ErrUnavailable, 0},
		{"missing rows", wire.OpCommit, func(r *request) { r.reply(&wire.CommitReply{}) }, nil, ErrUnavailable, 0},
		{"source", wire.OpCommit, nil, full, full, 1},
		{"exists", wire.OpReserve, row(wire.Exists), nil, ErrExists, 0},
		{"quota", wire.OpReserve, row(wire.Quota), nil, ErrQuota, 0},
		{"other size", wire.OpReserve, func(r *request) {
			r.reply(&wire.ReserveReply{Codes: []uint16{0}, Reservations: []uint64{500}, Bytes: []uint64{64}})
		}, nil, ErrInvalid, 1},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			f := startFake(t)
			f.on(row.op, row.answer)
			c := open(t, f)
			m := register(t, c, Binding{})
			q := putQuery(t, 30_000)
			if row.fill != nil {
				q.Source = Source{Fill: func(p profile.Part, i int, _ int64, _ []byte) error {
					if i == 3 {
						return row.fill
					}
					return nil
				}}
			}
			if _, err := m.Put(background, q); !errors.Is(err, row.want) {
				t.Fatalf("got %v, want %v", err, row.want)
			}
			if got := f.count(wire.OpAbort); got != row.aborts {
				t.Errorf("%d aborts, want %d", got, row.aborts)
			}
			if !errors.Is(row.want, ErrUnavailable) {
				stagingFree(t, c)
			}
		})
	}
}

func TestPutAsksForItsLevelWithEveryCommit(t *testing.T) {
	f := startFake(t)
	q := putQuery(t, 70_000)
	q.Level = wire.LevelLogged
	_, interior := q.Spec.Interior()
	var s shelf
	s.serve(f, testProfile().SegmentLayout(interior))
	commit := f.mu.answers[wire.OpCommit]
	f.on(wire.OpCommit, func(r *request) {
		if m := decode[wire.CommitRequest](r); wire.Level(m.Level) != wire.LevelLogged {
			t.Errorf("a commit asks for %v", wire.Level(m.Level))
		}
		commit(r)
	})
	stored, err := register(t, open(t, f), Binding{}).Put(background, q)
	if err != nil || stored != (Stored{Published: true, Level: wire.LevelLogged}) {
		t.Fatalf("stored %v, %v", stored, err)
	}
	if n := f.count(wire.OpCommit); n < 3 {
		t.Errorf("%d commits", n)
	}
}

func TestPutChecksItsArguments(t *testing.T) {
	_, _, m := opened(t)
	bad := map[string]func(q *PutQuery){
		"tokens":     func(q *PutQuery) { q.Tokens = q.Tokens[1:] },
		"spec":       func(q *PutQuery) { q.Spec.Head = 0 },
		"level":      func(q *PutQuery) { q.Level = wire.LevelSynced + 1 },
		"parts":      func(q *PutQuery) { q.Source.Parts = q.Source.Parts[1:] },
		"short part": func(q *PutQuery) { q.Source.Parts[0] = q.Source.Parts[0][1:] },
	}
	for name, change := range bad {
		q := putQuery(t, 20)
		change(q)
		if _, err := m.Put(background, q); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Save(background, &SaveQuery{Tokens: 5}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "hash") {
		t.Errorf("a checkpoint without a name: %v", err)
	}
	if _, err := m.Save(background, &SaveQuery{Tokens: 5, ParentTokens: 5}); !errors.Is(err, ErrInvalid) {
		t.Errorf("save: %v", err)
	}
}

func TestSourceThatPanicsLeavesNothingBehind(t *testing.T) {
	f, c, m := opened(t)
	q := putQuery(t, 70_000) // several batches
	calls := 0
	q.Source = Source{Fill: func(profile.Part, int, int64, []byte) error {
		if calls++; calls == 5 {
			panic("a bug of the engine")
		}
		return nil
	}}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is gone")
			}
		}()
		_, _ = m.Put(background, q)
	}()
	f.await(wire.OpAbort)
	stagingFree(t, c)
}

func TestLateCommitKeepsItsStaging(t *testing.T) {
	f, c, m := opened(t, func(o *Options) { o.Timeouts.Transfer = 20 * time.Millisecond })
	release := f.hold(wire.OpCommit)
	if _, err := m.Put(background, putQuery(t, 20)); !errors.Is(err, ErrLate) {
		t.Fatalf("got %v", err)
	}
	n, freed := c.current().Staging.Unused()
	if n == fakeStaging {
		t.Fatal("staging is free while the daemon may read it")
	}
	f.await(wire.OpAbort)
	release()
	<-freed
	stagingFree(t, c)
}

func TestSaveAndLoad(t *testing.T) {
	f := startFake(t)
	p := testProfile()
	layout := p.CheckpointLayout(6)
	var parts [][]byte
	for i, part := range layout.Parts {
		parts = append(parts, bytes.Repeat([]byte{byte(i + 1)}, int(part.Len)))
	}
	var s shelf
	s.serve(f, layout)
	q := &SaveQuery{Hash: profile.PrefixHash{9}, Tokens: 10, Kind: Spliced, Parent: profile.PrefixHash{8}, ParentTokens: 4, Source: Source{Parts: parts}, Level: wire.LevelSynced}
	f.on(wire.OpSave, func(r *request) {
		m := decode[wire.SaveRequest](r)
		if m.Kind != wire.AcceptSpliced || m.Hashes[0] != q.Hash || m.Parents[0] != q.Parent || m.Tokens[0] != 10 {
			t.Errorf("save %+v", m)
		}
		r.reply(&wire.ReserveReply{Codes: []uint16{0}, Reservations: []uint64{500}, Bytes: []uint64{uint64(layout.Bytes)}})
	})
	c := open(t, f)
	m := register(t, c, Binding{})
	stored, err := m.Save(background, q)
	if err != nil || stored != (Stored{Published: true, Level: wire.LevelSynced}) {
		t.Fatalf("stored %v, %v", stored, err)
	}
	s.compare(t, parts)

	if _, ok, err := m.Load(background, q.Hash, Exact, AcquireOptions{}); ok || err != nil {
		t.Fatalf("a miss is %v, %v", ok, err)
	}
	first := p.CheckpointLayout(4)
	f.on(wire.OpLoad, func(r *request) {
		l := decode[wire.LoadRequest](r)
		if l.Hash != q.Hash || l.Accept != wire.AcceptSpliced || l.TTLMs != 1500 {
			t.Errorf("load %+v", l)
		}
		r.reply(&wire.LoadReply{
			Lease: 77, Kind: wire.AcceptSpliced, Tokens: 10, NodeBegin: []uint32{0, 4}, NodeEnd: []uint32{4, 10},
			ExtentCount: []uint32{1, 1}, ExtentOff: []uint64{0, 1 << 20}, ExtentLen: []uint64{uint64(first.Bytes), uint64(layout.Bytes)},
			DigestCount: []uint32{0, 0},
		})
	})
	point, ok, err := m.Load(background, q.Hash, Spliced, AcquireOptions{TTL: 1500 * time.Millisecond})
	if !ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	defer point.Release()
	if point.Kind != Spliced || point.Tokens != 10 || len(point.Nodes) != 2 || point.Last().Begin != 4 || point.Last().Bytes() != layout.Bytes {
		t.Fatalf("%+v", point)
	}
	if b := point.Last().Part(0); int64(len(b)) != layout.Parts[0].Len {
		t.Fatalf("%d bytes", len(b))
	}
}

func TestLoadThatDoesNotJoinIsRefused(t *testing.T) {
	p := testProfile()
	n := func(rows int) uint64 { return uint64(p.CheckpointLayout(rows).Bytes) }
	good := func() *wire.LoadReply {
		return &wire.LoadReply{
			Lease: 77, Kind: wire.AcceptExact, Tokens: 10, NodeBegin: []uint32{0, 4}, NodeEnd: []uint32{4, 10},
			ExtentCount: []uint32{1, 1}, ExtentOff: []uint64{0, 1 << 20}, ExtentLen: []uint64{n(4), n(6)}, DigestCount: []uint32{0, 0},
		}
	}
	rows := map[string]func(m *wire.LoadReply){
		"gap":       func(m *wire.LoadReply) { m.NodeBegin[1] = 5 },
		"empty":     func(m *wire.LoadReply) { m.NodeEnd[0] = 0 },
		"short":     func(m *wire.LoadReply) { m.Tokens = 11 },
		"size":      func(m *wire.LoadReply) { m.ExtentLen[1] -= 64 },
		"outside":   func(m *wire.LoadReply) { m.ExtentOff[1] = fakeArena - 64 },
		"wraps":     func(m *wire.LoadReply) { m.ExtentOff[1] = 1<<64 - 64 },
		"digests":   func(m *wire.LoadReply) { m.DigestCount[0], m.Digest = 1, []uint64{5} },
		"no nodes":  func(m *wire.LoadReply) { *m = wire.LoadReply{Lease: 77} },
		"huge node": func(m *wire.LoadReply) { m.NodeEnd[1], m.Tokens = 1<<32-1, 1<<32-1 },
	}
	for name, change := range rows {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.on(wire.OpLoad, func(r *request) {
				m := good()
				change(m)
				r.reply(m)
			})
			c := open(t, f)
			m := register(t, c, Binding{})
			if _, ok, err := m.Load(background, profile.PrefixHash{}, Exact, AcquireOptions{}); ok || !errors.Is(err, ErrUnavailable) {
				t.Fatalf("%v, %v", ok, err)
			}
			if n := c.Counters(); n.Malformed != 1 {
				t.Errorf("%+v", n)
			}
		})
	}
}
