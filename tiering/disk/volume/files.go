package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// WriteFile writes and syncs a small file in the directory. It replaces a file of the
// same name atomically.
func (v *Volume) WriteFile(name string, content []byte) error {
	defer v.Writes.Begin()()
	return replaceFile(v.index, v.dir, name, content)
}

// ReadFile reads a file of up to the given number of bytes in the directory. fs.ErrNotExist
// means that there is no such file. ErrForeign means that the file belongs to another user,
// is world-writable or is not a regular file. tier.ErrCorrupt means that the file is
// larger.
func (v *Volume) ReadFile(name string, most int) ([]byte, error) {
	defer v.Reads.Begin()()
	if v.index == vfs.Default {
		if err := ours(v.path(name), unix.S_IFREG, os.Geteuid()); err != nil {
			return nil, err
		}
	}
	return readFile(v.index, v.path(name), most)
}

// readFile reads a whole file of up to the given number of bytes; tier.ErrCorrupt if it is
// larger.
func readFile(index vfs.FS, path string, most int) ([]byte, error) {
	f, err := index.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(b) > most {
		err = fmt.Errorf("more than %d bytes: %w", most, tier.ErrCorrupt)
	}
	return b, err
}

// replaceFile writes a file and syncs it. After a crash the file has its old or its new
// content, never a part.
func replaceFile(index vfs.FS, dir, name string, content []byte) error {
	path := index.PathJoin(dir, name)
	f, err := createPrivate(index, path+".new")
	if err != nil {
		return err
	}
	_, err = f.Write(bytes.Clone(content)) // a vfs.File may modify its argument
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := index.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(index, dir)
}

// createPrivate creates an empty file that no other user can read.
func createPrivate(index vfs.FS, path string) (vfs.File, error) {
	if index == vfs.Default {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			err = errors.Join(f.Chmod(0o600), f.Close()) // a file left by a crash may have another mode
		}
		if err != nil {
			return nil, err
		}
		return index.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	}
	return index.Create(path, vfs.WriteCategoryUnspecified)
}

func syncDir(index vfs.FS, dir string) error {
	d, err := index.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
