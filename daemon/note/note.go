// Package note keeps what a daemon remembers over restarts in small files of the disk
// tier: read once, written now and then if it has changed, and once more at the end. What
// a note says is its owner's. The disk may hang, and only Run touches it.
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

// Every is how often a note is written at most: what a killed daemon may forget.
const Every = 30 * time.Second

// wait is the longest between attempts to read, while the directory is not open.
const wait = time.Second

// Disk is where notes are kept.
type Disk interface {
	Note(name string) ([]byte, error)
	KeepNote(name string, content []byte) error
}

// Keeper is what notes have in common.
type Keeper struct {
	Disk  Disk
	Every time.Duration // 0 = Every
	Log   zerolog.Logger
}

// Note is one file. Its fields are fixed before Run.
type Note struct {
	Keeper
	Name string
	Most int // bytes that it may have
	// Take takes up what an earlier start has noted. Its error says that the note is
	// damaged; then it has taken nothing.
	Take func(content []byte) error
	// Lost is what is not known without it, for the log.
	Lost string
	// Content is what there is to note. Of more than Most bytes nothing is written.
	Content func() ([]byte, error)

	last [sha256.Size]byte // of what the file has; owned by Run
}

// Run takes up the note, and then writes it now and then until ctx ends, and once more.
// What was not read is not written over.
func (n *Note) Run(ctx context.Context) error {
	told := false
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, wait) {
		err := n.Load()
		if err == nil {
			break
		}
		if !told && !errors.Is(err, tier.ErrUnavailable) {
			told = true
			n.Log.Warn().Err(err).Str("tier", "disk").Str("file", n.Name).Msg("a note cannot be read, trying again")
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

// sleep reports whether the time has passed before ctx ended.
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

// Load takes up what was noted. Its error says to try again; what is damaged is told
// and left behind, since it decides nothing.
func (n *Note) Load() error {
	content, err := n.Disk.Note(n.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, tier.ErrCorrupt): // larger than any note
	case err != nil:
		return err
	case len(content) > n.Most:
		err = fmt.Errorf("%d bytes, most %d", len(content), n.Most)
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

// Save writes the note, if it has changed.
func (n *Note) Save() {
	content, err := n.Content()
	sum := sha256.Sum256(content)
	switch {
	case err != nil || sum == n.last:
	case len(content) > n.Most: // it would not be read
		err = fmt.Errorf("%d bytes, most %d", len(content), n.Most)
	default:
		err = n.Disk.KeepNote(n.Name, content)
	}
	if err != nil {
		n.Log.Debug().Err(err).Str("tier", "disk").Str("file", n.Name).Msg("not noted now")
		return
	}
	n.last = sum
}
