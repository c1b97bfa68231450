package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A batch is entries that are written and then read, all of them, with faults of
// one sort: in the writes or their syncs, at rest, or in the reads. So that each fault
// counts, every entry is asked for afterwards: one fault is one transfer that was torn,
// reordered, short, failed or had bits flipped, one sync that failed, or one flip of a byte at rest,
// of an entry whose write was then refused, or whose read was refused or gave the
// right bytes. Flips in padding are of the last sort: they change nothing. A read
// that fails is tried again by the tier, and its second failure is another fault;
// so is a failure of the writes by which it finds out whether the disk works again.
const (
	batchEntries = 256
	proofs       = 96 // different contents
)

// injury is a sort of batch.
type injury struct {
	name   string
	writes func(rng *rand.Rand) []slabtest.Rule
	rest   bool
	reads  func(rng *rand.Rand) []slabtest.Rule
}

var injuries = []injury{
	{name: "writes that lie", writes: func(*rand.Rand) []slabtest.Rule {
		return []slabtest.Rule{{Op: slabtest.OpWrite, Kind: slabtest.FaultTorn, Rate: 0.35}, {Op: slabtest.OpWrite, Kind: slabtest.FaultReordered, Rate: 0.5},
			{Op: slabtest.OpWrite, Kind: slabtest.FaultFlipRest, Bits: 1}}
	}},
	{name: "writes that fail", writes: func(rng *rand.Rand) []slabtest.Rule {
		errno := []unix.Errno{unix.EIO, unix.ENOSPC, unix.EROFS, unix.EDQUOT}[rng.IntN(4)]
		kind := []slabtest.FaultKind{slabtest.FaultTorn, slabtest.FaultReordered, slabtest.FaultError, slabtest.FaultFlipRest}[rng.IntN(4)]
		return []slabtest.Rule{{Op: slabtest.OpWrite, Kind: kind, Errno: errno, Rate: 0.1}}
	}},
	{name: "at rest", rest: true},
	{name: "reads", reads: func(*rand.Rand) []slabtest.Rule {
		return []slabtest.Rule{{Op: slabtest.OpRead, Kind: slabtest.FaultFlipRead, Bits: 2, Rate: 0.3}, {Op: slabtest.OpRead, Kind: slabtest.FaultShort, Rate: 0.3},
			{Op: slabtest.OpRead, Errno: unix.EIO, Rate: 0.7}}
	}},
	{name: "syncs that fail", writes: func(*rand.Rand) []slabtest.Rule {
		return []slabtest.Rule{{Op: slabtest.OpSync, Rate: 0.5}, {Op: slabtest.OpCreate, Errno: unix.ENOSPC, Rate: 0.5}}
	}},
}

// proof is an object that is written under many names.
type proof struct {
	object *tier.Object
	want   [][]byte
	layout profile.Layout
}

// injured is a tier that batches go through.
type injured struct {
	*testing.T
	s      *shelf
	tier   *running
	faults *slabtest.Faults
	now    atomic.Int64
	rng    *rand.Rand
	proofs []proof
	given  uint64 // names

	counted         uint64
	right, refused  int
	unwritten, made int
}

// TestNoFaultIsServed is 20,000 faults, or with SPLICED_LONG set a million (or
// SPLICED_FAULTS), half of them with every part coded. None may show in a byte.
func TestNoFaultIsServed(t *testing.T) {
	want := uint64(short(20_000, 1_000_000))
	if testing.Short() {
		want = 2_000
	}
	if text := os.Getenv("SPLICED_FAULTS"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		want = n
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(walkSeed); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("replay with %s=%d", walkSeed, seed)
	var total uint64
	for i, coded := range [][]profile.PartKind{nil, codedAll} {
		t.Run(fmt.Sprintf("coded=%v", coded != nil), func(t *testing.T) {
			x := openInjured(t, coded, seed+uint64(i))
			for i := 0; x.counted < want/2 || i < len(injuries); i++ {
				x.batch(&injuries[i%len(injuries)])
			}
			x.close()
			total += x.counted
		})
	}
	t.Logf("%d faults, 0 wrong bytes", total)
}

func openInjured(t *testing.T, coded []profile.PartKind, seed uint64) *injured {
	x := &injured{T: t, s: newShelf(t), rng: rand.New(rand.NewPCG(seed, 0))}
	x.now.Store(1e18)
	cfg := onMem(x.s.config(), vfs.NewMem())
	x.faults = slabtest.NewFaults(cfg.Slabs, seed)
	cfg.Slabs, cfg.Coded, cfg.Workers = x.faults, coded, 2
	cfg.PublicBytes, cfg.PrivateBytes, cfg.SlabBytes = 24<<20, 8<<20, 8<<20
	cfg.RetryMin, cfg.RetryMax, cfg.SyncEvery = time.Millisecond, time.Millisecond, 50*time.Millisecond
	cfg.Now = func() time.Time { return time.Unix(0, x.now.Load()) }
	for i := range proofs {
		w := thing{seed: uint64(i + 1), profile: smallOne, tenant: tenantA, tokens: 1 + i/2}
		if i%3 == 0 {
			w = thing{seed: uint64(i + 1), profile: smallTwo, tenant: tenantB, kind: tier.Exact, tokens: 1 + i/3}
		}
		p := proof{object: x.s.object(w), layout: w.layout()}
		for rank := range w.profile.TPSize() {
			p.want = append(p.want, w.content(rank))
		}
		x.proofs = append(x.proofs, p)
	}
	x.tier = x.s.openOK(cfg)
	x.batch(&injury{name: "none"}) // so that the faults to come are in entries, not in new slabs
	return x
}

func (x *injured) close() {
	x.Helper()
	x.faults.Set()
	x.tier.awaitState(x.T, StateOK)
	x.s.check(x.tier.Tier)
	if err := x.tier.close(); err != nil {
		x.Error(err)
	}
	for i := range x.proofs {
		x.s.drop(x.proofs[i].object)
	}
	x.Logf("%d faults in %d entries: %d reads right, %d refused, %d writes refused", x.counted, x.made, x.right, x.refused, x.unwritten)
	if x.right == 0 || x.refused == 0 || x.unwritten == 0 {
		x.Error("the faults were too many or too few")
	}
}

// specimen is one entry of a batch.
type specimen struct {
	name    tier.Name
	proof   *proof
	written bool
}

// batch writes, hurts and reads entries. Its faults count once all are settled.
func (x *injured) batch(how *injury) {
	x.Helper()
	before := x.faults.InjectedAll()
	if how.writes != nil {
		x.faults.Set(how.writes(x.rng)...)
	}
	list := x.write()
	x.s.check(x.tier.Tier) // accounts are exact in trouble, too
	x.faults.Set()
	x.tier.awaitState(x.T, StateOK)
	if how.rest {
		x.hurt(list)
	}
	if how.reads != nil {
		x.faults.Set(how.reads(x.rng)...)
	}
	for i := range list {
		x.read(&list[i])
	}
	x.faults.Set()
	for i := range list {
		x.tier.Remove(&list[i].name)
	}
	x.counted += x.faults.InjectedAll() - before
	x.made += len(list)
}

// write puts a batch under new names, all at once.
func (x *injured) write() []specimen {
	list := make([]specimen, batchEntries)
	answers := make(chan int, len(list))
	begun := 0
	for i := range list {
		p := &x.proofs[x.rng.IntN(len(x.proofs))]
		o := *p.object
		x.given++
		binary.LittleEndian.PutUint64(o.Key[:], x.given)
		list[i] = specimen{name: tier.Name{Kind: o.Kind, Key: o.Key}, proof: p}
		k, err := x.tier.Admit(&o, 1<<50)
		if err != nil {
			x.mustBe(err, tier.ErrUnavailable, tier.ErrBusy, tier.ErrFull)
			x.unwritten++
			continue
		}
		begun++
		k.Start(tier.LevelLogged+tier.Level(i%2), func(reached tier.Level, err error) {
			list[i].written = reached >= tier.LevelLogged
			if !list[i].written {
				x.mustBe(err, tier.ErrUnavailable, tier.ErrBusy, tier.ErrFull, tier.ErrGone)
			}
			answers <- i
		})
	}
	for range begun {
		if !list[<-answers].written {
			x.unwritten++
		}
	}
	return list
}

func (x *injured) mustBe(err error, kinds ...error) {
	x.Helper()
	if !slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) }) {
		x.Errorf("%v, want one of %v", err, kinds)
	}
}

// hurt flips one to three bytes of each entry at rest, anywhere in what was stored.
func (x *injured) hurt(list []specimen) {
	x.Helper()
	for i := range list {
		x.tier.mu.Lock()
		e := x.tier.index[list[i].name]
		x.tier.mu.Unlock()
		if e == nil {
			continue
		}
		places := map[int64]bool{} // a byte flipped twice might be right again
		for range 1 + x.rng.IntN(3) {
			places[x.rng.Int64N(int64(e.HeaderBytes)+e.PayloadBytes)] = true
		}
		for off := range places {
			for _, r := range e.Runs {
				if off < r.Len {
					must(x, x.faults.Flip(fmt.Sprintf("%06d.slab", r.Slab), r.Off+off, 1<<x.rng.IntN(8)))
					break
				}
				off -= r.Len
			}
		}
	}
}

// read asks for an entry until it is lost, at most a few times.
func (x *injured) read(sp *specimen) {
	x.Helper()
	for range 3 {
		x.now.Add(int64(time.Hour)) // so that no pause of reads goes on
		e, ok := x.tier.Lookup(&sp.name)
		if !ok {
			return
		}
		dst := make([]gpuipc.Ref, len(sp.proof.want))
		for i := range dst {
			dst[i] = x.s.alloc(sp.proof.layout.Bytes)
		}
		_, err := x.tier.Read(context.Background(), &e, dst)
		if err == nil {
			x.right++
			x.compare(sp, dst)
		} else {
			x.mustBe(err, tier.ErrCorrupt, tier.ErrUnavailable, tier.ErrGone)
			x.refused++
		}
		x.s.free(dst...)
	}
}

func (x *injured) compare(sp *specimen, dst []gpuipc.Ref) {
	x.Helper()
	for rank, want := range sp.proof.want {
		got := x.s.bytes(dst[rank])
		for _, p := range sp.proof.layout.Parts {
			if !bytes.Equal(got[p.Off:p.Off+p.Len], want[p.Off:p.Off+p.Len]) {
				x.Fatalf("after %d faults: %x, rank %d, %v of layer %d: %v", x.faults.InjectedAll(), sp.name.Key[:8], rank, p.Kind, p.Layer, errWrong)
			}
		}
	}
}
