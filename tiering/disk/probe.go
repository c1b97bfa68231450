package disk

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// reopenBytes is what opening a catalogue may write: tables of the logs it
// replays, which hold up to 16 MiB, a log, and small files.
const reopenBytes = 24 << 20

// roomName is one of those that Pebble removes when it opens a directory, should a
// crash leave it there.
const roomName = "temporary.000000.dbtmp"

// roomToReopen says whether the catalogue can be opened anew. It is asked before
// the old one is let go of, since all hits go with that: a file system that takes a
// block is not one that takes a catalogue. The write is for limits that the file
// system does not tell as free bytes.
func (v *volume) roomToReopen() error {
	free, err := v.set.Free()
	if err != nil {
		return err
	}
	if free < reopenBytes {
		return fmt.Errorf("disk: %d bytes are free, opening the catalogue may take %d: %w", free, reopenBytes, slab.ErrNoSpace)
	}
	path := v.index.PathJoin(v.path(indexDir), roomName)
	f, err := v.index.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	chunk := make([]byte, 1<<20)
	for range reopenBytes / len(chunk) {
		if _, err = f.Write(chunk); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), v.index.Remove(path))
}
