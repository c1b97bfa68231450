package fakecuda_test

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// Without the event of the test above the copy is early: what the delay is for.
func TestAMissingWaitShows(t *testing.T) {
	r := newRig(t)
	src, dst := r.alloc(t, 8, 0), r.alloc(t, 8, 0)
	b := r.newStream(t)
	r.fake.Inject(t, fakecuda.Fault{Kind: fakecuda.Slow, Call: "run.memset", Value: 500_000})
	must(t, r.MemsetD8Async(src, 7, 8, r.stream))
	must(t, r.MemcpyDtoDAsync(dst, src, 8, b))
	must(t, r.StreamSynchronize(b))
	must(t, r.StreamSynchronize(r.stream))
	if v := r.word(t, dst); v != 0 {
		t.Fatalf("%#x: the copy waited for a stream that it was not told of", v)
	}
}

func TestRegisteredMemoryIsReadLate(t *testing.T) {
	r := newRig(t)
	p, slot := r.alloc(t, 8, 0), r.alloc(t, 8, 0)
	host := bytes.Repeat([]byte{1}, 8)
	must(t, r.HostRegister(unsafe.Pointer(&host[0]), 8))
	must(t, r.StreamWaitValue64GEQ(r.stream, slot, 1))
	must(t, r.MemcpyHtoDAsync(p, unsafe.Pointer(&host[0]), 8, r.stream))
	for i := range host {
		host[i] = 2
	}
	must(t, r.StreamWriteValue64(r.newStream(t), slot, 1))
	must(t, r.StreamSynchronize(r.stream))
	must(t, r.HostUnregister(unsafe.Pointer(&host[0])))
	if v := r.word(t, p); v != 0x0202020202020202 {
		t.Fatalf("%#x: the copy did not wait for its turn", v)
	}
}

func TestTakingMemoryFromUnderAnOperationIsCounted(t *testing.T) {
	r := newRig(t)
	slot := r.alloc(t, 8, 0)
	host := make([]byte, 4096)
	p, err := r.MemAlloc(4096)
	must(t, err)
	must(t, r.HostRegister(unsafe.Pointer(&host[0]), 4096))
	must(t, r.StreamWaitValue64GEQ(r.stream, slot, 1))
	must(t, r.MemcpyHtoDAsync(p, unsafe.Pointer(&host[0]), 8, r.stream))
	before := r.fake.Stats().Misuses
	must(t, r.HostUnregister(unsafe.Pointer(&host[0])))
	if n := r.fake.Stats().Misuses - before; n != 1 {
		t.Fatalf("%d misuses", n)
	}
	must(t, r.StreamWriteValue64(r.newStream(t), slot, 1))
	must(t, r.StreamSynchronize(r.stream))
	must(t, r.MemFree(p))
	r.fake.Forgive(1)
}

func TestADestroyedStreamFinishesItsWork(t *testing.T) {
	r := newRig(t)
	p := r.alloc(t, 8, 0)
	s, err := r.StreamCreate()
	must(t, err)
	r.fake.Set(t, "DELAY", "2000")
	must(t, r.MemsetD8Async(p, 9, 8, s))
	e, err := r.EventCreate(driver.EventNoTiming)
	must(t, err)
	must(t, r.EventRecord(e, s))
	must(t, r.StreamDestroy(s))
	wants(t, r.MemsetD8Async(p, 9, 8, s), driver.InvalidHandle)
	must(t, r.EventSynchronize(e))
	must(t, r.EventDestroy(e))
	wants(t, r.EventDestroy(e), driver.InvalidHandle)
	if v := r.word(t, p); v != 0x0909090909090909 {
		t.Fatalf("%#x", v)
	}
}
