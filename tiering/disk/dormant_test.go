package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// profilePath is where the file of a profile lies.
func profilePath(fs vfs.FS, cfg Config, p *profile.Profile) string {
	fp := p.Fingerprint()
	return fs.PathJoin(cfg.Dir, profileDir, fmt.Sprintf("%x", fp[:]))
}

// setFile writes a file of a file system in memory over.
func setFile(t testing.TB, fs vfs.FS, path string, content []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(bytes.Clone(content))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	must(t, err)
}

func found(t *Tier, things []thing) (n int) {
	for _, w := range things {
		name := w.name()
		if _, ok := t.Lookup(&name); ok {
			n++
		}
	}
	return n
}

// An error of reading a profile says nothing about the entries of its model: they are
// kept and not served, others are, and they are served again once the file reads,
// without a restart and after one.
func TestUnreadableProfileKeepsItsEntries(t *testing.T) {
	tiertest.Leaks(t)
	for _, errno := range []unix.Errno{unix.EACCES, unix.EIO, unix.EMFILE} {
		for name, kind := range map[string]errorfs.OpKind{"open": errorfs.OpOpen, "read": errorfs.OpFileRead} {
			t.Run(fmt.Sprintf("%s: %v", name, errno), func(t *testing.T) {
				s := newShelf(t)
				mem := vfs.NewMem()
				cfg := onMem(quick(s.config()), mem)
				lost, kept := append(segments(1, 6), things(smallOne, chain(20, 3, tenantB))...), chain(50, 3, tenantB)
				s.filled(cfg, append(append([]thing{}, lost...), kept...))
				var unreadable atomic.Bool
				unreadable.Store(true)
				path := profilePath(mem, cfg, smallOne)
				cfg.Index = failing(mem, &unreadable, errno, func(op errorfs.Op) bool { return op.Path == path && op.Kind == kind })
				for range 2 { // what one start does not read, the next one has
					lower := s.openOK(cfg)
					if h := lower.Health(); h.Dormant != len(lost) || !strings.Contains(h.DormantCause, errno.Error()) {
						t.Errorf("%+v", h)
					}
					if c := lower.Counters(); c.Dormant != uint64(len(lost)) || c.Dropped != 0 || c.Entries != uint64(len(lost)+len(kept)) {
						t.Errorf("%+v", c)
					}
					if n := found(lower.Tier, lost); n != 0 {
						t.Errorf("%d entries without profile are found", n)
					}
					for _, w := range kept {
						s.mustRead(lower.Tier, w)
					}
					s.check(lower.Tier)
					must(t, lower.close())
				}
				lower := s.openOK(cfg)
				unreadable.Store(false)
				await(t, "entries of a profile that reads again", func() bool { return found(lower.Tier, lost) == len(lost) })
				await(t, "health", func() bool { return lower.Health().Dormant == 0 })
				for _, w := range append(lost, kept...) {
					s.mustRead(lower.Tier, w)
				}
				s.check(lower.Tier)
			})
		}
	}
}

// things gives another profile to some.
func things(p *profile.Profile, list []thing) []thing {
	for i := range list {
		list[i].profile = p
	}
	return list
}

// A profile file that power loss has emptied, or that was damaged, keeps its entries,
// over restarts too, until an engine registers the profile again: then the file is
// written anew.
func TestDamagedProfileIsWrittenAnew(t *testing.T) {
	tiertest.Leaks(t)
	whole := smallOne.Canonical()
	for name, content := range map[string][]byte{
		"emptied": nil, "cut in half": whole[:len(whole)/2], "zeros": make([]byte, len(whole)),
		"another's": smallTwo.Canonical(), "too large": make([]byte, profile.MaxCanonicalBytes+1),
	} {
		for _, by := range []string{"registered", "admitted"} {
			t.Run(name+", "+by, func(t *testing.T) {
				s := newShelf(t)
				mem := vfs.NewMem()
				cfg := onMem(quick(s.config()), mem)
				list := append(segments(1, 6), things(smallOne, chain(20, 3, tenantB))...)
				s.filled(cfg, list)
				setFile(t, mem, profilePath(mem, cfg, smallOne), content)
				if lower := s.openOK(cfg); lower.close() != nil {
					t.Fatal("it does not close")
				}
				var registered atomic.Bool
				cfg.Profile = func(fp profile.Fingerprint) *profile.Profile {
					if registered.Load() && fp == smallOne.Fingerprint() {
						return smallOne
					}
					return nil
				}
				lower := s.openOK(cfg)
				if h := lower.Health(); h.Dormant != len(list) {
					t.Errorf("%+v", h)
				}
				if by == "registered" {
					registered.Store(true)
				} else if err := s.write(lower.Tier, list[0], tier.LevelLogged); !errors.Is(err, tier.ErrUnavailable) {
					t.Errorf("an object of a profile that has no file is admitted: %v", err)
				}
				await(t, "the entries", func() bool { return found(lower.Tier, list) == len(list) })
				await(t, "health", func() bool { return lower.Health().Dormant == 0 })
				await(t, "its end", func() bool { // its entries are served a moment before
					lower.mu.Lock()
					defer lower.mu.Unlock()
					return len(lower.mount.dormant) == 0
				})
				s.mustWrite(lower.Tier, segments(70, 1)[0], tier.LevelLogged)
				s.check(lower.Tier)
				must(t, lower.close())
				cfg.Profile = nil
				lower = s.openOK(cfg)
				for _, w := range list {
					s.mustRead(lower.Tier, w)
				}
				if r := lower.close(); r != nil {
					t.Fatal(r)
				}
				if r := s.mustCheck(cfg, true); !r.Clean() {
					t.Errorf("%v", r.Problems)
				}
			})
		}
	}
}

// Entries without profile count as others do and make room for others, by budget, by
// quota and by an operator.
func TestDormantEntriesMakeRoom(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	mem := vfs.NewMem()
	cfg := onMem(quick(s.config()), mem)
	cfg.PublicBytes, cfg.PrivateBytes, cfg.SlabBytes = 1<<20, 0, 256<<10
	old := segments(1, 30)
	s.filled(cfg, old)
	setFile(t, mem, profilePath(mem, cfg, smallOne), nil)
	lower := s.openOK(cfg)
	used := lower.Used(tenantA)
	if freed := trim(lower.Tier, tenantA, used/10); freed < used/10 || lower.Used(tenantA) != used-freed {
		t.Errorf("trimmed %d of %d bytes", freed, used)
	}
	n := old[29].name()
	if !lower.Remove(&n) {
		t.Error("an operator cannot remove what is not served")
	}
	s.check(lower.Tier)
	young := things(wide(profile.BF16), segments(100, 200))
	for _, w := range young {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	if h := lower.Health(); h.Dormant != 0 || h.State != StateOK {
		t.Errorf("%+v", h)
	}
	s.check(lower.Tier)
	// Nothing is left of the model: its next object is admitted, once that was seen.
	await(t, "an object of the profile", func() bool {
		err := s.write(lower.Tier, old[0], tier.LevelLogged)
		return err == nil
	})
	s.mustRead(lower.Tier, old[0])
}

// What a killed process wrote last is read before it counts as synced, also where its
// profile is known later only. What is synced meanwhile counts.
func TestDormantEntriesStaySuspect(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	mem := vfs.NewCrashableMem()
	cfg := onMem(s.config(), mem)
	s.mkdirs(mem, cfg)
	list := segments(1, 8)
	lower := s.openOK(cfg)
	s.mustWrite(lower.Tier, list[0], tier.LevelSynced)
	for _, w := range list[1:] {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	after := crashed(mem, 100, rand.New(rand.NewPCG(1, 2)))
	path := profilePath(mem, cfg, smallOne)
	cfg = onMem(quick(cfg), after)
	setFile(t, after, path, nil)
	lower = s.openOK(cfg)
	s.mustWrite(lower.Tier, chain(50, 1, tenantB)[0], tier.LevelSynced)
	must(t, lower.close())
	cfg.Profile = func(profile.Fingerprint) *profile.Profile { return smallOne }
	later, err := Open(cfg) // before it runs
	must(t, err)
	later.wake(later.mount)
	later.mu.Lock()
	phases := map[phase]int{}
	for _, e := range later.index {
		phases[e.phase]++
	}
	later.mu.Unlock()
	if phases[suspect] != 7 || phases[logged] != 2 {
		t.Errorf("phases %v: bytes that nobody has read count as synced, or synced ones do not", phases)
	}
	ended := make(chan error, 1)
	go func() { ended <- later.Run(context.Background()) }()
	await(t, "all are read", func() bool {
		later.mu.Lock()
		defer later.mu.Unlock()
		return len(later.suspects) == 0
	})
	for _, w := range list {
		s.mustRead(later, w)
	}
	if err := errors.Join(later.Close(), <-ended); err != nil {
		t.Error(err)
	}
	// They were read and synced: no start reads them again.
	last, err := Open(cfg)
	must(t, err)
	last.wake(last.mount)
	last.mu.Lock()
	if n := len(last.suspects); n != 0 {
		t.Errorf("%d entries are to be read again", n)
	}
	last.mu.Unlock()
	must(t, last.Close())
}
