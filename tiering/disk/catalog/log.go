package catalog

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// logFile is a write-ahead log of Pebble. It writes when it is told to, and does
// not sync when it is told to: Pebble holds back what it is not asked to sync, so
// every commit asks, in order to have its record written; and who needs the
// record on the disk calls syncLogs after that. So those who do not need it
// never wait for a disk, and those who do share their syncs.
//
// Invariant: a log is synced to its end before it is closed. Pebble creates the
// next only after that, so that at most the last log has a torn end, which is
// what it takes for a crash instead of for corruption.
type logFile struct {
	quietFile

	mu sync.Mutex // held across a sync, by design: whoever waits wants that sync or the next
	// Guarded by mu.
	synced int64 // bytes; -1 = not even the file's length of 0
	closed bool
}

// isLog tells Pebble's write-ahead logs, by the rule by which it finds them.
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

// reallySync makes sure that what is written when it is called is on the disk.
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
		// A sync that failed is never tried again: the kernel may have dropped
		// what it could not write, and answer the next one with success.
		if err := l.syncNoted(l.f.SyncData); err != nil {
			return err
		}
		l.synced = end
		l.g.syncs.Add(1)
		return nil
	})
}

// Close makes up for the syncs that were skipped.
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

// syncLogs returns when every record that was written before is on the disk. A
// log that Pebble closes meanwhile was synced by that.
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
