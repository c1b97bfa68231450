package slab_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/spliced-kv/spliced/tiering/disk/slab"
	. "github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestFileKeepsWhatWasWritten(t *testing.T) {
	for kind, open := range kinds {
		t.Run(kind, func(t *testing.T) {
			const size = 1 << 20
			rng := rand.New(rand.NewPCG(1, 2))
			fsys := open(t)
			f := must[File](t)(fsys.Create("a", size))
			want := make([]byte, size)
			for i := range 40 {
				n := (1 + rng.IntN(64)) * BlockBytes
				off := rng.Int64N((size-int64(n))/BlockBytes+1) * BlockBytes
				data := Random(uint64(i), n)
				noError(t, f.WriteAt(Pieces(rng, data, 5), off))
				copy(want[off:], data)
			}
			noError(t, f.Sync())
			noError(t, f.Close())

			f = closing[File](t)(fsys.Open("a"))
			if f.Bytes() != size {
				t.Errorf("%d bytes, want %d", f.Bytes(), size)
			}
			got := AlignedBuffer(size)
			noError(t, f.ReadAt(Pieces(rng, got, 9), 0))
			if !bytes.Equal(got, want) {
				t.Error("other bytes came back")
			}
			noError(t, f.ReadAt(nil, 0))
			noError(t, f.WriteAt(nil, size))
		})
	}
}

// TestFileTakesMoreBuffersThanOneCall has more than IOV_MAX of them.
func TestFileTakesMoreBuffersThanOneCall(t *testing.T) {
	for kind, open := range kinds {
		t.Run(kind, func(t *testing.T) {
			const blocks = 2*IOVMax + 3
			f := closing[File](t)(open(t).Create("a", blocks*BlockBytes))
			data, got := Random(1, blocks*BlockBytes), AlignedBuffer(blocks*BlockBytes)
			one := rand.New(rand.NewPCG(0, 0))
			noError(t, f.WriteAt(Pieces(one, data, 1), 0))
			noError(t, f.ReadAt(Pieces(one, got, 1), 0))
			if !bytes.Equal(got, data) {
				t.Error("other bytes came back")
			}
		})
	}
}

func TestFileRefusesWhatIsNotWholeBlocksOfIt(t *testing.T) {
	for kind, open := range kinds {
		t.Run(kind, func(t *testing.T) {
			f := closing[File](t)(open(t).Create("a", 8*BlockBytes))
			b := AlignedBuffer(4 * BlockBytes)
			for name, c := range map[string]struct {
				bufs [][]byte
				off  int64
			}{
				"offset":          {[][]byte{b}, 512},
				"negative offset": {[][]byte{b}, -BlockBytes},
				"length":          {[][]byte{b[:BlockBytes+512]}, 0},
				"address":         {[][]byte{b[512 : BlockBytes+512]}, 0},
				"empty buffer":    {[][]byte{b, {}}, 0},
				"over the end":    {[][]byte{b}, 5 * BlockBytes},
				"behind the end":  {[][]byte{b}, 9 * BlockBytes},
				"sum":             {[][]byte{b, b, b}, 0},
			} {
				if err := f.ReadAt(c.bufs, c.off); !errors.Is(err, tier.ErrInvalid) {
					t.Errorf("read, %s: %v", name, err)
				}
				if err := f.WriteAt(c.bufs, c.off); !errors.Is(err, tier.ErrInvalid) {
					t.Errorf("write, %s: %v", name, err)
				}
			}
		})
	}
}

func TestDirectoryOperations(t *testing.T) {
	for kind, open := range kinds {
		t.Run(kind, func(t *testing.T) {
			fsys := open(t)
			for _, name := range []string{"b", "a", "c"} {
				noError(t, must[File](t)(fsys.Create(name, 4*BlockBytes)).Close())
			}
			noError(t, fsys.Sync())
			data := Random(1, BlockBytes)
			f := must[File](t)(fsys.Open("b"))
			noError(t, f.WriteAt([][]byte{data}, 0))
			noError(t, f.Close())

			if f, err := fsys.Create("b", BlockBytes); !errors.Is(err, fs.ErrExist) {
				t.Errorf("created twice: %v %v", f, err)
			}
			f = closing[File](t)(fsys.Open("b"))
			got := AlignedBuffer(BlockBytes)
			noError(t, f.ReadAt([][]byte{got}, 0))
			if f.Bytes() != 4*BlockBytes || !bytes.Equal(got, data) {
				t.Error("a refused creation changed the file that was there")
			}
			if f, err := fsys.Open("d"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("opened nothing: %v %v", f, err)
			}
			noError(t, fsys.Remove("a"))
			if err := fsys.Remove("a"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("removed twice: %v", err)
			}
			if names := must[[]string](t)(fsys.List()); !slices.Equal(names, []string{"b", "c"}) {
				t.Errorf("files %q", names)
			}
			if free := must[int64](t)(fsys.Free()); free <= 0 {
				t.Errorf("%d bytes free", free)
			}
		})
	}
}

func TestOpenDirWantsADirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	noError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(dir, "none")} {
		if fsys, err := OpenDir(path); err == nil {
			t.Errorf("%s: %v", path, fsys)
		}
	}
}

func TestAlignedBuffers(t *testing.T) {
	for _, n := range []int{1, 511, BlockBytes, BlockBytes + 1, 1 << 20} {
		b := AlignedBuffer(n)
		if len(b) != n || cap(b) != (n+BlockBytes-1)/BlockBytes*BlockBytes {
			t.Errorf("%d bytes: length %d, capacity %d", n, len(b), cap(b))
		}
		whole := b[:cap(b)]
		if _, err := CheckTransfer("read", "a", 2<<20, [][]byte{whole}, 0); err != nil {
			t.Error(err)
		}
		if !AllZero(whole) {
			t.Errorf("%d bytes: not zeros", n)
		}
	}
}
