package fakecuda_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

func readHandle(from io.Reader) (h [driver.IPCHandleBytes]byte, err error) {
	line, err := bufio.NewReader(from).ReadString('\n')
	if err != nil {
		return h, err
	}
	_, err = hex.Decode(h[:], []byte(line[:len(line)-1]))
	return h, err
}

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
	cmd := otherProcess(r.fake, "owner", s)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	h, err = readHandle(out)
	must(t, err)
	return h, func() {
		must(t, in.Close())
		must(t, cmd.Wait())
	}
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

func TestEqualProcessNumbersCannotShare(t *testing.T) {
	r := newRig(t)
	r.fake.Set(t, "PID", "1")
	h, end := r.owner(t, fakecuda.Setup{PID: 1})
	_, err := r.IPCOpen(h)
	wants(t, err, driver.InvalidContext)
	end()
	h, end = r.owner(t, fakecuda.Setup{PID: 2})
	p, err := r.IPCOpen(h)
	must(t, err)
	must(t, r.IPCClose(p))
	end()
}

func TestMemoryOfAnotherDeviceIsRefused(t *testing.T) {
	r := newRig(t)
	h, end := r.owner(t, fakecuda.Setup{Devices: []string{"00000000000000000000000000000009"}})
	_, err := r.IPCOpen(h)
	wants(t, err, driver.InvalidDevice)
	end()
}
