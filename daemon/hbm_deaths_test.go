package daemon

import (
	"bufio"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/policy/profile"
)

// shortLived keeps the thousands of clients of a test out of its list of cleanups:
// each is closed where it dies.
type shortLived struct{ testing.TB }

func (shortLived) Cleanup(func()) {}

// hbmWorld is what clients that die find: a daemon on the fake driver, with two
// segments on the device, and an engine's memory.
type hbmWorld struct {
	*running
	t      *testing.T
	lib    *fakecuda.Library
	p      *profile.Profile
	docs   [2]*document
	engine gpuipc.SharedRegion
}

func newHBMWorld(t *testing.T) *hbmWorld {
	t.Helper()
	config := deviceConfig(t)
	// The dead are freed a moment after they died.
	config.HBMConnections, config.ConnectionMemory = 256*settings.MiB, settings.GiB
	fakecuda.Open(t).Set(t, "POISON", "0") // the time of it, over thousands of regions
	r, lib := startFake(t, config)
	w := &hbmWorld{running: r, t: t, lib: lib, p: testProfile(1)}
	region, err := openDevice(t, lib.Path).NewRegion(gpuipc.RegionSpec{Name: "engine", Bytes: 2 << 20, Access: gpuipc.ClientWrites, Way: gpuipc.WayDescriptor})
	must(t, err)
	t.Cleanup(func() { region.Close() })
	w.engine = region.(gpuipc.SharedRegion)
	c := w.client(t)
	for i := range w.docs {
		w.docs[i] = newDocument(w.p, nil, uint64(i+1), 64, profile.RoleFirst)
		c.publish(w.docs[i])
		c.release(c.rankLease(0, w.docs[i]))
	}
	c.close()
	r.deviceAtRest()
	return w
}

// hbmClient is a raw client that has the device attached and maps none of it.
type hbmClient struct {
	*rawClient
	lent wire.AttachDeviceReply
}

func (w *hbmWorld) client(t testing.TB) *hbmClient {
	t.Helper()
	c := &hbmClient{rawClient: deviceHello(t, w.Socket())}
	c.lent = c.attachUnmapped(wire.WayDescriptor, nil)
	c.register(w.p)
	return c
}

// engineRequest registers memory of an engine that goes along as a descriptor.
func (w *hbmWorld) engineRequest(t testing.TB, c *hbmClient, epoch uint64) (*wire.RegisterDeviceRequest, *os.File) {
	t.Helper()
	share, err := w.engine.Share(gpuipc.WayDescriptor)
	must(t, err)
	m := &wire.RegisterDeviceRequest{
		Profile: c.profile, Way: wire.WayDescriptor, Epoch: epoch, ChunkBytes: []uint64{uint64(share.Chunks[0].Bytes)},
		Memory: []wire.MemoryLayer{{Layer: 1, VBase: 1 << 20, BlockStride: 2048, KTokenStride: 64, KHeadStride: 32, VTokenStride: 64, VHeadStride: 32}},
	}
	return m, share.Chunks[0].File
}

// deaths are what clients are in the middle of when they die.
var deaths = []struct {
	name string
	die  func(w *hbmWorld, t testing.TB, c *hbmClient)
}{
	{"with nothing more", func(*hbmWorld, testing.TB, *hbmClient) {}},
	{"with leases", func(w *hbmWorld, _ testing.TB, c *hbmClient) {
		c.rankLease(0, w.docs[0])
		c.rankLease(0, w.docs[1])
	}},
	{"in an order that never comes", func(w *hbmWorld, _ testing.TB, c *hbmClient) {
		c.send(wire.OpOrder, &wire.OrderRequest{After: 9, Signal: 1, Leases: []uint64{c.rankLease(0, w.docs[0])}})
	}},
	{"in a compose", func(w *hbmWorld, _ testing.TB, c *hbmClient) {
		d := w.docs[0]
		c.send(wire.OpCompose, &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: onePlan(c.rankLease(0, d), d, 6)})
	}},
	{"in an acquire", func(w *hbmWorld, _ testing.TB, c *hbmClient) {
		c.send(wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: c.profile, Digests: 1, Wait: 1, Keys: [][32]byte{w.docs[1].key}})
	}},
	{"with registered memory", func(w *hbmWorld, t testing.TB, c *hbmClient) {
		m, file := w.engineRequest(t, c, 1)
		defer file.Close()
		c.call(wire.OpRegisterDevice, m, &wire.RegisterDeviceReply{}, int(file.Fd()))
	}},
	{"in a registration", func(w *hbmWorld, t testing.TB, c *hbmClient) {
		m, file := w.engineRequest(t, c, 1)
		defer file.Close()
		c.send(wire.OpRegisterDevice, m, int(file.Fd()))
	}},
}

// die makes a client and closes its socket under it, as the end of its process
// would.
func (w *hbmWorld) die(i int) {
	t := shortLived{w.t}
	if i%8 == 7 { // in attach-device itself
		c := deviceHello(t, w.Socket())
		c.send(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor})
		c.close()
		return
	}
	c := w.client(t)
	deaths[i%len(deaths)].die(w, t, c)
	c.close()
}

// holds is what of the device is in use in this process, but for what belongs to
// the streams that a device keeps: these come as work does, to a bound.
func (w *hbmWorld) holds() fakecuda.Stats {
	w.t.Helper()
	s := w.lib.Stats().Live()
	const streams = 2 * 8 // of the daemon's device and of the engine's
	if s.Streams > streams || s.Events > 3*streams || s.Allocations > 2*streams || s.Registered > 3*streams+2 ||
		s.MemoryObjects != s.Allocations+s.Physical || s.Descriptors != s.MemoryObjects {
		w.t.Errorf("more than %d streams need: %+v\n%s", streams, s, w.lib.Live())
	}
	return fakecuda.Stats{
		Contexts: s.Contexts, Physical: s.Physical, Reservations: s.Reservations, Mappings: s.Mappings, Imports: s.Imports,
		Modules: s.Modules, HostAllocations: s.HostAllocations, Hanging: s.Hanging,
	}
}

// Clients die in everything that they can be in the middle of, ten thousand of
// them in a long run, and the daemon holds afterwards what it held before: on the
// device, in memory, of descriptors and goroutines.
func TestDeathsOfClientsLeaveNothing(t *testing.T) {
	leakCheck(t)
	w := newHBMWorld(t)
	n := 1500
	switch {
	case os.Getenv("SPLICED_LONG") != "":
		n = 10_000
	case testing.Short():
		n = 200
	}
	for i := range 8 * len(deaths) { // lanes, buffers and free lists come to their size
		w.die(i)
	}
	w.deviceAtRest()
	before, pools := w.holds(), w.store.Pools()
	start := time.Now()
	const round = 100
	for i := 0; i < n; i += round {
		var both sync.WaitGroup
		for half := range 2 {
			both.Go(func() {
				for j := i + half; j < i+round; j += 2 {
					w.die(j)
				}
			})
		}
		both.Wait()
		w.deviceAtRest()
		if after := w.holds(); after != before {
			t.Fatalf("after %d deaths:\nbefore %+v\nafter  %+v\n%s", i+round, before, after, w.lib.Live())
		}
	}
	t.Logf("%d deaths in %v", n, time.Since(start))
	for i, p := range w.store.Pools() {
		if p.UsedBytes != pools[i].UsedBytes {
			t.Errorf("pool %d: %+v before, %+v after", i, pools[i], p)
		}
	}
	c := w.client(t)
	c.release(c.rankLease(0, w.docs[0]), c.rankLease(0, w.docs[1]))
	c.close()
}

// Processes with the device mapped are killed, one after the other and wherever
// they are.
func TestKilledProcessesLeaveNothing(t *testing.T) {
	leakCheck(t)
	w := newHBMWorld(t)
	before := w.holds()
	n := 6
	switch {
	case os.Getenv("SPLICED_LONG") != "":
		n = 100
	case testing.Short():
		n = 2
	}
	for i := range n {
		// Later ones die sooner after their start.
		command := w.process(t, fakecuda.Setup{})
		out, err := command.StdoutPipe()
		must(t, err)
		must(t, command.Start())
		if i%2 == 0 {
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatalf("the client process: %v", err)
			}
		} else {
			eventually(t, "the process has connected", func() bool { return len(w.server.Connections()) > 0 })
		}
		must(t, command.Process.Kill())
		_ = command.Wait()
		w.deviceAtRest()
		if after := w.holds(); after != before {
			t.Fatalf("after %d deaths:\nbefore %+v\nafter  %+v\n%s", i+1, before, after, w.lib.Live())
		}
	}
}

// process prepares useDevice as another process.
func (w *hbmWorld) process(t *testing.T, s fakecuda.Setup) *exec.Cmd {
	t.Helper()
	return ourselves(append(s.Env(w.lib.Path), roleEnv+"="+w.Socket(), libraryEnv+"="+w.lib.Path)...)
}

// clientCalls are driver calls that an engine makes with the device of a daemon.
var clientCalls = []string{
	"cuInit", "cuDevicePrimaryCtxRetain", "cuModuleLoadDataEx", "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
	"cuMemSetAccess", "cuMemRelease", "cuStreamCreate", "cuEventCreate", "cuMemcpyDtoHAsync_v2", "run.copy", "cuEventRecord", "run.record",
	"cuLaunchKernel", "run.launch", "cuEventQuery",
}

// A client's process may end in any call of its driver.
func TestClientsMayDieInAnyDriverCall(t *testing.T) {
	leakCheck(t)
	w := newHBMWorld(t)
	before := w.holds()
	for i, call := range clientCalls {
		if testing.Short() && i%4 != 0 {
			continue
		}
		command := w.process(t, fakecuda.Setup{Faults: []fakecuda.Fault{{Kind: fakecuda.Die, Call: call, Nth: 1}}})
		must(t, command.Start())
		err := command.Wait()
		if status, ok := command.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("%s: %v, it should have been killed", call, err)
		}
		w.deviceAtRest()
		if after := w.holds(); after != before {
			t.Fatalf("%s:\nbefore %+v\nafter  %+v\n%s", call, before, after, w.lib.Live())
		}
	}
}
