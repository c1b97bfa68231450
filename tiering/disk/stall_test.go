package disk

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// clock is time that a test moves on.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1e9, c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

// A disk whose reads do not return is a miss once that is certain, and only until
// they do; it is written to meanwhile.
func TestHungReadsAreMissesUntilTheyReturn(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	var c clock
	cfg, faults := faulty(s.config(), 1)
	cfg.Now, cfg.ticks = c.now, c.now
	lower := s.openOK(cfg)
	w := segments(1, 3)
	s.mustWrite(lower.Tier, w[0], tier.LevelSynced)
	n := w[0].name()
	held, _ := lower.Lookup(&n)
	entered, release := stall(faults, slabtest.OpRead)
	read := make(chan error, 1)
	go func() { read <- s.read(lower.Tier, w[0]) }()
	<-entered
	c.advance(volume.StallAfter - 1)
	if _, ok := lower.Lookup(&n); !ok || !lower.Health().Reads || lower.Health().ReadStalled != 0 {
		t.Errorf("after %v it counts as hanging: %+v", volume.StallAfter-1, lower.Health())
	}
	c.advance(2)
	if h := lower.Health(); h.State != StateOK || h.Reads || h.ReadStalled != volume.StallAfter+1 || h.WriteStalled != 0 {
		t.Errorf("health %+v", h)
	}
	if _, ok := lower.Lookup(&n); ok {
		t.Error("found while reads hang")
	}
	if err := s.readEntry(t.Context(), lower.Tier, &held, w[0]); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("another read: %v", err)
	}
	s.mustWrite(lower.Tier, w[1], tier.LevelSynced)
	release()
	if err := <-read; err != nil {
		t.Error(err)
	}
	if h := lower.Health(); !h.Reads || h.ReadStalled != 0 {
		t.Errorf("after it returned: %+v", h)
	}
	s.mustRead(lower.Tier, w[0])
	s.mustRead(lower.Tier, w[1])
	if got := lower.Counters().ReadsRefused; got != 1 {
		t.Errorf("%d reads refused", got)
	}
	s.check(lower.Tier)
}

// While a write or a sync does not return nothing new is taken; what is there is
// found and read.
func TestNothingIsAdmittedWhileWritesHang(t *testing.T) {
	for name, op := range map[string]slabtest.Op{"write": slabtest.OpWrite, "sync": slabtest.OpSync, "new slab": slabtest.OpCreate} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			var c clock
			cfg, faults := faulty(s.config(), 1)
			cfg.Now, cfg.ticks = c.now, c.now
			lower := s.openOK(cfg)
			w := segments(1, 60)
			if op != slabtest.OpCreate {
				s.mustWrite(lower.Tier, w[0], tier.LevelLogged)
			}
			entered, release := stall(faults, op)
			hung, err := s.begin(lower.Tier, w[1], tier.LevelSynced)
			must(t, err)
			<-entered
			c.advance(volume.StallAfter)
			if h := lower.Health(); h.State != StateOK || !h.Reads || h.WriteStalled != volume.StallAfter || h.ReadStalled != 0 {
				t.Errorf("health %+v", h)
			}
			if _, err := s.admit(lower.Tier, w[2], 1<<40); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("admitted: %v", err)
			}
			if op != slabtest.OpCreate {
				s.mustRead(lower.Tier, w[0])
			}
			release()
			if out := <-hung; out.err != nil || out.reached != tier.LevelSynced {
				t.Errorf("%+v", out)
			}
			await(t, "the end of the stall", func() bool { return lower.Health().WriteStalled == 0 })
			s.mustWrite(lower.Tier, w[2], tier.LevelSynced)
			if got := lower.Counters().RefusedState; got != 1 {
				t.Errorf("%d refused", got)
			}
			s.check(lower.Tier)
		})
	}
}
