package gpuipctest

import (
	"bytes"
	"errors"

	"github.com/spliced-kv/spliced/gpuipc"
)

// testPin checks that a load reads the bytes that were written through views, in the order
// of the extents, and that a pinned region counts as in use. A device whose memory has no
// address must return ErrUnavailable.
func testPin(r *rig) {
	region, err := r.dev.NewRegion(gpuipc.RegionSpec{Name: "pinned", Bytes: 1 << 20, Access: gpuipc.ClientReads})
	if err != nil {
		r.Fatal(err)
	}
	ref := gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Off: 300000, Len: 5}, {Off: 7, Len: 3}}}
	views, unpin, err := r.dev.Pin(ref, true)
	if errors.Is(err, gpuipc.ErrUnavailable) {
		if err := region.Close(); err != nil {
			r.Error(err)
		}
		r.Skip("this device's memory has no host address")
	}
	if err != nil {
		r.Fatal(err)
	}
	copy(views[0], "abcde")
	copy(views[1], "fgh")
	if cap(views[0]) != 5 || len(views) != 2 {
		r.Errorf("%d views, the first may grow to %d bytes", len(views), cap(views[0]))
	}
	if got := r.get(ref); !bytes.Equal(got, []byte("abcdefgh")) {
		r.Errorf("read %q", got)
	}
	func() {
		defer func() {
			if recover() == nil {
				r.Error("a pinned region was closed")
			}
		}()
		_ = region.Close()
	}()
	unpin()
	outside := gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Off: region.Bytes() - 1, Len: 2}}}
	if _, _, err := r.dev.Pin(outside, false); !errors.Is(err, gpuipc.ErrInvalid) {
		r.Errorf("pin outside: %v", err)
	}
	if err := region.Close(); err != nil {
		r.Error(err)
	}
	if _, _, err := r.dev.Pin(ref, false); !errors.Is(err, gpuipc.ErrInvalid) {
		r.Errorf("pin of a closed region: %v", err)
	}
}
