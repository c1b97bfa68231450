package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// crashed is a file system as power loss leaves it.
func crashed(mem *vfs.MemFS, percent int, rng *rand.Rand) *vfs.MemFS {
	return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
}

// A machine loses power at random moments under several writers: everything that
// was answered as synced, and has not left since, is there with its bytes, and
// nothing is ever there with wrong ones. Whatever the moment, the directory opens.
func TestCrash(t *testing.T) {
	tiertest.Leaks(t)
	seed := uint64(time.Now().UnixNano())
	loops := 4
	if testing.Short() {
		loops = 2
	}
	for _, percent := range []int{0, 50, 100} {
		t.Run(fmt.Sprintf("unsynced=%d", percent), func(t *testing.T) {
			s := newShelf(t)
			for i := range short(loops, 60) {
				s.crashLoop(t, seed+uint64(i), percent)
				if t.Failed() {
					t.Fatalf("seed %d", seed+uint64(i))
				}
			}
		})
	}
}

func (s *shelf) crashLoop(t *testing.T, seed uint64, percent int) {
	rng := rand.New(rand.NewPCG(seed, uint64(percent)))
	mem := vfs.NewCrashableMem()
	cfg := onMem(s.config(), mem)
	cfg.PublicBytes, cfg.PrivateBytes, cfg.SlabBytes = 1<<20, 256<<10, 320<<10
	cfg.SyncEvery = time.Millisecond // a bit of everything
	s.mkdirs(mem, cfg)
	lower := s.openOK(cfg)
	var ledger struct {
		sync.Mutex
		synced map[uint64]thing
	}
	ledger.synced = map[uint64]thing{}
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for k := range 3 {
		own := rand.New(rand.NewPCG(seed, uint64(k)+100))
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				list := segments(k*1000+i%1000, 1)
				if own.IntN(4) == 0 {
					list = chain(50_000+k*1000+10*own.IntN(20), 1+own.IntN(4), tenantB)
				}
				for _, w := range list {
					level := tier.LevelLogged + tier.Level(own.IntN(2))
					err := s.write(lower.Tier, w, level)
					if err == nil && level == tier.LevelSynced {
						ledger.Lock()
						ledger.synced[w.seed] = w
						ledger.Unlock()
					}
				}
				if n := list[0].name(); own.IntN(30) == 0 {
					lower.Remove(&n)
				}
			}
		})
	}
	for range 3 {
		target := lower.Counters().Written + 1 + uint64(rng.IntN(40))
		await(t, "writes", func() bool { return lower.Counters().Written >= target })
		ledger.Lock()
		promised := map[uint64]tier.Entry{}
		things := map[uint64]thing{}
		for k, w := range ledger.synced {
			n := w.name()
			if e, ok := lower.Lookup(&n); ok && e.Level == tier.LevelSynced {
				promised[k], things[k] = e, w
			}
		}
		ledger.Unlock()
		clone := crashed(mem, percent, rng)
		for k, e := range promised {
			// Left while the clone was made: not promised any more.
			if now, ok := lower.Lookup(&e.Name); !ok || now.Generation != e.Generation {
				delete(promised, k)
			}
		}
		s.afterCrash(onMem(cfg, clone), promised, things)
	}
	close(stop)
	writers.Wait()
	s.check(lower.Tier)
	must(t, lower.close())
}

// mkdirs makes a tier's directory last, as mkdir and a sync of its parent do on a
// disk: the root of a MemFS cannot be synced otherwise.
func (s *shelf) mkdirs(mem *vfs.MemFS, cfg Config) {
	if err := mem.MkdirAll(cfg.Dir, 0o700); err != nil {
		s.Fatal(err)
	}
	root, err := mem.OpenDir("")
	if err != nil {
		s.Fatal(err)
	}
	if err := errors.Join(root.Sync(), root.Close()); err != nil {
		s.Fatal(err)
	}
}

func (s *shelf) afterCrash(cfg Config, promised map[uint64]tier.Entry, things map[uint64]thing) {
	s.Helper()
	lower := s.open(cfg)
	if h := lower.Health(); h.State != StateOK {
		s.Fatalf("after a crash: %+v", h)
	}
	for k := range promised {
		if err := s.read(lower.Tier, things[k]); err != nil {
			s.Errorf("of what was synced, %d of kind %d: %v", k, things[k].kind, err)
		}
	}
	found := lower.List(Filter{}, nil, 1<<20)
	byKey := map[tier.Name]thing{}
	for k := range 3 {
		for i := range 1000 {
			w := segments(k*1000+i, 1)[0]
			byKey[w.name()] = w
		}
		for i := range 20 {
			for _, w := range chain(50_000+k*1000+10*i, 4, tenantB) {
				byKey[w.name()] = w
			}
		}
	}
	for _, e := range found {
		w, known := byKey[e.Name]
		if !known {
			s.Errorf("%x is there and was never written", e.Key[:4])
			continue
		}
		if err := s.read(lower.Tier, w); errors.Is(err, errWrong) || !mayFail(err) {
			s.Errorf("%x: %v", e.Key[:4], err)
		}
	}
	s.mustWrite(lower.Tier, segments(90_000, 1)[0], tier.LevelSynced)
	s.check(lower.Tier)
	if err := lower.close(); err != nil {
		s.Error(err)
	}
}

// A process that dies loses nothing that was logged: the kernel has it.
func TestKilledProcessKeepsLogged(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewCrashableMem()
	cfg := onMem(s.config(), mem)
	s.mkdirs(mem, cfg)
	lower := s.openOK(cfg)
	things := append(segments(1, 30), chain(100, 5, tenantB)...)
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	killed := s.openOK(onMem(cfg, crashed(mem, 100, rand.New(rand.NewPCG(1, 2)))))
	for _, w := range things {
		s.mustRead(killed.Tier, w)
	}
	s.check(killed.Tier)
}

// What may have lost its bytes with the power is not called safe before it was
// read: put again, it is written again; left alone, it is read, and lost or raised.
func TestSuspect(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	mem := vfs.NewCrashableMem()
	cfg := onMem(s.config(), mem)
	s.mkdirs(mem, cfg)
	w := segments(1, 4)
	lower := s.openOK(cfg)
	s.mustWrite(lower.Tier, w[3], tier.LevelSynced)
	for _, w := range w[:3] {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	// The rows reached the disk, the bytes of the first two did not.
	lost := crashed(mem, 100, rand.New(rand.NewPCG(1, 2)))
	after := onMem(cfg, lost)
	faults := slabtest.NewFaults(after.Slabs, 1)
	for _, w := range w[:2] {
		n := w.name()
		d, err := lower.Detail(context.Background(), n)
		must(t, err)
		must(t, faults.Flip("000001.slab", d.Runs[0].Off+4096+100, 1))
	}
	again, err := Open(after) // nothing is read before Run
	must(t, err)
	for i, want := range []tier.Level{tier.LevelMemory, tier.LevelMemory, tier.LevelMemory, tier.LevelLogged} {
		n := w[i].name()
		if e, ok := again.Lookup(&n); !ok || e.Level != want {
			t.Errorf("%d: %+v, %v", i, e, ok)
		}
	}
	put, err := s.begin(again, w[0], tier.LevelSynced)
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- again.Run(context.Background()) }()
	if out := <-put; out.err != nil || out.reached != tier.LevelSynced {
		t.Errorf("%+v", out)
	}
	s.mustRead(again, w[0])
	bad, good := w[1].name(), w[2].name()
	await(t, "all to be read", func() bool {
		_, there := again.Lookup(&bad)
		e, _ := again.Lookup(&good)
		return !there && e.Level > tier.LevelMemory
	})
	if c := again.Counters(); c.Corrupt != 1 {
		t.Errorf("%+v", c)
	}
	s.check(again)
	if err := errors.Join(again.Close(), <-ended); err != nil {
		t.Error(err)
	}
	closed := s.openOK(after)
	for _, i := range []int{0, 2, 3} {
		n := w[i].name()
		if e, ok := closed.Lookup(&n); !ok || e.Level != tier.LevelLogged {
			t.Errorf("%d after closing in good order: %+v, %v", i, e, ok)
		}
	}
}
