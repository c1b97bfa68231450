package kernels

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

// digests runs the kernel over b.
func (e *emulation) digests(tb testing.TB, b []byte) []uint64 {
	tb.Helper()
	n := gpuipc.Chunks(int64(len(b)))
	out := memory(tb, 8*n, 0)
	launches, err := Digests([]DigestJob{{Src: address(b), Bytes: int64(len(b)), Out: address(out)}})
	e.runAll(tb, launches, err)
	got := make([]uint64, n)
	for i := range got {
		got[i] = binary.LittleEndian.Uint64(out[8*i:])
	}
	return got
}

func (e *emulation) verifyDigests(tb testing.TB, b []byte) {
	tb.Helper()
	for i, got := range e.digests(tb, b) {
		chunk := b[i*gpuipc.ChunkBytes : min((i+1)*gpuipc.ChunkBytes, len(b))]
		if want := gpuipc.DigestBytes(chunk); got != want {
			tb.Fatalf("%d bytes at %#x: digest %d is %#x, want %#x", len(b), address(b), i, got, want)
		}
	}
}

func TestDigestsOfEveryShortLength(t *testing.T) {
	e, r := emulated(t), seeded(t)
	all := memory(t, 1200+16, 0)
	randomBytes(r, all)
	var jobs []DigestJob
	var want []uint64
	const longest = 1200
	out := memory(t, 8*longest*4, 0)
	for n := 1; n <= longest; n++ {
		for _, off := range []int{0, 1 + r.IntN(3), 4 * (1 + r.IntN(3)), r.IntN(16)} {
			b := all[off:][:n]
			jobs = append(jobs, DigestJob{Src: address(b), Bytes: int64(n), Out: address(out[8*len(want):])})
			want = append(want, gpuipc.DigestBytes(b))
		}
	}
	launches, err := Digests(jobs)
	if len(launches) != 1 {
		t.Fatalf("%d launches", len(launches))
	}
	e.runAll(t, launches, err)
	for i, w := range want {
		if got := binary.LittleEndian.Uint64(out[8*i:]); got != w {
			t.Fatalf("%d bytes, %d behind a multiple of 16: %#x, want %#x", jobs[i].Bytes, jobs[i].Src%16, got, w)
		}
	}
}

func TestDigestsOfChunks(t *testing.T) {
	e, r := emulated(t), seeded(t)
	const mib = gpuipc.ChunkBytes
	all := memory(t, 3*mib+64, 0)
	randomBytes(r, all)
	for _, n := range []int{1024, 1025, 4097, 64 << 10, 64<<10 + 1, 65 << 10, 128<<10 + 63, mib - 1, mib, mib + 1, 2*mib + 241, 3 * mib} {
		e.verifyDigests(t, all[:n])
	}
	for range 10 {
		n, off := 1+r.IntN(mib*3/2), r.IntN(64)
		e.verifyDigests(t, all[off:][:n])
	}
}

// A digest that leaves a byte out would pass for damaged memory.
func TestDigestsSeeEveryByte(t *testing.T) {
	e, r := emulated(t), seeded(t)
	b := memory(t, 70_000, 0)
	randomBytes(r, b)
	was := e.digests(t, b)[0]
	for range 20 {
		i := r.IntN(len(b))
		b[i] ^= 1 << r.IntN(8)
		if now := e.digests(t, b)[0]; now == was {
			t.Fatalf("byte %d changed, the digest did not", i)
		} else {
			was = now
		}
	}
}

func TestNothingToDigestIsNoLaunch(t *testing.T) {
	for _, jobs := range [][]DigestJob{nil, {{}}, {{Src: 16, Out: 8}}} {
		if l, err := Digests(jobs); err != nil || len(l) != 0 {
			t.Errorf("%v: %d launches, %v", jobs, len(l), err)
		}
	}
}

func TestDigestsRefuseWhatCannotRun(t *testing.T) {
	for name, a := range map[string]DigestJob{
		"negative":        {Src: 16, Bytes: -1, Out: 8},
		"no source":       {Bytes: 1, Out: 8},
		"no destination":  {Src: 16, Bytes: 1},
		"odd destination": {Src: 16, Bytes: 1, Out: 9},
		"past the end":    {Src: 1 << 63, Bytes: 1, Out: 8},
		"too much":        {Src: 16, Bytes: 1 << 60, Out: 8},
	} {
		if _, err := Digests([]DigestJob{a}); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
