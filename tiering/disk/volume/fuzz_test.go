package volume

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// FuzzFormat: a FORMAT is read, and written again with all that it says, or refused as
// damaged or of another version.
func FuzzFormat(f *testing.F) {
	whole := Format{ID: slab.StoreID{1, 2, 3}, Granule: 64 << 10}
	f.Add(whole.text())
	bound := whole
	bound.binding = "2c7c"
	f.Add(bound.text())
	f.Add(bytes.Replace(whole.text(), []byte("version 2"), []byte("version 1"), 1))
	f.Add([]byte(formatHead))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		mem := vfs.NewMem()
		if err := replaceFile(mem, "/", formatName, b); err != nil {
			t.Fatal(err)
		}
		got, err := readFormat(mem, "/")
		if err != nil {
			if !errors.Is(err, tier.ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
			return
		}
		if got.Granule < slab.MinGranule || got.Granule > slab.MaxGranule {
			t.Fatalf("granule %d", got.Granule)
		}
		if err := replaceFile(mem, "/", formatName, got.text()); err != nil {
			t.Fatal(err)
		}
		again, err := readFormat(mem, "/")
		if err != nil || again.ID != got.ID || again.binding != got.binding || again.Granule != got.Granule {
			t.Fatalf("%+v was read, %+v written again: %v", got, again, err)
		}
	})
}

// FuzzKey: a KEY is read to the bit, or refused as damaged.
func FuzzKey(f *testing.F) {
	f.Add(keyText(1, make([]byte, 32)))
	f.Add(keyText(1<<63, bytes.Repeat([]byte{0xff}, 32)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		key, err := parseKey(b)
		if (key == nil) != errors.Is(err, tier.ErrCorrupt) {
			t.Fatalf("%v, %v", key != nil, err)
		}
	})
}
