package fakecuda_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

func TestTheNthCallFails(t *testing.T) {
	r := newRig(t)
	r.fake.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuMemAlloc_v2", Nth: 2, Value: 2})
	p, err := r.MemAlloc(8)
	must(t, err)
	_, err = r.MemAlloc(8)
	wants(t, err, driver.OutOfMemory)
	q, err := r.MemAlloc(8)
	must(t, err)
	must(t, r.MemFree(p))
	must(t, r.MemFree(q))
}

func TestAFailedOperationBreaksTheContext(t *testing.T) {
	r := newBrokenRig(t)
	p, err := r.MemAlloc(8)
	must(t, err)
	before := r.fake.Calls("run.memset")
	r.fake.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "run.memset", Nth: 1, Value: 719})
	must(t, r.MemsetD8Async(p, 0, 8, r.stream))
	wants(t, r.StreamSynchronize(r.stream), driver.LaunchFailed)
	wants(t, r.MemFree(p), driver.LaunchFailed)
	if n := r.fake.Calls("run.memset") - before; n != 1 {
		t.Errorf("%d memsets", n)
	}
}

func TestALostDeviceAnswersNothingElse(t *testing.T) {
	r := newBrokenRig(t)
	slot, err := r.MemAlloc(8)
	must(t, err)
	must(t, r.MemsetD8Async(slot, 0, 8, r.stream))
	must(t, r.StreamWaitValue64GEQ(r.stream, slot, 1))
	r.fake.Inject(t, fakecuda.Fault{Kind: fakecuda.Lost, Call: "cuStreamQuery", Nth: 1, Value: 999})
	_, err = r.StreamQuery(r.stream)
	wants(t, err, 999)
	// A stream that waits for ever does not hold those who wait for it.
	wants(t, r.StreamSynchronize(r.stream), 999)
	_, _, err = r.MemInfo()
	wants(t, err, 999)
}

func TestAHangEndsWhenReleased(t *testing.T) {
	r := newRig(t)
	r.fake.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuMemGetInfo_v2", Nth: 1})
	done := make(chan error)
	go func() {
		_, _, err := r.MemInfo()
		done <- err
	}()
	for r.fake.Stats().Hanging == 0 {
		time.Sleep(time.Millisecond) // nothing tells when a call of C has begun to wait
	}
	r.fake.Release()
	<-done
}

// holdRole allocates stdin's first byte in MiB and lives until stdin ends.
func holdRole(api *driver.API) error {
	if err := useDevice(api); err != nil {
		return err
	}
	mib := make([]byte, 1)
	if _, err := os.Stdin.Read(mib); err != nil {
		return err
	}
	if _, err := api.MemAlloc(int64(mib[0]) << 20); err != nil {
		return err
	}
	fmt.Println("holds")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// Processes that share a device share its memory, and a dead one's comes back.
func TestMemoryOfTheDeadComesBack(t *testing.T) {
	l := fakecuda.Open(t)
	dir := t.TempDir()
	s := fakecuda.Setup{Dir: dir, Bytes: 64 << 20}
	first := otherProcess(l, "hold", s)
	in, err := first.StdinPipe()
	must(t, err)
	out, err := first.StdoutPipe()
	must(t, err)
	must(t, first.Start())
	_, err = in.Write([]byte{40})
	must(t, err)
	_, err = io.ReadFull(out, make([]byte, len("holds\n")))
	must(t, err)

	hold := func() error {
		second := otherProcess(l, "hold", s)
		second.Stderr = nil
		in, err := second.StdinPipe()
		must(t, err)
		must(t, second.Start())
		_, err = in.Write([]byte{30})
		must(t, errors.Join(err, in.Close()))
		return second.Wait()
	}
	if hold() == nil {
		t.Fatal("70 MiB of 64")
	}
	must(t, first.Process.Kill())
	first.Wait()
	must(t, hold())
	left, err := filepath.Glob(filepath.Join(dir, "process-*"))
	must(t, err)
	if len(left) > 1 { // the last one's own, which nobody looked at since
		t.Errorf("%v", left)
	}
}

// walkRole makes every kind of call once.
func walkRole(api *driver.API) error {
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
	b := make([]byte, 4096)
	return errors.Join(
		api.MemcpyHtoDAsync(p, unsafe.Pointer(&b[0]), 4096, s),
		api.StreamSynchronize(s),
		api.StreamDestroy(s),
		api.MemFree(p),
		api.PrimaryContextRelease(0))
}

func TestAProcessDiesAtAnyCall(t *testing.T) {
	l := fakecuda.Open(t)
	for nth := 1; ; nth++ {
		cmd := otherProcess(l, "walk", fakecuda.Setup{Faults: []fakecuda.Fault{{Kind: fakecuda.Die, Call: "*", Nth: nth}}})
		err := cmd.Run()
		if err == nil {
			if nth < 10 {
				t.Fatalf("no call %d", nth)
			}
			break
		}
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("call %d: %v", nth, err)
		}
	}
}

func TestFaultsThatAreNotUnderstood(t *testing.T) {
	l := fakecuda.Open(t)
	for _, spec := range []string{"", "cuInit", "cuInit:x:1", "cuInit:1", "cuInit:1:2:3", ":1:2"} {
		if l.InjectText("FAIL", spec) {
			t.Errorf("%q is taken", spec)
		}
	}
	if l.InjectText("FALL", "cuInit:1:2") {
		t.Error("a kind that there is not")
	}
}

// A fault of one device leaves the other as it is, and a context of it too.
func TestAFaultMayBeOneDevices(t *testing.T) {
	l := fakecuda.Open(t)
	l.Set(t, "DEVICES", "2")
	api, err := driver.Load(l.Path)
	must(t, err)
	l.LeakCheck(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var contexts [2]driver.Context
	for i := range contexts {
		contexts[i], err = api.PrimaryContextRetain(driver.Device(i))
		must(t, err)
	}
	l.Inject(t,
		fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuMemAlloc_v2@1", Nth: 2, Value: 2},
		fakecuda.Fault{Kind: fakecuda.Lost, Call: "cuStreamSynchronize@0", Nth: 1, Value: 999})
	use := func(i int) error {
		must(t, api.ContextSetCurrent(contexts[i]))
		p, err := api.MemAlloc(8)
		if err != nil {
			return err
		}
		s, err := api.StreamCreate()
		must(t, err)
		return errors.Join(api.MemsetD8Async(p, 0, 8, s), api.StreamSynchronize(s), api.StreamDestroy(s), api.MemFree(p))
	}
	must(t, use(1))
	wants(t, use(0), 999)
	wants(t, api.ContextSetCurrent(contexts[0]), 999)
	wants(t, use(1), driver.OutOfMemory)
	must(t, use(1))
	must(t, api.ContextSetCurrent(0))
	l.Reset()
}

// Work of one device on memory of another is a mistake of ours, and counted.
func TestMemoryOfAnotherDeviceIsMisuse(t *testing.T) {
	l := fakecuda.Open(t)
	l.Set(t, "DEVICES", "2")
	api, err := driver.Load(l.Path)
	must(t, err)
	l.LeakCheck(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var memory [2]driver.DevicePtr
	for i := range memory {
		context, err := api.PrimaryContextRetain(driver.Device(i))
		must(t, err)
		must(t, api.ContextSetCurrent(context))
		memory[i], err = api.MemAlloc(8)
		must(t, err)
	}
	s, err := api.StreamCreate() // of the second
	must(t, err)
	before := l.Stats().Misuses
	must(t, errors.Join(api.MemsetD8Async(memory[1], 0, 8, s), api.StreamSynchronize(s)))
	if n := l.Stats().Misuses - before; n != 0 {
		t.Errorf("%d misuses by work on its own memory", n)
	}
	must(t, errors.Join(api.MemsetD8Async(memory[0], 0, 8, s), api.StreamSynchronize(s)))
	if n := l.Stats().Misuses - before; n != 1 {
		t.Errorf("%d misuses, want 1", n)
	}
	l.Forgive(1)
	must(t, errors.Join(api.StreamDestroy(s), api.ContextSetCurrent(0)))
	l.Reset()
}
