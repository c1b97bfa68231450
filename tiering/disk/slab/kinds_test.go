package slab_test

import (
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	. "github.com/spliced-kv/spliced/tiering/disk/slab"
	. "github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
)

// kinds makes an empty FS of every kind.
var kinds = map[string]func(t testing.TB) FS{
	"direct":   func(t testing.TB) FS { return must[FS](t)(OpenDir(t.TempDir())) },
	"buffered": func(t testing.TB) FS { return must[FS](t)(OpenDirBuffered(t.TempDir())) },
	"memory":   func(t testing.TB) FS { return memory(t, vfs.NewCrashableMem()) },
	"over vfs": func(t testing.TB) FS { return OverVFS(vfs.Default, t.TempDir()) },
	"faults":   func(t testing.TB) FS { return NewFaults(memory(t, vfs.NewMem()), 1) },
}

func memory(t testing.TB, fsys vfs.FS) FS {
	t.Helper()
	noError(t, fsys.MkdirAll("slabs", 0o755))
	return OverVFS(fsys, "slabs")
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// closing closes at the end of the test.
func closing[T io.Closer](t testing.TB) func(T, error) T {
	return func(c T, err error) T {
		t.Helper()
		noError(t, err)
		t.Cleanup(func() { noError(t, c.Close()) })
		return c
	}
}
