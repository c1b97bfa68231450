package catalog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
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
	g       *guard
	name    string
	f       vfs.File     // nil after a Create that failed
	written atomic.Int64 // bytes

	mu sync.Mutex // held across a sync, by design: whoever waits wants that sync or the next
	// Guarded by mu.
	synced int64 // bytes; -1 = not even the file's length of 0
	closed bool
}

func (g *guard) createLog(name string, category vfs.DiskWriteCategory) vfs.File {
	l := &logFile{g: g, name: name, synced: -1}
	g.changeQuietly("create log "+name, func() (err error) {
		if l.f, err = g.FS.Create(name, category); err != nil {
			l.f = nil
			return err
		}
		g.keep(l, l.f)
		g.mu.Lock()
		g.logs[l] = struct{}{}
		g.mu.Unlock()
		return nil
	})
	return l
}

// Write always succeeds for Pebble.
func (l *logFile) Write(p []byte) (int, error) {
	length := len(p)
	if l.f == nil {
		return length, nil
	}
	l.g.changeQuietly("write log "+l.name, func() error {
		n, err := l.f.Write(p)
		l.written.Add(int64(n))
		if err == nil && n < length {
			err = io.ErrShortWrite
		}
		return err
	})
	return length, nil
}

func (l *logFile) Sync() error                { return nil }
func (l *logFile) SyncData() error            { return nil }
func (l *logFile) SyncTo(int64) (bool, error) { return false, nil }

func (l *logFile) Preallocate(off, length int64) error {
	if l.f != nil && l.g.tryEnter() {
		defer l.g.leave()
		return l.f.Preallocate(off, length) // nothing depends on it
	}
	return nil
}

// reallySync makes sure that what is written when it is called is on the disk.
func (l *logFile) reallySync() {
	want := l.written.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.synced < want && !l.closed {
		l.syncLocked()
	}
}

func (l *logFile) syncLocked() {
	end := l.written.Load()
	l.g.changeQuietly("sync log "+l.name, func() error {
		// A sync that failed is never tried again: the kernel may have dropped
		// what it could not write, and answer the next one with success.
		if err := l.f.SyncData(); err != nil {
			return err
		}
		l.synced = end
		l.g.syncs.Add(1)
		return nil
	})
}

// Close makes up for the syncs that were skipped. It always succeeds for Pebble.
func (l *logFile) Close() error {
	if l.f == nil {
		return nil
	}
	l.mu.Lock()
	if l.synced < l.written.Load() {
		l.syncLocked()
	}
	l.closed = true
	l.mu.Unlock()
	l.g.mu.Lock()
	delete(l.g.logs, l)
	l.g.mu.Unlock()
	if err := l.g.closeKept(l); err != nil {
		l.g.fail(fmt.Errorf("close log %s: %w", l.name, err))
	}
	return nil
}

func (l *logFile) Stat() (vfs.FileInfo, error) {
	return logInfo{name: l.name, bytes: l.written.Load()}, nil
}

func (l *logFile) Fd() uintptr {
	if l.f == nil {
		return vfs.InvalidFd
	}
	return l.f.Fd()
}

func (l *logFile) Read([]byte) (int, error)           { return 0, errWriteOnly }
func (l *logFile) ReadAt([]byte, int64) (int, error)  { return 0, errWriteOnly }
func (l *logFile) WriteAt([]byte, int64) (int, error) { return 0, errWriteOnly }
func (l *logFile) Prefetch(int64, int64) error        { return nil }

var errWriteOnly = errors.New("a log is written from front to end")

// logInfo is what Pebble may ask about a log, answered without the disk.
type logInfo struct {
	name  string
	bytes int64
}

func (i logInfo) Name() string           { return i.name }
func (i logInfo) Size() int64            { return i.bytes }
func (i logInfo) Mode() fs.FileMode      { return 0o644 }
func (i logInfo) ModTime() time.Time     { return time.Time{} }
func (i logInfo) IsDir() bool            { return false }
func (i logInfo) Sys() any               { return nil }
func (i logInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

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
