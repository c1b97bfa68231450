package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
	"github.com/spliced-kv/spliced/policy/profile"
)

// libraryEnv makes a client process one that uses the device, with this driver.
const libraryEnv = "SPLICED_TEST_LIBRARY"

// startFake starts a daemon on the fake driver. At the end of the test nothing of
// it may be left.
func startFake(t testing.TB, c settings.Config) (*running, *fakecuda.Library) {
	t.Helper()
	leakCheck(t)
	lib := fakecuda.Open(t)
	lib.LeakCheck(t)
	c.HBMLibrary = lib.Path
	r := startParts(t, c, Parts{})
	if !r.gpus.Serving() {
		t.Fatalf("no device: %s", r.gpus[0].Trouble())
	}
	return r, lib
}

// openDevice opens the fake driver's device once more, as an engine does.
func openDevice(t testing.TB, library string) gpuipc.Accelerator {
	t.Helper()
	return openDeviceOf(t, library, "")
}

// openDeviceOf opens the device of a UUID.
func openDeviceOf(t testing.TB, library, uuid string) gpuipc.Accelerator {
	t.Helper()
	device, err := cuda.Open(cuda.Options{Library: library, Device: uuid})
	must(t, err)
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Errorf("closing the engine's device: %v", err)
		}
	})
	return device
}

// openDeviceClient attaches the real client with a device.
func openDeviceClient(t testing.TB, socket string, device gpuipc.Accelerator, p *profile.Profile) (*connector.Client, *connector.Model) {
	t.Helper()
	return openRank(t, socket, device, p, 0)
}

// openRank does so as one rank.
func openRank(t testing.TB, socket string, device gpuipc.Accelerator, p *profile.Profile, rank int) (*connector.Client, *connector.Model) {
	t.Helper()
	return openWith(t, connector.Options{Socket: socket, Device: device}, p, connector.Binding{Rank: rank})
}

// onDevice acquires a segment on the device.
func onDevice(t testing.TB, m *connector.Model, d *document) *connector.DeviceLease {
	t.Helper()
	rows, err := m.AcquireDevice(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{Digests: true, Wait: patience})
	if err != nil || rows[0].Err != nil {
		t.Fatalf("acquire-device: %v, %v", err, rows)
	}
	return rows[0].Lease
}

// read copies a part of a lease from the device.
func read(t testing.TB, device gpuipc.Device, r gpuipc.Ref) []byte {
	t.Helper()
	b := make([]byte, r.Len())
	must(t, device.Load(context.Background(), b, r))
	return b
}

// composeHere composes a leased segment behind a zero state with kernels of this
// process, and returns the state.
func composeHere(t testing.TB, device gpuipc.Accelerator, p *profile.Profile, l *connector.DeviceLease) []byte {
	t.Helper()
	lin := &p.Layer(0).Linear
	_, heads := p.RankHeads(0)
	layout := l.Layout()
	part := func(kind profile.PartKind) (gpuipc.Ref, gpuipc.DType) {
		for i := range layout.Parts {
			if q := &layout.Parts[i]; q.Layer == 0 && q.Kind == kind {
				return l.Part(i), gpuipc.DType(q.DType)
			}
		}
		t.Fatalf("no part %v", kind)
		return gpuipc.Ref{}, 0
	}
	region, err := device.NewRegion(gpuipc.RegionSpec{Name: "state", Bytes: int64(4 * heads * lin.KeyDim * lin.ValueDim), Access: gpuipc.ClientWrites})
	must(t, err)
	defer region.Close()
	out := gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Len: int64(4 * heads * lin.KeyDim * lin.ValueDim)}}}
	step := gpuipc.ComposeStep{}
	step.T, step.TType = part(profile.PartT)
	step.S, step.SType = part(profile.PartS)
	err = device.ComposeAll(context.Background(), []gpuipc.ComposeJob{{
		Transition: gpuipc.Transition(lin.Transition()), Heads: heads, DK: lin.KeyDim, DV: lin.ValueDim,
		Steps: []gpuipc.ComposeStep{step}, Out: out,
	}})
	must(t, err)
	return read(t, device, out)
}

// composedInMemory is the state of layer 0 behind d, composed by the daemon.
func composedInMemory(t testing.TB, m *connector.Model, d *document) []byte {
	t.Helper()
	l := get(t, m, d)
	defer l.Release()
	slot, err := m.Compose(context.Background(), &connector.ComposeQuery{Layer: 0,
		Plan: connector.Plan{End: 70, Spans: []connector.Span{{Lease: l, Count: 64}, {Start: 64, Count: 6}}}})
	must(t, err)
	defer slot.Release()
	b := slot.Bytes()
	return bytes.Clone(b[len(b)/2:]) // the state before the recomputed span, then the final one
}

// sameFloats compares F32 values to a relative 1e-6 of the largest.
func sameFloats(t testing.TB, got, want []byte) {
	t.Helper()
	if len(got) < len(want) {
		t.Fatalf("%d bytes, want %d", len(got), len(want))
	}
	value := func(b []byte, i int) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	}
	worst, most := 0.0, 0.0
	for i := range len(want) / 4 {
		worst, most = max(worst, math.Abs(value(got, i)-value(want, i))), max(most, math.Abs(value(want, i)))
	}
	if most == 0 || !(worst <= 1e-6*most) {
		t.Errorf("off by %g of %g", worst, most)
	}
}

func TestAnEngineReadsAndComposesOnTheGPU(t *testing.T) {
	r, lib := startFake(t, deviceConfig(t))
	p := testProfile(1)
	device := openDevice(t, lib.Path)
	c, m := openDeviceClient(t, r.Socket(), device, p)
	if len(c.Kernels()) == 0 {
		t.Fatal("the client has no device memory of the daemon")
	}
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	put(t, m, d)
	l := onDevice(t, m, d)
	for i, want := range partsOf(d) {
		if !bytes.Equal(read(t, device, l.Part(i)), want) {
			t.Errorf("part %d on the device differs", i)
		}
	}
	sameFloats(t, composeHere(t, device, p, l), composedInMemory(t, m, d))

	page, ok := c.Order()
	if !ok {
		t.Fatal("no order page")
	}
	ctx := context.Background()
	done := make(chan error, 1)
	go func() { done <- m.ReleaseBehind(ctx, 1, 7, l) }()
	must(t, page.Signal(ctx, order.Client, 1))
	if err := <-done; err != nil {
		t.Errorf("release behind the stream: %v", err)
	}
	if seen, err := page.Wait(ctx, order.Daemon, 7); err != nil || seen != 7 {
		t.Errorf("the daemon's slot is at %d, %v", seen, err)
	}
	if l.Valid() {
		t.Error("the lease is valid behind its release")
	}
	c.Close()
	r.deviceAtRest()

	if list := r.eventsOf(api.EventGPU); len(list) != 1 || list[0].Why != "serving" || !strings.HasPrefix(list[0].Text, "GPU-") {
		t.Errorf("gpu: %+v", list)
	}
	if list := r.eventsOf(api.EventPromoted); len(list) != 1 || *list[0].Key != api.Digest(d.key) || list[0].Text != "a copy into HBM" || list[0].Client != "test" {
		t.Errorf("promoted: %+v", list)
	}
	r.gpus[0].Fail(errors.New("off the bus"))
	eventually(t, "the loss is told", func() bool {
		list := r.eventsOf(api.EventGPU)
		return len(list) == 2 && list[1].Why == "lost" && strings.HasSuffix(list[1].Text, "off the bus")
	})
}

func TestAClientAttachesTheDeviceAgainAfterARestart(t *testing.T) {
	config := deviceConfig(t)
	r, lib := startFake(t, config)
	p := testProfile(1)
	device := openDevice(t, lib.Path)
	c, m := openDeviceClient(t, config.Socket, device, p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	put(t, m, d)
	held := onDevice(t, m, d)
	if _, err := m.AcquireDevice(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{TTL: config.MaxLeaseTTL + time.Second}); !errors.Is(err, connector.ErrInvalid) {
		t.Errorf("a lease beyond max-lease-ttl: %v", err)
	}
	page, _ := c.Order()
	r.stop()
	eventually(t, "the client knows", func() bool { return !c.Attached() })
	// Streams that wait for the daemon go on.
	if seen, err := page.Wait(context.Background(), order.Daemon, 1); err != nil || seen != order.Released {
		t.Errorf("the daemon's slot is at %d, %v", seen, err)
	}
	if _, err := m.AcquireDevice(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{}); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("acquire-device without a daemon: %v", err)
	}
	config.HBMLibrary = lib.Path
	r = startParts(t, config, Parts{})
	eventually(t, "the client is back", func() bool { return m.Ready() == nil })
	put(t, m, d)
	again := onDevice(t, m, d)
	if !bytes.Equal(read(t, device, again.Part(0)), partsOf(d)[0]) {
		t.Error("after the restart the bytes differ")
	}
	held.Release()
	again.Release()
	c.Close()
	r.deviceAtRest()
}

// seen is what a client process has seen.
type seen struct {
	Digests []uint64 // of the parts
	State   []byte
	Trouble string
}

// useDevice is a client process: it maps the device memory of the daemon, reads
// the segment of seed 1, composes it with kernels of its own, says what it saw,
// and waits to be killed.
func useDevice(socket, library string) {
	var t clientProcess
	device, err := cuda.Open(cuda.Options{Library: library})
	must(t, err)
	p := testProfile(1)
	c, m := openDeviceClient(t, socket, device, p)
	var saw seen
	if c.Kernels() == nil {
		saw.Trouble = "no device memory"
	} else {
		l := onDevice(t, m, newDocument(p, nil, 1, 64, profile.RoleFirst))
		for i := range l.Layout().Parts {
			saw.Digests = append(saw.Digests, gpuipc.DigestBytes(read(t, device, l.Part(i))))
		}
		saw.State = composeHere(t, device, p, l)
	}
	_ = json.NewEncoder(os.Stdout).Encode(saw)
	select {}
}

// startClientProcess starts useDevice and waits for what it says.
func startClientProcess(t *testing.T, socket, library string) (*exec.Cmd, seen) {
	t.Helper()
	command := ourselves(append(fakecuda.Setup{}.Env(library), roleEnv+"="+socket, libraryEnv+"="+library)...)
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	must(t, err)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var s seen
	if err == nil {
		err = json.Unmarshal(line, &s)
	}
	if err != nil {
		_ = command.Process.Kill()
		t.Fatalf("the client process: %v", err)
	}
	return command, s
}

func TestAnotherProcessMapsTheGPUByEitherWay(t *testing.T) {
	for _, way := range []string{"descriptor", "handle"} {
		t.Run(way, func(t *testing.T) {
			config := deviceConfig(t)
			config.HBMShare = way
			r, lib := startFake(t, config)
			p := testProfile(1)
			c, m := openClient(t, r.Socket(), p, connector.Binding{})
			d := newDocument(p, nil, 1, 64, profile.RoleFirst)
			put(t, m, d)
			command, s := startClientProcess(t, r.Socket(), lib.Path)
			if s.Trouble != "" {
				t.Error(s.Trouble)
			}
			for i, part := range partsOf(d) {
				if i < len(s.Digests) && s.Digests[i] != gpuipc.DigestBytes(part) {
					t.Errorf("part %d differs in the other process", i)
				}
			}
			if s.Trouble == "" {
				sameFloats(t, s.State, composedInMemory(t, m, d))
			}
			c.Close()
			killed := time.Now()
			must(t, command.Process.Kill())
			r.deviceAtRest()
			t.Logf("free %v after kill -9", time.Since(killed))
			_ = command.Wait()
		})
	}
}

func TestHandlesBetweenEqualPIDsAreRefusedWithTheRemedy(t *testing.T) {
	config := deviceConfig(t)
	config.HBMShare = "handle"
	r, lib := startFake(t, config)
	device := openDevice(t, lib.Path)
	p := testProfile(1)
	c, m := openDeviceClient(t, r.Socket(), device, p)
	if c.Kernels() != nil {
		t.Error("a handle of this very process was opened")
	}
	// Everything else works.
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	put(t, m, d)
	get(t, m, d).Release()
	c.Close()
	r.deviceAtRest()
}

func TestAKilledClientsWorkOnTheGPUEndsFirst(t *testing.T) {
	r, lib := startFake(t, deviceConfig(t))
	p := testProfile(1)
	c := deviceHello(t, r.Socket())
	c.attachUnmapped(wire.WayDescriptor, nil)
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publish(d)
	lease := c.rankLease(0, d)
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "run.launch", Nth: 1})
	c.send(wire.OpCompose, &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: onePlan(lease, d, 6)})
	eventually(t, "the kernel hangs", func() bool { return lib.Stats().Hanging > 0 })
	c.close()
	eventually(t, "the daemon has noticed", func() bool {
		for _, x := range r.server.Connections() {
			if !x.Ending {
				return false
			}
		}
		return true
	})
	if r.gpus[0].ConnectionBytes() == 0 {
		t.Error("the memory went before the kernel that writes it had ended")
	}
	lib.Release()
	r.deviceAtRest()
}

// A driver that does not answer costs the copies, not the start, nor the end.
func TestADriverThatHangsHoldsUpNeitherStartNorEnd(t *testing.T) {
	lib := fakecuda.Open(t)
	p := testProfile(1)
	for _, call := range []string{"cuInit", "cuDevicePrimaryCtxRelease_v2"} {
		t.Run(call, func(t *testing.T) {
			leakCheck(t)
			config := deviceConfig(t)
			config.AdminSocket = ""
			config.HBMLibrary, config.HBMTimeout = lib.Path, 150*time.Millisecond // a device has 30 times this to open
			lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: call, Nth: 1})
			r := startParts(t, config, Parts{})
			if check := r.check(t, "hbm"); (call == "cuInit") != strings.Contains(check.Detail, "the driver timed out after") {
				t.Errorf("check %s is %s: %s", check.Name, check.State, check.Detail)
			}
			c := attach(t, r.Socket())
			c.register(p)
			d := newDocument(p, nil, 1, 64, profile.RoleFirst)
			c.publish(d)
			c.close()
			r.atRest()
			if err := r.end(); err != nil {
				t.Error(err)
			}
			lib.Release()
			eventually(t, "the call is back, and what it opened closed", func() bool {
				n := lib.Stats()
				return n.Hanging == 0 && n.Live() == (fakecuda.Stats{}).Live()
			})
		})
	}
}
