package gpuipctest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Device passes every call on to another device. Rules make calls fail or wait first. Its
// regions belong to the other device. It is safe for concurrent use.
type Device struct {
	gpuipc.Device

	mu struct {
		sync.Mutex
		calls  map[gpuipc.Op]int // number of calls so far
		chunks map[gpuipc.Op]int // number of borders between chunks so far
		onCall []rule
		onMid  []rule
	}
}

// rule says what to do once, at a certain call of the operation op or at a certain border
// between its chunks. The field at is the number of this call or border.
type rule struct {
	op gpuipc.Op
	at int
	do func(context.Context) error
}

// Wrap returns a Device around d. Only a device from HostDevice can stop inside an
// operation.
func Wrap(d gpuipc.Device) *Device {
	w := &Device{Device: d}
	w.mu.calls = map[gpuipc.Op]int{}
	w.mu.chunks = map[gpuipc.Op]int{}
	return w
}

// HostDevice opens a host device whose operations can also be stopped between their chunks.
// It is closed when the test ends. All its regions must be closed before that.
func HostDevice(t testing.TB, o gpuipc.HostOptions) *Device {
	t.Helper()
	w := Wrap(nil)
	o.Between = func(op gpuipc.Op, _ int) { w.between(op) }
	d, err := gpuipc.NewHost(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Device = d
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// Fail makes the n-th call of op from now on (1 = the next) do nothing and return err.
func (w *Device) Fail(op gpuipc.Op, n int, err error) {
	w.addCall(op, n, func(context.Context) error { return err })
}

// Stall makes the n-th call of op from now on wait before it does anything. Like a device
// that hangs, it ignores its context while it waits. It continues at the latest when the
// test ends.
func (w *Device) Stall(t testing.TB, op gpuipc.Op, n int) *Stall {
	s := newStall(t)
	w.addCall(op, n, s.wait)
	return s
}

// StallInside makes an operation wait between two of its chunks: at the n-th border between
// chunks of op from now on, counted over all calls. It works only for a device from
// HostDevice.
func (w *Device) StallInside(t testing.TB, op gpuipc.Op, n int) *Stall {
	s := newStall(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.onMid = append(w.mu.onMid, rule{op, w.mu.chunks[op] + n, s.wait})
	return s
}

// Calls returns the number of calls of op so far, including failed ones.
func (w *Device) Calls(op gpuipc.Op) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.calls[op]
}

func (w *Device) addCall(op gpuipc.Op, n int, do func(context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.onCall = append(w.mu.onCall, rule{op, w.mu.calls[op] + n, do})
}

// enter counts a call and runs the rules for it, outside the lock.
func (w *Device) enter(ctx context.Context, op gpuipc.Op) error {
	w.mu.Lock()
	w.mu.calls[op]++
	due := take(&w.mu.onCall, op, w.mu.calls[op])
	w.mu.Unlock()
	for _, r := range due {
		if err := r.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *Device) between(op gpuipc.Op) {
	w.mu.Lock()
	w.mu.chunks[op]++
	due := take(&w.mu.onMid, op, w.mu.chunks[op])
	w.mu.Unlock()
	for _, r := range due {
		_ = r.do(context.Background()) // only stalls, which never fail
	}
}

// take removes from the list the rules for operation op and number at, and returns them.
func take(rules *[]rule, op gpuipc.Op, at int) (due []rule) {
	kept := (*rules)[:0]
	for _, r := range *rules {
		if r.op == op && r.at == at {
			due = append(due, r)
		} else {
			kept = append(kept, r)
		}
	}
	*rules = kept
	return due
}

// Stall is a point at which a goroutine waits.
type Stall struct {
	t       testing.TB
	ctx     context.Context // set before reached is closed
	reached chan struct{}
	release chan struct{}
	once    sync.Once
}

func newStall(t testing.TB) *Stall {
	s := &Stall{t: t, reached: make(chan struct{}), release: make(chan struct{})}
	t.Cleanup(s.Release)
	return s
}

func (s *Stall) wait(ctx context.Context) error {
	s.ctx = ctx
	close(s.reached)
	<-s.release
	return nil
}

// Await waits until a goroutine has reached the stall. The test fails if none does within a
// minute.
func (s *Stall) Await() {
	s.t.Helper()
	select {
	case <-s.reached:
	case <-time.After(time.Minute):
		s.t.Fatal("no call reached the stall within a minute")
	}
}

// Context returns the context of the call that waits at the stall. It must not be called
// before Await has returned.
func (s *Stall) Context() context.Context { return s.ctx }

// Release ends the stall, or prevents it if it was not reached yet. It may be called
// several times.
func (s *Stall) Release() { s.once.Do(func() { close(s.release) }) }

func (w *Device) NewRegion(spec gpuipc.RegionSpec) (gpuipc.Region, error) {
	if err := w.enter(context.Background(), gpuipc.OpNewRegion); err != nil {
		return nil, err
	}
	return w.Device.NewRegion(spec)
}

func (w *Device) Import(h gpuipc.Handle) (gpuipc.Region, error) {
	if err := w.enter(context.Background(), gpuipc.OpImport); err != nil {
		h.File.Close()
		return nil, err
	}
	return w.Device.Import(h)
}

func (w *Device) CopyDigests(ctx context.Context, dst, src gpuipc.Ref, digests []uint64) error {
	if err := w.enter(ctx, gpuipc.OpCopyDigests); err != nil {
		return err
	}
	return w.Device.CopyDigests(ctx, dst, src, digests)
}

func (w *Device) Digests(ctx context.Context, src gpuipc.Ref, digests []uint64) error {
	if err := w.enter(ctx, gpuipc.OpDigests); err != nil {
		return err
	}
	return w.Device.Digests(ctx, src, digests)
}

func (w *Device) Checksums(ctx context.Context, src gpuipc.Ref, sums []uint64) error {
	if err := w.enter(ctx, gpuipc.OpChecksums); err != nil {
		return err
	}
	return w.Device.Checksums(ctx, src, sums)
}

func (w *Device) Load(ctx context.Context, dst []byte, src gpuipc.Ref) error {
	if err := w.enter(ctx, gpuipc.OpLoad); err != nil {
		return err
	}
	return w.Device.Load(ctx, dst, src)
}

func (w *Device) Store(ctx context.Context, dst gpuipc.Ref, src []byte) error {
	if err := w.enter(ctx, gpuipc.OpStore); err != nil {
		return err
	}
	return w.Device.Store(ctx, dst, src)
}

func (w *Device) Compose(ctx context.Context, job *gpuipc.ComposeJob) error {
	if err := w.enter(ctx, gpuipc.OpCompose); err != nil {
		return err
	}
	return w.Device.Compose(ctx, job)
}

func (w *Device) Replay(ctx context.Context, job *gpuipc.ReplayJob) error {
	if err := w.enter(ctx, gpuipc.OpReplay); err != nil {
		return err
	}
	return w.Device.Replay(ctx, job)
}

func (w *Device) Rotate(ctx context.Context, job *gpuipc.RotateJob) error {
	if err := w.enter(ctx, gpuipc.OpRotate); err != nil {
		return err
	}
	return w.Device.Rotate(ctx, job)
}

func (w *Device) Pin(r gpuipc.Ref, write bool) ([][]byte, func(), error) {
	if err := w.enter(context.Background(), gpuipc.OpPin); err != nil {
		return nil, nil, err
	}
	return w.Device.Pin(r, write)
}
