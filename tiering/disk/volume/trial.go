package volume

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// trialName is the name of a file that is written to test whether writes work.
const trialName = "probe"

// TryWriting writes, syncs and removes a file in the folder of slabs and one in the
// directory. It fails if the disk does not take writes.
func (v *Volume) TryWriting() error {
	_ = v.slabs.Remove(trialName) // left by a crash
	f, err := v.slabs.Create(trialName, slab.BlockBytes)
	if err != nil {
		return err
	}
	err = f.WriteAt([][]byte{slab.AlignedBuffer(slab.BlockBytes)}, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close(), v.slabs.Remove(trialName)); err != nil {
		return err
	}
	if err := replaceFile(v.index, v.dir, trialName, []byte{0}); err != nil {
		return err
	}
	return v.index.Remove(v.path(trialName))
}

// reopenBytes is the most bytes that opening a catalogue may write: tables with the rows
// of the logs that it replays, up to 16 MiB, a new log, and small files.
const reopenBytes = 24 << 20

// reopenName is a file name that Pebble removes when it opens a directory, so that a
// crash does not leave the file there for ever.
const reopenName = "temporary.000000.dbtmp"

// TryReopening checks that the file system has room to open the catalogue again, which takes
// more than the single blocks of TryWriting. It is called before the failed catalogue is
// closed, since lookups find nothing while no catalogue is open. It writes reopenBytes and
// removes them, because a quota on writes does not show in the free bytes of a file system.
func (v *Volume) TryReopening() error {
	free, err := v.set.Free()
	if err != nil {
		return err
	}
	if free < reopenBytes {
		return fmt.Errorf("%d bytes are free, opening the catalogue may take %d: %w", free, reopenBytes, slab.ErrNoSpace)
	}
	path := v.index.PathJoin(v.path(indexDir), reopenName)
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
