package catalog

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/spliced-kv/spliced/tiering/tier"
)

var (
	// ErrFailed is returned with the cause by every call once the catalogue has failed.
	// The catalogue has to be closed and opened again.
	ErrFailed = errors.New("catalog: failed")
	// ErrClosed is returned by calls after Close.
	ErrClosed = errors.New("catalog: closed")
	// ErrVersion reports that a catalogue, or one of its rows, has another version.
	ErrVersion = errors.New("catalog: another version")
	// ErrStore reports that a catalogue belongs to the slabs of another directory.
	ErrStore = errors.New("catalog: another store")
)

// checkVersion checks the first byte of a row, which is its version.
func checkVersion(b []byte, want byte, what string) error {
	switch {
	case len(b) == 0:
		return fmt.Errorf("empty %s row: %w", what, tier.ErrCorrupt)
	case b[0] != want:
		return fmt.Errorf("%s row of version %d, want %d: %w", what, b[0], want, ErrVersion)
	}
	return nil
}

// marked adds tier.ErrCorrupt to errors that Pebble reports as corruption.
func marked(err error) error {
	if err != nil && pebble.IsCorruptionError(err) {
		return fmt.Errorf("%w: %w", tier.ErrCorrupt, err)
	}
	return err
}
