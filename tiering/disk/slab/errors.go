package slab

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/tier"
	"golang.org/x/sys/unix"
)

// ErrNoSpace reports that the file system, or our quota on it, is full. unix.ENOSPC or
// unix.EDQUOT is in the same error chain.
var ErrNoSpace = errors.New("slab: no space left on the file system")

// ErrFragmented is a tier.ErrFull: enough bytes are free, but in more than MaxRuns runs.
var ErrFragmented = fmt.Errorf("slab: free space in too many pieces: %w", tier.ErrFull)

// ErrMissing reports that an open file or directory is no longer found under its name.
// All bytes written to it are lost, even if they are synced.
var ErrMissing = errors.New("removed or renamed")

// ErrKind reports that a slab's name leads to a link, a FIFO or a device instead of a file.
var ErrKind = errors.New("not a slab file")

// These errors say why a file was refused as a slab. Any other error comes from the file
// system and says nothing about the bytes in the file.
var (
	ErrUnfinished = errors.New("slab: never finished")  // its creation was interrupted: no entry was ever written to it
	ErrHeader     = errors.New("slab: damaged header")  // the file is not a slab, or its header was overwritten
	ErrVersion    = errors.New("slab: another version") // intact, but of another release
	ErrStore      = errors.New("slab: another store")   // intact, but of another directory
	ErrSize       = errors.New("slab: wrong size")      // the file's length is not the one in its header
	ErrGranule    = errors.New("slab: another granule") // intact, but with another granule size
)

// failed adds the failed operation to an error, and ErrNoSpace if the file system is full.
func failed(what string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%s: %w: %w", what, ErrNoSpace, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func failedTransfer(verb, name string, bytes, off int64, err error) error {
	return failed(fmt.Sprintf("%s %s: %d bytes at %d", verb, name, bytes, off), err)
}
