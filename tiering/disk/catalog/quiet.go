package catalog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"
)

// quietFile is a file that Pebble writes sequentially and depends on: a log, a MANIFEST
// or a marker. Its operations never fail for Pebble. The first error makes the catalogue
// fail, and later operations claim to succeed.
type quietFile struct {
	g    *guard
	name string
	f    vfs.File // nil after a failed Create

	tail struct {
		sync.Mutex
		bytes int64       // written
		sum   xxh3.Hasher // of these bytes; only Write changes it
	}
}

// The method end describes the part of the file that is written by now.
func (q *quietFile) end() syncedPart {
	q.tail.Lock()
	bytes, sum := q.tail.bytes, q.tail.sum
	q.tail.Unlock()
	return syncedPart{name: q.g.PathBase(q.name), bytes: bytes, sum: sum.Sum64()} // Sum64 also initializes a hasher without input
}

// written returns the number of bytes written by now.
func (q *quietFile) written() int64 {
	q.tail.Lock()
	defer q.tail.Unlock()
	return q.tail.bytes
}

// syncNoted syncs the file and records the synced part.
func (q *quietFile) syncNoted(sync func() error) error {
	part := q.end()
	if err := sync(); err != nil {
		return err
	}
	return q.g.mark.note(part)
}

func (g *guard) createQuiet(q *quietFile, category vfs.DiskWriteCategory) {
	g.changeQuietly("create "+q.name, func() error {
		f, err := g.FS.Create(q.name, category)
		if err != nil {
			return err
		}
		q.f = f
		g.keep(q, f)
		return nil
	})
}

func (q *quietFile) Write(p []byte) (int, error) {
	length := len(p)
	q.change("write", func() error {
		sum := q.tail.sum   // without the lock: nothing else changes it
		_, _ = sum.Write(p) // before f.Write, which may modify its argument
		n, err := q.f.Write(p)
		q.tail.Lock()
		q.tail.bytes, q.tail.sum = q.tail.bytes+int64(n), sum
		q.tail.Unlock()
		if err == nil && n < length {
			err = io.ErrShortWrite
		}
		return err
	})
	return length, nil
}

func (q *quietFile) change(what string, op func() error) {
	if q.f != nil {
		q.g.changeQuietly(what+" "+q.name, op)
	}
}

func (q *quietFile) Sync() error {
	q.change("sync", func() error { return q.syncNoted(q.f.Sync) })
	return nil
}

func (q *quietFile) SyncData() error {
	q.change("sync", func() error { return q.syncNoted(q.f.SyncData) })
	return nil
}

func (q *quietFile) SyncTo(length int64) (full bool, err error) {
	q.change("sync", func() (err error) {
		full, err = q.f.SyncTo(length)
		return err
	})
	return full, nil
}

// Preallocate may return an error: nothing depends on it.
func (q *quietFile) Preallocate(off, length int64) error {
	if q.f == nil || !q.g.tryEnter() {
		return nil
	}
	defer q.g.leave()
	return q.f.Preallocate(off, length)
}

func (q *quietFile) Close() error {
	if err := q.g.closeKept(q); err != nil {
		q.g.fail(fmt.Errorf("close %s: %w", q.name, err))
	}
	return nil
}

func (q *quietFile) Stat() (vfs.FileInfo, error) {
	return fileInfo{name: q.g.PathBase(q.name), bytes: q.written()}, nil
}

func (q *quietFile) Fd() uintptr {
	if q.f == nil {
		return vfs.InvalidFd
	}
	return q.f.Fd()
}

var errWriteOnly = errors.New("catalog: the file is written from front to end")

func (q *quietFile) Read([]byte) (int, error)           { return 0, errWriteOnly }
func (q *quietFile) ReadAt([]byte, int64) (int, error)  { return 0, errWriteOnly }
func (q *quietFile) WriteAt([]byte, int64) (int, error) { return 0, errWriteOnly }
func (q *quietFile) Prefetch(int64, int64) error        { return nil }

// fileInfo answers Pebble's questions without the disk.
type fileInfo struct {
	name  string
	bytes int64
}

func (i fileInfo) Name() string           { return i.name }
func (i fileInfo) Size() int64            { return i.bytes }
func (i fileInfo) Mode() fs.FileMode      { return 0o644 }
func (i fileInfo) ModTime() time.Time     { return time.Time{} }
func (i fileInfo) IsDir() bool            { return false }
func (i fileInfo) Sys() any               { return nil }
func (i fileInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
