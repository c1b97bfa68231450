package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Devices are the devices that the daemon is configured to use, in the order of the setting. The
// list stays the same after Open, but the state of a device may change.
type Devices []*GPU

// Open opens the devices that c requests, all concurrently. If the parameter given is not nil, it
// uses these devices instead, which stay open at Close. A device that cannot be used becomes
// Missing and does not delay the others. Open returns when all devices have answered, when ctx
// ends, or after twice Patience (once for listing and once for opening). The function epoch returns
// a random number for each device, which identifies this start of the device's pool.
func Open(ctx context.Context, c *settings.Config, given []gpuipc.Accelerator, epoch func() uint64, log zerolog.Logger) Devices {
	var all Devices
	if given != nil {
		for _, device := range given {
			g := newGPU(device.UUID().String(), c, log)
			if err := g.opens(device, cuda.Info{}, log); err != nil {
				g.Fail(err)
			}
			all = append(all, g)
		}
	} else {
		all = wanted(ctx, c, log)
		all.once(log)
		var opening sync.WaitGroup
		for _, g := range all {
			opening.Go(func() { g.open(ctx, log) })
		}
		opening.Wait()
	}
	id := tier.DeviceID(0)
	for _, g := range all {
		if g.Device != nil {
			id++
			g.ID, g.Epoch = id, epoch()
		}
	}
	return all
}

// wanted lists the devices that the setting names. It asks the driver to resolve numbers and "all".
func wanted(ctx context.Context, c *settings.Config, log zerolog.Logger) Devices {
	names := c.HBMDevices
	if len(names) == 0 {
		names = []string{""}
	}
	var list []cuda.Info
	var err error
	if slices.ContainsFunc(names, func(name string) bool { return !isUUID(name) }) {
		list, err = within(ctx, c, func() ([]cuda.Info, error) { return cuda.Devices(c.HBMLibrary) }, func([]cuda.Info, error) {})
	}
	var all Devices
	for _, name := range names {
		all = append(all, resolve(name, list, err, c, log)...)
	}
	return all
}

func isUUID(name string) bool {
	_, err := gpuipc.ParseUUID(name)
	return err == nil
}

// resolve returns the devices of one entry of the setting: a UUID, the driver's number, "all", or
// "" for the first device. For an entry that names no device, it returns one that has failed.
func resolve(name string, list []cuda.Info, failed error, c *settings.Config, log zerolog.Logger) Devices {
	g := newGPU(name, c, log)
	index, notNumber := strconv.Atoi(name)
	switch {
	case isUUID(name):
		g.UUID, _ = gpuipc.ParseUUID(name)
	case failed != nil:
		g.Fail(failed)
	case name == settings.AllDevices && len(list) > 0:
		var all Devices
		for i := range list {
			all = append(all, foundGPU(&list[i], c, log))
		}
		return all
	case name == "" && len(list) > 0:
		return Devices{foundGPU(&list[0], c, log)}
	case notNumber == nil && index < len(list):
		return Devices{foundGPU(&list[index], c, log)}
	default:
		g.Fail(fmt.Errorf("the driver reports %d devices, numbered from 0: %w", len(list), gpuipc.ErrUnavailable))
	}
	if g.Name == "" {
		g.named("the first GPU", log)
	}
	return Devices{g}
}

func foundGPU(i *cuda.Info, c *settings.Config, log zerolog.Logger) *GPU {
	g := newGPU(i.UUID.String(), c, log)
	g.UUID = i.UUID
	return g
}

// open opens the device. It does not wait longer than Patience: for a GPU that fell off its bus,
// the driver may never answer. A device that the driver opens later is closed again.
func (g *GPU) open(ctx context.Context, log zerolog.Logger) {
	if s, _ := g.State(); s != Opening {
		return
	}
	type opened struct {
		device gpuipc.Accelerator
		info   cuda.Info
	}
	o, err := within(ctx, g.config, func() (o opened, err error) {
		o.device, err = cuda.Open(cuda.Options{
			Library: g.config.HBMLibrary, Device: g.UUID.String(), ChunkBytes: chunkBytes(g.config),
			CallTimeout: g.config.HBMTimeout, Log: func(text string) { g.log.Warn().Msg(text) },
		})
		if err == nil {
			o.info = infoOf(g.config.HBMLibrary, g.UUID)
		}
		return o, err
	}, func(o opened, err error) {
		if err == nil {
			_ = o.device.Close() // opened too late
		}
	})
	if err == nil {
		if err = g.opens(o.device, o.info, log); err != nil {
			err = errors.Join(err, o.device.Close())
		}
	}
	if err != nil {
		g.Fail(err)
		return
	}
	g.owned = true
}

// within calls the driver and waits for at most Patience; see gpuipc.Within.
func within[T any](ctx context.Context, c *settings.Config, call func() (T, error), late func(T, error)) (T, error) {
	answer, answered, err := gpuipc.Within(ctx, Patience(c), call, late)
	if !answered {
		err = fmt.Errorf("the driver timed out after %v: %w", Patience(c), err)
	}
	return answer, err
}

// infoOf returns the driver's information about a device; zero = there is none.
func infoOf(library string, id gpuipc.UUID) cuda.Info {
	list, err := cuda.Devices(library)
	if i := slices.IndexFunc(list, func(i cuda.Info) bool { return i.UUID == id }); err == nil && i >= 0 {
		return list[i]
	}
	return cuda.Info{}
}

// once makes a device fail if an earlier entry of the setting names the same device, for example if
// one entry has its number and another one its UUID.
func (d Devices) once(log zerolog.Logger) {
	for i, g := range d {
		if d[:i].Of(g.UUID) != nil {
			g.named(g.Name+" (again)", log) // names must differ, since they identify devices, also in metrics
			g.Fail(fmt.Errorf("hbm-device lists it twice: %w", gpuipc.ErrInvalid))
		}
	}
}

// Of returns the device with a UUID; nil = none.
func (d Devices) Of(id gpuipc.UUID) *GPU {
	for _, g := range d {
		if g.UUID == id && id != (gpuipc.UUID{}) {
			return g
		}
	}
	return nil
}

// Opened returns the opened devices, in the order of their ids in the store.
func (d Devices) Opened() (opened Devices) {
	for _, g := range d {
		if g.Device != nil {
			opened = append(opened, g)
		}
	}
	return opened
}

// Serving reports whether at least one device lends its memory.
func (d Devices) Serving() bool {
	return slices.ContainsFunc(d, (*GPU).Serving)
}

// Lent lists the names of the devices that lend their memory.
func (d Devices) Lent() string {
	var names []string
	for _, g := range d {
		if g.Serving() {
			names = append(names, g.Name)
		}
	}
	return strings.Join(names, ", ")
}

// Close closes all devices concurrently.
func (d Devices) Close() {
	var closing sync.WaitGroup
	for _, g := range d {
		closing.Go(g.Close)
	}
	closing.Wait()
}
