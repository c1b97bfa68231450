package slab

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/tier"
	"golang.org/x/sys/unix"
)

// ErrNoSpace is beside unix.ENOSPC or unix.EDQUOT in an error's chain: the file
// system is full, or our share of it is.
var ErrNoSpace = errors.New("slab: no space left on the file system")

// ErrFragmented is ErrFull although enough bytes are free: they lie in more than
// MaxRuns runs.
var ErrFragmented = fmt.Errorf("slab: free space in too many pieces: %w", tier.ErrFull)

// ErrMissing is a file or directory in use whose name no longer leads to it: what is
// written to it is lost with it, however often it is synced.
var ErrMissing = errors.New("removed or renamed")

// ErrKind is what has the name of a slab and is no file: a link, a FIFO, a device.
var ErrKind = errors.New("not a slab file")

// Why a file was refused as a slab. A refusal that is none of these is an error
// of the file system, and says nothing about the bytes.
var (
	ErrUnfinished = errors.New("slab: never finished")  // its creation was cut short: nothing in it was ever given out
	ErrHeader     = errors.New("slab: damaged header")  // not a slab, or not any more
	ErrVersion    = errors.New("slab: another version") // intact, of another release
	ErrStore      = errors.New("slab: another store")   // intact, of another directory
	ErrSize       = errors.New("slab: wrong size")      // the file is not as long as its header says
	ErrGranule    = errors.New("slab: another granule") // intact, given out in other units
)

// failed names what was tried, and marks a full file system as ErrNoSpace.
func failed(what string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%s: %w: %w", what, ErrNoSpace, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func failedTransfer(verb, name string, bytes, off int64, err error) error {
	return failed(fmt.Sprintf("%s %s: %d bytes at %d", verb, name, bytes, off), err)
}
