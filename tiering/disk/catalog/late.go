package catalog

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// lateScheduler lets no compaction begin before Pebble is open. Opening flushes
// the logs that it replays, which calls for compactions, and has files left to
// write after that: when one of these fails, Pebble closes what a compaction is
// using, and the compaction panics in a goroutine where nothing recovers from it.
//
// It is Pebble's own scheduler but for that. The one that Pebble makes by default
// has a clock as well, which goes on after an opening that failed; it is for a
// limit of compactions that moves. Ours is always one.
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

// open begins the compaction that was called for while Pebble opened. Pebble has
// noted that one waits, and would not ask again.
func (s *lateScheduler) open() {
	s.ConcurrencyLimitScheduler.Register(s.cores, s.db)
	s.opened.Store(true)
	if ok, grant := s.TrySchedule(); ok && !s.db.Schedule(grant) {
		grant.Done()
	}
}

// TrySchedule says whether a compaction may begin.
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
