package view

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/tiering/disk"
)

// socketCheck says whether clients reach us.
func (v *View) socketCheck() api.Check {
	check := api.Check{Name: "socket", State: api.CheckOK}
	if trouble := v.o.Guard.Trouble(); trouble != "" {
		check.State, check.Detail = api.CheckDegraded, trouble
	}
	return check
}

// diskCheck is how the disk tier does; false without one.
func (v *View) diskCheck() (api.Check, bool) {
	if v.o.Disk == nil {
		return api.Check{}, false
	}
	check := api.Check{Name: "disk", State: api.CheckOK}
	explain(&check, v.o.Disk.Health())
	return check, true
}

// eventsCheck is whether routers are told of all that they can be; false without events.
func (v *View) eventsCheck() (api.Check, bool) {
	if v.o.Events == nil {
		return api.Check{}, false
	}
	check := api.Check{Name: "events", State: api.CheckOK}
	if trouble := v.o.Events.Trouble(); trouble != "" {
		check.State, check.Detail = api.CheckDegraded, trouble
	}
	return check, true
}

// explain says what is wrong with the disk tier, the gravest first.
func explain(check *api.Check, h disk.Health) {
	degraded := func(format string, args ...any) {
		check.State, check.Detail = api.CheckDegraded, fmt.Sprintf(format, args...)
	}
	switch {
	case h.State != disk.StateOK:
		degraded("%v since %s: %s", h.State, h.Since.Format(time.RFC3339), diskMeans[h.State])
		if h.Cause != "" {
			check.Detail += ": " + h.Cause
		}
	case h.ReadStalled > 0:
		degraded("a read has not returned for %v: until it does, what is only on disk is a miss", h.ReadStalled.Round(time.Second))
	case h.WriteStalled > 0:
		degraded("a write has not returned for %v: until it does, nothing new is taken", h.WriteStalled.Round(time.Second))
	case !h.Reads:
		degraded("reads failed many times in a row and are put off: what is only on disk is a miss")
	}
}

// diskMeans says what follows from a state.
var diskMeans = map[disk.State]string{
	disk.StateFull:       "no file can be made, new entries take the place of old ones",
	disk.StatePaused:     "nothing is written, what is there can be read",
	disk.StateFailed:     "nothing is written, what is there can be read",
	disk.StateOpening:    "not open yet, served from memory",
	disk.StateMissing:    "the directory is not there or not any more, served from memory",
	disk.StateRefused:    "its file system is full, read-only or failing, so that it cannot be opened; served from memory",
	disk.StateLocked:     "another process has the directory, served from memory",
	disk.StateVersion:    "the directory is of another version, served from memory",
	disk.StateUnreadable: "the catalogue is damaged, served from memory until it is repaired or deleted",
	disk.StateForeign:    "the directory, or something in it, is not the daemon's, served from memory",
	disk.StateClosed:     "closed",
}

// gpu is what people see of the device; nil without one.
func (v *View) gpu() *api.GPU {
	g := v.o.GPU
	if g == nil {
		return nil
	}
	stored := v.o.Store.Counters()
	out := &api.GPU{
		UUID: g.Device.UUID().String(), Name: g.Device.Describe().Name, Mode: g.Info.Mode, MPS: g.Info.MPS.String(),
		Lost: stored.HBM.Lost != 0, Stuck: g.StuckCalls(), Shared: g.ConnectionBytes(),
	}
	if n := g.Info.Driver; n > 0 {
		out.Driver = fmt.Sprintf("%d.%d", n/1000, n%1000/10)
	}
	out.Way = "handle"
	if g.Descriptors() {
		out.Way = "descriptor"
	}
	return out
}

// gpuCheck is how the GPU does; false where none was asked for.
func (v *View) gpuCheck() (api.Check, bool) {
	if !v.o.Config.UsesHBM() {
		return api.Check{}, false
	}
	check := api.Check{Name: "hbm", State: api.CheckOK}
	switch counters := v.o.Store.Counters(); {
	case v.o.GPU == nil:
		check.State = api.CheckDegraded
		check.Detail = fmt.Sprintf("no memory of a GPU, served from memory and disk: %s", v.o.GPUTrouble)
	case counters.HBM.Lost != 0:
		check.State = api.CheckDegraded
		check.Detail = "the GPU was lost (see the kernel's log for NVRM messages): served from memory and disk until the daemon is started again"
	case v.o.GPU.StuckCalls() > 0:
		check.State = api.CheckDegraded
		check.Detail = fmt.Sprintf("%d calls of the driver on memory of other processes do not come back: what they hold stays held", v.o.GPU.StuckCalls())
	}
	return check, true
}
