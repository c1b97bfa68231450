package disk

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

const (
	tenantA tier.TenantID = 1
	tenantB tier.TenantID = 2

	arenaBytes = 96 << 20
	pageBytes  = 4 << 10
)

// Names inside the directory.
const (
	indexDir   = "index"
	profileDir = "profiles"
	slabDir    = "slabs"
)

// small takes some 10 KiB a rank for a segment of 40 tokens.
func small(ranks int) *profile.Profile { return profiletest.New(profiletest.Small(ranks)) }

// wide has rows that take 4.25 KiB a token for F32.
func wide(dt profile.DType) *profile.Profile { return profiletest.New(profiletest.Wide(dt)) }

// shelf is memory to write from and to read to, beside a tier that may be opened
// several times.
type shelf struct {
	testing.TB
	dev    gpuipc.Device
	region gpuipc.Region
	mem    []byte

	mu    sync.Mutex
	pages *gpuipc.PageAllocator
}

func newShelf(tb testing.TB) *shelf {
	dev, err := gpuipc.NewHost(gpuipc.HostOptions{Workers: 2})
	must(tb, err)
	region, err := dev.NewRegion(gpuipc.RegionSpec{Name: "shelf", Bytes: arenaBytes, Access: gpuipc.ClientReads})
	must(tb, err)
	s := &shelf{TB: tb, dev: dev, region: region, pages: gpuipc.NewPageAllocator(arenaBytes, pageBytes)}
	views, unpin, err := dev.Pin(gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Len: arenaBytes}}}, false)
	must(tb, err)
	s.mem = views[0]
	tb.Cleanup(func() {
		unpin()
		if used := s.pages.UsedBytes(); used != 0 && !tb.Failed() {
			tb.Errorf("%d bytes of memory were not given back", used)
		}
		if err := errors.Join(region.Close(), dev.Close()); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// alloc takes memory of exactly n bytes, in pieces of a few pages.
func (s *shelf) alloc(n int64) gpuipc.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := gpuipc.Ref{Region: s.region}
	for n > 0 {
		k := min(n, 256<<10)
		x, err := s.pages.Alloc(k)
		must(s, err)
		for i := range x {
			x[i].Len = min(x[i].Len, n)
			n -= x[i].Len
		}
		r.Extents = append(r.Extents, x...)
	}
	return r
}

func (s *shelf) free(refs ...gpuipc.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range refs {
		for _, x := range r.Extents {
			s.pages.Free([]gpuipc.Extent{{Off: x.Off, Len: (x.Len + pageBytes - 1) &^ (pageBytes - 1)}})
		}
	}
}

func (s *shelf) bytes(r gpuipc.Ref) []byte {
	var b []byte
	for _, x := range r.Extents {
		b = append(b, s.mem[x.Off:x.Off+x.Len]...)
	}
	return b
}

// thing says what an object is; its bytes follow from it.
type thing struct {
	seed    uint64
	profile *profile.Profile
	tenant  tier.TenantID
	kind    tier.CheckpointKind
	tokens  int
	parent  tier.Name
}

func (w thing) key() (key [32]byte) {
	return sha256.Sum256(fmt.Appendf(nil, "%d %d %d", w.seed, w.kind, w.tenant))
}

func (w thing) name() tier.Name { return tier.Name{Kind: w.kind, Key: w.key()} }

func (w thing) layout() profile.Layout {
	if w.kind == 0 {
		return w.profile.SegmentLayout(w.tokens)
	}
	return w.profile.CheckpointLayout(w.tokens)
}

// content is the bytes of one rank. Half of the values repeat, so that a codec
// finds something. The race detector would take longer over it than over most tests.
//
//go:norace
func (w thing) content(rank int) []byte {
	l := w.layout()
	b := make([]byte, l.Bytes)
	rng := rand.New(rand.NewPCG(w.seed, uint64(rank)<<8|uint64(w.kind)))
	for _, p := range l.Parts {
		part := b[p.Off : p.Off+p.Len]
		for i := 0; i < len(part); i += 8 {
			// Every other byte is the high one of a half type, with few values.
			var v [8]byte
			binary.LittleEndian.PutUint64(v[:], rng.Uint64()&0x03ff03ff03ff03ff|0x3c003c003c003c00)
			copy(part[i:], v[:])
		}
	}
	return b
}

// object puts the thing into memory. Who calls it frees its shares.
func (s *shelf) object(w thing) *tier.Object {
	o := &tier.Object{
		Key: w.key(), Kind: w.kind, Profile: w.profile, Tenant: w.tenant, Publisher: "test", Created: time.Unix(1e9, int64(w.seed)),
		End: w.tokens, Parent: w.parent,
	}
	if w.kind == 0 {
		o.Spec = profile.SegmentSpec{Role: profile.RoleFirst, Tokens: w.tokens}
		for i := range w.tokens {
			o.Tokens = append(o.Tokens, uint32(w.seed)+uint32(i))
		}
	}
	l := w.layout()
	for rank := range w.profile.TPSize() {
		ref := s.alloc(l.Bytes)
		must(s, s.dev.Store(context.Background(), ref, w.content(rank)))
		o.Shares = append(o.Shares, tier.Share{Ref: ref, Digests: s.digests(ref, &l)})
	}
	return o
}

func (s *shelf) digests(ref gpuipc.Ref, l *profile.Layout) (all []uint64) {
	for _, p := range l.Parts {
		d := make([]uint64, gpuipc.Chunks(p.Len))
		must(s, s.dev.Digests(context.Background(), within(ref, p.Off, p.Len), d))
		all = append(all, d...)
	}
	return all
}

// within is the part [off, off+n) of a ref.
func within(r gpuipc.Ref, off, n int64) gpuipc.Ref {
	out := gpuipc.Ref{Region: r.Region}
	for _, x := range r.Extents {
		skip := min(off, x.Len)
		off -= skip
		if k := min(x.Len-skip, n); k > 0 {
			out.Extents = append(out.Extents, gpuipc.Extent{Off: x.Off + skip, Len: k})
			n -= k
		}
	}
	return out
}

func (s *shelf) drop(o *tier.Object) {
	for i := range o.Shares {
		s.free(o.Shares[i].Ref)
	}
}

// outcome is how a write ended.
type outcome struct {
	reached tier.Level
	err     error
}

// begin admits and starts a write. The answer comes on the channel, or with an
// error at once.
func (s *shelf) begin(t *Tier, w thing, level tier.Level) (<-chan outcome, error) {
	o := s.object(w)
	k, err := t.Admit(o, 1<<50)
	if err != nil {
		s.drop(o)
		return nil, err
	}
	done := make(chan outcome, 1)
	k.Start(level, func(reached tier.Level, err error) {
		s.drop(o)
		done <- outcome{reached, err}
	})
	return done, nil
}

// plain expects a text for people to say each thing once.
func plain(tb testing.TB, text string) {
	tb.Helper()
	words := strings.Split(strings.ReplaceAll(text, "\n", ": "), ": ")
	for i, w := range words {
		if i > 0 && w == words[i-1] || w == "disk" && i > 0 {
			tb.Errorf("it says %q again: %s", w, text)
		}
	}
}

// write is begin and wait.
func (s *shelf) write(t *Tier, w thing, level tier.Level) error {
	done, err := s.begin(t, w, level)
	if err != nil {
		return err
	}
	out := <-done
	if out.err != nil {
		plain(s, out.err.Error())
	}
	if out.err == nil && out.reached < level {
		s.Errorf("%x reached level %d of %d without an error", w.key(), out.reached, level)
	}
	return out.err
}

func (s *shelf) mustWrite(t *Tier, w thing, level tier.Level) {
	s.Helper()
	must(s, s.write(t, w, level))
}

// errWrong is the one thing that must never be: a read without an error that gave
// other bytes than were written.
var errWrong = errors.New("wrong bytes")

// read reads a thing back and compares it. A miss is ErrGone.
func (s *shelf) read(t *Tier, w thing) error {
	n := w.name()
	e, ok := t.Lookup(&n)
	if !ok {
		return fmt.Errorf("no entry: %w", tier.ErrGone)
	}
	return s.readEntry(context.Background(), t, &e, w)
}

func (s *shelf) readEntry(ctx context.Context, t *Tier, e *tier.Entry, w thing) error {
	l := w.layout()
	dst := make([]gpuipc.Ref, w.profile.TPSize())
	for i := range dst {
		dst[i] = s.alloc(l.Bytes)
	}
	defer s.free(dst...)
	c, err := t.Read(ctx, e, dst)
	if err != nil {
		plain(s, err.Error())
		return err
	}
	for rank, ref := range dst {
		got, want := s.bytes(ref), w.content(rank)
		for _, p := range l.Parts {
			if !slices.Equal(got[p.Off:p.Off+p.Len], want[p.Off:p.Off+p.Len]) {
				return fmt.Errorf("rank %d, %v of layer %d: %w", rank, p.Kind, p.Layer, errWrong)
			}
		}
		if !slices.Equal(c.Digests[rank], s.digests(ref, &l)) {
			return fmt.Errorf("digests of rank %d: %w", rank, errWrong)
		}
	}
	if w.kind == 0 && (len(c.Tokens) != w.tokens || c.Tokens[w.tokens-1] != uint32(w.seed)+uint32(w.tokens-1)) || c.Publisher != "test" {
		return fmt.Errorf("%d tokens by %q: %w", len(c.Tokens), c.Publisher, errWrong)
	}
	return nil
}

func (s *shelf) mustRead(t *Tier, w thing) {
	s.Helper()
	must(s, s.read(t, w))
}

// config is one of small slabs, and of a clock that nothing happens by.
func (s *shelf) config() Config {
	return Config{
		Dir: "tier", PublicBytes: 3 << 20, PrivateBytes: 1 << 20, SlabBytes: 512 << 10, GranuleBytes: 4 << 10,
		Tenants: []Tenant{{tenantA, "a"}, {tenantB, "b"}}, Device: s.dev, Workers: 2,
		SyncEvery: time.Hour, RetryMin: time.Hour, RetryMax: time.Hour, DrainTime: time.Minute,
	}
}

// onMem has a configuration use a file system in memory.
func onMem(cfg Config, mem vfs.FS) Config {
	cfg.Index, cfg.Slabs = mem, slab.OverVFS(mem, mem.PathJoin(cfg.Dir, slabDir))
	return cfg
}

// running is an open tier whose Run runs.
type running struct {
	*Tier
	ended chan error
	once  sync.Once
	err   error
	cause string // of the state at the end
}

func (s *shelf) open(cfg Config) *running {
	s.Helper()
	t, err := Open(cfg)
	must(s, err)
	r := &running{Tier: t, ended: make(chan error, 1)}
	go func() { r.ended <- t.Run(context.Background()) }()
	s.Cleanup(func() {
		_ = r.close()
		plain(s, r.cause)
	})
	return r
}

// openOK expects the directory to be fine.
func (s *shelf) openOK(cfg Config) *running {
	s.Helper()
	r := s.open(cfg)
	if h := r.Health(); h.State != StateOK {
		s.Fatalf("state %v: %s", h.State, h.Cause)
	}
	return r
}

func (r *running) close() error {
	r.once.Do(func() {
		r.cause = r.Health().Cause
		r.err = r.Tier.Close()
		<-r.ended
	})
	return r.err
}

// trim has a tier forget entries of a tenant, in as many calls as that takes.
func trim(t *Tier, tenant tier.TenantID, bytes int64, spare ...tier.Name) (freed int64) {
	for more := true; more; {
		var n int64
		n, more = t.Trim(tenant, bytes-freed, spare)
		freed += n
	}
	return freed
}

// check compares the accounts with the entries, and space with both.
func (s *shelf) check(t *Tier) {
	s.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	var pools [poolCount]int64
	owners, keeps := map[*account]int64{}, map[*account]int64{}
	var pinned int64
	for n, e := range t.index {
		if e.name() != n || e.forgotten() {
			s.Errorf("%v is in the index as %x, phase %v", e.Name, n.Key[:4], e.phase)
		}
		pools[e.pool.number] += e.bytes
		owners[e.owner] += e.charge()
		if e.pins > 0 {
			pinned += e.bytes
			keeps[e.owner] += e.charge()
		}
		if e.phase.kept() && e.bytes != slab.RunBytes(e.Runs) {
			s.Errorf("%x is charged %d bytes and has %d", e.Key[:4], e.bytes, slab.RunBytes(e.Runs))
		}
		if e.Parent != (extent.Name{}) && (e.parent == nil || t.index[tierName(e.Parent)] != e.parent) {
			s.Errorf("%x has lost its parent", e.Key[:4])
		}
		if may := e.phase.kept() && e.pins == 0 && e.child == nil; may != e.evicts {
			s.Errorf("%x may leave: %v, but policies hold it: %v", e.Key[:4], may, e.evicts)
		}
	}
	for i, p := range t.pools {
		if p.used != pools[i] {
			s.Errorf("the %s pool counts %d bytes, its entries %d", p.name, p.used, pools[i])
		}
	}
	for _, a := range t.accounts {
		if a.owed != 0 && len(t.queue.all) == 0 {
			s.Errorf("tenant %q owes %d bytes although nothing is on its way", a.Name, a.owed)
		}
		if a.total() != owners[a] || a.pinned != keeps[a] {
			s.Errorf("tenant %q counts %d bytes, %d of them pinned, its entries %d and %d", a.Name, a.total(), a.pinned, owners[a], keeps[a])
		}
	}
	if got := t.pools[public].pinned + t.pools[private].pinned; got != pinned {
		s.Errorf("%d bytes count as pinned, %d are", got, pinned)
	}
	s.checkSpaceLocked(t)
}

// checkSpaceLocked waits out the moment between the return of space and its account.
func (s *shelf) checkSpaceLocked(t *Tier) {
	s.Helper()
	for deadline := time.Now().Add(10 * time.Second); t.mount != nil && t.health.state < StateFailed; {
		var runs int64
		for _, e := range t.index {
			runs += slab.RunBytes(e.Runs)
		}
		free := t.mount.Space.FreeBytes()
		if free+runs+t.leaving == t.mount.capacity {
			return
		}
		if time.Now().After(deadline) {
			s.Errorf("%d bytes free, %d in entries, %d leaving, of %d", free, runs, t.leaving, t.mount.capacity)
			return
		}
		t.mu.Unlock()
		time.Sleep(100 * time.Microsecond)
		t.mu.Lock()
	}
}

// segments makes things of a tenant, 10 KiB each.
func segments(first, n int) []thing {
	list := make([]thing, n)
	for i := range list {
		list[i] = thing{seed: uint64(first + i), profile: smallOne, tenant: tenantA, tokens: 20 + (first+i)%30}
	}
	return list
}

var smallOne, smallTwo = small(1), small(2)

// chain is checkpoints that extend each other, the root first.
func chain(first, n int, tenant tier.TenantID) []thing {
	list := make([]thing, n)
	for i := range list {
		list[i] = thing{seed: uint64(first + i), profile: smallTwo, tenant: tenant, kind: tier.Exact, tokens: 10 + i}
		if i > 0 {
			list[i].parent = list[i-1].name()
		}
	}
	return list
}

// long says whether the long versions of tests are asked for.
func long() bool { return os.Getenv("SPLICED_LONG") != "" }

func short(few, many int) int {
	if long() {
		return many
	}
	return few
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
