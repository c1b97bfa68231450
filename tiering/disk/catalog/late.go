package catalog

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// lateScheduler delays Pebble's compactions until opening has ended. While Pebble opens,
// it flushes the logs that it replays, which triggers compactions, and then writes more
// files. If one of these writes fails, Pebble closes files that a compaction is using,
// and the compaction panics in a goroutine that does not recover.
//
// In all other respects, lateScheduler is a scheduler of Pebble, but without the timer that
// Pebble's default scheduler has, and which keeps running after a failed opening. The timer
// is only needed if the limit of parallel compactions changes; here the limit is always
// one.
type lateScheduler struct {
	*pebble.ConcurrencyLimitScheduler
	opened atomic.Bool
	db     pebble.DBForCompaction
	cores  int // cores for each compaction
}

func newLateScheduler() *lateScheduler {
	return &lateScheduler{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// Register is called first, while Pebble opens.
func (s *lateScheduler) Register(cores int, db pebble.DBForCompaction) { s.cores, s.db = cores, db }

// The method open starts the compaction that was requested while Pebble opened. Pebble
// would not request it again, since it has recorded that a compaction is waiting.
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

// UpdateGetAllowedWithoutPermission is called when a flush may have changed the limit of
// compactions.
func (s *lateScheduler) UpdateGetAllowedWithoutPermission() {
	if s.opened.Load() {
		s.ConcurrencyLimitScheduler.UpdateGetAllowedWithoutPermission()
	}
}
