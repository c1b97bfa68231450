package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func getFile(t testing.TB, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	must(t, err)
	b, err := io.ReadAll(f)
	must(t, errors.Join(err, f.Close()))
	return b
}

// A FORMAT that power loss or a bad sector has damaged is no other version's. Repair
// writes it anew from the key and the slabs, and nothing is lost.
func TestDamagedFormatIsMended(t *testing.T) {
	for name, spoil := range map[string]func(good []byte) []byte{
		"emptied":             func([]byte) []byte { return nil },
		"zeros":               func(good []byte) []byte { return make([]byte, len(good)) },
		"cut in half":         func(good []byte) []byte { return good[:len(good)/2] },
		"cut in the version":  func(good []byte) []byte { return good[:bytes.IndexByte(good, '2')] },
		"cut behind it":       func(good []byte) []byte { return good[:bytes.IndexByte(good, '2')+1] },
		"version 0":           func(good []byte) []byte { return bytes.Replace(good, []byte("version 2"), []byte("version 0"), 1) },
		"version of zeros":    func(good []byte) []byte { return bytes.Replace(good, []byte("version 2"), make([]byte, 9), 1) },
		"version with a sign": func(good []byte) []byte { return bytes.Replace(good, []byte("version 2"), []byte("version +2"), 1) },
		"head":                func(good []byte) []byte { return append([]byte{0}, good[1:]...) },
		"granule":             func(good []byte) []byte { return bytes.Replace(good, []byte("granule"), []byte("granite"), 1) },
		"lost":                nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			mem := vfs.NewMem()
			cfg := onMem(s.config(), mem)
			list := append(segments(1, 6), chain(50, 3, tenantB)...)
			s.filled(cfg, list)
			path := mem.PathJoin(cfg.Dir, "FORMAT")
			good := getFile(t, mem, path)
			if spoil == nil {
				must(t, mem.Remove(path))
			} else {
				setFile(t, mem, path, spoil(good))
			}
			lower := s.open(cfg)
			if h := lower.Health(); h.State != StateUnreadable || !strings.Contains(h.Cause, "FORMAT is ") {
				t.Errorf("state %v: %s", h.State, h.Cause)
			}
			_ = lower.close()
			if r := s.mustCheck(cfg, false); len(r.Problems) != 1 || !strings.HasSuffix(r.Problems[0].What, ": splicectl disk repair writes it anew") {
				t.Errorf("check: %v", r.Problems)
			}
			if r := s.mustRepair(cfg); !r.Format || len(r.Problems) != 1 || r.Forgotten != 0 || r.Segments != 6 || r.Checkpoints != 3 {
				t.Errorf("%+v", r)
			}
			if got := getFile(t, mem, path); !bytes.Equal(got, good) {
				t.Errorf("FORMAT is %q, it was %q", got, good)
			}
			if r := s.mustCheck(cfg, true); !r.Clean() {
				t.Errorf("after repair: %v", r.Problems)
			}
			lower = s.openOK(cfg)
			for _, w := range list {
				s.mustRead(lower.Tier, w)
			}
		})
	}
}

// Where nothing says what FORMAT had, or the key is gone, repair says what is lost, and
// nothing is changed.
func TestWhatRepairCannotMend(t *testing.T) {
	for name, test := range map[string]struct {
		damage map[string][]byte // by file; nil removes it
		says   string
	}{
		"key":                {map[string][]byte{"KEY": {}}, "KEY is damaged, and nothing that is stored can be verified"},
		"key lost":           {map[string][]byte{"KEY": nil}, "KEY is lost, and nothing that is stored can be verified"},
		"key and format":     {map[string][]byte{"KEY": {1}, "FORMAT": {}}, "KEY is damaged, and nothing that is stored can be verified"},
		"format and headers": {map[string][]byte{"FORMAT": {}, slabDir + "/000001.slab": make([]byte, 64<<10)}, "none is a slab with an intact header"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			mem := vfs.NewMem()
			cfg := onMem(s.config(), mem)
			s.filled(cfg, segments(1, 6))
			for file, content := range test.damage {
				if path := mem.PathJoin(cfg.Dir, file); content == nil {
					must(t, mem.Remove(path))
				} else {
					setFile(t, mem, path, content)
				}
			}
			for range 2 {
				r := s.mustRepair(cfg)
				if r.Clean() || r.Format || !strings.Contains(r.Problems[len(r.Problems)-1].What, test.says) {
					t.Errorf("%+v", r)
				}
			}
			if r := s.mustCheck(cfg, false); r.Clean() {
				t.Error("a check finds nothing")
			}
			lower := s.open(cfg)
			if h := lower.Health(); h.State != StateUnreadable {
				t.Errorf("state %v: %s", h.State, h.Cause)
			}
		})
	}
	// No tier's directory is none that is damaged.
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	if _, err := offline.RepairPlace(context.Background(), place(cfg), offline.CheckOptions{}); !errors.Is(err, volume.ErrNotTier) || errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("%v", err)
	}
}
