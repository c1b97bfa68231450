// Package note stores what a daemon remembers over restarts in small files of the disk tier
// (notes). A note is read once, then written periodically if it has changed, and once more at the
// end. The owner of a note defines its content. Since the disk may hang, only Run accesses it.
package note

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Every is the default interval between writes. A daemon that is killed loses changes of at most
// that time.
const Every = 30 * time.Second

// wait is the longest pause between attempts to read while the directory is not open.
const wait = time.Second

// Disk stores notes.
type Disk interface {
	Note(name string) ([]byte, error)
	KeepNote(name string, content []byte) error
}

// Keeper holds the settings that several notes have in common.
type Keeper struct {
	Disk  Disk
	Every time.Duration // 0 = Every
	Log   zerolog.Logger
}

// Note is one file. Its fields are fixed before Run.
type Note struct {
	Keeper
	Name string
	Most int // largest size in bytes
	// Take loads the content that an earlier start has written. If the content is damaged, it returns
	// an error and loads nothing.
	Take func(content []byte) error
	// Lost is the log message for a note that cannot be used. It states what is unknown without the
	// note.
	Lost string
	// Content returns the new content. If it is larger than Most, nothing is written.
	Content func() ([]byte, error)

	last [sha256.Size]byte // digest of the file's content; used by Run only
}

// Run reads the note. Then it writes the note periodically until ctx ends, and once more. It does
// not overwrite a note that it could not read.
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
	every := cmp.Or(n.Every, Every)
	for sleep(ctx, every) {
		n.Save()
	}
	n.Save()
	return nil
}

// sleep waits for d. It returns false if ctx ends first.
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

// Load reads the note. If it returns an error, the caller should retry. It logs and ignores a
// damaged note, since no decision depends on it.
func (n *Note) Load() error {
	content, err := n.Disk.Note(n.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, tier.ErrCorrupt): // the file is larger than any note
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

// Save writes the note, if its content has changed.
func (n *Note) Save() {
	content, err := n.Content()
	sum := sha256.Sum256(content)
	switch {
	case err != nil || sum == n.last:
	case len(content) > n.Most: // Load would refuse it
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
