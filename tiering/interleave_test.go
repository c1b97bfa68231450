package tiering

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Here something happens between the two critical sections of an operation.

// later runs f on its own goroutine and hands its error over.
func later(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func TestFillThatEndsDuringACommitFreesItsPagesAfterwards(t *testing.T) {
	type ranks struct {
		c, d   *Session
		r0, r1 Reservation
	}
	for name, end := range map[string]func(b *bench, r *ranks){
		"own abort":       func(b *bench, r *ranks) { b.must(r.c.Abort(r.r0.ID)) },
		"own session":     func(_ *bench, r *ranks) { r.c.Close() },
		"other's abort":   func(b *bench, r *ranks) { b.must(r.d.Abort(r.r1.ID)) },
		"other's session": func(_ *bench, r *ranks) { r.d.Close() },
		"expiry":          func(b *bench, _ *ranks) { b.clock.advance(time.Hour); b.Sweep() },
		"other's corruption": func(b *bench, r *ranks) {
			item := CommitItem{Reservation: r.r1.ID, Digests: []uint64{1}, Src: b.stage(1<<20, make([]byte, 256))}
			item.Src.Extents[0].Len = b.profile.SegmentLayout(48).Parts[0].Len
			_, err := r.d.Commit(b.ctx, item)
			b.wantErr(err, tier.ErrCorrupt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, hybrid(2))
			r := &ranks{c: b.NewSession("rank 0"), d: b.NewSession("rank 1")}
			p := b.mid(1, 64, 8)
			var err error
			r.r0, err = r.c.Reserve(b.reserveQuery(p, 0))
			b.must(err)
			r.r1, err = r.d.Reserve(b.reserveQuery(p, 1))
			b.must(err)
			item := b.item(r.r0.ID, 0, 0, contentOf(p, 0)[:p.layout.Parts[0].Len])
			stall := b.dev.Stall(t, gpuipc.OpCopyDigests, 1)
			done := later(func() error { _, err := r.c.Commit(b.ctx, item); return err })
			stall.Await()

			end(b, r)
			b.wantMiss(p, tier.ReasonAborted)
			b.wantUsed(b.cost(p), 0)       // the copy may still write there
			again := b.NewSession("again") // the key is free at once
			b.publish(again, p)
			b.wantUsed(2*b.cost(p), 0)

			stall.Release()
			b.wantErr(<-done, tier.ErrGone)
			b.wantUsed(b.cost(p), 0)
			b.wantHit(p)
			row := b.acquire(again, 0, p)
			got := b.load(gpuipc.Ref{Region: b.Arena(), Extents: row.Extents})
			if part := p.layout.Parts[1]; !bytes.Equal(got[part.Off:part.Off+part.Len], contentOf(p, 0)[part.Off:part.Off+part.Len]) {
				t.Fatal("the late copy wrote into the new segment")
			}
		})
	}
}

func TestCommitsOfOneReservationRunAtOnce(t *testing.T) {
	b := newBench(t, profiletest.Wide(profile.F32))
	c := b.NewSession("c")
	p := b.piece(1, profile.FirstSpec(600))
	data := contentOf(p, 0)
	r, err := c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	k, v := p.layout.Parts[0], p.layout.Parts[1]
	slow := b.item(r.ID, 1, 0, data[v.Off:v.Off+v.Len])
	stall := b.dev.Stall(t, gpuipc.OpCopyDigests, 1)
	var published bool
	done := later(func() error { got, err := c.Commit(b.ctx, slow); published = got.Published; return err })
	stall.Await()
	_, err = c.Commit(b.ctx, CommitItem{Reservation: r.ID, Part: 1, ChunkFirst: 2, Digests: slow.Digests[2:], Src: slow.Src.Slice(2<<20, v.Len-2<<20)})
	b.wantErr(err, tier.ErrInvalid) // it is being written
	early, err := c.Commit(b.ctx, CommitItem{
		Reservation: r.ID, Digests: []uint64{gpuipc.DigestBytes(data[:k.Len])}, Src: b.stage(8<<20, data[:k.Len]),
	})
	b.must(err)
	b.wantMiss(p, tier.ReasonPending)
	stall.Release()
	b.must(<-done)
	if early.Published || !published {
		t.Fatalf("published by the first to end %v, by the last %v", early.Published, published)
	}
	b.wantHit(p)
}

// A writer that changes its staging while the copy runs damages only its own
// segment, and is told.
func TestStagingThatChangesDuringACommitIsCorrupt(t *testing.T) {
	b := newBench(t, profiletest.Wide(profile.F32))
	c := b.NewSession("c")
	p := b.piece(1, profile.FirstSpec(600))
	data := contentOf(p, 0)
	r, err := c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	v := p.layout.Parts[1]
	item := b.item(r.ID, 1, 0, data[v.Off:v.Off+v.Len])
	stall := b.dev.StallInside(t, gpuipc.OpCopyDigests, 1)
	done := later(func() error { _, err := c.Commit(b.ctx, item); return err })
	stall.Await() // one chunk of three is copied
	b.stage(v.Len-1, []byte{data[v.Off+v.Len-1] ^ 1})
	stall.Release()
	b.wantErr(<-done, tier.ErrCorrupt)
	b.wantMiss(p, tier.ReasonAborted)
	b.wantUsed(0, 0)
}

func TestOperationKeepsWhatItReads(t *testing.T) {
	for name, end := range map[string]func(b *bench, c *Session, p piece, id tier.LeaseID){
		"release": func(b *bench, c *Session, p piece, id tier.LeaseID) { b.must(b.Evict(p.key)); b.must(c.Release(id)) },
		"close":   func(b *bench, c *Session, p piece, _ tier.LeaseID) { c.Close(); b.must(b.Evict(p.key)) },
		"expiry": func(b *bench, c *Session, p piece, id tier.LeaseID) {
			b.clock.advance(time.Hour)
			b.Sweep()
			b.must(c.Release(id))
			b.must(b.Evict(p.key))
		},
		"pressure": func(b *bench, c *Session, _ piece, id tier.LeaseID) {
			b.must(c.Release(id))
			_, err := b.NewSession("other").Reserve(b.reserveQuery(b.mid(9, 64, 8), 0))
			b.wantErr(err, tier.ErrFull)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, hybrid(1), poolOf(1))
			c := b.NewSession("c")
			p := b.mid(1, 64, 8)
			b.publish(c, p)
			id := b.lease(c, p)
			q := b.composeOne(p, id)
			b.must(c.Plans().Compose(b.ctx, q))
			want := b.load(q.Out)
			q.Out = b.slot(4<<20, q.Out.Len())
			stall := b.dev.Stall(t, gpuipc.OpCompose, 2) // between two layers
			done := later(func() error { return c.Plans().Compose(b.ctx, q) })
			stall.Await()
			end(b, c, p, id)
			b.wantUsed(b.cost(p), 0)
			stall.Release()
			b.must(<-done)
			if !bytes.Equal(b.load(q.Out), want) {
				t.Fatal("the answer changed")
			}
			b.audit()
			if name != "pressure" {
				b.wantUsed(0, 0)
			}
		})
	}
}

func TestFailureOfTheDeviceAbortsAFill(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	broken := fmt.Errorf("a fault: %w", gpuipc.ErrUnavailable)

	r, err := c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	b.dev.Fail(gpuipc.OpCopyDigests, 1, broken)
	_, err = c.Commit(b.ctx, b.item(r.ID, 0, 0, contentOf(p, 0)[:p.layout.Parts[0].Len]))
	b.wantErr(err, tier.ErrUnavailable)
	b.wantMiss(p, tier.ReasonAborted)
	b.wantUsed(0, 0)
	if n := b.Counters().Aborted[stats.CauseDevice]; n != 1 {
		t.Fatalf("%d counted", n)
	}

	// A failure is no cancellation, even when the caller had given up as well.
	r, err = c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	b.dev.Fail(gpuipc.OpCopyDigests, 1, broken)
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	_, err = c.Commit(ended, b.item(r.ID, 0, 0, contentOf(p, 0)[:p.layout.Parts[0].Len]))
	b.wantErr(err, tier.ErrUnavailable)
	b.wantMiss(p, tier.ReasonAborted)
	b.wantErr(c.Abort(r.ID), tier.ErrGone)
}

func TestStoreCloseWaitsForOperations(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	q := b.composeOne(p, b.lease(c, p))
	stall := b.dev.Stall(t, gpuipc.OpCompose, 1)
	op := later(func() error { return c.Plans().Compose(b.ctx, q) })
	stall.Await()
	store := b.Store
	closed := later(store.Close)
	b.until("Close has begun", func() bool {
		_, err := c.Reserve(b.reserveQuery(b.mid(2, 64, 8), 0))
		return errors.Is(err, tier.ErrUnavailable)
	})
	_, err := store.NewSession("late").Load(&LoadQuery{Profile: b.id, Tenant: tenantA, Accept: tier.Exact})
	b.wantErr(err, tier.ErrUnavailable)
	select {
	case err := <-closed:
		t.Fatalf("closed under a running operation: %v", err)
	default:
	}
	stall.Release()
	b.must(<-op)
	b.must(<-closed)
	b.must(errors.Join(b.staging.Close(), b.slots.Close()))
	b.Store = nil
}
