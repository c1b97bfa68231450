package slab

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/tier"
	"golang.org/x/sys/unix"
)

// ErrNoSpace is in an error's chain together with unix.ENOSPC or unix.EDQUOT: the file
// system, or our quota of it, is full.
var ErrNoSpace = errors.New("slab: no space left on the file system")

// ErrFragmented is ErrFull although enough bytes are free: they are in more than MaxRuns
// runs.
var ErrFragmented = fmt.Errorf("slab: free space in too many pieces: %w", tier.ErrFull)

// ErrMissing reports a file or directory in use whose name no longer leads to it: what is
// written to it is lost with it, however often it is synced.
var ErrMissing = errors.New("removed or renamed")

// ErrKind reports a name of a slab that is not a file but a link, a FIFO or a device.
var ErrKind = errors.New("not a slab file")

// Why a file was refused as a slab. Any other error is one of the file system, and says
// nothing about the bytes.
var (
	ErrUnfinished = errors.New("slab: never finished")  // its creation was interrupted: nothing in it was ever allocated
	ErrHeader     = errors.New("slab: damaged header")  // not a slab, or no longer
	ErrVersion    = errors.New("slab: another version") // intact, from another release
	ErrStore      = errors.New("slab: another store")   // intact, from another directory
	ErrSize       = errors.New("slab: wrong size")      // the file's length is not the one in its header
	ErrGranule    = errors.New("slab: another granule") // intact, with another granule size
)

// failed adds what was tried, and marks a full file system as ErrNoSpace.
func failed(what string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%s: %w: %w", what, ErrNoSpace, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func failedTransfer(verb, name string, bytes, off int64, err error) error {
	return failed(fmt.Sprintf("%s %s: %d bytes at %d", verb, name, bytes, off), err)
}
