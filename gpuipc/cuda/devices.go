package cuda

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// ErrNoLibrary is the error of a driver library that cannot be opened.
var ErrNoLibrary = driver.ErrNoLibrary

// Devices returns the devices visible to this process, in the driver's order. It does not
// create a context. If a device cannot be queried, its Trouble has the reason. The
// parameter library has the meaning of Options.Library.
func Devices(library string) ([]Info, error) {
	api, err := driver.Load(library)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	n, err := api.DeviceCount()
	if err != nil {
		return nil, unavailable(err)
	}
	all := make([]Info, 0, n)
	for i := range n {
		id, err := api.DeviceAt(i)
		if err != nil {
			return nil, unavailable(err)
		}
		info, err := describe(api, id)
		if err != nil {
			info.Trouble = unavailable(err).Error()
		}
		all = append(all, info)
	}
	return all, nil
}

// choose finds the device whose UUID is given by name, or the first device if name is
// empty.
func choose(api *driver.API, name string) (driver.Device, Info, error) {
	var want gpuipc.UUID
	if name != "" {
		var err error
		if want, err = gpuipc.ParseUUID(name); err != nil {
			return 0, Info{}, fmt.Errorf("cuda: %w", err)
		}
	}
	n, err := api.DeviceCount()
	if err != nil {
		return 0, Info{}, unavailable(err)
	}
	var seen []string
	for i := range n {
		id, err := api.DeviceAt(i)
		if err != nil {
			return 0, Info{}, unavailable(err)
		}
		// A device that cannot be queried does not affect the others.
		uuid, err := api.DeviceUUID(id)
		if name != "" && (err != nil || uuid != want) {
			seen = append(seen, gpuipc.UUID(uuid).String())
			continue
		}
		var info Info
		if err == nil {
			info, err = describe(api, id)
		}
		if err != nil {
			return 0, info, unavailable(err)
		}
		return id, info, info.usable()
	}
	if name == "" {
		return 0, Info{}, fmt.Errorf("cuda: the driver shows no device: %w", gpuipc.ErrUnavailable)
	}
	return 0, Info{}, fmt.Errorf("cuda: device %s is not among those visible, %v: %w", want, seen, gpuipc.ErrUnavailable)
}

// usable refuses devices on which our kernels or contexts cannot run.
func (i *Info) usable() error {
	if i.Mode == modeProhibited {
		return fmt.Errorf("cuda: %s (%s) is in compute mode %q; set another with nvidia-smi -c: %w", i.Name, i.UUID, i.Mode, gpuipc.ErrUnavailable)
	}
	if i.Major < 8 {
		return fmt.Errorf("cuda: %s (%s) has compute capability %d.%d, the kernels need 8.0: %w", i.Name, i.UUID, i.Major, i.Minor, gpuipc.ErrUnavailable)
	}
	return nil
}

const modeProhibited = "prohibited"

func describe(api *driver.API, id driver.Device) (Info, error) {
	info := Info{Driver: api.DriverVersion()}
	uuid, err := api.DeviceUUID(id)
	if err != nil {
		return info, err
	}
	info.UUID = uuid
	if info.Name, err = api.DeviceName(id); err != nil {
		return info, err
	}
	if info.Bytes, err = api.DeviceTotalMem(id); err != nil {
		return info, err
	}
	var mode, virtual, descriptors, wait int
	for _, a := range []struct {
		of driver.Attribute
		to *int
	}{
		{driver.CapabilityMajor, &info.Major}, {driver.CapabilityMinor, &info.Minor}, {driver.ComputeMode, &mode},
		{driver.VirtualMemorySupport, &virtual}, {driver.DescriptorSupport, &descriptors}, {driver.StreamMemOps64, &wait},
	} {
		if *a.to, err = api.DeviceAttribute(id, a.of); err != nil {
			return info, err
		}
	}
	info.Mode = modeName(mode)
	info.Descriptors, info.WaitValues = virtual != 0 && descriptors != 0, wait != 0
	if mps, err := api.DeviceAttribute(id, driver.MPSEnabled); err == nil {
		info.MPS = No
		if mps != 0 {
			info.MPS = Yes
		}
	}
	return info, nil
}

func modeName(mode int) string {
	switch mode {
	case driver.ComputeDefault:
		return "default"
	case driver.ComputeProhibited:
		return modeProhibited
	case driver.ComputeExclusiveProcess:
		return "exclusive process"
	}
	return fmt.Sprintf("mode %d", mode)
}
