package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// deviceConfig is testConfig with small pools on a device.
func deviceConfig(t testing.TB) settings.Config {
	t.Helper()
	c := testConfig(t)
	c.HBMPublic, c.HBMPrivate, c.HBMPageBytes = 4*settings.MiB, 4*settings.MiB, 4*settings.KiB
	c.HBMClient, c.HBMConnections = 2*settings.MiB, 16*settings.MiB
	c.HBMAhead = false
	return c
}

// startDouble starts a daemon on an accelerator that is none.
func startDouble(t testing.TB, c settings.Config) (*running, *gpuipctest.Accelerator) {
	t.Helper()
	r, doubles := startDoubles(t, c, 1)
	return r, doubles[0]
}

// startDoubles starts one on several.
func startDoubles(t testing.TB, c settings.Config, n int) (*running, []*gpuipctest.Accelerator) {
	t.Helper()
	leakCheck(t)
	host := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 2})
	doubles := gpuipctest.NewAccelerators(t, host, n)
	parts := Parts{Device: host}
	for _, double := range doubles {
		parts.Accelerators = append(parts.Accelerators, double)
	}
	return startParts(t, c, parts), doubles
}

// deviceClient is a raw client that has attached the device. With the double it
// maps device memory like any other.
type deviceClient struct {
	*rawClient
	lent            wire.AttachDeviceReply
	kernels         *os.File
	public, private *gpuipc.Mapping
}

// deviceHello attaches with the feature bit.
func deviceHello(t testing.TB, path string) *rawClient {
	t.Helper()
	c := dialRaw(t, path)
	c.conn.AllowDescriptors(wire.MaxChunks + wire.AttachDescriptors)
	c.mapAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Client: "raw", Features: wire.FeatureDevice, Tenants: []wire.TenantName{{}}}))
	return c
}

// attachFiles attaches the device and returns what came along.
func (c *rawClient) attachFiles(m *wire.AttachDeviceRequest) (wire.AttachDeviceReply, []*os.File) {
	c.t.Helper()
	var r wire.AttachDeviceReply
	body, fds, code := c.exchange(wire.OpAttachDevice, m, &r)
	if code != wire.OK {
		c.t.Fatalf("attach-device: %v: %s", code, wire.ErrorText(body))
	}
	var files []*os.File
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), "device"))
	}
	if want, err := wire.Descriptors(r.Way, len(r.ChunkBytes), wire.AttachDescriptors); err != nil || want != len(files) {
		c.t.Fatalf("%d descriptors with %d chunks of way %d", len(files), len(r.ChunkBytes), r.Way)
	}
	return r, files
}

func attachDouble(t testing.TB, path string) *deviceClient {
	t.Helper()
	return attachDoubleOf(t, path, nil)
}

// publishedDouble starts a daemon on a double, and a client that has published a document.
func publishedDouble(t testing.TB) (*running, *gpuipctest.Accelerator, *deviceClient, *document) {
	t.Helper()
	r, double := startDouble(t, deviceConfig(t))
	p := testProfile(1)
	c, d := attachDouble(t, r.Socket()), newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.register(p)
	c.publish(d)
	return r, double, c, d
}

// attachUnmapped attaches the device and leaves its memory alone.
func (c *rawClient) attachUnmapped(ways uint8, uuid []byte) wire.AttachDeviceReply {
	c.t.Helper()
	r, files := c.attachFiles(&wire.AttachDeviceRequest{Ways: ways, UUID: uuid})
	for _, f := range files {
		f.Close()
	}
	return r
}

// attachDoubleOf attaches the device of a UUID.
func attachDoubleOf(t testing.TB, path string, uuid []byte) *deviceClient {
	t.Helper()
	c := &deviceClient{rawClient: deviceHello(t, path)}
	var files []*os.File
	c.lent, files = c.attachFiles(&wire.AttachDeviceRequest{Ways: wire.WayDescriptor, UUID: uuid})
	if len(files) != 3 || c.lent.PublicChunks != 1 {
		t.Fatalf("%d descriptors, %+v", len(files), c.lent)
	}
	c.kernels = files[0]
	t.Cleanup(func() { c.kernels.Close() })
	for i, m := range []**gpuipc.Mapping{&c.public, &c.private} {
		mapping, err := gpuipc.Map(gpuipc.Handle{File: files[1+i], Bytes: int64(c.lent.ChunkBytes[i])}, true)
		must(t, err)
		*m = mapping
		t.Cleanup(func() { mapping.Close() })
	}
	return c
}

// slot is a slot of the order page.
func (c *deviceClient) slot(s order.Slot) []byte {
	return c.private.Bytes()[c.lent.OrderOff+uint64(s)*order.SlotBytes:][:8]
}

func (c *deviceClient) number(s order.Slot) uint64 { return binary.LittleEndian.Uint64(c.slot(s)) }

func (c *deviceClient) signal(v uint64) {
	binary.LittleEndian.PutUint64(c.slot(order.Client), v)
}

func (c *rawClient) acquireDevice(wait uint8, keys ...[32]byte) *wire.AcquireReply {
	c.t.Helper()
	var r wire.AcquireReply
	c.call(wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: c.profile, Digests: 1, Wait: wait, Keys: keys}, &r)
	return &r
}

// deviceLease acquires one segment on the device and checks its bytes there.
func (c *deviceClient) deviceLease(d *document) uint64 {
	c.t.Helper()
	r := c.acquireDevice(1, d.key)
	if code := wire.Code(r.Codes[0]); code != wire.OK {
		c.t.Fatalf("acquire-device: %v", code)
	}
	got := gather(c.public.Bytes(), r.ExtentOff, r.ExtentLen)
	for i, p := range d.layout.Parts {
		if !bytes.Equal(got[p.Off:p.Off+p.Len], d.bytes[p.Off:p.Off+p.Len]) {
			c.t.Fatalf("part %d on the device differs from what was committed", i)
		}
	}
	return r.Leases[0]
}

func gather(memory []byte, off, length []uint64) (b []byte) {
	for i := range off {
		b = append(b, memory[off[i]:][:length[i]]...)
	}
	return b
}

// deviceAtRest waits until no memory of the device is held for clients, and no call of the driver
// that was abandoned still runs.
func (r *running) deviceAtRest() {
	r.t.Helper()
	r.atRest()
	for _, g := range r.gpus {
		eventually(r.t, "no memory of "+g.Name+" is lent", func() bool { return g.ConnectionBytes() == 0 && g.StuckCalls() == 0 })
	}
}

func TestAttachLendsMemoryOfTheDeviceOnce(t *testing.T) {
	r, _ := startDouble(t, deviceConfig(t))
	c := attachDouble(t, r.Socket())
	text, err := io.ReadAll(c.kernels)
	if err != nil || !bytes.Equal(text, kernels.PTX()) {
		t.Errorf("%d bytes of kernels, %v, want %d", len(text), err, len(kernels.PTX()))
	}
	if c.kernels.Truncate(0) == nil {
		t.Error("a client can change the kernels")
	}
	l := &c.lent
	if l.PublicBytes != uint64(8*settings.MiB) || l.PrivateBytes < uint64(2*settings.MiB) || l.StagingBytes == 0 || l.StagingOff+l.StagingBytes >= l.PrivateBytes {
		t.Errorf("%+v", l)
	}
	if c.number(order.Client) != 0 || c.number(order.Daemon) != 0 {
		t.Error("the order page does not begin at 0")
	}
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, wire.Invalid, "already")
	if got := r.gpus[0].ConnectionBytes(); got < int64(2*settings.MiB) {
		t.Errorf("%d bytes are taken", got)
	}
	c.close()
	r.deviceAtRest()
}

func TestAttachIsRefusedByName(t *testing.T) {
	config := deviceConfig(t)
	config.HBMConnections = config.HBMClient
	r, _ := startDouble(t, config)
	plain := attach(t, r.Socket())
	plain.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, wire.Unsupported, "no GPU memory")
	plain.refused(wire.OpOrder, &wire.OrderRequest{After: 1}, wire.Unsupported, "no GPU memory")
	c := deviceHello(t, r.Socket())
	c.refused(wire.OpOrder, &wire.OrderRequest{After: 1}, wire.Invalid, "before attach-device")
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor, UUID: bytes.Repeat([]byte{7}, 16)}, wire.Unsupported,
		"GPU-07070707-0707-0707-0707-070707070707, this daemon shares GPU-00000000-0000-0000-0000-000000000001")
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayHandle}, wire.Unsupported, "way 2")
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{}, wire.Unsupported, "0x0")
	first := attachDouble(t, r.Socket())
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, wire.Full, "are taken")
	first.close()
	eventually(t, "what was lent is back", func() bool { return r.gpus[0].ConnectionBytes() == 0 })
	if _, files := c.attachFiles(&wire.AttachDeviceRequest{Ways: wire.WayDescriptor, PrivateBytes: 1}); len(files) > 0 {
		for _, f := range files {
			f.Close()
		}
	}
}

func TestSegmentsAreLeasedOnTheDevice(t *testing.T) {
	r, _, c, d := publishedDouble(t)
	if m := c.match(d.key); m.Tier[0] != wire.TierDRAM {
		t.Errorf("tier %d before", m.Tier[0])
	}
	if got := c.acquireDevice(0, d.key); wire.Code(got.Codes[0]) != wire.Miss {
		t.Errorf("at once: %v, want a miss that begins a copy", wire.Code(got.Codes[0]))
	}
	lease := c.deviceLease(d)
	if m := c.match(d.key); m.Tier[0] != wire.TierHBM {
		t.Errorf("tier %d after", m.Tier[0])
	}
	plain := attach(t, r.Socket())
	plain.register(testProfile(1))
	if m := plain.match(d.key); m.Tier[0] != wire.TierDRAM {
		t.Errorf("tier %d for a client that reads through memory", m.Tier[0])
	}
	plain.close()
	var unknown [32]byte
	if got := c.acquireDevice(1, d.key, unknown); wire.Code(got.Codes[0]) != wire.OK || wire.Code(got.Codes[1]) != wire.Miss {
		t.Errorf("codes %v", got.Codes)
	} else if codes := c.release(got.Leases[0], lease); wire.Code(codes[0]) != wire.OK || wire.Code(codes[1]) != wire.OK {
		t.Errorf("release: %v", codes)
	}
	root, leaf := c.saveChain(testProfile(1))
	var l wire.LoadReply
	c.call(wire.OpLoadDevice, &wire.LoadDeviceRequest{LoadRequest: wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptExact, Hash: leaf.hash}}, &l)
	if l.Tokens != 64 || len(l.NodeBegin) != 1 || l.NodeBegin[0] != 0 || l.NodeEnd[0] != 64 {
		t.Fatalf("%+v", l)
	}
	checkFlat(t, testProfile(1), gather(c.public.Bytes(), l.ExtentOff, l.ExtentLen), root, leaf)
	c.release(l.Lease)
	c.close()
	r.deviceAtRest()
}

// checkFlat compares a chain of two nodes of 32 tokens with its copy in one piece.
func checkFlat(t *testing.T, p *profile.Profile, got []byte, root, leaf node) {
	t.Helper()
	whole, half := p.CheckpointLayout(64), p.CheckpointLayout(32)
	if int64(len(got)) < whole.Bytes {
		t.Fatalf("%d bytes, want %d", len(got), whole.Bytes)
	}
	for i, part := range whole.Parts {
		src := half.Parts[i]
		want := leaf.bytes[src.Off : src.Off+src.Len]
		if part.Kind == profile.PartK || part.Kind == profile.PartV {
			want = append(bytes.Clone(root.bytes[src.Off:src.Off+src.Len]), want...)
		}
		if !bytes.Equal(got[part.Off:part.Off+part.Len], want) {
			t.Errorf("part %d differs", i)
		}
	}
}

// What a plan of device leases answers is what the same plan answers in memory.
func TestPlansOfDeviceLeasesRunOnTheDevice(t *testing.T) {
	r, _ := startDouble(t, deviceConfig(t))
	p := testProfile(1)
	c := attachDouble(t, r.Socket())
	c.register(p)
	first, mid := newDocument(p, nil, 1, 64, profile.RoleFirst), newDocument(p, nil, 2, 64, profile.RoleMid)
	c.publish(first)
	c.publish(mid)
	seam := fill(p.SeamLayout(profile.AllLayers), rand.New(rand.NewPCG(3, 3)))
	const seamAt = 1 << 16
	c.stage(seamAt, seam)
	copy(c.private.Bytes()[c.lent.StagingOff+seamAt:], seam)

	compose := func(a, b uint64, region []byte) ([]byte, wire.ComposeReply) {
		begin, count := mid.spec.Interior()
		m := &wire.ComposeRequest{Profile: c.profile, Layer: wire.AllLayers, Plan: wire.Plan{
			End:   uint32(128 + 6),
			Kinds: []uint8{wire.SpanSegment, wire.SpanRecompute, wire.SpanSegment, wire.SpanRecompute}, Leases: []uint64{a, 0, b, 0},
			Starts: []uint32{0, 64, uint32(64 + begin), uint32(64 + begin + count)},
			Counts: []uint32{64, uint32(begin), uint32(count), uint32(134 - 64 - begin - count)},
			Inputs: []uint64{wire.None, seamAt, wire.None, wire.None},
		}}
		var out wire.ComposeReply
		c.call(wire.OpCompose, m, &out)
		return bytes.Clone(region[out.Off:][:out.Bytes]), out
	}
	want, _ := compose(c.lease(first), c.lease(mid), c.slots.Bytes())
	a, b := c.deviceLease(first), c.deviceLease(mid)
	got, slot := compose(a, b, c.private.Bytes())
	if !bytes.Equal(got, want) {
		t.Error("states on the device differ from those in memory")
	}
	if slot.Off < c.lent.StagingOff+c.lent.StagingBytes {
		t.Errorf("slot at %d, in what the client writes", slot.Off)
	}
	if n := r.store.Counters().HBM.Composed; n != 1 {
		t.Errorf("%d plans composed on the device", n)
	}
	// From a slot of the device, without a lease: still on the device.
	l := p.StatesLayout(profile.AllLayers, 2)
	one := &wire.ComposeRequest{Profile: c.profile, Layer: 0, From: wire.FromSlot, FromLease: slot.Lease, FromOff: slot.Off + uint64(l.Parts[2].Off),
		Plan: wire.Plan{Begin: 134, End: 140, Kinds: []uint8{wire.SpanRecompute}, Leases: []uint64{0}, Starts: []uint32{134}, Counts: []uint32{6}, Inputs: []uint64{wire.None}}}
	var again wire.ComposeReply
	c.call(wire.OpCompose, one, &again)
	if !bytes.Equal(c.private.Bytes()[again.Off:][:l.Parts[2].Len], got[l.Parts[2].Off:][:l.Parts[2].Len]) {
		t.Error("a state carried on is another")
	}
	// One lease there and one here.
	mixed := onePlan(a, first, 6)
	mixed.Kinds, mixed.Leases = []uint8{wire.SpanSegment, wire.SpanSegment}, []uint64{a, c.lease(mid)}
	c.refused(wire.OpCompose, &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: mixed}, wire.Invalid, "")

	rotated := func(lease uint64, region []byte) []byte {
		var out wire.RotateReply
		c.call(wire.OpRotate, &wire.RotateRequest{Profile: c.profile, Layer: wire.AllLayers, Dest: wire.DestSlot, Plan: onePlan(lease, first, 6)}, &out)
		return bytes.Clone(region[out.Off:][:out.Bytes])
	}
	if !bytes.Equal(rotated(a, c.private.Bytes()), rotated(c.lease(first), c.slots.Bytes())) {
		t.Error("rows on the device differ from those in memory")
	}
	assembled := func(lease uint64, region []byte) []byte {
		var out wire.RotateReply
		c.call(wire.OpAssemble, &wire.AssembleRequest{RotateRequest: wire.RotateRequest{Profile: c.profile, Layer: wire.AllLayers, Dest: wire.DestSlot, Plan: onePlan(lease, first, 6)}}, &out)
		if want := uint64(p.CheckpointLayout(64).Bytes); out.Bytes != want {
			t.Errorf("assembled %d bytes, want %d", out.Bytes, want)
		}
		return bytes.Clone(region[out.Off:][:out.Bytes])
	}
	if !bytes.Equal(assembled(a, c.private.Bytes()), assembled(c.lease(first), c.slots.Bytes())) {
		t.Error("a checkpoint that is assembled on the device differs from that in memory")
	}
	c.close()
	r.deviceAtRest()
}

func TestOrderReleasesBehindTheStream(t *testing.T) {
	r, _, c, d := publishedDouble(t)
	a, b := c.deviceLease(d), c.deviceLease(d)

	first := c.send(wire.OpOrder, &wire.OrderRequest{After: 5, Signal: 1, Leases: []uint64{a}})
	second := c.send(wire.OpOrder, &wire.OrderRequest{After: 2, Signal: 2, Leases: []uint64{b}})
	c.signal(3) // the second's point, not the first's: they take turns
	c.match(d.key)
	if n := c.number(order.Daemon); n != 0 {
		t.Errorf("the daemon's slot is at %d before the first has its point", n)
	}
	c.signal(5)
	for _, id := range []uint64{first, second} {
		code, body, _ := c.await(id)
		var m wire.CodesReply
		if code != wire.OK || m.Decode(body) != nil || wire.Code(m.Codes[0]) != wire.OK {
			t.Errorf("order: %v, %v %s", code, m.Codes, wire.ErrorText(body))
		}
	}
	if n := c.number(order.Daemon); n != 2 {
		t.Errorf("the daemon's slot is at %d", n)
	}
	if codes := c.release(a, b); wire.Code(codes[0]) != wire.Gone || wire.Code(codes[1]) != wire.Gone {
		t.Errorf("released behind the stream: %v", codes)
	}
	c.refused(wire.OpOrder, &wire.OrderRequest{Signal: 2}, wire.Invalid, "signal 2 after 2")
	c.refused(wire.OpOrder, &wire.OrderRequest{After: order.Released}, wire.Invalid, "numbers are below")

	lease := c.deviceLease(d)
	h := c.header(wire.OpOrder)
	h.Deadline = 20_000
	c.sendHeader(&h, &wire.OrderRequest{After: 99, Signal: 3, Leases: []uint64{lease}})
	if code, _, _ := c.await(h.Request); code != wire.Late {
		t.Errorf("a point that does not come: %v", code)
	}
	if codes := c.release(lease); wire.Code(codes[0]) != wire.OK {
		t.Errorf("after a late order the lease is %v", wire.Code(codes[0]))
	}
	// The end of the connection ends the waits of the client's streams.
	must(t, c.conn.CloseWrite())
	eventually(t, "waiters are let go", func() bool { return c.number(order.Daemon) == order.Released })
	c.close()
	r.deviceAtRest()
}

func TestWithoutAUsableGPUTheDaemonServesFromMemory(t *testing.T) {
	config := deviceConfig(t)
	config.HBMLibrary = "/nonexistent/libcuda.so.1"
	config.AdminSocket = ""
	r := startParts(t, config, Parts{})
	check := r.check(t, "hbm")
	if check.State != api.CheckDegraded || !strings.Contains(check.Detail, config.HBMLibrary) {
		t.Errorf("check %s is %s: %s", check.Name, check.State, check.Detail)
	}
	st, err := r.adminClient(t).Status(context.Background())
	if err != nil || !st.Ready || len(st.GPUs) != 1 || st.GPUs[0].State != api.GPUMissing || st.GPUs[0].Trouble == "" {
		t.Errorf("%+v, %v", st, err)
	}
	p := testProfile(1)
	c := deviceHello(t, r.Socket())
	if c.hello.Features&wire.FeatureDevice != 0 {
		t.Error("the daemon says that it has a device")
	}
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, wire.Unsupported, "no GPU memory")
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publish(d)
	c.release(c.lease(d))
	c.close()
	r.atRest()
}

// A buffer that is opened over a device lease is replayed on the device, to what
// the same buffer in memory is replayed to.
func TestBuffersOverDeviceLeasesLieOnTheDevice(t *testing.T) {
	r, _ := startDouble(t, deviceConfig(t))
	p := testProfile(1)
	c := attachDouble(t, r.Socket())
	c.register(p)
	_, leaf := c.saveChain(p)
	replayed := func(base uint64, memory []byte) []byte {
		b := c.openBuffer(base, 64, 12)
		c.stageRows(p, 0, 8)
		copy(c.private.Bytes()[c.lent.StagingOff:][:c.lent.StagingBytes], c.staging.Bytes())
		var rows wire.AppendReply
		c.call(wire.OpAppend, &wire.AppendRequest{Profile: c.profile, Buffer: b, Begin: 64, Rows: 8}, &rows)
		c.accept(b, 8)
		var out wire.ComposeReply
		c.call(wire.OpReplay, &wire.ReplayRequest{Profile: c.profile, Buffer: b, Token: 69}, &out)
		states := bytes.Clone(memory[out.Off:][:out.Bytes])
		c.release(b, out.Lease)
		return states
	}
	var host, device wire.LoadReply
	q := wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptExact, Hash: leaf.hash}
	c.call(wire.OpLoad, &q, &host)
	c.call(wire.OpLoadDevice, &wire.LoadDeviceRequest{LoadRequest: q}, &device)
	want, got := replayed(host.Lease, c.slots.Bytes()), replayed(device.Lease, c.private.Bytes())
	if !bytes.Equal(got, want) {
		t.Error("states replayed on the device differ from those in memory")
	}
	if n := r.store.Counters().HBM.Replayed; n != 1 {
		t.Errorf("%d replays on the device", n)
	}
	c.release(host.Lease, device.Lease)
	c.close()
	r.deviceAtRest()
}
