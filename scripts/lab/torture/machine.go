package torture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Sizes of the store in this process. Memory has room for a part of the data, the disk for all
// of it. Slab files are small, because the in-memory file system copies a whole file at each
// sync.
const (
	machineTenant    = tier.TenantID(1)
	machinePublic    = 6 << 20
	machinePrivate   = 2 << 20
	machineDisk      = 64 << 20
	machineDiskSlots = 24 << 20 // for checkpoints
	machineSlab      = 2 << 20
	readWait         = 10 * time.Second
	wholeList        = 1 << 20
)

// setup holds the parameters in which machines differ.
type setup struct {
	name        string
	granule     int64
	coded       []profile.PartKind
	syncEvery   time.Duration
	writeBehind bool
}

var setups = []setup{
	{name: "codec none", syncEvery: 5 * time.Second, writeBehind: true},
	{name: "codec all, granule 4 KiB", granule: 4 << 10, syncEvery: 20 * time.Millisecond, writeBehind: true,
		coded: []profile.PartKind{profile.PartT, profile.PartS, profile.PartConv, profile.PartK, profile.PartV}},
	{name: "no write-behind, sync 20 ms", syncEvery: 20 * time.Millisecond},
}

// machine is a store with a disk tier on an in-memory file system, from its start to a loss of
// power.
type machine struct {
	dev     gpuipc.Device
	tier    *disk.Tier
	store   *tiering.Store
	ids     map[*shape]tier.ProfileID
	session *tiering.Session // of the reader and auditor
	halt    context.CancelFunc
	ended   chan error
}

func boot(files vfs.FS, shapes []*shape, s *setup) (m *machine, err error) {
	m = &machine{ids: map[*shape]tier.ProfileID{}, ended: make(chan error, 2)}
	if m.dev, err = gpuipc.NewHost(gpuipc.HostOptions{}); err != nil {
		return nil, err
	}
	const dir = "tier"
	if err := files.MkdirAll(dir+"/slabs", 0o700); err != nil {
		return nil, err
	}
	m.tier, err = disk.Open(disk.Config{
		Dir: dir, Slabs: slab.OverVFS(files, dir+"/slabs"), Index: files,
		PublicBytes: machineDisk, PrivateBytes: machineDiskSlots, SlabBytes: machineSlab, GranuleBytes: s.granule,
		Tenants: []disk.Tenant{{ID: machineTenant, Name: "default"}}, Device: m.dev, Coded: s.coded, SyncEvery: s.syncEvery,
	})
	if err != nil {
		return nil, err
	}
	if h := m.tier.Health(); h.State != disk.StateOK {
		return nil, errors.Join(fmt.Errorf("the disk tier does not open: %s: %s", h.State, h.Cause), m.tier.Close())
	}
	m.store, err = tiering.Open(tiering.Config{
		Device: m.dev, PublicBytes: machinePublic, PrivateBytes: machinePrivate,
		Tenants: []tiering.Tenant{{ID: machineTenant, Name: "default", Salt: shapes[0].salt}},
		Lower:   m.tier, WriteBehind: s.writeBehind,
	})
	if err != nil {
		return nil, errors.Join(err, m.tier.Close())
	}
	ctx, halt := context.WithCancel(context.Background())
	m.halt = halt
	go func() { m.ended <- m.tier.Run(ctx) }()
	go func() { m.ended <- m.store.Run(ctx) }()
	for _, s := range shapes {
		if m.ids[s], err = m.store.AddProfile(s.profile); err != nil {
			return nil, errors.Join(err, m.off())
		}
	}
	m.session = m.store.NewSession("torture")
	return m, nil
}

// off ends a machine as a loss of power does: without writing pending data.
func (m *machine) off() error {
	m.halt()
	err := errors.Join(<-m.ended, <-m.ended)
	return errors.Join(err, m.store.Close(), m.tier.Close(), m.dev.Close())
}

// writer is one engine of a machine: a session with staging.
type writer struct {
	*machine
	session *tiering.Session
	staging gpuipc.Region
	buf     []byte
}

func (m *machine) writer(name string) (*writer, error) {
	r, err := m.dev.NewRegion(gpuipc.RegionSpec{Name: name, Bytes: gpuipc.ChunkBytes, Access: gpuipc.ClientWrites})
	if err != nil {
		return nil, err
	}
	return &writer{machine: m, session: m.store.NewSession(name), staging: r, buf: make([]byte, gpuipc.ChunkBytes)}, nil
}

func (w *writer) close() error {
	w.session.Close()
	return w.staging.Close()
}

// put writes all ranks of an item and waits for its level.
func (w *writer) put(ctx context.Context, i *item, level tier.Level, seen func()) (tier.Level, error) {
	var last tiering.Committed
	for rank := range i.shape.ranks() {
		r, err := w.reserve(i, rank)
		if err != nil {
			return 0, err
		}
		if last, err = w.commit(ctx, i, rank, r.ID, level, seen); err != nil {
			return 0, errors.Join(err, unlessGone(w.session.Abort(r.ID)))
		}
	}
	switch {
	case !last.Published:
		return 0, fmt.Errorf("%s: all ranks are written and it is not published", i)
	case last.Durable == nil:
		return tier.LevelMemory, nil
	}
	return last.Durable.Wait(ctx), nil
}

func (w *writer) reserve(i *item, rank int) (tiering.Reservation, error) {
	if i.isSegment() {
		return w.session.Reserve(&tiering.ReserveQuery{
			Profile: w.ids[i.shape], Tenant: machineTenant, Rank: rank, Key: i.Key, Spec: i.spec, Tokens: i.tokens(),
		})
	}
	q := tiering.SaveQuery{
		Profile: w.ids[i.shape], Tenant: machineTenant, Rank: rank, Kind: i.Kind, Hash: i.Key, Tokens: i.end,
	}
	if i.parent != nil {
		q.Parent = i.parent.Key
	}
	return w.session.Save(&q)
}

// commit writes one rank chunk by chunk.
func (w *writer) commit(ctx context.Context, i *item, rank int, id tier.ReservationID, level tier.Level, seen func()) (last tiering.Committed, err error) {
	for part, p := range i.layout.Parts {
		for off := int64(0); off < p.Len; off += gpuipc.ChunkBytes {
			seen()
			b := w.buf[:min(p.Len-off, gpuipc.ChunkBytes)]
			i.content(rank, part).fill(b, off)
			src := gpuipc.Ref{Region: w.staging, Extents: []gpuipc.Extent{{Len: int64(len(b))}}}
			if err := w.dev.Store(ctx, src, b); err != nil {
				return last, err
			}
			last, err = w.session.Commit(ctx, tiering.CommitItem{
				Reservation: id, Part: part, ChunkFirst: int(off / gpuipc.ChunkBytes), Digests: []uint64{gpuipc.DigestBytes(b)}, Src: src, Level: level,
			})
			if err != nil {
				return last, err
			}
		}
	}
	return last, nil
}

// unlessGone drops the error of aborting a reservation that no longer exists.
func unlessGone(err error) error {
	if errors.Is(err, tier.ErrGone) {
		return nil
	}
	return err
}

// found implements cache.
func (m *machine) found(_ context.Context, items []*item) ([]bool, error) {
	out := make([]bool, len(items))
	for at, i := range items {
		q := tiering.MatchQuery{Profile: m.ids[i.shape], Tenant: machineTenant}
		if i.isSegment() {
			q.Keys = [][32]byte{i.Key}
		} else {
			q.Accept, q.Positions, q.Prefixes = i.Kind, []uint32{uint32(i.end)}, [][32]byte{i.Key}
		}
		var answer tiering.MatchResult
		if err := m.store.Match(&q, &answer); err != nil {
			return nil, err
		}
		if i.isSegment() {
			out[at] = answer.Segments[0].Status == tier.StatusHit
		} else {
			out[at] = answer.PrefixTokens == uint32(i.end)
		}
	}
	return out, nil
}

// read implements cache.
func (m *machine) read(ctx context.Context, i *item, see func(rank, part int, off int64, b []byte)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	for rank := range i.shape.ranks() {
		lease, extents, err := m.lease(ctx, i, rank)
		if err != nil || lease == 0 {
			return false, err
		}
		ref := gpuipc.Ref{Region: m.store.Arena(), Extents: extents}
		for part, p := range i.layout.Parts {
			b := make([]byte, p.Len)
			if err := m.dev.Load(ctx, b, ref.Slice(p.Off, p.Len)); err != nil {
				return false, errors.Join(err, m.session.Release(lease))
			}
			see(rank, part, 0, b)
		}
		if err := m.session.Release(lease); err != nil {
			return false, err
		}
	}
	return true, nil
}

// lease leases one rank's share of an item for reading; it returns lease 0 if the item is
// absent. The extents cover only the item's share, so reading other bytes fails.
func (m *machine) lease(ctx context.Context, i *item, rank int) (tier.LeaseID, []gpuipc.Extent, error) {
	if i.isSegment() {
		q := tiering.AcquireQuery{Profile: m.ids[i.shape], Tenant: machineTenant, Rank: rank, Keys: [][32]byte{i.Key}}
		rows, err := m.session.AwaitAcquire(ctx, &q, nil)
		if err == nil {
			err = rows[0].Err
		}
		if err != nil || !rows[0].Hit {
			return 0, nil, err
		}
		if begin, n := i.spec.Interior(); rows[0].Begin != begin || rows[0].Tokens != n || rows[0].Bytes != i.layout.Bytes {
			return rows[0].Lease, nil, fmt.Errorf("%s is served as [%d, +%d) of %d bytes", i, rows[0].Begin, rows[0].Tokens, rows[0].Bytes)
		}
		return rows[0].Lease, rows[0].Extents, nil
	}
	q := tiering.LoadQuery{Profile: m.ids[i.shape], Tenant: machineTenant, Rank: rank, Accept: i.Kind, Hash: i.Key}
	got, err := m.session.AwaitLoad(ctx, &q)
	if err != nil || !got.Hit {
		return 0, nil, err
	}
	n := got.Nodes[len(got.Nodes)-1]
	if n.Begin != i.begin || n.End != i.end || got.Kind != i.Kind {
		return got.Lease, nil, fmt.Errorf("%s is served as kind %d with rows [%d, %d)", i, got.Kind, n.Begin, n.End)
	}
	return got.Lease, n.Extents, nil
}

// list implements cache: the contents of memory and of the disk.
func (m *machine) list(context.Context) ([]tier.Name, error) {
	var out []tier.Name
	for _, s := range m.store.Segments(tiering.SegmentFilter{}, nil, wholeList) {
		out = append(out, tier.Name{Key: s.Key})
	}
	for _, c := range m.store.Checkpoints(tiering.CheckpointFilter{}, nil, wholeList) {
		out = append(out, tier.Name{Kind: c.Kind, Key: c.Hash})
	}
	for _, e := range m.tier.List(disk.Filter{}, nil, wholeList) {
		out = append(out, e.Name)
	}
	return out, nil
}
