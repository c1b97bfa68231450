package server

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// mostOneMemory is the largest size that a registered memory may have, in bytes.
const mostOneMemory = 1 << 46

// firstDeviceMemory is the first id of device memory; lower ids name host memory. Memory that an
// engine registers on the device is numbered from here, in order of registration.
const firstDeviceMemory = 1 << 31

// deviceMemory is the memory of one register-device request.
type deviceMemory struct {
	profile tier.ProfileID
	epoch   uint64
	told    wire.RegisterDeviceRequest // as received
	bytes   int64                      // total size of its chunks
	memory  *plan.EngineMemory
}

// registersAtOnce bounds the register-device requests of a connection that are in flight. They hold
// descriptors while they wait, and any client may send frames full of descriptors.
const registersAtOnce = 4

// handleAlign is the required alignment, in bytes, of memory imported by handle. An access that is
// not aligned to its element would abort all work of the daemon's process on the device.
// Allocations themselves have a larger alignment.
const handleAlign = 16

// registerIsLong makes every register-device request a job. It counts the request until it is over,
// or refuses it.
func (t deviceOps) registerIsLong() (bool, error) {
	t.registering = true
	if t.at.registering.Add(1) > registersAtOnce {
		return false, codes.Refuse(wire.Busy, "%d requests to register device memory are in flight", registersAtOnce)
	}
	return true, nil
}

// registerDevice imports device memory that the engine owns. The driver may be slow with memory of
// another process. The request then ends at its deadline, and the device cleans up later.
func (t deviceOps) registerDevice() (wire.Message, error) {
	var m wire.RegisterDeviceRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	l, err := t.attachedDevice()
	if err != nil {
		return nil, err
	}
	if want, err := wire.Descriptors(m.Way, len(m.ChunkBytes), 0); err != nil || len(t.received) != want {
		return nil, codes.Refuse(wire.Invalid, "%d descriptors with %d chunks of way %d", len(t.received), len(m.ChunkBytes), m.Way)
	}
	id, err := t.at.use(m.Profile)
	if err != nil {
		return nil, err
	}
	if number, known, err := l.registered(id, &m); known || err != nil {
		return &wire.RegisterDeviceReply{Memory: number}, err
	}
	bytes, err := chunkBytes(&m)
	if err == nil {
		err = t.at.mapped.Take(bytes) // the driver maps the memory into the daemon's address space
	}
	if err != nil {
		return nil, err
	}
	memory, err := t.importDevice(l, id, &m)
	if err != nil {
		t.at.mapped.GiveBack(bytes)
		return nil, err
	}
	number, kept, err := l.keep(deviceMemory{id, m.Epoch, m, bytes, memory})
	if !kept {
		t.at.mapped.GiveBack(bytes)
		if err := memory.Region.Close(); err != nil {
			t.conn.server.log.Warn().Err(err).Str("tier", "hbm").Msg("cannot unmap device memory of an engine")
		}
	}
	return &wire.RegisterDeviceReply{Memory: number}, err
}

// attachedDevice returns the device memory that attach-device granted. It returns an error if the
// connection has not attached a device yet.
func (t *task) attachedDevice() (*attachedGPU, error) {
	if l := t.at.gpu.Load(); l != nil {
		return l, nil
	}
	if !t.at.has(wire.FeatureDevice) {
		return nil, t.noDevice()
	}
	return nil, codes.Refuse(wire.Invalid, "%v before attach-device", t.header.Op)
}

// reads returns the id of the device that the connection has attached; 0 = none.
func (a *attachment) reads() tier.DeviceID {
	if l := a.gpu.Load(); l != nil {
		return l.gpu.ID
	}
	return 0
}

// chunkBytes returns the total size in bytes of the chunks of a request.
func chunkBytes(m *wire.RegisterDeviceRequest) (total int64, err error) {
	for i, n := range m.ChunkBytes {
		if n == 0 || n > mostOneMemory {
			return 0, codes.Refuse(wire.Invalid, "chunk %d of %d bytes", i, n)
		}
		total += int64(n)
	}
	return total, nil
}

func (t deviceOps) importDevice(l *attachedGPU, id tier.ProfileID, m *wire.RegisterDeviceRequest) (*plan.EngineMemory, error) {
	share := gpuipc.Share{Way: gpuipc.Way(m.Way), Device: l.gpu.Device.UUID()}
	var chunks []int64 // end of each chunk
	end := int64(0)
	for i, bytes := range m.ChunkBytes {
		c := gpuipc.Chunk{Bytes: int64(bytes)}
		if share.Way == gpuipc.WayHandle {
			copy(c.Handle[:], m.Handles[i*wire.HandleBytes:])
			if m.Offsets[i] > mostOneMemory {
				return nil, codes.Refuse(wire.Invalid, "chunk %d at %d of its allocation", i, m.Offsets[i])
			}
			c.Off = int64(m.Offsets[i])
			if c.Off%handleAlign != 0 || c.Bytes%handleAlign != 0 && i < len(m.ChunkBytes)-1 {
				return nil, codes.Refuse(wire.Invalid, "chunk %d of %d bytes at %d: not multiples of %d", i, c.Bytes, c.Off, handleAlign)
			}
			end += c.Bytes
			chunks = append(chunks, end)
		}
		share.Chunks = append(share.Chunks, c)
	}
	for i, fd := range t.received {
		share.Chunks[i].File = os.NewFile(uintptr(fd), fmt.Sprintf("engine chunk %d", i))
	}
	t.received = nil // owned by ImportShare now
	region, err := l.gpu.Device.ImportShare(t.ctx, share)
	if err != nil {
		if ended := t.ctx.Err(); ended != nil {
			err = errors.Join(ended, err)
		}
		return nil, err
	}
	memory := &plan.EngineMemory{Region: region, Chunks: chunks, BlockTokens: int(t.at.blockTokens(id)), Layers: memoryLayers(m.Memory)}
	g, err := t.conn.server.store.Geometry(id)
	if err == nil {
		err = g.CheckMemory(memory)
	}
	if err != nil {
		return nil, errors.Join(err, region.Close())
	}
	return memory, nil
}

// registered returns the memory that was registered with the request's epoch. It is a client error
// to use that epoch for another profile or for other memory.
func (l *attachedGPU) registered(id tier.ProfileID, q *wire.RegisterDeviceRequest) (number uint32, known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.mu.memories {
		if m := &l.mu.memories[i]; m.epoch == q.Epoch {
			switch {
			case m.profile != id:
				return 0, false, codes.Refuse(wire.Invalid, "epoch %d belongs to memory for profile %d", q.Epoch, m.profile)
			case !m.isToldAs(q):
				return 0, false, codes.Refuse(wire.Invalid, "epoch %d belongs to other memory: use another epoch", q.Epoch)
			}
			return firstDeviceMemory + uint32(i), true, nil
		}
	}
	return 0, false, l.roomLocked()
}

func (l *attachedGPU) roomLocked() error {
	if n := len(l.mu.memories); n >= maxBindings {
		return codes.Refuse(wire.Busy, "%d registered memories on one connection", n)
	}
	return nil
}

// isToldAs reports whether two requests describe the same memory. It cannot compare descriptors.
func (m *deviceMemory) isToldAs(q *wire.RegisterDeviceRequest) bool {
	return m.told.Way == q.Way && slices.Equal(m.told.ChunkBytes, q.ChunkBytes) && slices.Equal(m.told.Handles, q.Handles) &&
		slices.Equal(m.told.Offsets, q.Offsets) && slices.Equal(m.told.Memory, q.Memory)
}

// keep adds memory and returns its number. It adds nothing if a concurrent request with the same
// epoch has added it already; then kept is false. It returns an error if other requests took the
// last places.
func (l *attachedGPU) keep(memory deviceMemory) (number uint32, kept bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.mu.memories {
		if l.mu.memories[i].epoch == memory.epoch {
			return firstDeviceMemory + uint32(i), false, nil
		}
	}
	if err := l.roomLocked(); err != nil {
		return 0, false, err
	}
	l.mu.memories = append(l.mu.memories, memory)
	return firstDeviceMemory + uint32(len(l.mu.memories)-1), true, nil
}

// memory returns the registered device memory of a number.
func (l *attachedGPU) memory(number uint32, id tier.ProfileID) (*plan.EngineMemory, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := int(number - firstDeviceMemory)
	if i >= len(l.mu.memories) {
		return nil, codes.Refuse(wire.Gone, "memory %d", number)
	}
	if m := &l.mu.memories[i]; m.profile != id {
		return nil, codes.Refuse(wire.Invalid, "memory %d belongs to profile %d, not %d", number, m.profile, id)
	}
	return l.mu.memories[i].memory, nil
}

// blockTokens returns the block size in tokens with which a profile was last registered.
func (a *attachment) blockTokens(id tier.ProfileID) (tokens uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.mu.bindings {
		if a.mu.bindings[i].profile == id {
			tokens = a.mu.bindings[i].blockTokens
		}
	}
	return tokens
}

// noDevice refuses an operation that needs a GPU, on a daemon that shares none.
func (t *task) noDevice() error {
	return codes.Refuse(wire.Unsupported, "%v: this daemon shares no GPU memory", t.header.Op)
}
