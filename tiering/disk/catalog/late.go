package catalog

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// lateScheduler delays compactions until Pebble is open. Opening flushes the logs that it
// replays, which triggers compactions, and has files left to write after that. When one
// of these fails, Pebble closes what a compaction is using, and the compaction panics in
// a goroutine that does not recover.
//
// Otherwise it is Pebble's own scheduler. Pebble's default one also has a clock, which
// keeps running after a failed opening; it serves a variable limit of compactions. Here
// the limit is always one.
type lateScheduler struct {
	*pebble.ConcurrencyLimitScheduler
	opened atomic.Bool
	db     pebble.DBForCompaction
	cores  int // per compaction
}

func newLateScheduler() *lateScheduler {
	return &lateScheduler{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// Register is called while Pebble opens, before anything else.
func (s *lateScheduler) Register(cores int, db pebble.DBForCompaction) { s.cores, s.db = cores, db }

// open starts the compaction that was requested while Pebble opened. Pebble has recorded
// that one is waiting, and would not ask again.
func (s *lateScheduler) open() {
	s.ConcurrencyLimitScheduler.Register(s.cores, s.db)
	s.opened.Store(true)
	if ok, grant := s.TrySchedule(); ok && !s.db.Schedule(grant) {
		grant.Done()
	}
}

// TrySchedule reports whether a compaction may start.
func (s *lateScheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !s.opened.Load() {
		return false, nil
	}
	return s.ConcurrencyLimitScheduler.TrySchedule()
}

// UpdateGetAllowedWithoutPermission is called when a flush may have moved the limit.
func (s *lateScheduler) UpdateGetAllowedWithoutPermission() {
	if s.opened.Load() {
		s.ConcurrencyLimitScheduler.UpdateGetAllowedWithoutPermission()
	}
}
