package disk

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// crashed is a file system as power loss leaves it.
func crashed(mem *vfs.MemFS, percent int, rng *rand.Rand) *vfs.MemFS {
	return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
}

// mkdirs makes a tier's directory last, as mkdir and a sync of its parent do on a
// disk: the root of a MemFS cannot be synced otherwise.
func (s *shelf) mkdirs(mem *vfs.MemFS, cfg Config) {
	must(s, mem.MkdirAll(cfg.Dir, 0o700))
	root, err := mem.OpenDir("")
	must(s, err)
	must(s, errors.Join(root.Sync(), root.Close()))
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
