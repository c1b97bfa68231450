package daemon

import (
	"errors"
	"fmt"
	"os"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
)

// firstDeviceMemory is the first id of device memory; below it are those of
// memory of the host. Memory that an engine registered on the device has the ids
// from there on, in order.
const firstDeviceMemory = 1 << 31

// deviceMemory is what one register-device request brought.
type deviceMemory struct {
	profile tiering.ProfileID
	epoch   uint64
	memory  *tiering.Memory
}

// registerDevice imports device memory that the engine owns. The driver may take
// its time with memory of another process: the request ends at its deadline, and
// the device cleans up behind it.
func (t *task) registerDevice() (wire.Message, error) {
	var m wire.RegisterDeviceRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	l := t.at.lent.Load()
	if l == nil {
		return nil, t.notAttached()
	}
	if want, err := wire.Descriptors(m.Way, len(m.ChunkBytes), 0); err != nil || len(t.received) != want {
		return nil, refuse(wire.Invalid, "%d descriptors with %d chunks of way %d", len(t.received), len(m.ChunkBytes), m.Way)
	}
	id, err := t.at.use(m.Profile)
	if err != nil {
		return nil, err
	}
	if number, known, err := l.registered(id, m.Epoch); known || err != nil {
		return &wire.RegisterDeviceReply{Memory: number}, err
	}
	memory, err := t.importDevice(l, id, &m)
	if err != nil {
		return nil, err
	}
	number, kept := l.keep(deviceMemory{id, m.Epoch, memory})
	if !kept { // a request of the same epoch was quicker
		if err := memory.Region.Close(); err != nil {
			t.conn.server.log.Warn().Err(err).Str("tier", "hbm").Msg("device memory of an engine could not be unmapped")
		}
	}
	return &wire.RegisterDeviceReply{Memory: number}, nil
}

// notAttached refuses an operation that needs attach-device before it.
func (t *task) notAttached() error {
	if !t.at.device {
		_, err := t.noDevice()
		return err
	}
	return refuse(wire.Invalid, "%v before attach-device", t.header.Op)
}

func (t *task) importDevice(l *lent, id tiering.ProfileID, m *wire.RegisterDeviceRequest) (*tiering.Memory, error) {
	share := gpuipc.Share{Way: gpuipc.Way(m.Way), Device: l.gpu.device.UUID()}
	for i, bytes := range m.ChunkBytes {
		if bytes == 0 || bytes > 1<<46 {
			return nil, refuse(wire.Invalid, "chunk %d of %d bytes", i, bytes)
		}
		c := gpuipc.Chunk{Bytes: int64(bytes)}
		if share.Way == gpuipc.WayHandle {
			copy(c.Handle[:], m.Handles[i*wire.HandleBytes:])
			if m.Offsets[i] > 1<<46 {
				return nil, refuse(wire.Invalid, "chunk %d at %d of its allocation", i, m.Offsets[i])
			}
			c.Off = int64(m.Offsets[i])
		}
		share.Chunks = append(share.Chunks, c)
	}
	for i, fd := range t.received {
		share.Chunks[i].File = os.NewFile(uintptr(fd), fmt.Sprintf("engine chunk %d", i))
	}
	t.received = nil // ImportShare owns them
	region, err := l.gpu.device.ImportShare(t.ctx, share)
	if err != nil {
		if ended := t.ctx.Err(); ended != nil {
			err = errors.Join(ended, err)
		}
		return nil, err
	}
	memory := &tiering.Memory{Region: region, BlockTokens: int(t.at.blockTokens(id)), Layers: memoryLayers(m.Memory)}
	if err := t.conn.server.store.CheckMemory(id, memory); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	return memory, nil
}

// registered finds memory of an epoch. The same epoch for another profile is a
// mistake of the client.
func (l *lent) registered(id tiering.ProfileID, epoch uint64) (number uint32, known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.mu.memories {
		if m := &l.mu.memories[i]; m.epoch == epoch {
			if m.profile != id {
				return 0, false, refuse(wire.Invalid, "epoch %d is that of memory for profile %d", epoch, m.profile)
			}
			return firstDeviceMemory + uint32(i), true, nil
		}
	}
	if len(l.mu.memories) >= maxBindings {
		return 0, false, refuse(wire.Busy, "%d registered memories on one connection", len(l.mu.memories))
	}
	return 0, false, nil
}

// keep adds memory unless its epoch is there already.
func (l *lent) keep(memory deviceMemory) (number uint32, kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.mu.memories {
		if l.mu.memories[i].epoch == memory.epoch {
			return firstDeviceMemory + uint32(i), false
		}
	}
	l.mu.memories = append(l.mu.memories, memory)
	return firstDeviceMemory + uint32(len(l.mu.memories)-1), true
}

// memory returns registered device memory.
func (l *lent) memory(number uint32, id tiering.ProfileID) (*tiering.Memory, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := int(number - firstDeviceMemory)
	if i >= len(l.mu.memories) {
		return nil, refuse(wire.Gone, "memory %d", number)
	}
	if m := &l.mu.memories[i]; m.profile != id {
		return nil, refuse(wire.Invalid, "memory %d belongs to profile %d, not %d", number, m.profile, id)
	}
	return l.mu.memories[i].memory, nil
}

// blockTokens is the block size that a profile was registered with last.
func (a *attachment) blockTokens(id tiering.ProfileID) (tokens uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.mu.bindings {
		if a.mu.bindings[i].profile == id {
			tokens = a.mu.bindings[i].blockTokens
		}
	}
	return tokens
}
