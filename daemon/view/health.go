package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// socketCheck reports whether clients can reach the engine socket.
func (v *checks) socketCheck() api.Check {
	check := api.Check{Name: "socket", State: api.CheckOK}
	if trouble := v.o.Guard.Trouble(); trouble != "" {
		check.State, check.Detail = api.CheckDegraded, trouble
	}
	return check
}

// diskCheck reports the state of the disk tier; false = there is no disk tier.
func (v *checks) diskCheck() (api.Check, bool) {
	if v.o.Disk == nil {
		return api.Check{}, false
	}
	check := api.Check{Name: "disk", State: api.CheckOK}
	explain(&check, v.o.Disk.Health())
	return check, true
}

// eventsCheck reports whether all KV events reach all routers; false = KV events are off.
func (v *checks) eventsCheck() (api.Check, bool) {
	if v.o.Events == nil {
		return api.Check{}, false
	}
	check := api.Check{Name: "events", State: api.CheckOK}
	if trouble := v.o.Events.Trouble(); trouble != "" {
		check.State, check.Detail = api.CheckDegraded, trouble
	}
	return check, true
}

// explain puts the most severe problem of the disk tier into check, and then its dormant entries.
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
		degraded("a read has hung for %v: until it returns, objects only on disk are misses", h.ReadStalled.Round(time.Second))
	case h.WriteStalled > 0:
		degraded("a write has hung for %v: until it returns, no new objects are accepted", h.WriteStalled.Round(time.Second))
	case !h.Reads:
		degraded("reads failed repeatedly and are suspended: objects only on disk are misses")
	}
	if h.Dormant > 0 {
		if check.Detail != "" {
			check.Detail += "; "
		}
		degraded("%s%d entries are kept but not served until the file of their profile can be read or an engine registers the profile: %s",
			check.Detail, h.Dormant, h.DormantCause)
	}
}

// diskMeans describes the consequences of each state of the disk tier.
var diskMeans = map[disk.State]string{
	disk.StateFull:       "no file can be created, new entries replace old ones",
	disk.StatePaused:     "nothing is written, existing entries can be read",
	disk.StateFailed:     "nothing is written, existing entries can be read",
	disk.StateOpening:    "not open yet, serving from memory",
	disk.StateMissing:    "the directory is missing, or is not the previous one, and no new one is created; serving from memory",
	disk.StateRefused:    "the system refuses to open it; serving from memory",
	disk.StateLocked:     "another process uses the directory, serving from memory",
	disk.StateVersion:    "the directory has another version, serving from memory",
	disk.StateUnreadable: "the catalogue is damaged, serving from memory until it is repaired or deleted",
	disk.StateForeign:    "the directory, or something in it, does not belong to the daemon; serving from memory",
	disk.StateClosed:     "closed",
}

// gpus describes the configured devices for operators.
func (v *checks) gpus() (list []api.GPU) {
	counters, pools := v.o.Store.DeviceCounters(), v.o.Store.Pools()
	for _, g := range v.o.GPUs {
		state, _ := g.State()
		out := api.GPU{
			UUID: g.Name, State: state.String(), Trouble: g.Trouble(), Mode: g.Info.Mode, MPS: g.Info.MPS.String(),
			Stuck: g.StuckCalls(), Shared: g.ConnectionBytes(),
		}
		if n := g.Info.Driver; n > 0 {
			out.Driver = fmt.Sprintf("%d.%d", n/1000, n%1000/10)
		}
		if g.Device != nil {
			out.Name, out.Way = g.Device.Describe().Name, "handle"
			if g.Descriptors() {
				out.Way = "descriptor"
			}
			c := &counters[g.ID-1]
			out.Copies, out.Promoting = int64(c.Copies), int64(c.Promoting)
		}
		for i := range pools {
			if p := &pools[i]; g.ID != 0 && p.Device == g.ID {
				out.CapacityBytes += p.CapacityBytes
				out.UsedBytes += p.UsedBytes
			}
		}
		list = append(list, out)
	}
	return list
}

// gpuName returns the name of a device of the store, as shown to operators; "" for id 0.
func (v *base) gpuName(id tier.DeviceID) string {
	for _, g := range v.o.GPUs {
		if id != 0 && g.ID == id {
			return g.Name
		}
	}
	return ""
}

// gpuCheck reports the state of the GPUs; false if none is configured.
func (v *checks) gpuCheck() (api.Check, bool) {
	if !v.o.Config.UsesHBM() {
		return api.Check{}, false
	}
	check := api.Check{Name: "hbm", State: api.CheckOK}
	var troubles []string
	for _, g := range v.o.GPUs {
		if trouble := g.Trouble(); trouble != "" {
			troubles = append(troubles, trouble)
		}
	}
	if len(troubles) == 0 {
		return check, true
	}
	check.State, check.Detail = api.CheckDegraded, strings.Join(troubles, "; ")
	if !v.o.GPUs.Serving() {
		check.Detail = "no GPU memory, serving from memory and disk: " + check.Detail
	}
	return check, true
}
