// Package gpu opens the accelerators that the settings ask for, knows how each of them
// does, and counts what of it connections have. Copies of segments and checkpoints on it
// are tiering's, a connection's own memory is its connection's.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// GPU is one accelerator of a daemon, whether it could be opened or not, and what of it
// connections have.
type GPU struct {
	// Fixed after Open.
	Name   string             // for people: its UUID, or what the setting says where that is not known
	UUID   gpuipc.UUID        // zero where it is not known
	Device gpuipc.Accelerator // nil where it could not be opened
	ID     tier.DeviceID      // in the store; 0 without Device
	Epoch  uint64             // of its pools
	Info   cuda.Info          // zero where the driver did not tell
	config *settings.Config
	log    zerolog.Logger
	owned  bool
	ways   []gpuipc.Way // as clients may be answered, the best first
	text   *os.File     // of the kernels, sealed; nil without Device

	life   life
	closed sync.Once

	mu struct {
		sync.Mutex
		taken int64 // bytes of private regions of connections
	}
}

// newGPU is a device that is going to be opened.
func newGPU(name string, c *settings.Config, log zerolog.Logger) *GPU {
	g := &GPU{Name: name, config: c, ways: shareWays(c.HBMShare)}
	g.named(name, log)
	return g
}

func (g *GPU) named(name string, log zerolog.Logger) {
	g.Name, g.log = name, log.With().Str("tier", "hbm").Str("device", name).Logger()
}

// driverPatience is how many times hbm-timeout the driver may take to open a device,
// or to close it: some seconds to begin, as many to compile the kernels (a guess).
const driverPatience = 30

// Patience is how long the driver may take to open a device.
func Patience(c *settings.Config) time.Duration { return driverPatience * c.HBMTimeout }

// opens takes the device that was opened.
func (g *GPU) opens(device gpuipc.Accelerator, info cuda.Info, log zerolog.Logger) error {
	text, err := sealedText("spliced-kernels", kernels.PTX())
	if err != nil {
		return err
	}
	g.Device, g.Info, g.text, g.UUID = device, info, text, device.UUID()
	g.named(g.UUID.String(), log)
	return nil
}

// chunkBytes keeps the arena within three quarters of the chunks that one reply
// may name; the rest are for private regions.
func chunkBytes(c *settings.Config) int64 {
	const least = settings.GiB
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

// RegionWay is the way that regions are made for: the device's choice where both
// are allowed.
func (g *GPU) RegionWay() gpuipc.Way {
	if len(g.ways) > 1 {
		return 0
	}
	return g.ways[0]
}

// Close lets go of the device, after everything that uses it. What goes wrong
// there is no trouble of the daemon's: the driver cleans up after a process. It may be
// called again.
func (g *GPU) Close() { g.closed.Do(g.close) }

func (g *GPU) close() {
	if g.Device == nil {
		return
	}
	g.text.Close()
	if !g.owned {
		return
	}
	shut := func() (struct{}, error) { return struct{}{}, g.Device.Close() }
	_, answered, err := gpuipc.Within(context.Background(), Patience(g.config), shut, func(struct{}, error) {})
	switch {
	case !answered:
		g.log.Warn().Msg("the driver does not close the GPU: left to the end of the process")
	case err != nil:
		g.log.Warn().Err(err).Msg("the GPU was not closed well")
	}
}

// StuckCalls is how many calls of the driver run past their time now.
func (g *GPU) StuckCalls() int64 {
	c, _ := g.Counters()
	return c.StuckCalls
}

// Take counts a private region of a connection in.
func (g *GPU) Take(bytes int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if most := int64(g.config.HBMConnections); g.mu.taken+bytes > most {
		return codes.Refuse(wire.Full, "%d bytes of %s: %d of %d are taken", bytes, g.Name, g.mu.taken, most)
	}
	g.mu.taken += bytes
	return nil
}

// GiveBack ends Take.
func (g *GPU) GiveBack(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.taken -= bytes
}

// ConnectionBytes is what connections have of the GPU for their own.
func (g *GPU) ConnectionBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.taken
}

// Share makes handles of the device arena in the first way that the client,
// the configuration and the memory allow.
func (g *GPU) Share(arena gpuipc.SharedRegion, ways uint8) (gpuipc.Share, error) {
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
		return gpuipc.Share{}, codes.Refuse(wire.Unsupported, "%v", errors.Join(failed...))
	}
	return gpuipc.Share{}, codes.Refuse(wire.Unsupported, "the client maps memory in ways %#x, this daemon shares it as %s", ways, g.config.HBMShare)
}

// Counters are those of a device that is one of this repository's.
func (g *GPU) Counters() (cuda.Counters, bool) {
	if g.Device == nil {
		return cuda.Counters{}, false
	}
	d, ok := g.Device.(interface{ Counters() cuda.Counters })
	if !ok {
		return cuda.Counters{}, false
	}
	return d.Counters(), true
}

// Descriptors reports whether clients are answered descriptors where they can use
// them.
func (g *GPU) Descriptors() bool {
	return g.ways[0] == gpuipc.WayDescriptor && (g.Info == (cuda.Info{}) || g.Info.Descriptors)
}

// Text is a descriptor of the kernels' text for a client. Where /proc can be used
// it has an offset of its own; else clients that read without an offset share one.
func (g *GPU) Text() (*os.File, error) {
	f := g.text
	if own, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err == nil {
		return own, nil
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// sealedText is a descriptor of memory that holds text and cannot be changed.
func sealedText(name string, text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(text); err != nil {
		return nil, errors.Join(fmt.Errorf("memfd %s: %w", name, err), f.Close())
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("seal %s: %w", name, err), f.Close())
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
