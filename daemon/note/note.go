// Package note stores what a daemon remembers over restarts in small files of the disk tier. They
// are read once, written periodically if they have changed, and once more at the end. The owner
// of a note defines its content. The disk may hang, and only Run accesses it.
package note

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Every is the shortest interval between writes: a killed daemon may lose that much.
const Every = 30 * time.Second

// wait is the longest interval between attempts to read, while the directory is not open.
const wait = time.Second

// Disk stores notes.
type Disk interface {
	Note(name string) ([]byte, error)
	KeepNote(name string, content []byte) error
}

// Keeper holds what notes have in common.
type Keeper struct {
	Disk  Disk
	Every time.Duration // 0 = Every
	Log   zerolog.Logger
}

// Note is one file. Its fields are fixed before Run.
type Note struct {
	Keeper
	Name string
	Most int // maximum size in bytes
	// Take loads the note of an earlier start. It returns an error if the note is damaged;
	// then it has loaded nothing.
	Take func(content []byte) error
	// Lost describes the lost knowledge for the log.
	Lost string
	// Content returns the new content. If it is larger than Most, nothing is written.
	Content func() ([]byte, error)

	last [sha256.Size]byte // of the file's content; owned by Run
}

// Run reads the note, then writes it periodically until ctx ends, and once more. A note
// that was not read is not overwritten.
func (n *Note) Run(ctx context.Context) error {
	told := false
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, wait) {
		err := n.Load()
		if err == nil {
			break
		}
		if !told && !errors.Is(err, tier.ErrUnavailable) {
			told = true
			n.Log.Warn().Err(err).Str("tier", "disk").Str("file", n.Name).Msg("cannot read a state file, retrying")
		}
		if ctx.Err() != nil {
			return nil
		}
		sleep(ctx, pause)
	}
	every := n.Every
	if every == 0 {
		every = Every
	}
	for sleep(ctx, every) {
		n.Save()
	}
	n.Save()
	return nil
}

// sleep reports whether d has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Load reads the note. An error means that the caller should retry. A damaged note is
// logged and ignored, since no decision depends on it.
func (n *Note) Load() error {
	content, err := n.Disk.Note(n.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, tier.ErrCorrupt): // larger than any note
	case err != nil:
		return err
	case len(content) > n.Most:
		err = fmt.Errorf("%d bytes, at most %d", len(content), n.Most)
	default:
		err = n.Take(content)
	}
	if err != nil {
		n.Log.Warn().Err(err).Str("file", n.Name).Msg(n.Lost)
		return nil
	}
	n.last = sha256.Sum256(content)
	return nil
}

// Save writes the note if it has changed.
func (n *Note) Save() {
	content, err := n.Content()
	sum := sha256.Sum256(content)
	switch {
	case err != nil || sum == n.last:
	case len(content) > n.Most: // it would not be read
		err = fmt.Errorf("%d bytes, at most %d", len(content), n.Most)
	default:
		err = n.Disk.KeepNote(n.Name, content)
	}
	if err != nil {
		n.Log.Debug().Err(err).Str("tier", "disk").Str("file", n.Name).Msg("state file not written, retrying")
		return
	}
	n.last = sum
}
