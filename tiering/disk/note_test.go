package disk

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A note is there whole after the power failed, and what it replaced is not.
func TestNotesLast(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewCrashableMem()
	lower := s.openOK(onMem(s.config(), mem))
	if _, err := lower.Note("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before it was written: %v", err)
	}
	for _, content := range []string{"first and long", "second"} {
		must(t, lower.KeepNote("a", []byte(content)))
	}
	if err := lower.KeepNote("a", make([]byte, maxNoteBytes+1)); !errors.Is(err, tier.ErrInvalid) {
		t.Fatalf("a note over the bound: %v", err)
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	must(t, lower.close())
	if err := lower.KeepNote("a", nil); !errors.Is(err, tier.ErrUnavailable) {
		t.Fatalf("after close: %v", err)
	}
	lower = s.openOK(onMem(s.config(), crashed))
	if b, err := lower.Note("a"); err != nil || !bytes.Equal(b, []byte("second")) {
		t.Fatalf("%q, %v", b, err)
	}
	f, err := crashed.Create(crashed.PathJoin(s.config().Dir, "a"), vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.Write(make([]byte, maxNoteBytes+1))
	must(t, errors.Join(err, f.Close()))
	if _, err := lower.Note("a"); !errors.Is(err, tier.ErrCorrupt) {
		t.Fatalf("a file over the bound: %v", err)
	}
	must(t, lower.close())
}
