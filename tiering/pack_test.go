package tiering

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// lenient is hybrid with heads that are worth packing, and a tolerance.
func lenient(ranks int, tolerance float64) profile.Identity {
	id := hybrid(ranks)
	id.Model, id.Tolerance = "lenient", tolerance
	for i := range id.Layers {
		if l := &id.Layers[i].Linear; id.Layers[i].Kind == profile.KindLinear {
			l.KeyDim, l.ValueDim = 48, 40
			if len(l.Conv.Channels) > 0 {
				l.Conv.Channels = []int{2 * 48, 2 * 48, 4 * 40}
			}
		}
	}
	return id
}

// near compares a packed share with what was committed: parts that are not packed to the
// byte, others as their errors say.
func (b *bench) near(p piece, rank int, packed profile.Packed, got []byte) {
	b.Helper()
	l, err := b.profile.PackedLayout(p.layoutTokens(), packed)
	b.must(err)
	if l.Bytes != int64(len(got)) {
		b.Fatalf("%d bytes, laid out in %d", len(got), l.Bytes)
	}
	want := contentOf(p, rank)
	_, state := packed.Errors()
	for i, part := range l.Parts {
		was := p.layout.Parts[i]
		bytesNow, bytesThen := got[part.Off:part.Off+part.Len], want[was.Off:was.Off+was.Len]
		if !part.Packed {
			if !bytes.Equal(bytesNow, bytesThen) {
				b.Fatalf("part %d of layer %d is another one", part.Kind, part.Layer)
			}
			continue
		}
		n := part.Shape[0] * part.Shape[1] * part.Shape[2]
		now, then := make([]float32, n), make([]float32, n)
		b.must(gpuipc.Floats(now, bytesNow, gpuipc.DType(part.DType), true, part.Shape, plan.IsRows(part.Kind)))
		b.must(gpuipc.Floats(then, bytesThen, gpuipc.DType(part.DType), false, part.Shape, plan.IsRows(part.Kind)))
		var d, sum float64
		for k := range now {
			x := float64(then[k])
			d += (float64(now[k]) - x) * (float64(now[k]) - x)
			sum += x * x
		}
		if part.Kind != profile.PartT && d > sum*float64(state)*float64(state) || d == 0 {
			b.Fatalf("part %d of layer %d: off by %v of %v, bound %v", part.Kind, part.Layer, d, sum, state)
		}
	}
}

func (p *piece) layoutTokens() int {
	_, n := p.spec.Interior()
	return n
}

func TestSegmentsArePackedOnceAndEverywhere(t *testing.T) {
	x := newTwoTiers(t, lenient(2, 0.02))
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	d, ok := x.Segment(p.key)
	transition, state := d.Packed.Errors()
	if !ok || d.Packed == "" || transition <= 0 || transition > 0.02*(1+1e-6) || state <= 0 || state > 0.02*(1+1e-6) {
		t.Fatalf("errors of %v and %v", transition, state)
	}
	if part := d.Layout.Bytes * 100 / p.layout.Bytes; part > 60 {
		t.Errorf("%d %% of the bytes are left", part)
	}
	used := x.cat.Objects.Memory.PagesOf(d.Layout.Bytes)*2 + 4*64
	x.wantUsed(used, 0)
	if n := x.Counters(); n.Packed != 1 || n.PackedAwayBytes != uint64(2*(p.layout.Bytes-d.Layout.Bytes)) || n.PublishedBytes != uint64(2*d.Layout.Bytes+4*64) {
		t.Errorf("counted %+v", n)
	}
	first := make([][]byte, 2)
	for rank := range first {
		row := x.acquire(x.c, rank, p)
		first[rank] = x.load(gpuipc.Ref{Region: x.Arena(), Extents: row.Extents})
		if row.Packed != d.Packed || row.Bytes != d.Layout.Bytes {
			t.Fatalf("leased %d bytes", row.Bytes)
		}
		x.near(p, rank, row.Packed, first[rank])
		at := 0
		for _, part := range d.Layout.Parts {
			if got := gpuipc.DigestBytes(first[rank][part.Off : part.Off+part.Len]); got != row.Digests[at] {
				t.Fatalf("part %d of layer %d has another digest", part.Kind, part.Layer)
			}
			at++ // parts here are of one chunk
		}
		x.must(x.c.Release(row.Lease))
	}

	x.push()
	x.wantUsed(0, 0)
	x.try(p)
	if n := x.carry(); n != 1 {
		t.Fatalf("%d promotions", n)
	}
	x.wantUsed(used, 0)
	for rank := range first {
		row := x.acquire(x.c, rank, p)
		if !bytes.Equal(first[rank], x.load(gpuipc.Ref{Region: x.Arena(), Extents: row.Extents})) || row.Packed != d.Packed {
			t.Fatalf("rank %d came back with other bytes", rank)
		}
		x.must(x.c.Release(row.Lease))
	}
}

// withRows packs keys and values, too, which are worth it here.
func withRows(id profile.Identity) profile.Identity {
	id.RowTolerance = 0.02
	for i := range id.Layers {
		if a := &id.Layers[i].Attention; id.Layers[i].Kind != profile.KindLinear && a.KVHeads > 0 {
			a.KeyDim, a.ValueDim = 64, 64
		}
	}
	return id
}

// Keys and values are packed like states, and no block table names them. Copies in HBM have
// them as they are read.
func TestRowsArePackedToo(t *testing.T) {
	for what, tolerance := range map[string]float64{"beside states": 0.02, "alone": 0} {
		t.Run(what, func(t *testing.T) {
			x := newTwoAndHBM(t, withRows(lenient(2, tolerance)))
			c := x.NewSession("c")
			p := x.mid(1, 64, 8)
			x.publish(c, p)
			row := x.acquire(c, 1, p)
			first := x.load(gpuipc.Ref{Region: x.Arena(), Extents: row.Extents})
			x.near(p, 1, row.Packed, first)
			l, err := x.profile.PackedLayout(p.layoutTokens(), row.Packed)
			x.must(err)
			rows := 0
			for i, part := range l.Parts {
				if plan.IsRows(part.Kind) {
					if rows++; !part.Packed || 100*part.Len > 60*p.layout.Parts[i].Len {
						t.Errorf("part %d of layer %d: %d of %d bytes, packed: %v", part.Kind, part.Layer, part.Len, p.layout.Parts[i].Len, part.Packed)
					}
				} else if part.Packed != x.profile.MayPack(&part) {
					t.Errorf("part %d of layer %d: packed: %v", part.Kind, part.Layer, part.Packed)
				}
			}
			if rows == 0 {
				t.Fatal("no rows: this shows nothing")
			}
			x.must(c.Release(row.Lease))
			x.wantReadable(c, p)

			x.push()
			x.try(p)
			x.carryAll()
			row = x.acquire(c, 1, p)
			if again := x.load(gpuipc.Ref{Region: x.Arena(), Extents: row.Extents}); !bytes.Equal(again, first) {
				t.Error("other bytes came back from below")
			}
			x.must(c.Release(row.Lease))
		})
	}
}

// wantReadable brings a segment whose rows are packed to HBM and compares the copy with what is in memory.
func (x *twoAndHBM) wantReadable(c *Session, p piece) {
	x.Helper()
	row, up := x.acquire(c, 0, p), x.raise(c, p, 0)
	if !up.Hit {
		x.Fatalf("not in HBM: %+v", up)
	}
	n := p.layoutTokens()
	here, err := x.profile.PackedLayout(n, row.Packed)
	x.must(err)
	there, err := x.profile.PackedLayout(n, up.Packed)
	x.must(err)
	a, b := x.load(gpuipc.Ref{Region: x.Arena(), Extents: row.Extents}), x.loadHBM(up.Extents)
	if there.Bytes != int64(len(b)) || there.Bytes <= here.Bytes {
		x.Fatalf("%d bytes in HBM, laid out in %d; %d in memory", len(b), there.Bytes, here.Bytes)
	}
	var digests []uint64
	for i := range here.Parts {
		from, to := &here.Parts[i], &there.Parts[i]
		want, got := a[from.Off:][:from.Len], b[to.Off:][:to.Len]
		if from.Packed && plan.IsRows(from.Kind) {
			want, err = gpuipc.UnpackRows(want, gpuipc.DType(from.DType), from.Shape[0], from.Shape[1], from.Shape[2])
			x.must(err)
		}
		if to.Packed && plan.IsRows(to.Kind) || !bytes.Equal(got, want) {
			x.Errorf("part %d of layer %d: other bytes in HBM", to.Kind, to.Layer)
		}
		digests = gpuipc.AppendDigests(digests, got)
	}
	if !slices.Equal(digests, up.Digests) {
		x.Errorf("digests %x, told %x", digests, up.Digests)
	}
	x.must(c.Release(row.Lease))
	x.must(c.Release(up.Lease))
}

// What would not be smaller, leads a prompt, or has no address here, stays as it was written.
func TestSegmentsThatAreNotPacked(t *testing.T) {
	for what, c := range map[string]struct {
		tolerance float64
		role      profile.Role
		option    option
	}{
		"nothing gained": {1e-9, profile.RoleMid, func(*Config) {}},
		"leads a prompt": {0.02, profile.RoleFirst, func(*Config) {}},
		"no address":     {0.02, profile.RoleMid, func(c *Config) { c.Device = &pinning{Device: c.Device, err: gpuipc.ErrUnavailable} }},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t, lenient(1, c.tolerance), c.option)
			s, p := b.NewSession("c"), b.mid(1, 64, 8)
			if c.role == profile.RoleFirst {
				p = b.piece(1, profile.FirstSpec(64))
			}
			b.publish(s, p)
			row := b.acquire(s, 0, p)
			if row.Packed != "" || !bytes.Equal(b.load(gpuipc.Ref{Region: b.Arena(), Extents: row.Extents})[:64], contentOf(p, 0)[:64]) {
				t.Fatal("it was packed")
			}
			b.wantUsed(b.cost(p), 0)
		})
	}
}

// A part that does not get smaller stays as it was written, and costs the others nothing.
func TestPartsThatStayAsTheyWereWritten(t *testing.T) {
	b := newBench(t, lenient(2, 3e-4))
	s, p := b.NewSession("c"), b.mid(1, 64, 8)
	b.publish(s, p)
	row := b.acquire(s, 1, p)
	l, err := b.profile.PackedLayout(p.layoutTokens(), row.Packed)
	b.must(err)
	packed := map[bool]int{}
	for _, part := range l.Parts {
		if b.profile.MayPack(&part) {
			packed[part.Packed]++
		}
	}
	if packed[true] == 0 || packed[false] == 0 {
		t.Fatalf("%d parts are packed, %d are not: this shows nothing", packed[true], packed[false])
	}
	for rank := range 2 {
		row := b.acquire(s, rank, p)
		b.near(p, rank, row.Packed, b.load(gpuipc.Ref{Region: b.Arena(), Extents: row.Extents}))
	}
}

// allButOne commits all parts of a segment but the last, and returns what commits that.
func (b *bench) allButOne(s *Session, p piece) (last CommitItem) {
	b.Helper()
	r, err := s.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	for i, part := range p.layout.Parts {
		last = b.item(r.ID, i, 0, contentOf(p, 0)[part.Off:part.Off+part.Len])
		if i < len(p.layout.Parts)-1 {
			_, err := s.Commit(b.ctx, last)
			b.must(err)
		}
	}
	return last
}

// A writer that does not wait long enough has its segment published as it was written.
func TestNoTimeForPacking(t *testing.T) {
	b := newBench(t, lenient(1, 0.02))
	s, p := b.NewSession("c"), b.mid(1, 64, 8)
	item := b.allButOne(s, p)
	ctx, cancel := context.WithCancel(b.ctx)
	got, err := s.Commit(gpuipc.WithPause(ctx, cancel), item) // who waits has gone after the first part
	if err != nil || !got.Published {
		t.Fatal(got, err)
	}
	row := b.acquire(s, 0, p)
	if row.Packed != "" || !bytes.Equal(b.load(gpuipc.Ref{Region: b.Arena(), Extents: row.Extents}), contentOf(p, 0)) {
		t.Error("it was packed")
	}
}

// What comes from elsewhere and is no packed part is no hit, whatever its digests say.
func TestRubbishThatCallsItselfPacked(t *testing.T) {
	x := newTwoTiers(t, lenient(1, 0.02))
	p := x.mid(1, 64, 8)
	x.sink(p)
	e := x.tier.entries[tier.Name{Key: p.key}]
	l, err := x.profile.PackedLayout(p.layoutTokens(), e.Packed)
	x.must(err)
	part := l.Parts[0]
	e.bytes[0][part.Off] = 99 // a form that is none
	e.content.Digests[0][0] = gpuipc.DigestBytes(e.bytes[0][part.Off : part.Off+part.Len])
	x.try(p)
	x.carry()
	if row := x.try(p); row.Hit {
		t.Error("it is a hit")
	}
	x.wantUsed(0, 0)
}

// pinning is a device whose pins fail, or wait.
type pinning struct {
	gpuipc.Device
	err    error
	pinned chan struct{} // nil = does not wait
	goOn   chan struct{}
	once   sync.Once
}

func (d *pinning) Pin(r gpuipc.Ref, write bool) ([][]byte, func(), error) {
	if d.err != nil {
		return nil, nil, d.err
	}
	if d.pinned != nil {
		d.once.Do(func() {
			close(d.pinned)
			<-d.goOn
		})
	}
	return d.Device.Pin(r, write)
}

// A segment that is aborted while it is packed is not published, and its memory is free once
// that has ended.
func TestAbortWhilePacking(t *testing.T) {
	d := &pinning{pinned: make(chan struct{}), goOn: make(chan struct{})}
	b := newBench(t, lenient(1, 0.02), func(c *Config) { d.Device, c.Device = c.Device, d })
	s, p := b.NewSession("c"), b.mid(1, 64, 8)
	item := b.allButOne(s, p)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Commit(b.ctx, item)
		ended <- err
	}()
	<-d.pinned
	b.wantMiss(p, tier.ReasonPending)
	b.must(s.Abort(item.Reservation))
	b.wantMiss(p, tier.ReasonAborted)
	b.wantUsed(b.cost(p), 0) // it is being written
	close(d.goOn)
	if err := <-ended; !errors.Is(err, tier.ErrGone) {
		t.Errorf("the commit answers %v", err)
	}
	b.wantUsed(0, 0)
	b.publish(s, p) // again
	b.wantHit(p)
}

// A device that fails costs the segment, and nothing else.
func TestDeviceThatFailsWhilePacking(t *testing.T) {
	b := newBench(t, lenient(1, 0.02), func(c *Config) { c.Device = &pinning{Device: c.Device, err: errors.New("broken")} })
	s, p := b.NewSession("c"), b.mid(1, 64, 8)
	r, err := s.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	data := contentOf(p, 0)
	for i, part := range p.layout.Parts {
		_, err = s.Commit(b.ctx, b.item(r.ID, i, 0, data[part.Off:part.Off+part.Len]))
	}
	if !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("the last commit answers %v", err)
	}
	b.wantMiss(p, tier.ReasonAborted)
	b.wantUsed(0, 0)
}

// Memory in many pieces: parts that lie in several extents are packed and moved as others.
func TestPackingInPieces(t *testing.T) {
	b := newBench(t, lenient(2, 0.02), func(c *Config) { c.PublicBytes, c.PrivateBytes = 2<<20, 4096 })
	s := b.NewSession("c")
	rng := rand.New(rand.NewPCG(1, 1))
	pieces := 0
	objects := 200
	if testing.Short() {
		objects = 60
	}
	for i := range objects { // of many sizes: what leaves makes holes
		p := b.mid(i, 40+rng.IntN(100), 8)
		b.publish(s, p)
		for rank := range 2 {
			row := b.acquire(s, rank, p)
			pieces = max(pieces, len(row.Extents))
			b.near(p, rank, row.Packed, b.load(gpuipc.Ref{Region: b.Arena(), Extents: row.Extents}))
			b.must(s.Release(row.Lease))
		}
	}
	if pieces < 2 {
		t.Error("all segments lie in one piece: this shows nothing")
	}
}

// Sessions that publish, abort and evict at once leave accounts as they are.
func TestPackingAtOnce(t *testing.T) {
	b := newBench(t, lenient(1, 0.02))
	var running sync.WaitGroup
	for w := range 4 {
		running.Go(func() {
			s := b.NewSession(fmt.Sprint(w))
			rng := rand.New(rand.NewPCG(uint64(w), 2))
			staging := b.region(fmt.Sprint("staging ", w), 1<<20)
			defer staging.Close()
			for range 30 {
				p := b.mid(rng.IntN(12), 64, 8)
				r, err := s.Reserve(b.reserveQuery(p, 0))
				if err != nil {
					_ = b.Evict(p.key)
					continue
				}
				data := contentOf(p, 0)
				for i, part := range p.layout.Parts {
					raw := data[part.Off : part.Off+part.Len]
					src := b.put(staging, 0, raw)
					_, _ = s.Commit(b.ctx, CommitItem{Reservation: r.ID, Part: i, Src: src, Digests: []uint64{gpuipc.DigestBytes(raw)}})
					if rng.IntN(60) == 0 {
						_ = s.Abort(r.ID)
					}
				}
			}
		})
	}
	running.Wait()
	b.audit()
	if b.Counters().Packed == 0 {
		t.Error("nothing was packed")
	}
}

// Copies in HBM are the bytes in memory, packed parts and their digests too.
func TestCopiesInHBMStayPacked(t *testing.T) {
	x := newTwoAndHBM(t, lenient(2, 0.02))
	p := x.mid(1, 64, 8)
	x.publish(x.c, p)
	for rank := range 2 {
		low := x.acquire(x.c, rank, p)
		row := x.raise(x.c, p, rank)
		if row.Place != tier.PlaceHBM || row.Packed == "" || row.Packed != low.Packed || row.Bytes != low.Bytes || row.Bytes >= p.layout.Bytes {
			t.Fatalf("leased %+v, in memory %+v", row, low)
		}
		if !bytes.Equal(x.loadHBM(row.Extents), x.load(gpuipc.Ref{Region: x.Arena(), Extents: low.Extents})) {
			t.Fatalf("rank %d: other bytes than in memory", rank)
		}
		if !slices.Equal(row.Digests, low.Digests) || len(row.Digests) == 0 {
			t.Errorf("rank %d: digests %x, in memory %x", rank, row.Digests, low.Digests)
		}
		x.must(x.c.Release(row.Lease))
		x.must(x.c.Release(low.Lease))
	}
}

// The kernels and the layouts, which know nothing of each other, agree on packed parts.
func TestKernelsAndLayoutsAgreeOnPackedParts(t *testing.T) {
	if kernel.PartAlign != profile.PartAlign {
		t.Errorf("heads begin on %d bytes, parts on %d", kernel.PartAlign, profile.PartAlign)
	}
	for _, shape := range [][3]int{{1, 1, 1}, {4, 48, 40}, {32, 128, 128}, {7, 33, 9}} {
		for _, d := range []profile.DType{profile.F32, profile.F16, profile.BF16} {
			part := profile.Part{Shape: shape, DType: d}
			if got, want := profile.PackedMost(&part), kernel.PackedBytes(make([]kernel.Form, shape[0]), kernel.DType(d), shape[1], shape[2]); got != int64(want) {
				t.Errorf("%v of %v: %d bytes at most, the kernel writes %d", shape, d, got, want)
			}
		}
	}
}
