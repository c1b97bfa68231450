package tiering

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestReserveRefusesWhatItsTokensDoNotName(t *testing.T) {
	b := newBench(t, hybrid(2))
	c := b.NewSession("c")
	good := b.mid(1, 64, 8)
	for _, bad := range []struct {
		name   string
		change func(*ReserveQuery)
	}{
		{"another token", func(q *ReserveQuery) { q.Tokens = tokens(2, 64) }},
		{"a token less", func(q *ReserveQuery) { q.Tokens = q.Tokens[:63] }},
		{"another geometry", func(q *ReserveQuery) { q.Spec.Head = 9 }},
		{"no interior", func(q *ReserveQuery) { q.Spec.Tail = 56 }},
		{"head shorter than the seam", func(q *ReserveQuery) { q.Spec.Head = 2 }},
		{"no such role", func(q *ReserveQuery) { q.Spec.Role = 7 }},
		{"another key", func(q *ReserveQuery) { q.Key[0]++ }},
		{"another tenant's key", func(q *ReserveQuery) { q.Tenant = tenantB }},
		{"no such tenant", func(q *ReserveQuery) { q.Tenant = 9 }},
		{"no such rank", func(q *ReserveQuery) { q.Rank = 2 }},
		{"negative rank", func(q *ReserveQuery) { q.Rank = -1 }},
		{"no such profile", func(q *ReserveQuery) { q.Profile = 9 }},
	} {
		t.Run(bad.name, func(t *testing.T) {
			q := b.reserveQuery(good, 0)
			bad.change(q)
			_, err := c.Reserve(q)
			b.wantErr(err, tier.ErrInvalid)
		})
	}
	b.wantUsed(0, 0)
	b.wantMiss(good, tier.ReasonUnknown)
}

func TestAnotherProfilesSegmentIsAMiss(t *testing.T) {
	b := newBench(t, hybrid(1))
	other := hybrid(1)
	other.Weights[1]++
	q, err := profile.New(other)
	b.must(err)
	id, err := b.AddProfile(q)
	b.must(err)
	if id == b.id {
		t.Fatal("two identities share an id")
	}
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	var r MatchResult
	b.must(b.Match(&MatchQuery{Profile: id, Tenant: tenantA, Keys: [][32]byte{p.key}}, &r))
	if r.Segments[0] != (SegmentStatus{Status: tier.StatusMiss, Reason: tier.ReasonUnknown}) {
		t.Fatalf("r.Segments[0] %v, want %v", r.Segments[0], (SegmentStatus{Status: tier.StatusMiss, Reason: tier.ReasonUnknown}))
	}
	rows, err := c.Acquire(&AcquireQuery{Profile: id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil)
	b.must(err)
	if rows[0].Hit || rows[0].Reason != tier.ReasonUnknown || rows[0].Err != nil {
		t.Fatalf("%v, want not rows[0].Hit, rows[0].Reason == tier.ReasonUnknown, rows[0].Err == nil", rows[0])
	}
}

// A commit that cannot be right is told so and changes nothing: the segment can
// still be completed.
func TestWrongCommitIsInvalidAndChangesNothing(t *testing.T) {
	b := newBench(t, profiletest.Wide(profile.F32))
	c := b.NewSession("c")
	p := b.piece(1, profile.FirstSpec(600)) // V: 3 chunks, the last of 0.34 MiB
	data := contentOf(p, 0)
	r, err := c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	k, v := p.layout.Parts[0], p.layout.Parts[1]
	whole := func(part profile.Part) []byte { return data[part.Off : part.Off+part.Len] }
	chunk := func(i int) []byte {
		d := whole(v)[i*gpuipc.ChunkBytes:]
		return d[:min(len(d), gpuipc.ChunkBytes)]
	}

	_, err = c.Commit(b.ctx, b.item(r.ID, 1, 1, chunk(1)))
	b.must(err)
	bad := map[string]CommitItem{
		"negative part":         b.item(r.ID, -1, 0, whole(k)),
		"part past the last":    b.item(r.ID, 2, 0, whole(k)),
		"short part":            b.item(r.ID, 0, 0, whole(k)[:k.Len-64]),
		"long part":             b.item(r.ID, 0, 0, append(whole(k)[:k.Len:k.Len], 0)),
		"wrong part":            b.item(r.ID, 0, 0, chunk(0)),
		"chunk past the last":   b.item(r.ID, 1, 3, chunk(0)),
		"negative chunk":        b.item(r.ID, 1, -1, chunk(0)),
		"runs past the last":    b.item(r.ID, 1, 2, whole(v)[:2*gpuipc.ChunkBytes]),
		"repeated chunk":        b.item(r.ID, 1, 1, chunk(1)),
		"overlaps a chunk":      b.item(r.ID, 1, 0, whole(v)[:2*gpuipc.ChunkBytes]),
		"digests short of data": {Reservation: r.ID, Part: 1, Digests: []uint64{1}, Src: b.stage(0, whole(v)[:2*gpuipc.ChunkBytes])},
		"no digest":             {Reservation: r.ID, Part: 1, Src: b.stage(0, nil)},
	}
	level := b.item(r.ID, 0, 0, whole(k))
	level.Level = tier.LevelSynced + 1
	bad["no such level"] = level
	for name, item := range bad {
		t.Run(name, func(t *testing.T) {
			_, err := c.Commit(b.ctx, item)
			b.wantErr(err, tier.ErrInvalid)
		})
	}
	b.wantMiss(p, tier.ReasonPending)

	_, err = c.Commit(b.ctx, b.item(r.ID, 0, 0, whole(k)))
	b.must(err)
	_, err = c.Commit(b.ctx, b.item(r.ID, 1, 2, chunk(2)))
	b.must(err)
	b.wantMiss(p, tier.ReasonPending) // one chunk is missing
	got, err := c.Commit(b.ctx, b.item(r.ID, 1, 0, chunk(0)))
	b.must(err)
	if !got.Published {
		t.Fatal("not published although complete")
	}
	row := b.acquire(c, 0, p)
	if got := b.load(gpuipc.Ref{Region: b.Arena(), Extents: row.Extents}); !bytes.Equal(got, data) {
		t.Fatal("the segment's bytes are not those committed")
	}
	want := []uint64{gpuipc.DigestBytes(whole(k)), gpuipc.DigestBytes(chunk(0)), gpuipc.DigestBytes(chunk(1)), gpuipc.DigestBytes(chunk(2))}
	if len(row.Digests) != 4 || !slices.Equal(row.Digests, want) {
		t.Fatalf("digests %x, want %x", row.Digests, want)
	}
	_, err = c.Commit(b.ctx, b.item(r.ID, 1, 0, chunk(0)))
	b.wantErr(err, tier.ErrGone)
}

func TestCanceledCommitMayBeRepeated(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	r, err := c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	data := contentOf(p, 0)
	_, err = c.Commit(ctx, b.item(r.ID, 0, 0, data[:p.layout.Parts[0].Len]))
	b.wantErr(err, context.Canceled)
	if !b.commitAll(c, r, &p.layout, data) {
		t.Fatal("not published after the commit was repeated")
	}
}
