package connector

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// A DeviceLease is one segment leased on the device.
type DeviceLease struct {
	held
	Begin   int // first interior token, local to the segment
	Tokens  int // interior tokens
	layout  profile.Layout
	extents extents
}

// AcquiredDevice is one row of AcquireDevice: a lease, or the reason for its absence.
type AcquiredDevice struct {
	Lease *DeviceLease
	Err   error
}

// Layout returns the list of parts. They are shared and must not be changed.
func (l *DeviceLease) Layout() profile.Layout { return l.layout }

// Part returns the device memory of part i, as mapped by this process, for operations of
// Options.Device. It returns an empty Ref after Release and for a part that does not exist. Work
// that reads the memory must end before Release, or before the client's stream writes the number
// that ReleaseBehind waits for.
func (l *DeviceLease) Part(i int) gpuipc.Ref {
	if i < 0 || i >= len(l.layout.Parts) || l.released.Load() {
		return gpuipc.Ref{}
	}
	p := &l.layout.Parts[i]
	whole := gpuipc.Ref{Region: l.a.Device.Arena, Extents: l.extents}
	return whole.Slice(p.Off, p.Len)
}

// Release is Lease.Release. Work on the device must not read the lease any more.
func (l *DeviceLease) Release() {
	if l != nil {
		l.release()
	}
}

// Valid is Lease.Valid.
func (l *DeviceLease) Valid() bool { return l != nil && l.valid() }

// AcquireDevice leases segments on the device, one row per key, at most wire.MaxKeys. Segments
// that are not on the device yet are copied there. The call waits up to o.Wait for the copies;
// if o.Wait is 0, such a row is a miss. ErrUnsupported: the client has not mapped device memory
// of the daemon.
func (m *Model) AcquireDevice(ctx context.Context, keys []profile.SegmentKey, o AcquireOptions) ([]AcquiredDevice, error) {
	r, k, err := m.begin(ctx, wire.OpAcquireDevice, m.client.timeout(o))
	if err != nil {
		return nil, err
	}
	defer r.end(k)
	switch {
	case r.a.Device == nil:
		return nil, fmt.Errorf("acquire-device: no device memory: %w", ErrUnsupported)
	case len(keys) > wire.MaxKeys:
		return nil, invalid("acquire-device: %d keys", len(keys))
	}
	k.Late.GiveBack = true
	until := o.until()
	reply := &k.Acquired
	err = r.ask(ctx, k, &wire.AcquireDeviceRequest{
		Profile: r.profile, Rank: uint32(m.binding.Rank), TTLMs: milliseconds(o.TTL), Digests: flag(o.Digests),
		All: flag(o.All), Wait: flag(o.Wait > 0), Keys: wireHashes(keys),
	}, reply)
	if err != nil {
		return nil, err
	}
	if err := r.a.CheckRows(wire.OpAcquireDevice, len(reply.Codes), len(keys)); err != nil {
		return nil, err
	}
	rows, err := m.deviceLeases(r, reply)
	for i := range rows {
		if rows[i].Lease != nil {
			rows[i].Lease.until = until
		}
	}
	return rows, err
}

// deviceLeases converts the rows of a reply into leases.
func (m *Model) deviceLeases(r *registration, reply *wire.AcquireReply) ([]AcquiredDevice, error) {
	out := make([]AcquiredDevice, len(reply.Codes))
	extent := uint32(0)
	for i, code := range reply.Codes {
		e := extent + reply.ExtentCount[i]
		if wire.Code(code) != wire.OK {
			out[i].Err = link.Kind(wire.Code(code))
		} else {
			l := &DeviceLease{held: held{a: r.a, tenant: r.tenant, id: reply.Leases[i]}, Begin: int(reply.Begins[i]), Tokens: int(reply.Tokens[i])}
			var err error
			if l.layout, l.extents, err = m.segment(reply, i, extent, "", int(r.a.Device.Arena.Bytes())); err == nil && !r.a.Retain() {
				err = fmt.Errorf("the mappings are gone")
			}
			if err != nil {
				return nil, r.a.Malformed("acquire-device: %w", err)
			}
			out[i].Lease = l
		}
		extent = e
	}
	return out, nil
}
