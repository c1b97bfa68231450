// Package gpu opens the configured accelerators, tracks the state of each, and counts the memory
// that connections use on it. Copies of segments and checkpoints on a device belong to tiering. The
// private memory of a connection belongs to the connection.
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

// GPU is one configured accelerator, opened or not, with the memory that connections use on it.
type GPU struct {
	// Fixed after Open.
	Name   string             // its UUID or, if that is unknown, the text of the setting
	UUID   gpuipc.UUID        // zero if unknown
	Device gpuipc.Accelerator // nil if it could not be opened
	ID     tier.DeviceID      // id in the store; 0 if Device is nil
	Epoch  uint64             // identifies the start of its pools
	Info   cuda.Info          // zero if the driver did not provide it
	config *settings.Config
	log    zerolog.Logger
	owned  bool
	ways   []gpuipc.Way // ways of sharing that clients are offered, best first
	text   *os.File     // sealed file with the kernels; nil if Device is nil

	life   life
	closed sync.Once

	mu struct {
		sync.Mutex
		taken int64 // bytes of private regions of connections
	}
}

// newGPU returns a device that is not open yet.
func newGPU(name string, c *settings.Config, log zerolog.Logger) *GPU {
	g := &GPU{Name: name, config: c, ways: shareWays(c.HBMShare)}
	g.named(name, log)
	return g
}

func (g *GPU) named(name string, log zerolog.Logger) {
	g.Name, g.log = name, log.With().Str("tier", "hbm").Str("device", name).Logger()
}

// driverPatience is the driver's time limit for opening or closing a device, in units of
// hbm-timeout. The driver needs some seconds to initialize a device, and as many to compile the
// kernels (a guess).
const driverPatience = 30

// Patience returns how long the driver may take to open or close a device.
func Patience(c *settings.Config) time.Duration { return driverPatience * c.HBMTimeout }

// opens records that the device was opened.
func (g *GPU) opens(device gpuipc.Accelerator, info cuda.Info, log zerolog.Logger) error {
	text, err := sealedText("spliced-kernels", kernels.PTX())
	if err != nil {
		return err
	}
	g.Device, g.Info, g.text, g.UUID = device, info, text, device.UUID()
	g.named(g.UUID.String(), log)
	return nil
}

// chunkBytes returns the size of the arena's chunks. With that size the arena has at most three
// quarters of the chunks that one reply may name; the remaining chunks are for private regions.
func chunkBytes(c *settings.Config) int64 {
	const least = settings.GiB
	return int64(max(least, (c.HBMPublic+c.HBMPrivate)/(wire.MaxChunks*3/4)+1))
}

// shareWays returns the ways of sharing that a validated setting allows.
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

// RegionWay returns the way of sharing for which regions are created; 0 = the device chooses.
func (g *GPU) RegionWay() gpuipc.Way {
	if len(g.ways) > 1 {
		return 0
	}
	return g.ways[0]
}

// Close closes the device. Everything that uses the device must have ended. Errors are only logged,
// since the driver cleans up after a process. Close may be called again.
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
		g.log.Warn().Msg("the driver did not close the GPU: left to the exit of the process")
	case err != nil:
		g.log.Warn().Err(err).Msg("closing the GPU failed")
	}
}

// StuckCalls returns the number of driver calls that run past their deadline.
func (g *GPU) StuckCalls() int64 {
	c, _ := g.Counters()
	return c.StuckCalls
}

// Take reserves memory for a private region of a connection.
func (g *GPU) Take(bytes int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if most := int64(g.config.HBMConnections); g.mu.taken+bytes > most {
		return codes.Refuse(wire.Full, "%d bytes of %s: %d of %d are taken", bytes, g.Name, g.mu.taken, most)
	}
	g.mu.taken += bytes
	return nil
}

// GiveBack releases memory reserved by Take.
func (g *GPU) GiveBack(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.taken -= bytes
}

// ConnectionBytes returns the bytes of private regions of connections.
func (g *GPU) ConnectionBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.taken
}

// Share exports the device's arena, in the best way that the client, the configuration and the
// memory allow.
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
	return gpuipc.Share{}, codes.Refuse(wire.Unsupported, "the client can map memory in ways %#x, this daemon shares it as %s", ways, g.config.HBMShare)
}

// Counters returns the driver counters of a device. It returns false if the device is not open, or
// is not implemented by this repository.
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

// Descriptors reports whether clients get descriptors, if they support them.
func (g *GPU) Descriptors() bool {
	return g.ways[0] == gpuipc.WayDescriptor && (g.Info == (cuda.Info{}) || g.Info.Descriptors)
}

// Text returns a descriptor of the kernels' text for a client. If /proc is usable, the descriptor
// has its own file offset. If it is not, all clients share one file offset, which matters to
// clients that read without giving an offset.
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

// sealedText returns a descriptor of immutable memory that contains text.
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
