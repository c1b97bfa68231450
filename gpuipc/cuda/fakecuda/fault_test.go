package fakecuda_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

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
