package gpuipctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Operations of an Accelerator that a Device does not have, for Fail and Stall.
const (
	OpUpload gpuipc.Op = 64 + iota
	OpDownload
	OpComposeAll
	OpRotateAll
	OpImportShare
	OpAttachHost
)

// Accelerator is a gpuipc.Accelerator whose memory is memfds and whose kernels run on a
// separate host device. As with a GPU, other devices do not know its regions, and it does
// not know theirs. A region is one chunk and is shared as a descriptor. Rules of the
// embedded Device make operations fail or wait.
type Accelerator struct {
	*Device // runs the kernels

	host gpuipc.Device // device whose regions can be attached
	id   gpuipc.UUID

	state struct {
		sync.Mutex
		attached map[gpuipc.Region]*sync.WaitGroup // running uploads and downloads of each attached region
		lost     bool
		spoil    int // number of uploads until one writes a wrong byte; 0 = none will
	}
}

// NewAccelerator opens an accelerator next to a host device. It is closed when the test
// ends. All its regions must be closed before that.
func NewAccelerator(t testing.TB, host gpuipc.Device) *Accelerator {
	t.Helper()
	return NewAccelerators(t, host, 1)[0]
}

// NewAccelerators opens n accelerators. The UUID of number i ends in i+1.
func NewAccelerators(t testing.TB, host gpuipc.Device, n int) (list []*Accelerator) {
	t.Helper()
	for i := range n {
		a := &Accelerator{Device: HostDevice(t, gpuipc.HostOptions{Workers: 1}), host: host, id: gpuipc.UUID{15: byte(i + 1)}}
		a.state.attached = map[gpuipc.Region]*sync.WaitGroup{}
		list = append(list, a)
	}
	return list
}

// Lose makes every operation from now on fail with ErrUnavailable, as a GPU that fell off
// its bus does. Regions can still be closed.
func (a *Accelerator) Lose() {
	a.state.Lock()
	defer a.state.Unlock()
	a.state.lost = true
}

// Lost reports whether Lose was called, like the method Lost of a GPU's device.
func (a *Accelerator) Lost() bool { return a.check() != nil }

// Spoil makes the n-th upload from now on (1 = the next) write one wrong byte. The digests
// of the upload include this byte.
func (a *Accelerator) Spoil(n int) {
	a.state.Lock()
	defer a.state.Unlock()
	a.state.spoil = n
}

// Attached returns the number of attached host regions.
func (a *Accelerator) Attached() int {
	a.state.Lock()
	defer a.state.Unlock()
	return len(a.state.attached)
}

func (a *Accelerator) check() error {
	a.state.Lock()
	defer a.state.Unlock()
	if a.state.lost {
		return fmt.Errorf("the device is lost: %w", gpuipc.ErrUnavailable)
	}
	return nil
}

// Describe returns a description that differs from every GPU's.
func (a *Accelerator) Describe() gpuipc.Description {
	return gpuipc.Description{Kind: "double", Name: "kernels of the host"}
}

// UUID returns the UUID, which is unique among accelerators that were opened together.
func (a *Accelerator) UUID() gpuipc.UUID { return a.id }

// region is memory of an Accelerator. It wraps a region of the host device that runs the
// kernels. That host device knows the wrapped region only, not the wrapper.
type region struct {
	gpuipc.Region // of the host device that runs the kernels
	dev           *Accelerator
}

// Export returns ErrUnavailable, because no host can map the memory of an accelerator.
func (r *region) Export() (gpuipc.Handle, error) {
	if err := r.dev.Hold(r); err != nil {
		return gpuipc.Handle{}, err // closed
	}
	return gpuipc.Handle{}, fmt.Errorf("memory of an accelerator has no host handle: %w", gpuipc.ErrUnavailable)
}

// Device returns the accelerator's UUID.
func (r *region) Device() gpuipc.UUID { return r.dev.id }

// Share returns a share with one descriptor.
func (r *region) Share(way gpuipc.Way) (gpuipc.Share, error) {
	if err := r.dev.check(); err != nil {
		return gpuipc.Share{}, err
	}
	if way != gpuipc.WayDescriptor {
		return gpuipc.Share{}, fmt.Errorf("way %d: %w", way, gpuipc.ErrUnavailable)
	}
	h, err := r.Region.Export()
	if err != nil {
		return gpuipc.Share{}, err
	}
	return gpuipc.Share{Way: way, Device: r.dev.id, Chunks: []gpuipc.Chunk{{Bytes: h.Bytes, File: h.File}}}, nil
}

// NewRegion returns a gpuipc.SharedRegion. Every process that maps it may write to it.
func (a *Accelerator) NewRegion(spec gpuipc.RegionSpec) (gpuipc.Region, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	if err := spec.Check(); err != nil {
		return nil, err
	}
	spec.Access, spec.Huge = gpuipc.ClientWrites, gpuipc.HugeNever
	r, err := a.Device.NewRegion(spec)
	if err != nil {
		return nil, err
	}
	return &region{Region: r, dev: a}, nil
}

// Import returns ErrUnavailable.
func (a *Accelerator) Import(h gpuipc.Handle) (gpuipc.Region, error) {
	if h.File != nil {
		h.File.Close()
	}
	return nil, fmt.Errorf("import of host memory: %w", gpuipc.ErrUnavailable)
}

// ImportShare maps a Share that has one descriptor.
func (a *Accelerator) ImportShare(ctx context.Context, s gpuipc.Share) (gpuipc.Region, error) {
	err := errors.Join(a.check(), a.enter(ctx, OpImportShare), ctx.Err())
	switch {
	case err != nil:
	case s.Way != gpuipc.WayDescriptor || len(s.Chunks) != 1 || s.Chunks[0].File == nil:
		err = fmt.Errorf("import of %d chunks by way %d: %w", len(s.Chunks), s.Way, gpuipc.ErrUnavailable)
	case s.Device != a.id:
		err = fmt.Errorf("import of memory of device %v: %w", s.Device, gpuipc.ErrInvalid)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Memory of a device has no holes. If this fails, the import says why.
	_ = unix.Fallocate(int(s.Chunks[0].File.Fd()), 0, 0, s.Chunks[0].Bytes)
	r, err := a.Device.Device.Import(gpuipc.Handle{File: s.Chunks[0].File, Bytes: s.Chunks[0].Bytes})
	if err != nil {
		return nil, err
	}
	return &region{Region: r, dev: a}, nil
}

// The method own returns the host device's region inside a region of this accelerator. It
// returns other regions unchanged, and the host device then refuses them.
func (a *Accelerator) own(r gpuipc.Region) gpuipc.Region {
	if mine, ok := r.(*region); ok && mine.dev == a {
		return mine.Region
	}
	return r
}

func (a *Accelerator) ref(r gpuipc.Ref) gpuipc.Ref {
	return gpuipc.Ref{Region: a.own(r.Region), Extents: r.Extents}
}

// AttachHost allows copies to and from a region of the host device.
func (a *Accelerator) AttachHost(r gpuipc.Region) (detach func() error, err error) {
	if err := errors.Join(a.check(), a.enter(context.Background(), OpAttachHost)); err != nil {
		return nil, err
	}
	if _, ok := gpuipc.HostOf(r); !ok {
		return nil, fmt.Errorf("not a region of a host device: %w", gpuipc.ErrInvalid)
	}
	a.state.Lock()
	defer a.state.Unlock()
	if a.state.attached[r] != nil {
		return nil, fmt.Errorf("the region is attached already: %w", gpuipc.ErrInvalid)
	}
	running := &sync.WaitGroup{}
	a.state.attached[r] = running
	return func() error {
		a.state.Lock()
		delete(a.state.attached, r)
		a.state.Unlock()
		running.Wait()
		return nil
	}, nil
}

// The method begin registers a copy to or from an attached region. The caller must call the
// returned function when the copy has ended.
func (a *Accelerator) begin(r gpuipc.Region) (end func(), err error) {
	a.state.Lock()
	defer a.state.Unlock()
	running := a.state.attached[r]
	if running == nil {
		return nil, fmt.Errorf("the host region is not attached: %w", gpuipc.ErrInvalid)
	}
	running.Add(1)
	return running.Done, nil
}

// Upload copies chunk by chunk through a buffer and hashes what arrived.
func (a *Accelerator) Upload(ctx context.Context, dst, src gpuipc.Ref, digests []uint64) error {
	if err := a.enter(ctx, OpUpload); err != nil {
		return err
	}
	if err := checkTransfer(dst, src, digests); err != nil {
		return err
	}
	end, err := a.begin(src.Region)
	if err != nil {
		return err
	}
	defer end()
	to := a.ref(dst)
	if err := a.copy(ctx, OpUpload, to, src, a.host.Load, a.Device.Device.Store); err != nil {
		return err
	}
	if err := a.spoil(ctx, to); err != nil || digests == nil {
		return err
	}
	return a.Device.Device.Digests(ctx, to, digests)
}

// Download copies from the accelerator to a host region in the same way.
func (a *Accelerator) Download(ctx context.Context, dst, src gpuipc.Ref, digests []uint64) error {
	if err := a.enter(ctx, OpDownload); err != nil {
		return err
	}
	if err := checkTransfer(dst, src, digests); err != nil {
		return err
	}
	end, err := a.begin(dst.Region)
	if err != nil {
		return err
	}
	defer end()
	if err := a.copy(ctx, OpDownload, dst, a.ref(src), a.Device.Device.Load, a.host.Store); err != nil || digests == nil {
		return err
	}
	return a.host.Digests(ctx, dst, digests)
}

type (
	loader func(context.Context, []byte, gpuipc.Ref) error
	storer func(context.Context, gpuipc.Ref, []byte) error
)

func checkTransfer(dst, src gpuipc.Ref, digests []uint64) error {
	if dst.Len() != src.Len() {
		return fmt.Errorf("%d bytes to %d: %w", src.Len(), dst.Len(), gpuipc.ErrInvalid)
	}
	if digests == nil {
		return nil
	}
	return gpuipc.CheckDigests(digests, src.Len())
}

func (a *Accelerator) copy(ctx context.Context, op gpuipc.Op, dst, src gpuipc.Ref, load loader, store storer) error {
	buf := make([]byte, min(src.Len(), gpuipc.ChunkBytes))
	for off := int64(0); off < src.Len(); off += gpuipc.ChunkBytes {
		if off > 0 {
			a.between(op)
		}
		if err := errors.Join(a.check(), ctx.Err()); err != nil {
			return err
		}
		n := min(src.Len()-off, gpuipc.ChunkBytes)
		if err := load(ctx, buf[:n], src.Slice(off, n)); err != nil {
			return err
		}
		if err := store(ctx, dst.Slice(off, n), buf[:n]); err != nil {
			return err
		}
	}
	return a.check()
}

// spoil changes the first byte that an upload wrote, if Spoil was called for this upload.
func (a *Accelerator) spoil(ctx context.Context, dst gpuipc.Ref) error {
	a.state.Lock()
	hit := a.state.spoil == 1
	a.state.spoil = max(0, a.state.spoil-1)
	a.state.Unlock()
	if !hit || dst.Len() == 0 {
		return nil
	}
	b, first := make([]byte, 1), dst.Slice(0, 1)
	if err := a.Device.Device.Load(ctx, b, first); err != nil {
		return err
	}
	b[0]++
	return a.Device.Device.Store(ctx, first, b)
}

// CopyDigests copies inside the accelerator.
func (a *Accelerator) CopyDigests(ctx context.Context, dst, src gpuipc.Ref, digests []uint64) error {
	return a.run(func() error { return a.Device.CopyDigests(ctx, a.ref(dst), a.ref(src), digests) })
}

// Digests hashes memory of the accelerator.
func (a *Accelerator) Digests(ctx context.Context, src gpuipc.Ref, digests []uint64) error {
	return a.run(func() error { return a.Device.Digests(ctx, a.ref(src), digests) })
}

// Checksums computes the CRC-32 of memory of the accelerator.
func (a *Accelerator) Checksums(ctx context.Context, src gpuipc.Ref, sums []uint64) error {
	return a.run(func() error { return a.Device.Checksums(ctx, a.ref(src), sums) })
}

// Load copies to host memory.
func (a *Accelerator) Load(ctx context.Context, dst []byte, src gpuipc.Ref) error {
	return a.run(func() error { return a.Device.Load(ctx, dst, a.ref(src)) })
}

// Store copies from host memory.
func (a *Accelerator) Store(ctx context.Context, dst gpuipc.Ref, src []byte) error {
	return a.run(func() error { return a.Device.Store(ctx, a.ref(dst), src) })
}

// Pin returns ErrUnavailable, because the memory has no host address.
func (a *Accelerator) Pin(gpuipc.Ref, bool) ([][]byte, func(), error) {
	return nil, nil, fmt.Errorf("memory of an accelerator: %w", gpuipc.ErrUnavailable)
}

// Compose runs the host's kernel.
func (a *Accelerator) Compose(ctx context.Context, job *gpuipc.ComposeJob) error {
	own := a.composeJob(job)
	return a.run(func() error { return a.Device.Compose(ctx, &own) })
}

// Replay runs the host's kernel.
func (a *Accelerator) Replay(ctx context.Context, job *gpuipc.ReplayJob) error {
	own := *job
	for _, r := range [...]*gpuipc.Ref{&own.From, &own.Decay, &own.K, &own.U, &own.Out} {
		*r = a.ref(*r)
	}
	return a.run(func() error { return a.Device.Replay(ctx, &own) })
}

// Rotate runs the host's kernel.
func (a *Accelerator) Rotate(ctx context.Context, job *gpuipc.RotateJob) error {
	if job.SrcPacked {
		return fmt.Errorf("packed rows: %w", gpuipc.ErrUnavailable)
	}
	own := a.rotateJob(job)
	return a.run(func() error { return a.Device.Rotate(ctx, &own) })
}

// ComposeAll runs one job after the other.
func (a *Accelerator) ComposeAll(ctx context.Context, jobs []gpuipc.ComposeJob) error {
	if err := a.enter(ctx, OpComposeAll); err != nil {
		return err
	}
	c := gpuipc.Checker{Holder: a}
	for i := range jobs {
		if err := c.Compose(&jobs[i]); err != nil {
			return fmt.Errorf("job %d of %d: %w", i, len(jobs), err)
		}
	}
	if err := c.Disjoint(); err != nil {
		return err
	}
	return a.run(func() error {
		for i := range jobs {
			own := a.composeJob(&jobs[i])
			if err := a.Device.Device.Compose(ctx, &own); err != nil {
				return fmt.Errorf("job %d of %d: %w", i, len(jobs), err)
			}
		}
		return nil
	})
}

// RotateAll runs one job after the other.
func (a *Accelerator) RotateAll(ctx context.Context, jobs []gpuipc.RotateJob) error {
	if err := a.enter(ctx, OpRotateAll); err != nil {
		return err
	}
	c := gpuipc.Checker{Holder: a}
	for i := range jobs {
		if err := c.Rotate(&jobs[i]); err != nil {
			return fmt.Errorf("job %d of %d: %w", i, len(jobs), err)
		}
		if jobs[i].SrcPacked {
			return fmt.Errorf("job %d of %d: packed rows: %w", i, len(jobs), gpuipc.ErrUnavailable)
		}
	}
	if err := c.Disjoint(); err != nil {
		return err
	}
	return a.run(func() error {
		for i := range jobs {
			own := a.rotateJob(&jobs[i])
			if err := a.Device.Device.Rotate(ctx, &own); err != nil {
				return fmt.Errorf("job %d of %d: %w", i, len(jobs), err)
			}
		}
		return nil
	})
}

// Hold makes the Accelerator a gpuipc.Holder of its own regions. It only checks them. The
// host device that runs the kernels holds them during an operation.
func (a *Accelerator) Hold(r gpuipc.Region) error {
	if mine, ok := r.(*region); !ok || mine.dev != a {
		return fmt.Errorf("a region of another device: %w", gpuipc.ErrInvalid)
	}
	_, unpin, err := a.Device.Device.Pin(gpuipc.Ref{Region: a.own(r)}, false)
	if err == nil {
		unpin()
	}
	return err // not nil if the region is closed
}

// run runs op. It returns an error if the device is lost before or after that.
func (a *Accelerator) run(op func() error) error {
	if err := a.check(); err != nil {
		return err
	}
	if err := op(); err != nil {
		return err
	}
	return a.check()
}

func (a *Accelerator) composeJob(job *gpuipc.ComposeJob) gpuipc.ComposeJob {
	own := *job
	own.From, own.Out, own.Steps = a.ref(job.From), a.ref(job.Out), slices.Clone(job.Steps)
	for i := range own.Steps {
		st := &own.Steps[i]
		st.T, st.S, st.Before = a.ref(st.T), a.ref(st.S), a.ref(st.Before)
	}
	return own
}

func (a *Accelerator) rotateJob(job *gpuipc.RotateJob) gpuipc.RotateJob {
	own := *job
	own.Src, own.Dst.Rows, own.Dst.Region = a.ref(job.Src), a.ref(job.Dst.Rows), a.own(job.Dst.Region)
	return own
}
