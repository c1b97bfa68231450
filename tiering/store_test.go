package tiering

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

const (
	tenantA tier.TenantID = 1
	tenantB tier.TenantID = 2
)

// hybrid has every kind of layer.
func hybrid(ranks int) profile.Identity { return profiletest.Hybrid(ranks) }

// clock is a time that tests move.
type clock struct{ now time.Time }

func newClock() *clock                   { return &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }
func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// bench is a store over the host device with one profile, and staging.
type bench struct {
	testing.TB
	*Store
	clock   *clock
	dev     *gpuipctest.Device
	profile *profile.Profile
	id      tier.ProfileID
	staging gpuipc.Region
	slots   gpuipc.Region
	commits gpuipc.Region // staging, always of the host
	ctx     context.Context

	acc   gpuipc.Accelerator // of a store with HBM
	above bool               // plans run there: staging, slots and engine memory are its regions
}

type option func(*Config)

func newBench(t testing.TB, id profile.Identity, options ...option) *bench {
	t.Helper()
	b := &bench{TB: t, clock: newClock(), ctx: context.Background(), dev: gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})}
	cfg := Config{
		PublicBytes: 8 << 20, PrivateBytes: 8 << 20, PageBytes: 4096, Now: b.clock.Now, Eviction: policy.NewLRU,
		Tenants: []Tenant{{ID: tenantA, Name: "a", Salt: []byte("salt a")}, {ID: tenantB, Name: "b", Salt: []byte("salt b")}},
	}
	cfg.Device = b.dev
	cfg.Held = held.New()
	for _, o := range options {
		o(&cfg)
	}
	var err error
	if b.Store, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	if b.profile, err = profile.New(id); err != nil {
		t.Fatal(err)
	}
	if b.id, err = b.AddProfile(b.profile); err != nil {
		t.Fatal(err)
	}
	b.staging = b.region("staging", 16<<20)
	b.slots = b.region("slots", 16<<20)
	b.commits = b.staging
	if len(cfg.HBM) > 0 {
		b.acc = cfg.HBM[0].Device
	}
	t.Cleanup(func() {
		if b.Store == nil {
			return // the test has closed it
		}
		if !b.lockIsFree() {
			b.Error("the store's lock is held: something has panicked under it")
			return
		}
		b.audit()
		if err := errors.Join(b.staging.Close(), b.slots.Close(), b.Store.Close()); err != nil {
			t.Error(err)
		}
		if b.commits != b.staging {
			b.must(b.commits.Close())
		}
	})
	return b
}

// lockIsFree tells whether the store's lock can be had. Nothing holds it for long.
func (b *bench) lockIsFree() bool {
	for deadline := time.Now().Add(10 * time.Second); !b.cat.Mu.TryLock(); {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	b.cat.Mu.Unlock()
	return true
}

func (b *bench) region(name string, bytes int64) gpuipc.Region {
	b.Helper()
	dev := gpuipc.Device(b.dev)
	if b.above {
		dev = b.acc
	}
	r, err := dev.NewRegion(gpuipc.RegionSpec{Name: name, Bytes: bytes, Access: gpuipc.ClientWrites, Huge: gpuipc.HugeNever})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) wantErr(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("error %v, want %v", err, want)
	}
}

// stage writes bytes to staging and names them.
func (b *bench) stage(off int64, data []byte) gpuipc.Ref {
	b.Helper()
	return b.put(b.staging, off, data)
}

func (b *bench) put(r gpuipc.Region, off int64, data []byte) gpuipc.Ref {
	b.Helper()
	ref := gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Off: off, Len: int64(len(data))}}}
	b.must(b.deviceOf(r).Store(b.ctx, ref, data))
	return ref
}

// deviceOf is the device that a region is of.
func (b *bench) deviceOf(r gpuipc.Region) gpuipc.Device {
	if _, shared := r.(gpuipc.SharedRegion); shared {
		return b.acc
	}
	return b.dev
}

// slot names a fresh, zeroed run of the slots region.
func (b *bench) slot(off, bytes int64) gpuipc.Ref {
	b.Helper()
	return b.put(b.slots, off, make([]byte, bytes))
}

func (b *bench) load(ref gpuipc.Ref) []byte {
	b.Helper()
	out := make([]byte, ref.Len())
	b.must(b.deviceOf(ref.Region).Load(b.ctx, out, ref))
	return out
}

// loadShare reads a share that may have holes, of which it makes zeros.
func (b *bench) loadShare(extents []gpuipc.Extent) (out []byte) {
	b.Helper()
	for _, e := range extents {
		if e.Off == objects.Hole {
			out = append(out, make([]byte, e.Len)...)
			continue
		}
		out = append(out, b.load(gpuipc.Ref{Region: b.Arena(), Extents: []gpuipc.Extent{e}})...)
	}
	return out
}

func holesOf(extents []gpuipc.Extent) (bytes int64) {
	for _, e := range extents {
		if e.Off == objects.Hole {
			bytes += e.Len
		}
	}
	return bytes
}

// tokens are n ids that depend on the seed.
func tokens(seed, n int) []uint32 {
	rng := rand.New(rand.NewPCG(uint64(seed), 7))
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = rng.Uint32N(256)
	}
	return ids
}

// content is plausible values for every part of a layout: numbers in [-1, 1),
// transitions in (0, 1). The race detector would take longer over it than over what it is for.
//
//go:norace
func content(l *profile.Layout, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 9))
	out := make([]byte, l.Bytes)
	for _, part := range l.Parts {
		p := out[part.Off : part.Off+part.Len]
		for i := 0; i < len(p); i += part.DType.Size() {
			v := 2*rng.Float32() - 1
			if part.Kind == profile.PartT {
				v = rng.Float32() / 4
			}
			putFloat(p[i:], part.DType, v)
		}
	}
	return out
}

func putFloat(p []byte, t profile.DType, v float32) {
	switch t {
	case profile.F32:
		binary.LittleEndian.PutUint32(p, math.Float32bits(v))
	case profile.BF16:
		binary.LittleEndian.PutUint16(p, uint16(math.Float32bits(v)>>16))
	case profile.F16:
		bits := math.Float32bits(v)
		exp := int(bits>>23&0xff) - 127 + 15
		if exp <= 0 {
			binary.LittleEndian.PutUint16(p, uint16(bits>>16&0x8000))
			return
		}
		binary.LittleEndian.PutUint16(p, uint16(bits>>16&0x8000)|uint16(exp)<<10|uint16(bits>>13&0x3ff))
	}
}

func getFloat(p []byte, t profile.DType) float64 {
	switch t {
	case profile.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(p)))
	case profile.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(p)) << 16))
	}
	h := binary.LittleEndian.Uint16(p)
	v := math.Ldexp(1+float64(h&0x3ff)/1024, int(h>>10&31)-15)
	if h>>10&31 == 0 {
		v = math.Ldexp(float64(h&0x3ff), -24)
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return v
}

// part reads one part of a layout's bytes as numbers.
func numbers(l *profile.Layout, data []byte, i int) []float64 {
	part := l.Parts[i]
	size := part.DType.Size()
	out := make([]float64, part.Len/int64(size))
	for k := range out {
		out[k] = getFloat(data[int(part.Off)+k*size:], part.DType)
	}
	return out
}

// piece is one segment of the tests.
type piece struct {
	key    profile.SegmentKey
	spec   profile.SegmentSpec
	tokens []uint32
	layout profile.Layout
}

func (b *bench) piece(seed int, spec profile.SegmentSpec) piece {
	return b.pieceOf(tenantA, seed, spec)
}

func (b *bench) pieceOf(t tier.TenantID, seed int, spec profile.SegmentSpec) piece {
	ids := tokens(seed, spec.Tokens)
	_, interior := spec.Interior()
	return piece{
		key: b.profile.SegmentKey(b.cat.Objects.Tenants[t].Salt, spec, ids), spec: spec, tokens: ids,
		layout: b.profile.SegmentLayout(interior),
	}
}

func (b *bench) mid(seed, n, w int) piece {
	b.Helper()
	spec, ok := b.profile.MidSpec(n, w)
	if !ok {
		b.Fatalf("no interior in %d tokens with seams of %d", n, w)
	}
	return b.piece(seed, spec)
}

func (b *bench) reserveQuery(p piece, rank int) *ReserveQuery {
	return &ReserveQuery{Profile: b.id, Tenant: tenantA, Rank: rank, Key: p.key, Spec: p.spec, Tokens: p.tokens}
}

// contentOf is what the tests publish as one rank's share of a segment.
func contentOf(p piece, rank int) []byte {
	return content(&p.layout, uint64(p.key[0])<<8|uint64(p.key[1])|uint64(rank)<<32)
}

// commitAll commits every chunk of a share, one part at a time.
func (b *bench) commitAll(c *Session, r Reservation, l *profile.Layout, data []byte) (published bool) {
	b.Helper()
	for i, part := range l.Parts {
		if part.Len == 0 {
			continue
		}
		got, err := c.Commit(b.ctx, b.item(r.ID, i, 0, data[part.Off:part.Off+part.Len]))
		b.must(err)
		published = got.Published
	}
	return published
}

// item stages bytes of a part from a chunk on, with their digests.
func (b *bench) item(r tier.ReservationID, part, chunk int, data []byte) CommitItem {
	b.Helper()
	item := CommitItem{Reservation: r, Part: part, ChunkFirst: chunk, Src: b.put(b.commits, 0, data)}
	for len(data) > 0 {
		n := min(len(data), gpuipc.ChunkBytes)
		item.Digests = append(item.Digests, gpuipc.DigestBytes(data[:n]))
		data = data[n:]
	}
	return item
}

// publish fills a segment for all ranks through one session.
func (b *bench) publish(c *Session, p piece) {
	b.Helper()
	b.publishFor(c, tenantA, p)
}

func (b *bench) publishFor(c *Session, t tier.TenantID, p piece) {
	b.Helper()
	for rank := range b.profile.TPSize() {
		q := b.reserveQuery(p, rank)
		q.Tenant = t
		r, err := c.Reserve(q)
		b.must(err)
		if published := b.commitAll(c, r, &p.layout, contentOf(p, rank)); published != (rank == b.profile.TPSize()-1) {
			b.Fatalf("rank %d of %d: published %v", rank, b.profile.TPSize(), published)
		}
	}
}

func (b *bench) acquire(c *Session, rank int, p piece) Acquired {
	b.Helper()
	rows, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Rank: rank, Digests: true, Keys: [][32]byte{p.key}}, nil)
	b.must(err)
	b.must(rows[0].Err)
	return rows[0]
}

func (b *bench) lease(c *Session, p piece) tier.LeaseID {
	b.Helper()
	row := b.acquire(c, 0, p)
	if b.above {
		row = b.raise(c, p, 0)
	}
	if !row.Hit {
		b.Fatalf("segment %x is a miss: %v", p.key[:4], row.Reason)
	}
	return row.Lease
}

// status asks for one segment.
func (b *bench) status(p piece) SegmentStatus { return b.statusFor(tenantA, p) }

func (b *bench) statusFor(t tier.TenantID, p piece) SegmentStatus {
	b.Helper()
	var r MatchResult
	b.must(b.Match(&MatchQuery{Profile: b.id, Tenant: t, Keys: [][32]byte{p.key}, Device: b.reads()}, &r))
	return r.Segments[0]
}

func (b *bench) wantMiss(p piece, why tier.Reason) {
	b.Helper()
	want := SegmentStatus{Status: tier.StatusMiss, Reason: why}
	if why == tier.ReasonPending {
		want.Status = tier.StatusPending
	}
	if got := b.status(p); got != want {
		b.Fatalf("segment %x: got %v, want %v", p.key[:4], got, want)
	}
}

func (b *bench) wantHit(p piece) {
	b.Helper()
	_, n := p.spec.Interior()
	got := b.status(p)
	want := SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDRAM, Tokens: uint32(n)}
	if d, ok := b.Segment(p.key); ok {
		want.Error = min(float64(max(d.Packed.Errors())), b.profile.MaxError())
	}
	if got != want {
		b.Fatalf("segment %x: got %v, want %v", p.key[:4], got, want)
	}
}

// wantUsed checks how many bytes of pages each pool holds, and that pages and
// accounts agree.
func (b *bench) wantUsed(public, private int64) {
	b.Helper()
	b.audit()
	pools := b.Pools()
	if pools[0].UsedBytes != public || pools[1].UsedBytes != private {
		b.Fatalf("pools use %d and %d bytes, want %d and %d", pools[0].UsedBytes, pools[1].UsedBytes, public, private)
	}
}

// cost is what a segment takes of its pool.
func (b *bench) cost(p piece) int64 {
	return b.cat.Objects.Memory.PagesOf(p.layout.Bytes)*int64(b.profile.TPSize()) + 4*int64(len(p.tokens))
}

// audit recomputes every account from the objects themselves.
func (b *bench) audit() {
	b.Helper()
	s := b.Store
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	if err := s.auditLocked(); err != nil {
		b.Fatal(err)
	}
}

func (s *Store) auditLocked() error {
	type account struct {
		used, pinned int64
		bytes        [objects.Classes]int64
		objects      int
		offloading   int64
		pools        []int64 // of a tenant: used, by pool
	}
	pools := make([]account, len(s.allPools()))
	tenants := map[*objects.Tenant]*account{}
	for _, t := range s.cat.Objects.Tenants {
		tenants[t] = &account{pools: make([]int64, len(pools))}
	}
	children, inMemory := map[*objects.Object]int{}, map[*objects.Tenant]int{}
	found := 0
	linked, ranked, ids := 0, make([]int, len(pools)), int64(0)
	kids, candidates := map[*objects.Object]policy.ID{}, map[policy.ID]bool{}
	needed := map[*objects.Object]bool{} // their states, for rows
	for _, o := range s.cat.Objects.Table.Places() {
		if o != nil && o.Parent != nil && o.Kind == tier.Rows {
			needed[o.Parent] = true
			if o.Parent.Phase == objects.Stripped {
				return fmt.Errorf("%s: rows behind %s, which is stripped", o.Name(), o.Parent.Name())
			}
		}
	}
	for _, o := range s.cat.Objects.Table.Places() {
		if o == nil {
			continue
		}
		if o.Class != o.Classify() {
			return fmt.Errorf("%s: class %d, should be %d", o.Name(), o.Class, o.Classify())
		}
		if o.Parent != nil {
			children[o.Parent]++
			kids[o.Parent] ^= o.ID
		}
		if o.Linked() && !o.InHBM() {
			linked++
		}
		if o.Kind == 0 && o.Published() && !o.InHBM() && o.Hash != (profile.SegmentHash{}) {
			found++
		}
		if err := s.auditExtents(o); err != nil {
			return err
		}
		if o.Linked() && o.Published() && o.Phase != objects.Stripped {
			ranked[o.Pool.Number]++
			if !o.InHBM() {
				inMemory[o.Tenant]++
			}
			if may := !needed[o] && o.StatePages > 0 && o.Write == nil && !o.Corrupt && (s.cat.Config.Lower == nil || o.Stored != 0); o.Pins == 0 && (o.Children == 0 || o.Children == 1 && may) {
				candidates[o.ID] = true
			}
		}
		if o.Phase == objects.Stripped && o.Children == 0 && o.Class == objects.ClassIdle {
			return fmt.Errorf("%s: stripped, and nothing extends it", o.Name())
		}
		if !o.InHBM() {
			ids += 4 * int64(o.Spec.Tokens)
		}
		pinned := o.Class != objects.ClassIdle
		for _, other := range s.cat.Objects.Table.Places() {
			for up := other; up != nil && other.Class != objects.ClassIdle && other != o; up = up.Parent {
				pinned = pinned || up == o
			}
		}
		if pinned != (o.Pins > 0) {
			return fmt.Errorf("%s: %d pins, pinned %v", o.Name(), o.Pins, pinned)
		}
		if !pinned && !o.Linked() {
			return fmt.Errorf("%s: kept although nothing holds it", o.Name())
		}
		for _, a := range []*account{&pools[o.Pool.Number], tenants[o.Tenant]} {
			size := o.PageBytes
			if a == tenants[o.Tenant] {
				size = o.Charge()
				a.pools[o.Pool.Number] += size
			}
			a.objects++
			a.used += size
			a.bytes[o.Class] += size
			if o.Offload != nil {
				a.offloading += size
			}
			if pinned {
				a.pinned += size
			}
		}
	}
	for _, p := range *s.cat.Profiles.Load() {
		held := 0
		for _, o := range s.cat.Objects.Table.Places() {
			if o != nil && o.Profile == p && (!o.InHBM() || o.Pins > 0) {
				held++
			}
		}
		if held != p.Held {
			return fmt.Errorf("profile %d holds %d objects, counts %d", p.ID, held, p.Held)
		}
	}
	for o, n := range children {
		if o.Children != n {
			return fmt.Errorf("%s: %d children, counts %d", o.Name(), n, o.Children)
		}
		if o.Kids != kids[o] {
			return fmt.Errorf("%s: its children's ids make %x, should be %x", o.Name(), o.Kids, kids[o])
		}
	}
	total := int64(0)
	for i, p := range s.allPools() {
		a := pools[i]
		if p.Used != a.used || p.Pinned != a.pinned || p.Bytes != a.bytes || p.Objects != a.objects || p.Used > p.Budget {
			return fmt.Errorf("pool %s: Used %v, want %v; Pinned %v, want %v; Bytes %v, want %v; Objects %v, want %v; Used %v, want at most %v", p.Name, p.Used, a.used, p.Pinned, a.pinned, p.Bytes, a.bytes, p.Objects, a.objects, p.Used, p.Budget)
		}
		if p.Offloading != a.offloading {
			return fmt.Errorf("pool %s: %d bytes are being sent, counts %d", p.Name, a.offloading, p.Offloading)
		}
		if p.Evict.Len() != ranked[i] {
			return fmt.Errorf("pool %s: policy holds %d of %d", p.Name, p.Evict.Len(), ranked[i])
		}
		if err := auditVictims(p.Evict, func(id policy.ID) bool { return candidates[id] && s.cat.Objects.Table.Get(id).Pool == p }, candidates); err != nil {
			return fmt.Errorf("pool %s: %w", p.Name, err)
		}
		if i < objects.PoolCount {
			total += p.Used
		}
	}
	for t, a := range tenants {
		if t.Evict != nil && !t.CatchesUp() {
			if got := t.Evict.Len(); got != inMemory[t] {
				return fmt.Errorf("tenant %s: its policy holds %d of %d", t.Name, got, inMemory[t])
			}
			if err := auditVictims(t.Evict, func(id policy.ID) bool {
				return candidates[id] && s.cat.Objects.Table.Get(id).Tenant == t && !s.cat.Objects.Table.Get(id).InHBM()
			}, candidates); err != nil {
				return fmt.Errorf("tenant %s: %w", t.Name, err)
			}
		}
		if t.Offload != a.offloading {
			return fmt.Errorf("tenant %s: %d bytes are being sent, counts %d", t.Name, a.offloading, t.Offload)
		}
		if !slices.Equal(t.Used, a.pools) {
			return fmt.Errorf("tenant %s: uses %d bytes of the pools, counts %d", t.Name, a.pools, t.Used)
		}
		if t.Total() != a.used || t.Pinned != a.pinned || t.Leaving != a.bytes[objects.ClassDemoting] {
			return fmt.Errorf("tenant %s: total %d, want %d; Pinned %v, want %v; Leaving %v, want %v", t.Name, t.Total(), a.used, t.Pinned, a.pinned, t.Leaving, a.bytes[objects.ClassDemoting])
		}
		if held := t.Total() + s.cat.Objects.Below.Used(t); t.QuotaBytes > 0 && held > t.QuotaBytes {
			return fmt.Errorf("tenant %s: %d bytes over a quota of %d", t.Name, held, t.QuotaBytes)
		}
	}
	if got := s.cat.Objects.Memory.Pages.UsedBytes(); got != total-ids {
		return fmt.Errorf("%d bytes of pages in use, pools say %d with %d of token ids", got, total, ids)
	}
	if err := s.auditHBMLocked(candidates); err != nil {
		return err
	}
	leases, expired := 0, 0
	for _, o := range s.cat.Objects.Table.Places() {
		if o != nil {
			leases, expired = leases+o.Leases, expired+o.Expired
		}
	}
	if n := &s.cat.Counters; n.Leases != uint64(leases) || n.Quarantined != uint64(expired) {
		return fmt.Errorf("%d leases and %d expired ones, objects give %d and %d", n.Leases, n.Quarantined, leases, expired)
	}
	timed := len(s.pinned) + leases // an expired lease has no deadline
	for _, o := range s.cat.Objects.Table.Places() {
		if o != nil && o.Fill != nil && !o.Fill.Dead && !o.Fill.Promoted && !o.InHBM() {
			timed++
		}
	}
	for _, o := range s.cat.Objects.Table.Places() {
		if o != nil && o.Ahead {
			timed++
		}
	}
	if s.move.Promotions.Engine != nil {
		timed += s.move.Promotions.Engine.Len(move.LaneBelow) + s.move.Promotions.Engine.Len(move.LaneBeyond)
	}
	if s.move.Remote.Engine != nil {
		timed += s.move.Remote.Engine.Len(0)
	}
	if timed != s.cat.Objects.Deadlines.Len() {
		return fmt.Errorf("%d deadlines, want %d", s.cat.Objects.Deadlines.Len(), timed)
	}
	listed := 0
	for shard := range index.Shards {
		listed += len(s.cat.Objects.Names.Segments.Sorted(shard, nil))
		for _, o := range s.cat.Objects.Names.Checkpoints.Sorted(shard, nil) {
			for ; o != nil; o = o.Sibling {
				listed++
			}
		}
	}
	if n := s.cat.Config.Find.Len(); n != found {
		return fmt.Errorf("%d segments can be found by their tokens, %d are published", n, found)
	}
	if listed != linked {
		return fmt.Errorf("catalogue lists %d objects, %d are linked", listed, linked)
	}
	if err := s.auditHeldLocked(); err != nil {
		return err
	}
	return s.auditLowerLocked()
}

// auditHeldLocked compares what is said to be held with what is.
func (s *Store) auditHeldLocked() error {
	want := map[tier.Want]bool{}
	for _, o := range s.cat.Objects.Table.Places() {
		if o != nil && o.Phase == objects.Whole && !o.InHBM() && !o.Corrupt {
			want[tier.Want{Name: o.Label(), Fingerprint: o.Profile.Fingerprint(), Tenant: o.Tenant.ID}] = true
		}
	}
	if m, ok := s.cat.Config.Lower.(*mapTier); ok {
		m.mu.Lock()
		defer m.mu.Unlock() // until the end, because a write that ends adds a name under this lock
		for _, e := range m.entries {
			want[e.want()] = true
		}
	}
	n := 0
	for w := range s.cat.Config.Held.All() {
		if n++; !want[w] {
			return fmt.Errorf("%v is said to be held", w.Name)
		}
	}
	if n != len(want) {
		return fmt.Errorf("%d names are said to be held, %d are", n, len(want))
	}
	return nil
}

// auditVictims asks a policy for all that it would let go.
func auditVictims(p policy.Eviction, want func(policy.ID) bool, all map[policy.ID]bool) (err error) {
	asked := 0
	p.Victim(func(id policy.ID) bool {
		asked++
		if !want(id) {
			err = fmt.Errorf("object %x may not leave", id)
		}
		return false
	})
	for id := range all {
		if want(id) {
			asked--
		}
	}
	if err == nil && asked != 0 {
		err = fmt.Errorf("%d victims too many or too few", asked)
	}
	return err
}

// auditExtents checks that an object's memory is what it costs, and that it has
// holes where a stripped one has, and nowhere else.
func (s *Store) auditExtents(o *objects.Object) error {
	if o.InHBM() {
		return s.auditCopyExtents(o)
	}
	bytes, pages := 4*int64(o.Spec.Tokens), 4*int64(o.Spec.Tokens)
	for i := range o.Shares {
		at, holes := int64(0), int64(0)
		states := o.Layout().StatePages
		for _, e := range o.Shares[i].Extents {
			if e.Off == objects.Hole {
				holes += e.Len
				if !slices.ContainsFunc(states, func(run gpuipc.Extent) bool { return run.Off <= at && at+e.Len <= run.Off+run.Len }) {
					return fmt.Errorf("%s: a hole of %d bytes at %d, its states lie at %v", o.Name(), e.Len, at, states)
				}
			} else {
				bytes += e.Len
				pages += s.cat.Objects.Memory.PagesOf(e.Len)
			}
			at += e.Len
		}
		want := int64(0)
		if o.Phase == objects.Unlisted && o.Kind != objects.BufferKind && o.Fill == nil || o.Phase == objects.Stripped && (o.Fill == nil || o.Fill.Promoted) {
			want = o.StateBytes / int64(len(o.Shares))
		}
		if holes != want || at != o.RankBytes {
			return fmt.Errorf("%s: holes of %d bytes in %d, want %d in %d", o.Name(), holes, at, want, o.RankBytes)
		}
	}
	if bytes != o.Bytes || pages != o.PageBytes {
		return fmt.Errorf("%s: costs %d bytes and %d of pages, its extents have %d and %d", o.Name(), o.Bytes, o.PageBytes, bytes, pages)
	}
	return nil
}

// auditLowerLocked recomputes what is kept for the lower tier.
func (s *Store) auditLowerLocked() error {
	var dirty, ahead, unsentBytes [objects.PoolCount]int64
	var tracked, unclean [objects.PoolCount]int
	unused, leaving, written := uint64(0), uint64(0), map[tier.Name]int{}
	for _, o := range s.cat.Objects.Table.Places() {
		if o == nil {
			continue
		}
		if o.InHBM() {
			if o.Cleaning != objects.Absent || o.Sending != objects.Absent || o.Offload != nil || o.Ahead || o.Write != nil || o.Stored != 0 {
				return fmt.Errorf("%s: a copy in HBM, known to what writes downwards", o.Name())
			}
			continue
		}
		unwritten := s.cat.Config.Lower != nil && o.Linked() && o.Published() && o.Phase != objects.Stripped && o.Stored == 0 && !o.Fetched
		if unwritten {
			unclean[o.Pool.Number]++
		}
		want := unwritten && o.Pins == 0 && o.Write == nil && !o.Refused
		if standing := objects.Stand(unwritten, want); o.Cleaning != standing {
			return fmt.Errorf("%s: stands at %d among the dirty, should at %d", o.Name(), o.Cleaning, standing)
		}
		unsent := len(s.cat.Config.Outlets) > 0 && o.Linked() && o.Published() && o.Phase != objects.Stripped && !o.Asked && !o.Fetched
		if standing := objects.Stand(unsent, o.Pins == 0); o.Sending != standing {
			return fmt.Errorf("%s: stands at %d among the unsent, should at %d", o.Name(), o.Sending, standing)
		}
		if o.Sending == objects.Candidate {
			unsentBytes[o.Pool.Number] += o.PageBytes
		}
		if o.Cleaning == objects.Candidate {
			tracked[o.Pool.Number]++
			dirty[o.Pool.Number] += o.PageBytes
		}
		if o.Ahead {
			unused++
			ahead[o.Pool.Number] += o.PageBytes
		}
		left := o.Write != nil && move.WriteOf(o).Leaving
		if left {
			leaving++
		}
		if left && o.Linked() {
			return fmt.Errorf("%s: leaves, linked %v, write %v", o.Name(), o.Linked(), o.Write)
		}
		if o.Write != nil {
			written[o.Label()]++
		}
		if p := s.move.Promotions.PromotionLocked(o.Label()); o.Fill != nil && o.Fill.Promoted && !o.Fill.Dead && (p == nil || p.Fill != o.Fill && p.Into != o) {
			return fmt.Errorf("%s: is promoted, but not among the promotions", o.Name())
		}
	}
	for n, f := range s.flightsUp() {
		p := f.Job.(*move.Promotion)
		if f.Ended() || (p.Object != nil) != f.Moving() {
			return fmt.Errorf("promotion of %x: ended %v, moving %v, has an object %v", n.Key[:4], f.Ended(), f.Moving(), p.Object != nil)
		}
		if !f.Urgent() {
			unused++
			ahead[p.Pool.Number] += f.Bytes
		}
	}
	for i, p := range s.cat.Objects.Pools {
		if p.Dirty.Bytes != dirty[i] || p.AheadBytes != ahead[i] || p.Dirty.Eviction != nil && p.Dirty.Len() != unclean[i] || p.Dirty.Objects != tracked[i] {
			return fmt.Errorf("pool %s: %d dirty and %d read ahead, objects give %d and %d", p.Name, p.Dirty.Bytes, p.AheadBytes, dirty[i], ahead[i])
		}
		if p.Unsent.Bytes != unsentBytes[i] {
			return fmt.Errorf("pool %s: %d bytes unsent, objects give %d", p.Name, p.Unsent.Bytes, unsentBytes[i])
		}
		if p.AheadBytes > p.Budget/move.AheadShare {
			return fmt.Errorf("pool %s: %d bytes read ahead of %d", p.Name, p.AheadBytes, p.Budget)
		}
	}
	for n, objects := range s.move.Writes.ByName {
		if len(objects) != written[n] {
			return fmt.Errorf("%x: %d writes, %d known", n.Key[:4], written[n], len(objects))
		}
		delete(written, n)
	}
	if len(written) > 0 {
		return fmt.Errorf("%d names have writes that are not known", len(written))
	}
	c := &s.cat.Counters
	if left, ways := c.EvictedRoom+c.EvictedQuota, c.Demoted+c.DemotionsRefused+c.DemotionsFailed+c.Dropped+leaving; left != ways {
		return fmt.Errorf("%d objects left memory, counted %d ways: left %v, want %v", left, ways, left, ways)
	}
	if ends := c.ReadAheadUsed + c.ReadAheadWasted + c.ReadAheadFailed + unused; c.ReadAheadBegun != ends {
		return fmt.Errorf("%d read ahead, %d ends: ReadAheadBegun %v, want %v", c.ReadAheadBegun, ends, c.ReadAheadBegun, ends)
	}
	return nil
}

// flightsUp are the promotions into memory.
func (s *Store) flightsUp() iter.Seq2[tier.Name, *transfer.Flight] {
	if s.move.Promotions.Engine == nil {
		return func(func(tier.Name, *transfer.Flight) bool) {}
	}
	return s.move.Promotions.Engine.All()
}

// geometry is that of the bench's profile.
func (b *bench) geometry() *plan.Geometry {
	b.Helper()
	g, err := b.Store.Geometry(b.id)
	b.must(err)
	return g
}
