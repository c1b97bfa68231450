package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// mayFail says whether an answer is one that trouble of the disk can lead to.
func mayFail(err error) bool {
	for _, kind := range []error{tier.ErrUnavailable, tier.ErrCorrupt, tier.ErrGone, tier.ErrFull, tier.ErrBusy, tier.ErrInvalid} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return err == nil
}

// faultScript is a life of a tier: it writes, raises, reads, removes, evicts and
// closes, then opens the directory again and reads everything. No error matters
// but wrong bytes.
func (s *shelf) faultScript(cfg Config, again Config) {
	s.Helper()
	things := append(segments(1, 6), chain(20, 3, tenantB)...)
	expect := func(what string, err error) {
		s.Helper()
		if errors.Is(err, errWrong) || !mayFail(err) {
			s.Errorf("%s: %v", what, err)
		}
	}
	lower := s.open(cfg)
	for i, w := range things {
		expect("write", s.write(lower.Tier, w, tier.LevelLogged+tier.Level(i%2)))
	}
	for _, w := range things {
		expect("read", s.read(lower.Tier, w))
	}
	n := things[0].name()
	lower.Remove(&n)
	trim(lower.Tier, tenantA, 1)
	expect("write again", s.write(lower.Tier, things[0], tier.LevelSynced))
	s.check(lower.Tier)
	_ = lower.close()
	lower = s.open(again)
	if h := lower.Health(); h.State != StateOK {
		s.Errorf("opened without faults: %+v", h)
	}
	for _, w := range things {
		expect("read after reopening", s.read(lower.Tier, w))
	}
	expect("write after reopening", s.write(lower.Tier, segments(90, 1)[0], tier.LevelSynced))
	s.mustRead(lower.Tier, segments(90, 1)[0])
	s.check(lower.Tier)
	if err := lower.close(); err != nil {
		s.Error(err)
	}
}

// Every kind of fault, at every call of the file layer, one at a time.
func TestFaultAtEveryCall(t *testing.T) {
	tiertest.Leaks(t)
	kinds := map[string]slabtest.Rule{
		"EIO":       {Kind: slabtest.FaultError},
		"ENOSPC":    {Kind: slabtest.FaultError, Errno: unix.ENOSPC},
		"EROFS":     {Kind: slabtest.FaultError, Errno: unix.EROFS},
		"short":     {Kind: slabtest.FaultShort},
		"torn":      {Kind: slabtest.FaultTorn},
		"torn EIO":  {Kind: slabtest.FaultTorn, Errno: unix.EIO},
		"reordered": {Kind: slabtest.FaultReordered},
		"flip read": {Kind: slabtest.FaultFlipRead},
		"flip rest": {Kind: slabtest.FaultFlipRest},
	}
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			for call := uint64(1); ; call += uint64(short(3, 1)) {
				mem := vfs.NewMem()
				cfg := onMem(s.config(), mem)
				cfg.Workers = 1
				cfg.RetryMin, cfg.RetryMax = time.Millisecond, time.Millisecond
				again := cfg
				faults := slabtest.NewFaults(cfg.Slabs, call)
				cfg.Slabs = faults
				rule.First = call
				faults.Set(rule)
				s.faultScript(cfg, again)
				if s.Failed() {
					t.Fatalf("at call %d", call)
				}
				if faults.Calls(slabtest.AnyOp) < call {
					if call < 20 {
						t.Fatalf("only %d calls", call)
					}
					return
				}
			}
		})
	}
}

// Faults by the thousand, at random, over one tier that lives through them all:
// wrong bytes are never given, and accounts are exact at every moment. The number
// of faults is 10^4, or with SPLICED_LONG set 10^6.
func TestManyFaults(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	want := uint64(short(10_000, 1_000_000))
	if testing.Short() {
		want = 1_000
	}
	for i, coded := range [][]profile.PartKind{nil, {profile.PartS, profile.PartK, profile.PartV}} {
		t.Run(fmt.Sprintf("coded=%v", coded != nil), func(t *testing.T) {
			s.manyFaults(t, seed+uint64(i), coded, want/2)
		})
	}
}

func (s *shelf) manyFaults(t *testing.T, seed uint64, coded []profile.PartKind, want uint64) {
	cfg, faults := faulty(quick(s.config()), seed)
	cfg.PublicBytes, cfg.SlabBytes, cfg.Coded = 1<<20, 256<<10, coded
	var now atomic.Int64
	now.Store(1e18)
	cfg.Now = func() time.Time { return time.Unix(0, now.Load()) } // moved on, so that a breaker does not end the test
	lower := s.open(cfg)
	rng := rand.New(rand.NewPCG(seed, 1))
	var served, lost int
	last := time.Now()
	for faults.InjectedAll() < want {
		now.Add(int64(time.Hour))
		if rng.IntN(50) == 0 {
			faults.Set(randomRules(rng)...)
		}
		if rng.IntN(400) == 0 {
			s.check(lower.Tier)
			faults.Set()
			lower.awaitState(t, StateOK)
		}
		w := segments(rng.IntN(120), 1)[0]
		if rng.IntN(8) == 0 {
			w = chain(1000, 1+rng.IntN(3), tenantB)[0]
		}
		n := w.name()
		var err error
		switch op := rng.IntN(20); {
		case op < 7:
			err = s.write(lower.Tier, w, tier.LevelLogged+tier.Level(rng.IntN(2)))
		case op < 19:
			if err = s.read(lower.Tier, w); err == nil {
				served++
			} else {
				lost++
			}
		default:
			lower.Remove(&n)
		}
		if errors.Is(err, errWrong) || !mayFail(err) {
			t.Fatalf("after %d faults: %v", faults.InjectedAll(), err)
		}
		if long() && time.Since(last) > time.Minute {
			last = time.Now()
			t.Logf("%d faults, %d reads served, %d not", faults.InjectedAll(), served, lost)
		}
	}
	faults.Set()
	lower.awaitState(t, StateOK)
	s.check(lower.Tier)
	t.Logf("%d faults, %d reads served, %d not, %+v", faults.InjectedAll(), served, lost, lower.Counters())
	if served == 0 || lost == 0 {
		t.Errorf("%d reads served and %d not: the faults are too many or too few", served, lost)
	}
	must(t, lower.close())
}

// randomRules are mostly faults of bytes, which go unnoticed until a read, and
// some of calls.
func randomRules(rng *rand.Rand) []slabtest.Rule {
	all := []slabtest.Rule{
		{Op: slabtest.OpRead, Kind: slabtest.FaultFlipRead, Bits: 1 + rng.IntN(3)},
		{Op: slabtest.OpRead, Kind: slabtest.FaultShort},
		{Op: slabtest.OpRead, Kind: slabtest.FaultError},
		{Op: slabtest.OpWrite, Kind: slabtest.FaultTorn},
		{Op: slabtest.OpWrite, Kind: slabtest.FaultReordered},
		{Op: slabtest.OpWrite, Kind: slabtest.FaultFlipRest, Bits: 1 + rng.IntN(3)},
		{Op: slabtest.OpWrite, Kind: slabtest.FaultTorn, Errno: unix.EIO},
		{Op: slabtest.OpWrite, Kind: slabtest.FaultError, Errno: unix.EROFS},
		{Op: slabtest.OpWrite, Kind: slabtest.FaultError, Errno: unix.ENOSPC},
		{Op: slabtest.OpSync, Kind: slabtest.FaultError},
		{Op: slabtest.OpCreate, Kind: slabtest.FaultError, Errno: unix.ENOSPC},
	}
	rules := make([]slabtest.Rule, 1+rng.IntN(3))
	for i := range rules {
		rules[i] = all[rng.IntN(len(all))]
		rules[i].Rate = 0.2 + 0.5*rng.Float64()
		rules[i].Last = slabtest.Forever
	}
	return rules
}
