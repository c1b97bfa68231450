package disk

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// Close finishes what was started, and makes it last.
func TestCloseDrains(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1)
	lower := s.openOK(cfg)
	entered, release := stall(faults, slabtest.OpWrite)
	things := segments(1, 10)
	var answers []<-chan outcome
	for _, w := range things {
		done, err := s.begin(lower.Tier, w, tier.LevelLogged)
		must(t, err)
		answers = append(answers, done)
	}
	<-entered
	closed := make(chan error, 1)
	go func() { closed <- lower.close() }()
	await(t, "admission to end", func() bool {
		k, err := s.admit(lower.Tier, segments(99, 1)[0], 1<<40)
		if err == nil {
			k.Cancel()
		}
		return errors.Is(err, tier.ErrUnavailable)
	})
	release()
	for _, done := range answers {
		if out := <-done; out.err != nil {
			t.Error(out.err)
		}
	}
	must(t, <-closed)
	if h := lower.Health(); h.State != StateClosed {
		t.Errorf("%+v", h)
	}
	again := s.openOK(cfg)
	for _, w := range things {
		s.mustRead(again.Tier, w)
	}
	s.check(again.Tier)
}

// When the context of Run ends, everything that waits is answered, and so is what
// is started later; what was logged is there afterwards.
func TestRunEndsWithItsContext(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	lower, err := Open(cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- lower.Run(ctx) }()
	w := segments(1, 3)
	s.mustWrite(lower, w[0], tier.LevelLogged)
	late, err := s.admit(lower, w[1], 1<<40)
	must(t, err)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	answer := make(chan error, 1)
	late.Start(tier.LevelLogged, func(_ tier.Level, err error) { answer <- err })
	if err := <-answer; !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("started after the end: %v", err)
	}
	if _, err := s.admit(lower, w[2], 1<<40); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("admitted after the end: %v", err)
	}
	s.mustRead(lower, w[0])
	s.check(lower)
	if err := lower.Close(); err != nil {
		t.Error(err)
	}
	s.mustRead(s.openOK(cfg).Tier, w[0])
}

// A disk that does not answer holds Close up for a bounded time.
func TestCloseIsBounded(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1)
	cfg.DrainTime = 10 * time.Millisecond
	lower, err := Open(cfg)
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- lower.Run(context.Background()) }()
	entered, release := stall(faults, slabtest.OpWrite)
	done, err := s.begin(lower, segments(1, 1)[0], tier.LevelLogged)
	must(t, err)
	<-entered
	if err := lower.Close(); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	release()
	<-done
	<-ended
	must(t, lower.mount.Close())
}

// Nor does one that hangs in the last sync.
func TestCloseIsBoundedInItsSync(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1)
	cfg.DrainTime = 50 * time.Millisecond
	lower, err := Open(cfg)
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- lower.Run(ctx) }()
	s.mustWrite(lower, segments(1, 1)[0], tier.LevelLogged)
	stop()
	<-ended // Close has nothing to wait for but the sync
	entered, release := stall(faults, slabtest.OpSync)
	if err := lower.Close(); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	<-entered
	release()
}

// Nor does a caller who hangs in its callback.
func TestCloseIsBoundedInCallbacks(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	cfg.DrainTime = 50 * time.Millisecond
	lower := s.openOK(cfg)
	o := s.object(segments(1, 1)[0])
	k, err := lower.Admit(o, 1<<40)
	must(t, err)
	called, hang, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	k.Start(tier.LevelLogged, func(tier.Level, error) {
		close(called)
		<-hang
		close(over)
	})
	<-called
	if err := lower.close(); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	close(hang)
	<-over
	s.drop(o)
}
