package daemon

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/tiering"
)

// gpu is the accelerator of a daemon that has one, and what of it is lent to
// connections.
type gpu struct {
	// Fixed after openGPU.
	device gpuipc.Accelerator
	owned  bool
	ways   []gpuipc.Way // as clients may be answered, the best first
	epoch  uint64       // of its pools
	config *Config
	ptx    *os.File  // the kernels' text, sealed
	info   cuda.Info // zero where the driver did not tell

	mu struct {
		sync.Mutex
		lent int64 // bytes of private regions of connections
	}
}

// openGPU opens the device that the configuration asks for. One that cannot be
// used is a tier less: why is kept for the check and told once, by announce.
func (d *Daemon) openGPU() {
	if !d.config.usesHBM() {
		return
	}
	g := &gpu{device: d.accelerator, ways: shareWays(d.config.HBMShare), epoch: newEpoch(), config: &d.config}
	var err error
	if g.ptx, err = sealedText("spliced-kernels", kernels.PTX()); err != nil {
		d.gpuTrouble = err.Error()
		return
	}
	if g.device == nil {
		g.owned = true
		if g.device, g.info, err = d.openDevice(); err != nil {
			d.gpuTrouble = err.Error()
			g.ptx.Close()
			return
		}
	}
	d.gpu = g
}

// driverPatience is how many times hbm-timeout the driver may take to open a device,
// or to close it: some seconds to begin, as many to compile the kernels (a guess).
const driverPatience = 30

// openDevice opens the device, unless the driver does not answer: that of a GPU that
// fell off its bus may not do so for ever. What it opens later is closed.
func (d *Daemon) openDevice() (device gpuipc.Accelerator, info cuda.Info, err error) {
	type opened struct {
		device gpuipc.Accelerator
		info   cuda.Info
		err    error
	}
	answer := make(chan opened)
	gaveUp := make(chan struct{})
	go func() {
		var o opened
		if o.device, o.err = cuda.Open(cuda.Options{
			Library: d.config.HBMLibrary, Device: d.config.HBMDevice, ChunkBytes: chunkBytes(&d.config),
			CallTimeout: d.config.HBMTimeout, Log: func(text string) { d.log.Warn().Str("tier", "hbm").Msg(text) },
		}); o.err == nil {
			o.info = infoOf(d.config.HBMLibrary, o.device.UUID())
		}
		select {
		case answer <- o:
		case <-gaveUp:
			if o.err == nil {
				_ = o.device.Close() // nobody uses it
			}
		}
	}()
	limit := time.NewTimer(driverPatience * d.config.HBMTimeout)
	defer limit.Stop()
	select {
	case o := <-answer:
		return o.device, o.info, o.err
	case <-limit.C:
		close(gaveUp)
		return nil, info, fmt.Errorf("the driver did not open the device within %v", driverPatience*d.config.HBMTimeout)
	}
}

// infoOf is what the driver tells about a device.
func infoOf(library string, id gpuipc.UUID) cuda.Info {
	list, err := cuda.Devices(library)
	if i := slices.IndexFunc(list, func(i cuda.Info) bool { return i.UUID == id }); err == nil && i >= 0 {
		return list[i]
	}
	return cuda.Info{}
}

// gpu is what people see of the device; nil without one.
func (v view) gpu() *api.GPU {
	g := v.d.gpu
	if g == nil {
		return nil
	}
	stored := v.d.store.Counters()
	out := &api.GPU{
		UUID: g.device.UUID().String(), Name: g.device.Describe().Name, Mode: g.info.Mode, MPS: g.info.MPS.String(),
		Lost: stored.HBM.Lost != 0, Stuck: g.stuckCalls(), Lent: g.lentBytes(),
	}
	if n := g.info.Driver; n > 0 {
		out.Driver = fmt.Sprintf("%d.%d", n/1000, n%1000/10)
	}
	out.Way = "handle"
	if g.ways[0] == gpuipc.WayDescriptor && (g.info == (cuda.Info{}) || g.info.Descriptors) {
		out.Way = "descriptor"
	}
	return out
}

// chunkBytes keeps the arena within three quarters of the chunks that one reply
// may name; the rest are for private regions.
func chunkBytes(c *Config) int64 {
	const least = GiB
	return int64(max(least, (c.HBMPublic+c.HBMPrivate)/(wire.MaxChunks*3/4)+1))
}

// shareWays are the ways of a setting that was validated.
func shareWays(setting string) []gpuipc.Way {
	switch setting {
	case "descriptor":
		return []gpuipc.Way{gpuipc.WayDescriptor}
	case "handle":
		return []gpuipc.Way{gpuipc.WayHandle}
	default:
		return []gpuipc.Way{gpuipc.WayDescriptor, gpuipc.WayHandle}
	}
}

// regionWay is the way that regions are made for: the device's choice where both
// are allowed.
func (g *gpu) regionWay() gpuipc.Way {
	if len(g.ways) > 1 {
		return 0
	}
	return g.ways[0]
}

// openStore opens the store, and without the GPU where that has not the memory.
func (d *Daemon) openStore() (err error) {
	config := d.storeConfig()
	if d.gpu != nil {
		config.HBM = d.hbmConfig()
		if d.store, err = tiering.Open(config); err == nil {
			return nil
		}
		d.gpuTrouble = err.Error()
		d.closeGPU()
		d.gpu, config.HBM = nil, nil
	}
	d.store, err = tiering.Open(config)
	return err
}

func (d *Daemon) hbmConfig() *tiering.HBM {
	c := &d.config
	return &tiering.HBM{
		Device: d.gpu.device, Way: d.gpu.regionWay(), PublicBytes: int64(c.HBMPublic), PrivateBytes: int64(c.HBMPrivate),
		PageBytes: int(c.HBMPageBytes), AfterMatch: c.HBMAhead,
	}
}

// closeGPU lets go of the device, after everything that uses it. What goes wrong
// there is no trouble of the daemon's: the driver cleans up after a process.
func (d *Daemon) closeGPU() {
	if d.gpu == nil {
		return
	}
	d.gpu.ptx.Close()
	if !d.gpu.owned {
		return
	}
	closed := make(chan error, 1)
	if !endsWithin(driverPatience*d.config.HBMTimeout, func() { closed <- d.gpu.device.Close() }) {
		d.log.Warn().Str("tier", "hbm").Msg("the driver does not close the GPU: left to the end of the process")
		return
	}
	if err := <-closed; err != nil {
		d.log.Warn().Err(err).Str("tier", "hbm").Msg("the GPU was not closed well")
	}
}

// gpuCheck is how the GPU does; false where none was asked for.
func (d *Daemon) gpuCheck() (api.Check, bool) {
	if !d.config.usesHBM() {
		return api.Check{}, false
	}
	check := api.Check{Name: "hbm", State: api.CheckOK}
	switch counters := d.store.Counters(); {
	case d.gpu == nil:
		check.State = api.CheckDegraded
		check.Detail = fmt.Sprintf("no memory of a GPU, served from memory and disk: %s", d.gpuTrouble)
	case counters.HBM.Lost != 0:
		check.State = api.CheckDegraded
		check.Detail = "the GPU was lost (see the kernel's log for NVRM messages): served from memory and disk until the daemon is started again"
	case d.gpu.stuckCalls() > 0:
		check.State = api.CheckDegraded
		check.Detail = fmt.Sprintf("%d calls of the driver on memory of other processes do not come back: what they hold stays held", d.gpu.stuckCalls())
	}
	return check, true
}

// stuckCalls is how many calls of the driver run past their time now.
func (g *gpu) stuckCalls() int64 {
	if c, ok := g.device.(driverCounters); ok {
		return c.Counters().StuckCalls
	}
	return 0
}

// take counts a private region of a connection in.
func (g *gpu) take(bytes int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if most := int64(g.config.HBMConnections); g.mu.lent+bytes > most {
		return refuse(wire.Full, "%d bytes of the GPU: %d of %d are lent", bytes, g.mu.lent, most)
	}
	g.mu.lent += bytes
	return nil
}

func (g *gpu) giveBack(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.lent -= bytes
}

// lentBytes is what connections have of the GPU for their own.
func (g *gpu) lentBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.lent
}

// shareOf makes handles of the device arena in the first way that the client,
// the configuration and the memory allow.
func (g *gpu) shareOf(arena gpuipc.SharedRegion, ways uint8) (gpuipc.Share, error) {
	var failed []error
	for _, way := range g.ways {
		if ways&uint8(way) == 0 {
			continue
		}
		share, err := arena.Share(way)
		if err == nil {
			return share, nil
		}
		if !errors.Is(err, gpuipc.ErrUnavailable) {
			return share, err
		}
		failed = append(failed, err)
	}
	if len(failed) > 0 {
		return gpuipc.Share{}, refuse(wire.Unsupported, "%v", errors.Join(failed...))
	}
	return gpuipc.Share{}, refuse(wire.Unsupported, "the client maps memory in ways %#x, this daemon shares it as %s", ways, g.config.HBMShare)
}
