package daemon

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/policy/profile"
)

// daemonCalls are what a daemon asks of its driver, and what its streams execute.
var daemonCalls = []string{
	"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDeviceGetName", "cuDeviceGetAttribute",
	"cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuMemFree_v2",
	"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap",
	"cuMemSetAccess", "cuMemExportToShareableHandle", "cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemcpyHtoDAsync_v2",
	"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async", "cuStreamCreate", "cuStreamDestroy_v2", "cuEventCreate",
	"cuEventDestroy_v2", "cuEventRecord", "cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel",
}

// givenBack are those of them that give something back: what they refuse to take
// stays with the driver.
func givenBack(call string) bool {
	return slices.ContainsFunc([]string{"Free", "Release", "Unmap", "Destroy", "Unregister", "Unload"}, func(part string) bool { return strings.Contains(call, part) })
}

// hbmRound is a life of a daemon with a device that may fail it: whatever does,
// memory of the host must serve, and the daemon end well.
func hbmRound(t *testing.T, config settings.Config, p *profile.Profile) error {
	t.Helper()
	r := startParts(t, config, Parts{})
	c := deviceHello(t, r.Socket())
	c.register(p)
	first, second := newDocument(p, nil, 1, 64, profile.RoleFirst), newDocument(p, nil, 2, 64, profile.RoleFirst)
	c.publish(first)
	c.publish(second)
	if _, fds, code := c.exchange(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, nil); code == wire.OK {
		closeAll(fds)
		for _, d := range []*document{first, second, first} {
			c.tryDevice(d)
		}
	}
	// A device in trouble costs a tier, nothing else.
	c.compose(c.lease(first), first)
	c.release(c.lease(second))
	c.close()
	r.deviceRest()
	return r.end()
}

// deviceRest is deviceAtRest for a daemon that may have no device.
func (r *running) deviceRest() {
	r.t.Helper()
	if !r.gpus.Serving() {
		r.atRest()
		return
	}
	r.deviceAtRest()
}

func closeAll(fds []int) {
	for _, fd := range fds {
		os.NewFile(uintptr(fd), "device").Close()
	}
}

// tryDevice leases a segment on the device, if that works, composes it there, if
// that does, and lets go.
func (c *rawClient) tryDevice(d *document) {
	c.t.Helper()
	r := c.acquireDevice(1, d.key)
	if wire.Code(r.Codes[0]) != wire.OK {
		return
	}
	var out wire.ComposeReply
	m := &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: onePlan(r.Leases[0], d, 6)}
	if _, _, code := c.exchange(wire.OpCompose, m, &out); code == wire.OK {
		c.release(out.Lease)
	}
	c.release(r.Leases[0])
}

func (c *rawClient) compose(lease uint64, d *document) {
	c.t.Helper()
	var out wire.ComposeReply
	c.call(wire.OpCompose, &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: onePlan(lease, d, 6)}, &out)
	c.release(out.Lease, lease)
}

// faultyRounds runs hbmRound with each fault, and looks for what is left.
func faultyRounds(t *testing.T, faults []fakecuda.Fault) {
	lib := fakecuda.Open(t)
	lib.LeakCheck(t)
	p := testProfile(1)
	for _, f := range faults {
		t.Run(fmt.Sprintf("%s %d", f.Call, f.Nth), func(t *testing.T) {
			leakCheck(t)
			config := deviceConfig(t)
			config.HBMLibrary = lib.Path
			before := lib.Stats()
			lib.Inject(t, f)
			err := hbmRound(t, config, p)
			switch {
			case f.Kind == fakecuda.Lost:
				lib.Reset()
			case givenBack(f.Call): // may be told at the end: the driver keeps what it was given back
				err = nil
				lib.Reset()
			}
			if err != nil {
				t.Errorf("the daemon ended with: %v", err)
			}
			lib.Clear()
			after := lib.Stats()
			live, was := after.Live(), before.Live()
			live.Workers, was.Workers = 0, 0 // threads on their way out
			if live != was || after.Misuses != before.Misuses {
				t.Errorf("before %+v\nafter  %+v\n%s", before, after, lib.Live())
			}
		})
	}
}

func TestTheDaemonServesThoughAnyDriverCallFails(t *testing.T) {
	var faults []fakecuda.Fault
	codes := []int{2, 1, 201, 304}
	for i, call := range daemonCalls {
		if testing.Short() && i%5 != 0 {
			continue
		}
		nth := 1
		if os.Getenv("SPLICED_LONG") != "" || strings.HasPrefix(call, "cuMem") || strings.HasPrefix(call, "cuEvent") {
			nth = 2
		}
		for n := 1; n <= nth; n++ {
			faults = append(faults, fakecuda.Fault{Kind: fakecuda.Fail, Call: call, Nth: n, Value: codes[(i+n)%len(codes)]})
		}
	}
	faultyRounds(t, faults)
}

func TestTheDaemonServesThoughTheDeviceIsLost(t *testing.T) {
	var faults []fakecuda.Fault
	codes := []int{999, 46, 214, 719}
	for i, call := range append([]string{"cuEventQuery", "cuStreamSynchronize", "run.copy", "run.launch", "run.memset", "run.record"}, daemonCalls...) {
		if testing.Short() && i%5 != 0 {
			continue
		}
		faults = append(faults, fakecuda.Fault{Kind: fakecuda.Lost, Call: call, Nth: 1 + i%2, Value: codes[i%len(codes)]})
	}
	faultyRounds(t, faults)
}

// A device without room for one more private region refuses that client, and
// others go on.
func TestADeviceWithoutRoomRefusesAttachments(t *testing.T) {
	config := deviceConfig(t)
	config.HBMConnections = 256 * settings.MiB
	r, lib := startFake(t, config)
	lib.Set(t, "MEM", "16M") // 8 MiB of pools and lanes of some 2 MiB are there
	p := testProfile(1)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c, lease := attachedFake(t, r, d)
	var others []*rawClient
	code := wire.OK
	for code == wire.OK && len(others) < 20 {
		other := deviceHello(t, r.Socket())
		others = append(others, other)
		var fds []int
		_, fds, code = other.exchange(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, nil)
		closeAll(fds)
	}
	if code != wire.Full {
		t.Errorf("client %d: %v", len(others), code)
	}
	last := others[len(others)-1]
	last.register(p)
	last.compose(last.lease(d), d)
	if len(others) > 1 {
		others[0].close()
		eventually(t, "there is room again", func() bool {
			_, fds, code := last.exchange(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, nil)
			closeAll(fds)
			return code == wire.OK
		})
	}
	c.release(lease)
	for _, other := range others {
		other.close()
	}
	c.close()
	r.deviceAtRest()
}

// A copy that takes its time holds up who waits for it, and nobody else.
func TestASlowCopyHoldsUpNobodyElse(t *testing.T) {
	r, lib := startFake(t, deviceConfig(t))
	other := attach(t, r.Socket())
	other.register(testProfile(1))
	waiting, d, request := hangingCopy(t, r, lib)
	// A copy as slow as can be: while it stands, others are served.
	if got := other.match(d.key); got.Tier[0] != wire.TierDRAM {
		t.Errorf("tier %d", got.Tier[0])
	}
	other.compose(other.lease(d), d)
	if got := waiting.acquireDevice(0, d.key); wire.Code(got.Codes[0]) != wire.Miss {
		t.Errorf("while the copy runs: %v", wire.Code(got.Codes[0]))
	}
	waiting.compose(waiting.lease(d), d)
	lib.Release()
	code, body, _ := waiting.await(request)
	var got wire.AcquireReply
	if code != wire.OK || got.Decode(body) != nil || wire.Code(got.Codes[0]) != wire.OK {
		t.Errorf("%v, %v, when the copy is done", code, got.Codes)
	}
	waiting.close()
	other.close()
	r.deviceAtRest()
}

// The connection of a client that waits for the device goes at once, and what is
// its own on the device when the device lets go of it.
func TestAClientDiesWhileItsCopyHangs(t *testing.T) {
	r, lib := startFake(t, deviceConfig(t))
	c, _, _ := hangingCopy(t, r, lib)
	c.close()
	eventually(t, "the connection is gone", func() bool { return len(r.server.Connections()) == 0 })
	lib.Release()
	r.deviceAtRest()
}

// hangingCopy has a client wait for a copy of a document to the device, which hangs.
func hangingCopy(t *testing.T, r *running, lib *fakecuda.Library) (c *rawClient, d *document, request uint64) {
	t.Helper()
	p := testProfile(1)
	c, d = deviceHello(t, r.Socket()), newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.register(p)
	c.publish(d)
	c.attachUnmapped(wire.WayDescriptor, nil)
	copies := lib.Calls("run.copy")
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "run.copy", Nth: 1})
	request = c.send(wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: c.profile, Digests: 1, Wait: 1, Keys: [][32]byte{d.key}})
	eventually(t, "the copy has begun", func() bool { return lib.Calls("run.copy") > copies })
	return c, d, request
}
