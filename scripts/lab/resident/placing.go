package resident

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/gpucheck"
)

// placingShare is the largest permitted time to place a request's segments from GPU memory,
// relative to the time to place them from host memory.
const placingShare = 0.5

// Placing returns a check of the time that an engine waits before it can begin to compute the
// rows of a spliced request that come from no segment. In this time it leases all segments,
// rotates their keys and copies them into its rows, and composes their transitions onto its
// states, with all layers in one batch. The check compares segments that are in GPU memory with
// segments in host memory, which are first copied to the GPU. The engine of the check uses no
// framework, so it runs on any GPU.
func Placing(o Options) gpucheck.Part {
	return gpucheck.Part{Name: "segments put in place", Limit: 22 * time.Second, Run: func(ctx context.Context, r *gpucheck.Report) error {
		b, err := open(ctx, o)
		if err != nil {
			return errors.Join(err, b.close())
		}
		e := &engine{bench: b}
		err = e.measure(ctx, r)
		return errors.Join(err, e.close(), b.close())
	}}
}

// engine has a request's states and rows on its device, and room for segments from memory.
type engine struct {
	*bench
	keys    []profile.SegmentKey
	memory  gpuipc.Region
	states  gpuipc.Ref
	rows    []gpuipc.Ref // by part of the layout: rows of all segments; empty for parts that are not keys or values
	landing []gpuipc.Ref // by segment: memory in the segment's layout, for segments copied from host memory
}

func (e *engine) measure(ctx context.Context, r *gpucheck.Report) error {
	if e.client.Kernels() == nil {
		return e.notShared(ctx)
	}
	if err := e.publish(ctx); err != nil {
		return err
	}
	if err := e.open(); err != nil {
		return err
	}
	ways := []func(context.Context) error{e.fromGPU, e.fromMemory}
	var found [2][]byte
	for i, run := range ways { // these first runs are not timed
		if err := run(ctx); err != nil {
			return err
		}
		found[i] = make([]byte, e.states.Len()+e.rowBytes())
		if err := e.device.Load(ctx, found[i], e.results()); err != nil {
			return err
		}
	}
	var same error
	if !bytes.Equal(found[0], found[1]) {
		same = errors.New("states or rows differ")
	}
	r.Holds("segments put in place from the GPU: as from memory", same)
	var took [2][]float64
	for range e.Sizes.Rounds {
		for i, run := range ways {
			start := time.Now()
			if err := run(ctx); err != nil {
				return err
			}
			took[i] = append(took[i], microseconds(start))
		}
	}
	gpu, memory := quantile(took[0], 0.5), quantile(took[1], 0.5)
	name := fmt.Sprintf("%d segments of %.4g MiB put in place", len(e.keys), float64(e.layout.Bytes)/(1<<20))
	r.Add(gpucheck.Row{Name: name + ", from memory", Value: memory, Unit: "us", OK: true})
	r.Within(name+", from the GPU beside from memory", gpu, memory, "us", placingShare)
	return nil
}

// publish publishes the segments of a request, and waits until they are copied to the GPU.
func (e *engine) publish(ctx context.Context) error {
	for i := range segments(e.Sizes) {
		key, err := e.bench.publish(ctx, newSegment(e.profile, e.Sizes.Rows, e.Seed+uint64(i)))
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		e.keys = append(e.keys, key)
	}
	// An acquire waits for copies at most as long as it would wait for a disk, so it is repeated
	// until all copies are there.
	for end := time.Now().Add(patience); ; {
		leases, err := e.lease(ctx, time.Second)
		connector.Release(leases...)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// open allocates the engine's memory.
func (e *engine) open() (err error) {
	n := int64(len(e.keys))
	s := e.profile.StatesLayout(profile.AllLayers, 0)
	room := aligned(s.Bytes)
	for i := range e.layout.Parts {
		room += aligned(n * e.layout.Parts[i].Len)
	}
	room += n * aligned(e.layout.Bytes)
	if e.memory, err = e.device.NewRegion(gpuipc.RegionSpec{Name: "engine", Bytes: room, Access: gpuipc.ClientWrites}); err != nil {
		return fmt.Errorf("an engine's memory of %d MiB: %w", room>>20, err)
	}
	at := int64(0)
	take := func(n int64) gpuipc.Ref {
		ref := gpuipc.Ref{Region: e.memory, Extents: []gpuipc.Extent{{Off: at, Len: n}}}
		at += aligned(n)
		return ref
	}
	e.states = take(s.Bytes)
	for i := range e.layout.Parts {
		p, ref := &e.layout.Parts[i], gpuipc.Ref{}
		if p.Kind == profile.PartK || p.Kind == profile.PartV {
			ref = take(n * p.Len)
		}
		e.rows = append(e.rows, ref)
	}
	for range n {
		e.landing = append(e.landing, take(e.layout.Bytes))
	}
	return nil
}

func (e *engine) close() error {
	if e.memory == nil {
		return nil
	}
	return e.memory.Close()
}

func aligned(n int64) int64 { return (n + 255) / 256 * 256 }

// results returns the memory of the states and of all rows.
func (e *engine) results() gpuipc.Ref {
	out := gpuipc.Ref{Region: e.memory, Extents: append([]gpuipc.Extent(nil), e.states.Extents...)}
	for i := range e.rows {
		out.Extents = append(out.Extents, e.rows[i].Extents...)
	}
	return out
}

func (e *engine) rowBytes() (n int64) {
	for i := range e.rows {
		n += e.rows[i].Len()
	}
	return n
}

func (e *engine) lease(ctx context.Context, wait time.Duration) ([]*connector.DeviceLease, error) {
	found, err := e.model.AcquireDevice(ctx, e.keys, connector.AcquireOptions{Wait: wait})
	if err != nil {
		return nil, err
	}
	var leases []*connector.DeviceLease
	for i := range found {
		leases = append(leases, found[i].Lease)
		if found[i].Err != nil {
			err = errors.Join(err, fmt.Errorf("segment %d of %d: %w", i, len(found), found[i].Err))
		}
	}
	return leases, err
}

func (e *engine) fromGPU(ctx context.Context) error {
	leases, err := e.lease(ctx, 0)
	defer func() { connector.Release(leases...) }()
	if err != nil {
		return err
	}
	return e.place(ctx, func(segment, part int) gpuipc.Ref { return leases[segment].Part(part) })
}

func (e *engine) fromMemory(ctx context.Context) error {
	found, err := e.model.Acquire(ctx, e.keys, connector.AcquireOptions{})
	if err != nil {
		return err
	}
	for i := range found {
		if err := found[i].Err; err != nil {
			return err
		}
		defer found[i].Lease.Release()
		for p := range e.layout.Parts {
			from := found[i].Lease.Part(p)
			if from == nil {
				return fmt.Errorf("part %d of segment %d lies in pieces", p, i)
			}
			if err := e.device.Store(ctx, e.landed(i, p), from); err != nil {
				return err
			}
		}
	}
	return e.place(ctx, e.landed)
}

func (e *engine) landed(segment, part int) gpuipc.Ref {
	return e.landing[segment].Slice(e.layout.Parts[part].Off, e.layout.Parts[part].Len)
}

// place composes and rotates all layers, in two batches, with the segments placed one after
// another. The function at returns the memory of a part of a segment.
func (e *engine) place(ctx context.Context, at func(segment, part int) gpuipc.Ref) error {
	if err := e.device.ComposeAll(ctx, e.compositions(at)); err != nil {
		return err
	}
	return e.device.RotateAll(ctx, e.rotations(at))
}

func (e *engine) compositions(at func(segment, part int) gpuipc.Ref) []gpuipc.ComposeJob {
	var jobs []gpuipc.ComposeJob
	states := e.profile.StatesLayout(profile.AllLayers, 0)
	for _, state := range states.Parts {
		t, s := e.part(state.Layer, profile.PartT), e.part(state.Layer, profile.PartS)
		l := e.profile.Identity().Layers[state.Layer].Linear
		job := gpuipc.ComposeJob{Transition: gpuipc.Transition(l.Family.Transition()), Heads: l.ValueHeads, DK: l.KeyDim, DV: l.ValueDim,
			Out: e.states.Slice(state.Off, state.Len)}
		for i := range e.keys {
			job.Steps = append(job.Steps, gpuipc.ComposeStep{
				T: at(i, t), TType: gpuipc.DType(e.layout.Parts[t].DType), S: at(i, s), SType: gpuipc.DType(e.layout.Parts[s].DType)})
		}
		jobs = append(jobs, job)
	}
	return jobs
}

func (e *engine) part(layer int, kind profile.PartKind) int {
	for i := range e.layout.Parts {
		if e.layout.Parts[i].Layer == layer && e.layout.Parts[i].Kind == kind {
			return i
		}
	}
	return -1
}

func (e *engine) rotations(at func(segment, part int) gpuipc.Ref) []gpuipc.RotateJob {
	var jobs []gpuipc.RotateJob
	for part := range e.layout.Parts {
		p := &e.layout.Parts[part]
		if e.rows[part].Region == nil {
			continue
		}
		a := e.profile.Identity().Layers[p.Layer].Attention
		dim, freq := a.ValueDim, e.profile.InvFreq(p.Layer)
		if p.Kind == profile.PartK {
			dim = a.KeyDim
		}
		for i := range e.keys {
			job := gpuipc.RotateJob{Rows: e.Sizes.Rows, Heads: a.KVHeads, Dim: dim, Type: gpuipc.DType(p.DType), Src: at(i, part),
				Dst: gpuipc.Scatter{Rows: e.rows[part].Slice(int64(i)*p.Len, p.Len)}}
			if p.Kind == profile.PartK {
				job.Turn = turnBy(i*e.Sizes.Rows, freq)
			}
			jobs = append(jobs, job)
		}
	}
	return jobs
}

// turnBy returns the rotation of keys by a distance in tokens.
func turnBy(distance int, freq []float64) *gpuipc.Rotation {
	r := &gpuipc.Rotation{Dims: 2 * len(freq)}
	for _, f := range freq {
		sin, cos := math.Sincos(float64(distance) * f)
		r.Cos, r.Sin = append(r.Cos, float32(cos)), append(r.Sin, float32(sin))
	}
	return r
}
