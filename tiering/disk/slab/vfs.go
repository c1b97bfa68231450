package slab

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// OverVFS returns an FS on a directory of a Pebble file system. If Pebble's catalogue is
// on the same crashable vfs.MemFS, one CrashClone has the slabs and the catalogue of the
// same instant.
//
// MemFS copies a whole file for each Sync and blocks the whole file system meanwhile, so it
// is only suitable for slabs of a few MiB. It knows only the last synced and the newest
// state of a block. Tests that need other states between two syncs have to clone in between.
func OverVFS(fsys vfs.FS, dir string) FS { return vfsDirectory{fsys: fsys, dir: dir} }

type vfsDirectory struct {
	fsys vfs.FS
	dir  string
}

func (d vfsDirectory) path(name string) string { return d.fsys.PathJoin(d.dir, name) }

func (d vfsDirectory) Create(name string, bytes int64) (File, error) {
	what := fmt.Sprintf("create %s: allocate %d bytes", name, bytes)
	if bytes < 0 {
		return nil, fmt.Errorf("%s: %w", what, tier.ErrInvalid)
	}
	if _, err := d.fsys.Stat(d.path(name)); err == nil {
		return nil, fmt.Errorf("%s: %w", what, fs.ErrExist)
	}
	f, err := d.fsys.Create(d.path(name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, failed(what, err)
	}
	if err := errors.Join(writeZeros(f, bytes), f.Close()); err != nil {
		return nil, errors.Join(failed(what, err), d.Remove(name))
	}
	return d.Open(name)
}

// writeZeros fills a new file with zeros. Without that, MemFS would extend the file byte
// by byte when a write begins after its end.
func writeZeros(f vfs.File, bytes int64) error {
	for bytes > 0 {
		// A new slice for each piece, since a vfs.File may modify its argument.
		n, err := f.Write(make([]byte, min(bytes, 1<<20)))
		if err != nil {
			return err
		}
		bytes -= int64(n)
	}
	return nil
}

func (d vfsDirectory) Open(name string) (File, error) {
	info, err := d.fsys.Stat(d.path(name)) // OpenReadWrite would create a missing file
	if err != nil {
		return nil, failed("open "+name, err)
	}
	f, err := d.fsys.OpenReadWrite(d.path(name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, failed("open "+name, err)
	}
	return &vfsFile{name: name, f: f, size: info.Size()}, nil
}

func (d vfsDirectory) Remove(name string) error {
	if err := d.fsys.Remove(d.path(name)); err != nil {
		return failed("remove "+name, err)
	}
	return nil
}

func (d vfsDirectory) List() ([]string, error) {
	names, err := d.fsys.List(d.dir)
	if err != nil {
		return nil, fmt.Errorf("slab directory: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// Free returns math.MaxInt64 if the file system does not know its free bytes.
func (d vfsDirectory) Free() (int64, error) {
	usage, err := d.fsys.GetDiskUsage(d.dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return math.MaxInt64, nil
	}
	if err != nil {
		return 0, failed("free bytes of "+d.dir, err)
	}
	return int64(min(usage.AvailBytes, math.MaxInt64)), nil
}

func (d vfsDirectory) Sync() error {
	f, err := d.fsys.OpenDir(d.dir)
	if err != nil {
		return fmt.Errorf("slab directory: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}

// vfsFile is a file of OverVFS.
type vfsFile struct {
	name string
	f    vfs.File
	size int64
}

func (f *vfsFile) Bytes() int64 { return f.size }
func (f *vfsFile) Direct() bool { return false }
func (f *vfsFile) Close() error { return f.f.Close() }

func (f *vfsFile) ReadAt(bufs [][]byte, off int64) error {
	bytes, err := checkTransfer("read", f.name, f.size, bufs, off)
	if err != nil {
		return err
	}
	at := off
	for _, b := range bufs {
		n, err := f.f.ReadAt(b, at)
		if n < len(b) {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return failedTransfer("read", f.name, bytes, off, err)
		}
		at += int64(n)
	}
	return nil
}

func (f *vfsFile) WriteAt(bufs [][]byte, off int64) error {
	bytes, err := checkTransfer("write", f.name, f.size, bufs, off)
	if err != nil {
		return err
	}
	at := off
	for _, b := range bufs {
		n, err := f.f.WriteAt(b, at)
		if n < len(b) && err == nil {
			err = io.ErrShortWrite
		}
		if err != nil {
			return failedTransfer("write", f.name, bytes, off, err)
		}
		at += int64(n)
	}
	return nil
}

func (f *vfsFile) Sync() error {
	if err := f.f.SyncData(); err != nil {
		return failed("sync "+f.name, err)
	}
	return nil
}
