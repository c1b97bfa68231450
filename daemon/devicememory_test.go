package daemon

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// engineRegion is memory of an engine on the device.
func engineRegion(t testing.TB, device gpuipc.Accelerator, blocks int) gpuipc.SharedRegion {
	t.Helper()
	region, err := device.NewRegion(gpuipc.RegionSpec{Name: "engine", Bytes: int64(blocks * blockBytes), Access: gpuipc.ClientWrites})
	must(t, err)
	t.Cleanup(func() {
		if err := region.Close(); err != nil {
			t.Errorf("closing engine memory: %v", err)
		}
	})
	return region.(gpuipc.SharedRegion)
}

// registerRequest describes memory as registerMemory does, and lists what to send
// along.
func (c *rawClient) registerRequest(t testing.TB, region gpuipc.SharedRegion, epoch uint64) (*wire.RegisterDeviceRequest, []int) {
	t.Helper()
	share, err := region.Share(gpuipc.WayDescriptor)
	must(t, err)
	t.Cleanup(func() { share.Close() })
	m := &wire.RegisterDeviceRequest{Profile: c.profile, Way: wire.WayDescriptor, Epoch: epoch, Memory: []wire.MemoryLayer{{
		Layer: 1, KBase: 0, VBase: blockTokens * tokenBytes, BlockStride: blockBytes,
		KTokenStride: tokenBytes, KHeadStride: tokenBytes / 2, VTokenStride: tokenBytes, VHeadStride: tokenBytes / 2,
	}}}
	var fds []int
	for i := range share.Chunks {
		m.ChunkBytes = append(m.ChunkBytes, uint64(share.Chunks[i].Bytes))
		fds = append(fds, int(share.Chunks[i].File.Fd()))
	}
	return m, fds
}

// attachedFake is a raw client of a daemon on the fake driver, with a profile and
// one segment leased on the device.
func attachedFake(t testing.TB, r *running, d *document) (*rawClient, uint64) {
	t.Helper()
	c := deviceHello(t, r.Socket())
	c.register(d.p)
	c.refused(wire.OpRegisterDevice, &wire.RegisterDeviceRequest{Profile: c.profile, Way: wire.WayDescriptor}, wire.Invalid, "before attach-device")
	c.attachUnmapped(wire.WayDescriptor, nil)
	if m := c.match(d.key); m.Status[0] == wire.StatusMiss {
		c.publish(d)
	}
	return c, c.rankLease(0, d)
}

func TestRowsAreScatteredIntoEngineMemoryOnTheGPU(t *testing.T) {
	r, lib := startFake(t, deviceConfig(t))
	device := openDevice(t, lib.Path)
	const blocks = 6
	region := engineRegion(t, device, blocks)
	d := newDocument(testProfile(1), nil, 1, 64, profile.RoleFirst)
	c, lease := attachedFake(t, r, d)

	m, fds := c.registerRequest(t, region, 11)
	var got, again wire.RegisterDeviceReply
	c.call(wire.OpRegisterDevice, m, &got, fds...)
	imports := lib.Calls("cuMemImportFromShareableHandle")
	c.call(wire.OpRegisterDevice, m, &again, fds...)
	if again != got || lib.Calls("cuMemImportFromShareableHandle") != imports {
		t.Errorf("registered again: memory %d and %d", got.Memory, again.Memory)
	}
	c.call(wire.OpRotate, c.scatter(got.Memory, lease, d), &wire.RotateReply{})

	plain := attach(t, r.Socket())
	host := newEngineMemory(t, blocks)
	memory := plain.registerMemory(d.p, host)
	plain.call(wire.OpRotate, plain.scatter(memory, plain.lease(d), d), &wire.RotateReply{})
	whole := gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Len: int64(blocks * blockBytes)}}}
	rows := read(t, device, whole)[:4*blockBytes] // 64 tokens; behind them nobody wrote
	if !bytes.Equal(rows, host.bytes[:4*blockBytes]) {
		t.Error("rows on the device differ from those in memory")
	}

	// Leases of the host do not go there, and mistakes are named.
	q := c.scatter(got.Memory, c.acquire(0, d.key).Leases[0], d)
	if _, _, code := c.exchange(wire.OpRotate, q, nil); code == wire.OK {
		t.Error("a lease in memory was scattered into memory of the device")
	}
	c.refusedWith(wire.OpRegisterDevice, m, wire.Invalid, "0 descriptors with 1 chunks")
	other, fds := c.registerRequest(t, region, 11)
	other.Memory[0].VBase += tokenBytes
	c.refusedWith(wire.OpRegisterDevice, other, wire.Invalid, "epoch 11 belongs to other memory", fds...)
	short, fds := c.registerRequest(t, region, 12)
	short.Memory[0].VBase = 1 << 40
	c.refusedWith(wire.OpRegisterDevice, short, wire.Invalid, "", fds...)
	q.Memory = got.Memory + 7
	c.refused(wire.OpRotate, q, wire.Gone, "memory")
	plain.close()
	c.close()
	r.deviceAtRest()
}

// refusedWith is refused of a request with descriptors.
func (c *rawClient) refusedWith(op wire.Op, m wire.Message, want wire.Code, part string, fds ...int) {
	c.t.Helper()
	body, _, code := c.exchange(op, m, nil, fds...)
	if text := wire.ErrorText(body); code != want || !bytes.Contains([]byte(text), []byte(part)) {
		c.t.Errorf("%v: %v %q, want %v and a text with %q", op, code, text, want, part)
	}
}

func TestADriverThatDoesNotAnswerCostsTheRequest(t *testing.T) {
	config := deviceConfig(t)
	config.AdminSocket = ""
	config.HBMTimeout = 500 * time.Millisecond
	r, lib := startFake(t, config)
	device := openDevice(t, lib.Path)
	region := engineRegion(t, device, 4)
	d := newDocument(testProfile(1), nil, 1, 64, profile.RoleFirst)
	c, lease := attachedFake(t, r, d)
	m, fds := c.registerRequest(t, region, 1)
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuMemImportFromShareableHandle", Nth: 1})
	begun := time.Now()
	if _, _, code := c.exchange(wire.OpRegisterDevice, m, nil, fds...); code != wire.Unavailable && code != wire.Late {
		t.Errorf("a call that hangs: %v", code)
	}
	if waited := time.Since(begun); waited > patience/2 {
		t.Errorf("waited %v", waited)
	}
	if check := r.check(t, "hbm"); check.State != api.CheckDegraded {
		t.Errorf("check %s is %s: %s", check.Name, check.State, check.Detail)
	}
	// Others are served meanwhile.
	plain := attach(t, r.Socket())
	plain.register(d.p)
	plain.release(plain.lease(d))
	plain.close()
	c.release(lease)
	lib.Release()
	eventually(t, "the call has come back", func() bool { return r.check(t, "hbm").State == api.CheckOK })
	c.close()
	r.deviceAtRest()
}

// Late writes: memory of the engine that a kernel writes is not let go of before
// the kernel has ended, and end of file says that it has.
func TestEngineMemoryOnTheDeviceOutlivesTheWrites(t *testing.T) {
	r, double := startDouble(t, deviceConfig(t))
	engine := gpuipctest.NewAccelerator(t, gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1}))
	region := engineRegion(t, engine, 6)
	d := newDocument(testProfile(1), nil, 1, 64, profile.RoleFirst)
	c, lease := attachedFake(t, r, d)
	m, fds := c.registerRequest(t, region, 1)
	var memory wire.RegisterDeviceReply
	c.call(wire.OpRegisterDevice, m, &memory, fds...)
	stall := double.Stall(t, gpuipctest.OpRotateAll, 1)
	c.send(wire.OpRotate, c.scatter(memory.Memory, lease, d))
	stall.Await()
	must(t, c.conn.CloseWrite())
	eventually(t, "the daemon has noticed", func() bool { return r.server.Connections()[0].Ending })
	must(t, c.conn.SetRecvTimeout(20*time.Millisecond))
	if _, _, err := c.conn.Recv(make([]byte, wire.MaxFrame)); !errors.Is(err, seqpacket.ErrTimeout) {
		t.Errorf("end of file while the kernel may write: %v", err)
	}
	if r.gpus[0].ConnectionBytes() == 0 {
		t.Error("memory was given back while the kernel may write it")
	}
	stall.Release()
	eventually(t, "end of file", func() bool {
		_, _, err := c.conn.Recv(make([]byte, wire.MaxFrame))
		return errors.Is(err, seqpacket.ErrClosed)
	})
	whole := gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Len: 4 * blockBytes}}}
	before := read(t, engine, whole)
	must(t, engine.Store(context.Background(), whole, make([]byte, 4*blockBytes)))
	if bytes.Equal(before, make([]byte, 4*blockBytes)) {
		t.Log("the write was stopped before it began")
	}
	c.close()
	r.deviceAtRest()
	if !bytes.Equal(read(t, engine, whole), make([]byte, 4*blockBytes)) {
		t.Error("written after end of file")
	}
}

// Memory at addresses that no element may lie at never reaches a kernel, and the
// rows of a layer lie in one allocation.
func TestMemoryOfHandlesIsAlignedAndInOnePiece(t *testing.T) {
	r, lib := startFake(t, deviceConfig(t))
	c := deviceHello(t, r.Socket())
	c.register(testProfile(1))
	c.attachUnmapped(wire.WayDescriptor, nil)
	good, _ := c.registerRequest(t, engineRegion(t, openDevice(t, lib.Path), 4), 1)
	opened := lib.Calls("cuIpcOpenMemHandle_v2")
	for _, row := range []struct{ offsets, bytes []uint64 }{
		{[]uint64{1}, []uint64{1 << 20}},
		{[]uint64{0, 16}, []uint64{1, 1 << 20}},
	} {
		m := &wire.RegisterDeviceRequest{Profile: c.profile, Way: wire.WayHandle, Epoch: 2, Memory: good.Memory, ChunkBytes: row.bytes,
			Offsets: row.offsets, Handles: make([]byte, len(row.bytes)*wire.HandleBytes)}
		c.refusedWith(wire.OpRegisterDevice, m, wire.Invalid, "not multiples of 16")
	}
	if n := lib.Calls("cuIpcOpenMemHandle_v2"); n != opened {
		t.Errorf("%d handles were opened", n-opened)
	}
	c.close()
	r.deviceAtRest()
}

// Requests that wait with their descriptors are few.
func TestFewRegistrationsWaitWithTheirDescriptors(t *testing.T) {
	config := deviceConfig(t)
	config.Workers = 1
	r, double := startDouble(t, config)
	engine := gpuipctest.NewAccelerator(t, gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1}))
	c := attachDouble(t, r.Socket())
	c.register(testProfile(1))
	region := engineRegion(t, engine, 6)
	stall := double.Stall(t, gpuipctest.OpImportShare, 1)
	var sent []uint64
	for epoch := range uint64(4) {
		m, fds := c.registerRequest(t, region, epoch)
		sent = append(sent, c.send(wire.OpRegisterDevice, m, fds...))
	}
	m, fds := c.registerRequest(t, region, 99)
	c.refusedWith(wire.OpRegisterDevice, m, wire.Busy, "in flight", fds...)
	stall.Release()
	for _, request := range sent {
		if code, body, _ := c.await(request); code != wire.OK {
			t.Errorf("%v %s", code, wire.ErrorText(body))
		}
	}
	m, fds = c.registerRequest(t, region, 99)
	c.call(wire.OpRegisterDevice, m, &wire.RegisterDeviceReply{}, fds...)
	c.close()
	r.deviceAtRest()
}
