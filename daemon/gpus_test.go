package daemon

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// The devices of the fake driver when it has two, and one that it has not.
const (
	fakeGPU0  = "GPU-fa4e0000-0000-0000-0000-00000000d001"
	fakeGPU1  = "GPU-fa4e0000-0000-0000-0000-00000000d002"
	absentGPU = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
)

// twoGPUs is the fake driver with two devices.
func twoGPUs(t testing.TB) *fakecuda.Library {
	t.Helper()
	lib := fakecuda.Open(t)
	lib.Set(t, "DEVICES", "2")
	lib.LeakCheck(t)
	return lib
}

// startGPUs starts a daemon on devices of the fake driver, as the setting names them.
func startGPUs(t testing.TB, lib *fakecuda.Library, names ...string) *running {
	t.Helper()
	c := deviceConfig(t)
	c.AdminSocket, c.HTTP, c.HBMLibrary, c.HBMDevices, c.HBMAhead = "", "127.0.0.1:0", lib.Path, names, true
	return startParts(t, c, Parts{})
}

// states are those of the devices, as the admin REST tells them.
func (r *running) states(t testing.TB) map[string]string {
	t.Helper()
	st, err := r.adminClient(t).Status(context.Background())
	must(t, err)
	states := map[string]string{}
	for _, g := range st.GPUs {
		states[g.UUID] = g.State
	}
	return states
}

// ofRank is what another rank has of a document.
func (d *document) ofRank(rank int) *document {
	if rank == 0 {
		return d
	}
	other := *d
	other.bytes = fill(d.layout, rand.New(rand.NewPCG(uint64(rank), 99)))
	return &other
}

// uuidOf is a name as attach-device has it.
func uuidOf(t testing.TB, name string) []byte {
	t.Helper()
	id, err := gpuipc.ParseUUID(name)
	must(t, err)
	return id[:]
}

// rank is one of a group of engines, in one process here.
type rank struct {
	client *connector.Client
	model  *connector.Model
	device gpuipc.Accelerator
	doc    *document
}

// openRanks attaches two ranks, each with a device of its own, and has both put their
// part of a document.
func openRanks(t testing.TB, r *running, lib *fakecuda.Library, p *profile.Profile, seed uint64) (ranks [2]rank) {
	t.Helper()
	d := newDocument(p, nil, seed, 64, profile.RoleFirst)
	for i, uuid := range []string{fakeGPU0, fakeGPU1} {
		x := &ranks[i]
		x.device, x.doc = openDeviceOf(t, lib.Path, uuid), d.ofRank(i)
		x.client, x.model = openRank(t, r.Socket(), x.device, p, i)
		stored, err := x.model.Put(context.Background(), &connector.PutQuery{Spec: d.spec, Tokens: d.tokens, Source: connector.Source{Parts: partsOf(x.doc)}})
		if err != nil || stored.Published != (i == 1) {
			t.Fatalf("put of rank %d: %+v, %v", i, stored, err)
		}
	}
	return ranks
}

// check leases the rank's part on its device and looks at its bytes there.
func (x *rank) check(t testing.TB) *connector.DeviceLease {
	t.Helper()
	l := onDevice(t, x.model, x.doc)
	for i, want := range partsOf(x.doc) {
		if !bytes.Equal(read(t, x.device, l.Part(i)), want) {
			t.Errorf("rank %d: part %d on its device differs", x.model.Rank(), i)
		}
	}
	return l
}

func (x *rank) tier(t testing.TB) uint8 {
	t.Helper()
	var found connector.Found
	must(t, x.model.Match(context.Background(), &connector.MatchQuery{Keys: []profile.SegmentKey{x.doc.key}}, &found))
	return found.Segments[0].Tier
}

func TestRanksOfAModelReadTheirOwnGPUs(t *testing.T) {
	leakCheck(t)
	lib := twoGPUs(t)
	r := startGPUs(t, lib, settings.AllDevices)
	if got := r.states(t); len(got) != 2 || got[fakeGPU0] != api.GPUServing || got[fakeGPU1] != api.GPUServing {
		t.Fatalf("devices %v", got)
	}
	p := testProfile(2)
	ranks := openRanks(t, r, lib, p, 1)
	if at := ranks[0].tier(t); at != wire.TierDRAM {
		t.Errorf("tier %d before", at)
	}
	for i := range ranks {
		x := &ranks[i]
		l := x.check(t)
		sameFloats(t, composeHere(t, x.device, p, l), composedInMemory(t, x.model, x.doc))
		l.Release()
	}
	// Each engine's rank and device are known by now: what a match finds goes to both.
	second := openRanks(t, r, lib, p, 2)
	for i := range ranks {
		ranks[i].doc = second[i].doc
	}
	eventually(t, "both ranks have copies", func() bool { return ranks[0].tier(t) == wire.TierHBM })
	if at := ranks[1].tier(t); at != wire.TierHBM {
		t.Errorf("tier %d for the other rank", at)
	}
	for i := range ranks {
		ranks[i].check(t).Release()
		if n := r.store.DeviceCounters()[i]; n.Copies != 2 || n.Acquired == 0 {
			t.Errorf("device %d: %+v", i, n)
		}
	}
	text := r.metricsText(t)
	for _, series := range []string{
		`spliced_hbm_copies{device="` + fakeGPU0 + `"} 2`, `spliced_hbm_copies{device="` + fakeGPU1 + `"} 2`,
		`spliced_hbm_pool_capacity_bytes{device="` + fakeGPU1 + `",pool="public"} 4.194304e+06`,
		`spliced_tier_capacity_bytes{pool="public",tier="hbm"} 8.388608e+06`,
		`spliced_hbm_state{device="` + fakeGPU0 + `",state="serving"} 1`,
		`spliced_hbm_pool_objects{device="` + fakeGPU0 + `",pool="public"} 2`,
		`spliced_fetch_duration_seconds_count{tier="hbm"} 4`,
	} {
		if !strings.Contains(text, series) {
			t.Errorf("no %s in the metrics", series)
		}
	}
	if check := r.check(t, "hbm"); check.State != api.CheckOK {
		t.Errorf("%+v", check)
	}
	for i := range ranks {
		ranks[i].client.Close()
		second[i].client.Close()
	}
	r.deviceAtRest()
}

// A GPU that is lost under a copy, a lease or a kernel costs its own copies; the rank on
// the other goes on, and so does memory.
func TestALostGPUCostsItsOwnCopies(t *testing.T) {
	for name, call := range map[string]string{"in a promotion": "run.copy@0", "in a compose": "run.launch@0", "under a lease": "*@0"} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			lib := fakecuda.Open(t)
			lib.Set(t, "DEVICES", "2")
			r := startGPUs(t, lib, fakeGPU1, fakeGPU0)
			p := testProfile(2)
			ours := [2]*rawClient{rawRank(t, r, p, fakeGPU0), rawRank(t, r, p, fakeGPU1)}
			first, second := newDocument(p, nil, 1, 64, profile.RoleFirst), newDocument(p, nil, 2, 64, profile.RoleFirst)
			publishRanks(t, ours, first)
			publishRanks(t, ours, second)
			lost, stays := ours[0].rankLease(0, first), ours[1].rankLease(1, first)
			lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Lost, Call: call, Nth: 1, Value: 999})
			switch name {
			case "in a promotion":
				if code := ours[0].tryRank(0, second); code == wire.OK {
					t.Error("a lease on a lost device")
				}
			default: // in the first call of the plan, or in its kernel
				if _, _, code := ours[0].exchange(wire.OpCompose, &wire.ComposeRequest{Profile: ours[0].profile, Layer: 0, Plan: onePlan(lost, first, 6)}, nil); code != wire.Unavailable {
					t.Errorf("compose: %v", code)
				}
			}
			eventually(t, "the check names the device", func() bool {
				check := r.check(t, "hbm")
				return check.State == api.CheckDegraded && strings.Contains(check.Detail, fakeGPU0) && !strings.Contains(check.Detail, fakeGPU1)
			})
			if got := r.states(t); got[fakeGPU0] != api.GPULost || got[fakeGPU1] != api.GPUServing {
				t.Errorf("states %v", got)
			}
			if code := ours[0].tryRank(0, first); code == wire.OK {
				t.Error("a lease on a lost device")
			}
			// The other: what it has, and what it gets.
			ours[1].release(stays)
			ours[1].release(ours[1].rankLease(1, second))
			// And memory, for both.
			ours[0].release(lost, ours[0].acquire(0, first.key).Leases[0], ours[1].acquire(1, first.key).Leases[0])
			late := deviceHello(t, r.Socket())
			late.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor, UUID: uuidOf(t, fakeGPU0)}, wire.Unavailable, fakeGPU0+" is lost")
			late.close()
			ours[0].close()
			ours[1].close()
			r.deviceAtRest()
			r.stop()
			lib.Reset()
		})
	}
}

// rawRank is a raw client that has attached a device of the fake driver, without mapping it.
func rawRank(t testing.TB, r *running, p *profile.Profile, uuid string) *rawClient {
	t.Helper()
	c := deviceHello(t, r.Socket())
	c.register(p)
	lent := c.attachUnmapped(wire.WayDescriptor, uuidOf(t, uuid))
	if got := gpuipc.UUID(lent.UUID).String(); got != uuid {
		t.Errorf("attached %s, asked for %s", got, uuid)
	}
	return c
}

// publishRanks has two clients publish what each rank has of a document.
func publishRanks(t testing.TB, ours [2]*rawClient, d *document) {
	t.Helper()
	for i, c := range ours {
		id, code := c.reserve(d, uint32(i))
		if code != wire.OK {
			t.Fatalf("reserve: %v", code)
		}
		if published := c.commit(id, d.layout, d.ofRank(i).bytes); published != (i == 1) {
			t.Fatalf("rank %d: published %v", i, published)
		}
	}
}

// tryRank asks for a rank's copy, and gives it back.
func (c *rawClient) tryRank(rank uint32, d *document) wire.Code {
	c.t.Helper()
	var got wire.AcquireReply
	c.call(wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: c.profile, Rank: rank, Wait: 1, Keys: [][32]byte{d.key}}, &got)
	code := wire.Code(got.Codes[0])
	if code == wire.OK {
		c.release(got.Leases[0])
	}
	return code
}

// rankLease leases a rank's copy.
func (c *rawClient) rankLease(rank uint32, d *document) uint64 {
	c.t.Helper()
	var got wire.AcquireReply
	c.call(wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: c.profile, Rank: rank, Wait: 1, Keys: [][32]byte{d.key}}, &got)
	if code := wire.Code(got.Codes[0]); code != wire.OK {
		c.t.Fatalf("acquire-device of rank %d: %v", rank, code)
	}
	return got.Leases[0]
}

// What a daemon with several devices cannot give is refused by name.
func TestAttachOfSeveralGPUsIsRefusedByName(t *testing.T) {
	r, doubles := startDoubles(t, deviceConfig(t), 2)
	first, second := doubles[0].UUID(), doubles[1].UUID()
	c := deviceHello(t, r.Socket())
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, wire.Invalid, first.String()+", "+second.String()+": select one")
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor, UUID: uuidOf(t, absentGPU)}, wire.Unsupported, absentGPU+", this daemon shares "+first.String())
	c.close()
	on := attachDoubleOf(t, r.Socket(), first[:])
	for _, again := range []gpuipc.UUID{first, second} {
		on.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor, UUID: again[:]}, wire.Invalid,
			"attached "+first.String()+" already: open another connection")
	}
	on.close()
	r.deviceAtRest()
}

// Of two requests that name different devices at the same time one gets its own.
func TestOneConnectionAttachesOneGPUOfTwo(t *testing.T) {
	r, doubles := startDoubles(t, deviceConfig(t), 2)
	c := deviceHello(t, r.Socket())
	stall := doubles[0].Stall(t, gpuipc.OpNewRegion, 1)
	ids := [2]gpuipc.UUID{doubles[0].UUID(), doubles[1].UUID()}
	request := c.send(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor, UUID: ids[0][:]})
	stall.Await()
	c.refused(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor, UUID: ids[1][:]}, wire.Invalid, "attaches a device already")
	stall.Release()
	code, body, fds := c.await(request)
	closeAll(fds)
	var lent wire.AttachDeviceReply
	if code != wire.OK || lent.Decode(body) != nil || gpuipc.UUID(lent.UUID) != ids[0] {
		t.Errorf("%v, %x", code, lent.UUID)
	}
	if a, b := r.gpus[0].ConnectionBytes(), r.gpus[1].ConnectionBytes(); a == 0 || b != 0 {
		t.Errorf("%d and %d bytes are lent", a, b)
	}
	c.close()
	r.deviceAtRest()
}

// A client that names the device of another rank gets its own rank's bytes there, from
// that device's budget; the rank whose device it is keeps what it has.
func TestARankOnTheGPUOfAnother(t *testing.T) {
	r, doubles := startDoubles(t, deviceConfig(t), 2)
	p := testProfile(2)
	id := doubles[0].UUID()
	a, b := attachDoubleOf(t, r.Socket(), id[:]), attachDoubleOf(t, r.Socket(), id[:])
	a.register(p)
	b.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	publishRanks(t, [2]*rawClient{a.rawClient, b.rawClient}, d)
	for i, c := range []*deviceClient{a, b} {
		var got wire.AcquireReply
		c.call(wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: c.profile, Rank: uint32(i), Wait: 1, Keys: [][32]byte{d.key}}, &got)
		if wire.Code(got.Codes[0]) != wire.OK {
			t.Fatalf("rank %d: %v", i, wire.Code(got.Codes[0]))
		}
		have, want := gather(c.public.Bytes(), got.ExtentOff, got.ExtentLen), d.ofRank(i).bytes
		for _, part := range d.layout.Parts {
			if !bytes.Equal(have[part.Off:part.Off+part.Len], want[part.Off:part.Off+part.Len]) {
				t.Errorf("rank %d: layer %d on the device of another rank differs", i, part.Layer)
			}
		}
		c.release(got.Leases[0])
	}
	list := r.store.DeviceCounters()
	if list[0].Copies != 2 || list[1].Copies != 0 {
		t.Errorf("%d and %d copies", list[0].Copies, list[1].Copies)
	}
	a.refused(wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: a.profile, Rank: 2, Keys: [][32]byte{d.key}}, wire.Invalid, "rank 2")
	a.close()
	b.close()
	r.deviceAtRest()
}

// A kernel that hangs on one device holds up the clients that use that device, and neither
// those who read another nor the host.
func TestAHangingGPUHoldsUpNoOtherGPU(t *testing.T) {
	config := deviceConfig(t)
	config.Workers = 1
	r, doubles := startDoubles(t, config, 2)
	p := testProfile(1)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	ids := [2]gpuipc.UUID{doubles[0].UUID(), doubles[1].UUID()}
	slow, quick, plain := attachDoubleOf(t, r.Socket(), ids[0][:]), attachDoubleOf(t, r.Socket(), ids[1][:]), attach(t, r.Socket())
	slow.register(p)
	quick.register(p)
	plain.register(p)
	quick.publish(d)
	lease := slow.deviceLease(d)
	stall := doubles[0].Stall(t, gpuipctest.OpComposeAll, 1)
	m := &wire.ComposeRequest{Profile: slow.profile, Layer: 0, Plan: onePlan(lease, d, 6)}
	request := slow.send(wire.OpCompose, m)
	stall.Await()
	h := slow.header(wire.OpCompose)
	h.Deadline = 20_000
	slow.sendHeader(&h, m)
	if code, _, _ := slow.await(h.Request); code != wire.Late {
		t.Errorf("behind one that hangs: %v", code)
	}
	quick.compose(quick.deviceLease(d), d)
	plain.compose(plain.lease(d), d) // and not after the GPU
	late := attachDoubleOf(t, r.Socket(), ids[1][:])
	late.close()
	stall.Release()
	var out wire.ComposeReply
	if code, body, _ := slow.await(request); code != wire.OK || out.Decode(body) != nil {
		t.Errorf("%v", code)
	}
	slow.release(out.Lease, lease)
	slow.close()
	quick.close()
	plain.close()
	r.deviceAtRest()
}

// Devices that cannot be used are told by name, and the others serve.
func TestAGPUThatIsMissingCostsItsOwnCopies(t *testing.T) {
	for name, row := range map[string]struct {
		names  []string
		fault  *fakecuda.Fault
		states map[string]string
		want   string
	}{
		"not there":          {[]string{fakeGPU0, absentGPU}, nil, map[string]string{fakeGPU0: api.GPUServing, absentGPU: api.GPUMissing}, absentGPU + " is unavailable"},
		"a number too many":  {[]string{"0", "2"}, nil, map[string]string{fakeGPU0: api.GPUServing, "2": api.GPUMissing}, "2 is unavailable: the driver reports 2 devices, numbered from 0"},
		"named twice":        {[]string{"1", fakeGPU1}, nil, map[string]string{fakeGPU1: api.GPUServing, fakeGPU1 + " (again)": api.GPUMissing}, fakeGPU1 + " (again) is unavailable: hbm-device lists it twice"},
		"refuses":            {[]string{"all"}, &fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuDevicePrimaryCtxRetain@1", Value: 46}, map[string]string{fakeGPU0: api.GPUServing, fakeGPU1: api.GPUMissing}, fakeGPU1 + " is unavailable"},
		"cannot be asked":    {[]string{"all"}, &fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuDeviceGetAttribute@1", Value: 999}, map[string]string{fakeGPU0: api.GPUServing, fakeGPU1: api.GPUMissing}, fakeGPU1 + " is unavailable"},
		"is full":            {[]string{"1", "0"}, &fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuMemCreate@1", Value: 2}, map[string]string{fakeGPU0: api.GPUServing, fakeGPU1: api.GPUMissing}, "OUT_OF_MEMORY"},
		"hangs while opened": {[]string{"all"}, &fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuDevicePrimaryCtxRetain@1"}, map[string]string{fakeGPU0: api.GPUServing, fakeGPU1: api.GPUMissing}, fakeGPU1 + " is unavailable: the driver timed out"},
		"hangs while it gives memory": {[]string{"all"}, &fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuMemCreate@1"},
			map[string]string{fakeGPU0: api.GPUServing, fakeGPU1: api.GPUMissing}, fakeGPU1 + " is unavailable: HBM: the device gives no memory within"},
	} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			lib := twoGPUs(t)
			before := lib.Stats().Live()
			if row.fault != nil {
				lib.Inject(t, *row.fault)
			}
			config := deviceConfig(t)
			config.AdminSocket, config.HTTP, config.HBMLibrary, config.HBMDevices, config.HBMTimeout = "", "127.0.0.1:0", lib.Path, row.names, patience
			if row.fault != nil && row.fault.Kind == fakecuda.Hang {
				config.HBMTimeout = 150 * time.Millisecond // a device has 30 times this to open
			}
			r := startParts(t, config, Parts{})
			check := r.check(t, "hbm")
			if check.State != api.CheckDegraded || !strings.Contains(check.Detail, row.want) {
				t.Errorf("the check is %s: %s", check.State, check.Detail)
			}
			got := r.states(t)
			for uuid, state := range row.states {
				if got[uuid] != state {
					t.Errorf("%s is %q, want %q", uuid, got[uuid], state)
				}
			}
			for uuid, state := range row.states {
				if want := `spliced_hbm_state{device="` + uuid + `",state="` + state + `"} 1`; !strings.Contains(r.metricsText(t), want) {
					t.Errorf("no %s in the metrics", want)
				}
				if state != api.GPUServing {
					continue
				}
				p := testProfile(2)
				c := rawRank(t, r, p, uuid)
				d := newDocument(p, nil, 1, 64, profile.RoleFirst)
				publishRanks(t, [2]*rawClient{c, c}, d)
				c.release(c.rankLease(1, d))
				c.close()
			}
			lib.Clear()
			r.deviceAtRest()
			r.stop()
			eventually(t, "what was opened late is closed", func() bool { return lib.Stats().Live() == before })
		})
	}
}

// Opening is as long as the slowest device, not as all of them together.
func TestGPUsAreOpenedAtTheSameTime(t *testing.T) {
	leakCheck(t)
	lib := twoGPUs(t)
	lib.Inject(t,
		fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuDevicePrimaryCtxRetain@0", Nth: 1},
		fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuDevicePrimaryCtxRetain@1", Nth: 1})
	var release sync.WaitGroup
	release.Go(func() {
		eventually(t, "both are being opened", func() bool { return lib.Stats().Hanging == 2 })
		lib.Release()
	})
	r := startGPUs(t, lib, settings.AllDevices)
	release.Wait()
	for _, g := range r.gpus {
		if s, why := g.State(); s != gpu.Serving {
			t.Errorf("%s is %v: %v", g.Name, s, why)
		}
	}
	r.deviceAtRest()
}

// A copy that does not end on one GPU holds up those who wait for it, and no rank on another.
func TestACopyThatHangsOnOneGPUHoldsUpNoOther(t *testing.T) {
	leakCheck(t)
	lib := twoGPUs(t)
	r := startGPUs(t, lib, settings.AllDevices)
	p := testProfile(2)
	ours := [2]*rawClient{rawRank(t, r, p, fakeGPU0), rawRank(t, r, p, fakeGPU1)}
	first, second := newDocument(p, nil, 1, 64, profile.RoleFirst), newDocument(p, nil, 2, 64, profile.RoleFirst)
	publishRanks(t, ours, first)
	publishRanks(t, ours, second)
	copies := lib.Calls("run.copy")
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "run.copy@0"})
	request := ours[0].send(wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: ours[0].profile, Wait: 1, Keys: [][32]byte{first.key}})
	eventually(t, "the copy has begun", func() bool { return lib.Calls("run.copy") > copies })
	for _, d := range []*document{first, second} {
		ours[1].release(ours[1].rankLease(1, d))
	}
	ours[1].release(ours[1].acquire(1, first.key).Leases[0])
	if got := r.store.DeviceCounters(); got[0].Copies != 0 || got[1].Copies != 2 {
		t.Errorf("%d and %d copies", got[0].Copies, got[1].Copies)
	}
	lib.Clear()
	code, body, _ := ours[0].await(request)
	var got wire.AcquireReply
	if code != wire.OK || got.Decode(body) != nil || wire.Code(got.Codes[0]) != wire.OK {
		t.Errorf("%v, %v, when the copy is done", code, got.Codes)
	}
	ours[0].close()
	ours[1].close()
	r.deviceAtRest()
}
