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

// addAndSignal adds two blocks of 64 words at p by a kernel and then writes 1 to
// the value at p+1024.
func addAndSignal(api *driver.API, p driver.DevicePtr) error {
	m, err := api.ModuleLoad(fakecuda.ProbePTX)
	if err != nil {
		return err
	}
	add, err := api.ModuleFunction(m, "probe_add")
	if err != nil {
		return err
	}
	s, err := api.StreamCreate()
	if err != nil {
		return err
	}
	return errors.Join(
		api.Launch(add, one, [3]uint32{64, 1, 1}, 0, s, args(p, p+256, uint32(64))),
		api.StreamWriteValue64(s, p+1024, 1),
		api.StreamSynchronize(s))
}

// descriptorRole maps the chunk of descriptor 3.
func descriptorRole(api *driver.API) error {
	if err := useDevice(api); err != nil {
		return err
	}
	m, err := api.ImportFD(3)
	if err != nil {
		return err
	}
	p, err := api.AddressReserve(granule)
	if err != nil {
		return err
	}
	if err := errors.Join(api.MemMap(p, granule, m), api.MemSetAccess(p, granule, 0)); err != nil {
		return err
	}
	return addAndSignal(api, p)
}

func TestMemoryCrossesByDescriptor(t *testing.T) {
	r := newRig(t)
	m, err := r.MemCreate(granule, 0)
	must(t, err)
	p, err := r.AddressReserve(granule)
	must(t, err)
	must(t, r.MemMap(p, granule, m))
	must(t, r.MemSetAccess(p, granule, 0))
	fd, err := r.ExportFD(m)
	must(t, err)
	file := os.NewFile(uintptr(fd), "chunk")
	defer file.Close()
	must(t, r.MemRelease(m))
	r.exchange(t, p, func() error {
		return otherProcess(r.fake, "descriptor", fakecuda.Setup{}, file).Run()
	})
	must(t, r.MemUnmap(p, granule))
	must(t, r.AddressFree(p, granule))
}

// exchange fills memory, lets another process add, and waits for its signal on
// a stream.
func (r *rig) exchange(t *testing.T, p driver.DevicePtr, other func() error) {
	t.Helper()
	must(t, r.MemsetD8Async(p, 1, 256, r.stream))
	must(t, r.MemsetD8Async(p+256, 2, 256, r.stream))
	must(t, r.MemsetD8Async(p+1024, 0, 8, r.stream))
	must(t, r.StreamSynchronize(r.stream))
	must(t, r.StreamWaitValue64GEQ(r.stream, p+1024, 1))
	must(t, other())
	if v := r.word(t, p); v != 0x0303030303030303 {
		t.Fatalf("%#x", v)
	}
}

// handleRole opens the handle that stdin has, twice, and closes both.
func handleRole(api *driver.API) error {
	if err := useDevice(api); err != nil {
		return err
	}
	h, err := readHandle(os.Stdin)
	if err != nil {
		return err
	}
	p, err := api.IPCOpen(h)
	if err != nil {
		return err
	}
	again, err := api.IPCOpen(h)
	if err != nil || again != p {
		return fmt.Errorf("opened again: %#x, then %#x: %w", p, again, err)
	}
	if err := errors.Join(api.IPCClose(p), addAndSignal(api, p), api.IPCClose(p)); err != nil {
		return err
	}
	if err := api.IPCClose(p); !errors.Is(err, driver.InvalidValue) {
		return fmt.Errorf("closed once more: %w", err)
	}
	return nil
}

func readHandle(from io.Reader) (h [driver.IPCHandleBytes]byte, err error) {
	line, err := bufio.NewReader(from).ReadString('\n')
	if err != nil {
		return h, err
	}
	_, err = hex.Decode(h[:], []byte(line[:len(line)-1]))
	return h, err
}

func TestMemoryCrossesByHandle(t *testing.T) {
	r := newRig(t)
	p := r.alloc(t, 4096, 0)
	h, err := r.IPCMemHandle(p + 100) // the handle is that of the allocation
	must(t, err)
	_, err = r.IPCOpen(h)
	wants(t, err, driver.InvalidContext) // not in the process that it is from
	r.exchange(t, p, func() error {
		cmd := otherProcess(r.fake, "handle", fakecuda.Setup{})
		in, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		fmt.Fprintln(in, hex.EncodeToString(h[:]))
		return cmd.Wait()
	})
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

// eventRole waits for the event that stdin names.
func eventRole(api *driver.API) error {
	if err := useDevice(api); err != nil {
		return err
	}
	h, err := readHandle(os.Stdin)
	if err != nil {
		return err
	}
	e, err := api.IPCOpenEvent(h)
	if err != nil {
		return err
	}
	if done, err := api.EventQuery(e); done || err != nil {
		return fmt.Errorf("an event that was recorded and not reached: %t %w", done, err)
	}
	fmt.Println("opened")
	return errors.Join(api.EventSynchronize(e), api.EventDestroy(e))
}

func TestEventsCross(t *testing.T) {
	r := newRig(t)
	slot := r.alloc(t, 8, 0)
	e, err := r.EventCreate(driver.EventNoTiming | driver.EventInterprocess)
	must(t, err)
	must(t, r.StreamWaitValue64GEQ(r.stream, slot, 1))
	must(t, r.EventRecord(e, r.stream))
	h, err := r.IPCEventHandle(e)
	must(t, err)
	cmd := otherProcess(r.fake, "event", fakecuda.Setup{})
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	fmt.Fprintln(in, hex.EncodeToString(h[:]))
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "opened\n" {
		t.Error(line, err)
	}
	must(t, r.StreamWriteValue64(r.newStream(t), slot, 1))
	must(t, cmd.Wait())
	must(t, r.EventDestroy(e))
}
