package extent

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// FuzzHeader: what Parse takes, Append writes again, to the bit. Since nobody
// guesses a checksum, each input is tried with its checksums made right, too.
func FuzzHeader(f *testing.F) {
	h := exampleHeader()
	b, err := h.Append(nil, []byte("manifest"))
	must(f, err)
	long, err := h.Append(nil, bytes.Repeat([]byte{7}, BlockBytes))
	must(f, err)
	h.Sign(NewKey([32]byte{1}, 1), []byte("manifest"), make([]byte, TagBytes))
	sealed, err := h.Append(nil, []byte("manifest"))
	must(f, err)
	f.Add(bytes.TrimRight(sealed, "\x00"))
	// Short inputs, padded below, since the fuzzer takes long to shorten long ones.
	f.Add(bytes.TrimRight(b, "\x00"))
	f.Add(bytes.TrimRight(long, "\x00"))
	f.Add([]byte(magic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		tryHeader(t, in)
		b := make([]byte, Padded(int64(max(len(in), 1))))
		copy(b, in)
		tryHeader(t, b)
		reseal(b)
		tryHeader(t, b)
	})
}

func tryHeader(t *testing.T, b []byte) {
	h, err := Parse(b)
	if err == nil {
		var m []byte
		if m, err = h.Manifest(b); err == nil {
			again := h
			out, err := again.Append(nil, m)
			if err != nil || !bytes.Equal(out, b[:h.HeaderBytes]) || !reflect.DeepEqual(again, h) {
				t.Fatalf("%+v was read, and not written again: %v", h, err)
			}
			return
		}
	}
	if !errors.Is(err, tier.ErrCorrupt) && !errors.Is(err, ErrVersion) {
		t.Fatalf("%v says neither what is wrong with the bytes", err)
	}
}

// FuzzManifest tries bytes as the content of a manifest and as a stored one. What
// is taken is written again, to the bit.
func FuzzManifest(f *testing.F) {
	for _, coded := range []bool{false, true} {
		m := exampleManifest(coded)
		f.Add(m.append(nil))
		stored, err := m.Encode(nil)
		must(f, err)
		f.Add(stored)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for what, read := range map[string]func([]byte) (*Manifest, error){"content": parse, "stored": Decode} {
			m, err := read(b)
			if err != nil {
				if !errors.Is(err, tier.ErrCorrupt) && !errors.Is(err, ErrVersion) {
					t.Fatalf("%s: %v", what, err)
				}
				continue
			}
			if what == "content" && !bytes.Equal(m.append(nil), b) {
				t.Fatalf("%+v was read, and not written again", m)
			}
			stored, err := m.Encode(nil)
			if err != nil {
				t.Fatalf("%s: was read, and cannot be written: %v", what, err)
			}
			again, err := Decode(stored)
			if err != nil || !reflect.DeepEqual(again, m) {
				t.Fatalf("%s: %v, wrote %+v, read %+v", what, err, m, again)
			}
		}
	})
}
