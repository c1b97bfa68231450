package gpuipctest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Conformance checks a device against models that are too simple to be wrong. It accesses
// memory only through Load and Store, so it also works for devices whose memory the CPU
// cannot reach. Each subtest calls the function open once. This function must make sure
// that the device is closed at the end of the subtest. All regions are closed before that.
//
// Copied bytes must be equal. Results of arithmetic must be within the rounding of the
// element type. After every operation the whole region is compared, so that a byte written
// to a wrong place fails the test.
func Conformance(t *testing.T, open func(t testing.TB) gpuipc.Device) {
	for _, part := range []struct {
		name string
		test func(r *rig)
	}{
		{"regions", testRegions},
		{"loaded bytes are the stored ones", testLoadStore},
		{"copies and digests", testCopies},
		{"copies at once", testConcurrentCopies},
		{"bad copies change nothing", testBadCopies},
		{"pinned memory", testPin},
		{"compose", testCompose},
		{"compose in place", testComposeInPlace},
		{"bad compose jobs change nothing", testBadCompose},
		{"replay", testReplay},
		{"bad replay jobs change nothing", testBadReplay},
		{"rotate into rows", testRotateRows},
		{"rotate into a block table", testRotateTable},
		{"bad rotate jobs change nothing", testBadRotate},
		{"an ended context", testEndedContext},
	} {
		t.Run(part.name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %#x", seed)
			part.test(&rig{T: t, dev: open(t), rng: rand.New(rand.NewPCG(seed, 0))})
		})
	}
}

// rig is a device, a region of the device, and the contents that the region should have.
type rig struct {
	*testing.T
	dev      gpuipc.Device
	rng      *rand.Rand
	region   gpuipc.Region
	expected []byte
	next     int64  // all bytes before this offset are used by objects
	after    []byte // the region after the last rotate
}

// fresh gives the rig a region of n random bytes.
func (r *rig) fresh(n int64) {
	r.Helper()
	if r.region == nil || r.region.Bytes() < n {
		region, err := r.dev.NewRegion(gpuipc.RegionSpec{Name: "conformance", Bytes: n, Access: gpuipc.ClientWrites})
		if err != nil {
			r.Fatal(err)
		}
		r.Cleanup(func() {
			if err := region.Close(); err != nil {
				r.Error(err)
			}
		})
		r.region = region
	}
	r.expected = make([]byte, r.region.Bytes())
	for i := range r.expected {
		r.expected[i] = byte(r.rng.Uint32())
	}
	r.next = 0
	if err := r.dev.Store(r.Context(), r.whole(), r.expected); err != nil {
		r.Fatal(err)
	}
}

// rounds returns n, or a quarter of it in short tests.
func (r *rig) rounds(n int) int {
	if testing.Short() {
		return n / 4
	}
	return n
}

func (r *rig) whole() gpuipc.Ref { return r.at(0, r.region.Bytes()) }

func (r *rig) at(off, n int64) gpuipc.Ref {
	return gpuipc.Ref{Region: r.region, Extents: []gpuipc.Extent{{Off: off, Len: n}}}
}

// object returns n bytes of the region that no other object has. They are cut between
// elements at random places, in random order and with gaps.
func (r *rig) object(n int64, elem int) gpuipc.Ref {
	r.Helper()
	ref := gpuipc.Ref{Region: r.region}
	r.next = (r.next + 63) / 64 * 64
	cuts := r.rng.IntN(4)
	for n > 0 {
		take := n
		if cuts > 0 {
			take = min(n, (1+r.rng.Int64N(n))/int64(elem)*int64(elem))
			cuts--
		}
		if take == 0 {
			continue
		}
		if r.next+take > r.region.Bytes() {
			r.Fatalf("the test's region of %d bytes is too small", r.region.Bytes())
		}
		ref.Extents = append(ref.Extents, gpuipc.Extent{Off: r.next, Len: take})
		r.next += take + int64(r.rng.IntN(3)*elem)
		n -= take
	}
	r.rng.Shuffle(len(ref.Extents), func(i, j int) {
		ref.Extents[i], ref.Extents[j] = ref.Extents[j], ref.Extents[i]
	})
	return ref
}

// bytes returns the expected contents of an object.
func (r *rig) bytes(ref gpuipc.Ref) []byte {
	var out []byte
	for _, e := range ref.Extents {
		out = append(out, r.expected[e.Off:e.Off+e.Len]...)
	}
	return out
}

// expect sets the expected contents of an object. The method put also sets them, and stores
// them on the device.
func (r *rig) expect(ref gpuipc.Ref, b []byte) {
	for _, e := range ref.Extents {
		b = b[copy(r.expected[e.Off:e.Off+e.Len], b):]
	}
}

func (r *rig) put(ref gpuipc.Ref, b []byte) {
	r.Helper()
	r.expect(ref, b)
	if err := r.dev.Store(r.Context(), ref, b); err != nil {
		r.Fatal(err)
	}
}

// get returns an object's contents on the device.
func (r *rig) get(ref gpuipc.Ref) []byte {
	r.Helper()
	b := make([]byte, ref.Len())
	if err := r.dev.Load(context.Background(), b, ref); err != nil {
		r.Fatal(err)
	}
	return b
}

// check compares the whole region with its expected contents.
func (r *rig) check(what string) {
	r.Helper()
	got := r.get(r.whole())
	if bytes.Equal(got, r.expected) {
		return
	}
	for i := range got {
		if got[i] != r.expected[i] {
			r.Fatalf("%s: byte %d is %#x, want %#x", what, i, got[i], r.expected[i])
		}
	}
}

// refuses checks that err is ErrInvalid and that the region is unchanged.
func (r *rig) refuses(what string, err error) {
	r.Helper()
	if !errors.Is(err, gpuipc.ErrInvalid) {
		r.Fatalf("%s: %v", what, err)
	}
	r.check(what)
}
