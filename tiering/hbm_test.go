package tiering

import (
	"fmt"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// twoAndHBM is a bench over a mapTier and below an accelerator, used by one
// goroutine: promotions into HBM wait for carryHBM as well.
type twoAndHBM struct {
	*twoTiers
	twin *gpuipctest.Accelerator // acc, when it is the one out of host devices
}

// accelerator opens the device of a test beside a host device.
type accelerator func(t testing.TB, host gpuipc.Device) gpuipc.Accelerator

func ofHostDevices(t testing.TB, host gpuipc.Device) gpuipc.Accelerator {
	return gpuipctest.NewAccelerator(t, host)
}

func inHBM(t testing.TB, open accelerator, public, private int64) option {
	return func(c *Config) {
		c.HBM = []hbm.Config{{Device: open(t, c.Device), PublicBytes: public, PrivateBytes: private, PageBytes: 8192}}
	}
}

func newTwoAndHBM(t testing.TB, id profile.Identity, options ...option) *twoAndHBM {
	t.Helper()
	x := &twoAndHBM{}
	x.twoTiers = newTwoTiers(t, id, append([]option{inHBM(t, ofHostDevices, 8<<20, 8<<20)}, options...)...)
	x.twin = x.acc.(*gpuipctest.Accelerator)
	return x
}

// device is the first device of a store, and the only one but where a test has several.
const device tier.DeviceID = 1

// reads is the device that clients of a test read.
func (b *bench) reads() tier.DeviceID {
	if b.acc == nil {
		return 0
	}
	return device
}

// carryHBM does what the goroutines of Run do for HBM until there is no work.
func (b *bench) carryHBM() (n int) {
	for _, h := range b.hbm {
		for h.Flights.Try(b.ctx, 0) {
			n++
		}
	}
	return n
}

// carryAll carries promotions of both kinds.
func (x *twoAndHBM) carryAll() {
	for x.carry()+x.carryHBM() > 0 {
	}
}

func (b *bench) tryHBM(c *Session, p piece, rank int) Acquired {
	b.Helper()
	q := &AcquireQuery{Profile: b.id, Tenant: tenantA, Rank: rank, Digests: true, Keys: [][32]byte{p.key}, Device: device}
	rows, err := c.AcquireResident(q, nil)
	b.must(err)
	return rows[0]
}

// raise brings a segment to HBM and leases it there.
func (b *bench) raise(c *Session, p piece, rank int) Acquired {
	b.Helper()
	row := b.tryHBM(c, p, rank)
	if row.Hit {
		return row
	}
	if !row.Promoting || row.Reason != tier.ReasonPending {
		b.Fatalf("segment %x: Promoting %v, want true; Reason %v, want %v", p.key[:4], row.Promoting, row.Reason, tier.ReasonPending)
	}
	b.carryHBM()
	return b.tryHBM(c, p, rank)
}

// raisePrefix does so for a checkpoint.
func (b *bench) raisePrefix(c *Session, q *LoadQuery) Loaded {
	b.Helper()
	q.Device = device
	l, err := c.LoadResident(q)
	b.must(err)
	if !l.Hit {
		b.carryHBM()
		l, err = c.LoadResident(q)
		b.must(err)
	}
	return l
}

// goUp has plans run in HBM from now on.
func (b *bench) goUp() {
	b.Helper()
	b.must(b.slots.Close())
	b.above = true
	b.staging, b.slots = b.region("staging", 16<<20), b.region("slots", 16<<20)
}

func newBenchAbove(t testing.TB, open accelerator, id profile.Identity, options ...option) *bench {
	t.Helper()
	b := newBench(t, id, append([]option{inHBM(t, open, 8<<20, 8<<20)}, options...)...)
	b.goUp()
	return b
}

// up brings a segment to HBM.
func (x *twoAndHBM) up(p piece) {
	x.Helper()
	row := x.raise(x.c, p, 0)
	x.wantCopy(p, 0, row)
	x.must(x.c.Release(row.Lease))
}

// wantCopy checks what a lease in HBM names.
func (x *twoAndHBM) wantCopy(p piece, rank int, row Acquired) {
	x.Helper()
	if !row.Hit || row.Err != nil || row.Place != tier.PlaceHBM || row.Bytes != p.layout.Bytes {
		x.Fatalf("segment %x: Hit %v, want true; Err %v, want nil; Place %v, want %v; Bytes %v, want %v", p.key[:4], row.Hit, row.Err, row.Place, tier.PlaceHBM, row.Bytes, p.layout.Bytes)
	}
	x.wantParts(&p.layout, contentOf(p, rank), x.loadHBM(row.Extents), row.Digests)
}

// wantParts compares the parts of a share, and their digests; what lies between them
// is not copied.
func (b *bench) wantParts(l *profile.Layout, want, got []byte, digests []uint64) {
	b.Helper()
	chunk := 0
	for i, part := range l.Parts {
		a := want[part.Off : part.Off+part.Len]
		if string(a) != string(got[part.Off:part.Off+part.Len]) {
			b.Fatalf("part %d has other bytes", i)
		}
		for ; len(a) > 0; chunk++ {
			n := min(len(a), gpuipc.ChunkBytes)
			if digests[chunk] != gpuipc.DigestBytes(a[:n]) {
				b.Fatalf("part %d: digest %d is another", i, chunk)
			}
			a = a[n:]
		}
	}
}

func (x *twoAndHBM) loadHBM(extents []gpuipc.Extent) []byte {
	x.Helper()
	ref := gpuipc.Ref{Region: x.DeviceArena(device), Extents: extents}
	out := make([]byte, ref.Len())
	x.must(x.acc.Load(x.ctx, out, ref))
	return out
}

func (x *twoAndHBM) wantPlace(p piece, place tier.Place) {
	x.Helper()
	_, n := p.spec.Interior()
	if got, want := x.status(p), (SegmentStatus{Status: tier.StatusHit, Place: place, Tokens: uint32(n)}); got != want {
		x.Fatalf("segment %x: got %v, want %v", p.key[:4], got, want)
	}
}

// wantHBM checks what the pools of HBM hold.
func (x *twoAndHBM) wantHBM(public, private int64) {
	x.Helper()
	x.audit()
	pools := x.Pools()
	if pools[2].UsedBytes != public || pools[3].UsedBytes != private || pools[2].Place != tier.PlaceHBM {
		x.Fatalf("HBM uses %d and %d bytes, want %d and %d", pools[2].UsedBytes, pools[3].UsedBytes, public, private)
	}
}

// costHBM is what one rank's copy takes there.
func (x *twoAndHBM) costHBM(bytes int64) int64 { return (bytes + 8191) / 8192 * 8192 }

func (x *twoAndHBM) hbmCounters() stats.HBM { return x.Counters().HBM }

// allPools is for the audit.
func (s *Store) allPools() []*objects.Pool {
	pools := slices.Clone(s.cat.Objects.Pools[:])
	for _, h := range s.hbm {
		pools = append(pools, h.Pools()...)
	}
	return pools
}

// auditCopyExtents checks that what lies in HBM is what it costs.
func (s *Store) auditCopyExtents(o *objects.Object) error {
	var bytes, pages int64
	for i := range o.Shares {
		for _, e := range o.Shares[i].Extents {
			bytes += e.Len
			pages += o.Pool.Device.PagesOf(e.Len)
		}
	}
	if bytes != o.Bytes || pages != o.PageBytes || bytes != o.RankBytes {
		return fmt.Errorf("%s in HBM: costs %d bytes and %d of pages, its extents have %d and %d", o.Name(), o.Bytes, o.PageBytes, bytes, pages)
	}
	return nil
}

// auditHBMLocked checks what the invariants say of copies.
func (s *Store) auditHBMLocked(candidates map[policy.ID]bool) error {
	if len(s.hbm) == 0 {
		return nil
	}
	for _, d := range s.cat.Objects.HBM.Devices {
		if got, used := d.Pages.UsedBytes(), d.Pools[0].Used+d.Pools[1].Used; got != used {
			return fmt.Errorf("%d bytes of device %d's pages in use, pools say %d", got, d.ID, used)
		}
	}
	copies, loose := make([]uint64, len(s.hbm)), 0
	for k, r := range s.cat.Objects.HBM.Held {
		for i, c := range r.Copies {
			copies[c.Pool.Device.ID-1]++
			if slices.ContainsFunc(r.Copies[:i], func(x objects.Copy) bool { return x.Rank == c.Rank && x.Pool.Device == c.Pool.Device }) {
				return fmt.Errorf("%s: two copies of rank %d on device %d", c.Name(), c.Rank, c.Pool.Device.ID)
			}
			if !c.Linked() || !c.Published() || c.Fill != nil || c.Resident != r || !c.InHBM() || c.Identity() != k {
				return fmt.Errorf("%s: a copy that is found, linked %v, published %v, filling %v", c.Name(), c.Linked(), c.Published(), c.Fill != nil)
			}
			if o := r.Source; o != nil && !slices.Equal(c.From, o.Shares[c.Rank].Digests) {
				return fmt.Errorf("%s: its copy of rank %d has other bytes", o.Name(), c.Rank)
			}
		}
		if len(r.Copies) == 0 {
			return fmt.Errorf("%x: no copies", k.Name.Key[:4])
		}
		o := s.cat.Objects.Names.Find(k.Name, k.Profile, k.Tenant)
		whole := o != nil && o.Published() && o.Phase != objects.Stripped
		if r.Source == nil {
			loose++
		}
		if whole != (r.Source != nil) || whole && (r.Source != o || o.Resident != r) {
			return fmt.Errorf("%x: whole in memory %v, its copies say %v", k.Name.Key[:4], whole, r.Source != nil)
		}
	}
	if loose != s.cat.Objects.HBM.Loose {
		return fmt.Errorf("%d objects with copies are not in memory; counted %d", loose, s.cat.Objects.HBM.Loose)
	}
	for i, h := range s.hbm {
		if n := h.Counters().Copies; n != copies[i] {
			return fmt.Errorf("%d copies on device %d; counted %d", copies[i], h.ID(), n)
		}
		if err := s.auditPromotions(h); err != nil {
			return err
		}
	}
	for t := range s.cat.Objects.Tenants {
		if err := s.auditTenantHBM(s.cat.Objects.Tenants[t], candidates); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) auditPromotions(h *hbm.Cache) error {
	for k, f := range h.Flights.All() {
		if p := f.Job.(*hbm.Promotion); f.Ended() || f.Moving() != (p.Copy != nil) || (p.Source != nil) != (p.Copy != nil) {
			return fmt.Errorf("promotion of %x into HBM: ended %v, moving %v, has a copy %v", k.Name.Key[:4], f.Ended(), f.Moving(), p.Copy != nil)
		}
		if k.Device != h.ID() || s.cat.Objects.HBM.Held[k.Identity].On(k.Device, k.Rank) != nil {
			return fmt.Errorf("promotion of %x into device %d, which has it, on device %d", k.Name.Key[:4], k.Device, h.ID())
		}
	}
	return nil
}

func (s *Store) auditTenantHBM(t *objects.Tenant, candidates map[policy.ID]bool) error {
	var pinned int64
	for _, o := range s.cat.Objects.Table.Places() {
		if o != nil && o.Tenant == t && o.InHBM() {
			if o.Pins > 0 {
				pinned += o.Charge()
			}
			if o.Resident == nil && o.Class == objects.ClassIdle {
				return fmt.Errorf("%s: in HBM although nothing finds or holds it", o.Name())
			}
		} else if o != nil && !o.InHBM() && o.Resident != nil && o.Resident.Source != o {
			return fmt.Errorf("%s: has copies of something else", o.Name())
		}
	}
	if pinned != t.PinnedAbove {
		return fmt.Errorf("tenant %s: %d bytes pinned in HBM, counted %d", t.Name, pinned, t.PinnedAbove)
	}
	if t.Above == nil || t.CatchesUp() {
		return nil
	}
	mine := func(id policy.ID) bool {
		o := s.cat.Objects.Table.Get(id)
		return candidates[id] && o.Tenant == t && o.InHBM()
	}
	return auditVictims(t.Above, mine, candidates)
}
