package fakecuda_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// ownerRole prints a handle of its memory and lives until stdin ends.
func ownerRole(api *driver.API) error {
	if err := useDevice(api); err != nil {
		return err
	}
	p, err := api.MemAlloc(4096)
	if err != nil {
		return err
	}
	s, err := api.StreamCreate()
	if err != nil {
		return err
	}
	if err := errors.Join(api.MemsetD8Async(p, 8, 4096, s), api.StreamSynchronize(s)); err != nil {
		return err
	}
	h, err := api.IPCMemHandle(p)
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(h[:]))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// owner is another process that shares memory until end.
func (r *rig) owner(t *testing.T, s fakecuda.Setup) (h [driver.IPCHandleBytes]byte, end func()) {
	t.Helper()
	p := fakecuda.StartPeer(t, append(s.Env(r.fake.Path), roleVariable+"=owner", libraryVariable+"="+r.fake.Path))
	_, err := hex.Decode(h[:], []byte(p.Answer(t)))
	must(t, err)
	return h, func() { must(t, p.End()) }
}

func TestAnImportOutlivesItsOwner(t *testing.T) {
	r := newRig(t)
	h, end := r.owner(t, fakecuda.Setup{})
	p, err := r.IPCOpen(h)
	must(t, err)
	end()
	if v := r.word(t, p); v != 0x0808080808080808 {
		t.Fatalf("%#x", v)
	}
	must(t, r.IPCClose(p))
	_, err = r.IPCOpen(h)
	wants(t, err, driver.InvalidValue)
}

func TestMemoryOfAnotherDeviceIsRefused(t *testing.T) {
	r := newRig(t)
	h, end := r.owner(t, fakecuda.Setup{Devices: []string{"00000000000000000000000000000009"}})
	_, err := r.IPCOpen(h)
	wants(t, err, driver.InvalidDevice)
	end()
}
