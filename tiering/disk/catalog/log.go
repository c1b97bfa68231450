package catalog

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// logFile is a write-ahead log of Pebble. Its Sync does nothing. Pebble holds records back
// until a sync is requested, so every commit requests one to have its record written to
// the kernel. A caller that needs the record on the disk then calls syncLogs. So callers
// that do not need that never wait for the disk, and the others share their syncs.
//
// Invariant: a log is synced to its end before it is closed. Pebble creates the next log
// only after that. So only the last log may have a torn end, which Pebble takes for the
// result of a crash and not for corruption.
type logFile struct {
	quietFile

	mu sync.Mutex // held across a sync, by design: all waiting callers need that sync or the next one
	// Guarded by mu.
	synced int64 // number of synced bytes; -1 = the new file was not synced yet
	closed bool
}

// isLog reports whether a file is a write-ahead log, by the rule that Pebble uses.
func (g *guard) isLog(name string) bool {
	_, _, ok := wal.ParseLogFilename(g.PathBase(name))
	return ok
}

func (g *guard) createLog(name string, category vfs.DiskWriteCategory) vfs.File {
	l := &logFile{quietFile: quietFile{g: g, name: name}, synced: -1}
	g.createQuiet(&l.quietFile, category)
	if l.f != nil {
		g.mu.Lock()
		g.logs[l] = struct{}{}
		g.mu.Unlock()
	}
	return l
}

func (l *logFile) Sync() error                { return nil }
func (l *logFile) SyncData() error            { return nil }
func (l *logFile) SyncTo(int64) (bool, error) { return false, nil }

// reallySync makes sure that everything written before the call is on the disk.
func (l *logFile) reallySync() {
	want := l.written()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.synced < want && !l.closed {
		l.syncLocked()
	}
}

func (l *logFile) syncLocked() {
	end := l.written()
	l.change("sync", func() error {
		// A failed sync is never retried: the kernel may have dropped what it could not
		// write, and report success the next time.
		if err := l.syncNoted(l.f.SyncData); err != nil {
			return err
		}
		l.synced = end
		l.g.syncs.Add(1)
		return nil
	})
}

// Close syncs the log to its end and closes it.
func (l *logFile) Close() error {
	l.mu.Lock()
	if l.synced < l.written() {
		l.syncLocked()
	}
	l.closed = true
	l.mu.Unlock()
	l.g.mu.Lock()
	delete(l.g.logs, l)
	l.g.mu.Unlock()
	return l.quietFile.Close()
}

// syncLogs returns when every record written before the call is on the disk. If Pebble
// closes a log meanwhile, that also syncs it.
func (g *guard) syncLogs() error {
	g.mu.Lock()
	logs := make([]*logFile, 0, len(g.logs))
	for l := range g.logs {
		logs = append(logs, l)
	}
	g.mu.Unlock()
	for _, l := range logs {
		l.reallySync()
	}
	return g.failure()
}
