package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// bed is a disk tier in this process, without a daemon, and memory to write from and to read
// into. Each segment has its own memory, as in an arena: memory that is used again and again
// would stay in a CPU cache.
type bed struct {
	tier    *disk.Tier
	stopped chan error
	device  gpuipc.Device
	source  gpuipc.Region
	target  gpuipc.Region

	profile *profile.Profile
	spec    profile.SegmentSpec
	layout  profile.Layout
	places  []spot // one per segment of a pass
	tokens  []uint32
	made    uint64 // segments so far; each has its own key
}

// spot is the memory of one segment of a pass. The tier writes the segment from the memory in
// the field from, and reads it back into the memory in the field to.
type spot struct {
	from, to gpuipc.Ref
	digests  []uint64
}

// bedPlan describes a bed.
type bedPlan struct {
	dir      string
	profile  *profile.Profile
	tokens   int   // of a segment
	segments int   // of a pass
	budget   int64 // of the tier, in bytes
	granule  int64 // 0 = the tier's default
}

const benchTenant tier.TenantID = 1

func openBed(p bedPlan) (_ *bed, err error) {
	b := &bed{profile: p.profile, spec: profile.FirstSpec(p.tokens), layout: p.profile.SegmentLayout(p.tokens), tokens: tokensOf(1, p.tokens)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	if b.device, err = gpuipc.NewHost(gpuipc.HostOptions{}); err != nil {
		return nil, err
	}
	if err := b.fill(p.segments); err != nil {
		return nil, err
	}
	b.tier, err = disk.Open(p.config(b.device))
	if err != nil {
		return nil, err
	}
	if h := b.tier.Health(); h.State != disk.StateOK {
		return nil, fmt.Errorf("disk tier in %s: %v: %s", p.dir, h.State, h.Cause)
	}
	b.stopped = make(chan error, 1)
	go func() { b.stopped <- b.tier.Run(context.Background()) }()
	return b, nil
}

// config returns the settings of a daemon, except for the budgets.
func (p *bedPlan) config(device gpuipc.Device) disk.Config {
	return disk.Config{Dir: p.dir, PublicBytes: p.budget, GranuleBytes: p.granule, Device: device,
		Tenants: []disk.Tenant{{ID: benchTenant, Name: "bench"}}}
}

// fill creates the memory of a pass, with bytes that do not compress, and their digests.
func (b *bed) fill(segments int) (err error) {
	share := (b.layout.Bytes + 4095) &^ 4095
	for _, r := range []struct {
		region *gpuipc.Region
		name   string
	}{{&b.source, "bench-source"}, {&b.target, "bench-target"}} {
		*r.region, err = b.device.NewRegion(gpuipc.RegionSpec{Name: r.name, Bytes: share * int64(segments), Access: gpuipc.ClientReads})
		if err != nil {
			return err
		}
	}
	plain := make([]byte, b.layout.Bytes)
	for i := range segments {
		at := []gpuipc.Extent{{Off: int64(i) * share, Len: b.layout.Bytes}}
		p := spot{from: gpuipc.Ref{Region: b.source, Extents: at}, to: gpuipc.Ref{Region: b.target, Extents: at}}
		machine.Noise(plain, uint64(i))
		b.clearGaps(plain)
		for _, part := range b.layout.Parts {
			p.digests = gpuipc.AppendDigests(p.digests, plain[part.Off:part.Off+part.Len])
		}
		for _, ref := range []gpuipc.Ref{p.from, p.to} { // written in both, so that no pass pays for page faults
			if err := b.device.Store(context.Background(), ref, plain); err != nil {
				return err
			}
		}
		b.places = append(b.places, p)
	}
	return nil
}

// clearGaps zeroes the gaps between parts, because nothing writes them in an arena.
func (b *bed) clearGaps(plain []byte) {
	end := int64(0)
	for _, part := range b.layout.Parts {
		clear(plain[end:part.Off])
		end = part.Off + part.Len
	}
	clear(plain[end:])
}

// close closes the tier and frees all memory. It also works on a bed that openBed could not
// complete.
func (b *bed) close() (err error) {
	if b.tier != nil {
		err = b.tier.Close()
	}
	if b.stopped != nil {
		err = errors.Join(err, <-b.stopped)
	}
	for _, r := range []gpuipc.Region{b.source, b.target} {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	if b.device != nil {
		err = errors.Join(err, b.device.Close())
	}
	return err
}

// segment returns a new segment with the bytes of place i.
func (b *bed) segment(i int) *tier.Object {
	b.made++
	o := &tier.Object{Profile: b.profile, Tenant: benchTenant, Publisher: "bench", Created: time.Now(), Spec: b.spec, Tokens: b.tokens,
		End: b.spec.Tokens, Shares: []tier.Share{{Ref: b.places[i].from, Digests: b.places[i].digests}}}
	binary.LittleEndian.PutUint64(o.Key[:], b.made)
	return o
}

// ticket is a write in flight.
type ticket struct {
	reached tier.Level
	err     error
}

// start begins to write an object; the result is sent on done. It waits while the tier is busy:
// the tier is then writing other objects of this bed, which will complete.
func (b *bed) start(o *tier.Object, level tier.Level, done chan<- ticket) error {
	w, err := b.tier.Admit(o, 1<<62)
	if err != nil {
		return err
	}
	w.Start(level, func(reached tier.Level, err error) { done <- ticket{reached, err} })
	return nil
}

func (k ticket) check(want tier.Level) error {
	if k.err == nil && k.reached < want {
		return fmt.Errorf("level %d instead of %d", k.reached, want)
	}
	return k.err
}

// writePass writes one segment from each place and returns their names. It has as many writes in
// flight as the tier accepts.
func (b *bed) writePass(ctx context.Context, level tier.Level) ([]tier.Name, error) {
	names := make([]tier.Name, len(b.places))
	done := make(chan ticket, len(b.places))
	flying := 0
	for i := range b.places {
		o := b.segment(i)
		names[i] = tier.Name{Key: o.Key}
		for {
			err := b.start(o, level, done)
			if err == nil {
				flying++
				break
			}
			if !errors.Is(err, tier.ErrBusy) || flying == 0 {
				return nil, err
			}
			flying--
			if err := (<-done).check(level); err != nil {
				return nil, err
			}
		}
	}
	for ; flying > 0; flying-- {
		if err := errors.Join(ctx.Err(), (<-done).check(level)); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// writeEach runs several writers. Each writes one segment after another, and waits until a
// segment is written before it writes the next.
func (b *bed) writeEach(ctx context.Context, level tier.Level, writers int) ([]tier.Name, error) {
	objects := make([]*tier.Object, len(b.places))
	names := make([]tier.Name, len(b.places))
	for i := range objects {
		objects[i] = b.segment(i)
		names[i] = tier.Name{Key: objects[i].Key}
	}
	return names, together(writers, func(w int) error {
		done := make(chan ticket, 1)
		for i := w; i < len(objects); i += writers {
			if err := errors.Join(ctx.Err(), b.start(objects[i], level, done)); err != nil {
				return err
			}
			if err := (<-done).check(level); err != nil {
				return err
			}
		}
		return nil
	})
}

// readPass reads the segments of a write pass, one after another, into the places that they came
// from. The segments are not in this machine's page cache, but storage outside the machine may
// have cached them.
func (b *bed) readPass(ctx context.Context, names []tier.Name) error {
	for i := range names {
		e, ok := b.tier.Lookup(&names[i])
		if !ok {
			return fmt.Errorf("segment %d is not there any more", i)
		}
		if _, err := b.tier.Read(ctx, &e, []gpuipc.Ref{b.places[i].to}); err != nil {
			return err
		}
	}
	return nil
}

// forget frees the space of a pass.
func (b *bed) forget(names []tier.Name) error {
	for i := range names {
		if !b.tier.Remove(&names[i]) {
			return fmt.Errorf("segment %d was not there to be removed", i)
		}
	}
	return nil
}

// payload returns the bytes of a pass.
func (b *bed) payload() int64 { return b.layout.Bytes * int64(len(b.places)) }
