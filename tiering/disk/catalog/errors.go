package catalog

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/spliced-kv/spliced/tiering/tier"
)

var (
	// ErrFailed is beside the cause in what every call answers once the catalogue
	// has failed. It stays so until another one is opened.
	ErrFailed = errors.New("catalog: failed")
	// ErrClosed is what calls after Close answer.
	ErrClosed = errors.New("catalog: closed")
	// ErrVersion is a catalogue, or a row of it, of another version.
	ErrVersion = errors.New("catalog: another version")
	// ErrStore is a catalogue that belongs to another directory's slabs.
	ErrStore = errors.New("catalog: another store")
)

// checkVersion looks at the byte that every row begins with.
func checkVersion(b []byte, want byte, what string) error {
	switch {
	case len(b) == 0:
		return fmt.Errorf("empty %s row: %w", what, tier.ErrCorrupt)
	case b[0] != want:
		return fmt.Errorf("%s row of version %d, want %d: %w", what, b[0], want, ErrVersion)
	}
	return nil
}

// marked adds tiering.ErrCorrupt to what Pebble calls corruption.
func marked(err error) error {
	if err != nil && pebble.IsCorruptionError(err) {
		return fmt.Errorf("%w: %w", tier.ErrCorrupt, err)
	}
	return err
}
