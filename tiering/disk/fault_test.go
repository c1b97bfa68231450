package disk

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

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
