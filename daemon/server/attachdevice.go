package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/daemon/slots"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A private region holds the order page, staging written by the client, and slots. Staging and
// slots begin at multiples of privateAlign. Staging gets about a quarter of the region and slots
// the remaining part (a guess: a client stages (T, S) of a few seams, compose returns states).
//
//	0           privateAlign                        slots
//	+-----------+--------------------------------+-----------------+
//	| order page| staging, written by the client | slots           |
//	+-----------+--------------------------------+-----------------+
const (
	privateAlign = 64 << 10
	orderOff     = 0
	orderSlots   = order.PageBytes / order.SlotBytes
	leastPrivate = int64(settings.LeastHBMClient) // plus a page of slots
)

// attachedGPU is the part of a device that one connection owns.
type attachedGPU struct {
	// Fixed after attach-device.
	gpu     *gpu.GPU
	way     gpuipc.Way
	private gpuipc.SharedRegion
	order   *order.Page // at orderOff
	pair    eventPair
	staging gpuipc.Extent
	slots   *slots.Slots

	closed    sync.Once
	released  chan struct{} // closed when the driver call started by end has returned; nil before end
	signalled uint64        // last number written into the daemon's slot; only the order request in turn uses it

	mu struct {
		sync.Mutex
		memories []deviceMemory
		engines  map[engine]func() // engines that read the device, each with the function that detaches it
		last     *turn             // turn of the latest order request; nil = none
	}
}

// eventPair complements the numbers in the order page on a device whose streams have no 64-bit
// memory operations. On other devices events is nil.
type eventPair struct {
	events  *order.Events
	handles order.EventHandles
}

// newEventPair creates a pair on a device. On a device that needs no events the pair is empty.
func newEventPair(device gpuipc.Accelerator) (p eventPair, err error) {
	lacking, ok := device.(interface {
		OrderEvents() (*order.Events, order.EventHandles, error)
	})
	if ok {
		p.events, p.handles, err = lacking.OrderEvents()
	}
	return p, err
}

// close frees the events of the pair. If the device is lost, the driver has already freed them with
// its context, which is no error.
func (p *eventPair) close() error {
	if p.events == nil {
		return nil
	}
	if err := p.events.Close(); !errors.Is(err, gpuipc.ErrUnavailable) {
		return err
	}
	return nil
}

// engine is one rank of a profile on a connection.
type engine struct {
	profile tier.ProfileID
	rank    int
}

// gpuOf returns the device that a client names, or the only device if it names none. A device that
// is not serving is refused with its name and state.
func (s *Server) gpuOf(uuid []byte) (*gpu.GPU, error) {
	var g *gpu.GPU
	switch {
	case len(uuid) > 0:
		if g = s.gpus.Of(gpuipc.UUID(uuid)); g == nil {
			return nil, codes.Refuse(wire.Unsupported, "the client's device is %v, this daemon shares %s: use one of these, or a daemon on that device",
				gpuipc.UUID(uuid), s.gpus.Lent())
		}
	case len(s.gpus) == 1:
		g = s.gpus[0]
	default:
		return nil, codes.Refuse(wire.Invalid, "uuid: this daemon shares %s: select one of these", s.gpus.Lent())
	}
	if state, why := g.State(); state != gpu.Serving {
		return nil, codes.Refuse(wire.Unavailable, "%s is %v: %v", g.Name, state, why)
	}
	return g, nil
}

// deviceOps has the operations that give a connection device memory and order its use:
// attach-device, register-device (see devicememory.go) and order (see order.go).
type deviceOps struct{ *task }

// attachDevice grants a connection memory of one device, once. A client that reads two devices uses
// two connections.
func (t deviceOps) attachDevice() (wire.Message, error) {
	var m wire.AttachDeviceRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	if !t.at.has(wire.FeatureDevice) {
		return nil, t.noDevice()
	}
	if l := t.at.gpu.Load(); l != nil {
		return nil, codes.Refuse(wire.Invalid, "this connection has attached %s already: open another connection for another device", l.gpu.Name)
	}
	g, err := t.conn.server.gpuOf(m.UUID)
	if err != nil {
		return nil, err
	}
	if !t.at.attaching.CompareAndSwap(false, true) {
		return nil, codes.Refuse(wire.Invalid, "this connection attaches a device already")
	}
	l, reply, err := t.attachGPU(g, &m)
	if err != nil {
		t.at.attaching.Store(false)
		return nil, err
	}
	t.at.gpu.Store(l)
	return reply, nil
}

// attachGPU creates the private region and the reply.
func (t deviceOps) attachGPU(g *gpu.GPU, m *wire.AttachDeviceRequest) (_ *attachedGPU, _ *wire.AttachDeviceReply, err error) {
	arena := t.conn.server.store.DeviceArena(g.ID)
	public, err := g.Share(arena, m.Ways)
	if err != nil {
		return nil, nil, err
	}
	defer public.Close() // closes the files that t.send has not taken over
	l, err := t.conn.server.newAttachedGPU(g, public.Way, t.conn.id, m.PrivateBytes)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			l.closeRegion(func(trouble error) { err = errors.Join(err, trouble) })
		}
	}()
	if err := l.order.Clear(t.ctx); err != nil {
		return nil, nil, err
	}
	private, err := l.private.Share(public.Way)
	if err != nil {
		return nil, nil, err
	}
	defer private.Close()
	if n := len(public.Chunks) + len(private.Chunks); n > wire.MaxChunks {
		return nil, nil, codes.Refuse(wire.Full, "%d chunks of device memory, a reply names %d", n, wire.MaxChunks)
	}
	text, err := g.Text()
	if err != nil {
		return nil, nil, err
	}
	t.send = append(t.send, text)
	reply := t.attachReply(l, &public, &private)
	return l, reply, t.conn.server.descriptors.Check(descriptors(t.send)...)
}

// attachReply builds the reply. It moves the descriptors of both shares into t.send.
func (t deviceOps) attachReply(l *attachedGPU, public, private *gpuipc.Share) *wire.AttachDeviceReply {
	r := &wire.AttachDeviceReply{
		Way: uint8(l.way), Epoch: l.gpu.Epoch, PublicBytes: uint64(public.Bytes()), PrivateBytes: uint64(private.Bytes()),
		OrderOff: orderOff, OrderSlots: orderSlots, PublicChunks: uint32(len(public.Chunks)),
		StagingOff: uint64(l.staging.Off), StagingBytes: uint64(l.staging.Len),
	}
	uuid := l.gpu.Device.UUID()
	r.UUID = uuid[:]
	if l.pair.events != nil {
		r.Events = l.pair.handles[:]
	}
	for _, share := range []*gpuipc.Share{public, private} {
		for i := range share.Chunks {
			c := &share.Chunks[i]
			r.ChunkBytes = append(r.ChunkBytes, uint64(c.Bytes))
			if l.way == gpuipc.WayDescriptor {
				t.send = append(t.send, c.File)
				c.File = nil
				continue
			}
			r.Handles = append(r.Handles, c.Handle[:]...)
			r.Offsets = append(r.Offsets, uint64(c.Off))
		}
	}
	return r
}

// newAttachedGPU creates a private region and divides it. Its size is the parameter wish in bytes,
// but at most the share of one client (HBMClient). If wish is 0, the region has the whole share.
func (s *Server) newAttachedGPU(g *gpu.GPU, way gpuipc.Way, connection, wish uint64) (*attachedGPU, error) {
	page := int64(s.config.HBMPageBytes)
	bytes := int64(s.config.HBMClient)
	if wish > 0 {
		bytes = max(leastPrivate+page, min(bytes, int64(min(wish, uint64(bytes)))))
	}
	if err := g.Take(bytes); err != nil {
		return nil, err
	}
	region, err := g.Device.NewRegion(gpuipc.RegionSpec{
		Name: fmt.Sprintf("spliced-device-%d", connection), Bytes: bytes, Access: gpuipc.ClientWrites, Way: way})
	if err != nil {
		g.GiveBack(bytes)
		return nil, err
	}
	private, ok := region.(gpuipc.SharedRegion)
	if !ok {
		panic(fmt.Sprintf("daemon: a region of %s cannot be shared", g.Device.Describe().Name))
	}
	// Devices have large pages. The bytes added by rounding up are reserved too, and the client may use
	// them.
	if rounded := private.Bytes() - bytes; rounded > 0 {
		if err := g.Take(rounded); err != nil {
			g.GiveBack(bytes)
			return nil, errors.Join(err, private.Close())
		}
		bytes += rounded
	}
	l := &attachedGPU{gpu: g, way: way, private: private}
	if l.order, err = order.In(g.Device, private, orderOff); err == nil {
		l.pair, err = newEventPair(g.Device)
	}
	if err != nil {
		g.GiveBack(bytes)
		return nil, errors.Join(err, private.Close())
	}
	slotBytes := max(page, (bytes-privateAlign)/4*3/page*page)
	at := bytes - slotBytes
	at -= at % privateAlign
	l.staging = gpuipc.Extent{Off: privateAlign, Len: at - privateAlign}
	l.slots = slots.New(private, gpuipc.Extent{Off: at, Len: bytes - at}, int(page), s.config.MaxLeases)
	l.mu.engines = map[engine]func(){}
	return l, nil
}

// staged returns the range [off, off+bytes) of the client's device staging.
func (l *attachedGPU) staged(off uint64, bytes int64) (gpuipc.Ref, error) {
	if bytes < 0 || off > uint64(l.staging.Len) || bytes > l.staging.Len-int64(off) {
		return gpuipc.Ref{}, codes.Refuse(wire.Invalid, "[%d, +%d) is not inside the device staging of %d bytes", off, bytes, l.staging.Len)
	}
	return gpuipc.Ref{Region: l.private, Extents: []gpuipc.Extent{{Off: l.staging.Off + int64(off), Len: bytes}}}, nil
}

// reads records that an engine of the connection reads the device as one rank of a profile. The
// store then copies objects that are matched for that rank to the device.
func (l *attachedGPU) reads(s *tiering.Store, id tier.ProfileID, rank int) {
	key := engine{id, rank}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.mu.engines[key]; known || len(l.mu.engines) >= maxBindings {
		return
	}
	// If the profile does not have that rank, the requests that use it report the error.
	if detach, err := s.AttachEngine(id, rank, l.gpu.ID); err == nil {
		l.mu.engines[key] = detach
	}
}

// end ends the waits of the client's streams, since no signal will follow, and releases the
// client's registered memory. No work of the connection may be running.
func (l *attachedGPU) end(s *Server, a *attachment) {
	ctx, stop := context.WithTimeout(context.Background(), s.config.HBMTimeout)
	l.released = make(chan struct{})
	go func() {
		defer close(l.released)
		defer stop()
		if err := l.order.Release(ctx, order.Daemon); err != nil {
			s.log.Debug().Err(err).Str("tier", "hbm").Msg("cannot end device waits of a client")
		}
	}()
	select {
	case <-l.released:
	case <-ctx.Done(): // a driver that hangs ignores the deadline; the connection does not wait for it
	}
	l.mu.Lock()
	engines, memories := l.mu.engines, l.mu.memories
	l.mu.engines, l.mu.memories = nil, nil
	l.mu.Unlock()
	for _, detach := range engines {
		detach()
	}
	// Memories are closed concurrently: each call may take as long as the driver allows.
	var closing sync.WaitGroup
	for _, m := range memories {
		a.mapped.GiveBack(m.bytes)
		closing.Go(func() {
			if err := m.memory.Region.Close(); err != nil {
				s.log.Warn().Err(err).Str("tier", "hbm").Msg("cannot unmap device memory of an engine")
			}
		})
	}
	closing.Wait()
}

// outlives reports whether the private region must stay while the client may have it open. Memory
// shared by handle must stay, since accesses to it after it is freed are undefined. Memory shared
// by descriptor stays alive until the client closes the descriptor.
func (l *attachedGPU) outlives() bool { return l.way == gpuipc.WayHandle }

// closeRegion releases the private region, once. A driver call of the method end may still use the
// region. If that call has not returned, the region is released after it.
func (l *attachedGPU) closeRegion(trouble func(error)) {
	l.closed.Do(func() {
		free := func() {
			err := errors.Join(l.pair.close(), l.private.Close())
			l.gpu.GiveBack(l.bytes())
			if err != nil {
				trouble(err)
			}
		}
		if l.released == nil {
			free()
			return
		}
		select {
		case <-l.released:
			free()
		default:
			go func() {
				<-l.released
				free()
			}()
		}
	})
}

// bytes returns the number of bytes reserved for the connection.
func (l *attachedGPU) bytes() int64 { return l.slots.End() }
